"""One image at a time: through the C kernels where its size repeats, else through Pillow.

A call of the C kernels takes a plan, which is dear to make. A size gets one when it was seen a few
times; images of other sizes go through Pillow, which gives the same bytes. So a folder of images of
all sizes neither waits for plans nor fills the memory with them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepaa.ops import kernels_c
from deepaa.ops.apply import run_pil
from deepaa.ops.conversions import (
    MODES,
    pil_to_tensor,
    pillow_rounds_blends,
    tensor_to_pil,
)
from deepaa.ops.pil_memory import rgb_pixels
from deepaa.ops.plan import LINE, ForkSafeLock, Kind, Plan, make_plan
from deepaa.ops.resized_crop import resized_crop_box
from deepaa.ops.rng import cutout_box
from deepaa.ops.space import Table

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = npt.NDArray[np.uint8]
Steps = Sequence[tuple[int, Sequence[float]]]
"""The (row, uniform numbers) of each layer, as `Policy.draw_one` gives them."""
Size = tuple[int, int, int]

SEEN = 8
"""Images of one size that go through Pillow before the size gets a plan."""
MAX_SIZES = 16
"""Sizes of one table that get a plan; the first ones keep theirs."""
MAX_BYTES = 64 << 20
"""Memory of these plans together."""
MAX_COUNTED = 4096
"""Sizes that are counted before counting begins anew."""


def single_pil(image: Image, steps: Steps, table: Table) -> Image:
    """An RGB or L image under the drawn steps; the image itself if they change nothing."""
    if image.mode not in MODES:
        return run_pil(image, steps, table)  # which says what is wrong
    width, height = image.size
    channels = 3 if image.mode == "RGB" else 1
    maker = _maker(table, channels, height, width)
    if maker is None:
        return run_pil(image, steps, table)
    lines = maker.lines(steps)
    if not lines:
        return image
    if channels == 3 and (source := rgb_pixels(image)) is not None:
        from PIL.Image import new

        made = new("RGB", image.size, None)
        if (target := rgb_pixels(made)) is not None:
            maker.run(source.address, target.address, lines, 4)
            made.info = image.info.copy()
            return made
    return _copied(image, maker, lines)


def _copied(image: Image, maker: _Lines, lines: list[int]) -> Image:
    """An image whose memory Pillow does not show, through copies."""
    # RGB as Pillow has it in memory, four bytes a pixel, is copied faster than packed to three
    height, width, layout = image.height, image.width, "RGBX" if image.mode == "RGB" else "L"
    pixel = len(layout)
    out = np.empty(height * width * pixel, np.uint8)
    maker.run(image.tobytes("raw", layout), out.ctypes.data, lines, pixel)
    from PIL.Image import frombytes

    made = frombytes(image.mode, image.size, out.data, "raw", layout)
    made.info = image.info.copy()
    return made


def single_array(image: Bytes, steps: Steps, table: Table) -> Bytes:
    """uint8 (H, W), (H, W, 1) or (H, W, 3) under the drawn steps: a new contiguous array."""
    channels = 1 if image.ndim == 2 else image.shape[2]
    maker = _maker(table, channels, *image.shape[:2])
    if maker is None:
        from PIL.Image import fromarray

        pil = fromarray(image.reshape(image.shape[:2]) if channels == 1 else image)
        return np.array(run_pil(pil, steps, table)).reshape(image.shape)
    lines = maker.lines(steps)
    if not lines:
        return np.array(image, order="C")
    source = np.ascontiguousarray(image)
    out = np.empty(image.shape, np.uint8)
    maker.run(_place(source), _place(out), lines, channels)
    return out


def _place(image: Bytes) -> Any:
    """The address of an array's pixels, as C takes it."""
    if image.flags.writeable:  # a third of the time
        memory: Any = image
        return ctypes.byref(ctypes.c_char.from_buffer(memory))
    return image.ctypes.data


def single_tensor(image: Tensor, steps: Steps, table: Table) -> Tensor:
    """uint8 (1 or 3, H, W) on CPU under the drawn steps: a new contiguous tensor."""
    channels, height, width = image.shape
    maker = _maker(table, channels, height, width)
    if maker is None:
        return pil_to_tensor(run_pil(tensor_to_pil(image), steps, table))
    lines = maker.lines(steps)
    if not lines:
        return image.clone(memory_format=torch.contiguous_format)
    source = image.contiguous()
    out = torch.empty_like(source)
    maker.run(source.data_ptr(), out.data_ptr(), lines, 1)
    return out


