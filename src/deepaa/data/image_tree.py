"""The labelled image files of a source, before any of them is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from deepaa.data.image_file import Packed, shown

MOST_BYTES = 1 << 28
"""Of an image file that is inside of another: longer ones are not read."""


class ImageStore(Protocol):
    """Image files that lie in larger files; worker processes get a copy."""

    def content(self, place: int) -> bytes:
        """The bytes of the image at a place; OSError where they are not there."""

    def lengths(self, places: Sequence[int]) -> list[int]:
        """How many bytes the images at these places have."""


class ImageTree(NamedTuple):
    """Image files with their classes in a stable order: of a folder by class, then by path."""

    root: Path
    files: tuple[Path, ...]
    """Below the root; in a store they are names alone."""
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    ignored: Mapping[str, int]
    """How many entries were passed over: hidden, other suffix, outside a class, linked again."""
    groups: Tensor | None = None
    """int64 (N,): the group of each file, if they have any."""
    store: ImageStore | None = None
    """Where the files are, if they are none of their own."""
    places: tuple[int, ...] = ()
    """Of each file in the store."""
    source: str = ""
    """What lists the files, as a message may show it; nothing where it is the root."""

    @property
    def place(self) -> str:
        """What the source is called in messages."""
        return self.source or shown(self.root)

    def subset(self, indices: Sequence[int]) -> ImageTree:
        """The same with these files alone."""
        return self._replace(
            files=tuple(self.files[i] for i in indices),
            labels=tuple(self.labels[i] for i in indices),
            groups=None if self.groups is None else self.groups[list(indices)],
            places=() if self.store is None else tuple(self.places[i] for i in indices),
        )

    def names(self) -> list[bytes]:
        """The paths of the files below the root, as the system has them."""
        return [os.fsencode(file.relative_to(self.root)) for file in self.files]

    def file(self, index: int) -> Path | Packed:
        """An image for `read_image`."""
        return _file(self.files[index], self.store, self.places[index] if self.store else 0)

    def lengths(self) -> list[int]:
        """The bytes of each file; OSError where one is gone."""
        if self.store is not None:
            return self.store.lengths(self.places)
        return [file.stat().st_size for file in self.files]


class CompactFiles:
    """The files of a tree in arrays: a million Python objects would be copied to each worker."""

    def __init__(self, tree: ImageTree) -> None:
        """Names are bytes, as the system has them."""
        self.root, self.place = tree.root, tree.place
        self.names = np.array(tree.names())
        self._store, self._places = tree.store, np.array(tree.places, dtype=np.int64)

    def path(self, index: int) -> Path:
        """Where the image lies, or what it is called."""
        return self.root / os.fsdecode(bytes(self.names[index]))

    def file(self, index: int) -> Path | Packed:
        """An image for `read_image`."""
        return _file(self.path(index), self._store, self._places[index] if self._store else 0)

    def lengths(self) -> list[int]:
        """The bytes of each file; OSError where one is gone."""
        if self._store is not None:
            return self._store.lengths(self._places.tolist())
        return [self.path(index).stat().st_size for index in range(len(self.names))]


def _file(path: Path, store: ImageStore | None, place: int) -> Path | Packed:
    return path if store is None else Packed(path, partial(store.content, int(place)))
