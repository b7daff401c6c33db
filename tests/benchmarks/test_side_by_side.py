"""Jobs side by side: who runs beside whom, what does not fit, and what a deadline leaves."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from side_by_side import Job, SideBySide, read_jobs

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "side_by_side.py"
NOTE = 'echo "$0 begins" >> order; sleep 0.6; echo "$0 ends" >> order'


def noted(name: str, folder: Path, *, alone: bool = False) -> Job:
    """A job that writes down when it begins and ends."""
    command = NOTE.replace("$0", name).replace("order", str(folder / "order"))
    return Job(name, command, minutes=0.1, alone=alone)


def test_two_run_beside_each_other_and_one_that_wants_to_be_alone_does_not(tmp_path: Path) -> None:
    jobs = [noted("a", tmp_path), noted("b", tmp_path), noted("c", tmp_path, alone=True)]
    jobs.append(noted("d", tmp_path))
    outcomes = SideBySide(jobs, tmp_path / "out", 2).run(1)
    assert [(each["state"], each["exit"]) for each in outcomes.values()] == [("ended", 0)] * 4
    order = (tmp_path / "order").read_text().splitlines()
    assert {*order[:2]} == {"a begins", "b begins"}
    assert order[4:] == ["c begins", "c ends", "d begins", "d ends"]


def test_logs_exit_codes_and_the_folder_are_told(tmp_path: Path) -> None:
    jobs = [
        Job("good", 'echo to "$OUT"; echo an error >&2; touch "$OUT/made"', 0.1),
        Job("bad", "exit 3", 0.1),
    ]
    outcomes = SideBySide(jobs, tmp_path / "out", 1).run(1)
    assert outcomes["bad"]["exit"] == 3
    assert (tmp_path / "out" / "made").exists()
    said = (tmp_path / "out" / "good.log").read_text()
    assert said == f"to {(tmp_path / 'out').resolve()}\nan error\n"
    assert json.loads((tmp_path / "out" / "jobs.json").read_text()) == outcomes


def test_what_does_not_fit_is_left_out_and_the_next_one_runs(tmp_path: Path) -> None:
    jobs = [Job("long", "touch $OUT/long", 5), Job("short", "touch $OUT/short", 0.1)]
    outcomes = SideBySide(jobs, tmp_path, 1).run(1)
    assert outcomes["long"] == {"state": "left out", "reason": "5 minutes do not fit"}
    assert outcomes["short"]["state"] == "ended"
    assert not (tmp_path / "long").exists()


def test_at_the_deadline_children_of_the_shell_stop_too(tmp_path: Path) -> None:
    jobs = [Job("slow", "sleep 60 & echo $! > $OUT/child; wait", 0)]
    outcomes = SideBySide(jobs, tmp_path, 1).run(0.03)
    assert outcomes["slow"]["state"] == "stopped"
    assert outcomes["slow"]["seconds"] < 30
    child = int((tmp_path / "child").read_text())
    for _ in range(50):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a child of the job runs on")


def test_sigterm_stops_the_jobs(tmp_path: Path) -> None:
    listed = tmp_path / "list.toml"
    listed.write_text('[[job]]\nname = "slow"\ncommand = "sleep 60"\nminutes = 1\n')
    command = [sys.executable, str(SCRIPT), str(listed), "--minutes", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command)
    while not (tmp_path / "jobs.json").exists():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(30) == 1
    outcome = json.loads((tmp_path / "jobs.json").read_text())["slow"]
    assert (outcome["state"], outcome["exit"]) == ("stopped", -signal.SIGTERM)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a"), "two jobs are called 'a'"),
        (("a/b",), "'a/b' should have letters"),
    ],
)
def test_names_that_cannot_be_files_are_refused(
    names: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    listed = tmp_path / "list.toml"
    listed.write_text(
        "".join(f'[[job]]\nname = "{name}"\ncommand = "true"\nminutes = 1\n' for name in names)
    )
    with pytest.raises(ValueError, match=message):
        read_jobs(listed)


def test_the_list_of_the_repository_can_be_read() -> None:
    jobs = read_jobs(SCRIPT.with_name("h200.toml"))
    assert jobs[0].alone, "tests come first, and alone"
    for job in jobs:
        words = job.command.split()
        for before, word in itertools.pairwise(words):
            if word.startswith(("benchmarks/", "results/")):
                read = SCRIPT.parents[1] / word  # or a folder that a result is written to
                assert (read.parent if before == "--out" else read).exists(), word
