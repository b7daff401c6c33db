"""Which images a run reads and how, and the images themselves, labelled and in memory."""

from __future__ import annotations

import difflib
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from deepaa.data import arrays
from deepaa.data.embedded import load_embedded
from deepaa.data.folder import list_images
from deepaa.data.image_file import DEFAULT_READING, Pixels, Reading, check_size, listed, shown
from deepaa.data.scan import OnBadImage, ScanReport, read_images
from deepaa.data.splits import NoTestPartError, SearchSubset, Sizes, check_labels, stratified_splits
from deepaa.ops import check_images
from deepaa.runs import from_plain, to_plain

EMBEDDED = "embedded"
HOLDOUT = 0.1
"""Share that is held out of images without a test part."""
HOLDOUT_SEED = 0
"""The same images are held out whatever the seed of a training."""

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
    subset_sizes: Sizes | None = None
    """Where only a part of a folder was read: the sizes of the splits for which it is enough."""


class TrainTest(NamedTuple):
    """Images to train on, and others to test on."""

    train: LabelledImages
    test: LabelledImages
    how: str
    """Where the test images come from, for the record."""


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
    on_bad_image: OnBadImage = "stop"
    """Whether bad files of a folder stop the reading, which names them, or are left out and listed
    in the report, if they are at most 1 %. All are decoded first."""
    outside_links: bool = False
    """Whether links that lead out of an image folder are followed."""
    reading: Reading = DEFAULT_READING
    """How image files become pixels."""
    subset_sizes: Sizes | None = None
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

        `read` is what `--read` says, NAME=VALUE each; `options` are other fields.
        """
        reading = Reading.parse(read) if read else DEFAULT_READING
        root = absolute_root(root, data)
        return cls(absolute_source(data), root=root, reading=reading, **options)

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
        if (name := arrays.torchvision_name(self.data)) is not None:
            root = Path(self.root or "data")
            read = arrays.read_torchvision(name, split, root, self.size, download=download)
            return _labelled(*read, arrays.SHORT_NAMES.get(name, name), split)
        path = Path(self.data)
        if path.is_file() and path.suffix.lower() == ".npz":
            return _labelled(*arrays.read_npz(path, split, self.size), path.stem, split)
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
        name = path.resolve().name
        data = _labelled(images, torch.tensor(labels), tree.class_names, name, split)
        return data._replace(report=report, subset_sizes=sizes)

    def load_test(self, *, download: bool = False) -> LabelledImages | None:
        """The data set's own test images; None where it has none."""
        try:
            return self.load(split="test", download=download)
        except NoTestPartError:
            return None

    def load_train_and_test(
        self,
        *,
        test: str | Path | None = None,
        holdout: float | None = None,
        download: bool = False,
    ) -> TrainTest:
        """The training images, and the images to test on.

        Args:
            test: Another source for the test images, with classes of the same names.
            holdout: Test on this share of the training images instead, the same for every seed. A
                data set without a test part has .1 of them held out.
        """
        if holdout is not None and not 0 < holdout < 1:
            raise ValueError(f"holdout should be a share between 0 and 1, got {holdout}")
        if test is not None and holdout is not None:
            raise ValueError("either other test images or a held-out share, not both")
        train = self.load(download=download)
        if test is not None:
            other = replace(self, data=str(test))
            found = other.load_test(download=download) or other.load(download=download)
            found = _with_classes_of(train, found, shown(test))
            return checked(TrainTest(train, found, f"given: {found.name}"))
        if holdout is None:
            try:
                official = self.load(split="test", download=download)
                return checked(TrainTest(train, official, "the test part of the data set"))
            except NoTestPartError as error:
                _log.warning("%s; %g of the training images are held out", error, HOLDOUT)
        return held_out(train, HOLDOUT if holdout is None else holdout)

    def subset(self, seed: int) -> SearchSubset | None:
        """What the run with this seed has read of its folder; None for all of it."""
        return None if self.subset_sizes is None else SearchSubset(self.subset_sizes, seed)

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; `from_json` gives the spec back."""
        return to_plain(self)

    @classmethod
    def from_json(cls, entry: object, place: str = "config.json") -> DataSpec:
        """The spec that `to_json` wrote; what is wrong is a ValueError that begins with `place`."""
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
    return str(source) in (EMBEDDED, *arrays.SHORT_NAMES.values()) or not Path(source).exists()


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
    """The images of a source for `load_dataset`, of (images, labels), or of a torch data set.

    The items of a torch data set are PIL images or uint8 (C, H, W), each with its class.
    """
    if isinstance(data, LabelledImages):
        return data
    if data is None or isinstance(data, str | Path):
        return load_dataset(data)
    kind = type(data).__name__
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__"):
            raise TypeError(f"{kind} has no length; a data set that is read by number is needed")
        return _labelled(*arrays.read_items(data, kind), kind, "train")
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


def _unknown(source: str) -> Exception:
    if Path(source).is_file():
        return ValueError(f"{shown(source)}: expected a folder or an .npz file")
    known = [EMBEDDED, *(arrays.SHORT_NAMES.get(name, name) for name in arrays.DATASETS)]
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(source.removeprefix(arrays.TORCHVISION).lower(), by_lower)
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
        pixels = arrays.stacked(pixels.transpose(0, 2, 3, 1), size, EMBEDDED)
    return _labelled(pixels, train_labels if is_train else test_labels, names, EMBEDDED, split)


def _labelled(
    pixels: Pixels, labels: Tensor, class_names: tuple[str, ...], name: str, split: str
) -> LabelledImages:
    """Checks that hold for every source, and the fingerprint."""
    check_labels(labels, len(class_names), f"{name}: labels")
    if len(class_names) < 2:
        raise ValueError(f"{shown(name)}: only one class, {class_names[0]}; it takes at least two")
    missing = _without_images(class_names, labels)
    if missing and split == "train":  # as where labels count from 1
        raise ValueError(
            f"{shown(name)}: {len(missing)} of {len(class_names)} classes have no image: "
            f"{listed(missing)}; labels should count from 0 without gaps"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    return LabelledImages(images, labels, class_names, name, fingerprint(images, labels))


def held_out(data: LabelledImages, share: float) -> TrainTest:
    """A stratified share of the images as test images; the rest trains."""
    n, classes = len(data.labels), len(data.class_names)
    count = max(classes, round(share * n))
    if n - count < classes:
        raise ValueError(
            f"{data.name}: a held-out share of {share:g} leaves {max(0, n - count)} of {n} images, "
            f"too few to train {classes} classes"
        )
    sizes, names = (n - count, 0, count), data.class_names
    train, _, test = stratified_splits(data.labels, sizes, HOLDOUT_SEED, class_names=names)
    how = f"{share:g} of the training images, held out"
    return TrainTest(_subset(data, train), _subset(data, test), how)


def _subset(data: LabelledImages, indices: Tensor) -> LabelledImages:
    indices = indices.sort().values
    images, labels = data.images[indices], data.labels[indices]
    return data._replace(images=images, labels=labels, fingerprint=fingerprint(images, labels))


def _with_classes_of(train: LabelledImages, found: LabelledImages, place: str) -> LabelledImages:
    """Test images of another source, their labels counted as the training images' are."""
    names = found.class_names
    if names == tuple(map(str, range(len(train.class_names)))) and names != train.class_names:
        _log.warning("%s: labels without names count as the training images' do", place)
        names = train.class_names
    if unknown := [name for name in names if name not in train.class_names]:
        raise ValueError(
            f"{place}: {len(unknown)} classes that the training images do not have: "
            f"{listed(unknown)}; they have {listed(train.class_names)}"
        )
    numbers = torch.tensor([train.class_names.index(name) for name in names])
    return found._replace(labels=numbers[found.labels], class_names=train.class_names)


