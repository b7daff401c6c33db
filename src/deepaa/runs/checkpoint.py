"""Files that survive a kill: written whole or not at all, the history, and checkpoints.

At rest a folder holds `state.safetensors` with `manifest.json` and, from the second save on,
`state.previous.safetensors` with `manifest.previous.json`. A save writes a third pair, `next`; the
moment its manifest has its name, the save has happened. Then four renames move each pair one place
on. Whoever opens the folder after a kill finishes the renames, so that at every instant one whole
state at least as new as the last finished save is there. Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from deepaa.files import open_regular, read_regular
from deepaa.runs.json_text import (
    MAX_JSON_BYTES,
    RunError,
    checksum,
    parsed,
    read_json,
    to_json,
)
from deepaa.runs.settings import stored

DRAFT = re.compile(r"\..+-[0-9a-f]{16}\.tmp")
"""Names of files that were being written; a killed process leaves them behind."""
HISTORY = "history.jsonl"

# What file systems answer that cannot flush a folder; there is nothing more to do about it there.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)
_LOGGER = logging.getLogger(__name__)


def write_file(path: Path, data: bytes) -> None:
    """Put `data` at `path`: the whole new file is there and on disk, or the old one stays."""
    # a part of the name, because a long one has no room for more
    draft = path.with_name(f".{path.name[:32]}-{secrets.token_hex(8)}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _move(draft, path)
    except OSError as error:
        raise _write_error(path, error) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _write_error(path: Path, error: OSError) -> OSError:
    return OSError(error.errno, f"could not write, the old file is kept: {error.strerror}", path)


def _move(source: Path, target: Path) -> None:
    """Rename within a folder, and have the new name on disk before anything that follows."""
    source.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to disk, where the file system can do it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def write_json(path: Path, value: object) -> None:
    """Put `value` at `path` as JSON that people can read, whole or not at all."""
    write_file(path, f"{to_json(value, path.name, indent=2)}\n".encode())


class Mark(NamedTuple):
    """How far the history had come when a state was saved."""

    lines: int
    sha256: str
    """Of these lines."""


NOTHING = Mark(0, hashlib.sha256().hexdigest())


class History:
    """`history.jsonl` of a run that goes on: one JSON object a line, appended as they come.

    Opening it drops what came after `mark`.
    """

    def __init__(self, folder: Path, mark: Mark) -> None:
        """Open the file in `folder`, which need not exist."""
        self.path = folder / HISTORY
        self._open()
        if os.fstat(self._file.fileno()).st_nlink > 1:
            # a file of the run alone: what is appended should not appear under the other name
            content = self._file.read()
            self._file.close()
            write_file(self.path, content)
            self._open()
        self.cut(mark)

    def _open(self) -> None:
        try:
            descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._file = os.fdopen(descriptor, "r+b", buffering=0)

    def cut(self, mark: Mark) -> None:
        """Drop the lines after `mark`: the run repeats the steps they came from."""
        self._file.seek(0)
        content = self._file.read()
        lines = content.split(b"\n")[:-1][: mark.lines]  # the last is empty, or torn by a kill
        kept = b"".join(line + b"\n" for line in lines)
        self._digest = hashlib.sha256(kept)
        self._lines = len(lines)
        if Mark(self._lines, self._digest.hexdigest()) != mark:
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
            raise _write_error(self.path, error) from error
        self._digest.update(line)
        self._lines += 1

    def sync(self) -> Mark:
        """Have every line on disk; where the history ends now."""
        os.fsync(self._file.fileno())
        return Mark(self._lines, self._digest.hexdigest())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_history(folder: str | Path) -> list[dict[str, Any]]:
    """The records of a run, also of one that another process is working on.

    A last line without its end is left out: it is being written, or a kill tore it. Damaged lines
    are left out with a warning.
    """
    path, content = Path(folder) / HISTORY, b""
    try:
        content = read_regular(path, MAX_JSON_BYTES)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = parsed(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            _LOGGER.warning("%s: line %d is damaged and left out", path, number)
    return records


class Saved(NamedTuple):
    """A whole state as it was saved."""

    tensors: dict[str, Tensor]
    position: dict[str, Any]
    """Where the run was: phase, layer, step."""
    history: Mark
    is_newest: bool
    """False for the state before, which stands in for a damaged one."""


class _Pair(NamedTuple):
    state: str
    manifest: str


NEWEST = _Pair("state.safetensors", "manifest.json")
PREVIOUS = _Pair("state.previous.safetensors", "manifest.previous.json")
NEXT = _Pair("state.next.safetensors", "manifest.next.json")
DAMAGED = _Pair("state.damaged.safetensors", "manifest.damaged.json")


def save(
    folder: Path, tensors: Mapping[str, Tensor], position: Mapping[str, Any], history: Mark
) -> None:
    """Make these tensors the newest state; the one before is kept.

    Raises:
        OSError: The disk is full or fails; the states that were there stay as they were.
    """
    _rotate(folder)  # one that an I/O error stopped half-way
    data = to_bytes(tensors)
    about = {
        "state": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "position": dict(position),
        "history": history._asdict(),
    }
    manifest = json.loads(to_json(about, "manifest"))
    # of the manifest itself: a flipped bit in a step number would still be valid JSON
    manifest["sha256"] = checksum(manifest)
    try:
        write_file(folder / NEXT.state, data)
        write_json(folder / NEXT.manifest, manifest)
    except OSError:
        if not (folder / NEXT.manifest).exists():
            (folder / NEXT.state).unlink(missing_ok=True)
        raise
    _rotate(folder)


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file with these tensors."""
    # copies, because the format refuses tensors that share memory
    copies = {
        name: torch.clone(tensor.detach().cpu(), memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return safetensors.torch.save(copies)


def _rotate(folder: Path) -> None:
    """Finish a save whose manifest is written; does nothing otherwise.

    The four renames come in this order, and the files that are there show which are done, so
    it can be stopped anywhere and called again.
    """
    if not (folder / NEXT.manifest).exists():
        return
    if (folder / NEXT.state).exists():
        _move_pair(folder, NEWEST, PREVIOUS)
        _move(folder / NEXT.state, folder / NEWEST.state)
    _move(folder / NEXT.manifest, folder / NEWEST.manifest)


def _move_pair(folder: Path, pair: _Pair, target: _Pair) -> None:
    for source, name in zip(pair, target, strict=True):
        if (folder / source).exists():
            _move(folder / source, folder / name)


def recover(folder: Path) -> Saved | None:
    """The newest whole state, after tidying up what a kill left; None when none was saved.

    Only the holder of the folder's lock may call this.
    """
    _rotate(folder)
    (folder / NEXT.state).unlink(missing_ok=True)  # its manifest never came
    found = newest(folder)
    if found and not found.is_newest:
        # out of the way, or the next save would keep it in place of the good one
        _move_pair(folder, NEWEST, DAMAGED)
    return found


def newest(folder: Path) -> Saved | None:
    """The newest whole state, or with a warning the one before it; None when none was saved."""
    problems = []
    for pair in (NEWEST, PREVIOUS):
        if not any((folder / name).exists() for name in pair):
            continue
        try:
            found = _read(folder, pair)
        except RunError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            _LOGGER.warning("%s; the state saved before it is used", problem)
        return found
    if problems:
        raise RunError(f"{'; '.join(problems)}; no whole state is left: start in a new folder")
    return None


def _read(folder: Path, pair: _Pair) -> Saved:
    """One pair, if the checksums of both files are right."""
    place, path = folder / pair.manifest, folder / pair.state
    manifest = read_json(place)
    proof = manifest.pop("sha256", None)
    if proof != checksum(manifest):
        raise RunError(f"{place}: damaged, its checksum is wrong")
    size, lines = (stored(manifest, name, int, place) for name in ("state.bytes", "history.lines"))
    sha256 = stored(manifest, "state.sha256", str, place)
    mark = Mark(max(0, lines), stored(manifest, "history.sha256", str, place))
    position = stored(manifest, "position", dict, place)
    try:
        data = read_regular(path, max(0, size))
    except OSError as error:
        is_longer = error.errno == errno.EFBIG
        reason = f"damaged, not {size} bytes" if is_longer else f"cannot be read: {error.strerror}"
        raise RunError(f"{path}: {reason}") from error
    if len(data) != size:
        raise RunError(f"{path}: damaged, {len(data)} bytes instead of {size}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise RunError(f"{path}: damaged, its checksum is not the one in {pair.manifest}")
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{path}: not a safetensors file ({error})") from None
    return Saved(tensors, position, mark, pair == NEWEST)
