"""run_lock.py: one process at a time, and no process that ended keeps a folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from deepaa.runs import lock as run_lock
from deepaa.runs.files import RunError
from deepaa.runs.lock import LOCK, lock_folder

HOLD = """
import os, sys, time
from pathlib import Path
from deepaa.runs.lock import lock_folder
lock = lock_folder(Path(sys.argv[1]))
child = os.fork() if "fork" in sys.argv else 1
if child == 0:
    sys.stdin.close()
    time.sleep(20)
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def line(stream: IO[str] | None) -> str:
    assert stream
    return stream.readline().strip()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path)
    assert line(process.stdout) == "1"
    yield process
    process.kill()
    process.communicate()


def can_lock(folder: Path) -> bool:
    lock_folder(folder).release()
    return not (folder / LOCK).exists()


def test_a_second_process_is_refused(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(RunError) as refused:
        lock_folder(tmp_path)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path}: in use by process {holder.pid} on ")
    assert "\n" not in message
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == holder.pid
    assert holder.stdin
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert line(holder.stdout) == "released"
    assert can_lock(tmp_path)


def test_a_killed_process_holds_nothing(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert (tmp_path / LOCK).exists()
    assert can_lock(tmp_path)


@pytest.mark.slow  # several processes
def test_a_forked_worker_does_not_keep_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    process = start(tmp_path, "fork")
    child = int(line(process.stdout))
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # it still lives
        assert can_lock(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_this_process_cannot_open_twice(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in (tmp_path, tmp_path / "link"):
        with pytest.raises(RunError, match="this process has the run open already"):
            lock_folder(name)
    lock.release()
    other = lock_folder(tmp_path)
    lock.release()  # no longer its own
    assert (tmp_path / LOCK).exists()
    other.release()


def sign(folder: Path, **holder: object) -> None:
    (folder / LOCK).write_text(json.dumps({"since": "2026-01-01T00:00:00+00:00", **holder}))


def test_a_lock_of_another_machine_is_respected(tmp_path: Path) -> None:
    sign(tmp_path, pid=1, host="elsewhere.example")
    with pytest.raises(RunError, match=f"on elsewhere.example .*has ended, remove {tmp_path}/"):
        lock_folder(tmp_path)
    (tmp_path / LOCK).unlink()
    assert can_lock(tmp_path)


def test_the_number_of_a_dead_process_may_be_in_use_again(tmp_path: Path) -> None:
    sign(tmp_path, pid=os.getppid(), host=socket.gethostname(), process_start=1)
    assert can_lock(tmp_path)
    sign(tmp_path, pid=os.getppid(), host=socket.gethostname(), process_start=None)
    assert can_lock(tmp_path)  # where nobody tells the start, the free lock decides


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the start of a process")
def test_a_live_process_that_lost_its_lock_is_respected(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    text = (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).write_text(text)  # a copy, such as a backup tool makes: nothing is locked
    with pytest.raises(RunError, match=f"in use by process {holder.pid} "):
        lock_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', "\0" * 9])
def test_an_unsigned_lock_is_stale(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    assert can_lock(tmp_path)


def test_a_lock_file_that_is_removed_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def slow(descriptor: int, honest: Callable[[int], bool | None] = run_lock._try_lock) -> Any:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()  # its holder releases it between our opening and locking
        return honest(descriptor)

    monkeypatch.setattr(run_lock, "_try_lock", slow)
    lock = lock_folder(tmp_path)
    assert len(calls) == 2
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    lock.release()
    monkeypatch.setattr(run_lock, "_is_file_at", lambda descriptor, path: False)
    with pytest.raises(RunError, match="comes and goes"):
        lock_folder(tmp_path)


def crowd(folder: Path, seconds: float) -> int:
    """How often this process had the folder, checking that nobody else had it too."""
    busy, turns, end = folder / "busy", 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            lock = lock_folder(folder)
        except RunError:
            continue
        busy.touch(exist_ok=False)
        turns += 1
        busy.unlink()
        lock.release()
    return turns


@pytest.mark.slow  # several processes
def test_only_one_of_many_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys, tests.runs.test_lock as t; from pathlib import Path; "
        "print(t.crowd(Path(sys.argv[1]), 1.0))"
    )
    path = os.pathsep.join(filter(None, sys.path))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        for _ in range(3)
    ]
    turns = [int(process.communicate(timeout=60)[0] or -1) for process in processes]
    assert min(turns) > 0, turns
