"""One process at a time works in a run folder: a lock file that outlives no process."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepaa.runs.files import RunError, sync_folder

try:
    import fcntl
except ImportError:  # Windows: the lock file alone must do
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
ATTEMPTS = 5
"""How often to try again when the holder removes its lock file while we open it."""

_LOGGER = logging.getLogger(__name__)

# A POSIX lock does not keep its own process out, and closing any other descriptor of the file
# drops it: so a folder that this process holds is found here, and the file is not touched again.
_HELD: set[Path] = set()


class FolderLock:
    """The right to write in a folder; `release` gives it back."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `lock_folder`."""
        self._path = path
        self._descriptor: int | None = descriptor
        self._owner = os.getpid()

    def release(self) -> None:
        """Give the folder back; again, or in a forked child, it does nothing."""
        if self._descriptor is None or self._owner != os.getpid():
            return
        with suppress(OSError):  # the folder may be gone: nothing is left to give back
            self._path.unlink(missing_ok=True)  # before the lock goes, or it could be another's
        os.close(self._descriptor)
        self._descriptor = None
        _HELD.discard(self._path)


def lock_folder(folder: Path) -> FolderLock:
    """The lock of `folder`, taken from a process that ended without releasing it if need be.

    Raises:
        RunError: Another process holds it, or the folder cannot be written.
    """
    path = folder.resolve() / LOCK
    if path in _HELD:
        raise RunError(f"{folder}: this process has the run open already")
    for _ in range(ATTEMPTS):
        descriptor = _open(path)
        try:
            taken = _try_lock(descriptor)
            if taken is False:
                raise RunError(_refusal(folder, _holder(path)))
            if not _is_file_at(descriptor, path):  # released and removed since we opened it
                os.close(descriptor)
                continue
            holder = _holder(path, descriptor)
            if holder and _may_be_alive(holder, locks_work=taken is True):
                raise RunError(_refusal(folder, holder))
            if holder:
                _LOGGER.info("%s: process %s ended without closing", folder, holder["pid"])
            _sign(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        sync_folder(path.parent)
        _HELD.add(path)
        return FolderLock(path, descriptor)
    raise RunError(f"{folder}: {LOCK} comes and goes: other processes are opening this run")


def is_in_use(folder: Path) -> bool:
    """Whether a process may be working in a run folder; only looks."""
    holder = _holder(folder / LOCK)
    return holder is not None and _may_be_alive(holder, locks_work=False)


def _open(path: Path) -> int:
    try:
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            message = f"{path.parent}: the folder cannot be written: {error.strerror}"
            raise RunError(message) from error
        raise


def _try_lock(descriptor: int) -> bool | None:
    """Whether the lock is ours; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        # not flock: a forked DataLoader worker would keep that one after its parent is killed
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EACCES, errno.EAGAIN) else None
    return True


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write who holds the lock."""
    pid = os.getpid()
    holder = {
        "pid": pid,
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "process_start": _process_start(pid),
    }
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, f"{json.dumps(holder)}\n".encode())
    os.fsync(descriptor)


def _holder(path: Path, descriptor: int | None = None) -> dict[str, Any] | None:
    """What the lock file says; None when it says nothing readable."""
    try:
        if descriptor is None:
            text = path.read_bytes()
        else:
            os.lseek(descriptor, 0, os.SEEK_SET)
            text = os.read(descriptor, 4096)
        holder = json.loads(text)
    except (OSError, ValueError):  # killed while it signed
        return None
    return holder if isinstance(holder, dict) and {"pid", "host", "since"} <= set(holder) else None


def _may_be_alive(holder: dict[str, Any], *, locks_work: bool) -> bool:
    """Whether the process that signed may still run, although its lock was free to take."""
    if holder["host"] != socket.gethostname():
        return True  # nobody can tell from here: not every shared disk carries locks
    pid = holder["pid"]
    if not isinstance(pid, int) or pid == os.getpid() or not _is_running(pid):
        return False
    start = holder.get("process_start")
    if start is not None:  # the number of a dead process is given to a new one sooner or later
        return bool(start == _process_start(pid))
    return not locks_work


def _is_running(pid: int) -> bool:
    if os.name == "nt":  # there os.kill would end it
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since the machine did; None where that is not told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def _refusal(folder: Path, holder: dict[str, Any] | None) -> str:
    if holder is None:
        return f"{folder}: another process is opening this run"
    who = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    if holder["host"] == socket.gethostname():
        return f"{folder}: in use by {who}"
    return f"{folder}: in use by {who}; if that process has ended, remove {folder / LOCK}"
