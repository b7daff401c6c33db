"""The translation of drawn rows and uniform numbers into integers that pixel kernels follow.

A `Plan` holds a table's constants for one image size on one device: Pillow's arithmetic, computed
once on the host in float64 or exact integers. Devices then do integer and table work, which is the
same everywhere: few floating-point expressions that a compiler might fuse (a fused multiply-add
changes pixels) are left to them. `resolve` turns a draw into one line of six integers per image and
layer. Every pixel engine (plain torch, C, Triton) reads these lines, so they cannot disagree about
what was drawn.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepaa.ops.resized_crop import bicubic_taps, fallback_box, resized_crop_boxes, shape_grids
from deepaa.ops.rng import cut_tensor, cutout_measures
from deepaa.ops.space import Row, Table

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MAX_SIDE = 16384
"""Beyond about this size Pillow leaves its 16.16 fixed-point path; we refuse such images."""
MAX_CROP_SIDE = 2048
"""The weights of resized_crop grow with the square of the side: 100 MB for this one."""
BLENDS = ("contrast", "color", "brightness", "sharpness")
MAX_PLANS = 16
MAX_PLAN_BYTES = 1 << 29
MAX_TABLE_BYTES = 96 << 20
"""Of the maps of a plan, or as much as four images take: a policy file may ask for any number."""
LARGEST_UNIFORM = 1 - 2**-24
LINE = 6
"""Integers per image and layer: kind, four arguments, row of the table."""


def fill_for(fill: Any, channels: int) -> tuple[int, ...]:
    """The fill value of each channel; a colour becomes its luma unless there are three channels."""
    values = fill if isinstance(fill, tuple) else (fill,)
    if len(values) == 1:
        return values * channels
    if channels == 3:
        return values
    red, green, blue = values
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16,) * channels


# Geometry: source coordinates are (columns[x] + rows[y]) >> 16, one such map for x and one for y,
# with W terms of columns and H terms of rows.


def _map(height: int, width: int, *, columns: Any = 0, rows: Any = 0) -> Ints:
    """The map with these terms, in 16.16 fixed point."""
    terms = np.zeros(width + height, np.int64)
    terms[:width], terms[width:] = columns, rows
    return terms.astype(np.int32)


def _places(n: int) -> Longs:
    """The places of a line of n pixels, in 16.16 fixed point."""
    return np.arange(n, dtype=np.int64) << 16


def _shifted(t: float, n: int) -> Longs:
    """Pillow's path without shear: float64, pixel by pixel, adding 1 each time.

    One offset for the whole line would round differently for some sizes (width 28 among them).
    """
    places = np.cumsum(np.concatenate(([t + 0.5], np.ones(n - 1))))
    # places before or beyond the line stay in step, so that a kernel may copy the line in one piece
    source: Longs = np.floor(places).clip(-MAX_SIDE, 2 * MAX_SIDE - 1).astype(np.int64)
    return source << 16


def _affine(a: float, b: float, c: float, height: int, width: int) -> Ints:
    """Pillow's fixed-point affine for one coordinate."""
    start, step_x, step_y = (math.floor(v * 65536.0 + 0.5) for v in (c + a * 0.5 + b * 0.5, a, b))
    columns = start + step_x * np.arange(width, dtype=np.int64)
    return _map(height, width, columns=columns, rows=step_y * np.arange(height, dtype=np.int64))


def _affine_maps(matrix: tuple[float, ...], height: int, width: int) -> tuple[Ints, Ints]:
    a, b, c, d, e, f = matrix
    if b == 0 and d == 0:
        x = _map(height, width, columns=_shifted(c, width))
        return x, _map(height, width, rows=_shifted(f, height))
    return _affine(a, b, c, height, width), _affine(d, e, f, height, width)


def _rotate_maps(m: float, height: int, width: int) -> tuple[Ints, Ints]:
    angle, x, y = m % 360.0, _places(width), _places(height)
    terms = partial(_map, height, width)
    if angle == 0:
        return terms(columns=x), terms(rows=y)
    if angle == 180:
        return terms(columns=x[::-1]), terms(rows=y[::-1])
    if width == height and angle == 90:
        return terms(rows=y[::-1]), terms(columns=x)
    if width == height and angle == 270:
        return terms(rows=y), terms(columns=x[::-1])
    radians = -math.radians(angle)
    cos, sin = round(math.cos(radians), 15), round(math.sin(radians), 15)
    minus_sin = round(-math.sin(radians), 15)
    x_centre, y_centre = width / 2, height / 2
    c = cos * -x_centre + sin * -y_centre + 0.0 + x_centre
    f = minus_sin * -x_centre + cos * -y_centre + 0.0 + y_centre
    return _affine_maps((cos, sin, c, minus_sin, cos, f), height, width)


