"""Data sets of Hugging Face `datasets`: by name, from a folder of `save_to_disk`, or given."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepaa.data.columns import COLUMNS, Columns, find_columns, has
from deepaa.data.extras import not_imported
from deepaa.data.image_file import listed, shown
from deepaa.data.image_tree import MOST_BYTES
from deepaa.data.listing import PART_NAMES, Listing, known_label
from deepaa.files import read_regular

PREFIX = "hf:"
"""Before the name of a data set: hf:NAME or hf:NAME:CONFIG."""
OLDEST = 4
"""The first version of `datasets` that never runs a script which comes with the data."""
MOST_ROWS = 50_000_000
_BATCH = 1000
_MODULES = ("datasets.arrow_dataset", "datasets.dataset_dict", "datasets.iterable_dataset")
"""Of the classes of data sets; people have modules of their own that are called datasets."""


class RowStore:
    """Encoded images in rows of data sets, which lie in files of Arrow and not in memory."""

    def __init__(self, datasets: Sequence[Any], column: str) -> None:
        """Rows are counted through all of them."""
        self._column = column
        self._datasets = [each.select_columns([column]).with_format("arrow") for each in datasets]
        self._ends = np.cumsum([len(each) for each in datasets])

    def content(self, place: int) -> bytes:
        """The bytes of a row's image; OSError where it has none."""
        number = int(np.searchsorted(self._ends, place, side="right"))
        row = place - (int(self._ends[number - 1]) if number else 0)
        value = self._datasets[number][row].column(self._column)[0].as_py()
        if isinstance(value, bytes):
            return value
        content, path = (value or {}).get("bytes"), (value or {}).get("path")
        if content is None and path is not None:
            return _at_path(str(path))
        return content or b""

    def lengths(self, places: Sequence[int]) -> list[int]:
        """The bytes of these images."""
        every = [n for each in self._datasets for n in _lengths(each, self._column)]
        return [every[place] for place in places]


def _at_path(path: str) -> bytes:
    """An image that a row only names; nothing is fetched."""
    if not os.path.isabs(path):  # noqa: PTH117  # it may be an address
        raise OSError(errno.ENOENT, f"not in the data set, but at {shown(path)}")
    return read_regular(path, MOST_BYTES, links=True)


def _lengths(dataset: Any, column: str) -> Iterator[int]:
    from pyarrow import compute

    for start in range(0, len(dataset), _BATCH):
        for chunk in dataset[start : start + _BATCH].column(column).chunks:
            content = chunk.field("bytes") if hasattr(chunk, "field") else chunk
            yield from (n or 0 for n in compute.binary_length(content).to_pylist())


# Where data sets come from


