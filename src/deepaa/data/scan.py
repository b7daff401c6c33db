"""All image files of a folder decoded once, so that every bad one is named before work begins."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from deepaa import distributed
from deepaa.data.folder import ImageTree
from deepaa.data.image_file import (
    DEFAULT_READING,
    BadFile,
    Pixels,
    Reading,
    quiet_pillow,
    read_image,
    shown,
)
from deepaa.data.image_stack import ImageStack
from deepaa.data.scan_report import LIMIT_BAD, OnBadImage, ScanReport, check_on_bad_image

MOST_THREADS = 64
_CHUNK = 256
"""Images decoded at a time: bounds the memory, and the time to an interrupt."""

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class FolderImages(NamedTuple):
    """The good images of a folder."""

    images: Pixels
    """(N, 3, H, W)."""
    labels: list[int]
    report: ScanReport


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
    check_on_bad_image(on_bad_image)
    if not 0 <= limit_bad < 1:
        raise ValueError(f"limit_bad should be in 0..1, got {limit_bad}")
    stack = ImageStack(len(tree.files), size, shown(tree.root))
    verdicts: list[BadFile | bool] = []
    labels: list[int] = []

    def read(i: int) -> tuple[Pixels, bool] | BadFile:
        result = read_image(tree.files[i], reading)
        if isinstance(result, BadFile):
            return result
        return stack.prepare(np.asarray(result.image)), result.exif_is_readable

    for result, label in zip(in_threads(read, len(tree.files)), tree.labels, strict=True):
        if isinstance(result, BadFile):
            verdicts.append(result)
        else:
            stack.add(result[0])
            labels.append(label)
            verdicts.append(result[1])
    report = _report(tree, verdicts)
    report.check(tree, labels, on_bad_image, limit_bad)
    return FolderImages(stack.images(), labels, report)


def scan_images(
    tree: ImageTree, reading: Reading = DEFAULT_READING, only: Sequence[int] | None = None
) -> ScanReport:
    """Which files are bad: each one is decoded to its end, nothing is kept and nothing raised.

    Args:
        only: The numbers of the files to look at; None for all. The report counts all.
    """
    files = tree.files if only is None else [tree.files[i] for i in only]

    def look(i: int) -> BadFile | bool:
        result = read_image(files[i], reading)
        return result if isinstance(result, BadFile) else result.exif_is_readable

    return _report(tree, in_threads(look, len(files)))


def _report(tree: ImageTree, verdicts: Iterable[BadFile | bool]) -> ScanReport:
    """The report of files that are bad, or good with EXIF data that are readable or not."""
    bad, damaged_exif = [], 0
    for verdict in verdicts:
        if isinstance(verdict, BadFile):
            bad.append(verdict._replace(path=verdict.path.relative_to(tree.root)))
        else:
            damaged_exif += not verdict
    return ScanReport(shown(tree.root), len(tree.files), tuple(bad), damaged_exif, tree.ignored)


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

    The report is None if no file was decoded. Of several processes each decodes its share.

    Args:
        scan: Whether to decode the files now, unless they are `known`.
        known: What `scan_record` gave for them before. It holds as long as no good file has
            another name, length or class.
    """
    check_on_bad_image(on_bad_image)
    if distributed.is_main():
        for note in tree.notes:
            _log.warning("%s: %s", shown(tree.root), note)
    report = None if known is None else _still_valid(tree, known)
    if report is None and scan:
        report = _scan_together(tree, reading)
    if report is None:
        if on_bad_image == "skip":
            raise ValueError("on_bad_image='skip' needs a scan, to know which files to skip")
        return tree, None
    kept = _without_bad(tree, report)
    report.check(tree, kept.labels, on_bad_image, LIMIT_BAD)
    if distributed.is_main():
        for line in report.lines():
            _log.warning("%s: %s", report.place, line)
    return kept, report


def scan_record(report: ScanReport, fingerprint: str) -> dict[str, Any]:
    """What `check_files` takes as `known`: the report, and the good files' fingerprint."""
    return {"fingerprint": fingerprint, **report.to_json()}


def file_fingerprint(root: Path, names: Iterable[bytes], labels: Iterable[int]) -> str:
    """A sha256 over names, lengths and labels of files: cheap, and blind to their bytes."""
    digest = hashlib.sha256()
    for name, label in zip(names, labels, strict=True):
        length = (root / os.fsdecode(name)).stat().st_size
        digest.update(b"%s\0%d\0%d\0" % (name, length, label))
    return digest.hexdigest()


def _still_valid(tree: ImageTree, known: Mapping[str, Any]) -> ScanReport | None:
    """The report of these very files, or None if they are others; the same in all processes."""
    try:
        report = ScanReport.from_json(known, shown(tree.root))
        kept = _without_bad(tree, report)
        same = len(tree.files) == report.files and known["fingerprint"] == file_fingerprint(
            tree.root, kept.names(), kept.labels
        )
    except (KeyError, TypeError, ValueError, OSError):  # not such a record, or files gone
        same = False
    return None if distributed.any_rank(not same) else report


def _scan_together(tree: ImageTree, reading: Reading) -> ScanReport:
    """Every file decoded once, by one of the processes; the same report in all of them."""
    rank, world = distributed.rank(), distributed.world_size()
    if world == 1:
        return scan_images(tree, reading)
    part = scan_images(tree, reading, range(rank, len(tree.files), world))
    text = np.frombuffer(json.dumps(part.to_json()).encode(), np.uint8).copy()
    counts = distributed.all_gather_rows(torch.tensor([len(text)]), world).tolist()
    joined = distributed.all_gather_rows(torch.from_numpy(text), counts)
    parts = [
        ScanReport.from_json(json.loads(bytes(piece.tolist())), part.place)
        for piece in torch.split(joined, counts)
    ]
    bad = [file for each in parts for file in each.bad]
    return part._replace(
        bad=tuple(sorted(bad, key=lambda file: file.path.parts)),  # the order of the files
        damaged_exif=sum(each.damaged_exif for each in parts),
    )


def _without_bad(tree: ImageTree, report: ScanReport) -> ImageTree:
    bad = {tree.root / file.path for file in report.bad}
    return tree.subset([i for i, file in enumerate(tree.files) if file not in bad])


# Threads


def in_threads(work: Callable[[int], _Result], n: int) -> Iterator[_Result]:
    """`work(i)` for i in 0..n-1, in order; Pillow decodes outside Python's lock."""
    pool = ThreadPoolExecutor(max_workers=usable_cores(MOST_THREADS))
    try:
        for start in range(0, n, _CHUNK):
            with quiet_pillow():
                results = list(pool.map(work, range(start, min(n, start + _CHUNK))))
            yield from results
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def usable_cores(most: int) -> int:
    """The cores that this process may use, shared with those that torchrun started beside it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    beside = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return min(most, max(1, (cores or 1) // (int(beside) if beside.isdecimal() else 1)))