def checked(both: TrainTest) -> TrainTest:
    """Both parts, if they have the same classes and sizes; classes without tests are named."""
    train, test, _ = both
    if len(train.class_names) != len(test.class_names):
        counts = f"{len(train.class_names)} classes to train on, but {len(test.class_names)}"
        raise ValueError(f"{train.name}: {counts} to test on")
    if train.images.shape[1:] != test.images.shape[1:]:
        sizes = [" x ".join(map(str, part.images.shape[2:])) for part in (train, test)]
        found = f"training images are {sizes[0]}, test images {sizes[1]} pixels"
        raise ValueError(f"{train.name}: {found}; bring both to one size with --size")
    if absent := absent_classes(train.class_names, test.labels):
        _log.warning("%s: %s", train.name, absent)
    return both


def absent_classes(class_names: Sequence[str], labels: Tensor) -> str | None:
    """A line about the classes that no test image has; None where each has some."""
    if not (absent := _without_images(class_names, labels)):
        return None
    classes = f"{len(absent)} of {len(class_names)} classes: {listed(absent)}"
    return f"no test images of {classes}; the test says nothing about them"


def _without_images(class_names: Sequence[str], labels: Tensor) -> list[str]:
    present = set(labels.tolist())
    return [name for i, name in enumerate(class_names) if i not in present]
