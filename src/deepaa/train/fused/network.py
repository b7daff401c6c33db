"""A wide residual network whose training steps run in a few passes over memory.

Batch norm, ReLU and the convolution behind them are one kernel: it reads what came out of the
convolution before, and writes its own output with the sums that the next batch norm needs. Nothing
between the two is ever written. Backward it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa.models import Normalize
from deepaa.models.networks import WideResNet
from deepaa.train.fused.kernels import TILES, Convolution, Kernels, Layer, WeightGradient

_LAST = torch.channels_last
THREADS = 256
"""Of a block of the kernels that have no tiles."""
MEASURING = 264
"""Blocks that share the sums over the stem's output."""
Argument = Tensor | int | float | None


class Launcher(Protocol):
    """What starts kernels by name: on a device, or in tests on a CPU."""

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[Argument],
        shared: int = 0,
    ) -> None:
        """Start a kernel."""

    def reserve(self, shared: Mapping[str, int]) -> None:
        """Let kernels have so many bytes of shared memory."""


# One pass each


class Passes:
    """The kernels as functions of tensors, which lie on the launcher's device."""

    def __init__(self, launcher: Launcher, layers: Sequence[Layer]) -> None:
        """Make room for the kernels of some layers."""
        self._launcher = launcher
        self._kernels = {layer: Kernels.of(layer) for layer in layers}
        every = [kernel for found in self._kernels.values() for kernel in found]
        launcher.reserve({kernel.name: kernel.shared for kernel in every})

    def _start(
        self, kernel: Convolution | WeightGradient, images: int, *arguments: Argument
    ) -> None:
        grid = kernel.grid(images)
        self._launcher.launch(kernel.name, grid, kernel.threads, arguments, kernel.shared)

    def measure(self, x: Tensor) -> Tensor:
        """Sums of x (N, 16, H, W) and of its squares, by block: (blocks, 2, 16)."""
        pixels = x.numel() // 16
        sums = x.new_empty((MEASURING, 2, 16), dtype=torch.float32)
        self._launcher.launch("measure16", (MEASURING, 1), THREADS, (x, sums, pixels))
        return sums

    def normalise(self, sums: Tensor, norm: nn.BatchNorm2d, count: int) -> Tensor:
        """(4, C): mean, inverse deviation, scale and shift of a batch norm.

        Its running statistics follow.
        """
        blocks, _, channels = sums.shape
        out = sums.new_empty((4, channels))
        weights = norm.weight, norm.bias, norm.running_mean, norm.running_var
        assert norm.momentum is not None
        numbers = blocks, channels, count, float(norm.momentum), float(norm.eps)
        arguments = (sums, *weights, out, *numbers)
        self._launcher.launch("normalise", (channels // 8, 1), THREADS, arguments)
        return out

    def forward(
        self, layer: Layer, x: Tensor, w: Tensor, norm: Tensor, add: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The convolution of the activation of x, plus `add`; and its sums by block."""
        kernel, n = self._kernels[layer].forward, len(x)
        shape = n, layer.outputs, layer.out_side, layer.out_side
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_LAST)
        sums = norm.new_empty((kernel.blocks(n), 2, layer.outputs))
        self._start(kernel, n, x, w, norm, add, None, None, y, sums)
        return y, sums

    def backward(
        self,
        layer: Layer,
        dy: Tensor,
        w: Tensor,
        x: Tensor,
        norm: Tensor,
        add: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The gradient in what batch norm gave, before ReLU, and its sums by block.

        Of a convolution with one tap it is the gradient behind ReLU, and there are no sums; `add`
        is such a gradient.
        """
        kernel, n, g = self._kernels[layer].backward, len(x), torch.empty_like(x)
        if layer.taps == 1:
            self._start(kernel, n, dy, w, None, None, None, None, g, None)
            return g, None
        sums = norm.new_empty((kernel.blocks(n), 2, layer.inputs))
        self._start(kernel, n, dy, w, None, add, x, norm, g, sums)
        return g, sums

    def weight_gradient(self, layer: Layer, dy: Tensor, x: Tensor, norm: Tensor) -> Tensor:
        """(outputs, inputs, 3, 3) or (outputs, inputs, 1, 1) in float32, channels last."""
        kernel = self._kernels[layer].weights
        count, each, parts = kernel.cut(len(x))
        part = norm.new_empty((parts, kernel.numbers))
        self._start(kernel, len(x), dy, x, norm, part, count, each)
        side = 3 if layer.taps == 9 else 1
        out = norm.new_empty((layer.outputs, side, side, layer.inputs))
        grid = -(-kernel.numbers // (4 * THREADS)), 1
        self._launcher.launch("sum_parts", grid, THREADS, (part, out, kernel.numbers, parts))
        return out.permute(0, 3, 1, 2)

    def normalise_backward(
        self, g: Tensor, sums: Tensor, x: Tensor, norm: Tensor, gamma: Tensor, add: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients in the input of a batch norm, plus `add`, and in its weight and bias."""
        blocks, _, channels = sums.shape
        pixels = x.numel() // channels
        dgamma, dbeta, factors = (norm.new_empty(n * channels) for n in (1, 1, 3))
        arguments = (sums, gamma, norm, dgamma, dbeta, factors, blocks, channels, pixels)
        self._launcher.launch("normalise_backward", (channels // 8, 1), THREADS, arguments)
        dx = torch.empty_like(x)
        chunks = pixels * channels // 8
        grid = min(-(-chunks // (2 * THREADS)), 1056), 1
        self._launcher.launch("combine", grid, THREADS, (g, x, add, factors, dx, channels, pixels))
        return dx, dgamma, dbeta


# A block of the network


class _Part(NamedTuple):
    """A block of the network, as the kernels see it."""

    passes: Passes
    norms: tuple[nn.BatchNorm2d, nn.BatchNorm2d]
    layers: tuple[Layer, Layer]
    shortcut: Layer | None


class _Block(torch.autograd.Function):
    """Two convolutions, each behind batch norm and ReLU, beside a shortcut."""

    @staticmethod
    def forward(
        ctx: Any,
        part: _Part,
        x: Tensor,
        sums: Tensor,
        halves: tuple[Tensor, Tensor, Tensor | None],
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        passes, (layer1, layer2) = part.passes, part.layers
        first, second, straight = halves
        norm1 = passes.normalise(sums, part.norms[0], x.numel() // x.shape[1])
        inner, inner_sums = passes.forward(layer1, x, first, norm1)
        norm2 = passes.normalise(inner_sums, part.norms[1], inner.numel() // inner.shape[1])
        short = x
        if part.shortcut is not None and straight is not None:
            short, _ = passes.forward(part.shortcut, x, straight, norm1)
        out, out_sums = passes.forward(layer2, inner, second, norm2, short)
        ctx.part, ctx.halves = part, halves
        ctx.save_for_backward(x, norm1, inner, norm2, weights[0], weights[2])
        ctx.mark_non_differentiable(out_sums)
        return out, out_sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dout = gradients[0].contiguous(memory_format=_LAST)
        part: _Part = ctx.part
        passes, (layer1, layer2) = part.passes, part.layers
        first, second, straight = ctx.halves
        x, norm1, inner, norm2, gamma1, gamma2 = ctx.saved_tensors
        g, sums = passes.backward(layer2, dout, second, inner, norm2)
        assert sums is not None
        dsecond = passes.weight_gradient(layer2, dout, inner, norm2)
        dinner, dgamma2, dbeta2 = passes.normalise_backward(g, sums, inner, norm2, gamma2, None)
        short, dshort, add = dout, None, None
        if part.shortcut is not None:
            add, _ = passes.backward(part.shortcut, dout, straight, x, norm1)
            dshort = passes.weight_gradient(part.shortcut, dout, x, norm1)
            short = None
        g, sums = passes.backward(layer1, dinner, first, x, norm1, add)
        assert sums is not None
        dfirst = passes.weight_gradient(layer1, dinner, x, norm1)
        dx, dgamma1, dbeta1 = passes.normalise_backward(g, sums, x, norm1, gamma1, short)
        found = dgamma1, dbeta1, dgamma2, dbeta2, dfirst, dsecond
        return None, dx, None, None, *found, *([] if dshort is None else [dshort])


# The network

SIDE = 32
"""Width and height of the images that are served."""


def parts_of(network: WideResNet) -> list[tuple[Layer, ...]]:
    """The layers of each block for images of 32 x 32 pixels: two, and perhaps a shortcut."""
    found, side = [], SIDE
    for block in network.blocks:
        conv1, conv2 = block.conv1, block.conv2
        inputs, outputs, stride = conv1.in_channels, conv1.out_channels, conv1.stride[0]
        mine = [Layer(inputs, outputs, side, stride), Layer(outputs, outputs, side // stride)]
        if block.shortcut is not None:
            mine.append(Layer(inputs, outputs, side, stride, taps=1))
        assert conv2.stride == (1, 1)
        found.append(tuple(mine))
        side //= stride
    return found


def serves(model: nn.Module) -> bool:
    """Whether a network is one of `build_model`, of widths that the kernels are made for.

    All of it has to be trained in float32, and nothing may look on from a hook.
    """
    if type(model) is not nn.Sequential or len(model) != 2 or type(model[1]) is not WideResNet:
        return False
    network = model[1]
    layers = [layer for part in parts_of(network) for layer in part]
    known = type(model[0]) is Normalize and all(layer in TILES for layer in layers)
    plain = all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    watched = any(getattr(module, name) for module in model.modules() for name in hooks)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    usual = all(norm.track_running_stats and norm.affine and norm.momentum for norm in norms)
    return known and plain and usual and not watched


class FusedNetwork:
    """The training steps of a wide residual network, with the network's own weights.

    Calling it gives logits that can be differentiated; the running statistics follow. The network
    itself is as it was, and is what tests images.
    """

    def __init__(self, model: nn.Sequential, launcher: Launcher) -> None:
        """Prepare the passes.

        Args:
            model: One that `serves` says yes to, with weights channels last.
            launcher: With the kernels of its layers.
        """
        self._normalize, self._network = model
        parts = parts_of(self._network)
        self._passes = Passes(launcher, sorted({layer for part in parts for layer in part}))
        self._parts: list[_Part] = []
        self._weights: list[list[Tensor]] = []
        for block, layers in zip(self._network.blocks, parts, strict=True):
            norms, straight = (block.norm1, block.norm2), layers[2] if len(layers) > 2 else None
            self._parts.append(_Part(self._passes, norms, layers[:2], straight))
            shortcut = [] if block.shortcut is None else [block.shortcut.weight]
            self._weights.append([block.conv1.weight, block.conv2.weight, *shortcut])
        self._originals = [weight.detach() for mine in self._weights for weight in mine]
        self._halves = [
            torch.empty_like(weight, dtype=torch.bfloat16, memory_format=_LAST)
            for weight in self._originals
        ]
        every = [norm for part in self._parts for norm in part.norms]
        self._counts = [norm.num_batches_tracked for norm in every]

    def takes(self, images: Tensor) -> bool:
        """Whether images have the size and the even number that the kernels are made for."""
        return images.ndim == 4 and images.shape[2:] == (SIDE, SIDE) and len(images) % 2 == 0

    def __call__(self, images: Tensor) -> Tensor:
        """Logits of images (N, C, 32, 32), N even."""
        torch._foreach_copy_(self._halves, self._originals)
        torch._foreach_add_(self._counts, 1)
        x = self._network.stem(self._normalize(images))
        x = x.to(torch.bfloat16).contiguous(memory_format=_LAST)
        sums, halves = self._passes.measure(x.detach()), iter(self._halves)
        for part, weights in zip(self._parts, self._weights, strict=True):
            straight = None if part.shortcut is None else 2
            mine = [next(halves) for _ in weights]
            half = mine[0], mine[1], None if straight is None else mine[straight]
            norms = [each for norm in part.norms for each in (norm.weight, norm.bias)]
            x, sums = _Block.apply(part, x, sums, half, *norms, *weights)
        x = F.relu(self._network.norm(x)).mean((2, 3))
        logits: Tensor = self._network.classify(x)
        return logits
