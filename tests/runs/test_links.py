"""Links and pipes in a run folder: nothing outside is written, and nothing is waited for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deepaa.runs import Run, RunError, check_folder, is_in_use, read_config, read_history
from deepaa.runs.checkpoint import NEWEST
from deepaa.runs.process import LOCK

CONFIG = {"seed": 0}
VICTIM = "a file that belongs to somebody\n"
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim.txt"
    path.write_text(VICTIM)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with Run(folder, CONFIG) as opened:
        opened.log({"step": 1})
        opened.save({"x": torch.zeros(3)}, {"step": 1})
        opened.log({"step": 2})
    return folder


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """A test that waits for a pipe fails."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", [LOCK, "history.jsonl", "policy.json", "tensorboard", "anything"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_link_in_the_folder_is_refused_and_its_target_stays(
    name: str, is_new: bool, victim: Path, run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "new" if is_new else run
    folder.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    for resume in (False, True):
        with pytest.raises(RunError, match=f"{name}: a link|nothing to resume"):
            Run(folder, CONFIG, resume=resume)
    with pytest.raises(RunError, match=f"{name}: a link"):
        check_folder(folder, CONFIG)
    assert victim.read_text() == VICTIM
    assert (folder / name).is_symlink()


def test_a_link_to_nothing_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / LOCK).symlink_to(tmp_path / "made")
    with pytest.raises(RunError, match="a link"):
        Run(tmp_path / "new", CONFIG)
    assert not (tmp_path / "made").exists()


def test_a_link_to_the_folder_itself_is_the_person_s_choice(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    with Run(tmp_path / "link", CONFIG, resume=True) as opened:
        assert opened.history() == [{"step": 1}]


@pytest.mark.parametrize("name", ["history.jsonl", LOCK])
def test_a_second_name_of_a_file_keeps_its_content(name: str, run: Path, tmp_path: Path) -> None:
    """A copy by hard links, as `cp -al` makes it, is no part of the run."""
    if not (run / name).exists():
        (run / name).write_text(json.dumps({"pid": 1 << 22, "host": "h", "since": "s"})[:-3])
    before = (run / name).read_text()
    os.link(run / name, tmp_path / "second")
    with Run(run, CONFIG, resume=True) as opened:
        opened.log({"step": 3})
        assert opened.history() == [{"step": 1}, {"step": 3}]
    assert (tmp_path / "second").read_text() == before


@needs_pipes
@pytest.mark.parametrize("name", ["config.json", "history.jsonl", LOCK, *NEWEST])
def test_pipes_are_not_waited_for(name: str, run: Path) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(RunError, match=f"{name}: a pipe"):
        Run(run, CONFIG, resume=True)
    assert not is_in_use(run)
    if name == "config.json":
        with pytest.raises(RunError, match="a pipe, expected a regular file"):
            read_config(run)
    if name == "history.jsonl":
        with pytest.raises(RunError, match="a pipe, expected a regular file"):
            read_history(run)


def test_a_link_that_comes_later_is_not_followed(victim: Path, run: Path) -> None:
    with Run(run, CONFIG, resume=True) as opened:
        for name in NEWEST:
            (run / name).unlink()
            (run / name).symlink_to(victim)
        opened.save({"x": torch.ones(3)}, {"step": 2})
        opened.write_json("splits.json", {})
    assert victim.read_text() == VICTIM
    for name in ("config.json", "history.jsonl"):
        (run / name).unlink()
        (run / name).symlink_to(victim)
    with pytest.raises(RunError, match="a link, expected a regular file"):
        read_config(run)
    with pytest.raises(RunError, match="a link, expected a regular file"):
        read_history(run)


# What a lock or a file may say


@pytest.mark.parametrize("pid", [-1, 0, True, 1.5, "1", 10**30, None])
def test_a_lock_with_a_strange_process_is_stale(pid: object, run: Path) -> None:
    host = os.uname().nodename
    (run / LOCK).write_text(json.dumps({"pid": pid, "host": host, "since": "now"}))
    with Run(run, CONFIG, resume=True):
        pass


def test_a_lock_of_brackets_is_stale(run: Path) -> None:
    (run / LOCK).write_text("[" * 4096)
    with Run(run, CONFIG, resume=True):
        pass


def test_a_lock_cannot_write_to_the_terminal(run: Path) -> None:
    host = "\x1b]0;mine\x07" + "x" * 1000
    (run / LOCK).write_text(json.dumps({"pid": 1, "host": host, "since": "\n\n"}))
    with pytest.raises(RunError, match="in use by process 1") as caught:
        Run(run, CONFIG, resume=True)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "damaged, not JSON"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested more than 32 deep"),
        ('{"format": 1e999}', "1e999 is no number"),
        ('{"format": ' + "9" * 30 + "}", "more than 64 bits"),
    ],
)
def test_json_that_would_fail_later_is_refused(text: str, reason: str, run: Path) -> None:
    (run / "config.json").write_text(text)
    with pytest.raises(RunError, match=reason):
        read_config(run)


def test_a_file_that_claims_to_be_huge_is_not_read(run: Path) -> None:
    for name in ("config.json", "history.jsonl"):
        with (run / name).open("wb") as file:
            file.truncate(1 << 42)
    with pytest.raises(RunError, match="at most 268,435,456 are read"):
        read_config(run)
    with pytest.raises(RunError, match="at most 268,435,456 are read"):
        read_history(run)