GEOMETRY: Mapping[str, Callable[[float, int, int], tuple[Ints, Ints]]] = {
    "shear_x": lambda m, h, w: _affine_maps((1, m, 0, 0, 1, 0), h, w),
    "shear_y": lambda m, h, w: _affine_maps((1, 0, 0, m, 1, 0), h, w),
    "translate_x": lambda m, h, w: _affine_maps((1, 0, m * w, 0, 1, 0), h, w),
    "translate_y": lambda m, h, w: _affine_maps((1, 0, 0, 0, 1, m * h), h, w),
    "rotate": _rotate_maps,
}
"""(magnitude, height, width) -> the maps to source x and source y."""

_VALUES = np.arange(256)
LOOKUP: Mapping[str, Callable[[float], Any]] = {
    "invert": lambda m: 255 - _VALUES,
    "solarize": lambda m: np.where(m > _VALUES, _VALUES, 255 - _VALUES),
    "posterize": lambda m: _VALUES & ~(2 ** (8 - max(0, min(8, int(m)))) - 1),
    # Pillow's blend with black: float32, clipped and truncated
    "brightness": lambda m: np.clip(np.float32(m) * _VALUES.astype(np.float32), 0, 255),
}
"""magnitude -> the 256 values of an operation that maps values one by one."""


class Kind(IntEnum):
    """What a kernel does with an image; the comment names columns 1 to 4 of its line."""

    IDENTITY = 0
    GEOMETRY = 1  # row of maps_x, row of maps_y
    LOOKUP = 2  # row of lookups
    AUTO_CONTRAST = 3
    EQUALIZE = 4
    CONTRAST = 5
    COLOR = 6
    SHARPNESS = 7
    CUTOUT = 8  # left, top, right, bottom, edges included
    RESIZED_CROP = 9  # left, top, width, height
    CUSTOM = 10  # index of the operation in the table's operations


@dataclass(frozen=True, eq=False)
class Plan:
    """A table's constants for images of (channels, height, width), on one device."""

    table: Table
    kinds: frozenset[int]
    lines: Tensor  # (T, 6) int32: a row's line before randomness
    identity: Tensor  # (T,) bool: rows of the identity operation
    variants: Tensor | None  # (T, 2) float64: how many maps follow the first, in x and in y
    maps_x: Tensor  # (X, W + H) int32, 16.16 fixed point: columns' terms, then rows'
    maps_y: Tensor  # (Y, W + H) int32
    lookups: Tensor  # (L, 256) uint8
    fills: Tensor  # (T, C) uint8
    factors: Tensor  # (T,) float32
    cut: Tensor | None  # (T, 4) float64: cutout's side, span of its centre in x and y, `pixel`
    scales: Tensor  # (256,) float64: auto_contrast
    crops: tuple[Tensor, ...] | None  # (G, 4096) areas, (G, 4096) shapes, (G, 4) fallbacks
    taps_x: Tensor | None  # (W + 1, W, 6) int32
    taps_y: Tensor | None  # (H + 1, H, 6) int32
    channels: int
    height: int
    width: int
    cache: dict[str, Any] = field(default_factory=dict)  # what an engine adds for itself

    @property
    def bytes(self) -> int:
        """Memory its tensors take."""
        parts = (self.maps_x, self.maps_y, self.taps_x, self.taps_y)
        return sum(part.nbytes for part in parts if part is not None)


