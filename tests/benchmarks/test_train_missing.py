"""Networks for results/: nothing is trained twice, nothing that ended is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobs import blobs
from train_missing import (
    Entry,
    Probe,
    estimate,
    merge,
    missing_seeds,
    next_batch,
    read_list,
    result_path,
)

from deepaa import load_policy
from deepaa.policy import compared_policy
from deepaa.runs import Run, is_in_use, read_history
from deepaa.train import find_recipe

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "train_missing.py"


def keep(results: Path, entry: Entry, seed: int, seconds: float = 60.0, parallel: int = 1) -> None:
    path = result_path(results, entry, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    named = entry.named
    settings = {"recipe": named.recipe, "data": named.data, "options": list(named.options)}
    content = {"entry": settings, "seconds": seconds, "parallel": parallel}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("path", sorted((SCRIPT.parents[1] / "results").glob("*.toml")), ids=str)
def test_lists_that_are_here_name_recipes_and_policies_that_exist(path: Path) -> None:
    entries = read_list(path)
    assert entries
    for entry in entries:
        assert find_recipe(str(entry.recipe), str(entry.data)).data.name == entry.data
        assert compared_policy(entry.policy).depth
        assert len(entry.seeds) >= 4, "fewer seeds compare nothing"


def test_a_list_in_toml_or_json(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(
        '[[train]]\nrecipe = "wrn-40-2-cifar10"\npolicy = "deepta"\nseeds = [0, 1]\n'
    )
    (entry,) = read_list(tmp_path / "list.toml")
    assert entry == Entry("deepta", (0, 1), recipe="wrn-40-2-cifar10")
    assert entry.name == "wrn-40-2-cifar10_deepta"
    words = "train --recipe wrn-40-2-cifar10 --policy deepta --seed 0 --seed 1"
    assert entry.command(0, 1) == words.split()
    same = {"recipe": "wrn-40-2-cifar10", "policy": "deepta", "seeds": [3]}
    (tmp_path / "list.json").write_text(json.dumps({"train": [same, same]}))
    with pytest.raises(ValueError, match="wrn-40-2-cifar10_deepta is listed twice"):
        read_list(tmp_path / "list.json")
    (tmp_path / "list.toml").write_text('[[train]]\npolicy = "deepta"\nseed = 0\n')
    with pytest.raises(ValueError, match="no setting 'seed'; there are policy, seeds"):
        read_list(tmp_path / "list.toml")


def test_files_are_named_without_their_place(tmp_path: Path) -> None:
    found = tmp_path / "my-search"
    found.mkdir()
    load_policy("deepta:1").save(found / "policy.json")
    entry = Entry(str(found / "policy.json"), (0,), data=str(tmp_path / "blobs.npz"))
    assert entry.named.policy.startswith("my-search-")
    assert str(tmp_path) not in " ".join([entry.name, *entry.named.command(0)])
    before = entry.name
    load_policy("deepta:2").save(found / "policy.json")
    assert entry.name != before  # another policy is another network


def test_the_next_seeds_are_those_left_unfinished_or_the_first_missing(tmp_path: Path) -> None:
    results, work = tmp_path / "results", tmp_path / "work"
    entry = Entry("deepta", (0, 1, 2, 3), options=("--epochs", "1"))
    assert next_batch(work, results, entry, 2) == (work / entry.name / "seeds-0_1", [0, 1])
    keep(results, entry, 0)
    assert missing_seeds(results, entry) == [1, 2, 3]
    assert next_batch(work, results, entry, 2) == (work / entry.name / "seeds-1_2", [1, 2])
    (work / entry.name / "seeds-0_3").mkdir(parents=True)
    assert next_batch(work, results, entry, 2) == (work / entry.name / "seeds-0_3", [3])
    for seed in (1, 2, 3):
        keep(results, entry, seed)
    assert next_batch(work, results, entry, 2) is None


def test_times_are_estimated_by_results_of_the_same_settings(tmp_path: Path) -> None:
    known = Entry("none", (0,), options=("--epochs", "1"))
    keep(tmp_path, known, 0, seconds=100.0, parallel=2)
    other_policy = Entry("deepta", (0,), options=("--epochs", "1"))
    assert estimate(tmp_path, other_policy, 2) == pytest.approx(110.0)
    assert estimate(tmp_path, other_policy, 4) == pytest.approx(220.0)
    assert estimate(tmp_path, Entry("none", (0,), options=("--epochs", "9")), 1) is None


def test_the_time_left_is_that_of_epochs_after_the_first_new_one(tmp_path: Path) -> None:
    with Run(tmp_path / "seeds-0", {"train": {"epochs": 103}}) as run:
        run.log({"kind": "epoch", "seed": 0})  # of an earlier call
        probe = Probe(run.folder, 1)
        assert probe.seconds_left() is None
        time.sleep(0.3)  # starting up is no epoch
        for _ in range(2):
            run.log({"kind": "epoch", "seed": 0})
            assert probe.seconds_left() is None
            time.sleep(0.02)
        run.log({"kind": "epoch", "seed": 0})
        left = probe.seconds_left()
    assert left is not None
    assert 99 * 0.02 < left < 99 * 0.3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a list of two entries on a few small images."""
    images, labels = (part.numpy() for part in blobs(200, 1))
    parts = {"x_train": images[:160], "y_train": labels[:160]}
    np.savez(tmp_path / "blobs.npz", **parts, x_test=images[160:], y_test=labels[160:])
    return tmp_path


