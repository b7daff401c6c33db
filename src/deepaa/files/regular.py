"""Opening files without waiting for a pipe, and without following a link to another place."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_LINK_ERRORS = (errno.ELOOP, errno.EMLINK)  # what systems answer to O_NOFOLLOW
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, links: bool = False) -> int:
    """The descriptor of a regular file; a link, a pipe, a device or a folder is an OSError.

    Nothing is waited for, and what is at the path cannot be exchanged between check and use.

    Args:
        flags: As for `os.open`.
        links: Whether the path itself may be a link. Say so for a path that a person has given,
            and not for a name inside of a folder that somebody else may have filled.
    """
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if not links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if not hasattr(os, "O_NOFOLLOW") and Path(path).is_symlink():
            raise _refusal(path, "a link")
    try:
        descriptor = os.open(path, flags, 0o644)
    except ValueError:  # a NUL in the name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    except OSError as error:
        if error.errno in _LINK_ERRORS and not links:
            raise _refusal(path, "a link") from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise _refusal(path, _kind(os.lstat(path).st_mode)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _refusal(path, _kind(mode))
    return descriptor


def read_regular(path: str | Path, most: int, *, links: bool = False) -> bytes:
    """The bytes of a regular file, if they are at most `most`; see `open_regular`."""
    with os.fdopen(open_regular(path, links=links), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""  # it may grow meanwhile
    if max(size, len(data)) > most:
        reason = f"{max(size, len(data)):,} bytes; at most {most:,} are read"
        raise OSError(errno.EFBIG, reason, str(path))
    return data


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")


def _refusal(path: str | Path, what: str) -> OSError:
    return OSError(errno.EINVAL, f"{what}, expected a regular file", str(path))