class _Rows:
    """The constants of a table's rows, collected row by row."""

    def __init__(self, table: Table, height: int, width: int) -> None:
        self.size = (height, width)
        self.operations = {operation: i for i, operation in enumerate(table.operations)}
        self.lines: list[list[int]] = []
        self.variants: list[tuple[int, int]] = []
        self.cuts: list[tuple[float, float, float, float]] = []
        # crops share one map for each offset, up to the largest pad
        self.pad, terms = _most_pad(table), partial(_map, height, width)
        offsets = [offset << 16 for offset in range(-self.pad, self.pad + 1)]
        self.maps_x: list[Ints] = [terms(columns=_places(width) + o) for o in offsets]
        self.maps_y: list[Ints] = [terms(rows=_places(height) + o) for o in offsets]
        self.lookups: list[Bytes] = []
        self.grids: dict[Any, tuple[list[float], list[float], tuple[int, int, int, int]]] = {}
        for i, row in enumerate(table.rows):
            self.variants.append((1, 1))
            self.cuts.append((0, 0, 0, 0))
            self.lines.append([*self._line(row), 0, 0, i])

    def _line(self, row: Row) -> tuple[int, int, int]:
        """A row's kind, and where its constants begin."""
        operation, m = row
        name, options = operation.name, dict[str, Any](operation.options)
        if operation.is_custom:
            return Kind.CUSTOM, self.operations[operation], 0
        if name in LOOKUP:
            self.lookups.append(LOOKUP[name](m or 0.0).astype(np.uint8))
            return Kind.LOOKUP, len(self.lookups) - 1, 0
        if name == "cutout":
            del options["fill"]
            measures = cutout_measures(*self.size, m, **options)
            if measures is None:
                return Kind.IDENTITY, 0, 0
            self.cuts[-1] = measures
        if name == "resized_crop":
            key = scale, ratio = options["scale"], options["ratio"]
            if key not in self.grids:  # crops with equal options share theirs
                box = fallback_box(*self.size, ratio)
                self.grids[key] = (*shape_grids(*self.size, scale, ratio), box)
            return Kind.RESIZED_CROP, list(self.grids).index(key), 0
        if name.upper() in Kind.__members__:
            return Kind[name.upper()], 0, 0
        if name == "crop":
            pad = options["pad"]
            self.variants[-1] = (2 * pad + 1, 2 * pad + 1)
            return Kind.GEOMETRY, self.pad - pad, self.pad - pad
        x, y = self._maps(name, m or 0.0)
        line = (Kind.GEOMETRY, len(self.maps_x), len(self.maps_y))
        self.maps_x += x
        self.maps_y += y
        self.variants[-1] = (len(x), len(y))
        return line

    def _maps(self, name: str, m: float) -> tuple[list[Ints], list[Ints]]:
        """The maps to x and to y that a row's uniform numbers choose from."""
        height, width = self.size
        if name == "flip":
            places, terms = _places(width), partial(_map, height, width)
            x_maps = [terms(columns=places), terms(columns=places[::-1])]
            return x_maps, [terms(rows=_places(height))]
        x, y = GEOMETRY[name](m, height, width)
        return [x], [y]


def _most_pad(table: Table) -> int:
    """The largest pad of the table's crops, -1 without one."""
    crops = (dict[str, Any](op.options) for op, _ in table.rows if op.name == "crop")
    return max((options["pad"] for options in crops), default=-1)


def make_plan(table: Table, channels: int, height: int, width: int, device: torch.device) -> Plan:
    """The constants of `table` for one image size, computed on the host and sent to `device`."""
    _check(table, channels, height, width)
    rows = _Rows(table, height, width)
    kinds = frozenset(line[0] for line in rows.lines)
    factors = [row.magnitude or 0.0 if row.operation.name in BLENDS else 0.0 for row in table.rows]
    fills = [
        fill_for(0 if op.is_custom else op.options.get("fill", 0), channels) for op, _ in table.rows
    ]

    def send(values: Any, dtype: Any) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(values, dtype)), device)

    empty = np.zeros((1, width + height))
    crops: tuple[Tensor, ...] | None = None
    if rows.grids:
        crops = tuple(send(part, np.float64) for part in zip(*rows.grids.values(), strict=True))
    return Plan(
        table=table,
        kinds=kinds,
        lines=send(rows.lines, np.int32),
        identity=send([op.name == "identity" for op, _ in table.rows], np.bool_),
        variants=send(rows.variants, np.float64) if np.max(rows.variants) > 1 else None,
        maps_x=send(rows.maps_x or empty, np.int32),
        maps_y=send(rows.maps_y or empty, np.int32),
        lookups=send(rows.lookups or np.zeros((1, 256)), np.uint8),
        fills=send(fills, np.uint8),
        factors=send(factors, np.float32),
        cut=send(rows.cuts, np.float64) if Kind.CUTOUT in kinds else None,
        # 255 / range for each range 0..255 of a channel; 0 stands for a flat channel
        scales=send([0.0] + [255.0 / span for span in range(1, 256)], np.float64),
        crops=crops,
        taps_x=send(bicubic_taps(width, range(width + 1)), np.int32) if crops else None,
        taps_y=send(bicubic_taps(height, range(height + 1)), np.int32) if crops else None,
        channels=channels,
        height=height,
        width=width,
    )


