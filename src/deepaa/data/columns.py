"""Which columns of a table, data set or sample have the image, its class, its part, its group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from deepaa.data.image_file import listed, shown

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "image": (
        *("image", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path"),
        *("image_file", "image_name", "img", "img_path", "img_name", "images", "jpg", "png"),
        *("image_id", "id"),  # in tables of competitions names of files, often without a suffix
    ),
    "label": (
        *("label", "labels", "class", "class_name", "classname", "label_name", "category"),
        *("target", "species", "y", "class_id", "label_id", "fine_label", "cls"),
    ),
    "split": ("split", "part", "partition", "subset", "set"),
    "group": ("group", "groups", "group_id"),
}
"""What a column holds, and the names by which one is known, the first one that is there."""
NEEDED = ("image", "label")

Columns = Mapping[str, str]
"""The name of the column of each kind."""


def parse_columns(text: str | None) -> Columns:
    """What `--columns` says, as image=file,label=species; `path` means the same as `image`.

    `split=` and `group=` say that no column is one, whatever it is called.
    """
    found: dict[str, str] = {}
    for word in (text or "").split(",") if text is not None else ():
        kind, sign, name = (part.strip() for part in word.partition("="))
        kind = "image" if kind == "path" else kind
        if not sign or kind not in COLUMNS or (not name and kind in NEEDED):
            raise ValueError(
                f"--columns {shown(str(text))}: expected KIND=COLUMN, with commas between them; "
                f"kinds are {', '.join(COLUMNS)}"
            )
        if kind in found:
            raise ValueError(f"--columns {shown(str(text))}: names two columns for {kind}")
        found[kind] = name
    return found


def find_columns(names: Sequence[str], given: Columns) -> dict[str, str]:
    """The column of each kind that there is: the given ones, and others by their usual names.

    Args:
        names: Of all columns.
        given: As of `parse_columns`; one that is not there is a ValueError. No name means none.
    """
    for kind, name in given.items():
        if name and name not in names:
            raise ValueError(f"no column {shown(name)} for {kind}; {has(names)}")
    found = {kind: name for kind, name in given.items() if name}
    free = {_plain(name): name for name in reversed(names) if name not in given.values()}
    for kind, usual in COLUMNS.items():
        known = [name for name in usual if name in free]
        if kind not in given and known:
            found[kind] = free.pop(known[0])
    if twice := sorted({name for name in found.values() if list(names).count(name) > 1}):
        raise ValueError(f"two columns are called {listed(twice)}")
    return found


def require(found: Columns, kind: str, names: Sequence[str], what: str) -> str:
    """The column of this kind; ValueError where there is none."""
    if kind not in found:
        raise ValueError(
            f"no column {what}; {has(names)}. Say which with --columns {kind}=NAME "
            f"(columns='{kind}=NAME' in Python)"
        )
    return found[kind]


def has(names: Sequence[str]) -> str:
    """What there is, for a message."""
    return f"it has {listed(names)}" if names else "it has none"


def is_column_name(groups: str) -> bool:
    """Whether `--groups` can only be a name, as no one looks for a plain word in every path."""
    return re.fullmatch(r"[\w -]+", groups) is not None


def _plain(name: str) -> str:
    return re.sub(r"[ .-]+", "_", name.strip().lower())
