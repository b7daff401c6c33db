"""Labelled data sets in memory: embedded, official, torchvision's, image folders and arrays."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from deepaa.arrays import TEST, TRAIN, WHOLE, Arrays, open_npz, rgb_of
from deepaa.data import load_embedded
from deepaa.folder import list_images
from deepaa.image_files import (
    MAX_PIXELS,
    WHITE,
    Colour,
    Pixels,
    Reading,
    check_size,
    reading_of,
    shown,
)
from deepaa.scan import LIMIT_BAD, OnBadImage, ScanReport, read_images
from deepaa.splits import Needed, check_labels
from deepaa.stack import ImageStack
from deepaa.torchvision_source import is_dataset, nearest_names, read_items, read_torchvision

EMBEDDED = "embedded"
SHORT_NAMES = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
"""Names of their own for two of torchvision's data sets."""
PREFIX = "torchvision:"

_log = logging.getLogger(__name__)


class LabelledImages(NamedTuple):
    """A labelled data set, or one part of it, in memory."""

    images: Tensor
    """uint8 (N, 3, H, W) RGB, on the CPU."""
    labels: Tensor
    """int64 (N,), in 0..C-1."""
    class_names: tuple[str, ...]
    """C names; those without a name are called by their number."""
    name: str
    """What the source is called in records, such as "cifar10" or the name of a folder."""
    fingerprint: str
    """sha256 over shapes, pixels and labels, in hexadecimal."""
    report: ScanReport | None = None
    """For image folders: which files were left out and what else was noticed."""
    reads: tuple[int, int, int] | None = None
    """For folders with more images: the sizes of the parts of a search for which these suffice."""


def load_dataset(
    source: str | Path | None = None,
    *,
    split: str = "train",
    root: str | Path | None = None,
    size: int | None = None,
    download: bool = False,
    on_bad_image: OnBadImage = "stop",
    limit_bad: float = LIMIT_BAD,
    max_pixels: int = MAX_PIXELS,
    alpha_colour: Colour = WHITE,
    apply_exif: bool = True,
    outside_links: bool = False,
    needed: Needed | None = None,
) -> LabelledImages:
    """One part of a labelled data set, as RGB images of one size.

    Grey images are repeated to three channels. Image files are read as `to_rgb` says. Where all
    images would take more than 60 % of the free memory, a MemoryError says so first.

    Args:
        source: None or "embedded" for the part of CIFAR-10 that comes with the package; "cifar10",
            "cifar100" or the name of a torchvision data set, with or without "torchvision:"; an
            image folder with a folder per class, or with train and test folders that hold those;
            an .npz file with x_train, y_train, x_test, y_test, or x, y, or images, labels: uint8
            (N, H, W, 3), (N, 3, H, W) or (N, H, W). Write ./cifar10 for a folder of that name.
        split: "train", "test", or another part that the source has.
        root: Where torchvision's data sets lie; "data" by default.
        size: Side of the square images: the shorter side is resized to it and the middle cut out.
            None keeps images that all have one size of up to 512 pixels a side; others get 224.
        download: Fetch a torchvision data set that is not there.
        on_bad_image: Whether bad files of a folder "stop" the reading, which names them, or are
            left out ("skip") and listed in `report`. All are looked at first.
        limit_bad: A larger share of bad files stops in any case.
        max_pixels: Larger image files are bad.
        alpha_colour: What shows through transparent pixels of image files.
        apply_exif: Turn image files as their EXIF orientation says.
        outside_links: Follow links that lead out of an image folder.
        needed: Of a folder with more images than this, only so many and a few to spare are looked
            at and read; `reads` says so.
    """
    check_size(size)
    if source is None or source == EMBEDDED:
        return _embedded(split, size)
    path = Path(source)
    name = _torchvision_name(source)
    if name is not None:
        short = next((key for key, value in SHORT_NAMES.items() if value == name), name)
        read = read_torchvision(name, split, Path(root or "data"), size, download=download)
        return _labelled(*read, short, split)
    if path.is_file() and path.suffix.lower() == ".npz":
        return _arrays(path, split, size)
    if not path.is_dir():
        raise _unknown(source)
    reading = Reading(max_pixels, alpha_colour, apply_exif)
    tree = list_images(path, split, outside_links=outside_links)
    reads = None
    if needed is not None:
        places = needed.choose(tree.labels, tree.class_names)
        if places is not None:
            reads, tree = needed.of(tree.labels), tree.only(places)
    for note in tree.notes:
        _log.warning("%s: %s", shown(path), note)
    found = read_images(tree, size, reading, on_bad_image=on_bad_image, limit_bad=limit_bad)
    for line in found.report.lines():
        _log.warning("%s: %s", found.report.place, line)
    data = _labelled(
        found.images, torch.tensor(found.labels), tree.class_names, path.resolve().name, split
    )
    return data._replace(report=found.report, reads=reads)


