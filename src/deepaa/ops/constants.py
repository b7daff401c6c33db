"""Pillow's arithmetic as constants, computed once on the host in float64 (or exact integers).

Devices then do integer and table work, which is the same everywhere: few floating-point expressions
that a compiler might fuse (a fused multiply-add changes pixels) are left to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Matrix = tuple[float, float, float, float, float, float]

MAX_SIDE = 16384
"""Beyond about this size Pillow leaves its 16.16 fixed-point path; we refuse such images."""


def fill_for(fill: Any, channels: int) -> tuple[int, ...]:
    """The fill value of each channel; a colour becomes its luma unless there are three channels."""
    values = tuple(fill) if isinstance(fill, tuple | list) else (fill,)
    if len(values) == 1:
        return values * channels
    if channels == 3:
        return values
    red, green, blue = values
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16,) * channels


# Geometry: source coordinates are (columns[x] + rows[y]) >> 16, one such pair for x and one for y.


def _fix(v: float) -> int:
    return math.floor(v * 65536.0 + 0.5)


def _affine_map(a: float, b: float, c: float, height: int, width: int) -> Ints:
    """Pillow's fixed-point affine for one coordinate: W column terms, then H row terms."""
    columns = _fix(c + a * 0.5 + b * 0.5) + _fix(a) * np.arange(width, dtype=np.int64)
    rows = _fix(b) * np.arange(height, dtype=np.int64)
    return np.concatenate((columns, rows)).astype(np.int32)


def _shift_map(t: float, height: int, width: int, *, along_x: bool) -> Ints:
    """Pillow's path without shear: float64, pixel by pixel, adding 1 each time.

    One offset for the whole line would round differently for some sizes (width 28 among them).
    """
    n = width if along_x else height
    places = np.cumsum(np.concatenate(([t + 0.5], np.ones(n - 1))))
    # places before or beyond the line stay in step, so that a kernel may copy the line in one piece
    source = np.clip(np.floor(places), -MAX_SIDE, 2 * MAX_SIDE - 1).astype(np.int64)
    zeros = np.zeros(height if along_x else width, np.int64)
    terms = (source << 16, zeros) if along_x else (zeros, source << 16)
    return np.concatenate(terms).astype(np.int32)


def integer_map(offset: int, sign: int, height: int, width: int, *, along_x: bool) -> Ints:
    """Source = offset + sign * place, exactly."""
    n = width if along_x else height
    source = (offset + sign * np.arange(n, dtype=np.int64)) << 16
    zeros = np.zeros(height if along_x else width, np.int64)
    return np.concatenate((source, zeros) if along_x else (zeros, source)).astype(np.int32)


def _cross_map(offset: int, sign: int, height: int, width: int, *, to_x: bool) -> Ints:
    """Source x from the row (`to_x`) or source y from the column: a quarter turn."""
    n = height if to_x else width
    source = (offset + sign * np.arange(n, dtype=np.int64)) << 16
    zeros = np.zeros(width if to_x else height, np.int64)
    return np.concatenate((zeros, source) if to_x else (source, zeros)).astype(np.int32)


def _affine_maps(matrix: Matrix, height: int, width: int) -> tuple[Ints, Ints]:
    a, b, c, d, e, f = matrix
    if b == 0 and d == 0:
        return (
            _shift_map(c, height, width, along_x=True),
            _shift_map(f, height, width, along_x=False),
        )
    return _affine_map(a, b, c, height, width), _affine_map(d, e, f, height, width)


def _rotate_maps(m: float, height: int, width: int) -> tuple[Ints, Ints]:
    angle = m % 360.0
    sized: dict[str, int] = {"height": height, "width": width}
    if angle == 0:
        return integer_map(0, 1, along_x=True, **sized), integer_map(0, 1, along_x=False, **sized)
    if angle == 180:
        return (
            integer_map(width - 1, -1, along_x=True, **sized),
            integer_map(height - 1, -1, along_x=False, **sized),
        )
    if angle == 90 and width == height:
        return (
            _cross_map(width - 1, -1, to_x=True, **sized),
            _cross_map(0, 1, to_x=False, **sized),
        )
    if angle == 270 and width == height:
        return (
            _cross_map(0, 1, to_x=True, **sized),
            _cross_map(height - 1, -1, to_x=False, **sized),
        )
    radians = -math.radians(angle)
    cos, sin = round(math.cos(radians), 15), round(math.sin(radians), 15)
    minus_sin = round(-math.sin(radians), 15)
    x, y = width / 2, height / 2
    c = cos * -x + sin * -y + 0.0 + x
    f = minus_sin * -x + cos * -y + 0.0 + y
    return _affine_maps((cos, sin, c, minus_sin, cos, f), height, width)