def write_list(folder: Path, epochs: int, data: str = "blobs.npz") -> list[Entry]:
    options = ["--model", "small", "--epochs", str(epochs), "--batch", "32"]
    entries = [
        {"policy": policy, "seeds": [0, 1], "data": data, "options": options}
        for policy in ("none", "crop-flip")
    ]
    (folder / "list.json").write_text(json.dumps({"train": entries}))
    return read_list(folder / "list.json")


def start(folder: Path, *options: str, machine: Sequence[str] = ()) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = ["list.json", "--minutes", "10", "--work", "work", *options]
    words += ["--", "--device", "cpu", *machine]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *words],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=300)
    return process.returncode, out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("results/*/*")}


@pytest.mark.slow
def test_each_network_is_trained_once_and_kept_whole(folder: Path) -> None:
    entries = write_list(folder, epochs=1)
    code, out = finish(start(folder, "--parallel", "2"))
    assert (code, out.splitlines()[-1]) == (0, "0 networks are missing")
    found: dict[str, Any] = {name: json.loads(text) for name, text in contents(folder).items()}
    assert len(found) == 4
    for result in found.values():
        assert result["command"][:2] == ["deepaa", "train"]
        assert result["parallel"] == 2
        assert 0 <= result["accuracy"] <= 1
        assert len(result["class_accuracy"]) == result["images"]["classes"]
        assert [epoch["epoch"] for epoch in result["history"]] == [0]
        assert set(result["policy"]) >= {"name", "sha256"}
        assert result["versions"]["torch"]
        assert str(folder) not in json.dumps(result)
    before = contents(folder)
    logs = {path: path.stat().st_size for path in folder.glob("work/*/*.log")}
    assert len(logs) == 2
    code, out = finish(start(folder))
    assert (code, out) == (0, "0 networks are missing\n")
    assert contents(folder) == before
    assert {path: path.stat().st_size for path in folder.glob("work/*/*.log")} == logs
    assert merge(folder / "work", folder / "results", entries) == 0


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_commit_is_said_only_where_there_is_no_repository(tmp_path: Path) -> None:
    entry = Entry("none", (0, 1))
    codes = ({"commit": "f" * 40, "changed": True}, None)
    for seed, code in enumerate(codes):
        made: dict[str, Any] = {"code": code, "system": "", "processor": "", "devices": []}
        made |= {"started": "", "versions": {}}
        found = {"made_by": made, "model": "small", "train": {}, "images": {}, "policy": {}}
        ended = {"seed": seed, "accuracy": 0.5, "epochs": 1}
        with Run(tmp_path / "work" / entry.name / f"seeds-{seed}", {"train": {}}) as run:
            run.write_json("results.json", {**found, "seeds": [ended], "failed": []})
    assert merge(tmp_path / "work", tmp_path / "results", [entry], COMMIT) == 2
    kept = [
        json.loads(result_path(tmp_path / "results", entry, seed).read_text())["code"]
        for seed in entry.seeds
    ]
    assert kept == [codes[0], {"commit": COMMIT, "changed": None}]


def test_a_commit_that_is_none_is_refused(folder: Path) -> None:
    write_list(folder, epochs=1)
    code, _ = finish(start(folder, "--commit", "main"))
    assert code == 2
    assert not (folder / "work").exists()


@pytest.mark.slow
def test_a_file_of_this_machine_and_other_kernels_change_no_name(folder: Path) -> None:
    """What is begun with them also goes on."""
    first, _ = write_list(folder, epochs=40, data="blobs")
    machine = ["--set", "tune=true"]
    file = ["--file", "blobs.npz", "--parallel", "2"]
    process = start(folder, *file, machine=machine)
    work = folder / "work" / first.name / "seeds-0_1"
    deadline = time.monotonic() + 300
    while not read_history(work):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143
    assert not contents(folder)
    (folder / "elsewhere").mkdir()
    (folder / "blobs.npz").rename(folder / "elsewhere" / "blobs.npz")
    file[1] = "elsewhere/blobs.npz"
    code, out = finish(start(folder, *file, machine=machine))
    assert (code, out.splitlines()[-1]) == (0, "0 networks are missing")
    for text in contents(folder).values():
        result = json.loads(text)
        assert result["entry"]["data"] == result["images"]["data"] == "blobs"
        assert "tune=true" not in result["name"]
        assert "tune=true" not in result["command"]
        assert result["settings"]["tune"] is True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_loses_nothing_that_ended(folder: Path, number: signal.Signals) -> None:
    first, second = write_list(folder, epochs=40)
    process = start(folder)
    work = folder / "work" / second.name / "seeds-0"
    deadline = time.monotonic() + 300
    while not read_history(work):  # the second entry is at work, so the first has a network
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    code, _ = finish(process)
    assert code == (-9 if number == signal.SIGKILL else 143)
    while is_in_use(work):  # its training saves and leaves too
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kept = contents(folder)
    assert [name.split("/")[1] for name in kept] == [first.name]
    left = len(read_history(work))
    code, out = finish(start(folder, "--parallel", "2"))
    assert (code, out.splitlines()[-1]) == (0, "0 networks are missing")
    assert kept.items() <= contents(folder).items()
    log = work.with_suffix(".log").read_text()
    assert left > 0
    assert log.count("seed 0  epoch 1/") <= 1  # it went on, and did not begin again
