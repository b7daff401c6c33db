"""Run folders: settings, history, provenance; states are in test_checkpoint.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch

from deepaa.ops.space import CIFAR
from deepaa.policy.load import load_policy
from deepaa.policy.policy import Policy
from deepaa.runs.checkpoint import RunError, checksum, read_history
from deepaa.runs.run import Run, code_version, provenance, read_config

CONFIG: dict[str, object] = {
    "data": "cifar10",
    "search": {"steps": 500, "rate": 0.025, "layers": [1, 2]},
    "seed": 0,
}


def reopened(folder: Path) -> Run:
    return Run(folder, read_config(folder), resume=True)


def step(run: Run, number: int) -> None:
    run.log({"step": number, "cosine": number / 3})
    run.save({"x": torch.tensor(number)}, {"step": number})


def test_a_new_run(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "new run"
    with Run(folder, CONFIG) as run:
        assert run.folder == folder
        assert run.latest() is None
        assert run.history() == []
        assert {p.name for p in folder.iterdir()} == {
            "config.json",
            "provenance.json",
            "history.jsonl",
            "run.lock",
        }
    assert not (folder / "run.lock").exists()
    document = json.loads((folder / "config.json").read_text())
    assert document == {"format": 2, "sha256": checksum(CONFIG), "settings": CONFIG}
    assert read_config(folder) == CONFIG


def test_settings_are_json_and_their_order_is_nothing() -> None:
    assert checksum({"a": 1, "b": (2, 3)}) == checksum({"b": [2, 3], "a": 1})
    assert checksum({"a": 1}) != checksum({"a": 2})


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"search": {"rate": float("inf")}}, ValueError, "config, search, rate: inf"),
        ({"path": Path("x")}, TypeError, "config, path: PosixPath has no form in JSON"),
        ({"t": [torch.tensor(1)]}, TypeError, "config, t, 0: Tensor"),
        ({"s": {1: 2}}, TypeError, "config, s: the key 1 is no text"),
    ],
)
def test_settings_that_json_cannot_say(
    tmp_path: Path, config: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Run(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_create_goes_on_with_the_same_settings(tmp_path: Path) -> None:
    with Run(tmp_path, CONFIG) as run:
        step(run, 1)
    with Run(tmp_path, dict(reversed(CONFIG.items()))) as run:
        saved = run.latest()
        assert saved
        assert saved.position == {"step": 1}


def test_other_settings_are_shown(tmp_path: Path) -> None:
    with Run(tmp_path, CONFIG) as run:
        step(run, 1)
    other = {
        "search": {"steps": 600, "rate": 0.025, "layers": [1, 3], "new": None},
        "seed": False,
        "data": "cifar10",
    }
    for resume in (False, True):
        with pytest.raises(RunError) as refused:
            Run(tmp_path, other, resume=resume)
        assert str(refused.value).split("\n") == [
            f"{tmp_path}: holds a run with other settings:",
            "  search.steps: 500 there, 600 now;",
            "  search.layers: [1, 2] there, [1, 3] now;",
            "  search.new: not set there, null now;",
            "  seed: 0 there, false now",
        ]
    assert not (tmp_path / "run.lock").exists()
    with reopened(tmp_path) as run:  # and nothing was changed
        assert read_config(tmp_path) == CONFIG
        assert run.history() == [{"step": 1, "cosine": 1 / 3}]


def test_a_long_difference_is_cut(tmp_path: Path) -> None:
    with Run(tmp_path, {f"s{i}": "x" * 100 for i in range(30)}) as run:
        step(run, 1)
    with pytest.raises(RunError) as refused:
        Run(tmp_path, {f"s{i}": "y" * 100 for i in range(30)})
    lines = str(refused.value).split("\n")
    assert len(lines) == 22
    assert lines[-1] == "  and 10 more"
    assert max(map(len, lines[1:])) < 150


def test_a_run_that_was_refused_at_its_start_leaves_the_folder_free(tmp_path: Path) -> None:
    Run(tmp_path, CONFIG).close()
    with Run(tmp_path, {**CONFIG, "data": "mine"}) as run:
        assert read_config(tmp_path)["data"] == "mine"
        step(run, 1)
    assert read_config(tmp_path)["data"] == "mine"
    with pytest.raises(RunError, match="holds a run with other settings"):
        Run(tmp_path, CONFIG)


def test_only_a_run_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="missing: no such folder, so there is nothing to resume"):
        Run(tmp_path / "missing", CONFIG, resume=True)
    with pytest.raises(RunError, match="holds no run, so there is nothing to resume"):
        Run(tmp_path, CONFIG, resume=True)
    assert list(tmp_path.iterdir()) == []
    with Run(tmp_path / "run", CONFIG, resume=False) as run:
        step(run, 1)
    with Run(tmp_path / "run", CONFIG, resume=True) as run:
        assert run.latest() is not None


def test_a_run_killed_before_its_settings_were_written_begins_again(tmp_path: Path) -> None:
    (tmp_path / "run.lock").touch()
    (tmp_path / ".config.json-0123456789abcdef.tmp").write_text("{")
    with Run(tmp_path, CONFIG, resume=True):
        assert read_config(tmp_path) == CONFIG
        assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("resume", [False, True])
def test_what_is_no_run_is_refused(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match="no run"):
        Run(tmp_path, CONFIG, resume=resume)
    with pytest.raises(RunError, match=r"no such folder|a file, expected a folder"):
        Run(tmp_path / "thesis.tex", CONFIG, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged, not JSON"),
        ("[]", "expected an object"),
        ('{"format": 1}', "run format 1; this version of deepaa reads 2 only"),
        ('{"format": 3}', "run format 3; this version of deepaa reads 2 only"),
        ('{"format": 2, "sha256": "0", "settings": {}}', "changed by hand: the checksum is wrong"),
        ('{"format": 2, "sha256": "0", "settings": {"lr": NaN}}', "NaN is no number"),
        ("\x00\xff", "damaged, not JSON"),
    ],
)
def test_damaged_settings_are_refused(tmp_path: Path, text: str, message: str) -> None:
    Run(tmp_path, CONFIG).close()
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    for resume in (False, True):
        with pytest.raises(RunError, match=message):
            Run(tmp_path, CONFIG, resume=resume)
    assert not (tmp_path / "run.lock").exists()


READ_ONLY = """
import os, sys
from deepaa.runs import Run, RunError
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write anywhere
for resume in (True, False):
    for folder in sys.argv[1:]:
        try:
            Run(folder, {"a": 1}, resume=resume)
        except RunError as error:
            print(error)
