"""Runs `deepaa search` again and again, kills it, and resumes it: python killing.py OUT ARGUMENTS.

Each attempt is a fork of this process, so that torch is imported once. An attempt dies by SIGKILL
at a random instant, or by its own hand right before one of its file operations.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from PIL import Image  # noqa: F401 - so that forks need not

from deepaa.cli import app as cli
from deepaa.data import load as sources  # noqa: F401 - as above
from deepaa.report import pictures, policy_tables  # noqa: F401 - as above

LAST = ("between layers", "layer 3")
"""From here on attempts die before a file operation: 18 of them, of 15 to a record and 16 to the
search's end, cannot miss the end, as an instant may."""


def attempt(arguments: list[str], die_at: int = 0) -> int:
    """Start the command in a fork; `die_at` counts renames and flushes to disk."""
    pid = os.fork()
    if pid:
        return pid
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    if die_at:
        _arm(die_at)
    os._exit(cli.run(arguments))


def _arm(die_at: int) -> None:
    calls = 0

    def counted(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    os.fsync = counted(os.fsync)
    Path.replace = counted(Path.replace)


def lines(out: Path) -> list[str]:
    path = out / "history.jsonl"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def phase(out: Path) -> str:
    """Where the run in `out` is."""
    if (out / "policy.json").exists():
        return "exported"
    records = [json.loads(line) for line in lines(out)]
    if not records:
        return "start"
    last = records[-1]
    if last["kind"] == "layer":
        return "between layers" if last["layer"] < 3 else "export"
    return f"layer {last['layer']}" if last["kind"] == "step" else "pretrain"


def finish(pid: int) -> bool:
    """Whether the attempt was killed."""
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, status
    return False


def kill_some_time(pid: int, out: Path, chance: random.Random, longest: float) -> None:
    """Kill an attempt up to `longest` seconds after its next record, or before that comes."""
    wanted = len(lines(out)) + 1
    deadline = time.monotonic() + chance.uniform(0.05, 1.5)
    while len(lines(out)) < wanted and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, longest))
    os.kill(pid, signal.SIGKILL)


def wait_for(path: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.002)


def main(out: Path, arguments: list[str], seed: int = 0) -> None:
    torch.set_num_threads(1)
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    by_hand = last = 0
    for number in range(200):
        # a run that was killed before it had settings begins again
        resumes = (out / "config.json").exists()
        now = (
            ["search", "--resume", str(out), "--checkpoint-seconds", "0"] if resumes else arguments
        )
        by_itself = True
        if number == 0:
            pid, by_itself = attempt(now), False
            wait_for(out / "config.json")
            os.kill(pid, signal.SIGKILL)
        elif phase(out) == "export":  # every second file operation from the search's end on
            last += 2
            pid = attempt(now, die_at=last)
        elif number % 2 or phase(out) in LAST:
            pid = attempt(now, die_at=chance.randint(1, 18))
        else:
            pid, by_itself = attempt(now), False
            kill_some_time(pid, out, chance, 0.03)
        if finish(pid):
            killed[phase(out)] += 1
            by_hand += by_itself
        elif (out / "policy.json").exists():
            break
    sys.stdout.write(json.dumps({"killed": killed, "in_file_operations": by_hand}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
