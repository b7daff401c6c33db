"""The two passes of `resize_boxes` for many pictures of different sizes, on CUDA.

The pictures stay where their decoder put them; a table holds their addresses. Arithmetic is that of
integers, so that the bytes are those of the plain code in `resize.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from deepaa.ops.resize import FACTS, BoxTaps
from deepaa.ops.resized_crop import RESAMPLE_BITS

ROWS, COLUMNS = 8, 64
"""Pixels of a program."""
_BITS = tl.constexpr(RESAMPLE_BITS)
_HALF = tl.constexpr(1 << (RESAMPLE_BITS - 1))
_FACTS = tl.constexpr(FACTS)


@triton.jit
def _to_byte(total):
    return tl.minimum(tl.maximum(total >> _BITS, 0), 255).to(tl.uint8)


@triton.jit
def _across(
    addresses,
    facts,
    taps,
    wide,
    starts,
    SIDE,
    WIDTH,
    C: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    n = tl.program_id(0)
    facts += n * _FACTS
    first, right, under = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2)
    plane, last, top = tl.load(facts + 3), tl.load(facts + 4), tl.load(facts + 5)
    rows, count = tl.load(facts + 6), tl.load(facts + 7)
    row = tl.program_id(1) * R + tl.arange(0, R)
    if tl.program_id(1) * R < rows:
        column = tl.program_id(2) * B + tl.arange(0, B)
        inside = (row < rows)[:, None] & (column < SIDE)[None, :]
        source = tl.load(addresses + n).to(tl.pointer_type(tl.uint8)) + first
        source += tl.minimum(top + row, top + rows - 1)[:, None] * under
        mine = taps + (n.to(tl.int64) * SIDE + tl.minimum(column, SIDE - 1)) * WIDTH
        start = tl.load(mine)
        target = wide + tl.load(starts + n) + row[:, None].to(tl.int64) * SIDE + column[None, :]
        for c in tl.static_range(C):
            total = tl.full((R, B), _HALF, tl.int32)
            for tap in range(0, count):
                place = tl.minimum(start + tap, last) * right
                value = tl.load(source + c * plane + place[None, :], mask=inside, other=0)
                total += value.to(tl.int32) * tl.load(mine + 1 + tap)[None, :]
            tl.store(target + c * rows * SIDE, _to_byte(total), mask=inside)


@triton.jit
def _down(
    wide,
    facts,
    taps,
    squares,
    starts,
    SIDE,
    WIDTH,
    C: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    n = tl.program_id(0)
    rows, count = tl.load(facts + n * _FACTS + 6), tl.load(facts + n * _FACTS + 8)
    row = tl.program_id(1) * R + tl.arange(0, R)
    column = tl.program_id(2) * B + tl.arange(0, B)
    inside = (row < SIDE)[:, None] & (column < SIDE)[None, :]
    mine = taps + (n.to(tl.int64) * SIDE + tl.minimum(row, SIDE - 1)) * WIDTH
    start = tl.load(mine)
    source = wide + tl.load(starts + n) + column[None, :]
    target = squares + n.to(tl.int64) * C * SIDE * SIDE + row[:, None] * SIDE + column[None, :]
    for c in tl.static_range(C):
        total = tl.full((R, B), _HALF, tl.int32)
        for tap in range(0, count):
            place = tl.minimum(start + tap, rows - 1) * SIDE
            value = tl.load(source + c * rows * SIDE + place[:, None], mask=inside, other=0)
            total += value.to(tl.int32) * tl.load(mine + 1 + tap)[:, None]
        tl.store(target + c * SIDE * SIDE, _to_byte(total), mask=inside)


def run(pictures: Sequence[Tensor], which: Sequence[int], taps: BoxTaps) -> Tensor:
    """See `resize_boxes`; the pictures must live until the work queued here is done."""
    device, channels, side = pictures[0].device, len(pictures[0]), taps.down.shape[1]
    rows = taps.facts[:, 6]
    sizes = channels * side * rows
    starts = np.cumsum(sizes) - sizes
    addresses = np.array([pictures[place].data_ptr() for place in which], np.int64)

    def there(numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(device, non_blocking=True)

    facts, offsets, across, down = map(there, (taps.facts, starts, taps.across, taps.down))
    wide = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=device)
    squares = torch.empty(len(which), channels, side, side, dtype=torch.uint8, device=device)
    columns = triton.cdiv(side, COLUMNS)
    shape = {"C": channels, "R": ROWS, "B": COLUMNS}
    grid = len(which), triton.cdiv(int(rows.max()), ROWS), columns
    _across[grid](there(addresses), facts, across, wide, offsets, side, across.shape[2], **shape)
    grid = len(which), triton.cdiv(side, ROWS), columns
    _down[grid](wide, facts, down, squares, offsets, side, down.shape[2], **shape)
    return squares
