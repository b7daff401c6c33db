"""Processes that tests leave behind: found by a mark in their environment, or as children."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

MARK = "DEEPAA_TEST_SESSION"
SERVICES = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"torch._inductor")
"""Helpers that Python and torch keep as long as the session lives; they end with it."""


def left_behind(session: str, seconds: float = 5.0) -> list[str]:
    """What still runs of this process and of `session` after some time to end: lines for a person.

    Empty where there is no /proc.
    """
    deadline = time.monotonic() + seconds
    while (found := _running(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _running(session: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes()
            marks = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # ended, or another user's
            continue
        is_ours = int(status[1]) == os.getpid() or f"{MARK}={session}".encode() in marks
        if not is_ours or int(folder.name) == os.getpid() or status[0] in "ZX":
            continue
        if not any(service in words for service in SERVICES):
            found.append(f"{folder.name}: {words.replace(bytes(1), b' ').decode()[:200]}")
    return found


def open_terminal(columns: int = 80) -> tuple[int, int]:
    """Both ends of a pseudo terminal of a width: the one to read, and the one for a program."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return outer, inner


def lines_shown(text: str) -> list[str]:
    """Every line that a terminal showed, also those that were replaced, without its codes."""
    parts = re.split(r"\r\x1b\[2K|\r?\n", text)
    return [re.sub(r"\x1b\[[0-9;]*m", "", part) for part in parts if part]


def read_terminal(descriptor: int) -> str:
    """All that a program writes to a pseudo terminal until it closes its end."""
    shown = b""
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    return shown.decode()


def run_group(
    words: Sequence[str], *, text: str, environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program in a group of its own, which is ended as a whole if it takes too long."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(text, timeout=timeout)
        except BaseException:
            os.killpg(process.pid, 9)
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)
