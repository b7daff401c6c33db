"""Images and labels in .npz files, read without ever running what a file holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepaa.data.image_file import Pixels, shown
from deepaa.data.image_stack import ImageStack, check_memory
from deepaa.data.splits import check_labels

Pairs = tuple[tuple[str, str], ...]
TRAIN: Pairs = (("x_train", "y_train"), ("train_images", "train_labels"))
TEST: Pairs = (("x_test", "y_test"), ("test_images", "test_labels"))
WHOLE: Pairs = (("x", "y"), ("images", "labels"))
"""Names of the images and their labels; a file without parts is all training data."""


class Arrays:
    """The arrays of an open .npz file."""

    def __init__(self, data: np.lib.npyio.NpzFile) -> None:
        """`data` was opened with allow_pickle=False."""
        self._data = data
        self.names: list[str] = list(data.files)

    def images(self, name: str) -> Pixels:
        """uint8 (N, H, W, 1 or 3), whichever way it is stored.

        Axis 1 holds the channels where it has 1 or 3 entries and the last axis has not.
        """
        array = self._read(name)
        if array.dtype != np.uint8:
            raise ValueError(f"{name} holds {array.dtype}, expected uint8")
        if array.ndim == 3:
            array = array[..., None]
        elif array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
            array = array.transpose(0, 2, 3, 1)
        if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape:
            raise ValueError(
                f"{name} has shape {self._data[name].shape}, "
                "expected (N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W)"
            )
        return array

    def labels(self, name: str) -> npt.NDArray[np.int64]:
        """int64 (N,), also from (N, 1)."""
        array = self._read(name)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(
                f"{name} holds {array.dtype} of shape {array.shape}, "
                "expected the number of each image's class: integers (N,)"
            )
        if array.dtype == np.uint64 and len(array) and array.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{name} holds {array.max()}, which is not the number of a class")
        return array.astype(np.int64)

    def first_of(self, pairs: Pairs) -> tuple[str, str] | None:
        """The first pair of names of which the file has both arrays."""
        return next((pair for pair in pairs if set(pair) <= set(self.names)), None)

    def strings(self, name: str) -> tuple[str, ...]:
        """The entries of a one-dimensional array of strings."""
        array = self._read(name)
        if array.ndim != 1 or array.dtype.kind != "U":
            raise ValueError(f"{name} holds {array.dtype} of shape {array.shape}, expected strings")
        return tuple(str(entry) for entry in array)

    def _read(self, name: str) -> npt.NDArray[Any]:
        entries = self._data.zip.infolist() if self._data.zip else []
        stored = {entry.filename: entry.file_size for entry in entries}
        check_memory(stored.get(f"{name}.npy", 0), f"array {name}")
        found: npt.NDArray[Any] = self._data[name]
        return found


@contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """The file's arrays; whatever is wrong with it is a ValueError that begins with its path."""
    try:
        with np.load(path, allow_pickle=False) as data:
            if not isinstance(data, np.lib.npyio.NpzFile):
                raise ValueError("not an .npz file")
            yield Arrays(data)
    except MemoryError as error:
        raise MemoryError(f"{shown(path)}: {error}") from error
    except Exception as error:  # zipfile, zlib and numpy each raise their own
        raise ValueError(f"{shown(path)}: {error}") from error


def rgb_of(image: Pixels) -> Pixels:
    """(H, W, 3) of (H, W, 1 or 3): one channel is repeated."""
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))


def stacked(rows: Sequence[Pixels] | Pixels, size: int | None, place: str) -> Pixels:
    """(N, 3, H, W) of N images (H, W, 1 or 3), all of one size."""
    stack = ImageStack(len(rows), size, place)
    for row in rows:
        stack.add(rgb_of(row))
    return stack.images()


def read_npz(path: Path, split: str, size: int | None) -> tuple[Pixels, Tensor, tuple[str, ...]]:
    """uint8 (N, 3, H, W), int64 (N,) and the class names of one part of a file."""
    if split not in ("train", "test"):
        raise ValueError(f"split of an .npz file should be 'train' or 'test', got {split!r}")
    pairs = (*TRAIN, *WHOLE) if split == "train" else TEST
    with open_npz(path) as arrays:
        pair = arrays.first_of(pairs)
        if pair is None:
            choices = " or ".join(f"{x} and {y}" for x, y in pairs)
            raise ValueError(f"no {choices} for split {split!r}; it has {arrays.names}")
        x, y = pair
        images, labels = arrays.images(x), torch.from_numpy(arrays.labels(y))
        if len(images) != len(labels):
            raise ValueError(f"{x} has {len(images)} images, but {y} has {len(labels)} labels")
        if "class_names" in arrays.names:
            names = arrays.strings("class_names")
            check_labels(labels, len(names), y)
        else:
            classes = check_labels(labels, place=y)
            if split == "test" and (train := arrays.first_of(TRAIN)):
                others = torch.from_numpy(arrays.labels(train[1]))
                classes = max(classes, check_labels(others, place=train[1]))
            names = tuple(str(c) for c in range(classes))
    return stacked(images, size, shown(path)), labels, names
