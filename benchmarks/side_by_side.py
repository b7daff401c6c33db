"""Runs the commands of a list side by side on one machine, for a number of minutes.

    python benchmarks/side_by_side.py benchmarks/h200.toml --minutes 28 --out out/h200

For a GPU that is lent by the hour. The list holds tables `[[job]]` with a `name`, a `command` for
the shell, the `minutes` that it takes, and `alone = true` where nothing may run beside it, as for
tests of speed. Jobs begin in the order of the list as soon as a lane is free; one that would not
end in time is left out. At the deadline, or after SIGTERM, what still runs gets SIGTERM, and
SIGKILL half a minute later. In a command `$OUT` is the folder of `--out`, which has a log for each
job, `NAME.log`, and `jobs.json`: exit code and seconds of each, written whenever a job begins or
ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepaa.runs import StopRequest, from_plain, write_json

POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0
"""For a job that was asked to stop, to save what it has."""


@dataclass(frozen=True)
class Job:
    """A line of the list."""

    name: str
    command: str
    minutes: float
    alone: bool = False


@dataclass
class Running:
    """A job at work, in a process group of its own."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, job: Job, out: Path) -> Running:
        """Begin a job; its output goes to `NAME.log`."""
        with (out / f"{job.name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", job.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OUT": str(out), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        return cls(job, process)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the shell and to all that it began."""
        with suppress(ProcessLookupError):  # it ended just now
            os.killpg(self.process.pid, number)


class SideBySide:
    """The jobs of a list, some of them at work."""

    def __init__(self, jobs: Sequence[Job], out: Path, lanes: int) -> None:
        """Nothing begins yet."""
        self.waiting, self.out, self.lanes = list(jobs), out.resolve(), lanes
        self.running: list[Running] = []
        self.outcomes: dict[str, dict[str, Any]] = {job.name: {"state": "waiting"} for job in jobs}

    def run(self, minutes: float) -> dict[str, dict[str, Any]]:
        """What became of each job: its state, exit code and seconds."""
        self.out.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + 60 * minutes
        with StopRequest() as stop:
            while (self.running or self.waiting) and not stop.requested:
                self._leave_out(deadline - time.monotonic())
                while self._may_begin():
                    self._begin(self.waiting.pop(0))
                self._note_ended()
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_SECONDS)
        self._stop_all()
        return self.outcomes

    def _leave_out(self, seconds: float) -> None:
        late = [job for job in self.waiting if 60 * job.minutes > seconds]
        for job in late:
            self.waiting.remove(job)
            self._note(job, state="left out", reason=f"{job.minutes:g} minutes do not fit")

    def _may_begin(self) -> bool:
        if not self.waiting or len(self.running) >= self.lanes:
            return False
        return not self.running or not any(
            job.alone for job in (self.waiting[0], *(each.job for each in self.running))
        )

    def _begin(self, job: Job) -> None:
        self.running.append(Running.start(job, self.out))
        self._note(job, state="running")

    def _note_ended(self, state: str = "ended") -> None:
        for each in [each for each in self.running if each.process.poll() is not None]:
            self.running.remove(each)
            seconds = round(time.monotonic() - each.began, 1)
            self._note(each.job, state=state, exit=each.process.returncode, seconds=seconds)

    def _stop_all(self) -> None:
        for each in self.running:
            each.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self.running and time.monotonic() < deadline:
            self._note_ended("stopped")
            time.sleep(POLL_SECONDS)
        for each in self.running:
            each.signal(signal.SIGKILL)
            each.process.wait()
        self._note_ended("killed")

    def _note(self, job: Job, **outcome: Any) -> None:
        self.outcomes[job.name] = outcome
        write_json(self.out / "jobs.json", self.outcomes)
        words = (f"{key}: {value}" for key, value in outcome.items())
        print(job.name, *words, sep="  ", flush=True)


def read_jobs(path: Path) -> list[Job]:
    """The jobs of a list in TOML, each with a name of its own that can be a file's."""
    jobs = [from_plain(Job, each, defaults=True) for each in tomllib.loads(path.read_text())["job"]]
    names = [job.name for job in jobs]
    for name in names:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{path}: {name!r} should have letters, digits, - and _ alone")
        if names.count(name) > 1:
            raise ValueError(f"{path}: two jobs are called {name!r}")
    return jobs


def main() -> None:
    """Run the list; the exit code is 1 if a job failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("list", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--lanes", type=int, default=2, help="jobs at a time; 2 by default")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    outcomes = SideBySide(read_jobs(given.list), given.out, given.lanes).run(given.minutes)
    raise SystemExit(any(each.get("exit") for each in outcomes.values()))


if __name__ == "__main__":
    main()
