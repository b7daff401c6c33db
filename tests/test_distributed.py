"""distributed.py: with one process nothing happens; with two gloo processes, real exchanges."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from deepaa import distributed


@given(st.integers(0, 1000), st.integers(1, 64))
def test_shares_are_even_and_in_order(n: int, world: int) -> None:
    shares = [distributed.share(n, rank, world) for rank in range(world)]
    assert [i for share in shares for i in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("n", "rank", "world"), [(-1, 0, 1), (4, 2, 2), (4, -1, 2), (4, 0, 0)])
def test_no_such_share(n: int, rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="no such share"):
        distributed.share(n, rank, world)


def test_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert distributed.init("cpu") == torch.device("cpu")
    assert not torch.distributed.is_initialized()
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    rows = torch.rand(3, 2)
    assert distributed.all_gather(rows)[0] is rows
    assert distributed.from_main(lambda: rows) is rows
    assert distributed.any_rank(True) is True
    assert distributed.any_rank(False) is False
    distributed.shutdown()


def test_settings_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ValueError, match="not RANK, LOCAL_RANK, MASTER_ADDR: start with torchrun"):
        distributed.init("cpu")


# Two processes


ROWS = {
    torch.float32: torch.arange(15).view(5, 3) / 7,
    torch.float64: torch.arange(5, dtype=torch.float64) / 7,
    torch.bfloat16: torch.arange(20).view(5, 2, 2).bfloat16(),
    torch.int64: torch.arange(-2, 3),
    torch.uint8: torch.arange(20, dtype=torch.uint8).view(5, 4),
    torch.bool: torch.arange(5) % 2 == 0,
}


def exchanges(folder: str) -> None:
    """Gather, ask and meet; each rank writes what it saw."""
    distributed.init("cpu", timeout=60)
    rank, world = distributed.rank(), distributed.world_size()
    assert distributed.is_main() == (rank == 0)
    wrong = []
    for sizes in ([3, 2], [5, 0], [0, 5], [0, 0]):
        start = sum(sizes[:rank])
        for dtype, rows in ROWS.items():
            mine = rows[start : start + sizes[rank]]
            got = torch.cat(distributed.all_gather(mine))
            if got.dtype != dtype or not got.equal(rows[: sum(sizes)]):
                wrong.append(f"{sizes} {dtype}: {got}")
    columns = torch.arange(10.0).view(2, 5).T  # not contiguous
    share = distributed.share(5, rank, world)
    if not torch.cat(distributed.all_gather(columns[share.start : share.stop])).equal(columns):
        wrong.append("columns")
    flags = [distributed.any_rank(flag) for flag in (False, True, rank == 0, rank == 1, rank == 2)]
    if rank == 1:
        time.sleep(0.5)
    before = time.monotonic()
    distributed.any_rank(False)
    waited = time.monotonic() - before
    distributed.shutdown()
    report = {"wrong": wrong, "flags": flags, "waited": waited, "world": world}
    Path(folder, f"{rank}.json").write_text(json.dumps(report))


def wait_for_a_stop(folder: str) -> None:
    """Steps of unequal length until any rank is signalled; then all leave after the same step."""
    from deepaa.runs import StopRequest

    distributed.init("cpu", timeout=30)
    rank = distributed.rank()
    steps = 0
    with StopRequest() as stop:
        Path(folder, f"pid-{rank}").write_text(f"{os.getpid()}\n")
        while not distributed.any_rank(stop.requested) and steps < 10_000:
            steps += 1
            time.sleep(0.005 * (1 + rank))
        time.sleep(0.3)  # saving
        Path(folder, f"saved-{rank}").write_text(str(steps))
    distributed.shutdown()
    sys.exit(stop.exit_code or 143)


def lose_a_rank(folder: str, how: str, timeout: str) -> None:
    """Rank 1 goes away after the first exchange; rank 0 says how it noticed."""
    distributed.init("cpu", timeout=float(timeout))
    distributed.any_rank(False)
    if distributed.rank() == 1:
        Path(folder, "gone").touch()
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    before = time.monotonic()
    try:
        distributed.all_gather(torch.zeros(1))
    except RuntimeError as error:
        seconds = time.monotonic() - before
        Path(folder, "noticed").write_text(json.dumps([str(error), seconds]))
        os._exit(3)


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def start() -> Iterator[Any]:
    processes: list[subprocess.Popen[str]] = []

    def make(call: str, *arguments: object) -> list[subprocess.Popen[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        code = f"import sys, tests.test_distributed as t; t.{call}(*sys.argv[1:])"
        for rank in ("0", "1"):
            settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", code, *map(str, arguments)],
                    env={**environment(), **settings, **address},
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return processes

    yield make
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow  # several processes
def test_exchanges_of_two_processes(tmp_path: Path, start: Any) -> None:
    for process in start("exchanges", tmp_path):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for report in reports:
        assert report["wrong"] == []
        assert report["flags"] == [False, True, True, True, False]
        assert report["world"] == 2
    assert reports[0]["waited"] > 0.3


def await_files(*paths: Path) -> list[str]:
    end = time.monotonic() + 60
    while not all(path.exists() and path.read_text().endswith("\n") for path in paths):
        assert time.monotonic() < end, paths
        time.sleep(0.02)
    return [path.read_text() for path in paths]


@pytest.mark.slow  # several processes
def test_the_signal_of_one_rank_stops_all_at_the_same_step(tmp_path: Path, start: Any) -> None:
    processes = start("wait_for_a_stop", tmp_path)
    await_files(tmp_path / "pid-0", tmp_path / "pid-1")
    time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)
    for process in processes:
        assert process.wait(timeout=10) == 143
    steps = {(tmp_path / f"saved-{rank}").read_text() for rank in (0, 1)}
    assert len(steps) == 1


@pytest.mark.parametrize(("how", "timeout", "limit"), [("dies", 60, 30), ("hangs", 2, 20)])
@pytest.mark.slow  # several processes
def test_a_lost_rank_does_not_hang_the_others(
    tmp_path: Path, start: Any, how: str, timeout: int, limit: float
) -> None:
    first, _ = start("lose_a_rank", tmp_path, how, timeout)
    assert first.wait(timeout=60) == 3
    message, seconds = json.loads((tmp_path / "noticed").read_text())
    assert "process 0: another process has ended or does not answer" in message
    assert "\n" not in message
    assert seconds < limit


@pytest.mark.slow  # several processes
def test_ctrl_c_under_torchrun_lets_every_rank_save(tmp_path: Path) -> None:
    """The terminal signals the whole group, and torchrun passes it on: ranks get it twice."""
    script = tmp_path / "work.py"
    script.write_text("import sys, tests.test_distributed as t\nt.wait_for_a_stop(sys.argv[1])\n")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    group = subprocess.Popen(
        [sys.executable, *command, script, tmp_path],
        env=environment(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await_files(tmp_path / "pid-0", tmp_path / "pid-1")
        os.killpg(group.pid, signal.SIGINT)
        assert group.wait(timeout=20) != 0
    finally:
        group.kill()
        group.wait()
    steps = {(tmp_path / f"saved-{rank}").read_text() for rank in (0, 1)}
    assert len(steps) == 1
