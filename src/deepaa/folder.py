"""The labelled images of a folder: which files there are, and which class each belongs to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deepaa.image_files import SUFFIXES, shown

PARTS = ("train", "test", "val", "valid", "validation")
"""Folder names that are parts of a data set, not classes, when they hold class folders."""
STANDS_FOR = {"test": ("val", "valid", "validation")}
"""Folders that serve as a split when none has its name."""
NAMED = 10
"""How many files, classes or links an error names; it counts the rest."""


class ImageTree(NamedTuple):
    """Image files under their classes, in a stable order: by class name, then by path."""

    root: Path
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    ignored: Mapping[str, int]
    """How many entries were passed over: hidden, other suffix, outside a class, linked again."""
    notes: tuple[str, ...] = ()
    """What else was passed over, in words for the log."""

    def only(self, places: Sequence[int]) -> ImageTree:
        """The same with these files alone."""
        note = f"{len(places):,} of {len(self.files):,} images are enough, and no others are read"
        return self._replace(
            files=tuple(self.files[i] for i in places),
            labels=tuple(self.labels[i] for i in places),
            notes=(*self.notes, note),
        )


def list_images(root: Path, split: str = "train", *, outside_links: bool = False) -> ImageTree:
    """Every image file of a split with its class; no file is opened.

    The classes are the folders in `root`, or those in `root`/train where the data set has parts;
    files may lie at any depth below. Another split has the classes of train, in the same order.

    Args:
        split: The part of the data set; "test" is also found as val, valid or validation where no
            folder test holds classes. A folder without parts has only "train".
        outside_links: Follow links that lead out of `root`; otherwise they are an error.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{shown(root)}: no such folder")
    part, naming = _part(root, split)
    class_names = tuple(_class_folders(naming, root))
    folders = _class_folders(part, root)
    if unknown := [name for name in folders if name not in class_names]:
        raise ValueError(f"{shown(part)}: {_listed(unknown)} is not among the classes of train")
    walk = _Walk(root, outside_links)
    walk.count_strays(part)
    files: list[Path] = []
    labels: list[int] = []
    empty: list[str] = []
    for name in folders:
        found = walk.images(part / name)
        files += found
        labels += [class_names.index(name)] * len(found)
        if not found:
            empty.append(name)
    walk.refuse_escapes()
    _check_classes(part, class_names, empty, walk.ignored)
    notes = _passed_over(root, split, part)
    return ImageTree(root, tuple(files), tuple(labels), class_names, dict(+walk.ignored), notes)


def unlabelled_parts(root: Path) -> list[str]:
    """Names of the parts that hold images but no class folders, as the test images of ImageNet."""
    return [name for name in PARTS if not _folders(root / name) and _holds_image(root / name)]


def _passed_over(root: Path, split: str, part: Path) -> tuple[str, ...]:
    """Which part another one stands for, if it is there but has no labels."""
    stands_in = part.name in STANDS_FOR.get(split, ())
    if not stands_in or split not in unlabelled_parts(root):
        return ()
    return (
        f"{split} holds images but no class folders, so it is left alone; the {split} images are "
        f"those of {part.name}",
    )


def _check_classes(
    part: Path, names: tuple[str, ...], empty: list[str], ignored: Mapping[str, int]
) -> None:
    place = shown(part)
    if not names:
        stray = ignored.get("outside a class folder", 0)
        found = f"{stray} images but no class folders" if stray else "no class folders"
        raise ValueError(f"{place}: {found}; put the images of each class into a folder of its own")
    if set(names) <= set(PARTS):
        raise ValueError(
            f"{place}: {_listed(names)} hold images directly; "
            "put the images of each class into a folder of its own inside them"
        )
    if empty:
        raise ValueError(f"{place}: no images for {len(empty)} of {len(names)} classes: "
                         f"{_listed(empty)}; looked for {' '.join(SUFFIXES)}")  # fmt: skip
    if len(names) == 1:
        raise ValueError(f"{place}: only one class, {shown(names[0])}; it takes at least two")


