"""3 x 3 convolutions of few channels for training on Hopper GPUs, where they wait for memory.

A program takes whole rows of an image. The tensor memory accelerator fetches them once for each
tap, moved by its offset, with zeros for what lies outside the image, and the tensor cores read them
where they arrive. Nothing is unrolled in memory, and no index or mask is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional as F
from triton.tools.tensor_descriptor import TensorDescriptor

_LOGGER = logging.getLogger(__name__)


class Tile(NamedTuple):
    """The launch parameters of a kernel: rows of an image per program, and its resources."""

    rows: int
    warps: int
    stages: int
    parts: int = 1
    """Programs that share the sum over pixels, for the gradient of the weights."""


class Tiles(NamedTuple):
    """Launch parameters for images, forward and backward, and for weight gradients.

    None leaves the weight gradients to cuDNN.
    """

    images: Tile
    weights: Tile | None


TILES: Mapping[int, Tiles] = {
    32: Tiles(Tile(8, 4, 2), Tile(2, 2, 3, parts=88)),
    64: Tiles(Tile(8, 4, 3), Tile(8, 4, 3, parts=44)),
    128: Tiles(Tile(8, 4, 3), None),
}
"""By channels. The fastest of 16 to 150 each on an H200, for 128 images of 32, 16 and 8 pixels a
side: the shapes of WRN-40-2."""
WIDTH, ROW = 8, 1024
"""Least pixels in a row that make a matrix product, and most numbers that were measured: of more, a
program may find no room."""


@triton.jit
def _conv_kernel(
    x,  # (N, H, W, C), in blocks of 1 x BH x W x C
    w,  # (C, 9 C): outputs by taps and inputs
    y,
    BH: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    BACK: tl.constexpr,  # from outputs to inputs, and the other way round in space
    STAGES: tl.constexpr,
):
    image, top = tl.program_id(0) // (H // BH), (tl.program_id(0) % (H // BH)) * BH
    total = tl.zeros((BH * W, C), tl.float32)
    for tap in tl.range(9, num_stages=STAGES):
        pixels = x.load([image, top + tap // 3 - 1, tap % 3 - 1, 0]).reshape(BH * W, C)
        if BACK:  # noqa: SIM108 - Triton takes no such expression
            weights = w.load([0, (8 - tap) * C])
        else:
            weights = tl.trans(w.load([0, tap * C]))
        total = tl.dot(pixels, weights, total)
    y.store([image, top, 0, 0], total.to(y.dtype).reshape(1, BH, W, C))


@triton.jit
def _row_kernel(
    x,
    dy,
    part,  # (parts, C, 3, 3, C)
    count,
    each,
    BH: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Weights of one row of taps from `each` of `count` blocks: dy, against x moved by the tap."""
    mine, row = tl.program_id(0), tl.program_id(1)
    left = tl.zeros((C, C), tl.float32)
    middle = tl.zeros((C, C), tl.float32)
    right = tl.zeros((C, C), tl.float32)
    for block in tl.range(mine * each, tl.minimum(mine * each + each, count), num_stages=STAGES):
        image, top = block // (H // BH), (block % (H // BH)) * BH
        g = tl.trans(dy.load([image, top, 0, 0]).reshape(BH * W, C))
        x0 = x.load([image, top + row - 1, -1, 0]).reshape(BH * W, C)
        left = tl.dot(g, x0, left)
        x1 = x.load([image, top + row - 1, 0, 0]).reshape(BH * W, C)
        middle = tl.dot(g, x1, middle)
        x2 = x.load([image, top + row - 1, 1, 0]).reshape(BH * W, C)
        right = tl.dot(g, x2, right)
    outputs, inputs = tl.arange(0, C), tl.arange(0, C)
    at = part + ((mine * C + outputs[:, None]) * 9 + row * 3) * C + inputs[None, :]
    tl.store(at, left)
    tl.store(at + C, middle)
    tl.store(at + 2 * C, right)


