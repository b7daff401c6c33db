"""3 x 3 convolutions of few channels for training on Hopper GPUs, where they wait for memory.

A program takes whole rows of some images. The tensor memory accelerator fetches them once for each
tap, moved by its offset, with zeros for what lies outside the image, and the tensor cores read them
where they arrive. Nothing is unrolled in memory, and no index or mask is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["NarrowConv2d", "narrow"]


class Tile(NamedTuple):
    """How the work is cut: rows of one or more images for a program, and its resources."""

    images: int
    rows: int
    outputs: int
    """Channels of the result that a program computes."""
    warps: int
    stages: int
    parts: int = 1
    """Programs that share the sum over pixels, for the gradient of the weights."""


class Tiles(NamedTuple):
    """Those of the three passes; None leaves the pass to cuDNN."""

    forward: Tile | None
    inputs: Tile | None
    weights: Tile | None


TILES: Mapping[int, Tiles] = {
    32: Tiles(Tile(1, 8, 32, 4, 2), Tile(1, 8, 32, 4, 2), Tile(1, 2, 32, 2, 3, 88)),
    64: Tiles(Tile(1, 8, 64, 4, 3), Tile(1, 8, 64, 4, 3), Tile(1, 8, 64, 4, 3, 44)),
    128: Tiles(Tile(1, 8, 128, 4, 3), Tile(1, 8, 128, 4, 3), None),
}
"""The fastest of some hundreds on an H200, for 128 images of 32, 16 and 8 pixels a side: the shapes
of WRN-40-2."""
ROW = 1024
"""Numbers in a row of pixels for which the tiles were measured; of more, they may find no room."""


@triton.jit
def _conv_kernel(
    x,  # (N, H, W, C), a block of NI x BH x W x C
    w,  # (C, 9 C): outputs by taps and inputs
    y,
    NI: tl.constexpr,
    BH: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    BN: tl.constexpr,
    BACK: tl.constexpr,
    STAGES: tl.constexpr,
):
    place, first = tl.program_id(0), tl.program_id(1) * BN
    image, top = (place // (H // BH)) * NI, (place % (H // BH)) * BH
    total = tl.zeros((NI * BH * W, BN), tl.float32)
    for tap in tl.range(9, num_stages=STAGES):
        pixels = x.load([image, top + tap // 3 - 1, tap % 3 - 1, 0]).reshape(NI * BH * W, C)
        if BACK:  # noqa: SIM108 - Triton takes no such expression; from outputs to inputs, and the other way round in space
            weights = w.load([0, (8 - tap) * C + first])
        else:
            weights = tl.trans(w.load([first, tap * C]))
        total = tl.dot(pixels, weights, total)
    y.store([image, top, 0, first], total.to(y.dtype).reshape(NI, BH, W, BN))


@triton.jit
def _row_kernel(
    x,
    dy,
    part,  # (parts, C, 3, 3, C)
    TILES,
    EACH,
    NI: tl.constexpr,
    BH: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Weights of one row of taps: dy as it is, against x moved by the tap."""
    mine, row, first = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BN
    left = tl.zeros((BN, C), tl.float32)
    middle = tl.zeros((BN, C), tl.float32)
    right = tl.zeros((BN, C), tl.float32)
    for tile in tl.range(mine * EACH, tl.minimum(mine * EACH + EACH, TILES), num_stages=STAGES):
        image, top = (tile // (H // BH)) * NI, (tile % (H // BH)) * BH
        g = tl.trans(dy.load([image, top, 0, first]).reshape(NI * BH * W, BN))
        x0 = x.load([image, top + row - 1, -1, 0]).reshape(NI * BH * W, C)
        left = tl.dot(g, x0, left)
        x1 = x.load([image, top + row - 1, 0, 0]).reshape(NI * BH * W, C)
        middle = tl.dot(g, x1, middle)
        x2 = x.load([image, top + row - 1, 1, 0]).reshape(NI * BH * W, C)
        right = tl.dot(g, x2, right)
    outputs, inputs = first + tl.arange(0, BN), tl.arange(0, C)
    at = part + ((mine * C + outputs[:, None]) * 9 + row * 3) * C + inputs[None, :]
    tl.store(at, left)
    tl.store(at + C, middle)
    tl.store(at + 2 * C, right)


@triton.jit
def _sum_kernel(part, out, N, PARTS, B: tl.constexpr, BS: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros((BS, B), tl.float32)
    for first in range(0, PARTS, BS):
        mine = first + tl.arange(0, BS)
        inside = (mine < PARTS)[:, None] & (at < N)[None, :]
        total += tl.load(part + mine[:, None] * N + at[None, :], mask=inside, other=0.0)
    tl.store(out + at, tl.sum(total, 0), mask=at < N)


def convolve(x: Tensor, w: Tensor, tile: Tile, *, back: bool = False) -> Tensor:
    """Images (N, C, H, W) with w (C, C, 3, 3), channels last; `back`: the gradient in the input."""
    n, c, height, width = x.shape
    y = torch.empty_like(x)
    flat = w.permute(0, 2, 3, 1).reshape(c, 9 * c)
    block = [c, tile.outputs] if back else [tile.outputs, c]
    grid = (n // tile.images * (height // tile.rows), c // tile.outputs)
    _conv_kernel[grid](
        _rows(x, tile, c),
        TensorDescriptor.from_tensor(flat, block),
        _rows(y, tile, tile.outputs),
        *(tile.images, tile.rows, height, width, c, tile.outputs, back, tile.stages),
        num_warps=tile.warps,
    )
    return y


def weight_gradient(x: Tensor, dy: Tensor, tile: Tile) -> Tensor:
    """(C, C, 3, 3) in float32, channels last, summed in an order that never changes."""
    n, c, height, width = x.shape
    tiles = n // tile.images * (height // tile.rows)
    each = triton.cdiv(tiles, tile.parts)
    parts = triton.cdiv(tiles, each)
    part = x.new_empty((parts, c, 3, 3, c), dtype=torch.float32)
    _row_kernel[(parts, 3, c // tile.outputs)](
        _rows(x, tile, c),
        _rows(dy, tile, tile.outputs),
        *(part, tiles, each, tile.images, tile.rows, height, width, c, tile.outputs, tile.stages),
        num_warps=tile.warps,
    )
    out = x.new_empty((c, 3, 3, c), dtype=torch.float32)
    count = out.numel()
    _sum_kernel[(triton.cdiv(count, 64),)](part, out, count, parts, 64, 8)
    return out.permute(0, 3, 1, 2)


def _rows(images: Tensor, tile: Tile, channels: int) -> TensorDescriptor:
    shape = [tile.images, tile.rows, images.shape[3], channels]
    return TensorDescriptor.from_tensor(images.permute(0, 2, 3, 1), shape)


# For torch

_PLAIN = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
"""Stride, padding, dilation and so on, as torch's own operation takes them."""


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("deepaa::narrow_conv", mutates_args=())
def _forward(x: Tensor, w: Tensor, cast: Tensor) -> Tensor:
    """By `cast`, which is w as x has its numbers; gradients are those of w, in its precision."""
    x, cast, tile = _last(x), _last(cast), TILES[w.shape[0]].forward
    if tile is None:
        return _last(torch.ops.aten.convolution(x, cast, None, *_PLAIN))
    return convolve(x, cast, tile)


@torch.library.custom_op("deepaa::narrow_conv_backward", mutates_args=())
def _backward(dy: Tensor, x: Tensor, w: Tensor, cast: Tensor) -> tuple[Tensor, Tensor]:
    _, inputs, weights = TILES[w.shape[0]]
    dy, x, cast = _last(dy), _last(x), _last(cast)
    wanted = [inputs is None, weights is None, False]
    dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, cast, None, *_PLAIN, wanted)
    if inputs is not None:
        dx = convolve(dy, cast, inputs, back=True)
    if weights is not None:
        dw = weight_gradient(x, dy, weights)
    return _last(dx), _last(dw.to(w.dtype))


@_forward.register_fake
def _(x: Tensor, w: Tensor, cast: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@_backward.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, cast: Tensor) -> tuple[Tensor, Tensor]:
    last = torch.channels_last
    return torch.empty_like(x, memory_format=last), torch.empty_like(w, memory_format=last)


_forward.register_autograd(
    lambda ctx, dy: (*_backward(dy, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class NarrowConv2d(nn.Conv2d):
    """A convolution that takes this way in a training in bfloat16, and torch's otherwise."""

    computes_as_torch = True
    """For slopes by dual numbers."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W)."""
        if self.training and input.dtype == torch.bfloat16 and fits(input):
            cast = self.weight.detach().to(input.dtype)
            out: Tensor = _forward(input, self.weight, cast)
            return out
        return super().forward(input)


def fits(x: Tensor) -> bool:
    """Whether the tiles of these channels cut images (N, C, H, W) without a rest, and are small."""
    n, c, height, width = x.shape
    return c * width <= ROW and all(
        n % tile.images == 0 and height % tile.rows == 0 and _is_power(tile.rows * width)
        for tile in TILES[c]
        if tile is not None
    )


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0


def narrow(model: nn.Module) -> int:
    """Turn the convolutions that this way serves into such; how many. Weights stay as they are."""
    found = [m for m in model.modules() if type(m) is nn.Conv2d and _served(m)]
    for module in found:
        module.__class__ = NarrowConv2d
    return len(found)


def _served(conv: nn.Conv2d) -> bool:
    same = conv.in_channels == conv.out_channels and conv.in_channels in TILES
    one = conv.stride == conv.padding == conv.dilation == (1, 1) and conv.groups == 1
    plain = conv.bias is None and conv.padding_mode == "zeros"
    return same and one and plain and conv.kernel_size == (3, 3)
