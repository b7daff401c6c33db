"""The process of a run: its lock, in real processes; requests to stop; the progress line."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

import deepaa
from deepaa.runs import process as run_process
from deepaa.runs.checkpoint import RunError
from deepaa.runs.process import (
    LOCK,
    ProgressLine,
    StopRequest,
    duration,
    fitted,
    in_notebook,
    is_in_use,
    is_interactive,
    lock_folder,
)

# The lock: one process at a time, and no process that ended keeps a folder

HOLD = """
import os, sys, time
from pathlib import Path
from deepaa.runs.process import lock_folder
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


def start_holder(*arguments: object) -> subprocess.Popen[str]:
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
    process = start_holder(tmp_path)
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
    process = start_holder(tmp_path, "fork")
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

    def slow(descriptor: int, honest: Callable[[int], bool | None] = run_process._try_lock) -> Any:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()  # its holder releases it between our opening and locking
        return honest(descriptor)

    monkeypatch.setattr(run_process, "_try_lock", slow)
    lock = lock_folder(tmp_path)
    assert len(calls) == 2
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    lock.release()
    monkeypatch.setattr(run_process, "_is_file_at", lambda descriptor, path: False)
    with pytest.raises(RunError, match="comes and goes"):
        lock_folder(tmp_path)


def test_whether_another_process_works_in_a_folder(tmp_path: Path) -> None:
    assert not is_in_use(tmp_path)
    lock = lock_folder(tmp_path)
    assert not is_in_use(tmp_path)  # this one does
    lock.release()
    here, parent = socket.gethostname(), os.getppid()
    start = run_process._process_start(parent)
    for pid, host, began, expected in (
        (parent, here, start, True),
        (parent, here, 1, False),  # its number went to another process
        (parent, here, None, True),  # it cannot be told, so it may be
        (2**22 + 1, here, None, False),  # no such process
        (parent, "elsewhere", None, True),
    ):
        sign(tmp_path, pid=pid, host=host, process_start=began)
        assert is_in_use(tmp_path) is expected, (pid, host, began)


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
        "import sys, tests.runs.test_process as t; from pathlib import Path; "
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


# Requests to stop: the first signal asks, the second ends

WORK = """
import os, signal, sys, time
from deepaa.runs.process import StopRequest
with StopRequest(repeat_after=0.3) as stop:
    child = os.fork() if "fork" in sys.argv else 1
    if child == 0:
        time.sleep(20)
        os._exit(7)
    print(child, flush=True)
    end = time.monotonic() + 20
    while not stop.requested and time.monotonic() < end:
        time.sleep(0.01)
    print("saving", flush=True)
    if "hang" in sys.argv:
        time.sleep(20)
    if "fork" in sys.argv:
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 143
    time.sleep(0.2)
    print("saved", flush=True)
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
sys.exit(stop.exit_code)
"""


class Worker:
    def __init__(self, *arguments: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORK, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(deepaa.__file__).parents[1])},
            **options,
        )
        self.child = int(self.line())

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        return self.process.wait(timeout=5)


@pytest.fixture
def start() -> Iterator[Any]:
    workers = []

    def make(*arguments: str, **options: Any) -> Worker:
        workers.append(Worker(*arguments, **options))
        return workers[-1]

    yield make
    for worker in workers:
        worker.process.kill()
        worker.process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_lets_the_work_save(start: Any, number: int, code: int) -> None:
    worker = start()
    worker.send(number)
    assert worker.line() == "saving"
    assert worker.line() == "saved"
    assert worker.ends() == code


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_ends_it_at_once(start: Any, second: int) -> None:
    worker = start("hang")
    worker.send(signal.SIGTERM)
    assert worker.line() == "saving"
    time.sleep(0.4)
    before = time.monotonic()
    worker.send(second)
    assert worker.ends() == 128 + second
    assert time.monotonic() - before < 20
    assert worker.line() == ""


def test_the_echo_of_the_first_is_no_second(start: Any) -> None:
    worker = start()
    worker.send(signal.SIGINT)
    assert worker.line() == "saving"
    worker.send(signal.SIGTERM)
    assert worker.line() == "saved"
    assert worker.ends() == 130


def test_an_ignored_signal_stays_ignored(start: Any) -> None:
    worker = start(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    worker.send(signal.SIGINT)
    time.sleep(0.3)
    worker.send(signal.SIGTERM)
    assert worker.ends() == 143


@pytest.mark.slow  # several processes
def test_a_forked_worker_survives_ctrl_c_and_can_be_ended(start: Any) -> None:
    worker = start("fork")
    os.kill(worker.child, signal.SIGINT)
    time.sleep(0.2)
    worker.send(signal.SIGINT)
    assert [worker.line(), worker.line()] == ["saving", "saved"]  # it ends the child by SIGTERM
    assert worker.ends() == 130


def test_in_this_process() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    stop = StopRequest()
    assert (stop.requested, stop.signal, stop.exit_code) == (False, None, 0)
    with stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        assert stop.signal is signal.SIGTERM
        with pytest.raises(RuntimeError, match="entered already"):
            stop.__enter__()
    assert stop.exit_code == 143
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


def test_handlers_come_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), StopRequest():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_sets_no_handlers() -> None:
    seen = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


# The progress line in a terminal, in a notebook, and in a log file


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "20")
    line = ProgressLine()
    line.update("step 1 of several that are long")
    line.update("step 2")
    line.message("a layer is found")
    line.update("step 3", always=True)
    line.clear()
    return stream.getvalue()


def test_a_terminal_gets_one_line_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert shown(monkeypatch, Terminal()).split("\r\x1b[2K") == [
        "",
        "step 1 of severa...",
        "step 2",
        "a layer is found\n",
        "step 3",
        "",
    ]
    assert is_interactive()


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (79, "layer 1 of 3  left 57 s  similarity 0.838  solarize 0.15, rotate 0.12"),
        (69, "layer 1 of 3  left 57 s  similarity 0.838  solarize 0.15, rotate 0.12"),
        (68, "layer 1 of 3  left 57 s  similarity 0.838  solarize 0.15"),
        (56, "layer 1 of 3  left 57 s  similarity 0.838  solarize 0.15"),
        (55, "layer 1 of 3  left 57 s  similarity 0.838"),
        (20, "layer 1 of 3"),
        (10, "layer 1..."),
    ],
)
def test_a_narrow_terminal_gets_fewer_parts_and_none_is_cut(width: int, text: str) -> None:
    whole = "layer 1 of 3  left 57 s  similarity 0.838  solarize 0.15, rotate 0.12"
    assert fitted(whole, width) == text
    assert len(text) <= width


def test_a_log_file_gets_few_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    text = shown(monkeypatch, io.StringIO())
    assert text == "step 1 of several that are long\na layer is found\nstep 3\n"
    assert not is_interactive()


def test_a_notebook_gets_one_line_without_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = SimpleNamespace(get_ipython=object)
    monkeypatch.setitem(sys.modules, "IPython", kernel)  # type: ignore[arg-type]
    text = shown(monkeypatch, io.StringIO())
    assert "\x1b" not in text
    rest = " " * len(" of several that are long")
    assert text.startswith(f"\rstep 1 of several that are long\rstep 2{rest}\r")
    assert in_notebook()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (7200, "2.0 h"),
        (864_000, "10 days"),
        (359_999, "100.0 h"),
        (360_000, "4 days"),
        (9_000_000, "104 days"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