@triton.jit
def _sum_kernel(part, out, numbers, parts, B: tl.constexpr, BS: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros((BS, B), tl.float32)
    for first in range(0, parts, BS):
        mine = first + tl.arange(0, BS)
        inside = (mine < parts)[:, None] & (at < numbers)[None, :]
        total += tl.load(part + mine[:, None] * numbers + at[None, :], mask=inside, other=0.0)
    tl.store(out + at, tl.sum(total, 0), mask=at < numbers)


def convolve(x: Tensor, w: Tensor, tile: Tile, *, back: bool = False) -> Tensor:
    """Images (N, C, H, W) with w (C, C, 3, 3), channels last; `back`: the gradient in the input."""
    n, c, height, width = x.shape
    y = torch.empty_like(x)
    flat = w.permute(0, 2, 3, 1).reshape(c, 9 * c)
    _conv_kernel[(n * (height // tile.rows),)](
        _rows(x, tile),
        TensorDescriptor.from_tensor(flat, [c, c]),
        _rows(y, tile),
        *(tile.rows, height, width, c, back, tile.stages),
        num_warps=tile.warps,
    )
    return y


def weight_gradient(x: Tensor, dy: Tensor, tile: Tile) -> Tensor:
    """(C, C, 3, 3) in float32, channels last, summed in an order that never changes."""
    n, c, height, width = x.shape
    count = n * (height // tile.rows)
    each = triton.cdiv(count, tile.parts)
    parts = triton.cdiv(count, each)
    part = x.new_empty((parts, c, 3, 3, c), dtype=torch.float32)
    _row_kernel[(parts, 3)](
        _rows(x, tile),
        _rows(dy, tile),
        *(part, count, each, tile.rows, height, width, c, tile.stages),
        num_warps=tile.warps,
    )
    out = x.new_empty((c, 3, 3, c), dtype=torch.float32)
    numbers = out.numel()
    _sum_kernel[(triton.cdiv(numbers, 64),)](part, out, numbers, parts, 64, 8)
    return out.permute(0, 3, 1, 2)


def _rows(images: Tensor, tile: Tile) -> TensorDescriptor:
    shape = [1, tile.rows, images.shape[3], images.shape[1]]
    return TensorDescriptor.from_tensor(images.permute(0, 2, 3, 1), shape)


# For torch

_PLAIN = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
"""Stride, padding, dilation and so on, as torch's own operation takes them."""


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("deepaa::narrow_conv", mutates_args=())
def _forward(x: Tensor, w: Tensor, rounded: Tensor) -> Tensor:
    """The convolution of x with `rounded`, which is w in the precision of x.

    w itself is an argument for the sake of its gradient.
    """
    x, rounded = _channels_last(x), _channels_last(rounded)
    with torch.cuda.device_of(x):
        return convolve(x, rounded, TILES[w.shape[0]].images)


@torch.library.custom_op("deepaa::narrow_conv_backward", mutates_args=())
def _backward(dy: Tensor, x: Tensor, w: Tensor, rounded: Tensor) -> tuple[Tensor, Tensor]:
    images, weights = TILES[w.shape[0]]
    dy, x, rounded = _channels_last(dy), _channels_last(x), _channels_last(rounded)
    with torch.cuda.device_of(x):
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.set_device(x.device)  # autograd's thread may not have used it yet
        dx = convolve(dy, rounded, images, back=True)
        if weights is not None:
            return dx, weight_gradient(x, dy, weights).to(w.dtype)
        only_weights = [False, True, False]
        backward = torch.ops.aten.convolution_backward
        _, dw, _ = backward(dy, x, rounded, None, *_PLAIN, only_weights)
        return dx, _channels_last(dw.to(w.dtype))


@_forward.register_fake
def _(x: Tensor, w: Tensor, rounded: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@_backward.register_fake
def _(dy: Tensor, x: Tensor, w: Tensor, rounded: Tensor) -> tuple[Tensor, Tensor]:
    last = torch.channels_last
    return torch.empty_like(x, memory_format=last), torch.empty_like(w, memory_format=last)


_forward.register_autograd(
    lambda ctx, dy: (*_backward(dy, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class NarrowConv2d(nn.Conv2d):
    """A convolution that uses these kernels when it trains in bfloat16, and torch's otherwise."""

    def forward(self, input: Tensor) -> Tensor:
        """The output (N, C, H, W)."""
        if self.training and input.dtype == torch.bfloat16 and fits(input, self.in_channels):
            out: Tensor = _forward(input, self.weight, self.weight.detach().to(input.dtype))
            return out
        return super().forward(input)


def fits(x: Tensor, channels: int) -> bool:
    """Whether the kernels take x: whole tiles of it, of a size that was measured."""
    if x.ndim != 4 or x.shape[1] != channels or not len(x):
        return False
    height, width = x.shape[2:]
    measured = WIDTH <= width <= ROW // channels and width & (width - 1) == 0
    return measured and all(height % tile.rows == 0 for tile in TILES[channels] if tile is not None)


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """The convolutions of a network that the kernels can replace."""
    return [m for m in model.modules() if type(m) is nn.Conv2d and _served(m)]


def _served(conv: nn.Conv2d) -> bool:
    same = conv.in_channels == conv.out_channels and conv.in_channels in TILES
    one = conv.stride == conv.padding == conv.dilation == (1, 1) and conv.groups == 1
    plain = conv.bias is None and conv.padding_mode == "zeros"
    return same and one and plain and conv.kernel_size == (3, 3)


@contextmanager
def narrowed(found: Sequence[nn.Conv2d]) -> Iterator[None]:
    """Let these convolutions use the kernels inside the context; afterwards they are as before."""
    for module in found:
        module.__class__ = NarrowConv2d
    try:
        yield
    finally:
        for module in found:
            module.__class__ = nn.Conv2d


@cache
def works(device: torch.device) -> bool:
    """Whether the kernels give torch's numbers on a device, which is tested once."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    if torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        wrong = [channels for channels in TILES if not _is_right(channels, device)]
    except Exception as error:  # whatever it is, cuDNN goes on
        reason = str(error).strip().split("\n")[0]
        _LOGGER.warning("cuDNN serves convolutions of few channels: %s", reason)
        return False
    if wrong:
        _LOGGER.warning("cuDNN serves convolutions of few channels: those of %s differ", wrong)
    return not wrong


def _is_right(channels: int, device: torch.device) -> bool:
    generator = torch.Generator(device).manual_seed(0)
    side = ROW // channels
    shapes = [(2, channels, side, side)] * 2 + [(channels, channels, 3, 3)]
    x, dy, w = (torch.randn(s, generator=generator, device=device).bfloat16() for s in shapes)
    found = _forward(x, w, w), *_backward(dy, x, w, w)
    wanted = F.conv2d(x.float(), w.float(), padding=1)
    back = torch.ops.aten.convolution_backward
    dx, dw, _ = back(dy.float(), x.float(), w.float(), None, *_PLAIN, [True, True, False])
    pairs = zip(found, (wanted, dx, dw), strict=True)
    return all(float((a.float() - b).norm()) < 0.01 * float(b.norm()) for a, b in pairs)
