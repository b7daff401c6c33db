"""Image files of a folder decoded: all into memory, all to find the bad ones, or a few to show."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from deepaa import distributed
from deepaa.data.arrays import spread
from deepaa.data.folder import all_images
from deepaa.data.image_file import (
    DEFAULT_READING,
    SUFFIXES,
    BadFile,
    Pixels,
    Reading,
    Reason,
    larger_than,
    listed,
    quiet_pillow,
    read_image,
    shown,
)
from deepaa.data.image_stack import ImageStack, told
from deepaa.data.image_tree import ImageTree
from deepaa.files import plural

OnBadImage = Literal["stop", "skip"]
Show = Callable[[str], None]
"""Is told where a job is, in words for a person; in no words when others are to follow."""
FEW_BAD, LIMIT_BAD = 3, 0.01
"""So many bad files may always be left out, and this share of all files where it is more."""
MOST_THREADS = 64
_CHUNK = 256
"""Images decoded at a time: bounds the memory, and the time to an interrupt."""

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


def show_nothing(text: str) -> None:
    """For jobs that nobody looks at."""


class ScanReport(NamedTuple):
    """What a folder's files turned out to be."""

    place: str
    files: int
    """Files that should be images."""
    bad: tuple[BadFile, ...]
    """Those that are none, with their paths below the folder."""
    damaged_exif: int
    """Images whose EXIF data could not be read; they were taken as they are stored."""
    ignored: Mapping[str, int]
    """Entries that were passed over, by why."""

    def bad_summary(self) -> str:
        """The bad files in one line: how many of each reason, and the first ten by name."""
        counts = Counter(str(file.reason) for file in self.bad).most_common()
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in counts)
        names = listed([f"{shown(file.path)} ({file.detail})" for file in self.bad], "; ")
        bad = "is bad" if len(self.bad) == 1 else "are bad"
        return f"{len(self.bad):,} of {plural(self.files, 'file')} {bad} ({reasons}): {names}"

    def lines(self) -> list[str]:
        """What a person should know, one line for each thing; nothing where all is well."""
        found = [self.bad_summary()] if self.bad else []
        if self.damaged_exif:
            images = plural(self.damaged_exif, "image")
            found.append(f"the EXIF data of {images} are damaged, and turn nothing")
        passed = [f"{n:,} {why}" for why, n in sorted(self.ignored.items())]
        return [*found, f"entries passed over: {', '.join(passed)}"] if passed else found

    def to_json(self) -> dict[str, Any]:
        """The report without its place; `json` also brings back names that are no text."""
        bad = [[str(file.path), str(file.reason), file.detail] for file in self.bad]
        found = {"files": self.files, "bad": bad, "damaged_exif": self.damaged_exif}
        return {**found, "ignored": dict(self.ignored)}

    @staticmethod
    def from_json(document: Mapping[str, Any], place: str) -> ScanReport:
        """The report that `to_json` wrote; ValueError, KeyError or TypeError where it is none."""
        entries = document["bad"]
        bad = tuple(BadFile(Path(name), Reason(why), str(detail)) for name, why, detail in entries)
        files, exif = int(document["files"]), int(document["damaged_exif"])
        return ScanReport(place, files, bad, exif, dict(document["ignored"]))


class BadImagesError(ValueError):
    """Files that should be images are not; `report` names them all."""

    def __init__(self, report: ScanReport, advice: str = "") -> None:
        """`advice` says what to do about them."""
        super().__init__(f"{report.place}: {report.bad_summary()}{advice}")
        self.report = report


def read_images(
    tree: ImageTree,
    size: int | None = None,
    reading: Reading = DEFAULT_READING,
    on_bad_image: OnBadImage = "stop",
    *,
    side: int | None = None,
    show: Show = show_nothing,
) -> tuple[Pixels, ImageTree, ScanReport]:
    """The good images (N, 3, H, W) of a folder, their files, and a report.

    Args:
        side: As for `ImageStack`.
        show: Is told how far the reading is.
    """
    stack = ImageStack(len(tree.files), size, tree.place, side=side)
    report = scan_images(tree, reading, stack, show)
    show("")
    good = _good_files(tree, report, on_bad_image)
    return told(stack), good, report


def scan_images(
    tree: ImageTree,
    reading: Reading = DEFAULT_READING,
    stack: ImageStack | None = None,
    show: Show = show_nothing,
) -> ScanReport:
    """Which files are bad: each one is decoded to its end; `stack` takes the good images."""
    text = f"reading {len(tree.files):,} images"
    size = None if stack is None else stack.size
    spare = None if size is None else partial(larger_than, size)

    def decode(i: int) -> BadFile | tuple[Pixels | None, bool]:
        result = read_image(tree.file(i), reading, spare)
        if isinstance(result, BadFile):
            return result._replace(path=result.path.relative_to(tree.root))
        pixels = None if stack is None else stack.prepare(np.asarray(result.image))
        return pixels, result.exif_is_readable

    bad, damaged_exif = [], 0
    for done, result in enumerate(in_threads(decode, len(tree.files))):
        if done % _CHUNK == 0:
            show(f"{text}: {done:,} done" if done else text)
        if isinstance(result, BadFile):
            bad.append(result)
            continue
        pixels, exif_is_readable = result
        damaged_exif += not exif_is_readable
        if stack is not None and pixels is not None:
            stack.add(pixels)
    return ScanReport(tree.place, len(tree.files), tuple(bad), damaged_exif, tree.ignored)