def _check(table: Table, channels: int, height: int, width: int) -> None:
    """Refuse images that the operations of the table cannot take."""
    side, names = max(height, width), {operation.name for operation in table.operations}
    if side > MAX_SIDE:
        raise ValueError(f"images of {height} x {width} are too large: at most {MAX_SIDE} a side")
    if side > MAX_CROP_SIDE and "resized_crop" in names:
        raise ValueError(
            f"resized_crop takes batches of at most {MAX_CROP_SIDE} pixels a side, and these are "
            f"{height} x {width}: resize first, or use a space without it"
        )
    used = [row.operation.name for row in table.rows]
    maps = sum(2 * (name in GEOMETRY) + 3 * (name == "flip") for name in used)
    maps += 2 * max(0, 2 * _most_pad(table) + 1)
    if (size := 4 * maps * (height + width)) > max(MAX_TABLE_BYTES, 4 * channels * side * side):
        raise ValueError(
            f"the table of {len(table):,} rows would take {size / 1e6:,.0f} MB for images of "
            f"{height} x {width}: resize first, or use a policy of fewer rows and smaller crops"
        )
    luma = sorted(names & {"color", "contrast"})
    if luma and channels not in (1, 3):
        raise ValueError(
            f"{' and '.join(luma)} need grey or RGB images, but these have {channels} channels; "
            f"take them out: policy.without(lambda row: row.operation.name in {tuple(luma)}), or "
            f"build the policy on space.without({str(luma)[1:-1]})"
        )


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """`values` on `device`, without making the host wait for it."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


class ForkSafeLock:
    """A lock that is free again in a forked child, even if a thread held it during the fork."""

    def __init__(self) -> None:
        """Make the lock, and a new one in every child."""
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        """Wait for the lock."""
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        """Let go of it."""
        self._lock.release()


_LOCK = ForkSafeLock()


def plan_for(table: Table, channels: int, height: int, width: int, device: torch.device) -> Plan:
    """The plan of `table` for this size and device, kept from the last calls."""
    key = (channels, height, width, device)
    plans = table.cache
    with _LOCK:
        plan: Plan = plans.pop(key, None) or make_plan(table, channels, height, width, device)
        plans[key] = plan  # last used goes last
        # folders of images of every size must not fill the memory
        while len(plans) > MAX_PLANS or (
            len(plans) > 1 and sum(p.bytes for p in plans.values()) > MAX_PLAN_BYTES
        ):
            del plans[next(iter(plans))]
    return plan


def resolve(plan: Plan, choice: Tensor, uniform: Tensor) -> Tensor:
    """(N, K, 6) int32 lines for the rows (N, K) and the numbers (N, K, U) of a draw."""
    lines = plan.lines[choice]
    # double: products with counts and sizes are then exact; bounded: the results index memory
    u = uniform.to(torch.float64, copy=True).nan_to_num_(0.0).clamp_(0, LARGEST_UNIFORM)
    if plan.variants is not None:
        counts = plan.variants[choice]
        used = min(2, u.shape[-1])
        lines[..., 1 : 1 + used] += (u[..., :used] * counts[..., :used]).to(torch.int32)
    if plan.cut is not None:
        side, span_x, span_y, rule = plan.cut[choice].unbind(-1)
        left, right = cut_tensor(u[..., 0], plan.width, side, span_x, rule)
        top, bottom = cut_tensor(u[..., 1], plan.height, side, span_y, rule)
        box = torch.stack((left, top, right, bottom), -1)
        lines[..., 1:5] = torch.where(lines[..., :1] == Kind.CUTOUT, box, lines[..., 1:5])
    if plan.crops is not None:
        is_crop = lines[..., :1] == Kind.RESIZED_CROP
        grids = lines[..., 1:2].clone()  # boxes take this place
        for grid, (area, shape, fallback) in enumerate(zip(*plan.crops, strict=True)):
            box = resized_crop_boxes(u, plan.height, plan.width, area, shape, fallback.int())
            here = is_crop & (grids == grid)
            lines[..., 1:5] = torch.where(here, box, lines[..., 1:5])
    return lines
