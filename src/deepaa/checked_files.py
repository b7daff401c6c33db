"""Which files of a folder a training reads: listed, each decoded once, and known again later."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from deepaa import distributed
from deepaa.decoding import names_of
from deepaa.folder import ImageTree
from deepaa.image_files import Reading, shown
from deepaa.scan import LIMIT_BAD, OnBadImage, ScanReport, judge, scan_images

__all__ = ["CheckedFiles", "check_files", "fingerprint_of", "record"]

_log = logging.getLogger(__name__)


class CheckedFiles(NamedTuple):
    """The files to read."""

    tree: ImageTree
    report: ScanReport | None
    """Which were left out, and what else was noticed; None if no file was decoded."""


def check_files(
    tree: ImageTree,
    reading: Reading,
    *,
    scan: bool,
    known: Mapping[str, Any] | None,
    on_bad: OnBadImage,
) -> CheckedFiles:
    """The files of `tree` that can be decoded; the bad ones stop it, all named, or are left out.

    Of several processes each decodes its share, so every file is decoded once.

    Args:
        scan: Whether to decode the files now, unless they are `known`.
        known: What `record` gave for them before. It holds as long as no good file has another
            name, length or class.
    """
    if distributed.is_main():
        for note in tree.notes:
            _log.warning("%s: %s", shown(tree.root), note)
    report = None if known is None else _remembered(tree, known)
    if report is None and scan:
        report = _scanned(tree, reading)
    if report is None:
        if on_bad == "skip":
            raise ValueError("on_bad_image='skip' needs a scan, to know which files to skip")
        return CheckedFiles(tree, None)
    kept = _without(tree, report)
    judge(report, tree, list(kept.labels), on_bad, LIMIT_BAD)  # its error has said it all
    if distributed.is_main():
        for line in report.lines():
            _log.warning("%s: %s", report.place, line)
    return CheckedFiles(kept, report)


def record(report: ScanReport, fingerprint: str) -> dict[str, Any]:
    """What `check_files` knows the files by: the report, and the good files' fingerprint."""
    return {"fingerprint": fingerprint, **report.document()}


def fingerprint_of(root: Path, names: Iterable[bytes], labels: Iterable[int]) -> str:
    """A sha256 over names, lengths and labels of files: cheap, and blind to their bytes."""
    digest = hashlib.sha256()
    for name, label in zip(names, labels, strict=True):
        length = (root / os.fsdecode(name)).stat().st_size
        digest.update(b"%s\0%d\0%d\0" % (name, length, label))
    return digest.hexdigest()


def _remembered(tree: ImageTree, known: Mapping[str, Any]) -> ScanReport | None:
    """The report of these very files, or None if they are others; the same in all processes."""
    try:
        report = ScanReport.of(known, shown(tree.root))
        kept = _without(tree, report)
        same = len(tree.files) == report.files and known["fingerprint"] == fingerprint_of(
            tree.root, map(bytes, names_of(kept)), kept.labels
        )
    except (KeyError, TypeError, ValueError, OSError):  # not what `record` writes, or files gone
        same = False
    return None if distributed.any_rank(not same) else report


def _scanned(tree: ImageTree, reading: Reading) -> ScanReport:
    """Every file decoded once, by one of the processes; the same report in all of them."""
    rank, world = distributed.rank(), distributed.world_size()
    if world == 1:
        return scan_images(tree, reading)
    part = scan_images(tree, reading, range(rank, len(tree.files), world))
    text = np.frombuffer(json.dumps(part.document()).encode(), np.uint8).copy()
    counts = distributed.all_gather_rows(torch.tensor([len(text)]), world).tolist()
    joined = distributed.all_gather_rows(torch.from_numpy(text), counts)
    parts = [
        ScanReport.of(json.loads(bytes(piece.tolist())), part.place)
        for piece in torch.split(joined, counts)
    ]
    bad = [file for each in parts for file in each.bad]
    return part._replace(
        bad=tuple(sorted(bad, key=lambda file: file.path.parts)),  # the order of the files
        damaged_exif=sum(each.damaged_exif for each in parts),
    )


def _without(tree: ImageTree, report: ScanReport) -> ImageTree:
    """The files that are not bad."""
    bad = {tree.root / file.path for file in report.bad}
    kept = [i for i, file in enumerate(tree.files) if file not in bad]
    files, labels = tuple(tree.files[i] for i in kept), tuple(tree.labels[i] for i in kept)
    return tree._replace(files=files, labels=labels)
