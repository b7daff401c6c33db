"""Normalisation as the first layer of a network, and the statistics it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepaa.ops import check_images

Levels = float | Sequence[float] | Tensor
"""One number for all channels, or one for each."""


class Normalize(nn.Module):
    """The first layer: pixels, uint8 or float in [0, 1], become (pixel - mean) / std."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Levels, std: Levels, channels: int = 3) -> None:
        """Check the levels and store them as fractions of white.

        Args:
            mean: In 0..1, or in 0..255 if `mean` or `std` holds a number above 1.
            std: In the unit of `mean`.
        """
        super().__init__()
        means, stds = _levels(mean, channels, "mean"), _levels(std, channels, "std")
        if float(stds.min()) <= 0:
            raise ValueError(f"std should be above 0, got {stds.tolist()}")
        if max(float(means.max()), float(stds.max())) > 1:
            means, stds = means / 255, stds / 255
        self.register_buffer("mean", means.to(torch.float32)[:, None, None])
        self.register_buffer("std", stds.to(torch.float32)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) in the type of the buffers, which follows the model's."""
        if images.dtype != torch.uint8 and not images.dtype.is_floating_point:
            raise TypeError(f"images should be uint8 or float in [0, 1], got {images.dtype}")
        if images.shape[-3] != len(self.mean):  # one channel would broadcast silently
            raise ValueError(
                f"the model takes {len(self.mean)} channels, got images of shape "
                f"{tuple(images.shape)}"
            )
        white = 255.0 if images.dtype == torch.uint8 else 1.0
        # bfloat16 cannot hold the difference of two levels, so the arithmetic is never narrower
        # than float32.
        wide = torch.promote_types(self.mean.dtype, torch.float32)
        mean, std = self.mean.to(wide) * white, self.std.to(wide) * white
        return ((images.to(wide) - mean) / std).to(self.mean.dtype)


def _levels(value: Levels, channels: int, name: str) -> Tensor:
    found = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().reshape(-1)
    if len(found) not in (1, channels):
        raise ValueError(f"{name} should hold 1 or {channels} numbers, got {found.tolist()}")
    if not bool(found.isfinite().all()) or float(found.min()) < 0:
        raise ValueError(f"{name} should hold finite numbers of 0 or more, got {found.tolist()}")
    return found.expand(channels).clone()


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels, as fractions of white, exactly.

    The deviation is that of the pixels, about .247 on CIFAR-10; the .2023 of the literature is the
    average over images. It is at least one grey level, so that a constant channel can be divided.
    """
    check_images(images)
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).cpu().double()
        share /= share.sum()
        mean = share @ levels
        means.append(float(mean))
        stds.append(max(math.sqrt(float(share @ (levels - mean).square())), 1 / 255))
    return tuple(means), tuple(stds)
