"""Which images a run reads and how, and the images themselves, labelled and in memory."""

from __future__ import annotations

import difflib
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from deepaa.data.arrays import DATASETS, read_items, read_npz, read_torchvision, stacked
from deepaa.data.embedded import load_embedded
from deepaa.data.folder import list_images
from deepaa.data.image_file import DEFAULT_READING, Pixels, Reading, check_size, listed, shown
from deepaa.data.scan import ScanReport, read_images
from deepaa.data.splits import SearchSubset, check_labels
from deepaa.ops import check_images
from deepaa.runs import from_plain, to_plain

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


@dataclass(frozen=True)
class DataSpec:
    """The images of a run: where they lie and how their files are read.

    Two equal specs mean the same images as long as the files stay the same. `from_options` makes
    one of what a user says, `load` reads the images, `to_json` and `from_json` are for config.json.
    Use `dataclasses.replace` to say that a folder has moved.
    """

    data: str | None = None
    """None or "embedded" for the part of CIFAR-10 that comes with the package; "cifar10",
    "cifar100" or another data set by torchvision's name, with or without "torchvision:"; an image
    folder with a folder per class, or with train and test folders that hold those; an .npz file
    with x_train, y_train, x_test, y_test, or x, y, or images, labels: uint8 (N, H, W, 3),
    (N, 3, H, W) or (N, H, W). Write ./cifar10 for a folder of that name."""
    size: int | None = None
    """Side of the square images: the shorter side is resized to it and the middle cut out. None
    keeps images that all have one size of up to 512 pixels a side; others get 224."""
    root: str | None = None
    """Where torchvision's data sets lie; "data" by default."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """Whether bad files of a folder stop the reading, which names them, or are left out and listed
    in the report, if they are at most 1 %. All are decoded first."""
    outside_links: bool = False
    """Whether links that lead out of an image folder are followed."""
    reading: Reading = DEFAULT_READING
    """How image files become pixels."""
    subset_sizes: tuple[int, int, int] | None = None
    """Where a search read only a part of a large folder: for splits of these sizes."""

    def __post_init__(self) -> None:
        """Check the values that a user can get wrong."""
        if self.size is not None:
            check_size(self.size)
        if self.on_bad_image not in ("stop", "skip"):
            raise ValueError(f"--on-bad-image should be stop or skip, got {self.on_bad_image!r}")

    @classmethod
    def from_options(
        cls,
        data: str | Path | None = None,
        *,
        root: str | Path | None = None,
        read: Sequence[str] = (),
        **options: Any,
    ) -> DataSpec:
        """What the options of a command mean, with paths that hold from every working folder.

        Args:
            read: What `--read` says, NAME=VALUE each.
            options: Other fields.
        """
        reading = Reading.parse(read) if read else DEFAULT_READING
        return cls(
            absolute_source(data), root=absolute_root(root, data), reading=reading, **options
        )

    def load(
        self, *, split: str = "train", download: bool = False, subset: SearchSubset | None = None
    ) -> LabelledImages:
        """One part of the data set, as RGB images of one size.

        Grey images are repeated to three channels. Image files are read as `to_rgb` says. Where all
        images would take more than 60 % of the free memory, a MemoryError says so first.

        Args:
            split: "train" or "test".
            download: Fetch a torchvision data set that is not there.
            subset: Of a folder with more images than this, only so many and a few to spare are
                decoded; `subset_sizes` says so.
        """
        if split not in ("train", "test"):
            raise ValueError(f"split should be 'train' or 'test', got {split!r}")
        if self.data is None or self.data == EMBEDDED:
            return _load_embedded(split, self.size)
        if (name := torchvision_name(self.data)) is not None:
            root = Path(self.root or "data")
            read = read_torchvision(name, split, root, self.size, download=download)
            return _labelled(*read, _SHORT.get(name, name), split)
        path = Path(self.data)
        if path.is_file() and path.suffix.lower() == ".npz":
            return _labelled(*read_npz(path, split, self.size), path.stem, split)
        if path.is_dir():
            return self._load_folder(path, split, subset)
        raise _unknown(self.data)

    def _load_folder(self, path: Path, split: str, subset: SearchSubset | None) -> LabelledImages:
        tree = list_images(path, split, outside_links=self.outside_links)
        sizes = None
        places = None if subset is None else subset.choose(tree.labels, tree.class_names)
        if subset is not None and places is not None:
            enough = f"{len(places):,} of {len(tree.files):,} images are enough"
            _log.warning("%s: %s, and no others are read", shown(path), enough)
            sizes, tree = subset.part_sizes(tree.labels), tree.subset(places)
        images, labels, report = read_images(tree, self.size, self.reading, self.on_bad_image)
        for line in report.lines():
            _log.warning("%s: %s", report.place, line)
        name = path.resolve().name
        data = _labelled(images, torch.tensor(labels), tree.class_names, name, split)
        return data._replace(report=report, subset_sizes=sizes)

    def subset(self, seed: int) -> SearchSubset | None:
        """What the run with this seed has read of its folder; None for all of it."""
        return None if self.subset_sizes is None else SearchSubset(self.subset_sizes, seed)

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; `from_json` gives the spec back."""
        return to_plain(self)

    @classmethod
    def from_json(cls, entry: object, place: str = "config.json") -> DataSpec:
        """The spec that `to_json` wrote; a field that is missing has its default.

        Raises:
            ValueError: Names `place` and the first field with a wrong value.
        """
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: expected an object, got {entry!r}")
        try:
            return from_plain(cls, entry, defaults=True)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error


