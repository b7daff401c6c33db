"""Files that are written whole or not at all, and strict JSON: runs, policies, benchmarks."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

DRAFT = re.compile(r"\..+-[0-9a-f]{16}\.tmp")
"""Names of files that were being written; a killed process leaves them behind."""

# What file systems answer that cannot flush a folder; there is nothing more to do about it there.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)


class RunError(ValueError):
    """A run folder that cannot be used; the message names the folder and the reason."""


def write_file(path: Path, data: bytes) -> None:
    """Put `data` at `path`: the whole new file is there and on disk, or the old one stays."""
    # a part of the name, because a long one has no room for more
    draft = path.with_name(f".{path.name[:32]}-{secrets.token_hex(8)}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        move(draft, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_error(path: Path, error: OSError) -> OSError:
    """The error to raise when `path` could not be written; it keeps the number of `error`."""
    return OSError(error.errno, f"could not write, the old file is kept: {error.strerror}", path)


def move(source: Path, target: Path) -> None:
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


def remove_drafts(folder: Path) -> None:
    """Remove what a killed process was writing. Only the holder of the lock may do so."""
    for path in folder.iterdir():
        if DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)


def to_json(value: object, place: str, *, indent: int | None = None) -> str:
    """`value` as strict JSON; `place` says in errors what it is.

    Raises:
        ValueError: A number is NaN or infinite.
        TypeError: A value has no form in JSON, or a key is no text.
    """
    _check(value, place)
    return json.dumps(value, allow_nan=False, indent=indent)


def _check(value: object, place: str) -> None:
    if value is None or isinstance(value, str | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place}: {value} has no form in JSON; write None for no value")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{place}: the key {key!r} is no text")
            _check(part, f"{place}, {key}")
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            _check(part, f"{place}, {i}")
    else:
        kind = type(value).__name__
        raise TypeError(f"{place}: {kind} has no form in JSON; give text, numbers, lists or dicts")


def write_json(path: Path, value: object) -> None:
    """Put `value` at `path` as JSON that people can read, whole or not at all."""
    write_file(path, f"{to_json(value, path.name, indent=2)}\n".encode())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also text that is no UTF-8
        raise RunError(f"{path}: damaged, not JSON ({error})") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: damaged, expected an object")
    return value