def read_dataset(dataset: Dataset[Any]) -> LabelledImages:
    """All items of a torch data set: PIL images or uint8 (C, H, W), each with its class."""
    name = type(dataset).__name__
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"{name} has no length; a data set that is read by number is needed")
    return _labelled(*read_items(dataset, name), name, "train")


def as_images(data: object, needed: Needed | None = None) -> LabelledImages:
    """A source for `load_dataset`, a torch data set, (images, labels), or labelled images."""
    if isinstance(data, LabelledImages):
        return data
    if data is None or isinstance(data, str | Path):
        return load_dataset(data, needed=needed)
    if isinstance(data, Dataset):
        return read_dataset(data)
    if not isinstance(data, tuple | list) or len(data) != 2:
        kind = type(data).__name__
        raise TypeError(
            f"data should be a source, a path, a torch Dataset or (images, labels), got {kind}"
        )
    images, labels = torch.as_tensor(data[0]).cpu(), torch.as_tensor(data[1]).cpu()
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images should be uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}"
        )
    if labels.shape != (len(images),):
        raise ValueError(f"{len(images)} images, but labels of shape {tuple(labels.shape)}")
    names = tuple(str(i) for i in range(check_labels(labels)))
    labels = labels.long()
    return LabelledImages(images, labels, names, "tensors", fingerprint(images, labels))


def needed_again(source: Mapping[str, Any], seed: int) -> Needed | None:
    """What a run has read of a folder, as its entry about its source says; None for all of it."""
    reads = source.get("reads")
    return None if reads is None else Needed(tuple(reads), seed)


