"""The process that works in a run folder: its lock, requests to stop it, and its progress line."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Self

from deepaa import distributed
from deepaa.files import columns_of, fit_for, open_regular, printable, read_regular
from deepaa.runs.checkpoint import sync_folder
from deepaa.runs.json_text import RunError

try:
    import fcntl
except ImportError:  # Windows: the lock file alone must do
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
MAX_LOCK_BYTES = 4096
CLEAR_LINE = "\r\x1b[2K"

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
            self._path.unlink()  # before the lock goes, or it could be another's
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
    for _ in range(5):  # the holder may remove its lock file while we open it
        descriptor = _open(path)
        try:
            taken = _try_lock(descriptor)
            if taken is not False and not _is_file_at(descriptor, path):
                os.close(descriptor)  # released and removed since we opened it
                continue
            holder = _parsed(os.read(descriptor, MAX_LOCK_BYTES))
            if taken is False or (holder and _may_be_alive(holder, locks_work=taken is True)):
                raise RunError(_refusal(folder, holder))
            if holder:
                _LOGGER.info("%s: process %s ended without closing", folder, holder["pid"])
            if os.fstat(descriptor).st_nlink > 1:  # what is signed may not appear elsewhere
                path.unlink()
                os.close(descriptor)
                continue
            _sign(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        sync_folder(path.parent)
        _HELD.add(path)
        return FolderLock(path, descriptor)
    raise RunError(f"{folder}: {LOCK} comes and goes: other processes are opening this run")


def is_in_use(folder: Path) -> bool:
    """Whether another process may be working in a run folder; takes no lock."""
    path = folder.resolve() / LOCK
    if path in _HELD:
        return False
    with suppress(OSError):
        holder = _parsed(read_regular(path, MAX_LOCK_BYTES))
        return holder is not None and _may_be_alive(holder, locks_work=False)
    return False


def _open(path: Path) -> int:
    try:
        return open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            message = f"{path.parent}: the folder cannot be written: {error.strerror}"
            raise RunError(message) from error
        if error.errno == errno.EINVAL:
            raise RunError(f"{path}: {error.strerror}; remove it") from error
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
        return os.path.samestat(os.fstat(descriptor), path.lstat())
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


def _parsed(text: bytes) -> dict[str, Any] | None:
    """What a lock file says; None when it says nothing readable."""
    try:
        holder = json.loads(text)
    except (ValueError, RecursionError):  # killed while it signed
        return None
    return holder if isinstance(holder, dict) and {"pid", "host", "since"} <= set(holder) else None


def _may_be_alive(holder: dict[str, Any], *, locks_work: bool) -> bool:
    """Whether the process that signed may still run, although its lock was free to take."""
    if holder["host"] != socket.gethostname():
        return True  # nobody can tell from here: not every shared disk carries locks
    pid = holder["pid"]
    if type(pid) is not int or pid < 1 or pid == os.getpid():
        return False
    if os.name != "nt":  # there os.kill would end it
        try:
            with suppress(PermissionError):
                os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
    start = holder.get("process_start")
    if start is not None:  # the number of a dead process is given to a new one sooner or later
        return bool(start == _process_start(pid))
    return not locks_work


def _process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since the machine did; None where that is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def _refusal(folder: Path, holder: dict[str, Any] | None) -> str:
    if holder is None:
        return f"{folder}: another process is opening this run"
    parts = (printable(str(holder[name]))[:64] for name in ("pid", "host", "since"))
    who = "process {} on {} since {}".format(*parts)
    if holder["host"] == socket.gethostname():
        return f"{folder}: in use by {who}"
    return f"{folder}: in use by {who}; if that process has ended, remove {folder / LOCK}"


class StopAskedError(Exception):
    """Somebody asked to stop: leave what is half done."""


class StopRequest:
    """While it is entered, the first SIGTERM or SIGINT only sets `requested`.

    The work looks at `requested` between steps, saves and leaves with `exit_code`. A second signal
    ends the process at once with the same code. Handlers are set in the main thread alone, Python
    allows no other; elsewhere `requested` stays false. A signal that was ignored before (SIGINT
    under nohup) stays ignored.
    """

    def __init__(self, repeat_after: float = 1.0) -> None:
        """Nothing is set before it is entered.

        Args:
            repeat_after: Signals up to this many seconds after the first count as the same one:
                Ctrl-C in a terminal reaches a process of torchrun twice, once through torchrun.
        """
        self.signal: signal.Signals | None = None
        self._repeat_after = repeat_after
        self._first = 0.0
        self._pid = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the process was asked to stop."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The status to leave with: 143 after SIGTERM, 130 after SIGINT, 0 without a request."""
        return 0 if self.signal is None else 128 + self.signal  # as shells count

    def __enter__(self) -> Self:
        """Set the handlers."""
        if self._before:
            raise RuntimeError("this StopRequest is entered already")
        if threading.current_thread() is threading.main_thread():
            self._pid = os.getpid()
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            # None is a handler that C code had set: Python cannot put that back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # a forked worker leaves Ctrl-C to its parent, which still needs it, but can be ended
            if number == signal.SIGTERM:
                os._exit(128 + number)
        elif self.signal is None:
            self._first = time.monotonic()
            self.signal = signal.Signals(number)
        elif time.monotonic() - self._first >= self._repeat_after:
            os._exit(128 + number)  # no clean-up: it may be what hangs


