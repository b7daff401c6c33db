"""Which images a run reads and how, and the images themselves, labelled and in memory."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepaa.data import arrays, splits
from deepaa.data.equal_images import warn_of_equal_images
from deepaa.data.folder import list_images
from deepaa.data.groups import folder_groups, given_groups, kept_groups, npz_groups
from deepaa.data.image_file import DEFAULT_READING, Pixels, Reading, check_size, shown
from deepaa.data.image_stack import stacked
from deepaa.data.parts import SearchSubset, check_enough, held_out
from deepaa.data.scan import OnBadImage, Show, read_images, read_some, show_nothing
from deepaa.data.splits import LabelledImages, NoTestPartError, Sizes, TrainTest
from deepaa.runs import from_plain, to_record

EMBEDDED = "embedded"
_log = logging.getLogger(__name__)


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
    keeps images that all have one size of up to 512 pixels a side; others get the median of their
    shorter sides, as a multiple of 4 and at most 224, and a line says so."""
    root: str | None = None
    """Where torchvision's data sets lie; "data" by default."""
    on_bad_image: OnBadImage = "stop"
    """Whether bad files of a folder stop the reading, which names them, or are left out and listed
    in the report, if they are at most three, or 1 % of more than 300. All are decoded first."""
    outside_links: bool = False
    """Whether links that lead out of an image folder are followed."""
    reading: Reading = DEFAULT_READING
    """How image files become pixels."""
    subset_sizes: Sizes | None = None
    """Where a search read only a part of a large folder: for splits of these sizes."""
    subset_judged: bool = False
    """Where a search read only a part of a large folder: whether with a judge."""
    groups: str | None = None
    """Which images belong together, so that no part has some of them and another the rest: for
    an .npz file the name of an array with an integer or text for each training image; for a folder
    a regular expression that finds the group in each path below it, by its first capture group or
    by all of it, or a .csv or .tsv file with the columns file and group."""

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
        groups: str | None = None,
        **options: Any,
    ) -> DataSpec:
        """What the options of a command mean, with paths that hold from every working folder.

        `read` is what `--read` says, NAME=VALUE each; `options` are other fields.
        """
        reading = Reading.parse(read) if read else DEFAULT_READING
        root = absolute_root(root, data)
        groups = groups and kept_groups(groups, data)
        return cls(absolute_source(data), root=root, reading=reading, groups=groups, **options)

    def load(
        self,
        *,
        split: str = "train",
        download: bool = False,
        subset: SearchSubset | None = None,
        side: int | None = None,
        show: Show = show_nothing,
    ) -> LabelledImages:
        """One part of the data set, as RGB images of one size.

        Grey images are repeated to three channels. Image files are read as `to_rgb` says. Where all
        images would take more than 60 % of the free memory, a MemoryError says so first.

        Args:
            split: "train" or "test".
            download: Fetch a torchvision data set that is not there.
            subset: Of a folder with more images than this, only so many and a few to spare are
                decoded; `subset_sizes` says so.
            side: Without a size, what images of different sizes are brought to.
            show: Is told how far the reading of a folder is.
        """
        if split not in ("train", "test"):
            raise ValueError(f"split should be 'train' or 'test', got {split!r}")
        path = Path(self.data or EMBEDDED)
        if self.groups is not None and not path.exists():
            raise ValueError(
                f"--groups {self.groups}: {path} has none; those of image folders and .npz files "
                "can be given"
            )
        if self.data is None or self.data == EMBEDDED:
            return splits.labelled(*_read_embedded(split, self.size), EMBEDDED, split)
        if (name := arrays.torchvision_name(self.data)) is not None:
            root = Path(self.root or "data")
            read = arrays.read_torchvision(name, split, root, self.size, side, download=download)
            return splits.labelled(*read, arrays.SHORT_NAMES.get(name, name), split)
        if path.is_file() and path.suffix.lower() == ".npz":
            return self._load_npz(path, split)
        if path.is_dir():
            return self._load_folder(path, split, subset, side, show)
        raise _unknown(self.data)

    def _load_npz(self, path: Path, split: str) -> LabelledImages:
        data = splits.labelled(*arrays.read_npz(path, split, self.size), path.stem, split)
        if self.groups is None or split == "test":
            return data
        return data._replace(groups=npz_groups(path, self.groups, len(data.labels)))

    def _load_folder(
        self, path: Path, split: str, subset: SearchSubset | None, side: int | None, show: Show
    ) -> LabelledImages:
        tree = list_images(path, split, outside_links=self.outside_links)
        if self.groups is not None and split == "train":
            tree = tree._replace(groups=folder_groups(tree, self.groups))
        if subset is not None:  # before any file is opened
            check_enough(torch.tensor(tree.labels), tree.class_names, str(path))
        every, chosen = tree.files, None
        if subset is not None and (chosen := subset.choose(*tree[2:4], tree.groups)):
            enough = f"{len(chosen.places):,} of {len(every):,} images are enough"
            _log.warning("%s: %s, and no others are read", shown(path), enough)
            tree = tree.subset(chosen.places)
        images, tree, report = read_images(
            tree, self.size, self.reading, self.on_bad_image, side=side, show=show
        )
        name, names = path.resolve().name, map(os.fsdecode, tree.names())
        data = splits.labelled(images, torch.tensor(tree.labels), tree.class_names, name, split)
        data = data._replace(report=report, files=tuple(names), groups=tree.groups)
        if chosen is None:
            return data
        judges = {every[i] for i in chosen.judge}
        judge = torch.tensor([i for i, file in enumerate(tree.files) if file in judges]).long()
        return data._replace(subset_sizes=chosen.sizes, judge=judge)

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
        side = _square_side(train)  # which test images of different sizes get, too
        if test is not None:
            other = replace(self, data=str(test), groups=None)
            try:
                found = other.load(split="test", download=download, side=side)
            except NoTestPartError:
                found = other.load(download=download, side=side)
            found = splits.with_classes_of(train, found, shown(test))
            both = TrainTest(train, found, f"given: {found.name}")
        elif holdout is not None:
            return held_out(train, holdout)
        else:
            try:
                official = self.load(split="test", download=download, side=side)
            except NoTestPartError as error:
                _log.warning("%s; %g of the training images are held out", error, splits.HOLDOUT)
                return held_out(train, splits.HOLDOUT)
            both = TrainTest(train, official, "the test part of the data set")
        if train.groups is not None:
            _log.warning("%s: --groups changes nothing, as the test images are given", train.name)
        both = splits.checked(both)
        warn_of_equal_images(both.train, both.test)
        return both

    def subset(self, seed: int) -> SearchSubset | None:
        """What the run with this seed has read of its folder; None for all of it."""
        if self.subset_sizes is None:
            return None
        return SearchSubset(self.subset_sizes, seed, judged=self.subset_judged)

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; `from_json` gives the spec back.

        Fields that runs of older versions do not have are left out where they say nothing.
        """
        entry: dict[str, Any] = to_record(self)
        return {k: v for k, v in entry.items() if v or k not in ("groups", "subset_judged")}

    @classmethod
    def from_json(cls, entry: object, place: str = "config.json") -> DataSpec:
        """The spec that `to_json` wrote; what is wrong is a ValueError that begins with `place`."""
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: expected an object, got {entry!r}")
        try:
            return from_plain(cls, entry, defaults=True)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error


def _square_side(data: LabelledImages) -> int | None:
    height, width = data.images.shape[2:]
    return width if height == width else None


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


def as_images(data: object, groups: Any = None) -> LabelledImages:
    """The images of a source for `load_dataset`, of (images, labels), or of a torch data set.

    The items of a torch data set are PIL images or uint8 (C, H, W), each with its class.

    Args:
        groups: As `DataSpec.groups` for a source; otherwise an integer or text for each image,
            which may also be a third entry, (images, labels, groups).
    """
    if data is None or isinstance(data, str | Path):
        return load_dataset(data, groups=groups)
    if isinstance(data, LabelledImages):
        found = data
    else:
        if isinstance(data, tuple | list) and len(data) == 3:
            *data, groups = data
        found = arrays.given_images(data)
    if groups is None:
        return found
    return found._replace(groups=given_groups(groups, len(found.labels), "groups"))


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


def load_images(
    source: str | Path | None = None, limit: int = 8, size: int | None = None
) -> Tensor:
    """Up to `limit` images of `source` as uint8 (N, 3, H, W), spread evenly over it.

    Files become RGB as `to_rgb` says, turned as their EXIF orientation says.

    Args:
        source: A folder (with any folders below it, in sorted order), an image file, a .npz file
            with uint8 images (N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W), or None for the
            embedded training images, from the first one on.
        size: Side of the square images: the shorter side is resized to it and the middle cut out.
            None is as for `DataSpec`.
    """
    if limit < 1:
        raise ValueError(f"limit should be at least 1, got {limit}")
    if source is None:
        found = stacked(_sheet("train")[:limit], size, EMBEDDED)
    elif (path := Path(source)).suffix.lower() == ".npz" and path.is_file():
        found = stacked(arrays.some_of_npz(path, limit), size, str(path))
    else:
        found = read_some(path, limit, size)
    return torch.from_numpy(found)


# The embedded images


class EmbeddedData(NamedTuple):
    """A class-balanced part of CIFAR-10 (Krizhevsky, 2009) that comes with the package."""

    train_images: Tensor
    """uint8 (4000, 3, 32, 32)."""
    train_labels: Tensor
    """int64 (4000,)."""
    test_images: Tensor
    """uint8 (1000, 3, 32, 32)."""
    test_labels: Tensor
    """int64 (1000,)."""
    class_names: tuple[str, ...]


def load_embedded() -> EmbeddedData:
    """The first 400 training and 100 test images of each class of CIFAR-10, in the official order.

    Classes take turns (image i has class i % 10), so the first n images are balanced for every n.
    The tensors are the caller's own: writing to them changes nothing for the next caller.
    """
    train, labels, names = _read_embedded("train")
    test, test_labels, _ = _read_embedded("test")
    return EmbeddedData(torch.from_numpy(train), labels, torch.from_numpy(test), test_labels, names)


def embedded_is_intact() -> bool:
    """Whether the embedded images decode to the pixels they were made from (by checksum)."""
    description = json.loads(_resource("cifar10.json"))
    return all(
        hashlib.sha256(_sheet(part).tobytes()).hexdigest() == description[part]["sha256"]
        for part in ("train", "test")
    )


def _read_embedded(split: str, size: int | None = None) -> arrays.Part:
    description, pixels = json.loads(_resource("cifar10.json")), _sheet(split)
    if size is not None:
        pixels = stacked(pixels, size, EMBEDDED)
    else:
        pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    labels = torch.tensor(description[split]["labels"], dtype=torch.int64)
    return pixels, labels, tuple(description["class_names"])


@cache  # decoding takes a tenth of a second
def _sheet(part: str) -> Pixels:
    """The images (N, 32, 32, 3) of "train" or "test", which are stored as the tiles of one."""
    with Image.open(io.BytesIO(_resource(f"cifar10_{part}.webp"))) as sheet:
        columns = sheet.width // 32
        pixels = np.asarray(sheet.convert("RGB"))
    tiles = pixels.reshape(-1, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(tiles).reshape(-1, 32, 32, 3)


def _resource(name: str) -> bytes:
    return resources.files("deepaa.data").joinpath("cifar10", name).read_bytes()