class _Lines:
    """`resolve` for one image, without tensors, and the call of the C kernels."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loops = kernels_c.Single(plan)
        self.rows: list[list[int]] = plan.lines.tolist()
        self.random: list[Callable[[Sequence[float]], list[int]] | None] = [
            self._random(row) for row in range(len(self.rows))
        ]

    def _random(self, row: int) -> Callable[[Sequence[float]], list[int]] | None:
        """What makes a row's line of uniform numbers; None if it does not depend on them."""
        plan, line = self.plan, self.rows[row]
        kind, last = line[0], line[5]
        operation, magnitude = plan.table.rows[row]
        options = dict[str, Any](operation.options)
        if kind == Kind.CUTOUT:
            del options["fill"]

            def cut(u: Sequence[float]) -> list[int]:
                box = cutout_box(u, plan.height, plan.width, magnitude, **options)
                assert box is not None  # such a row is the identity
                return [kind, *box, last]

            return cut
        if kind == Kind.RESIZED_CROP:
            return lambda u: [
                kind,
                *resized_crop_box(u, plan.height, plan.width, **options),
                last,
            ]
        if plan.variants is None:
            return None
        x, y = (int(count) for count in plan.variants[row])
        if x == y == 1:
            return None
        return lambda u: [
            kind,
            line[1] + int(u[0] * x),
            line[2] + (int(u[1] * y) if y > 1 else 0),
            *line[3:],
        ]

    def lines(self, steps: Steps) -> list[int]:
        """The lines of the steps, one after the other, but for those that change nothing."""
        found: list[int] = []
        for row, numbers in steps:
            line, random = self.rows[row], self.random[row]
            if line[0] != Kind.IDENTITY:
                found += line if random is None else random(numbers)
        return found

    def run(self, source: Any, target: Any, lines: list[int], pixel: int) -> None:
        """The image at `source` under the lines, written to `target`."""
        packed = _packer(len(lines)).pack(*lines)
        self.loops.run(source, target, packed, len(lines) // LINE, pixel)


@cache
def _packer(count: int) -> struct.Struct:
    """What writes `count` 32-bit integers."""
    return struct.Struct(f"={count}i")


class _Sizes:
    """How often a table met each size, and the plans of those it met often."""

    def __init__(self, table: Table) -> None:
        custom = any(operation.is_custom for operation in table.operations)
        # a Pillow that rounds otherwise would make an image depend on how many came before it
        self.native = kernels_c.available() and not custom and pillow_rounds_blends()
        self.counts: dict[Size, int] = {}
        self.made: dict[Size, _Lines] = {}
        self.bytes = 0

    def count(self, table: Table, size: Size) -> _Lines | None:
        """Count an image of a size without a plan, and make the plan when it is time."""
        if len(self.made) == MAX_SIZES or 0 in size:
            return None
        with _LOCK:
            if size in self.made:  # by another thread
                return self.made[size]
            if size not in self.counts and len(self.counts) == MAX_COUNTED:
                self.counts.clear()
            seen = self.counts[size] = self.counts.get(size, 0) + 1
            needed = _plan_bytes(table, size) if seen == SEEN else 0
            if seen != SEEN or self.bytes + needed > MAX_BYTES:
                return None
            self.bytes += needed
            self.made[size] = _Lines(make_plan(table, *size, torch.device("cpu")))
            return self.made[size]


def _plan_bytes(table: Table, size: Size) -> int:
    """About as much memory as a plan takes."""
    _, height, width = size
    names = {operation.name for operation in table.operations}
    pads = [dict[str, Any](op.options)["pad"] for op in table.operations if op.name == "crop"]
    maps = 2 * (len(table) + 2 * max(pads, default=0) + 1) * (height + width)
    taps = LINE * (height**2 + width**2 + height + width) if "resized_crop" in names else 0
    return 4 * (maps + taps)


_LOCK = ForkSafeLock()


def _maker(table: Table, channels: int, height: int, width: int) -> _Lines | None:
    """What runs images of this size through the C kernels; None if Pillow should."""
    if table.sizes is None:
        with _LOCK:
            table.sizes = table.sizes or _Sizes(table)
    sizes: _Sizes = table.sizes
    if not sizes.native:
        return None
    size = (channels, height, width)
    return sizes.made.get(size) or sizes.count(table, size)
