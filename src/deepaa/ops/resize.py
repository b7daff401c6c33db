"""Boxes of pictures of any size as squares of one size, with the bytes of Pillow's bicubic filter.

Pillow resizes along rows first, rounds to bytes, and then along columns, with weights in fixed
point. `BoxTaps` has these weights; `resize_boxes` applies them to pictures that lie on a device in
any of the eight orientations of EXIF, in two launches for all of them where Triton serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepaa.ops.resized_crop import RESAMPLE_BITS, bicubic_taps

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

FACTS = 9
"""Numbers of a box: where its picture begins, the steps to the right and down, the pixels of a
channel, the last column, the first row, the number of rows, and the taps of both filters."""


class Box(NamedTuple):
    """A part of an upright picture, the size that it is resized to, and what is cut of that."""

    left: int
    top: int
    width: int
    height: int
    target_width: int
    target_height: int
    x: int = 0
    y: int = 0


class BoxTaps(NamedTuple):
    """How N squares of one side come from boxes of pictures."""

    facts: Longs
    """(N, FACTS)."""
    across: Ints
    """(N, side, 1 + taps): the first column of each pixel's neighbourhood, and the weights."""
    down: Ints
    """The same for rows, which count from the first one that any pixel needs."""


def box_taps(boxes: Sequence[Box], side: int, shapes: Sequence[tuple[int, int, int]]) -> BoxTaps:
    """The weights for boxes of upright pictures.

    Args:
        side: Of the squares.
        shapes: For each box the width and the height of its picture as it is stored, and the EXIF
            orientation that makes it upright.
    """
    table = np.array(boxes, np.int64).reshape(-1, len(Box._fields))
    left, top, width, height, target_width, target_height, x, y = table.T
    across, taps_across = _taps(width, target_width, x, side)
    down, taps_down = _taps(height, target_height, y, side)
    across[:, :, 0] += left[:, None].astype(np.int32)
    first = down[:, 0, 0].astype(np.int64)  # rows above it are not needed
    down[:, :, 0] -= first[:, None].astype(np.int32)
    rows = np.minimum(height - first, down[:, -1, 0] + taps_down)
    layout = np.array([_layout(*shape) for shape in shapes], np.int64).reshape(-1, 4)
    facts = (left + width - 1, top + first, rows, taps_across, taps_down)
    return BoxTaps(np.column_stack((layout, *facts)), across, down)


def _taps(lengths: Longs, targets: Longs, starts: Longs, side: int) -> tuple[Ints, Longs]:
    """The (N, side, 1 + taps) table of one axis, and how many taps each box needs."""
    tables: list[tuple[Longs, Ints]] = []
    for target in np.unique(targets):
        rows = np.flatnonzero(targets == target)
        whole = bicubic_taps(int(target), lengths[rows].tolist())
        window = starts[rows][:, None] + np.arange(side)
        tables.append((rows, np.take_along_axis(whole, window[:, :, None], 1)))
    most = max((table.shape[2] for _, table in tables), default=1)
    joined = np.zeros((len(lengths), side, most), np.int32)
    for rows, table in tables:
        joined[rows, :, : table.shape[2]] = table
    used = (joined[:, :, 1:] != 0).any(1)
    return joined, (np.arange(1, most) * used).max(1, initial=1)


def _layout(width: int, height: int, orientation: int) -> tuple[int, int, int, int]:
    """The place of the upright first pixel in a stored channel, the steps right and down, its size.

    Orientations count from 1 as in EXIF; from 5 on rows and columns change places.
    """
    mirrored = orientation in (2, 3, 7, 8)  # the upright first pixel is in the last stored column
    flipped = orientation in (3, 4, 6, 7)  # ... in the last stored row
    column, row = (-1 if mirrored else 1), (-width if flipped else width)
    first = mirrored * (width - 1) + flipped * (height - 1) * width
    right, under = (row, column) if orientation >= 5 else (column, row)
    return first, right, under, width * height


def resize_boxes(
    pictures: Sequence[Tensor], which: Sequence[int], taps: BoxTaps, *, triton: bool
) -> Tensor:
    """The squares (N, C, side, side) of boxes of pictures, on their device.

    Args:
        pictures: uint8 (C, H, W) each, as they are stored, on one device.
        which: The picture of each box.
        triton: Take Triton's kernels, which need CUDA.
    """
    if triton:
        from deepaa.ops import resize_triton

        return resize_triton.run(pictures, which, taps)
    squares = [
        _resized(pictures[place], facts, torch.from_numpy(across), torch.from_numpy(down))
        for place, facts, across, down in zip(which, taps.facts.tolist(), *taps[1:], strict=True)
    ]
    return torch.stack(squares)


def _resized(picture: Tensor, facts: list[int], across: Tensor, down: Tensor) -> Tensor:
    """One square, by plain indexing."""
    first, right, under, _, last, top, rows, taps_across, taps_down = facts
    channels = picture.reshape(len(picture), -1).to(torch.int32)
    across, down = across.to(picture.device), down.to(picture.device)
    line = first + (top + torch.arange(rows, device=picture.device)) * under
    wide = torch.full((len(picture), rows, len(across)), 1 << (RESAMPLE_BITS - 1)).to(channels)
    for tap in range(taps_across):
        column = (across[:, 0] + tap).clamp(max=last) * right
        wide += channels[:, line[:, None] + column] * across[:, 1 + tap]
    wide = (wide >> RESAMPLE_BITS).clamp(0, 255)
    square = torch.full_like(wide[:, :1], 1 << (RESAMPLE_BITS - 1)).repeat(1, len(down), 1)
    for tap in range(taps_down):
        row = (down[:, 0] + tap).clamp(max=rows - 1)
        square += wide[:, row] * down[:, 1 + tap, None]
    return (square >> RESAMPLE_BITS).clamp(0, 255).to(torch.uint8)
