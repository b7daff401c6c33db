"""The random boxes of cutout, crop and resized crop, computed for one image or for many.

The scalar versions are plain Python; the tensor versions do the same IEEE double arithmetic
(products, quotients and square roots are correctly rounded everywhere), with logarithms and
exponentials taken on the host, so that both give the same integers on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deepaa.ops.specs import PIXEL

CANDIDATES = 10
GRID = 4096
"""A candidate's area and shape are each one of 4,096 even steps: 24 bits of one number."""


def crop_offset(u: float, pad: int) -> int:
    """Offset 0..2 pad of a pad-and-crop, from one uniform number."""
    return int(u * (2 * pad + 1))


def cutout_box(
    u: Sequence[float],
    height: int,
    width: int,
    magnitude: float | None,
    *,
    size: int,
    central: int | str | None,
    min_side: int,
) -> tuple[int, int, int, int] | None:
    """(left, top, right, bottom), edges included, or None where nothing is cut."""
    side = cutout_side(width, magnitude, size=size, central=central)
    if side <= 0 or min(height, width) < min_side:
        return None
    whole = magnitude is not None
    x, x_end = _cut(u[0], width, side, central, whole=whole)
    y, y_end = _cut(u[1], height, side, central, whole=whole)
    return x, y, x_end, y_end


def cutout_side(
    width: int, magnitude: float | None, *, size: int, central: int | str | None
) -> float:
    """The side of the square in pixels, whole ones if its centre is a pixel."""
    side = size if magnitude is None else magnitude * width
    return math.floor(side) if central == PIXEL else side


def _cut(
    u: float, length: int, side: float, central: int | str | None, *, whole: bool
) -> tuple[int, int]:
    """First and last pixel; `whole` keeps the side where the square crosses the first border."""
    if isinstance(central, str):  # PIXEL
        first = int(u * length) - int(side) // 2
        return max(0, first), min(length, first + int(side)) - 1
    span = length if central is None else min(length, central)
    begin = (length - span) / 2 + u * span - side / 2
    start = int(max(0.0, begin))
    return start, int(min(length, (start if whole else begin) + side))


CLIPPED, ABOUT_PIXEL, WHOLE = 0.0, 1.0, 2.0
"""What `cut_tensor` calls the rules of `_cut`."""


def cut_rule(magnitude: float | None, central: int | str | None) -> float:
    """Which of the three rules an operation follows."""
    if central == PIXEL:
        return ABOUT_PIXEL
    return CLIPPED if magnitude is None else WHOLE


def cut_tensor(
    u: Tensor, length: int, side: Tensor, span: Tensor, rule: Tensor
) -> tuple[Tensor, Tensor]:
    """`_cut` for many images at once; all are float64 of one shape."""
    centre, pixel = (length - span) / 2 + u * span, rule == ABOUT_PIXEL
    first = torch.where(pixel, centre.floor() - (side / 2).floor(), centre - side / 2)
    start = first.clamp(min=0).floor()
    stop = (torch.where(rule == WHOLE, start, first) + side).clamp(max=length).floor()
    return start.to(torch.int32), (stop - pixel.double()).to(torch.int32)


def shape_grids(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[list[float], list[float]]:
    """The 4,096 areas (pixels) and the 4,096 shapes (width : height) a resized crop draws from."""
    area = [
        height * width * (scale[0] + (scale[1] - scale[0]) * ((i + 0.5) / GRID))
        for i in range(GRID)
    ]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = [math.exp(low + (high - low) * ((i + 0.5) / GRID)) for i in range(GRID)]
    return area, shape


def fallback_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The central box (x, y, width, height) taken when no candidate fits."""
    w, h = width, height
    if width / height < ratio[0]:
        h = max(1, min(height, round(width / ratio[0])))
    elif width / height > ratio[1]:
        w = max(1, min(width, round(height * ratio[1])))
    return (width - w) // 2, (height - h) // 2, w, h


def resized_crop_box(
    u: Sequence[float],
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """(x, y, width, height) of the first of ten candidates that fits: torchvision's law."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for candidate in range(CANDIDATES):
        i, j = divmod(int(u[candidate] * GRID * GRID), GRID)
        area = height * width * (scale[0] + (scale[1] - scale[0]) * ((i + 0.5) / GRID))
        shape = math.exp(low + (high - low) * ((j + 0.5) / GRID))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(u[CANDIDATES] * (width - w + 1)), int(u[CANDIDATES + 1] * (height - h + 1))
            return x, y, w, h
    return fallback_box(height, width, ratio)


def resized_crop_boxes(
    u: Tensor, height: int, width: int, area: Tensor, shape: Tensor, fallback: Tensor
) -> Tensor:
    """`resized_crop_box` for (..., 12) float64 uniforms: (..., 4) int32 of x, y, width, height."""
    cell = (u[..., :CANDIDATES] * (GRID * GRID)).to(torch.int64)
    areas, shapes = area[cell // GRID], shape[cell % GRID]
    w, h = (areas * shapes).sqrt().round(), (areas / shapes).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.to(torch.int8).argmax(-1, keepdim=True)  # the first of equal maxima
    w, h = w.gather(-1, first)[..., 0], h.gather(-1, first)[..., 0]
    x = (u[..., CANDIDATES] * (width - w + 1)).floor()
    y = (u[..., CANDIDATES + 1] * (height - h + 1)).floor()
    box = torch.stack((x, y, w, h), -1).to(torch.int32)
    return torch.where(fits.any(-1, keepdim=True), box, fallback)