def _good_files(tree: ImageTree, report: ScanReport, on_bad_image: OnBadImage) -> ImageTree:
    """The files without the bad ones; BadImagesError where those may not be left out."""
    kept = _without_bad(tree, report)
    lost = sorted(set(tree.labels) - set(kept.labels))
    most = most_skipped(report.files)
    if report.bad and on_bad_image == "stop":
        advice = ". Repair or remove them"
        if len(report.bad) <= most and not lost:
            advice += ", or leave them out with --on-bad-image skip (on_bad_image='skip' in Python)"
        raise BadImagesError(report, advice)
    if len(report.bad) > most:
        rule = f"{FEW_BAD} files, or {100 * LIMIT_BAD:g} % of all if that is more"
        advice = f". At most {most} of {report.files:,} may be skipped ({rule})"
        raise BadImagesError(report, f"{advice}; repair or remove the others")
    if lost:
        names = ", ".join(shown(tree.class_names[label]) for label in lost)
        raise BadImagesError(report, f". Without them no images are left of {names}")
    if distributed.is_main():
        for line in report.lines():
            _log.warning("%s: %s", report.place, line)
    return kept


def most_skipped(files: int) -> int:
    """How many bad ones of so many files may be left out."""
    return max(FEW_BAD, int(LIMIT_BAD * files))


def _without_bad(tree: ImageTree, report: ScanReport) -> ImageTree:
    bad = {tree.root / file.path for file in report.bad}
    return tree.subset([i for i, file in enumerate(tree.files) if file not in bad])


# Files that are decoded again in every epoch


def check_files(
    tree: ImageTree,
    reading: Reading,
    *,
    scan: bool,
    known: Mapping[str, Any] | None,
    on_bad_image: OnBadImage,
) -> tuple[ImageTree, ScanReport | None]:
    """The files that can be decoded; the bad ones stop it, all named, or are left out.

    `StreamedImages` explains the arguments; `known` holds as long as no good file has another name,
    length or class. The report is None if no file was decoded. Of several processes each decodes
    its share.
    """
    report = None if known is None else _still_valid(tree, known)
    if report is None and scan:
        report = _scan_together(tree, reading)
    if report is None:
        if on_bad_image == "skip":
            raise ValueError("on_bad_image='skip' needs a scan, to know which files to skip")
        return tree, None
    return _good_files(tree, report, on_bad_image), report


def file_fingerprint(names: Iterable[bytes], lengths: Iterable[int], labels: Iterable[int]) -> str:
    """A sha256 over names, lengths and labels of files: cheap, and blind to their bytes."""
    digest = hashlib.sha256()
    for name, length, label in zip(names, lengths, labels, strict=True):
        digest.update(b"%s\0%d\0%d\0" % (name, length, label))
    return digest.hexdigest()


def _still_valid(tree: ImageTree, known: Mapping[str, Any]) -> ScanReport | None:
    """The report of these very files, or None if they are others; the same in all processes."""
    try:
        report = ScanReport.from_json(known, tree.place)
        kept = _without_bad(tree, report)
        same = len(tree.files) == report.files and known["fingerprint"] == file_fingerprint(
            kept.names(), kept.lengths(), kept.labels
        )
    except (KeyError, TypeError, ValueError, OSError):  # not such a record, or files gone
        same = False
    return None if distributed.any_rank(not same) else report


def _scan_together(tree: ImageTree, reading: Reading) -> ScanReport:
    """Every file decoded once, by one of the processes; the same report in all of them."""
    rank, world = distributed.rank(), distributed.world_size()
    part = scan_images(tree.subset(range(rank, len(tree.files), world)), reading)
    parts = distributed.all_gather(part)
    bad = [file for each in parts for file in each.bad]
    return part._replace(
        files=len(tree.files),
        bad=tuple(sorted(bad, key=lambda file: file.path.parts)),  # the order of the files
        damaged_exif=sum(each.damaged_exif for each in parts),
    )


def read_some(source: Path, limit: int, size: int | None) -> Pixels:
    """Up to `limit` images (N, 3, H, W), spread evenly over a folder, or the one of a file."""
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file or folder")
    root, paths = (source, all_images(source)) if source.is_dir() else (source.parent, [source])
    if not paths:
        raise ValueError(f"{source}: no images found; looked for {' '.join(SUFFIXES)}")
    return read_some_of(ImageTree(root, tuple(paths), (0,) * len(paths), (), {}), limit, size)


def read_some_of(tree: ImageTree, limit: int, size: int | None) -> Pixels:
    """Up to `limit` images (N, 3, H, W), spread evenly over a source."""
    tree = tree.subset(spread(len(tree.files), limit))
    stack = ImageStack(len(tree.files), size, tree.place)
    report = scan_images(tree, stack=stack)
    if report.bad:
        raise BadImagesError(report)
    return stack.images()


# Threads


def in_threads(work: Callable[[int], _Result], n: int) -> Iterator[_Result]:
    """`work(i)` for i in 0..n-1, in order; Pillow decodes outside Python's lock."""
    with ThreadPoolExecutor(max_workers=usable_cores(MOST_THREADS)) as pool:
        for start in range(0, n, _CHUNK):
            with quiet_pillow():
                results = list(pool.map(work, range(start, min(n, start + _CHUNK))))
            yield from results


def usable_cores(most: int) -> int:
    """The cores that this process may use, shared with those that torchrun started beside it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    beside = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return min(most, max(1, (cores or 1) // (int(beside) if beside.isdecimal() else 1)))
