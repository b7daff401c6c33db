"""Labelled images that are listed one by one, and the part of them that makes an `ImageTree`."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from deepaa import distributed
from deepaa.data.image_file import listed, shown
from deepaa.data.image_tree import ImageStore, ImageTree
from deepaa.data.splits import MAX_CLASSES, NoTestPartError

PART_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val"),
}
"""What the parts of a data set are called, in lower case, and which of three each is."""
_log = logging.getLogger(__name__)
LONGEST_LABEL = 200
"""Characters of a class name, at most: a longer one is a caption."""


@dataclass(frozen=True, eq=False)
class Listing:
    """Image files with what is said of each: its class, and if known its part and group."""

    place: str
    """What the source is called in errors."""
    root: Path
    files: Sequence[Path]
    """Below the root."""
    labels: Sequence[str | None]
    """Names of classes; None where nothing is said, as of images that others keep for a test."""
    where: Callable[[int], str]
    """Says for a person where the image with this number is listed: "row 7"."""
    parts: Sequence[str] | None = None
    """"train", "test" or "val" for each; None where nothing is said."""
    groups: Sequence[Hashable] | None = None
    """Equal for images that belong together; None is a group of its own."""
    store: ImageStore | None = None
    """Where the files are, if they are none of their own; places are their numbers here."""
    ignored: Mapping[str, int] = field(default_factory=dict)
    order: Sequence[str] = ()
    """Of the classes, where the source says it; otherwise they are sorted."""

    def tree(self, split: str) -> ImageTree:
        """The images of a split; the classes of a test part are those of train, as in folders."""
        train, part = self._part("train"), self._part(split)
        if split == "train" and not part:
            raise ValueError(f"{self.place}: has no train part; it has {self._has()}")
        if not part:
            raise NoTestPartError(f"{self.place}: has no test part{self._why_no_test()}")
        if split != "train":
            self._tell_of_unlabelled()
        names = class_names([self._label(i) for i in train or part], self.order)
        numbers = {name: number for number, name in enumerate(names)}
        labels = [self._label(i) for i in part]
        for i, label in zip(part, labels, strict=True):
            if label not in numbers:
                raise ValueError(
                    f"{self.place}: {self.where(i)}: the class {shown(label)} is not among those "
                    f"of train: {listed(names)}"
                )
        if len(names) < 2:
            raise ValueError(
                f"{self.place}: only one class, {shown(names[0])}; it takes at least two"
            )
        if len(names) > MAX_CLASSES:
            raise ValueError(f"{self.place}: {len(names):,} classes; at most {MAX_CLASSES:,}")
        return ImageTree(
            self.root,
            tuple(self.files[i] for i in part),
            tuple(numbers[label] for label in labels),
            tuple(names),
            {**self.ignored, **self._left_out(split)},
            self._group_numbers(part),
            self.store,
            () if self.store is None else tuple(part),
            self.place,
        )

    def _label(self, i: int) -> str:
        """The class of an image; ValueError where nothing is said."""
        label = self.labels[i]
        if label is None:
            raise ValueError(f"{self.place}: {self.where(i)}: no label")
        return label

    def _part(self, split: str) -> list[int]:
        """The numbers of the images of a split; val is the test part where there is no test."""
        if self.parts is None:
            return list(range(len(self.files))) if split == "train" else []
        wanted = split if split == "train" else self._test_part
        return [i for i, part in enumerate(self.parts) if part == wanted]

    @cached_property
    def _test_part(self) -> str | None:
        """test, or else val; None where neither has a label."""
        told = zip(self.parts or (), self.labels, strict=self.parts is not None)
        labelled = {part for part, label in told if label is not None}
        return next((part for part in ("test", "val") if part in labelled), None)

    def _tell_of_unlabelled(self) -> None:
        """A line for a test part that another one takes the place of."""
        if self._test_part == "val" and "test" in (self.parts or ()) and distributed.is_main():
            left = "test has no labels, so it is left alone"
            _log.warning("%s: %s; the test images are those of val", self.place, left)

    def _left_out(self, split: str) -> dict[str, int]:
        """Images of neither train nor the test part."""
        if self.parts is None or split != "train":
            return {}
        parts = Counter(part for part in self.parts if part not in ("train", self._test_part))
        why = {"val": "beside train and test" if self._test_part else "without labels"}
        return {f"in the part {n}, {why.get(n, 'without labels')}": c for n, c in parts.items()}

    def _has(self) -> str:
        return listed(sorted(set(self.parts or ()))) or "no images"

    def _why_no_test(self) -> str:
        if self.parts is None:
            return "; all images are for training"
        return " with labels" if set(self.parts) & {"test", "val"} else ""

    def _group_numbers(self, part: Sequence[int]) -> Tensor | None:
        if self.groups is None:
            return None
        numbers: dict[Hashable, int] = {}
        each = [self.groups[i] for i in part]
        return torch.tensor(
            [numbers.setdefault((i,) if g is None else g, len(numbers)) for i, g in enumerate(each)]
        )


def class_names(labels: Sequence[str], order: Sequence[str] = ()) -> list[str]:
    """All different labels, in this order if there is one, else of numbers if all are numbers."""
    different = set(labels)
    if order:
        return [name for name in order if name in different]
    if all(re.fullmatch(r"-?\d{1,18}", label) for label in different):
        return sorted(different, key=int)
    return sorted(different)


def label_text(value: object) -> str:
    """A class as text: 3, 3.0 and "3" are the same; ValueError says what is wrong with others."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise ValueError("no label")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        kind = type(value).__name__
        raise ValueError(f"the label is a {kind}, expected a text or a whole number, a class")
    text = str(value).strip()
    if not text:
        raise ValueError("no label")
    if len(text) > LONGEST_LABEL:
        raise ValueError(f"a label of {len(text):,} characters is no class: {shown(text[:40])}...")
    return text


def known_label(value: object) -> str | None:
    """As `label_text`, but None where nothing is said."""
    if isinstance(value, str | bytes):
        return label_text(value) if value.strip() else None
    return None if value is None or value != value else label_text(value)


def part_of(value: object) -> str:
    """Which part a word means; ValueError for others."""
    text = "" if value is None else str(value).strip()
    found = PART_NAMES.get(text.lower())
    if found is None:
        wrong = f"split {shown(text[:40])}" if text else "no split"
        raise ValueError(
            f"{wrong}; expected train, test or val. Where the column says something else: "
            "--columns split= (columns='split=' in Python)"
        )
    return found
