"""Many images in one uint8 tensor, all of one size, if the memory allows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from deepaa.data.image_file import Pixels, check_size, squared

KEPT_SIDE = 512
"""Without a size, images that all have one size up to this side are kept as they are."""
DEFAULT_SIDE = 224
"""Without a size, all others are brought to this side."""
_CHUNK = 128
"""So many images are seen before memory is taken: sizes that differ mostly do so early."""
MEMORY_SHARE = 0.6
"""Images may take this share of the memory that is free."""


class ImageStack:
    """Collects images of any size; ends as uint8 (N, 3, H, W).

    With a `size` every image becomes a square of that side. Without, images keep the size they all
    share up to 512 pixels a side; as soon as one differs or is larger, all become squares of 224.
    What was collected before then still has all its pixels, so the order changes nothing.
    """

    def __init__(self, capacity: int, size: int | None, place: str) -> None:
        """`capacity` is the most images that may come; `place` names the source in errors."""
        check_size(size)
        self._capacity, self._size, self._place = capacity, size, place
        self._buffer: Pixels | None = None
        self._count = 0
        self._waiting: list[Pixels] = []

    def prepare(self, image: Pixels) -> Pixels:
        """The (H, W, 3) image, made small if it will be: for threads, before `add`."""
        if self._size is None and max(image.shape[:2]) > KEPT_SIDE:
            self._size = DEFAULT_SIDE
        return image if self._size is None else squared(image, self._size)

    def add(self, image: Pixels) -> None:
        """Adds an (H, W, 3) image, prepared or not."""
        self._waiting.append(self.prepare(image))
        if len(self._waiting) == _CHUNK:
            self._store(self._waiting)
            self._waiting = []

    def _store(self, images: list[Pixels]) -> None:
        shapes = {image.shape[:2] for image in images}
        if self._buffer is not None:
            shapes.add(self._buffer.shape[2:])
        if self._size is None and len(shapes) > 1:
            self._size = DEFAULT_SIDE
        h, w = next(iter(shapes)) if self._size is None else (self._size, self._size)
        buffer = self._buffer_of(h, w)
        for image in images:
            fitted = image if self._size is None else squared(image, self._size)
            buffer[self._count] = fitted.transpose(2, 0, 1)
            self._count += 1

    def _buffer_of(self, h: int, w: int) -> Pixels:
        old = self._buffer
        if old is None or old.shape[2:] != (h, w):
            shape = (self._capacity, 3, h, w)
            what = f"{self._place}: {self._capacity:,} images of {h} x {w} pixels"
            check_memory(3 * h * w * self._capacity, what)
            self._buffer = np.empty(shape, np.uint8)
            if old is not None:
                for i in range(self._count):
                    whole = np.ascontiguousarray(old[i].transpose(1, 2, 0))
                    self._buffer[i] = squared(whole, h).transpose(2, 0, 1)
            return self._buffer
        return old

    def images(self) -> Pixels:
        """All images so far: (N, 3, H, W)."""
        if self._waiting:
            self._store(self._waiting)
            self._waiting = []
        if self._buffer is None:
            raise ValueError(f"{self._place}: no images")
        return self._buffer[: self._count]


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
    """Bytes of free memory; all of the memory where only that is known, or None."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration):  # not Linux
        names = getattr(os, "sysconf_names", {})
        if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return None