class ProgressLine:
    """The newest state of a job on stderr.

    A terminal or a notebook shows one line that changes; a log file gets a line every ten seconds.
    Only the main process of several shows anything.
    """

    def __init__(self) -> None:
        """Nothing is shown before the first `update`."""
        self._is_terminal, self._is_notebook = sys.stderr.isatty(), in_notebook()
        self._last = float("-inf")
        self._width = 0  # of the text that a notebook shows

    def update(self, text: str, *, always: bool = False) -> None:
        """Replace the line by `text`; an empty one clears it.

        Args:
            always: Print it also where lines are plain and the last one is not yet old.
        """
        if not text:
            self.clear()
        elif self._is_terminal:
            _show(f"{CLEAR_LINE}{fitted(text, columns_of(sys.stderr) - 1)}")
        elif self._is_notebook:  # which knows the carriage return but not how to clear a line
            _show(f"\r{text:{self._width}}")
            self._width = len(text)
        elif always or time.monotonic() - self._last >= 10:
            self._last = time.monotonic()
            _show(f"{text}\n")

    def __enter__(self) -> Self:
        """Clear the line in the end, before an error is printed."""
        return self

    def __exit__(self, *error: object) -> None:
        """Clear the line."""
        self.clear()

    def message(self, text: str) -> None:
        """Print a line that stays above the one that is rewritten."""
        self.clear()
        notify(text)

    def clear(self) -> None:
        """Remove the line that is rewritten."""
        if self._is_terminal:
            _show(CLEAR_LINE)
        elif self._width:
            _show(f"\r{'':{self._width}}\r")
            self._width = 0


def fitted(text: str, width: int) -> str:
    """As much of a line as `width` columns hold, without half a word or half a number.

    Its parts are parted by two spaces or by commas; those at the end are left out first.
    """
    if len(text) <= width:
        return text
    ends = [found.start() for found in re.finditer(r"  +|, ", text[: width + 2])]
    return text[: ends[-1]] if ends else f"{text[: max(0, width - 3)]}..."


def notify(text: str) -> None:
    """Print one line on stderr, from the main process alone; a terminal gets no broken words."""
    lines = printable(text, keep="\n").split("\n")
    _show("".join(f"{in_terminal(line)}\n" for line in lines))


def print_line(text: str) -> None:
    """Print one line on stdout; a terminal gets no broken words."""
    sys.stdout.write(f"{fit_for(sys.stdout, text)}\n")


def in_terminal(line: str) -> str:
    """A line for stderr, with breaks between words where that is a terminal."""
    return fit_for(sys.stderr, line)


def _show(text: str) -> None:
    if distributed.is_main():
        sys.stderr.write(text)
        sys.stderr.flush()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, or another session of IPython."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def is_interactive() -> bool:
    """Whether somebody looks at stderr, in a terminal or in a notebook."""
    return sys.stderr.isatty() or in_notebook()


def duration(seconds: float) -> str:
    """A time in the unit that people would use: 42 s, 12 min, 3.5 h or 9 days."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.0f} days"