"""


def test_a_read_only_folder_is_refused_up_front() -> None:
    with tempfile.TemporaryDirectory() as name:
        outer = Path(name)
        run = outer / "run"
        Run(run, {"a": 1}).close()
        for folder in (outer, run):
            folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, run, outer / "new"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
        )
        assert done.stdout.splitlines() == [
            f"{run}: the folder cannot be written: Permission denied",
            f"{outer / 'new'}: no such folder, so there is nothing to resume",
            f"{run}: the folder cannot be written: Permission denied",
            f"{outer / 'new'}: the folder cannot be used: Permission denied",
        ]
        for folder in (outer, run):
            folder.chmod(0o755)


# History


def test_a_resumed_run_has_the_history_of_an_uninterrupted_one(tmp_path: Path) -> None:
    with Run(tmp_path / "whole", CONFIG) as run:
        for number in range(1, 6):
            step(run, number)
    with Run(tmp_path / "parts", CONFIG) as run:
        step(run, 1)
        step(run, 2)
        run.log({"step": 3, "cosine": 1.0})
        run.log({"step": 4, "cosine": 4 / 3})
    for at in (3, 4, 5):
        with reopened(tmp_path / "parts") as run:
            saved = run.latest()
            assert saved
            assert saved.position == {"step": at - 1}
            step(run, at)
            run.log({"lost": "with the kill"})
    reopened(tmp_path / "parts").close()
    whole, parts = (tmp_path / name / "history.jsonl" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


def test_a_history_without_a_state_begins_again(tmp_path: Path) -> None:
    with Run(tmp_path, CONFIG) as run:
        run.log({"step": 1})
    with reopened(tmp_path) as run:
        assert run.history() == []


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Path]:
    with Run(tmp_path, CONFIG) as run:
        for number in range(1, 4):
            step(run, number)
    return tmp_path / "history.jsonl"


def test_a_torn_line_is_left_out(logged: Path, caplog: pytest.LogCaptureFixture) -> None:
    with logged.open("a") as file:
        file.write('{"step": 4, "cos')
    assert [r["step"] for r in read_history(logged.parent)] == [1, 2, 3]
    with reopened(logged.parent) as run:
        step(run, 4)
        assert [r["step"] for r in run.history()] == [1, 2, 3, 4]
    assert not caplog.records


def test_a_truncated_history_is_told(logged: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(logged, logged.stat().st_size - 3)
    with reopened(logged.parent) as run:
        assert "the saved state knows 3 lines, 2 are there" in caplog.text
        step(run, 4)
        assert [r["step"] for r in run.history()] == [1, 2, 4]
    caplog.clear()
    reopened(logged.parent).close()  # said once
    assert not caplog.records


@pytest.mark.parametrize("at", [0, 8, 10])
def test_a_flipped_bit_in_the_history_is_told(
    logged: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(logged.read_bytes())
    data[at] ^= 1
    logged.write_bytes(data)
    with reopened(logged.parent) as run:
        assert "the saved state knows 3 lines, 3 are there but differ" in caplog.text
        assert [r["step"] for r in run.history()][-2:] == [2, 3]
    caplog.clear()
    if len(read_history(logged.parent)) == 2:
        assert "line 1 is damaged and left out" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), {"deep": [float("nan")]}])
def test_numbers_that_json_lacks_are_refused(logged: Path, value: object) -> None:
    before = logged.read_bytes()
    with reopened(logged.parent) as run, pytest.raises(ValueError, match="record, cosine"):
        run.log({"step": 4, "cosine": value})
    assert logged.read_bytes() == before


def test_reading_takes_no_lock(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    with Run(tmp_path, CONFIG) as run:
        step(run, 1)
        run.log({"note": "ä\n\r\u2028"})
        assert read_history(tmp_path) == run.history()
        assert run.history()[-1] == {"note": "ä\n\r\u2028"}
        assert read_config(tmp_path) == CONFIG


# Other files


def test_results(tmp_path: Path) -> None:
    policy = Policy.trivial(CIFAR, 2)
    with Run(tmp_path, CONFIG) as run:
        policy.save(run.folder / "policy.json")
        run.write_json("splits.json", {"search": (1, 2)})
        assert json.loads((tmp_path / "splits.json").read_text()) == {"search": [1, 2]}
        with pytest.raises(ValueError, match=r"splits\.json, a: nan"):
            run.write_json("splits.json", {"a": float("nan")})
        assert json.loads((tmp_path / "splits.json").read_text()) == {"search": [1, 2]}
    assert load_policy(tmp_path / "policy.json").equals(policy)


def test_provenance_has_every_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "provenance.json"
    with Run(tmp_path, CONFIG) as run:
        run.add_provenance({"data": {"fingerprint": "abc"}})
    reopened(tmp_path).close()
    known = json.loads(path.read_text())
    assert known["data"] == {"fingerprint": "abc"}
    assert len(known["starts"]) == 2
    assert known["starts"][0]["versions"]["torch"] == metadata.version("torch")
    assert not caplog.records
    path.write_text('{"starts": [')
    reopened(tmp_path).close()  # not worth losing a run for
    assert "provenance.json: damaged" in caplog.text
    assert len(json.loads(path.read_text())["starts"]) == 1


def test_a_closed_run_writes_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, CONFIG)
    run.close()
    run.close()
    for write in (
        lambda: run.log({}),
        lambda: run.save({}, {}),
        run.latest,
        lambda: run.write_json("a.json", 1),
        lambda: run.add_provenance({}),
    ):
        with pytest.raises(ValueError, match="the run is closed"):
            write()


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Run("run", CONFIG) as run:
        monkeypatch.chdir("/")
        step(run, 1)
    assert read_history(tmp_path / "run") == [{"step": 1, "cosine": 1 / 3}]


# Provenance


def git(folder: Path, *arguments: str) -> str:
    who = {"NAME": "a", "EMAIL": "a@example.org"}
    names = {f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in who.items()}
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **names}, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_provenance_can_be_written() -> None:
    known = json.loads(json.dumps(provenance(), allow_nan=False))
    assert known["versions"].keys() >= {"python", "deepaa", "torch", "numpy", "pillow"}
    assert known["devices"][0].startswith("cpu: ")
    assert known["command"]
    assert known["started"].endswith("+00:00")


def test_the_commit_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_now = code_version.__wrapped__  # without its cache
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("1")
    assert commit_now(package) is None
    git(tmp_path, "init")
    assert commit_now(package) is None
    (tmp_path / "notes").write_text("of the user")
    git(tmp_path, "add", "notes")
    git(tmp_path, "commit", "-m", "somebody's repository")
    assert commit_now(package) is None  # the package is only installed inside it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "code")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert commit_now(package) == {"commit": commit, "changed": False}
    (tmp_path / "notes").write_text("changed")
    assert commit_now(package) == {"commit": commit, "changed": False}
    (package / "code.py").write_text("2")
    assert commit_now(package) == {"commit": commit, "changed": True}
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert commit_now(package) == {"commit": commit, "changed": True}
    monkeypatch.setenv("PATH", "")
    assert commit_now(package) is None
