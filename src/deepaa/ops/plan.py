"""The translation of drawn rows and uniform numbers into integers that pixel kernels follow.

A `Plan` holds a table's constants for one image size on one device. `resolve` turns a draw into one
line of six integers per image and layer. Every pixel engine (plain torch, C, Triton) reads these
lines, so they cannot disagree about what was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepaa.ops import constants
from deepaa.ops.boxes import (
    cut_rule,
    cut_tensor,
    cutout_side,
    fallback_box,
    resized_crop_boxes,
    shape_grids,
)
from deepaa.ops.locks import ForkSafeLock
from deepaa.ops.space import Row, Table
from deepaa.ops.specs import PIXEL


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


LUMA_KINDS = (Kind.CONTRAST, Kind.COLOR)
_SIMPLE = {
    "identity": Kind.IDENTITY,
    "auto_contrast": Kind.AUTO_CONTRAST,
    "equalize": Kind.EQUALIZE,
    "contrast": Kind.CONTRAST,
    "color": Kind.COLOR,
    "sharpness": Kind.SHARPNESS,
    "resized_crop": Kind.RESIZED_CROP,
}
BLENDS = ("contrast", "color", "brightness", "sharpness")
_NO_CUT: list[float] = [0, 0, 0, 0]
MAX_CROP_SIDE = 2048
"""The weights of resized_crop grow with the square of the side: 100 MB for this one."""
MAX_PLANS = 16
MAX_PLAN_BYTES = 1 << 29
LARGEST_UNIFORM = 1 - 2**-24
LINE = 6
"""Integers per image and layer: kind, four arguments, row of the table."""


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
        crops = (self.taps_x, self.taps_y)
        parts = (self.maps_x, self.maps_y, *(taps for taps in crops if taps is not None))
        return sum(part.nbytes for part in parts)


class _Builder:
    """Collects the constants of each row; `maps` and `lookups` grow as rows need them."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        self.size = (height, width)
        self.channels = channels
        self.maps_x: list[constants.Ints] = []
        self.maps_y: list[constants.Ints] = []
        self.lookups: list[constants.Bytes] = []
        self.grids: list[tuple[list[float], list[float], tuple[int, int, int, int]]] = []

    def line(
        self, row: Row, operations: tuple[Any, ...]
    ) -> tuple[list[int], list[int], list[float]]:
        """A row's (kind and arguments), numbers of variants, and cutout measures."""
        name, options, m = row.operation.name, row.operation.options, row.magnitude
        if row.operation.is_custom:
            return [Kind.CUSTOM, operations.index(row.operation), 0, 0, 0], [1, 1], _NO_CUT
        if name in constants.LOOKUP:
            self.lookups.append(constants.LOOKUP[name](m or 0.0))
            return [Kind.LOOKUP, len(self.lookups) - 1, 0, 0, 0], [1, 1], _NO_CUT
        if name == "cutout":
            return self._cutout(m, dict(options))
        if name == "resized_crop":
            grid = shape_grids(*self.size, options["scale"], options["ratio"])  # type: ignore[arg-type]
            self.grids.append((*grid, fallback_box(*self.size, options["ratio"])))  # type: ignore[arg-type]
            return [Kind.RESIZED_CROP, len(self.grids) - 1, 0, 0, 0], [1, 1], _NO_CUT
        if name in _SIMPLE:
            return [_SIMPLE[name], 0, 0, 0, 0], [1, 1], _NO_CUT
        x, y = self._maps(name, m, dict(options))
        line = [Kind.GEOMETRY, len(self.maps_x), len(self.maps_y), 0, 0]
        self.maps_x += x
        self.maps_y += y
        return line, [len(x), len(y)], _NO_CUT

    def _maps(
        self, name: str, m: float | None, options: dict[str, Any]
    ) -> tuple[list[constants.Ints], list[constants.Ints]]:
        height, width = self.size

        def straight(offset: int, *, along_x: bool, sign: int = 1) -> constants.Ints:
            return constants.integer_map(offset, sign, height, width, along_x=along_x)

        if name == "flip":
            kept, flipped = straight(0, along_x=True), straight(width - 1, along_x=True, sign=-1)
            return [kept, flipped], [straight(0, along_x=False)]
        if name == "crop":
            offsets = range(-options["pad"], options["pad"] + 1)
            return (
                [straight(o, along_x=True) for o in offsets],
                [straight(o, along_x=False) for o in offsets],
            )
        x, y = constants.GEOMETRY[name](m or 0.0, height, width)
        return [x], [y]

    def _cutout(
        self, m: float | None, options: dict[str, Any]
    ) -> tuple[list[int], list[int], list[float]]:
        height, width = self.size
        central = options["central"]
        side = cutout_side(width, m, size=options["size"], central=central)
        if side <= 0 or min(height, width) < options["min_side"]:
            return [Kind.IDENTITY, 0, 0, 0, 0], [1, 1], _NO_CUT
        whole = central is None or central == PIXEL
        spans = [n if whole else min(n, central) for n in (width, height)]
        return [Kind.CUTOUT, 0, 0, 0, 0], [1, 1], [side, *spans, cut_rule(m, central)]


