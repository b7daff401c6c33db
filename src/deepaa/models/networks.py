"""Architectures: wide residual networks, Shake-Shake, and those of torchvision and timm."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _three_groups(
    block: type[_WideBlock | _ShakeBlock], blocks: int, widths: tuple[int, int, int, int]
) -> nn.Sequential:
    """Three groups of blocks; the second and the third begin with half the resolution."""
    layers = []
    for group, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(block(inputs, outputs, 2 if group else 1))
        layers += [block(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(*layers)


# Wide residual networks (Zagoruyko and Komodakis, 2016)


class _WideBlock(nn.Module):
    """Two 3x3 convolutions, each after batch norm and ReLU, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        inner: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        # a shortcut that changes the shape starts behind the activation, one that does not at x
        short: Tensor = x if self.shortcut is None else self.shortcut(active)
        return short + inner


class WideResNet(nn.Module):
    """Wide residual network of Zagoruyko and Komodakis (2016) for any image size."""

    def __init__(self, depth: int, width: int, classes: int, channels: int = 3) -> None:
        """WRN-depth-width of the paper; its depth is 6 n + 4."""
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        widths = (16, 16 * width, 32 * width, 64 * width)
        self.blocks = _three_groups(_WideBlock, (depth - 4) // 6, widths)
        self.norm = nn.BatchNorm2d(widths[3])
        self.classify = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of normalised images (N, C, H, W)."""
        return self.head(self.blocks(self.stem(x)))

    def head(self, x: Tensor) -> Tensor:
        """Logits of what comes out of the blocks."""
        out: Tensor = self.classify(F.relu(self.norm(x)).mean((2, 3)))
        return out


# Shake-Shake networks (Gastaldi, 2017)


class _Shake(torch.autograd.Function):
    """One mixture forwards, another one backwards.

    Only training passes through it: in eval mode the mixture is plain arithmetic, which
    forward-mode derivatives and `torch.compile` understand.
    """

    @staticmethod
    def forward(first: Tensor, second: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        return torch.lerp(second, first, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[3])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (beta,), (gradient,) = ctx.saved_tensors, gradients
        first = gradient * beta
        return first, gradient - first, None, None


def shake(first: Tensor, second: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The mixture alpha first + (1 - alpha) second, with the gradient of beta for alpha.

    The branches are (N, C, H, W), alpha and beta (N, 1, 1, 1): a share for each image.
    """
    mixed: Tensor = _Shake.apply(first, second, alpha.to(first.dtype), beta.to(first.dtype))
    return mixed


class _Branch(nn.Module):
    """ReLU, 3x3 convolution and batch norm, twice."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, active: Tensor) -> Tensor:
        """What comes behind the first ReLU, which both branches share."""
        out: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(active)))))
        return out


class _Shortcut(nn.Module):
    """Half of the channels from every stride-th pixel, half from its neighbour up and left."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.straight = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.shifted = nn.Conv2d(inputs, outputs - outputs // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, active: Tensor) -> Tensor:
        # the shift is one pixel right and down; what moves out is lost, zeros move in
        moved = F.pad(active, (1, -1, 1, -1))
        step = self.stride
        straight = self.straight(active[:, :, ::step, ::step])
        shifted = self.shifted(moved[:, :, ::step, ::step])
        out: Tensor = self.norm(torch.cat([straight, shifted], 1))
        return out


class _ShakeBlock(nn.Module):
    """A shortcut and a random mixture of two branches."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _Branch(inputs, outputs, stride)
        self.second = _Branch(inputs, outputs, stride)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else _Shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(x)
        first, second = self.first(active), self.second(active)
        short = x if self.shortcut is None else self.shortcut(active)
        if not self.training:
            return torch.add(short, first + second, alpha=0.5)
        # from the device's own generator, so that nothing waits for the host and a CUDA graph
        # draws anew at every replay
        shares = torch.rand(2, len(x), 1, 1, 1, device=x.device)
        return short + shake(first, second, shares[0], shares[1])


class ShakeShake(nn.Module):
    """Shake-Shake-Image of depth 6 n + 2: per-image shares in the forward and backward pass.

    The shares come from torch's generator of the device; in eval mode they are one half. The
    images may have any size.
    """

    def __init__(self, depth: int, width: int, classes: int, channels: int = 3) -> None:
        """Networks of the paper have depth 26 and the width (of the first group) 32, 64 or 96."""
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        widths = (16, width, 2 * width, 4 * width)
        self.blocks = _three_groups(_ShakeBlock, (depth - 2) // 6, widths)
        self.classify = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of normalised images (N, C, H, W)."""
        x = F.relu(self.blocks(self.norm(self.stem(x))))
        out: Tensor = self.classify(x.mean((2, 3)))
        return out


# Networks of torchvision and timm

LIBRARIES = {"torchvision": "torchvision.models", "timm": "timm"}
# for networks that would return several outputs in train mode
_ONE_OUTPUT = {"aux_logits": False, "init_weights": True}


def library_network(name: str, own: Iterable[str]) -> Callable[[int, int], nn.Module]:
    """What makes a network of a library from classes and channels; errors offer `own` too."""
    library, colon, inner = name.rpartition(":")
    if colon and library not in LIBRARIES:
        raise ValueError(f"{name!r}: no model library {library!r}; there are torchvision and timm")
    known = {each: _names(each) for each in LIBRARIES if library in ("", each)}
    for each, names in known.items():
        if inner in names:
            return partial(_from_library, each, inner)
    if colon and not known[library]:
        raise ValueError(f"{name!r}: {library} is not installed: pip install {library}")
    # libraries share names, and each should be named once
    every = dict.fromkeys([*own, *(each for names in known.values() for each in names)])
    close = difflib.get_close_matches(inner.lower(), every, 4)
    hint = f"did you mean {' or '.join(map(repr, close))}? There" if close else "there"
    absent = [each for each, names in known.items() if not names]
    note = f" ({' and '.join(absent)} not installed)" if absent else ""
    raise ValueError(
        f"no model {name!r}; {hint} are {', '.join(own)}, torchvision:NAME and timm:NAME{note}"
    )


def _names(library: str) -> list[str]:
    """The image classifiers of a library; none if it is not installed."""
    try:
        module = importlib.import_module(LIBRARIES[library])
    except ImportError:
        return []
    # torchvision counts detectors and the like as models unless told where to look
    options = {"module": module} if library == "torchvision" else {}
    names: list[str] = module.list_models(**options)
    return names


def _from_library(library: str, name: str, classes: int, channels: int) -> nn.Module:
    module = importlib.import_module(LIBRARIES[library])
    made: nn.Module
    if library == "timm":
        made = module.create_model(name, num_classes=classes, pretrained=False, in_chans=channels)
    elif channels == 3:
        options = _ONE_OUTPUT if name in ("googlenet", "inception_v3") else {}
        made = module.get_model(name, num_classes=classes, weights=None, **options)
    else:
        raise ValueError(f"torchvision:{name} takes 3 channels, got {channels}; timm takes any")
    return made