GEOMETRY: Mapping[str, Callable[[float, int, int], tuple[Ints, Ints]]] = {
    "shear_x": lambda m, h, w: _affine_maps((1, m, 0, 0, 1, 0), h, w),
    "shear_y": lambda m, h, w: _affine_maps((1, 0, 0, m, 1, 0), h, w),
    "translate_x": lambda m, h, w: _affine_maps((1, 0, m * w, 0, 1, 0), h, w),
    "translate_y": lambda m, h, w: _affine_maps((1, 0, 0, 0, 1, m * h), h, w),
    "rotate": _rotate_maps,
}
"""(magnitude, height, width) -> the maps to source x and source y."""


# Tables of 256 values.


def blend_table(degenerate: int, factor: float) -> Bytes:
    """Pillow's blend of a constant and every value: float32, clipped and truncated."""
    f, d = np.float32(factor), np.float32(degenerate)
    mixed = d + f * (np.arange(256, dtype=np.float32) - d)
    table: Bytes = np.clip(mixed, 0, 255).astype(np.uint8)
    return table


def _solarize_table(m: float) -> Bytes:
    values = np.arange(256)
    return np.where(values < m, values, 255 - values).astype(np.uint8)


def _posterize_table(m: float) -> Bytes:
    bits = max(0, min(8, int(m)))
    table: Bytes = (np.arange(256) & ~(2 ** (8 - bits) - 1)).astype(np.uint8)
    return table


LOOKUP: Mapping[str, Callable[[float], Bytes]] = {
    "invert": lambda m: (255 - np.arange(256)).astype(np.uint8),
    "solarize": _solarize_table,
    "posterize": _posterize_table,
    "brightness": lambda m: blend_table(0, m),
}
"""magnitude -> the table of an operation that maps values one by one."""


def auto_contrast_scales() -> npt.NDArray[np.float64]:
    """255 / range for each range 0..255 of a channel (0 stands for a flat channel)."""
    return np.array([0.0] + [255.0 / span for span in range(1, 256)])


# Bicubic resampling.

RESAMPLE_BITS = 22
TAPS = 5


def bicubic(x: Floats) -> Floats:
    """The cubic kernel of Pillow (a = -1/2), in its order of operations."""
    a = -0.5
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def bicubic_taps(target: int) -> Ints:
    """How Pillow enlarges a line of s pixels to `target` pixels, for every s up to `target`.

    Returns (target + 1, target, 6): for source length s and place i, the first source pixel and
    five fixed-point weights. A resized crop never shrinks, so the filter spans two pixels each way.
    """
    sources = np.arange(target + 1)[:, None]
    centre = (np.arange(target) + 0.5) * (sources / target)
    start = np.maximum(0, (centre - 2.0 + 0.5).astype(np.int64))  # casts truncate, as C does
    stop = np.minimum(sources, (centre + 2.0 + 0.5).astype(np.int64))
    taps, total = [], np.zeros_like(centre)
    for t in range(TAPS):
        tap = np.where(start + t < stop, bicubic(start + t - centre + 0.5), 0.0)
        total = total + tap
        taps.append(tap)
    scale = 1 << RESAMPLE_BITS
    with np.errstate(invalid="ignore"):  # the row for s = 0 is never used
        weights = [tap / total * scale for tap in taps]
        fixed = [np.trunc(w + np.where(w < 0, -0.5, 0.5)) for w in weights]
    table = np.stack((start, *(np.nan_to_num(w) for w in fixed)), -1)
    return table.astype(np.int32)