def make_plan(table: Table, channels: int, height: int, width: int, device: torch.device) -> Plan:
    """The constants of `table` for one image size, computed on the host and sent to `device`."""
    _check_size(table, height, width)
    builder = _Builder(channels, height, width)
    operations = table.operations
    parts = [builder.line(row, operations) for row in table.rows]
    lines = [[*line, i] for i, (line, _, _) in enumerate(parts)]
    kinds = frozenset(int(line[0]) for line in lines)
    _check_channels(table, kinds, lines, channels)
    factors = [row.magnitude or 0.0 if row.operation.name in BLENDS else 0.0 for row in table.rows]
    fills = [
        constants.fill_for(row.operation.options.get("fill", 0), channels)
        if not row.operation.is_custom
        else (0,) * channels
        for row in table.rows
    ]

    def send(values: Any, dtype: Any) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(values, dtype)), device)

    empty = np.zeros((1, width + height))
    variants = [counts for _, counts, _ in parts]
    crops: tuple[Tensor, ...] | None = None
    if builder.grids:
        crops = tuple(send([grid[i] for grid in builder.grids], np.float64) for i in range(3))
    return Plan(
        table=table,
        kinds=kinds,
        lines=send(lines, np.int32),
        identity=send([row.operation.name == "identity" for row in table.rows], np.bool_),
        variants=send(variants, np.float64) if np.max(variants) > 1 else None,
        maps_x=send(builder.maps_x or empty, np.int32),
        maps_y=send(builder.maps_y or empty, np.int32),
        lookups=send(builder.lookups or np.zeros((1, 256)), np.uint8),
        fills=send(fills, np.uint8),
        factors=send(factors, np.float32),
        cut=send([cut for _, _, cut in parts], np.float64) if Kind.CUTOUT in kinds else None,
        scales=send(constants.auto_contrast_scales(), np.float64),
        crops=crops,
        taps_x=send(constants.bicubic_taps(width), np.int32) if crops else None,
        taps_y=send(constants.bicubic_taps(height), np.int32) if crops else None,
        channels=channels,
        height=height,
        width=width,
    )


def _check_size(table: Table, height: int, width: int) -> None:
    side = max(height, width)
    if side > constants.MAX_SIDE:
        raise ValueError(
            f"images of {height} x {width} are too large: at most {constants.MAX_SIDE} a side"
        )
    if side > MAX_CROP_SIDE and any(op.name == "resized_crop" for op in table.operations):
        raise ValueError(
            f"resized_crop takes batches of at most {MAX_CROP_SIDE} pixels a side, and these are "
            f"{height} x {width}: resize first, or use a space without it"
        )


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """`values` on `device`, without making the host wait for it."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _check_channels(
    table: Table, kinds: frozenset[int], lines: list[list[int]], channels: int
) -> None:
    if channels in (1, 3) or not kinds.intersection(LUMA_KINDS):
        return
    names = sorted(
        {table.rows[i].operation.name for i, line in enumerate(lines) if line[0] in LUMA_KINDS}
    )
    raise ValueError(
        f"{' and '.join(names)} need grey or RGB images, but these have {channels} channels; "
        f"build the policy on a space without them: space.without({', '.join(map(repr, names))})"
    )


_LOCK = ForkSafeLock()


def plan_for(table: Table, channels: int, height: int, width: int, device: torch.device) -> Plan:
    """The plan of `table` for this size and device, kept from the last calls."""
    key = (channels, height, width, device)
    plans = table.cache
    with _LOCK:
        plan = plans.pop(key, None)
        if plan is None:
            plan = make_plan(table, channels, height, width, device)
        assert isinstance(plan, Plan)
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
    # double: products with counts and sizes are then exact; clamped: the results index memory
    u = uniform.double().clamp(0, LARGEST_UNIFORM)
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
        for grid in range(len(plan.crops[0])):
            area, shape, fallback = (part[grid] for part in plan.crops)
            box = resized_crop_boxes(
                u, plan.height, plan.width, area, shape, fallback.to(torch.int32)
            )
            here = is_crop & (grids == grid)
            lines[..., 1:5] = torch.where(here, box, lines[..., 1:5])
    return lines
