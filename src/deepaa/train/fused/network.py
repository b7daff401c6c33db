"""A wide residual network whose training steps run in a few passes over memory.

Batch norm, ReLU and the convolution behind them are one kernel: it reads what came out of the
convolution before, and writes its own output with the sums that the next batch norm needs. Nothing
between the two is ever written. Backward, one kernel gives the gradient in front of ReLU with the
sums of batch norm's gradient, and a second one makes the gradient in batch norm's input of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from deepaa.models import Normalize
from deepaa.models.networks import WideResNet
from deepaa.train.fused.cuda import Argument
from deepaa.train.fused.kernels import TILES, Convolution, Kernels, Layer, WeightGradient

_LAST = torch.channels_last
THREADS = 256
"""Of a block of the kernels that have no tiles."""
MEASURING = 264
"""Blocks that share the sums over the stem's output."""


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


# One pass each


class Passes:
    """The kernels as functions of tensors, which lie on the launcher's device."""

    def __init__(self, launcher: Launcher, layers: Sequence[Layer]) -> None:
        """Those of some layers."""
        self._launcher = launcher
        self._kernels = {layer: Kernels.of(layer) for layer in layers}

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
        self._start(kernel, n, x, w, norm, add, None, None, y, sums, kernel.tiles(n))
        return y, sums

    def backward(
        self,
        layer: Layer,
        dy: Tensor,
        w: Tensor,
        x: Tensor,
        norm: Tensor,
        add: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The gradient in what batch norm gave, before ReLU, and its sums by block.

        Of a convolution with one tap it is the gradient behind ReLU, and there are no sums; `add`
        is such a gradient.
        """
        kernel, n, g = self._kernels[layer].backward, len(x), torch.empty_like(x)
        if layer.taps == 1:
            self._start(kernel, n, dy, w, None, None, None, None, g, None, kernel.tiles(n))
            return g, norm.new_empty((0, 2, layer.inputs))
        sums = norm.new_empty((kernel.blocks(n), 2, layer.inputs))
        self._start(kernel, n, dy, w, None, add, x, norm, g, sums, kernel.tiles(n))
        return g, sums

    def weight_gradient(self, layer: Layer, dy: Tensor, x: Tensor, norm: Tensor) -> Tensor:
        """(outputs, inputs, 3, 3) or (outputs, inputs, 1, 1) in float32, channels last."""
        kernel = self._kernels[layer].weights
        count, each, parts = kernel.cut(len(x))
        part = norm.new_empty((parts, kernel.numbers))
        self._start(kernel, len(x), dy, x, norm, part, count, each)
        out = norm.new_empty((layer.outputs, layer.edge, layer.edge, layer.inputs))
        grid = kernel.numbers // 128, 1
        self._launcher.launch("sum_parts", grid, THREADS, (part, out, kernel.numbers, parts))
        return out.permute(0, 3, 1, 2)

    def normalise_backward(
        self,
        g: Tensor,
        sums: Tensor,
        x: Tensor,
        norm: Tensor,
        gamma: Tensor,
        add: Tensor | None = None,
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


# The layers of a network

SIDE = 32
"""Width and height of the images that are served."""


class BlockLayers(NamedTuple):
    """The layers of a block of the network."""

    first: Layer
    second: Layer
    shortcut: Layer | None
    """None where the input itself is added."""


def layers_of(network: WideResNet) -> list[BlockLayers]:
    """The layers of each block for images of 32 x 32 pixels."""
    found, side = [], SIDE
    blocks: Any = network.blocks
    for block in blocks:
        inputs, outputs = block.conv1.in_channels, block.conv1.out_channels
        stride = block.conv1.stride[0]
        first, side = Layer(inputs, outputs, side, stride), side // stride
        short = None if block.shortcut is None else first._replace(taps=1)
        found.append(BlockLayers(first, Layer(outputs, outputs, side), short))
    return found


def _distinct(network: WideResNet) -> list[Layer]:
    every = {layer for mine in layers_of(network) for layer in mine if layer is not None}
    return sorted(every)


# A block of the network


class _Part(NamedTuple):
    """A block of the network, as the kernels see it."""

    passes: Passes
    layers: BlockLayers
    norm1: nn.BatchNorm2d
    norm2: nn.BatchNorm2d


class _Block(torch.autograd.Function):
    """Two convolutions, each behind batch norm and ReLU, beside a shortcut."""

    @staticmethod
    def forward(
        ctx: Any, part: _Part, halves: list[Tensor], x: Tensor, sums: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What comes out of the block, and its sums by block of threads.

        Args:
            halves: The weights of the convolutions in bfloat16, the shortcut's last.
            sums: Of x.
            weights: Of the batch norms, two each, then of the convolutions in float32.
        """
        passes, (first, second, shortcut) = part.passes, part.layers
        norm1 = passes.normalise(sums, part.norm1, x.numel() // x.shape[1])
        inner, sums = passes.forward(first, x, halves[0], norm1)
        norm2 = passes.normalise(sums, part.norm2, inner.numel() // inner.shape[1])
        short = x if shortcut is None else passes.forward(shortcut, x, halves[2], norm1)[0]
        out, sums = passes.forward(second, inner, halves[1], norm2, short)
        ctx.part, ctx.halves = part, halves
        ctx.save_for_backward(x, norm1, inner, norm2, weights[0], weights[2])
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)
        return out, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of what `forward` takes."""
        dout = gradients[0].contiguous(memory_format=_LAST)
        passes, (first, second, shortcut) = ctx.part.passes, ctx.part.layers
        x, norm1, inner, norm2, gamma1, gamma2 = ctx.saved_tensors
        g, sums = passes.backward(second, dout, ctx.halves[1], inner, norm2)
        dsecond = passes.weight_gradient(second, dout, inner, norm2)
        dinner, *dnorm2 = passes.normalise_backward(g, sums, inner, norm2, gamma2)
        dfirst = passes.weight_gradient(first, dinner, x, norm1)
        weights = [dfirst, dsecond]
        if shortcut is None:
            g, sums = passes.backward(first, dinner, ctx.halves[0], x, norm1)
            dx, *dnorm1 = passes.normalise_backward(g, sums, x, norm1, gamma1, dout)
        else:
            short, _ = passes.backward(shortcut, dout, ctx.halves[2], x, norm1)
            weights.append(passes.weight_gradient(shortcut, dout, x, norm1))
            g, sums = passes.backward(first, dinner, ctx.halves[0], x, norm1, short)
            dx, *dnorm1 = passes.normalise_backward(g, sums, x, norm1, gamma1)
        return None, None, dx, None, *dnorm1, *dnorm2, *weights


# The network


MOST_IMAGES = 2**15
"""Of a batch: so many pixels can be counted."""


def serves(model: nn.Module) -> bool:
    """Whether a network is one of `build_model`, of widths that the kernels are made for.

    All of it has to be trained in float32, no module may have been replaced, and nothing may look
    on from a hook.
    """
    if type(model) is not nn.Sequential or len(model) != 2 or type(model[1]) is not WideResNet:
        return False
    network, normalize = model[1], model[0]
    if type(normalize) is not Normalize or repr(network) != repr(_like(network)):
        return False
    known = all(layer in TILES for layer in _distinct(network))
    plain = all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    watched = any(getattr(module, name) for module in model.modules() for name in hooks)
    return known and plain and not watched


def _like(network: WideResNet) -> WideResNet | None:
    """A network as `build_model` makes it, of the same size; it has no memory."""
    try:
        blocks, width = len(network.blocks), network.norm.num_features // 64
        with torch.device("meta"):
            channels, classes = network.stem.in_channels, network.classify.out_features
            return WideResNet(2 * blocks + 4, width, classes, channels)
    except AttributeError:  # another module stands in the place of one
        return None


class FusedNetwork:
    """The training steps of a wide residual network, with the network's own weights.

    Calling it gives logits that can be differentiated once, before the next call; the running
    statistics follow. The network itself is as it was, and is what tests images.
    """

    def __init__(self, model: nn.Sequential, launcher: Launcher) -> None:
        """Prepare the passes.

        Args:
            model: One that `serves` says yes to, on the device where it stays.
            launcher: With the kernels of its layers.
        """
        network: Any = model[1]
        self._normalize, self._network = model[0], network
        self._passes = Passes(launcher, _distinct(network))
        self._parts: list[_Part] = []
        self._convolutions: list[list[nn.Conv2d]] = []
        for block, layers in zip(network.blocks, layers_of(network), strict=True):
            self._parts.append(_Part(self._passes, layers, block.norm1, block.norm2))
            mine = block.conv1, block.conv2, block.shortcut
            self._convolutions.append([each for each in mine if each is not None])
        self._halves = [
            torch.empty_like(each.weight, dtype=torch.bfloat16, memory_format=_LAST)
            for mine in self._convolutions
            for each in mine
        ]

    def takes(self, images: Tensor) -> bool:
        """Whether images have the size and the even number that the kernels are made for."""
        fits = images.ndim == 4 and images.shape[2:] == (SIDE, SIDE)
        return fits and 0 < len(images) <= MOST_IMAGES and len(images) % 2 == 0

    def __call__(self, images: Tensor) -> Tensor:
        """Logits of images (N, C, 32, 32), N even."""
        weights = [[each.weight for each in mine] for mine in self._convolutions]
        torch._foreach_copy_(self._halves, [each.detach() for mine in weights for each in mine])
        norms = [norm for part in self._parts for norm in (part.norm1, part.norm2)]
        counts = [norm.num_batches_tracked for norm in norms]
        torch._foreach_add_([count for count in counts if count is not None], 1)
        x = self._network.stem(self._normalize(images))
        x = x.to(torch.bfloat16).contiguous(memory_format=_LAST)
        sums, halves = self._passes.measure(x.detach()), iter(self._halves)
        for part, mine in zip(self._parts, weights, strict=True):
            rounded = [next(halves) for _ in mine]
            scales = [part.norm1.weight, part.norm1.bias, part.norm2.weight, part.norm2.bias]
            x, sums = _Block.apply(part, rounded, x, sums, *scales, *mine)
        logits: Tensor = self._network.head(x)
        return logits
