"""Images of any size, collected into one array in memory."""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from deepaa import distributed
from deepaa.data.image_file import Pixels, check_size, squared

KEPT_SIDE = 512
"""Without a size, images that all have one size up to this side are kept as they are."""
DEFAULT_SIDE = 224
"""Without a size, all others are brought to this side, or to a smaller one that they have."""
MEMORY_SHARE = 0.6
"""Images may take this share of the memory that is free."""
_CHUNK = 128
"""So many images are seen before memory is taken: sizes that differ mostly do so early."""

_log = logging.getLogger(__name__)


class ImageStack:
    """Collects images of any size; ends as uint8 (N, 3, H, W).

    With a `size` every image becomes a square of that side. Without, images keep the size they all
    share up to 512 pixels a side; as soon as one differs or is larger, all become squares of the
    side that `common_side` takes from them. The order of the images changes nothing.
    """

    def __init__(
        self, capacity: int, size: int | None, place: str, *, side: int | None = None
    ) -> None:
        """Nothing is held yet.

        Args:
            capacity: The most images that may come.
            place: Names the source in errors and in what is said about sizes.
            side: What images of different sizes are brought to, where it is known.
        """
        check_size(size)
        self._capacity, self.size, self._place, self._side = capacity, size, place, side
        self._buffer: Pixels | None = None
        self._count = 0
        self._waiting: list[Pixels] = []
        self._differ = False  # images of more than one size, or too large ones
        self._held: list[Pixels] = []  # those, until all are known
        self.resized: str | None = None
        """What was done to images of different sizes, once they all are there."""

    def prepare(self, image: Pixels) -> Pixels:
        """The image (H, W, 1 or 3) with three channels, resized if it will be: for threads."""
        image = np.broadcast_to(image, (*image.shape[:2], 3))
        if self.size is not None:
            return squared(image, self.size)
        shorter, longer = sorted(image.shape[:2])
        self._differ |= longer > KEPT_SIDE
        if longer > KEPT_SIDE or (self._differ and shorter > DEFAULT_SIDE):
            return squared(image, self._side or min(shorter, DEFAULT_SIDE))
        return image

    def add(self, image: Pixels) -> None:
        """Add an image (H, W, 1 or 3), prepared or not."""
        self._waiting.append(self.prepare(image))
        if len(self._waiting) == _CHUNK:
            self._store()

    def images(self) -> Pixels:
        """All images: (N, 3, H, W); no more can be added where their sizes differ."""
        if self._waiting:
            self._store()
        if self._held:
            self._square_all()
        if self._buffer is None:
            raise ValueError(f"{self._place}: no images")
        return self._buffer[: self._count]

    def _store(self) -> None:
        """Move the waiting images to the buffer, or hold them where sizes differ."""
        images, self._waiting = self._waiting, []
        shapes = {image.shape[:2] for image in images}
        if self._buffer is not None:
            shapes.add(self._buffer.shape[2:])
        self._differ |= len(shapes) > 1
        if self._differ:
            if self._buffer is not None:
                images = [*self._buffer[: self._count].transpose(0, 2, 3, 1), *images]
                self._buffer = None
            self._held += [np.array(self.prepare(image)) for image in images]
            each = sum(image.nbytes for image in self._held) / len(self._held)
            self._check_memory(max(each, 3 * self._common_side() ** 2), "different sizes")
            return
        self._fill(images, *shapes.pop())

    def _fill(self, images: Iterable[Pixels], h: int, w: int) -> None:
        if self._buffer is None:
            self._check_memory(3 * h * w, f"{h} x {w} pixels")
            self._buffer, self._count = np.empty((self._capacity, 3, h, w), np.uint8), 0
        for image in images:
            self._buffer[self._count] = image.transpose(2, 0, 1)
            self._count += 1

    def _check_memory(self, each: float, sizes: str) -> None:
        what = f"{self._place}: {self._capacity:,} images of {sizes}"
        check_memory(int(each * self._capacity), what)

    def _common_side(self) -> int:
        return self._side or common_side([min(image.shape[:2]) for image in self._held])

    def _square_all(self) -> None:
        """Bring the images that are held to one side; each is freed when it is done."""
        sides, side = [min(image.shape[:2]) for image in self._held], self._common_side()
        low, high = min(sides), max(sides)
        span = f"{high}" if low == high else f"{low} to {high}"
        self.resized = (
            f"{self._place}: the shorter sides of the images have {span}"
            f"{' or more' * (high == DEFAULT_SIDE)} pixels; each is resized to {side} x {side}, "
            "its middle square; --size N takes another side"
        )
        self._held.reverse()
        self._fill((squared(self._held.pop(), side) for _ in sides), side, side)


def common_side(sides: Sequence[int]) -> int:
    """The side that images with these shorter sides are brought to: few are made much larger.

    Their median, as a multiple of 4, in 8..224.
    """
    return max(8, min(statistics.median_low(sides), DEFAULT_SIDE) // 4 * 4)


def stacked(images: Sequence[Pixels] | Pixels, size: int | None, place: str) -> Pixels:
    """(N, 3, H, W) of N images (H, W, 1 or 3), all of one size; see `ImageStack`."""
    stack = ImageStack(len(images), size, place)
    for image in images:
        stack.add(image)
    return told(stack)


def told(stack: ImageStack) -> Pixels:
    """The images, after a line about how they were resized without being asked."""
    images = stack.images()
    if stack.resized is not None and distributed.is_main():
        _log.warning("%s", stack.resized)
    return images


def check_memory(needed: int, what: str) -> None:
    """Raises MemoryError where `needed` bytes are more than 60 % of the free memory."""
    free = available_memory()
    if free is not None and needed > MEMORY_SHARE * free:
        raise MemoryError(
            f"{what} need {needed / 1e9:.1f} GB of memory; "
            f"{MEMORY_SHARE:.0%} of the {free / 1e9:.1f} GB that are free may be used. "
            "Give a smaller size or fewer images"
        )


def available_memory() -> int | None:
    """Bytes of free memory; of all memory outside of Linux, None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= getattr(os, "sysconf_names", {}).keys():
            return None
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return next((int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line), None)
