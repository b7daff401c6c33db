"""Pictures to augment, and an operation that shows on a picture what was drawn for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepaa.ops.space import Operation
from deepaa.policy.policy import Policy


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def as_array(image: Tensor) -> np.ndarray[Any, Any]:
    """(C, H, W) as numpy (H, W, C)."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def stamp_kernel(image: Image.Image, magnitude: None, uniforms: list[float]) -> Image.Image:
    """An image that shows 64 bits of its draw, so that equal images mean equal draws."""
    out = image.copy()
    for x, u in enumerate(uniforms):
        out.putpixel((x, 0), int(u * 256))
    return out


STAMP = Operation("stamp", pil=stamp_kernel, uniforms=8)
STAMPS = Policy.always(STAMP)
BLANK = torch.zeros(1, 1, 8, dtype=torch.uint8)


def stamps(out: Tensor) -> list[bytes]:
    """What `STAMPS` wrote on (N, 1, 1, 8)."""
    return [image.numpy().tobytes() for image in out]
