"""The resized crop: its random box, and Pillow's bicubic weights that enlarge it.

The box is computed for one image in plain Python, and for many in the same IEEE double arithmetic
(products, quotients and square roots are correctly rounded everywhere), with logarithms and
exponentials taken on the host, so that both give the same integers on every device.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CANDIDATES = 10
"""Boxes that are tried."""
GRID = 4096
"""A candidate's area and shape are each one of 4,096 even steps: 24 bits of one number."""
RESAMPLE_BITS, TAPS = 22, 5
"""Bits of a fixed-point weight, and how many weights a pixel has."""

Floats = npt.NDArray[np.float64]


def _area(i: float, pixels: int, scale: tuple[float, float]) -> float:
    return pixels * (scale[0] + (scale[1] - scale[0]) * ((i + 0.5) / GRID))


def _shape(i: float, ratio: tuple[float, float]) -> float:
    low, high = math.log(ratio[0]), math.log(ratio[1])
    return math.exp(low + (high - low) * ((i + 0.5) / GRID))


def shape_grids(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[list[float], list[float]]:
    """The 4,096 areas (pixels) and the 4,096 shapes (width : height) a resized crop draws from."""
    areas = [_area(i, height * width, scale) for i in range(GRID)]
    return areas, [_shape(i, ratio) for i in range(GRID)]


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
    """(x, y, width, height) of the first of ten candidates that fits, as torchvision draws it."""
    for candidate in range(CANDIDATES):
        i, j = divmod(int(u[candidate] * GRID * GRID), GRID)
        area, shape = _area(i, height * width, scale), _shape(j, ratio)
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


def bicubic(x: Floats) -> Floats:
    """The cubic kernel of Pillow (a = -1/2), in its order of operations."""
    a = -0.5
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def bicubic_taps(target: int, lengths: Sequence[int]) -> npt.NDArray[np.int32]:
    """How Pillow resizes lines of these lengths in pixels to `target` pixels.

    Returns (lengths, target, 1 + taps): for each length and place, the first source pixel and the
    fixed-point weights from there on. Five are enough to enlarge, where the filter spans two pixels
    each way.
    """
    sources = np.asarray(lengths)[:, None]
    step = sources / target
    width = np.maximum(step, 1.0)
    centre = (np.arange(target) + 0.5) * step
    start = np.maximum(0, (centre - 2 * width + 0.5).astype(np.int64))  # casts truncate, as C does
    stop = np.minimum(sources, (centre + 2 * width + 0.5).astype(np.int64))
    taps, total = [], np.zeros_like(centre)
    for t in range(max(TAPS, int((stop - start).max()))):
        tap = np.where(start + t < stop, bicubic((start + t - centre + 0.5) / width), 0.0)
        total = total + tap
        taps.append(tap)
    scale = 1 << RESAMPLE_BITS
    with np.errstate(invalid="ignore"):  # a length of 0 is never used
        weights = [tap / total * scale for tap in taps]
        fixed = [np.trunc(w + np.where(w < 0, -0.5, 0.5)) for w in weights]
    table = np.stack((start, *(np.nan_to_num(w) for w in fixed)), -1)
    return table.astype(np.int32)
