"""Tables of image files: CSV, TSV or Parquet with a row for each image."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from deepaa.data.columns import Columns, find_columns, require
from deepaa.data.image_file import SUFFIXES, listed, shown
from deepaa.data.listing import Listing, known_label, label_text, part_of
from deepaa.data.parquet import Parquet
from deepaa.data.table_files import Place, find_place
from deepaa.files import open_regular, plural

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET, PACKED = ".parquet", ".gz"
TABLES = (*DELIMITERS, PARQUET, *(f"{suffix}{PACKED}" for suffix in DELIMITERS))
"""Suffixes of tables."""
MOST_TEXT = 1 << 30
"""Bytes of a table of text, at most."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Table(NamedTuple):
    """Columns of a table, and where its rows stand in the file."""

    names: list[str]
    """Of all columns, also of those that were not wanted."""
    columns: Mapping[str, Sequence[Any]]
    """Values of the wanted columns, by kind."""
    numbers: Sequence[int]
    """The number of each row, as a spreadsheet shows it."""


def is_table(source: str) -> bool:
    """Whether this is the name of a table."""
    return source.lower().endswith(TABLES) and Path(source).name.lower() not in TABLES


def list_table(
    path: Path, columns: Columns, groups: str | None = None, *, outside_links: bool = False
) -> Listing:
    """The images that a table names; relative paths start at its folder. No image is opened.

    Args:
        columns: The names of columns by what they hold, see `parse_columns`.
        groups: The column of groups.
        outside_links: Follow links that lead out of the folder of the images.
    """
    place, path = shown(path), path.absolute()
    given = columns if groups is None else {**columns, "group": groups}
    table = _read(path, given, place)
    folder = _folder(path, table)
    files, kept, ignored = _files(folder, table, place)
    every, numbers = table.columns, table.numbers
    parts = _parts(every.get("split"), kept, numbers, place)
    labels: list[str | None] = []
    for i, part in zip(kept, parts or ["train"] * len(kept), strict=True):
        check = label_text if part == "train" else known_label
        labels.append(_checked(check, every["label"][i], place, numbers[i]))
    listing = Listing(
        place,
        _root(folder, files),
        files,
        _whole(labels),
        lambda i: f"row {numbers[kept[i]]}",
        parts,
        None if "group" not in every else [_group(every["group"][i]) for i in kept],
        ignored=ignored,
    )
    _check_files(listing, outside_links=outside_links)
    return listing


def _read(path: Path, given: Columns, place: str) -> Table:
    """The wanted columns of the file; what is wrong with it is a ValueError."""
    with _told(place):
        if path.suffix.lower() == PARQUET:
            file = Parquet(path)
            wanted = _wanted(file.names, given)
            columns = {kind: file.column(name) for kind, name in wanted.items()}
            found = Table(file.names, columns, range(1, file.rows + 1))
        else:
            found = _read_text(path, given)
        if not found.columns["image"]:
            raise ValueError("no rows")
    return found


