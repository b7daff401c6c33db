"""`history.jsonl`: one JSON object a line, appended as the run goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from deepaa.runs.files import to_json, write_error

HISTORY = "history.jsonl"

_LOGGER = logging.getLogger(__name__)


class Mark(NamedTuple):
    """How far the history had come when a state was saved."""

    lines: int
    sha256: str
    """Of these lines."""


NOTHING = Mark(0, hashlib.sha256().hexdigest())


class History:
    """The history of a run that goes on; opening it drops what came after `mark`."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        """Open the file in `folder`, which need not exist."""
        self.path = folder / HISTORY
        self._file = self.path.open("ab", buffering=0)
        try:
            self.cut(mark)
        except BaseException:
            self._file.close()
            raise

    def cut(self, mark: Mark) -> None:
        """Drop the lines after `mark`: the run repeats the steps they came from."""
        content = self.path.read_bytes()
        lines = content.split(b"\n")[:-1][: mark.lines]  # the last is empty, or torn by a kill
        kept = b"".join(line + b"\n" for line in lines)
        self._digest = hashlib.sha256(kept)
        self._lines = len(lines)
        if self.mark() != mark:
            _LOGGER.warning(
                "%s: damaged or changed: the saved state knows %d lines, %d are there%s",
                self.path,
                mark.lines,
                self._lines,
                "" if self._lines < mark.lines else " but differ",
            )
        if len(kept) != len(content):
            os.ftruncate(self._file.fileno(), len(kept))

    def append(self, record: dict[str, Any]) -> None:
        """Add one line; it is out of this process at once, and on disk with the next state."""
        line = f"{to_json(record, 'record')}\n".encode()
        before = os.fstat(self._file.fileno()).st_size
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            with suppress(OSError):  # no half line may stay before the next whole one
                os.ftruncate(self._file.fileno(), before)
            raise write_error(self.path, error) from error
        self._digest.update(line)
        self._lines += 1

    def mark(self) -> Mark:
        """Where the history ends now."""
        return Mark(self._lines, self._digest.hexdigest())

    def sync(self) -> None:
        """Have every line on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_history(folder: str | Path) -> list[dict[str, Any]]:
    """The records of a run, also of one that another process is working on.

    A last line without its end is left out: it is being written, or a kill tore it. Damaged lines
    are left out with a warning.
    """
    path = Path(folder) / HISTORY
    content = path.read_bytes() if path.exists() else b""
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            _LOGGER.warning("%s: line %d is damaged and left out", path, number)
    return records
