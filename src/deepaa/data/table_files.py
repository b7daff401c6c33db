"""Where the files of a table lie, whose rows may have no more than their names."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from deepaa import distributed
from deepaa.data.image_file import SUFFIXES, listed, shown

FIRST = 20
"""Rows whose files are looked for."""
DEEPEST, MOST_FOLDERS = 2, 1000
"""Folders below that of the table, and how many of them, that are looked into."""
_log = logging.getLogger(__name__)
_TOLD: set[tuple[str, Place]] = set()


class Place(NamedTuple):
    """A folder in which names are files, and the suffix that they lack."""

    folder: Path
    suffix: str = ""

    def file(self, value: object) -> Path:
        """The file that a row names; ValueError where it names none."""
        if not isinstance(value, str | bytes):
            kind = "no path" if value is None else f"the path is a {type(value).__name__}"
            raise ValueError(f"{kind}, expected the name of a file")
        text = os.fsdecode(value).strip()
        if not text:
            raise ValueError("no path")
        if re.match(r"\w{2,}://", text):
            raise ValueError(f"{listed([text])} is an address; fetch the files, and name them")
        if "\0" in text:
            raise ValueError(f"{listed([text])} is no name of a file")
        if text.startswith("~/"):
            text = os.path.expanduser(text)  # noqa: PTH111  # of a million rows
        if not text.lower().endswith(SUFFIXES):
            text += self.suffix
        whole = os.path.join(self.folder, text.replace("\\", os.sep))  # noqa: PTH118
        return Path(os.path.normpath(whole))

    def has(self, value: object) -> bool:
        """Whether the file of a row is there."""
        with suppress(OSError, ValueError):
            return self.file(value).is_file()
        return False


def find_place(folder: Path, values: Sequence[object], table: str) -> Place:
    """Where the first files are that are there: in the table's folder, or in one below it.

    Names without a suffix get the one of the first file. A line says what a table does not say.
    ValueError names the files, where there are several that may be meant.

    Args:
        table: What the table is called in errors.
    """
    some = list(islice(values, FIRST))
    for value in some:
        if (found := _only([folder], value, folder, table)) is not None:
            return _told(found, folder, table)
    below = _folders(folder)
    for value in some:
        if (found := _only(below, value, folder, table)) is not None:
            return _told(found, folder, table)
    return Place(folder)


def _only(inside: Sequence[Path], value: object, folder: Path, table: str) -> Place | None:
    """The place among these folders that has the file of a row; ValueError where several have."""
    # no suffix comes last, as with any other a name that has one leads to the same file
    places = [Place(each, suffix) for each in inside for suffix in (*SUFFIXES, "")]
    found = {place.file(value): place for place in places if place.has(value)}
    if len(found) > 1:
        files = [os.path.relpath(file, folder) for file in found]
        raise ValueError(
            f"{table}: {listed([str(value)])} may be {listed(files)}; write names with their "
            "folder and suffix"
        )
    return next(iter(found.values()), None)


def _folders(folder: Path, deepest: int = DEEPEST) -> list[Path]:
    """The folders below one, in order; links are not followed."""

    def below(parent: Path, levels: int) -> Iterator[Path]:
        with suppress(OSError):
            for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield Path(entry.path)
                    if levels > 1:
                        yield from below(Path(entry.path), levels - 1)

    return list(islice(below(folder, deepest), MOST_FOLDERS))


def _told(place: Place, folder: Path, table: str) -> Place:
    """The place; where it is not what the table says, a line says it once."""
    if place != Place(folder) and (table, place) not in _TOLD and distributed.is_main():
        _TOLD.add((table, place))
        inside = shown(os.path.relpath(place.folder, folder))
        facts = [f"lie in {inside}"] if place.folder != folder else []
        facts += [f"end with {place.suffix}"] if place.suffix else []
        _log.warning("%s: the files that it names %s", table, " and ".join(facts))
    return place
