"""The labelled images of a folder: which files there are, and which class each belongs to."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from deepaa import distributed
from deepaa.data.hugging_face import saved_advice
from deepaa.data.image_file import SUFFIXES, listed, shown
from deepaa.data.image_tree import ImageTree
from deepaa.data.listing import PART_NAMES
from deepaa.data.splits import NoTestPartError
from deepaa.data.table import table_advice
from deepaa.files import plural

PARTS = ("train", "test", "val", "valid", "validation")
"""Folder names that are parts of a data set, not classes, when they hold class folders.
Of those after train, the first one that does is the test part."""

_log = logging.getLogger(__name__)


def list_images(root: Path, split: str = "train", *, outside_links: bool = False) -> ImageTree:
    """Every image file of a split with its class; no file is opened.

    The classes are the folders in `root`, or those in `root`/train where the data set has parts;
    files may lie at any depth below. The test part has the classes of train, in the same order.

    Args:
        split: "train", or "test", which is also found as val where no folder test holds classes.
            A folder without parts has only "train".
        outside_links: Follow links that lead out of `root`; otherwise they are an error.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{shown(root)}: no such folder")
    part, naming = _part(root, split)
    walk = _Walk(root, outside_links)
    folders = walk.class_folders(part)
    names = folders if naming == part else _folders(naming)
    files = {name: list(walk.images(part / name)) for name in folders}
    walk.refuse_escapes()
    if unknown := [name for name in folders if name not in names]:
        raise ValueError(f"{shown(part)}: {listed(unknown)} is not among the classes of train")
    _check_classes(part, names, [name for name in folders if not files[name]], walk.ignored)
    return ImageTree(
        root,
        tuple(file for found in files.values() for file in found),
        tuple(i for name, found in files.items() for i in [names.index(name)] * len(found)),
        tuple(names),
        dict(+walk.ignored),
    )


def all_images(folder: Path) -> list[Path]:
    """Image files at any depth, whatever their class, sorted by the parts of their path."""
    return list(_Walk(folder, outside_links=True).images(folder))


def _check_classes(
    part: Path, names: list[str], empty: list[str], ignored: Mapping[str, int]
) -> None:
    place = shown(part)
    if not names:
        stray = ignored.get("outside a class folder", 0)
        found = f"{plural(stray, 'image')} but no class folders" if stray else "no class folders"
        advice = "put the images of each class into a folder of its own"
        if (other := saved_advice(part) or table_advice(part)) is not None:
            advice += f", or {other}"
        raise ValueError(f"{place}: {found}; {advice}")
    if set(names) <= set(PARTS):
        advice = "put the images of each class into a folder of its own inside them"
        if (other := table_advice(part)) is not None:
            advice += f", or {other}"
        raise ValueError(f"{place}: {listed(names)} hold images directly; {advice}")
    if parts := _named_like_parts(names):
        advice = "name them train and test, with a folder for each class inside of them"
        if (other := table_advice(part)) is not None:
            advice = other
        elif _folders(train := part / parts["train"]):
            advice = f"give one of them, --data {shown(train)}, or {advice}"
        what = "parts of a data set by their names, and would be taken for classes"
        raise ValueError(f"{place}: {listed([*parts.values()])} are {what}; {advice}")
    if empty:
        missing = f"no images for {len(empty)} of {len(names)} classes: {listed(empty)}"
        advice = f"looked for {' '.join(SUFFIXES)}"
        if len(empty) == len(names) and (other := table_advice(part)) is not None:
            advice = other
        raise ValueError(f"{place}: {missing}; {advice}")
    if len(names) == 1:
        advice = "it takes at least two"
        if (other := table_advice(part)) is not None:  # beside a folder of all images
            advice += f", or {other}"
        raise ValueError(f"{place}: only one class, {shown(names[0])}; {advice}")


def _named_like_parts(names: list[str]) -> dict[str, str]:
    """Folders such as train_images and test_images, by part: else their names are alike."""
    alike: dict[tuple[str, ...], dict[str, str]] = {}
    for name in names:
        words = re.split(r"[\W_]+", name.lower())
        kinds = [PART_NAMES[word] for word in words if word in PART_NAMES]
        if len(kinds) == 1:
            others = tuple(word for word in words if word not in PART_NAMES)
            alike.setdefault(others, {})[kinds[0]] = name
    found = (parts for parts in alike.values() if "train" in parts and len(parts) > 1)
    return next(found, {})


