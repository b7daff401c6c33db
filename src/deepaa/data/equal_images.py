"""Images with the same pixels: in two parts they flatter a measurement, in two classes they err."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa import distributed
from deepaa.data.image_file import Pixels, shown
from deepaa.data.splits import LabelledImages

KEEP_TOGETHER = "--groups keeps such images in one part"
"""What to do about equal images in two parts of one division."""
LOOKED_AT = 4096
"""Bytes of a large image that are compared first; all of it only where those are equal."""

_log = logging.getLogger(__name__)


def pixel_numbers(*parts: Tensor) -> Tensor:
    """A number for each image of uint8 (N, ...), part after part: equal for the same pixels."""
    arrays = [part.contiguous().numpy().reshape(len(part), -1) for part in parts]
    looks = [_digest(row) for pixels in arrays for row in pixels[:, :: _step(pixels)]]
    if any(_step(pixels) > 1 for pixels in arrays):
        counts, rows = Counter(looks), (row for pixels in arrays for row in pixels)
        pairs = zip(looks, rows, strict=True)
        looks = [_digest(row) if counts[look] > 1 else look for look, row in pairs]
    numbers: dict[bytes, int] = {}
    return torch.tensor([numbers.setdefault(look, len(numbers)) for look in looks])


def _step(pixels: Pixels) -> int:
    return max(1, int(pixels.shape[1]) // LOOKED_AT)


def _digest(row: Pixels) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


class Equals(NamedTuple):
    """Images that have the pixels of another one."""

    images: int
    example: tuple[int, int]
    """The first of them, and the first other one."""


def equals_across(numbers: Tensor, values: Tensor, counted: Tensor | None = None) -> Equals | None:
    """The images whose pixels an image with another value has too; None where there are none.

    Args:
        numbers: (N,) as of `pixel_numbers`.
        values: int64 (N,), such as the part or the class of each image.
        counted: bool (N,), the images in question; None for all.
    """
    low, high = (
        torch.zeros_like(values).scatter_reduce_(0, numbers, values, how, include_self=False)
        for how in ("amin", "amax")
    )
    found = (low != high)[numbers]
    if counted is not None:
        found &= counted
    if not found.any():
        return None
    first = int(found.nonzero()[0])
    other = (numbers == numbers[first]) & (values != values[first])
    return Equals(int(found.sum()), (first, int(other.nonzero()[0])))


def warn_of_equal_images(
    *sets: LabelledImages,
    parts: Tensor | None = None,
    counted: Tensor | None = None,
    measured: str = "test images",
    others: str = "training images",
    advice: str = "remove them from one of the two",
    classes: bool = True,
) -> None:
    """Say how many images have the same pixels as others of another part, or of another class.

    Args:
        sets: All images: one set, or the training and the test images.
        parts: int64 (N,), the part of each image; None for a set each.
        counted: bool (N,), the images that measure; None for those that are not in part 0.
        measured: What those are called.
        others: What images of other parts are called.
        advice: What to do about them.
        classes: Whether equal images of two classes are told too, once for each data set.
    """
    if not distributed.is_main():
        return
    if parts is None:
        parts = torch.cat([torch.full((len(each.labels),), k) for k, each in enumerate(sets)])
    counted = parts > 0 if counted is None else counted
    labels, name = torch.cat([each.labels for each in sets]), sets[0].name
    numbers = pixel_numbers(*(each.images for each in sets))
    files = [file for each in sets for file in each.files or _numbers(each)]
    if found := equals_across(numbers, parts, counted):
        of_all = f"{found.images:,} of {int(counted.sum()):,} {measured}"
        pair = " and ".join(shown(files[i]) for i in found.example)
        same = f"have the same pixels as {others}, as {pair}"
        _log.warning("%s: %s %s; such a measurement is too good: %s", name, of_all, same, advice)
    if classes and (found := equals_across(numbers, labels)):
        names = (sets[0].class_names[int(labels[i])] for i in found.example)
        both = (f"{shown(files[i])} ({c})" for i, c in zip(found.example, names, strict=True))
        what = "have the same pixels as one of another class, so that labels are wrong"
        _log.warning("%s: %s images %s: %s", name, f"{found.images:,}", what, " and ".join(both))


def _numbers(data: LabelledImages) -> list[str]:
    return [f"image {i}" for i in range(len(data.labels))]
