"""All images of a folder, decoded; every bad file is found and named before anything else runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from deepaa.folder import NAMED, ImageTree
from deepaa.image_files import (
    DEFAULT_READING,
    BadFile,
    Decoded,
    Pixels,
    Reading,
    Reason,
    quiet_pillow,
    read_image,
    shown,
)
from deepaa.stack import ImageStack

OnBadImage = Literal["stop", "skip"]
LIMIT_BAD = 0.01
"""More bad files than this share stop the reading even where they may be left out."""
MOST_THREADS = 64
_CHUNK = 256
"""Images decoded at a time: bounds the memory, and the time to an interrupt."""

_Result = TypeVar("_Result")


class ScanReport(NamedTuple):
    """What a folder's files turned out to be."""

    place: str
    files: int
    """Files that should be images."""
    bad: tuple[BadFile, ...]
    damaged_exif: int
    """Images whose EXIF data could not be read; they were taken as they are stored."""
    ignored: Mapping[str, int]
    """Entries that were passed over, by why."""

    def counts(self) -> dict[str, int]:
        """Bad files by reason, the most frequent first."""
        return dict(Counter(str(file.reason) for file in self.bad).most_common())

    def bad_summary(self) -> str:
        """The bad files in one line: how many of each reason, and the first ten by name."""
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.counts().items())
        first = "; ".join(f"{shown(file.path)} ({file.detail})" for file in self.bad[:NAMED])
        more = f"; and {len(self.bad) - NAMED} more" if len(self.bad) > NAMED else ""
        bad = "is bad" if len(self.bad) == 1 else "are bad"
        return f"{len(self.bad)} of {self.files} files {bad} ({reasons}): {first}{more}"

    def lines(self) -> list[str]:
        """What a person should know, one line for each thing; nothing where all is well."""
        found = [self.bad_summary()] if self.bad else []
        if self.damaged_exif:
            found.append(f"{self.damaged_exif} images were not turned: their EXIF data are damaged")
        passed = [f"{n} {why}" for why, n in sorted(self.ignored.items())]
        return [*found, f"passed over: {', '.join(passed)}"] if passed else found

    def document(self) -> dict[str, Any]:
        """The report as JSON can hold it; `json` also brings back names that are no text."""
        bad = [[str(file.path), str(file.reason), file.detail] for file in self.bad]
        found = {"files": self.files, "bad": bad, "damaged_exif": self.damaged_exif}
        return {**found, "ignored": dict(self.ignored)}

    @staticmethod
    def of(document: Mapping[str, Any], place: str) -> ScanReport:
        """The report of a `document`; ValueError, KeyError or TypeError where it is none."""
        bad = tuple(
            BadFile(Path(name), Reason(reason), str(detail))
            for name, reason, detail in document["bad"]
        )
        files, exif = int(document["files"]), int(document["damaged_exif"])
        return ScanReport(place, files, bad, exif, dict(document["ignored"]))


class BadImagesError(ValueError):
    """Files that should be images are not; `report` names them all."""

    def __init__(self, message: str, report: ScanReport) -> None:
        """`message` is what a person reads."""
        super().__init__(message)
        self.report = report


class FolderImages(NamedTuple):
    """The good images of a folder."""

    images: Pixels
    """(N, 3, H, W)."""
    labels: list[int]
    report: ScanReport


def scan_images(
    tree: ImageTree, reading: Reading = DEFAULT_READING, only: Sequence[int] | None = None
) -> ScanReport:
    """Which files are bad: each one is decoded to its end, nothing is kept and nothing raised.

    Args:
        only: The numbers of the files to look at; None for all. The report counts all.
    """
    files = tree.files if only is None else [tree.files[i] for i in only]
    found = _Findings()
    for result in in_threads(lambda i: read_image(files[i], reading), len(files)):
        found.add(result)
    return found.report(tree)


def read_images(
    tree: ImageTree,
    size: int | None = None,
    reading: Reading = DEFAULT_READING,
    *,
    on_bad_image: OnBadImage = "stop",
    limit_bad: float = LIMIT_BAD,
) -> FolderImages:
    """The images of a folder in one array of one size (see `ImageStack`), and a report.

    Args:
        on_bad_image: "stop" raises BadImagesError once all files were looked at; "skip" leaves the
            bad ones out unless they are more than `limit_bad` of all, or all of a class.
    """
    if on_bad_image not in get_args(OnBadImage):
        raise ValueError(f"on_bad_image should be 'stop' or 'skip', got {on_bad_image!r}")
    if not 0 <= limit_bad < 1:
        raise ValueError(f"limit_bad should be in 0..1, got {limit_bad}")
    stack = ImageStack(len(tree.files), size, shown(tree.root))
    found = _Findings()
    labels: list[int] = []

    def one(i: int) -> tuple[Pixels, bool] | BadFile:
        result = read_image(tree.files[i], reading)
        if isinstance(result, BadFile):
            return result
        return stack.prepare(np.asarray(result.image)), result.exif_is_readable

    for i, result in enumerate(in_threads(one, len(tree.files))):
        found.add(result)
        if not isinstance(result, BadFile):
            stack.add(result[0])
            labels.append(tree.labels[i])
    report = found.report(tree)
    judge(report, tree, labels, on_bad_image, limit_bad)
    return FolderImages(stack.images(), labels, report)


class _Findings:
    """Counts results as they come."""

    def __init__(self) -> None:
        self._bad: list[BadFile] = []
        self._damaged_exif = 0

    def add(self, result: Decoded | BadFile | tuple[Pixels, bool]) -> None:
        if isinstance(result, BadFile):
            self._bad.append(result)
        else:
            self._damaged_exif += not result[1]

    def report(self, tree: ImageTree) -> ScanReport:
        bad = tuple(file._replace(path=file.path.relative_to(tree.root)) for file in self._bad)
        place = shown(tree.root)
        return ScanReport(place, len(tree.files), bad, self._damaged_exif, tree.ignored)


def judge(
    report: ScanReport, tree: ImageTree, labels: list[int], on_bad: OnBadImage, limit: float
) -> None:
    """Stop, with the bad files named, where they are too many or none may be skipped."""
    if not report.bad:
        return
    message = f"{report.place}: {report.bad_summary()}"
    if on_bad == "stop":
        raise BadImagesError(
            f"{message}. Repair or remove them, or leave them out with --on-bad-image skip "
            "(on_bad_image='skip' in Python)",
            report,
        )
    if len(report.bad) > limit * report.files:
        raise BadImagesError(f"{message}. More than {limit:.4g} of all is too many to skip", report)
    if lost := sorted(set(tree.labels) - set(labels)):
        names = ", ".join(shown(tree.class_names[label]) for label in lost)
        raise BadImagesError(f"{message}. Without them no images are left of {names}", report)


def in_threads(work: Callable[[int], _Result], n: int) -> Iterator[_Result]:
    """`work(i)` for i in 0..n-1, in order; Pillow decodes outside Python's lock."""
    pool = ThreadPoolExecutor(max_workers=own_cores(MOST_THREADS))
    try:
        for start in range(0, n, _CHUNK):
            with quiet_pillow():
                results = list(pool.map(work, range(start, min(n, start + _CHUNK))))
            yield from results
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def own_cores(most: int) -> int:
    """The cores that this process may use, shared with those that torchrun started beside it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    beside = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return min(most, max(1, (cores or 1) // (int(beside) if beside.isdecimal() else 1)))