def _part(root: Path, split: str) -> tuple[Path, Path]:
    """The folder of the split, and the folder whose folders name the classes."""
    place = shown(root)
    parts = [name for name in PARTS if _folders(root / name)]
    if not parts and split == "train":
        return root, root
    if not parts:
        raise NoTestPartError(f"{place}: has no test part; a folder of classes is for training")
    others = [name for name in _folders(root) if name not in PARTS]
    if beside := [name for name in others if _holds_image(root / name)]:
        both = f"{listed(parts)} hold folders as the parts of a data set do, but {listed(beside)}"
        advice = "give a folder that has either parts or classes"
        raise ValueError(f"{place}: {both} beside them hold images; {advice}")
    unlabelled = [name for name in PARTS if name not in parts and _holds_image(root / name)]
    wanted = PARTS[1:] if split == "test" else (split,)
    chosen = next((name for name in wanted if name in parts), None)
    if chosen is None:
        more = f"; no class folders in {listed(unlabelled)}" if unlabelled else ""
        empty = [name for name in wanted if (root / name).is_dir() and name not in unlabelled]
        error = ValueError if split == "train" or empty else NoTestPartError
        raise error(f"{place}: has no {split} part; it has {listed(parts)}{more}")
    if chosen not in ("train", "test") and "test" in unlabelled and distributed.is_main():
        left = "test holds images but no class folders, so it is left alone"
        _log.warning("%s: %s; the test images are those of %s", place, left, chosen)
    return root / chosen, root / ("train" if "train" in parts else chosen)


def _folders(folder: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted; empty where there is none."""
    return _Walk(folder, outside_links=True).class_folders(folder) if folder.is_dir() else []


def _is_image_name(name: str) -> bool:
    """Whether a file of that name counts as an image: not hidden, and with a known suffix."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _holds_image(folder: Path) -> bool:
    return any(_is_image_name(name) for _, _, names in os.walk(folder) for name in names)


class _Walk:
    """Goes through the folders of one part; counts what it passes over, notes links that lead out.

    Links inside of the root are followed, but no folder is entered twice for one class.
    """

    def __init__(self, root: Path, outside_links: bool) -> None:
        self.ignored: Counter[str] = Counter()
        self._root, self._outside_links = os.path.realpath(root), outside_links
        self._escapes: list[str] = []

    def class_folders(self, part: Path) -> list[str]:
        """Names of the folders in a part, sorted, without links back to it or to the root."""
        if self._leads_out(part):
            return []
        entries = list(self._entries(part, {os.path.realpath(part), self._root}))
        names = [path.name for path, is_folder in entries if is_folder]
        self.ignored["outside a class folder"] += len(entries) - len(names)
        return names

    def images(self, folder: Path, seen: set[str] | None = None) -> Iterator[Path]:
        """Image files at any depth but not in folders `seen`, sorted by the parts of their path."""
        if seen is None:  # links to the folders above would bring in the images of other classes
            seen = {os.path.realpath(place) for place in (folder, folder.parent, self._root)}
        for path, is_folder in self._entries(folder, seen):
            if is_folder:
                seen.add(os.path.realpath(path))
                yield from self.images(path, seen)
            else:
                yield path

    def _entries(self, folder: Path, seen: set[str]) -> Iterator[tuple[Path, bool]]:
        """Visible image files and folders, sorted, each with whether it is a folder.

        Links that lead out of the root, and those to folders `seen`, are left out.
        """
        with os.scandir(folder) as entries:
            every = sorted(entries, key=lambda entry: entry.name)
        visible = [entry for entry in every if not entry.name.startswith(".")]
        self.ignored["hidden"] += len(every) - len(visible)
        for entry in visible:
            path, is_link = Path(entry.path), entry.is_symlink()
            if is_link and self._leads_out(path):
                continue
            # the entry's own method raises for a link to itself
            is_folder = path.is_dir() if is_link else entry.is_dir()
            if is_folder and os.path.realpath(path) in seen:
                self.ignored["linked again"] += 1
            elif is_folder or _is_image_name(entry.name):
                yield path, is_folder
            else:
                self.ignored["other suffix"] += 1

    def _leads_out(self, path: Path) -> bool:
        real = os.path.realpath(path)
        if self._outside_links or os.path.commonpath([real, self._root]) == self._root:
            return False
        self._escapes.append(str(path))
        return True

    def refuse_escapes(self) -> None:
        """Raises ValueError where links led out of the root."""
        if self._escapes:
            raise ValueError(
                f"{shown(self._root)}: {len(self._escapes)} links lead out of the folder: "
                f"{listed(sorted(self._escapes))}; copy the files, or allow it with "
                "--outside-links (outside_links=True in Python)"
            )