def absolute_source(source: str | Path | None) -> str | None:
    """A source that means the same from every working folder: paths absolute, names as they are."""
    if source is None:
        return None
    return str(source) if _is_name(source) else str(Path(source).resolve())


def absolute_root(root: str | Path | None, *sources: str | Path | None) -> str | None:
    """Where data sets with a name lie, as an absolute path; None where no source is one."""
    named = any(s is not None and s != EMBEDDED and _is_name(s) for s in sources)
    return str(Path(root or "data").resolve()) if named else None


def _is_name(source: str | Path) -> bool:
    return str(source) in (EMBEDDED, *SHORT_NAMES) or not Path(source).exists()


def load_dataset(
    source: str | Path | None = None,
    *,
    split: str = "train",
    download: bool = False,
    subset: SearchSubset | None = None,
    **options: Any,
) -> LabelledImages:
    """One part of a labelled data set, see `DataSpec` for the source and the other options.

    A `Path` is a folder or a file, also where a data set has the same name.
    """
    name = str(source.absolute()) if isinstance(source, Path) else source
    return DataSpec(name, **options).load(split=split, download=download, subset=subset)


def as_images(data: object) -> LabelledImages:
    """The labelled images that an object holds or names.

    Args:
        data: A source for `load_dataset`; a torch data set of PIL images or uint8 (C, H, W), each
            with its class; (images, labels); or labelled images.
    """
    if isinstance(data, LabelledImages):
        return data
    if data is None or isinstance(data, str | Path):
        return load_dataset(data)
    kind = type(data).__name__
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__"):
            raise TypeError(f"{kind} has no length; a data set that is read by number is needed")
        return _labelled(*read_items(data, kind), kind, "train")
    if not isinstance(data, tuple | list) or len(data) != 2:
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


def torchvision_name(source: str) -> str | None:
    """The data set of torchvision that a source means by its name; None for other sources."""
    name = source.removeprefix(PREFIX)
    is_named = name in DATASETS and (name != source or not Path(source).exists())
    return SHORT_NAMES.get(source, name if is_named else None)


def _unknown(source: str) -> Exception:
    if Path(source).is_file():
        return ValueError(f"{shown(source)}: expected a folder or an .npz file")
    known = [EMBEDDED, *SHORT_NAMES, *(name for name in DATASETS if name not in _SHORT)]
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(source.removeprefix(PREFIX).lower(), by_lower)
    hint = f"; did you mean {' or '.join(by_lower[name] for name in near)}?" if near else "."
    return FileNotFoundError(
        f"{shown(source)}: no such folder, .npz file or data set{hint} "
        f"Data sets are {', '.join(known)}"
    )


def _load_embedded(split: str, size: int | None) -> LabelledImages:
    train_images, train_labels, test_images, test_labels, names = load_embedded()
    is_train = split == "train"
    pixels = (train_images if is_train else test_images).numpy()
    if size is not None:
        pixels = stacked(pixels.transpose(0, 2, 3, 1), size, EMBEDDED)
    return _labelled(pixels, train_labels if is_train else test_labels, names, EMBEDDED, split)


def _labelled(
    pixels: Pixels, labels: Tensor, class_names: tuple[str, ...], name: str, split: str
) -> LabelledImages:
    """Checks that hold for every source, and the fingerprint."""
    check_labels(labels, len(class_names), f"{name}: labels")
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
