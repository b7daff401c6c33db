"""Labelled data sets in memory: embedded, official, torchvision's, image folders and arrays."""

from __future__ import annotations

import difflib
import hashlib
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from deepaa.data.embedded import load_embedded
from deepaa.data.folder import list_images, listed
from deepaa.data.image_file import (
    MAX_PIXELS,
    WHITE,
    Colour,
    Pixels,
    Reading,
    check_size,
    shown,
)
from deepaa.data.npz import read_npz, stacked
from deepaa.data.scan import read_images
from deepaa.data.scan_report import LIMIT_BAD, OnBadImage, ScanReport
from deepaa.data.splits import SearchSubset, check_labels
from deepaa.data.torchvision import DATASETS, read_items, read_torchvision
from deepaa.ops import check_images

EMBEDDED = "embedded"
SHORT_NAMES = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
"""Names of their own for two of torchvision's data sets."""
_SHORT = {name: short for short, name in SHORT_NAMES.items()}
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
    subset_sizes: tuple[int, int, int] | None = None
    """Where only a part of a folder was read: the sizes of the splits for which it is enough."""


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
    subset: SearchSubset | None = None,
) -> LabelledImages:
    """One part of a labelled data set, as RGB images of one size.

    Grey images are repeated to three channels. Image files are read as `to_rgb` says. Where all
    images would take more than 60 % of the free memory, a MemoryError says so first.

    Args:
        source: None or "embedded" for the part of CIFAR-10 that comes with the package; "cifar10",
            "cifar100" or another name of `DATASETS`, with or without "torchvision:"; an image
            folder with a folder per class, or with train and test folders that hold those;
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
        subset: Of a folder with more images than this, only so many and a few to spare are looked
            at and read; `subset_sizes` says so.
    """
    check_size(size)
    name = torchvision_name(source)
    if source is None or source == EMBEDDED:
        return _labelled(*_embedded(split, size), EMBEDDED, split)
    if name is not None:
        read = read_torchvision(name, split, Path(root or "data"), size, download=download)
        return _labelled(*read, _SHORT.get(name, name), split)
    path = Path(source)
    if path.is_file() and path.suffix.lower() == ".npz":
        return _labelled(*read_npz(path, split, size), path.stem, split)
    if not path.is_dir():
        raise _unknown(source)
    reading = Reading(max_pixels, alpha_colour, apply_exif)
    tree = list_images(path, split, outside_links=outside_links)
    subset_sizes = None
    if subset is not None:
        places = subset.choose(tree.labels, tree.class_names)
        if places is not None:
            _log.warning(
                "%s: %s of %s images are enough, and no others are read",
                shown(path),
                f"{len(places):,}",
                f"{len(tree.files):,}",
            )
            subset_sizes, tree = subset.part_sizes(tree.labels), tree.subset(places)
    for note in tree.notes:
        _log.warning("%s: %s", shown(path), note)
    images, labels, report = read_images(
        tree, size, reading, on_bad_image=on_bad_image, limit_bad=limit_bad
    )
    for line in report.lines():
        _log.warning("%s: %s", report.place, line)
    name = path.resolve().name
    data = _labelled(images, torch.tensor(labels), tree.class_names, name, split)
    return data._replace(report=report, subset_sizes=subset_sizes)


def read_dataset(dataset: Dataset[Any]) -> LabelledImages:
    """All items of a torch data set: PIL images or uint8 (C, H, W), each with its class."""
    name = type(dataset).__name__
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"{name} has no length; a data set that is read by number is needed")
    return _labelled(*read_items(dataset, name), name, "train")


def as_images(data: object, subset: SearchSubset | None = None) -> LabelledImages:
    """A source for `load_dataset`, a torch data set, (images, labels), or labelled images."""
    if isinstance(data, LabelledImages):
        return data
    if data is None or isinstance(data, str | Path):
        return load_dataset(data, subset=subset)
    if isinstance(data, Dataset):
        return read_dataset(data)
    if not isinstance(data, tuple | list) or len(data) != 2:
        kind = type(data).__name__
        raise TypeError(
            f"data should be a source, a path, a torch Dataset or (images, labels), got {kind}"
        )
    images, labels = torch.as_tensor(data[0]).cpu(), torch.as_tensor(data[1]).cpu()
    check_images(images)
    if images.shape[1] not in (1, 3):
        shape = tuple(images.shape)
        raise ValueError(f"images should be (N, C, H, W) with 1 or 3 channels, got {shape}")
    if labels.shape != (len(images),):
        raise ValueError(f"{len(images)} images, but labels of shape {tuple(labels.shape)}")
    names = tuple(str(i) for i in range(check_labels(labels)))
    labels = labels.long()
    return LabelledImages(images, labels, names, "tensors", fingerprint(images, labels))


def fingerprint(images: Tensor, labels: Tensor) -> str:
    """The sha256 over shapes, pixels and labels that identifies a data set on any machine."""
    digest = hashlib.sha256(f"{tuple(images.shape)} {tuple(labels.shape)}".encode())
    for start in range(0, len(images), 1024):  # a part at a time, should a copy be needed
        digest.update(images[start : start + 1024].contiguous().numpy().tobytes())
    digest.update(labels.to(torch.int64).numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def torchvision_name(source: str | Path | None) -> str | None:
    """The data set of torchvision that a source means by its name; None for other sources."""
    if not isinstance(source, str):
        return None
    if source in SHORT_NAMES:
        return SHORT_NAMES[source]
    name = source.removeprefix(PREFIX)
    if name in DATASETS and (name != source or not Path(source).exists()):
        return name
    return None


def _unknown(source: str | Path) -> Exception:
    if Path(source).is_file():
        return ValueError(f"{shown(source)}: expected a folder or an .npz file")
    known = [EMBEDDED, *SHORT_NAMES, *(name for name in DATASETS if name not in _SHORT)]
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(source).removeprefix(PREFIX).lower(), by_lower)
    hint = f"; did you mean {' or '.join(by_lower[name] for name in near)}?" if near else "."
    return FileNotFoundError(
        f"{shown(source)}: no such folder, .npz file or data set{hint} "
        f"Data sets are {', '.join(known)}"
    )


def _embedded(split: str, size: int | None) -> tuple[Pixels, Tensor, tuple[str, ...]]:
    stored = load_embedded()
    if split not in ("train", "test"):
        raise ValueError(f"embedded data has the splits 'train' and 'test', got {split!r}")
    train = split == "train"
    images = stored.train_images if train else stored.test_images
    labels = stored.train_labels if train else stored.test_labels
    rows = images.permute(0, 2, 3, 1).numpy()
    pixels = images.numpy() if size is None else stacked(rows, size, EMBEDDED)
    return pixels, labels, stored.class_names


def _labelled(
    pixels: Pixels, labels: Tensor, class_names: tuple[str, ...], name: str, split: str
) -> LabelledImages:
    """Checks that hold for every source, and the fingerprint."""
    check_labels(labels, len(class_names), f"{shown(name)}: labels")
    if len(class_names) < 2:
        raise ValueError(f"{shown(name)}: only one class, {class_names[0]}; it takes at least two")
    counts = labels.bincount(minlength=len(class_names)).tolist()
    missing = [name for name, n in zip(class_names, counts, strict=True) if not n]
    if missing and split == "train":  # as where labels count from 1
        raise ValueError(
            f"{shown(name)}: {len(missing)} of {len(class_names)} classes have no image: "
            f"{listed(missing)}; labels should count from 0 without gaps"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    return LabelledImages(images, labels, class_names, name, fingerprint(images, labels))
