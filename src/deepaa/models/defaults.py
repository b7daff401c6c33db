"""The network that is taken for images of a size on a device, where none is named."""

from __future__ import annotations

import torch
from torch import Tensor

SMALL_SIDE = 64
"""Images up to this side are searched with a wide ResNet, larger ones with ResNet-18."""


def is_large(images: Tensor) -> bool:
    """Whether images (N, C, H, W) get what is made for large ones: preset, space, network."""
    return max(images.shape[-2:]) > SMALL_SIDE


def default_model(images: Tensor, device: torch.device) -> str:
    """The network for these images on this device."""
    if is_large(images):
        return "resnet18"
    return "small" if device.type == "cpu" else "wrn-40-2"
