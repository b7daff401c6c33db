"""Which images a run reads and how, and the images themselves, labelled and in memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepaa.data import arrays, splits
from deepaa.data.columns import parse_columns
from deepaa.data.embedded import EMBEDDED, embedded_sheet, read_embedded
from deepaa.data.equal_images import warn_of_equal_images
from deepaa.data.groups import given_groups, kept_groups, npz_groups
from deepaa.data.hugging_face import is_dataset
from deepaa.data.image_file import DEFAULT_READING, Pixels, Reading, check_size, shown
from deepaa.data.image_stack import stacked
from deepaa.data.image_tree import ImageTree
from deepaa.data.parts import SearchSubset, check_enough, held_out
from deepaa.data.scan import (
    OnBadImage,
    ScanReport,
    Show,
    read_images,
    read_some,
    read_some_of,
    show_nothing,
)
from deepaa.data.sources import (
    absolute_root,
    absolute_source,
    has_columns,
    list_source,
    lists_files,
    refuse_columns,
    rows_tree,
    source_name,
    unknown_source,
    with_home,
)
from deepaa.data.splits import LabelledImages, NoTestPartError, Sizes, TrainTest
from deepaa.runs import from_plain, to_record

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
    (N, 3, H, W) or (N, H, W); a .csv, .tsv, .csv.gz or .parquet table of files with classes;
    "hf:NAME" for a data set of Hugging Face, or a folder that its `save_to_disk` made; .tar shards
    of WebDataset as a folder or a pattern, "train-{000..127}.tar". Write ./cifar10 for a folder of
    that name."""
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
    by all of it, or a .csv or .tsv file with the columns file and group; for tables and others with
    columns the name of one, or such an expression."""
    columns: str | None = None
    """Which columns of a table or a data set of Hugging Face hold what, as
    "image=file,label=species,split=fold,group=patient", where their names do not say it; for shards
    what the files of a sample end with, "image=jpg,label=json:species"."""

    def __post_init__(self) -> None:
        """Check the values that a user can get wrong."""
        if self.data is not None:
            object.__setattr__(self, "data", with_home(self.data))
        if self.size is not None:
            check_size(self.size)
        if self.on_bad_image not in ("stop", "skip"):
            raise ValueError(f"--on-bad-image should be stop or skip, got {self.on_bad_image!r}")
        if self.columns is not None:
            parse_columns(self.columns)

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
        data = None if data is None else with_home(data)
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
        files = self.data is not None and lists_files(self.data)
        for option, value in (("--groups", self.groups), ("--columns", self.columns)):
            if value is not None and not files and not path.exists():
                some = "those of folders, tables, shards, hf:NAME and .npz files can be given"
                raise ValueError(f"{option} {shown(value)}: {shown(path)} has none; {some}")
        if self.data is None or self.data == EMBEDDED:
            return splits.labelled(*read_embedded(split, self.size), EMBEDDED, split)
        if (name := arrays.torchvision_name(self.data)) is not None:
            root = Path(self.root or "data")
            read = arrays.read_torchvision(name, split, root, self.size, side, download=download)
            return splits.labelled(*read, arrays.SHORT_NAMES.get(name, name), split)
        if path.is_file() and path.suffix.lower() == ".npz":
            return self._load_npz(path, split)
        if files:
            return self._load_files(path, split, subset, side, show, download=download)
        raise unknown_source(self.data)

    def _load_npz(self, path: Path, split: str) -> LabelledImages:
        data = splits.labelled(*arrays.read_npz(path, split, self.size), path.stem, split)
        if self.groups is None or split == "test":
            return data
        return data._replace(groups=npz_groups(path, self.groups, len(data.labels)))

    def _load_files(
        self,
        path: Path,
        split: str,
        subset: SearchSubset | None,
        side: int | None,
        show: Show,
        *,
        download: bool,
    ) -> LabelledImages:
        if has_columns(str(self.data)):  # labels are read, too
            show(f"listing the images of {shown(path.name)}")
        tree = list_source(
            str(self.data),
            split,
            groups=self.groups,
            columns=self.columns,
            outside_links=self.outside_links,
            download=download,
        )
        if subset is not None:  # before any file is opened
            check_enough(torch.tensor(tree.labels), tree.class_names, str(path))
        every, chosen = tree.files, None
        if subset is not None and (chosen := subset.choose(*tree[2:4], tree.groups)):
            enough = f"{len(chosen.places):,} of {len(every):,} images are enough"
            _log.warning("%s: %s, and no others are read", shown(path), enough)
            tree = tree.subset(chosen.places)
        read = read_images(tree, self.size, self.reading, self.on_bad_image, side=side, show=show)
        data = _labelled_files(*read, source_name(str(self.data)), split)
        if chosen is None:
            return data
        judges = {str(every[i].relative_to(tree.root)) for i in chosen.judge}
        judge = torch.tensor([i for i, file in enumerate(data.files) if file in judges]).long()
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
            columns = self.columns if has_columns(str(test)) else None
            other = replace(self, data=str(test), groups=None, columns=columns)
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
        newer = ("groups", "subset_judged", "columns")
        return {k: v for k, v in entry.items() if v or k not in newer}

    @classmethod
    def from_json(cls, entry: object, place: str = "config.json") -> DataSpec:
        """The spec that `to_json` wrote; what is wrong is a ValueError that begins with `place`."""
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: expected an object, got {entry!r}")
        try:
            return from_plain(cls, entry, defaults=True)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error


def _labelled_files(
    images: Pixels, tree: ImageTree, report: ScanReport, name: str, split: str
) -> LabelledImages:
    names = tuple(map(os.fsdecode, tree.names()))
    data = splits.labelled(images, torch.tensor(tree.labels), tree.class_names, name, split)
    return data._replace(report=report, files=names, groups=tree.groups)


def _square_side(data: LabelledImages) -> int | None:
    height, width = data.images.shape[2:]
    return width if height == width else None


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


def as_images(
    data: object, groups: Any = None, *, size: int | None = None, columns: str | None = None
) -> LabelledImages:
    """The images of a source, of (images, labels), or of a data set of torch or Hugging Face.

    The items of a torch data set are PIL images or uint8 (C, H, W), each with its class.

    Args:
        groups: As `DataSpec.groups` for a source, or the column of a Hugging Face data set;
            otherwise an integer or text for each image, which may also be a third entry, (images,
            labels, groups).
        size: As `DataSpec.size`, for images in files.
        columns: As `DataSpec.columns`.
    """
    if data is None or isinstance(data, str | Path):
        return load_dataset(data, groups=groups, size=size, columns=columns)
    if is_dataset(data):
        return _given_rows(data, groups, size, columns)
    if columns is not None:
        raise ValueError(f"columns {columns!r}: {type(data).__name__} has none")
    if size is not None:
        raise ValueError(f"size={size} is for images in files; resize yours before the search")
    if isinstance(data, LabelledImages):
        found = data
    else:
        if isinstance(data, tuple | list) and len(data) == 3:
            *data, groups = data
        found = arrays.given_images(data)
    if groups is None:
        return found
    return found._replace(groups=given_groups(groups, len(found.labels), "groups"))


def _given_rows(data: Any, groups: Any, size: int | None, columns: str | None) -> LabelledImages:
    """The images of a data set of Hugging Face."""
    name = type(data).__name__
    column = groups if isinstance(groups, str) else None
    tree = rows_tree(data, name, Path(name), "train", columns=columns, groups=column)
    if groups is not None and column is None:
        tree = tree._replace(groups=given_groups(groups, len(tree.files), "groups"))
    return _labelled_files(*read_images(tree, size), name, "train")


def load_images(
    source: str | Path | None = None,
    limit: int = 8,
    size: int | None = None,
    *,
    columns: str | None = None,
) -> Tensor:
    """Up to `limit` images of `source` as uint8 (N, 3, H, W), spread evenly over it.

    Files become RGB as `to_rgb` says, turned as their EXIF orientation says.

    Args:
        source: A folder (with any folders below it, in sorted order), an image file, a .npz file
            with uint8 images (N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W), or None for the
            embedded training images, from the first one on. Also what else lists files, see
            `DataSpec`.
        size: Side of the square images: the shorter side is resized to it and the middle cut out.
            None is as for `DataSpec`.
        columns: As `DataSpec.columns`.
    """
    if limit < 1:
        raise ValueError(f"limit should be at least 1, got {limit}")
    if source is None:
        found = stacked(embedded_sheet("train")[:limit], size, EMBEDDED)
        return torch.from_numpy(found)
    source = with_home(source)
    if (path := Path(source)).suffix.lower() == ".npz" and path.is_file():
        found = stacked(arrays.some_of_npz(path, limit), size, str(path))
    elif has_columns(source):
        found = read_some_of(list_source(source, columns=columns), limit, size)
    else:
        refuse_columns(columns, source)
        found = read_some(path, limit, size)
    return torch.from_numpy(found)
