"""What a source is, and the image files of those that list some: folders, tables, shards, rows."""

from __future__ import annotations

import difflib
import logging
import os
from pathlib import Path
from typing import Any

from deepaa import distributed
from deepaa.data import arrays
from deepaa.data.columns import is_column_name, parse_columns
from deepaa.data.embedded import EMBEDDED
from deepaa.data.folder import list_images
from deepaa.data.groups import checked_groups, folder_groups
from deepaa.data.hugging_face import PREFIX, is_name, is_saved, list_rows, open_source
from deepaa.data.image_file import shown
from deepaa.data.image_tree import ImageTree
from deepaa.data.shards import JSON, is_pattern, is_shards, list_shards
from deepaa.data.table import is_table, list_table

_log = logging.getLogger(__name__)


def lists_files(source: str) -> bool:
    """Whether a source is a folder, a table, shards or rows: images that are decoded one by one."""
    path = Path(source)
    return is_name(source) or path.is_dir() or has_columns(source)


def has_columns(source: str) -> bool:
    """Whether labels are in columns, or in files of samples, and not in names of folders."""
    path = Path(source)
    if is_name(source) or is_pattern(source):
        return True
    if path.is_dir():
        return is_saved(path) or is_shards(source)
    return path.exists() and (is_table(source) or is_shards(source))


def absolute_source(source: str | Path | None) -> str | None:
    """A source that means the same from every working folder: paths absolute, names as they are."""
    if source is None:
        return None
    source = with_home(source)
    if is_pattern(source):
        return os.path.abspath(source)  # noqa: PTH100  # no path yet
    return source if _is_name(source) else str(_resolved(Path(source)))


def with_home(source: str | Path) -> str:
    """The source with ~ as the user's own folder, also where no shell has replaced it."""
    text = str(source)
    return os.path.expanduser(text) if text.startswith("~") else text  # noqa: PTH111


def _resolved(path: Path) -> Path:
    """A folder without links; a file keeps its name, as caches link to files without a suffix."""
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name


def absolute_root(root: str | Path | None, *sources: str | Path | None) -> str | None:
    """Where data sets with a name lie, as an absolute path; None where no source is one."""
    named = any(
        s is not None and s != EMBEDDED and _is_name(s) and not has_columns(str(s)) for s in sources
    )
    return str(Path(root or "data").resolve()) if named else None


def _is_name(source: str | Path) -> bool:
    return str(source) in (EMBEDDED, *arrays.SHORT_NAMES.values()) or not Path(source).exists()


def source_name(source: str) -> str:
    """What images are called in records: the name of their folder or data set, or of their file."""
    if is_name(source):
        return source.removeprefix(PREFIX)
    path = Path(source)
    if path.is_dir():
        return path.resolve().name
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def fetch(source: str | None) -> None:
    """Has a data set of Hugging Face in the cache of `datasets`; of other sources does nothing."""
    if source is not None and is_name(source):
        open_source(source, download=True)


def list_source(
    source: str,
    split: str = "train",
    *,
    groups: str | None = None,
    columns: str | None = None,
    outside_links: bool = False,
    download: bool = False,
) -> ImageTree:
    """Every image of a split with its class and its group; no image is opened.

    Args:
        groups: As `DataSpec.groups`; only for the train split.
        columns: As `DataSpec.columns`.
        outside_links: Follow links that lead out of the folder.
        download: Fetch a data set of Hugging Face that is not there.
    """
    source = with_home(source)
    path, groups = Path(source), groups if split == "train" else None
    if not has_columns(source):
        refuse_columns(columns, source)
        tree = list_images(path, split, outside_links=outside_links)
        return tree if groups is None else tree._replace(groups=folder_groups(tree, groups))
    if is_name(source) or (path.is_dir() and is_saved(path)):
        data = open_source(source, download=download)
        return rows_tree(data, shown(source), path, split, columns=columns, groups=groups)
    given, column = parse_columns(columns), _column(groups)
    if is_shards(source):
        listing = list_shards(source, split, given, column)
    else:
        listing = list_table(path, given, column, outside_links=outside_links)
    return _with_groups(listing.tree(split), split, listing.place, groups)


def refuse_columns(columns: str | None, source: str) -> None:
    """Raise ValueError for names of columns, where a source has none."""
    if columns is not None:
        raise ValueError(f"--columns {shown(columns)}: {shown(source)} has no columns")


def rows_tree(
    data: Any, place: str, root: Path, split: str, *, columns: str | None, groups: str | None
) -> ImageTree:
    """The rows of a data set of Hugging Face that make a split, with their groups."""
    listing = list_rows(data, place, root, split, parse_columns(columns), _column(groups))
    return _with_groups(listing.tree(split), split, place, groups)


def _column(groups: str | None) -> str | None:
    """The column or the key that `--groups` names; None for an expression or a table."""
    if groups is None or not (is_column_name(groups) or groups.startswith(JSON)):
        return None
    return groups


def _with_groups(tree: ImageTree, split: str, place: str, groups: str | None) -> ImageTree:
    """The images with the groups that were asked for, or with those of a column that says so."""
    if split != "train":
        return tree._replace(groups=None)
    if groups is not None and _column(groups) is None:
        return tree._replace(groups=folder_groups(tree, groups))
    if tree.groups is None:
        return tree
    if groups is not None:
        return tree._replace(groups=checked_groups(tree.groups.tolist(), f"--groups {groups}"))
    if not 1 < (count := int(tree.groups.max()) + 1) < len(tree.files):
        return tree._replace(groups=None)
    if distributed.is_main():
        of_groups = f"{len(tree.files):,} images in {count:,} groups, by its column of groups"
        _log.warning("%s: %s; each stays in one part", place, of_groups)
    return tree


def unknown_source(source: str) -> Exception:
    """The error for a source that is not there, with names that are like it."""
    if Path(source).is_file():
        return ValueError(
            f"{shown(source)}: expected a folder, an .npz file, a table (.csv, .tsv, .parquet, "
            ".csv.gz) or a shard (.tar)"
        )
    known = [EMBEDDED, *(arrays.SHORT_NAMES.get(name, name) for name in arrays.DATASETS)]
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(source.removeprefix(arrays.TORCHVISION).lower(), by_lower)
    hint = f"; did you mean {' or '.join(by_lower[name] for name in near)}?" if near else "."
    return FileNotFoundError(
        f"{shown(source)}: no such folder, file or data set{hint} Data sets are {', '.join(known)}"
    )