@contextmanager
def _told(place: str) -> Iterator[None]:
    """What a system or a reader raises becomes one line that begins with the place."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{place}: {error.strerror or error}") from error
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def _wanted(names: Sequence[str], given: Columns) -> dict[str, str]:
    """The columns to read, by what they hold."""
    found = find_columns(names, given)
    require(found, "image", names, "of paths such as image or path")
    if "label" not in found:
        left = [name for name in names if name not in found.values()]
        if len(left) == 1:  # a path and one thing more
            found["label"] = left[0]
    require(found, "label", names, "of classes such as label or class")
    return found


# Text


def _read_text(path: Path, given: Columns) -> Table:
    is_packed = path.suffix.lower() == PACKED
    with os.fdopen(open_regular(path, links=True), "rb") as raw, _one_line():
        _check_size(os.fstat(raw.fileno()).st_size)
        content = _Unpacked(fileobj=raw, mode="rb") if is_packed else raw
        if content.read(2) in _UTF_16:
            raise ValueError("is UTF-16; save it as UTF-8")
        content.seek(0)
        # names of files are bytes, whatever the table says of its text
        text = io.TextIOWrapper(content, "utf-8-sig", errors="surrogateescape", newline="")
        delimiter = DELIMITERS[(Path(path.stem) if is_packed else path).suffix.lower()]
        first = next(filter(str.strip, text), "")
        if delimiter == "," and "," not in first:  # as spreadsheets write it
            delimiter = next((sign for sign in ";\t" if sign in first), ",")
        text.seek(0)
        return _read_rows(csv.reader(text, delimiter=delimiter), given)


class _Unpacked(gzip.GzipFile):
    """A packed table; what gets longer than a table may be is a ValueError."""

    def read1(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = super().read1(size)
        _check_size(self.tell())
        return data


def _check_size(size: int) -> None:
    if size > MOST_TEXT:
        raise ValueError(f"{size:,} bytes; tables of up to {MOST_TEXT:,} are read")


@contextmanager
def _one_line() -> Iterator[None]:
    """Where a packed table is damaged, the ValueError for it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"not packed by gzip, or damaged ({listed([str(error)])})") from error


def _read_rows(rows: Iterator[list[str]], given: Columns) -> Table:
    numbered = enumerate(rows, 1)
    header = next(([*map(str.strip, row)] for _, row in numbered if not _is_blank(row)), [])
    if not header:
        raise ValueError("empty")
    if any(name.lower().endswith(SUFFIXES) for name in header):
        raise ValueError(
            "row 1 names an image and not columns; put a first row above it that "
            "names them, as path,label"
        )
    wanted = _wanted(header, given)
    where = [header.index(name) for name in wanted.values()]
    values: list[list[str]] = [[] for _ in where]
    numbers, known = list[int](), dict[str, str]()
    for number, row in numbered:
        if not any(row) or (len(row) != len(header) and _is_blank(row)):
            continue
        if len(row) != len(header) and (len(row) < len(header) or any(row[len(header) :])):
            cells = f"{plural(len(row), 'cell')}, but there are {plural(len(header), 'column')}"
            raise ValueError(f"row {number} has {cells}")
        for column, i in zip(values, where, strict=True):
            column.append(known.setdefault(row[i], row[i]))  # a class is in memory once
        numbers.append(number)
    return Table(header, dict(zip(wanted, values, strict=True)), numbers)


def _is_blank(row: Sequence[str]) -> bool:
    return not any(map(str.strip, row))


# What rows say


def _whole(labels: list[str | None]) -> list[str | None]:
    """The labels, but 3.0 as 3 where all are whole: so they are written beside missing ones."""
    if not all(label is None or re.fullmatch(r"-?\d{1,18}(\.0+)?", label) for label in labels):
        return labels
    return [None if label is None else label.partition(".")[0] for label in labels]


def _folder(path: Path, table: Table) -> Path:
    """Where relative paths start: beside the table, or for a link beside what it leads to."""
    if not path.is_symlink():
        return path.parent
    try:
        first = table.columns["image"][0]
        near, far = (Place(each.parent).file(first).exists() for each in (path, path.resolve()))
    except (OSError, ValueError):  # the rows are not looked at yet
        return path.parent
    return path.resolve().parent if far and not near else path.parent


def _files(folder: Path, table: Table, place: str) -> tuple[list[Path], list[int], dict[str, int]]:
    """The files, the row of each, and how many rows only say again what one has said."""
    rows: dict[Path, int] = {}
    again, where = 0, find_place(folder, table.columns["image"], place)
    for i, value in enumerate(table.columns["image"]):
        file = _checked(where.file, value, place, table.numbers[i])
        first = rows.setdefault(file, i)
        if first == i:
            continue
        again += 1
        for kind, column in table.columns.items():
            if kind != "image" and _said(column[i]) != _said(column[first]):
                raise ValueError(
                    f"{place}: row {table.numbers[i]} gives {listed([str(value)])} the {kind} "
                    f"{listed([_said(column[i])])}, but row {table.numbers[first]} "
                    f"{listed([_said(column[first])])}"
                )
    return list(rows), list(rows.values()), {"row of a file again": again} if again else {}