def is_name(source: str) -> bool:
    """Whether this is the name of a data set on the hub."""
    return source.startswith(PREFIX)


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` made this folder."""
    return (folder / "dataset_dict.json").is_file() or not _lacks(folder)


def saved_advice(folder: Path) -> str | None:
    """What to do with a folder that holds rows of Arrow, but not all that `save_to_disk` makes."""
    if not (lacks := _lacks(folder)) or next(folder.glob("*.arrow"), None) is None:
        return None
    return f"save its data set again: beside its .arrow files there is no {' and no '.join(lacks)}"


def _lacks(folder: Path) -> list[str]:
    """What `save_to_disk` writes beside the rows of a data set, and is not there."""
    return [name for name in ("state.json", "dataset_info.json") if not (folder / name).is_file()]


def is_dataset(value: object) -> bool:
    """Whether this is an object of `datasets`; that is not imported for it."""
    return any(each.__module__ in _MODULES for each in type(value).__mro__)


def open_source(source: str, *, download: bool = False) -> Any:
    """The data set of a name or a folder; ValueError says what is wrong.

    Args:
        download: Fetch it if it is not in the cache of `datasets`.
    """
    place, datasets = shown(source), _library(source)
    if is_name(source):
        _check_name(source)
    try:
        with _quiet(datasets):
            if not is_name(source):
                return datasets.load_from_disk(source)
            return _open_name(datasets, source.removeprefix(PREFIX), download=download)
    except MemoryError:
        raise
    except Exception as error:  # pyarrow, json, fsspec and the hub each raise their own
        reason = listed([" ".join(str(error).split()) or type(error).__name__])
        if not is_name(source):
            raise ValueError(f"{place}: cannot be read by datasets: {reason}") from error
        what = "could not be fetched" if download else "is not in the cache of datasets"
        advice = "" if download else "; fetch it with --download"
        raise FileNotFoundError(f"{place}: {what}{advice} ({reason})") from error


def _library(source: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        why = not_imported(error, "datasets", "data sets of Hugging Face", "deepaa[hf]")
        raise ValueError(f"{shown(source)}: {why}") from None
    if int(datasets.__version__.split(".")[0]) < OLDEST:
        raise ValueError(
            f"{shown(source)}: needs datasets {OLDEST} or newer, which runs no code of data sets; "
            f"here is {datasets.__version__}: pip install -U 'deepaa[hf]'"
        )
    return datasets


def _check_name(source: str) -> None:
    found = re.fullmatch(r"hf:(\w[\w.-]*(?:/\w[\w.-]*)?)(?::[\w.-]+)?", source)
    if found is None:
        raise ValueError(
            f"{shown(source)}: expected hf:NAME or hf:USER/NAME, with :CONFIG behind it where a "
            "data set has several; a folder of save_to_disk is given without hf:"
        )
    if Path(name := found[1]).exists():
        raise ValueError(
            f"{shown(source)}: datasets would read {name} of the current folder in its place; go "
            "to another folder, or give the folder without hf:"
        )


def _open_name(datasets: Any, name: str, *, download: bool) -> Any:
    name, _, config = name.partition(":")
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not download
    try:
        return datasets.load_dataset(name, config or None)
    finally:
        datasets.config.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Inside it, no bars of progress and no warnings about the cache."""
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity_error()
    bars = datasets.utils.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if bars:
            datasets.enable_progress_bars()


# What is in them


def list_rows(
    data: Any, place: str, root: Path, split: str, columns: Columns, groups: str | None = None
) -> Listing:
    """The rows of a data set, or of the parts of one that a split needs; images stay encoded.

    Args:
        data: A `Dataset`, or a `DatasetDict` whose keys are parts.
        columns: The names of columns by what they hold.
        groups: The column of groups.
    """
    parts = _parts(data, place, split)
    first = next(iter(parts.values()))
    given = columns if groups is None else {**columns, "group": groups}
    try:
        found = _columns(first.features, given)
        for name, part in parts.items():
            _check(part, name, first, found.values())
        rows = [row for name, part in parts.items() for row in _rows(part, name, found)]
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    if not rows:
        raise ValueError(f"{place}: no rows")
    names = [f"{name}[{i}]" for name, part in parts.items() for i in range(len(part))]
    kinds = {name: PART_NAMES.get(name.lower(), "train") for name in parts}
    each_kind = [kinds[name] for name, part in parts.items() for _ in range(len(part))]
    return Listing(
        place,
        root,
        [root / name for name in names],
        [label for label, _ in rows],
        names.__getitem__,
        each_kind if _is_several(data) else None,
        [group for _, group in rows] if "group" in found else None,
        RowStore(list(parts.values()), found["image"]),
        order=getattr(first.features[found["label"]], "names", ()),
    )


def _is_several(data: Any) -> bool:
    return isinstance(data, Mapping)


def _parts(data: Any, place: str, split: str) -> dict[str, Any]:
    """The parts that are read, by name: the train part, and for a test what is not train."""
    if not _is_several(data):
        _check_length(data, place)
        return {"train": data}
    known = {str(name): part for name, part in data.items() if str(name).lower() in PART_NAMES}
    if not known and len(data) == 1:
        known = {"train": next(iter(data.values()))}
    if not known:
        parts = listed([str(name) for name in data])
        raise ValueError(f"{place}: no part train or test; it has {parts or 'none'}")
    for part in known.values():
        _check_length(part, place)
    train = {name: part for name, part in known.items() if PART_NAMES[name.lower()] == "train"}
    return train if split == "train" and train else known


def _check_length(part: Any, place: str) -> None:
    if not hasattr(part, "__len__") or not hasattr(part, "select_columns"):
        raise ValueError(
            f"{place}: is a stream, whose rows have no numbers; load it without streaming=True "
            "(images stay on disk), give the folder that save_to_disk then makes, or shards (.tar)"
        )
    if len(part) > MOST_ROWS:
        raise ValueError(f"{place}: {len(part):,} rows; at most {MOST_ROWS:,} are read")


def _columns(features: Mapping[str, Any], given: Columns) -> dict[str, str]:
    """The columns of images, of classes, and of groups if there are any."""
    pictures = [name for name, feature in features.items() if _is_image(feature)]
    if "image" not in given:
        usual = [name for name in COLUMNS["image"] if name in pictures]
        if not pictures or (len(pictures) > 1 and not usual):
            what = "no column of images" if not pictures else f"several columns: {listed(pictures)}"
            kinds = [f"{name} ({type(feature).__name__})" for name, feature in features.items()]
            raise ValueError(
                f"{what}; {has(kinds)}. Say which with --columns image=NAME, and save images as "
                "the feature Image of datasets"
            )
        given = {**given, "image": usual[0] if usual else pictures[0]}
    found = find_columns(list(features), given)
    if found["image"] not in pictures:
        kind = type(features[found["image"]]).__name__
        raise ValueError(
            f"column {shown(found['image'])} holds {kind}, expected Image: encoded images"
        )
    classes = [n for n, each in features.items() if type(each).__name__ == "ClassLabel"]
    if "label" not in found and len(classes) == 1:
        found["label"] = classes[0]
    if "label" not in found:
        raise ValueError(
            f"no column of labels such as label; {has(list(features))}. Say which with --columns "
            "label=NAME (columns='label=NAME' in Python)"
        )
    return found


def _is_image(feature: Any) -> bool:
    """Whether a column holds encoded images: of the feature Image, or bytes with a path."""
    if type(feature).__name__ == "Image":
        return True
    return isinstance(feature, Mapping) and "bytes" in feature


def _check(part: Any, name: str, first: Any, columns: Any) -> None:
    """Refuse a part whose columns differ, or whose file is damaged in a way that would crash."""
    for column in columns:
        if column not in part.features:
            raise ValueError(f"{shown(name)} has no column {shown(column)} as other parts have it")
        if (own := part.features[column]) == (other := first.features[column]):
            continue
        names, others = (list(getattr(each, "names", None) or ()) for each in (own, other))
        if not names or not others:
            raise ValueError(
                f"column {shown(column)} is {listed([str(own)])} in {shown(name)}, and "
                f"{listed([str(other)])} in other parts"
            )
        if set(names) != set(others):
            alone = [sorted({*a} - {*b}) for a, b in ((names, others), (others, names))]
            raise ValueError(
                f"the classes of column {shown(column)} differ: only {shown(name)} has "
                f"{listed(alone[0]) or 'none'}, only other parts have {listed(alone[1]) or 'none'}"
            )
    part.data.table.select(list(columns)).validate(full=True)


def _rows(part: Any, name: str, found: Columns) -> Iterator[tuple[str | None, str | None]]:
    """The class of each row if it has one, and its group."""
    wanted = [found[kind] for kind in ("label", "group") if kind in found]
    table = part.select_columns(wanted).with_format("arrow")[:]
    labels = table.column(found["label"]).to_pylist()
    groups = table.column(found["group"]).to_pylist() if "group" in found else [None] * len(labels)
    classes = getattr(part.features[found["label"]], "names", None)
    known: dict[Any, str | None] = {}
    for i, label in enumerate(labels):
        try:
            if isinstance(label, list | dict) or label not in known:
                text = _class(label, classes)
                known[label] = text
        except ValueError as error:
            raise ValueError(f"{shown(name)}[{i}]: {error}") from error
        group = groups[i]
        yield known[label], None if group is None else str(group).strip() or None


def _class(label: Any, classes: Sequence[str] | None) -> str | None:
    if classes is None:
        return known_label(label)
    if label is None or label == -1:  # -1 is what the hub has for a test part without classes
        return None
    if not 0 <= label < len(classes):
        raise ValueError(f"label {label}, but there are {len(classes)} classes")
    return str(classes[label])