def _part(root: Path, split: str) -> tuple[Path, Path]:
    """The folder of the split, and the folder whose folders name the classes."""
    if not split or Path(split).name != split or split == "..":
        raise ValueError(f"split should be the name of a part such as 'train', got {split!r}")
    parts = [name for name in dict.fromkeys((*PARTS, split)) if _folders(root / name)]
    if not parts:
        if split != "train":
            raise ValueError(
                f"{shown(root)}: has no part {split!r}; a folder of classes is 'train'"
            )
        return root, root
    others = [f for f in _folders(root) if f not in (*parts, *PARTS)]
    if beside := [f for f in others if _holds_image(root / f)]:
        raise ValueError(
            f"{shown(root)}: {_listed(parts)} hold folders as the parts of a data set do, but "
            f"{_listed(beside)} beside them hold images; give a folder that has either parts or "
            "classes"
        )
    chosen = next((n for n in (split, *STANDS_FOR.get(split, ())) if n in parts), None)
    if chosen is None:
        flat = unlabelled_parts(root)
        more = f"; no class folders in {_listed(flat)}" if flat else ""
        raise ValueError(f"{shown(root)}: has no part {split!r}; it has {_listed(parts)}{more}")
    return root / chosen, root / ("train" if "train" in parts else chosen)


def _folders(folder: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted; empty where there is none."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if _is_folder(e) and not e.name.startswith("."))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return Path(entry.path).is_dir()  # the entry's own method raises for a link to itself


def _class_folders(folder: Path, root: Path) -> list[str]:
    """The same without links to the folders above, which would be a class of all images."""
    return [name for name in _folders(folder) if not _leads_back(folder / name, folder, root)]


def _leads_back(path: Path | str, *above: Path) -> bool:
    return os.path.realpath(path) in {os.path.realpath(place) for place in above}


def _holds_image(folder: Path) -> bool:
    return any(
        name.lower().endswith(SUFFIXES) and not name.startswith(".")
        for _, _, names in os.walk(folder)
        for name in names
    )


class _Walk:
    """Goes through folders below a root; remembers what it passed over and what it refused."""

    def __init__(self, root: Path, outside_links: bool) -> None:
        self.ignored: Counter[str] = Counter()
        self._root = os.path.realpath(root)
        self._outside_links = outside_links
        self._escapes: set[str] = set()

    def count_strays(self, folder: Path) -> None:
        """Counts what lies beside the class folders."""
        for entry in self._entries(folder):
            if not _is_folder(entry):
                image = entry.name.lower().endswith(SUFFIXES)
                self.ignored["outside a class folder" if image else "other suffix"] += 1
            elif _leads_back(entry.path, folder, Path(self._root)):
                self.ignored["linked again"] += 1

    def images(self, folder: Path) -> list[Path]:
        """Image files at any depth, sorted by the parts of their path; each folder once."""
        # links to the folders above would bring in the images of other classes
        seen = {os.path.realpath(place) for place in (folder, folder.parent, self._root)}
        found: list[Path] = []
        waiting = [folder] if not self._leads_out(folder) else []
        while waiting:
            for entry in self._entries(waiting.pop()):
                if _is_folder(entry):
                    real = os.path.realpath(entry.path)
                    if real in seen:
                        self.ignored["linked again"] += 1
                    else:
                        seen.add(real)
                        waiting.append(Path(entry.path))
                elif entry.name.lower().endswith(SUFFIXES):
                    found.append(Path(entry.path))
                else:
                    self.ignored["other suffix"] += 1
        return sorted(found, key=lambda path: path.parts)

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """Visible entries in sorted order, without links that lead out of the root."""
        with os.scandir(folder) as entries:
            every = sorted(entries, key=lambda entry: entry.name)
        visible = [entry for entry in every if not entry.name.startswith(".")]
        self.ignored["hidden"] += len(every) - len(visible)
        return [e for e in visible if not (e.is_symlink() and self._leads_out(Path(e.path)))]

    def _leads_out(self, path: Path) -> bool:
        if self._outside_links:
            return False
        if os.path.commonpath([os.path.realpath(path), self._root]) == self._root:
            return False
        self._escapes.add(str(path))
        return True

    def refuse_escapes(self) -> None:
        """Raises ValueError where links led out of the root."""
        if self._escapes:
            links = sorted(self._escapes)
            raise ValueError(
                f"{shown(self._root)}: {len(links)} links lead out of the folder: "
                f"{_listed(links)}; copy the files, or allow it with --outside-links "
                "(outside_links=True in Python)"
            )


def _listed(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown(name) for name in names[:NAMED]) + more