def _said(value: object) -> str:
    return "" if value is None else str(value).strip()


def _group(value: object) -> str | None:
    """The group of a row; empty ones are their own."""
    return None if value != value else _said(value) or None


def _checked(check: Any, value: object, place: str, number: int) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{place}: row {number}: {error}") from error


def _parts(
    column: Sequence[Any] | None, kept: Sequence[int], numbers: Sequence[int], place: str
) -> list[str] | None:
    if column is None:
        return None
    known: dict[object, str] = {}
    for i in kept:
        if column[i] not in known:
            known[column[i]] = _checked(part_of, column[i], place, numbers[i])
    return [known[column[i]] for i in kept]


# The files of a table


def _root(folder: Path, files: Sequence[Path]) -> Path:
    """The folder of the table if it has all files, or else the folder that all have in common."""
    folders = {str(file).rpartition(os.sep)[0] or os.sep for file in files}
    inside = os.path.commonpath([folder, *folders]) == str(folder)
    return folder if inside else Path(os.path.commonpath(folders))


def _check_files(listing: Listing, *, outside_links: bool) -> None:
    """Refuse a table of which no file is there, and links that lead to other places."""
    root, folders = os.path.realpath(listing.root), dict[str, bool]()
    escapes, missing = list[int](), 0

    def is_inside(path: str) -> bool:
        return os.path.commonpath([os.path.realpath(path), root]) == root

    for i, file in enumerate(map(str, listing.files)):
        folder = file.rpartition(os.sep)[0]
        if folder not in folders:
            folders[folder] = is_inside(folder)
        try:
            status = os.lstat(file)
        except (OSError, ValueError):  # the look at all files will name it
            missing += 1
            continue
        if not folders[folder] or (stat.S_ISLNK(status.st_mode) and not is_inside(file)):
            escapes.append(i)
    if missing == len(listing.files):
        raise FileNotFoundError(_nothing_there(listing))
    if escapes and not outside_links:
        first = f"{listing.where(escapes[0])}: {listed([str(listing.files[escapes[0]])])}"
        raise ValueError(
            f"{listing.place}: links lead out of {shown(listing.root)} to "
            f"{plural(len(escapes), 'file')}, as {first}; copy the files, or allow it with "
            "--outside-links (outside_links=True in Python)"
        )


def _nothing_there(listing: Listing) -> str:
    """What to say of a table of which no file is there."""
    first = listing.files[0]
    near = next((p for p in map(first.with_suffix, SUFFIXES) if p.exists()), None)
    advice = "Relative paths start at the folder of the table"
    if near is not None:
        advice = f"There is {listed([near.name])}: write names with that suffix"
    return (
        f"{listing.place}: none of its {len(listing.files):,} files is there; "
        f"{listing.where(0)} names {listed([str(first)])}. {advice}"
    )


def table_advice(folder: Path) -> str | None:
    """How to give the tables that are in a folder, or Parquet files anywhere below it."""
    parquet = sorted(folder.rglob(f"*{PARQUET}"))
    if len(parquet) < 2:
        tables = [*sorted(p for p in folder.glob("*.*") if is_table(p.name)), *parquet]
        tables.sort(key=lambda path: "train" not in path.name.lower())
        return f"give its table: --data {shown(tables[0])}" if tables else None
    return (
        f"join its {len(parquet)} Parquet files, as one at a time is read: where they hold images, "
        f"with datasets.load_dataset({str(folder)!r}).save_to_disk('saved') and --data saved; "
        "where they hold paths, with read_table and write_table of pyarrow.parquet"
    )
