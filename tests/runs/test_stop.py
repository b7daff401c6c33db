"""signals.py: the first signal asks, the second ends; in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deepaa
from deepaa.runs.stop import StopRequest, exit_code

WORK = """
import os, signal, sys, time
from deepaa.runs.stop import StopRequest
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
    assert worker.ends() == exit_code(second)
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
