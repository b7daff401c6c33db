"""Conversion between PIL images and uint8 (C, H, W) tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage


def pil_to_tensor(image: PilImage) -> Tensor:
    """An RGB or L image as uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def tensor_to_pil(image: Tensor) -> PilImage:
    """uint8 (1 or 3, H, W) as an L or RGB image."""
    from PIL import Image

    if image.shape[0] not in (1, 3):
        raise ValueError(f"a PIL image has 1 or 3 channels here, got {image.shape[0]}")
    pixels = image[0] if image.shape[0] == 1 else image.permute(1, 2, 0)
    return Image.fromarray(pixels.contiguous().numpy())
