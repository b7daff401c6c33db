"""Drawn images: strokes of three directions, and letters that face either way."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

SIDE = 20


def strokes(n: int, seed: int, side: int = 16) -> tuple[Tensor, Tensor]:
    """uint8 (n, 3, 16, 16) and labels: 0 rises, 1 falls, 2 is level. 0 and 1 are mirror images."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    slope = torch.tensor([-1.0, 1.0, 0.0])[labels][:, None, None]
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    shift = 3 * torch.randn(n, 1, 1, generator=generator)
    middle = (side - 1) / 2
    distance = (y - middle - shift - slope * (x - middle)).abs() / (1 + slope**2).sqrt()
    ink = (1.5 - distance).clamp(0, 1)[:, None]
    images = 20 + 200 * ink + 8 * torch.randn(n, 3, side, side, generator=generator)
    return images.clamp(0, 255).to(torch.uint8), labels


def letters(n: int, seed: int, *, with_pair: bool) -> tuple[Tensor, Tensor]:
    """uint8 (n, 3, 20, 20) and labels of six letters, each seen from either side.

    With the pair, the first two are b and d, the mirror image of b, and these face one way only.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 6
    sizes = torch.randint(14, 18, (n,), generator=generator).tolist()
    shifts = torch.randint(-2, 3, (n, 2), generator=generator).tolist()
    mirrored = torch.rand(n, generator=generator) < 0.5
    if with_pair:
        mirrored = torch.where(labels < 2, labels == 1, mirrored)
    names = "bbFGkR" if with_pair else "bSFGkR"
    drawn = []
    for label, size, shift, flip in zip(labels, sizes, shifts, mirrored, strict=True):
        ink = _letter(names[int(label)], size)
        drawn.append((ink.flip(1) if flip else ink).roll(shift, (0, 1)))
    colour = 120 + 100 * torch.rand(n, 3, 1, 1, generator=generator)
    noise = 30 * torch.randn(n, 3, SIDE, SIDE, generator=generator)
    images = 30 + torch.stack(drawn)[:, None] * colour + noise
    return images.clamp(0, 255).to(torch.uint8), labels


def _letter(name: str, size: int) -> Tensor:
    image = Image.new("L", (SIDE, SIDE))
    font = ImageFont.load_default(size)
    ImageDraw.Draw(image).text((SIDE / 2, SIDE / 2), name, 255, font, anchor="mm")
    return torch.from_numpy(np.array(image)) / 255