def file_choices(source: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `load_dataset` about files, as a run's entry about its source says."""
    return {
        "on_bad_image": source.get("on_bad_image", "stop"),
        "outside_links": source.get("outside_links", False),
        **reading_of(source)._asdict(),
    }


def lasting(source: str | Path | None) -> str | None:
    """A source that means the same from another folder; a name stays a name."""
    if source is None:
        return None
    named = str(source) in (EMBEDDED, *SHORT_NAMES)
    return str(source) if named or not Path(source).exists() else str(Path(source).resolve())


def fingerprint(images: Tensor, labels: Tensor) -> str:
    """The sha256 over shapes, pixels and labels that identifies a data set on any machine."""
    digest = hashlib.sha256(f"{tuple(images.shape)} {tuple(labels.shape)}".encode())
    for start in range(0, len(images), 1024):  # a part at a time, should a copy be needed
        digest.update(images[start : start + 1024].contiguous().numpy().tobytes())
    digest.update(labels.to(torch.int64).numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def _torchvision_name(source: str | Path) -> str | None:
    """The class of torchvision.datasets that the source means, if it means one."""
    if not isinstance(source, str):
        return None
    if source in SHORT_NAMES:
        return SHORT_NAMES[source]
    if source.startswith(PREFIX):
        name = source.removeprefix(PREFIX)
        if not is_dataset(name):
            raise _unknown(source)
        return name
    return source if not Path(source).exists() and is_dataset(source) else None


def _unknown(source: str | Path) -> Exception:
    if Path(source).is_file():
        return ValueError(f"{shown(source)}: expected a folder or an .npz file")
    known = [EMBEDDED, *SHORT_NAMES]
    near = nearest_names(str(source).removeprefix(PREFIX), known)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return FileNotFoundError(
        f"{shown(source)}: no such folder, .npz file or data set{hint} "
        f"Data sets are {', '.join(known)} and the classes of torchvision.datasets"
    )


def _embedded(split: str, size: int | None) -> LabelledImages:
    stored = load_embedded()
    if split not in ("train", "test"):
        raise ValueError(f"embedded data has the splits 'train' and 'test', got {split!r}")
    train = split == "train"
    images = stored.train_images if train else stored.test_images
    labels = stored.train_labels if train else stored.test_labels
    rows = images.permute(0, 2, 3, 1).numpy()
    pixels = images.numpy() if size is None else _stacked(rows, size, EMBEDDED)
    return _labelled(pixels, labels, stored.class_names, EMBEDDED, split)


def _arrays(path: Path, split: str, size: int | None) -> LabelledImages:
    with open_npz(path) as arrays:
        x, y = _pair(arrays, split)
        images, labels = arrays.images(x), torch.from_numpy(arrays.labels(y))
        if len(images) != len(labels):
            raise ValueError(f"{x} has {len(images)} images, but {y} has {len(labels)} labels")
        if "class_names" in arrays.names:
            names = arrays.strings("class_names")
            check_labels(labels, len(names), y)
        else:
            classes = check_labels(labels, place=y)
            if split != "train" and (pair := _present(arrays, TRAIN)):
                train = torch.from_numpy(arrays.labels(pair[1]))
                classes = max(classes, check_labels(train, place=pair[1]))
            names = tuple(str(c) for c in range(classes))
    pixels = _stacked(images, size, shown(path))
    return _labelled(pixels, labels, names, path.stem, split)


def _present(arrays: Arrays, pairs: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    return next((pair for pair in pairs if set(pair) <= set(arrays.names)), None)


def _pair(arrays: Arrays, split: str) -> tuple[str, str]:
    """The names of the images and labels of a split."""
    if split not in ("train", "test"):
        raise ValueError(f"split of an .npz file should be 'train' or 'test', got {split!r}")
    pairs = (*TRAIN, *WHOLE) if split == "train" else TEST
    pair = _present(arrays, pairs)
    if pair is None:
        choices = " or ".join(f"{x} and {y}" for x, y in pairs)
        raise ValueError(f"no {choices} for split {split!r}; it has {arrays.names}")
    return pair


def _stacked(rows: Pixels, size: int | None, place: str) -> Pixels:
    """(N, 3, H, W) of (N, H, W, 1 or 3)."""
    stack = ImageStack(len(rows), size, place)
    for row in rows:
        stack.add(rgb_of(row))
    return stack.images()


def _labelled(
    pixels: Pixels, labels: Tensor, class_names: tuple[str, ...], name: str, split: str
) -> LabelledImages:
    """Checks that hold for every source, and the fingerprint."""
    check_labels(labels, len(class_names), f"{shown(name)}: labels")
    if len(class_names) < 2:
        raise ValueError(f"{shown(name)}: only one class, {class_names[0]}; it takes at least two")
    counts = labels.bincount(minlength=len(class_names)).tolist()
    missing = [shown(c) for c, n in zip(class_names, counts, strict=True) if not n]
    if missing and split == "train":  # as where labels count from 1
        raise ValueError(
            f"{shown(name)}: {len(missing)} of {len(class_names)} classes have no image: "
            f"{', '.join(missing[:10])}; labels should count from 0 without gaps"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    return LabelledImages(images, labels, class_names, name, fingerprint(images, labels))
