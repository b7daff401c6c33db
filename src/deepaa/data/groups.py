"""Which images belong together, as the frames of a scene or the pictures of a patient do.

A group is told by the name of a file, by a table of files, or by an array beside the images.
"""

from __future__ import annotations

import csv
import logging
import re
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepaa import distributed
from deepaa.data.arrays import open_npz, read_array
from deepaa.data.image_file import listed, shown
from deepaa.data.image_tree import ImageTree

TABLES = {".csv": ",", ".tsv": "\t"}
"""Suffixes of tables, and what stands between their columns."""
LONGEST_PATTERN = 200
"""Characters of a pattern, at most."""
MOST_SECONDS = 60.0
"""For a pattern and all names: longer, and it goes back and forth too often."""

_log = logging.getLogger(__name__)


def numbered(names: Iterable[Hashable]) -> list[int]:
    """A number for each name, counted as they first appear; each None has one of its own."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(object() if name is None else name, len(numbers)) for name in names]


def given_groups(values: Any, n: int, place: str) -> Tensor:
    """int64 (n,) of integers or texts that say which images belong together."""
    array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)  # as a column of pandas holds texts
    if array.shape != (n,) or array.dtype.kind not in "iuUS":
        found = f"{array.dtype} of shape {array.shape}"
        raise ValueError(
            f"{place}: expected an integer or text for each of {n} images, got {found}"
        )
    return checked_groups(array.tolist(), place)


def checked_groups(names: Sequence[Hashable], place: str) -> Tensor:
    """The number of each image's group, if they are a division into several."""
    found = numbered(names)
    if max(found) == 0:
        raise ValueError(
            f"{place}: all {len(found):,} images are one group, {shown(str(names[0]))}"
        )
    if max(found) + 1 == len(found):
        _say(f"{place}: every image is a group of its own, which changes nothing")
    return torch.tensor(found)


def _say(line: str) -> None:
    if distributed.is_main():
        _log.warning("%s", line)


# Image folders


def is_table(groups: str) -> bool:
    """Whether this is the name of a table and not a pattern."""
    return Path(groups).suffix.lower() in TABLES


def kept_groups(groups: str, data: str | Path | None) -> str:
    """The same with a table's path that holds from every working folder.

    A table in the image folder is known by its path there, so that both can move together.
    """
    if not is_table(groups):
        return groups
    folder = Path(data or "").resolve()
    if data is not None and (folder / groups).is_file():
        return groups
    path = Path(groups).resolve()
    return str(path.relative_to(folder) if data and path.is_relative_to(folder) else path)


def folder_groups(tree: ImageTree, groups: str) -> Tensor:
    """The group of each file, from a table or a pattern; what names no group is its own."""
    paths = [file.relative_to(tree.root).as_posix() for file in tree.files]
    if is_table(groups):
        table = read_table(tree.root / groups)
        names, nothing = [table.get(path) for path in paths], f"names none of {len(paths):,} images"
        wanted = f"it names {shown(next(iter(table), 'none'))}"
    else:
        names, nothing = list(matches(groups, paths)), f"matches none of {len(paths):,} paths"
        wanted = "a regular expression over such paths is needed, or a .csv file of them"
    alone = [path for path, name in zip(paths, names, strict=True) if name is None]
    place = f"--groups {shown(groups)}"
    if len(alone) == len(paths):
        raise ValueError(f"{place} {nothing}, such as {shown(paths[0])}; {wanted}")
    if alone:
        of_all = f"{len(alone):,} of {len(paths):,} images"
        _say(f"{place}: {of_all} are in no group, as {shown(alone[0])}; each is one of its own")
    return checked_groups(names, place)


def matches(pattern: str, paths: Sequence[str]) -> Iterator[str | None]:
    """What the pattern finds in each path: its first capture group, or all; None for nothing."""
    if len(pattern) > LONGEST_PATTERN:
        length = f"{len(pattern)} characters, at most {LONGEST_PATTERN} are allowed"
        raise ValueError(f"--groups: a pattern of {length}; a .csv file can say more")
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"--groups {shown(pattern)}: neither a .csv file nor a regular expression: {error}"
        ) from error
    if repeats_repeats(pattern):
        raise ValueError(
            f"--groups {shown(pattern)}: a repeat inside of a repeated part can take for ever; "
            "write the inner one as ++ or *+, which does not go back"
        )
    began = time.monotonic()
    for path in paths:
        found = compiled.search(path)
        yield None if found is None else found[1 if compiled.groups else 0]
        if time.monotonic() - began > MOST_SECONDS:
            raise ValueError(f"--groups {shown(pattern)}: too slow; it was at {shown(path)}")


def repeats_repeats(pattern: str) -> bool:
    """Whether a part in brackets is repeated without limit and has such a repeat inside.

    The time that such patterns take can double with every character. Possessive repeats (++, *+)
    do not count, as they never go back.
    """
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)
    plain = re.sub(r"\{\d*,(\d{2,})?\}", "*", plain)  # a few times do no harm
    plain = re.sub(r"[*+]\+", "", plain)
    while brackets := re.search(r"\(([^()]*)\)([*+])?", plain):
        inside, repeat = brackets.groups()
        has_repeat = any(sign in inside.removeprefix("?") for sign in "*+")
        if has_repeat and repeat:
            return True
        kept = "x*" if has_repeat or repeat else "x"
        plain = plain[: brackets.start()] + kept + plain[brackets.end() :]
    return False


def read_table(path: Path) -> dict[str, str | None]:
    """The group of each file of a table: its columns are file and group, with or without a header.

    Other columns may stand in a table with a header. A file without a group is its own.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = list(csv.reader(file, delimiter=TABLES[path.suffix.lower()]))
    except OSError as error:
        raise ValueError(f"--groups {shown(path)}: {error.strerror}") from error
    except csv.Error as error:
        raise ValueError(f"--groups {shown(path)}: {error}") from error
    columns, first = (0, 1), 0
    header = [name.strip().lower() for name in rows[0]] if rows else []
    if "file" in header and "group" in header:
        columns, first = (header.index("file"), header.index("group")), 1
    found: dict[str, str | None] = {}
    for number, row in enumerate(rows[first:], first + 1):
        if not row:
            continue
        if len(row) <= max(columns) or (not first and len(row) != 2):
            expected = "expected the columns file and group"
            raise ValueError(f"--groups {shown(path)}: row {number} has {len(row)}; {expected}")
        name = row[columns[0]].strip().replace("\\", "/").removeprefix("./")
        group = row[columns[1]].strip() or None
        if found.setdefault(name, group) != group:
            twice = f"row {number} gives {shown(name)} another group than a row before"
            raise ValueError(f"--groups {shown(path)}: {twice}")
    return found


# .npz files


def npz_groups(path: Path, groups: str, n: int) -> Tensor:
    """The groups of the n training images of a file, from the array of this name in it."""
    names = (groups, f"{groups}_train", f"train_{groups}")
    with open_npz(path) as data:
        name = next((name for name in names if name in data.files), None)
        if name is None:
            raise ValueError(
                f"--groups: no array {' or '.join(names)}; it has {listed(data.files)}"
            )
        return given_groups(read_array(data, name), n, f"array {name}")
