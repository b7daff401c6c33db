"""Shake-Shake networks (Gastaldi, 2017): two branches, mixed at random for each image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ShakeShake", "shake"]


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

    Args:
        first: (N, C, H, W).
        second: (N, C, H, W).
        alpha: (N, 1, 1, 1), the share of `first` in the result.
        beta: (N, 1, 1, 1), the share of the gradient that `first` gets.
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
        both = [
            self.straight(active[:, :, ::step, ::step]),
            self.shifted(moved[:, :, ::step, ::step]),
        ]
        out: Tensor = self.norm(torch.cat(both, 1))
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
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth should be 6 n + 2 with n above 0, got {depth}")
        blocks = (depth - 2) // 6
        widths = (16, width, 2 * width, 4 * width)
        self.stem = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        layers: list[nn.Module] = []
        for group in range(3):
            for block in range(blocks):
                inputs = widths[group] if block == 0 else widths[group + 1]
                stride = 2 if group > 0 and block == 0 else 1
                layers.append(_ShakeBlock(inputs, widths[group + 1], stride))
        self.blocks = nn.Sequential(*layers)
        self.classify = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images (N, C, H, W) to logits (N, classes)."""
        x = F.relu(self.blocks(self.norm(self.stem(x))))
        out: Tensor = self.classify(x.mean((2, 3)))
        return out
