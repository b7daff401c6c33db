"""`deepaa train` as a person meets it: progress, results, errors, stopping."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from blobs import blobs
from PIL import Image
from processes import lines_shown, open_terminal, read_terminal
from safetensors.torch import load_file

from deepaa.cli import app as cli, train_run
from deepaa.data import LabelledImages
from deepaa.models import build_model
from deepaa.ops import CIFAR, Operation
from deepaa.policy import Policy
from deepaa.report.run_tables import accuracy_row
from deepaa.runs import read_history
from deepaa.train.batches import ExperimentImages
from deepaa.train.config import TrainConfig
from deepaa.train.experiment import Experiment
from deepaa.train.results import read_results
from deepaa.train.training_run import SeedRequest, TrainingRun

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "100",
}
TINY = (
    *("--data", "blobs.npz", "--model", "small", "--epochs", "2", "--batch", "32"),
    *("--device", "cpu"),
)
FAREWELL = (
    "stopped; whole epochs are saved, one in work is lost; go on with: deepaa train --resume run\n"
)
LONG = (*TINY, "--epochs", "100000", "--policy", "crop-flip")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with data in it."""
    images, labels = (part.numpy() for part in blobs(200, 1))
    parts = {"x_train": images[:160], "y_train": labels[:160]}
    np.savez(tmp_path / "blobs.npz", **parts, x_test=images[160:], y_test=labels[160:])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def command(folder: Path, run_cli: Any) -> Any:
    return partial(run_cli, "train")


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, **options}
    program = pipes.pop("program", ["-m", "deepaa"])
    command = [sys.executable, *program, "train", *map(str, arguments)]
    return subprocess.Popen(command, text=True, **pipes)


def wait_for_epochs(run: Path, count: int = 1, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if len(read_history(run)) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {count} epochs in {seconds} s")


def results(run: str) -> list[tuple[int, float, float]]:
    return [(r.seed, r.accuracy, r.loss) for r in read_results(run)[0]]


# What it prints and writes


def test_own_operations_are_tried_before_anything_is_trained(command: Any, folder: Path) -> None:
    (folder / "wrong_train.py").write_text(
        "from deepaa import Operation\n"
        'FLOATS = Operation("floats", batched=lambda images, m, u: images.float())\n'
    )
    floats = Operation("floats", batched=lambda images, m, u: images.float())
    Policy.always(floats).save("mine.json")
    for more in ([], ["--workers", "1"]):
        own = ["--policy", "mine.json", "--operations", "wrong_train:FLOATS", *more]
        code, out, err = command(*TINY, *own, "--out", "run")
        assert code == 2
        assert not out
        assert "operation 'floats' gave torch.float32" in err
        assert err.count("\n") == 1
        assert not (folder / "run").exists()


@pytest.mark.parametrize("name", ["train"])
def test_help_has_every_option_and_fits(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in ("80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        assert cli.run([*name.split(), "--help"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= int(width)
    found: Any = typer.main.get_command(cli.app)
    for part in name.split():
        found = found.commands[part]
    assert f"Example: deepaa {name}" in out
    for parameter in found.params:
        assert parameter.opts[-1] in out
        assert parameter.help, parameter.name


def test_a_training_from_start_to_end(command: Any, folder: Path) -> None:
    code, out, err = command(*TINY, "--policy", "trivialaugment-wide", "--seeds", 2, "--out", "run")
    assert code == 0, err
    lines = err.splitlines()
    line = r"seed 1  epoch 2/2  left 0 s  training loss [\d.]+, accuracy [\d.]+ %  [\d,]+ images/s"
    assert any(re.fullmatch(line, each) for each in lines), err
    assert re.fullmatch(r"seed 1 done: test accuracy [\d.]+ %", lines[-1])
    assert "\x1b" not in err
    assert "\r" not in err
    rows = out.splitlines()
    assert rows[0].split() == ["seed", "accuracy", "loss", "epochs", "time", "images/s"]
    assert [row.split()[0] for row in rows[1:3]] == ["0", "1"]
    assert re.search(r"^mean    [\d.]+ \+- [\d.]+ % \(2 seeds, 95 % confidence\)$", out, re.M)
    assert "under 4 seeds of each, no policy should be called better" in out
    assert f"weights {Path('run/weights-*.safetensors')}\n" in out
    names = build_model("small", 10).state_dict().keys()
    assert load_file("run/weights-0.safetensors").keys() == names
    found, content = read_results("run")
    assert [r.seed for r in found] == [0, 1]
    assert content["policy"]["name"] == "trivialaugment-wide"
    assert len(content["policy"]["sha256"]) == 64
    assert content["policy"]["layers"] == 4, "crop, flip and cutout follow by default"
    assert content["model"] == "small"
    assert content["images"]["test_images"] == 40
    assert content["train"]["batch"] == 32
    kinds = [record["kind"] for record in read_history("run")]
    assert kinds == ["epoch", "epoch", "seed"] * 2
    # again, from elsewhere: it is finished and shows its results
    (folder / "elsewhere").mkdir()
    os.chdir("elsewhere")
    code, again, err = command("--resume", "../run")
    assert (code, err) == (0, "")
    assert again.splitlines()[:3] == rows[:3]


def test_seeds_join_the_folder(command: Any, folder: Path) -> None:
    policy = ("--policy", "crop-flip", "--out", "run")
    for more, expected in (
        ([], [0]),
        (["--seeds", 2], [0, 1, 2]),
        (["--seed", 7, "--seed", 5], [0, 1, 2, 5, 7]),
    ):
        assert command(*TINY, *policy, *more)[0] == 0
        assert [seed for seed, *_ in results("run")] == expected
    code, out, err = command(*TINY, *policy, "--seed", 5)
    assert (code, out) == (2, "")
    assert "seed 5 would be trained twice; the run has 0, 1, 2, 7, 5" in err
    code, _, err = command("--resume", "run", "--seeds", 1)
    assert code == 0, err
    assert results("run")[-1][0] == 8
    alone = results("run")
    code, _, err = command(*TINY, "--policy", "crop-flip", "--seed", 7, "--out", "alone")
    assert results("alone") == [row for row in alone if row[0] == 7]


def test_options_reach_the_training(command: Any, folder: Path) -> None:
    options = ("--lr", "0.2", "--weight-decay", "0.01", "--warmup", "1", "--copies", "2")
    changes = ("clip=0", "label_smoothing=0.1", "schedule=step", "milestones=[1]", "gamma=0.5")
    sets = [word for change in changes for word in ("--set", change)]
    code, _, err = command(
        *TINY, *options, *sets, "--policy", "deepta:2", "--first-layers", 1, "--out", "run"
    )
    assert code == 0, err
    _, content = read_results("run")
    expected = {"lr": 0.2, "weight_decay": 0.01, "warmup_epochs": 1.0, "copies": 2, "clip": 0.0}
    expected |= {"label_smoothing": 0.1, "schedule": "step", "milestones": [1.0], "gamma": 0.5}
    assert {name: content["train"][name] for name in expected} == expected
    assert (content["policy"]["layers"], content["policy"]["first_layers"]) == (1, 1)
    rates = [r["lr"] for r in read_history("run") if r["kind"] == "epoch"]
    assert rates == pytest.approx([0.2 * 0.1, 0.1])  # mid-step of five, then after the milestone
    assert [r["images"] for r in read_history("run") if r["kind"] == "epoch"] == [320, 320]


def test_the_last_epochs_can_be_weak(command: Any, folder: Path) -> None:
    policies = ("--policy", "trivialaugment", "--policy", "none", "--out", "all")
    code, out, err = command(*TINY, *policies, "--end-epochs", 1, "--dry-run")
    assert (code, err) == (0, "")
    assert "ending   crop and flip in the last 1 epoch\n" in out
    assert "ending   no augmentation in the last 1 epoch\n" in out
    code, _, err = command(*TINY, *policies, "--end-epochs", 1)
    assert code == 0, err
    assert command(*TINY, "--policy", "trivialaugment", "--out", "whole")[0] == 0
    assert results("all/trivialaugment") != results("whole")
    assert read_results("all/trivialaugment")[1]["train"]["end_epochs"] == 1
    # the policy is kept as it was given, so that it has one ending in a run that goes on
    stored = [(folder / run / "policy.json").read_text() for run in ("all/trivialaugment", "whole")]
    assert stored[0] == stored[1]
    code, _, err = command("--resume", "all", "--seeds", 1)
    assert code == 0, err
    code, _, err = command(*TINY, *policies, "--end-epochs", 1)
    assert code == 0, err
    assert [seed for seed, *_ in results("all/trivialaugment")] == [0, 1, 2]
    for words, message in (
        (("--end-epochs", 2), "end_epochs should be in 0..1, got 2"),
        (("--end-epochs", 1, "--out", "whole"), "train.end_epochs: "),
    ):
        code, out, err = command(*TINY, "--policy", "trivialaugment", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_names_stay_names_where_a_folder_is_called_so(command: Any, folder: Path) -> None:
    """A run folder is easily named after its policy or its data."""
    policy = ("--policy", "crop-flip", "--out", "crop-flip")
    assert command(*TINY, *policy)[0] == 0
    code, _, err = command(*TINY, *policy)
    assert code == 0, err
    assert [seed for seed, *_ in results("crop-flip")] == [0, 1]
    (folder / "cifar10").mkdir()
    code, _, err = command("--data", "cifar10", "--policy", "none", "--root", "nowhere")
    assert code == 2
    assert f"CIFAR10: not found under {folder / 'nowhere'}" in err
    (folder / "deepta").write_text("not a policy")
    (folder / "randaugment:n=1,m=3").write_text("not a policy")
    for name in ("deepta", "randaugment:n=1,m=3"):
        code, out, err = command(*TINY, "--policy", name, "--dry-run")
        assert (code, f"policy   {name}: " in out) == (0, True), err


def test_defaults_can_be_switched(command: Any) -> None:
    for defaults, layers in (("on", 4), ("off", 1)):
        out = f"run-{defaults}"
        code, _, err = command(
            *TINY, "--policy", "trivialaugment", "--defaults", defaults, "--out", out
        )
        assert code == 0, err
        seeds, facts = read_results(out)
        assert facts["policy"]["layers"] == layers
        assert accuracy_row(seeds, facts).method == f"trivialaugment, defaults {defaults}"


@pytest.mark.slow
def test_workers_and_parallel_change_no_result(command: Any) -> None:
    policy = ("--policy", "crop-flip-cutout", "--seeds", 3)
    for name, more in (("plain", []), ("workers", ["--workers", 2]), ("three", ["--parallel", 3])):
        code, out, err = command(*TINY, *policy, *more, "--out", name)
        assert code == 0, err
        # a rate in the table is one network's, one beside the progress is that of all
        heads = {"three": ["images/s", "each"]}
        assert out.splitlines()[0].split()[5:] == heads.get(name, ["images/s"])
        assert ("images/s of 3 networks" in err) == (name == "three")
    assert results("plain") == results("workers") == results("three")


def test_a_share_is_held_out_and_recorded(command: Any) -> None:
    code, _, err = command(*TINY, "--policy", "none", "--holdout", "0.25", "--out", "run")
    assert code == 0, err
    images = read_results("run")[1]["images"]
    assert (images["train_images"], images["test_images"]) == (120, 40)
    assert images["test"] == "0.25 of the training images, held out"


def test_a_narrow_terminal_shows_the_time_that_is_left(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    several = ("--policy", "trivialaugment-wide", "--policy", "randaugment:n=3,m=5")
    code, _, err = command(*TINY, *several, "--parallel", 2, "--out", "all")
    assert code == 0, err
    shown = [part for part in err.split("\r\x1b[2K") if "epoch" in part]
    assert len(shown) == 4
    for line in shown:
        assert len(line) < 80
        assert re.search(r"  epoch [12]/2  left \d+ s  training loss ", line), line


def test_dry_run(command: Any, folder: Path) -> None:
    code, out, err = command(*TINY, "--policy", "crop-flip", "--seeds", 3, "--dry-run")
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()]
    expected = ["data", "test", "policy", "network", "steps", "rate", "speed", "passes", "time"]
    assert names == [*expected, "seeds"]
    assert "2 epochs of 5 steps, 32 images x 1 in each" in out
    assert "320 images through the network" in out
    assert out.endswith("seeds    3: 0, 1, 2\n")
    assert not (folder / "trained").exists()
    code, out, _ = command(*TINY, "--policy", "none", "--batch", 500, "--dry-run")
    assert code == 0
    assert "2 epochs of 1 step, 160 images x 1 in each" in out


def test_dry_run_adds_up(command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experiment, "measured_rate", lambda self: 2.0)  # 80 s an epoch
    policies = ("--policy", "none", "--policy", "crop-flip")
    code, out, _ = command(*TINY, *policies, "--epochs", 40, "--seeds", 3, "--dry-run")
    assert code == 0
    assert out.count("time     about 53 min for each, at 2 images/s now; about 2.7 h for 3 n") == 2
    ends = "in all   about 5.3 h for 6 networks\nhint     --epochs 3 takes half an hour\n"
    assert out.endswith(ends)
    code, out, _ = command(*TINY, *policies, "--epochs", 4, "--model", "wrn-40-2", "--dry-run")
    assert out.endswith("in all   about 11 min for 2 networks\n")
    assert command(*TINY, "--policy", "none", "--out", "run")[0] == 0
    code, out, _ = command("--resume", "run", "--seeds", 40, "--dry-run")
    assert "; about 1.8 h for 40 networks\n" in out
    assert "hint" not in out  # its settings are those of the run


@pytest.mark.parametrize("parallel", [1, 2])
def test_the_first_steps_say_once_what_all_will_take(
    command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, parallel: int
) -> None:
    words = (*TINY, "--policy", "crop-flip", "--seeds", 2, "--parallel", parallel)
    said = re.compile(r"^about (\d+) s for 2 networks on this machine$", re.M)
    code, _, err = command(*words, "--out", "a")
    assert (code, said.findall(err)) == (0, [])  # not worth saying
    monkeypatch.setattr(train_run, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(train_run, "WORTH_SAYING", 0.0)
    code, _, err = command(*words, "--out", "b")
    assert code == 0
    assert len(said.findall(err)) == 1, err
    assert results("a") == results("b")
    monkeypatch.setattr(train_run, "LONG_ON_CPU", 0.0)
    code, _, err = command(*words, "--model", "wrn-40-2", "--out", "c")
    told = "hint: --model small is quicker (Ctrl-C leaves; other settings need another --out)"
    assert told in err.splitlines()
    code, _, err = command("--resume", "c", "--seeds", 2)
    assert (len(said.findall(err)), "hint" in err) == (1, False)


def test_a_forecast_is_of_all_epochs_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_run, "MEASURED_SECONDS", 0.1)
    monkeypatch.setattr(train_run, "WORTH_SAYING", 0.0)
    images, labels = blobs(128, 1)
    part = LabelledImages(images, labels, tuple("abcd"), "blobs", "")
    config = TrainConfig(epochs=500, batch=32)
    made = Experiment(
        ExperimentImages(part, part, "blobs", "blobs"),
        Policy.identity(CIFAR, 0),
        "small",
        lambda seed: build_model("small", 4),
        config,
    )
    run, said = TrainingRun(made, [0, 1]), list[str]()
    options = train_run.RunOptions(
        Path("run"), SeedRequest(2), 1, None, 60.0, False, False, True, False
    )
    forecast, training = train_run.TrainingForecast([run], options, said.append), run.begin(0)
    time.sleep(0.01)
    for step in range(40):
        forecast.look(training)
        time.sleep(0.3 if step == 0 else 0.01)  # the first has more to do
    assert len(said) == 1
    seconds = re.fullmatch(r"about (\d+) s for 2 networks on this machine", said[0])
    assert seconds is not None, said
    assert 39 <= int(seconds[1]) < 99  # of 2 x 500 epochs of 4 steps


def test_dry_run_looks_into_the_folder(command: Any, folder: Path) -> None:
    policy = ("--policy", "crop-flip", "--out", "run")
    assert command(*TINY, *policy)[0] == 0
    before = {path: path.read_bytes() for path in (folder / "run").iterdir()}
    for options, expected in (
        (("--seeds", 2, "--seed", 9), "seeds    3: 9, 10, 11\n"),
        (("--seeds", 20), "seeds    20: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ...\n"),
    ):
        code, out, err = command(*TINY, *policy, *options, "--dry-run")
        assert (code, err) == (0, "")
        assert out.endswith(expected)
    code, out, _ = command("--resume", "run", "--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "seeds    none left to train")
    for options, message in (
        (("--lr", "0.3", "--batch", 16), "settings: train.batch: 32 there, 16 now; train.lr: 0.1"),
        (("--seed", 0), "seed 0 would be trained twice; the run has 0"),
        (("--out", "blobs.npz"), "blobs.npz: a file, expected a folder"),
        (("--out", "."), "not empty and no run (2 files, 'blobs.npz' for one)"),
    ):
        code, out, err = command(*TINY, *policy, *options, "--dry-run")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert before == {path: path.read_bytes() for path in (folder / "run").iterdir()}


def test_a_recipe_gives_network_and_settings(command: Any) -> None:
    data = ("--data", "blobs.npz", "--device", "cpu")
    code, out, err = command(*data, "--policy", "none", "--recipe", "wrn-40-2", "--dry-run")
    assert (code, err) == (0, "")
    assert re.search(r"network  wrn-40-2: 2,\d+,\d+ weights", out)
    assert "200 epochs of 1 step, 128 images x 1" in out
    assert "weight decay 0.0005" in out
    assert "float32, not compiled" in out
    assert "cifar10" not in out, "what is known of other images says nothing of these"
    more = ("--recipe", "wrn-40-2-wd2e-4", "--epochs", 3, "--lr", "0.3", "--model", "small")
    code, out, err = command(*data, "--policy", "none", *more, "--dry-run")
    assert (code, out) == (2, "")
    assert "the recipe's warm-up of 5 epochs leaves nothing of 3; add --warmup" in err
    code, out, _ = command(*data, "--policy", "none", *more, "--warmup", "1", "--dry-run")
    assert code == 0
    assert "network  small" in out
    assert "3 epochs of 1 step," in out
    assert "0.3 after 1 epoch, then a cosine; weight decay 0.0002" in out


def pictures(root: Path, n: int, seed: int) -> None:
    images, labels = blobs(n, seed)
    for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        place = root / "abcd"[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i}.png")


def test_images_can_be_read_from_disk_in_every_epoch(command: Any, folder: Path) -> None:
    pictures(folder / "tree/train", 64, 1)
    pictures(folder / "tree/val", 20, 2)
    stream = ("--data", "tree", "--stream", "--size", 16, "--workers", 0, "--device", "cpu")
    training = ("--model", "small", "--epochs", 2, "--batch", 32, "--policy", "crop-flip")
    code, _, err = command(*stream, *training, "--out", "run", "--seeds", 2)
    assert code == 0, err
    found, content = read_results("run")
    assert len(found) == 2
    assert content["images"]["train_images"] == 64
    assert content["images"]["crop"] == "centre"  # small images are cropped by the policy
    levels = json.loads(Path("run/config.json").read_text())["settings"]["request"]["normalisation"]
    assert [len(part) for part in levels] == [3, 3]
    code, _, err = command("--resume", "run", "--workers", 0)
    assert code == 0, err
    code, _, err = command(*stream, *training, "--parallel", 2, "--out", "run2")
    assert (code, "--parallel 2 does not go with --stream" in err) == (2, True)


def test_recipes_for_large_images_read_from_disk(command: Any, folder: Path) -> None:
    """Their levels are those of ImageNet, also for seeds that join later."""
    code, _, err = command("--recipe", "resnet50", "--policy", "none")
    assert code == 2
    assert "--recipe resnet50 needs --data, a folder with train and val" in err
    pictures(folder / "tree/train", 40, 1)
    pictures(folder / "tree/val", 8, 2)
    options = ("--recipe", "resnet50", "--data", "tree", "--policy", "none", "--device", "cpu")
    small = ("--model", "small", "--epochs", 1, "--warmup", 0, "--batch", 20, "--size", 16)
    small = (*small, "--workers", 0, "--set", "schedule=cosine", "--out", "run")
    assert command(*options, *small)[0] == 0
    code, _, err = command("--resume", "run", "--seeds", 1, "--workers", 0)
    assert code == 0, err
    mean = load_file("run/weights-1.safetensors")["normalize.mean"].flatten().tolist()
    assert mean == pytest.approx([0.485, 0.456, 0.406])


# Errors: one line, with the value and the choices

MODULE = """
import torch
from torch import nn

def wide(classes):
    return nn.Sequential(nn.Flatten(), Scale(), nn.Linear(768, classes + 3))

class Scale(nn.Module):
    def forward(self, x):
        return x.float() / 255
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "crop-flipp"], "crop-flipp"),
        ([], "--policy is needed: a name (see deepaa policies), a file, or none"),
        (["--policy", "none", "--model", "smal"], "no model 'smal'; did you mean 'small'"),
        (["--policy", "none", "--recipe", "wrn-40"], "no recipe 'wrn-40'; did you mean 'wrn-40-2'"),
        (["--policy", "none", "--data", "nowhere"], "nowhere: no such folder"),
        (["--policy", "none", "--test", "nowhere"], "nowhere: no such folder"),
        (["--policy", "none", "--holdout", "1.5"], "holdout should be a share between 0 and 1"),
        (
            ["--policy", "none", "--defaults", "yes"],
            "'yes' is not one of 'on', 'off'",
        ),
        (["--policy", "none", "--precision", "int8"], "precision should be float32 or bfloat16"),
        (["--policy", "none", "--set", "clap=1"], "no setting 'clap'; there are epochs, batch,"),
        (["--policy", "none", "--set", "seed=5"], "no setting 'seed'; there are epochs"),
        (["--policy", "none", "--set", "epochs=5"], "epochs is given twice: with its own option"),
        (
            ["--policy", "none", "--holdout", ".99"],
            "blobs: a held-out share of 0.99 leaves 2 of 160",
        ),
        (
            ["--policy", "none", "--set", "schedule=cosine", "--set", "milestones=[1]"],
            "milestones [1.0] belong to the step schedule, not to 'cosine'",
        ),
        (["--policy", "none", "--set", "milestones=[1,2,9]"], "milestones 2, 9 never come in 2 ep"),
        (
            ["--policy", "none", "--set", 'milestones=["a"]'],
            "milestones should be a number, got 'a'",
        ),
        (["--policy", "none", "--set", "graph=true"], "graph: a step cannot be recorded where the"),
        (["--policy", "none", "--seed", str(2**70)], "--seed should be in 0..9223372036854775807"),
        (["--policy", "none", "--first-layers", "9"], "--first-layers 9: none has 1 layer"),
        (["--policy", "none", "--operations", "mine_train:nil"], "operations mine_train:nil: Attr"),
        (
            ["--policy", "none", "--policy", "none"],
            "two policies would be trained in a folder none",
        ),
        (["--policy", "none", "--device", "cuda:x"], "--device should be cpu, cuda or auto"),
        (["--policy", "none", "--model", "vit_b_16"], "cannot take images of shape (3, 16, 16)"),
        (["--policy", "none", "--model", "mine_train:wide"], "has 7 outputs, but blobs has 4 cl"),
        (["--policy", "none", "--device", "tpuu"], "--device should be cpu, cuda or auto"),
        (["--policy", "none", "--stream"], "--stream reads a folder with train and val"),
        (["--policy", "none", "--on-bad-image", "hide"], "--on-bad-image should be stop or skip"),
        (["--policy", "none", "--seeds", "0"], "try 'deepaa train --help'"),
        (["--policy", "none", "--lr", "-1"], "lr should be in 0..inf, got -1.0"),
        (["--policy", "none", "--warmup", "2"], "warmup_epochs leaves nothing of the 2 epochs"),
        (["--policy", "none", "--seed", "3", "--seed", "3"], "seed 3 would be trained twice"),
        (["--resume", "nothing"], "nothing: no such folder, so there is nothing to resume"),
        (["--resume", "."], "holds no run, so there is nothing to resume"),
        (["--resume", "searched"], "this run is not a training"),
    ],
)
def test_bad_input_is_one_line(
    command: Any, folder: Path, arguments: list[str], message: str
) -> None:
    from deepaa.runs import Run

    (folder / "mine_train.py").write_text(MODULE)
    Run(folder / "searched", {"search": 1}).close()
    given = arguments if "--resume" in arguments else [*TINY, "--out", "run", *arguments]
    code, out, err = command(*given)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert err.startswith("error: ")
    assert message in err
    assert not (folder / "run").exists(), "nothing is made before all is checked"


def test_labels_that_do_not_fit(command: Any) -> None:
    images, labels = (part.numpy() for part in blobs(200, 1))
    for train, test, message in (
        (labels + 1, labels, "classes have no image: 0; labels should count from 0"),
        (np.zeros_like(labels), labels, "only one class"),
        (labels, labels + 3, "classes"),
    ):
        parts = {"x_train": images, "y_train": train, "x_test": images, "y_test": test}
        np.savez("blobs.npz", **parts)
        code, out, err = command(*TINY, "--policy", "none", "--out", "run")
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    np.savez("blobs.npz", x_train=images, y_train=labels, x_test=images[:, :, 2:], y_test=labels)
    code, _, err = command(*TINY, "--policy", "none", "--out", "run")
    assert code == 2
    assert "training images are 16 x 16, test images 14 x 16 pixels" in err


def test_a_step_of_one_image_is_refused_where_batch_norm_cannot_train_on_it(
    command: Any, folder: Path
) -> None:
    images, labels = (part.numpy() for part in blobs(13, 1))
    parts = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez("blobs.npz", **parts)
    options = (*TINY, "--epochs", 1, "--policy", "none", "--out", "run")
    code, out, err = command(*options, "--batch", 2, "--model", "resnet18")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--batch 2: of 13 images a step of one is left" in err
    assert "give another --batch" in err
    assert not (folder / "run").exists()
    for batch in (1, 2):
        code, _, err = command(*options[:-1], f"small{batch}", "--batch", batch)
        assert code == 0, f"small has several values a channel: {err}"
    dry = ("--batch", 3, "--model", "resnet18", "--dry-run")
    assert command(*options[:-1], "deep", *dry)[0] == 0


def test_a_run_keeps_its_settings(command: Any) -> None:
    policy = ("--policy", "crop-flip", "--out", "run")
    assert command(*TINY, *policy)[0] == 0
    code, _, err = command(*TINY, *policy, "--lr", "0.3")
    assert code == 2
    assert "holds a run with other settings: train.lr: 0.1 there, 0.3 now" in err
    code, _, err = command(*TINY, "--policy", "none", "--out", "run")
    assert code == 2
    assert "policy_sha256" in err
    code, _, err = command("--resume", "run", "--lr", "0.3")
    assert code == 2
    assert "--resume takes every setting from the run; leave out --lr" in err


def test_a_loss_that_is_no_number_is_one_line(command: Any, folder: Path) -> None:
    broken = (*TINY, "--policy", "none", "--lr", "1e30", "--set", "clip=0", "--out", "run")
    code, out, err = command(*broken)
    assert (code, out.split()) == (2, ["0", "failed", "in", "epoch", "1"])
    (line,) = err.splitlines()
    pattern = r"error: seed 0, epoch 1, step \d: loss \S+, gradient norm \S+; lower lr \(1e\+30\)"
    assert re.match(pattern, line), line
    assert line.endswith("; no epoch ended")
    # a call that trains nothing says so again, and the folder is not blocked
    assert command("--resume", "run") == (code, out, err)
    code, _, err = command(*broken, "--seeds", 2)
    assert code == 2
    assert "seed 1 failed, the others go on" in err
    assert "error: 3 seeds failed, the first: seed 0, epoch 1" in err
    assert [each["seed"] for each in read_results("run")[1]["failed"]] == [0, 1, 2]


def test_of_several_policies_the_one_that_failed_is_named(command: Any) -> None:
    wild = ("--lr", "1e30", "--set", "clip=0", "--out", "run")
    code, _, err = command(*TINY, *wild, "--policy", "none", "--policy", "crop-flip")
    assert code == 2
    assert "error: 2 seeds failed, the first: none: seed 0, epoch 1" in err


def test_a_seed_that_failed_may_be_given_again(command: Any, folder: Path) -> None:
    broken = (*TINY, "--policy", "none", "--lr", "1e30", "--set", "clip=0", "--out", "run")
    assert command(*broken)[0] == 2
    for again in (broken, ("--resume", "run")):
        code, out, err = command(*again, "--seed", 0)
        assert (code, out.split()[:2]) == (2, ["0", "failed"])
        assert err.startswith("error: seed 0, epoch 1, step ")
    kinds = [record["kind"] for record in read_history(folder / "run")]
    assert kinds == ["failed", "again", "failed", "again", "failed"]


def test_a_test_loss_that_is_no_number_is_one_line(command: Any, folder: Path) -> None:
    one_step = ("--epochs", 1, "--batch", 160, "--lr", "1e38", "--policy", "none", "--out", "run")
    code, out, err = command(*TINY, *one_step)
    assert (code, out.split()) == (2, ["0", "failed", "in", "the", "test"])
    assert err.splitlines()[-1].startswith("error: seed 0, test after epoch 1: loss nan; lower lr")
    assert [each["seed"] for each in read_results("run")[1]["failed"]] == [0]


def test_a_policy_file_may_go_once_the_run_has_it(command: Any, folder: Path) -> None:
    assert cli.run(["convert", "crop-flip-cutout", "mine.json"]) == 0
    assert command(*TINY, "--policy", "mine.json", "--out", "run")[0] == 0
    (folder / "mine.json").unlink()
    code, _, err = command("--resume", "run", "--seeds", 1)
    assert code == 0, err
    assert len(results("run")) == 2


def test_a_run_killed_before_it_knew_its_seeds_goes_on(command: Any, folder: Path) -> None:
    policy = ("--policy", "crop-flip", "--out", "run")
    assert command(*TINY, *policy)[0] == 0
    for path in (folder / "run").iterdir():
        if path.name not in ("config.json", "provenance.json"):
            path.unlink()
    code, _, err = command("--resume", "run")
    assert code == 0, err
    assert [seed for seed, *_ in results("run")] == [0]


def test_runs_and_their_images_may_move(command: Any, folder: Path) -> None:
    pictures(folder / "tree/train", 64, 1)
    pictures(folder / "tree/val", 20, 2)
    options = ("--data", "tree", "--policy", "crop-flip", *TINY[2:])
    assert command(*options, "--out", "run")[0] == 0
    (folder / "tree").rename(folder / "other")
    (folder / "run").rename(folder / "moved")
    code, _, err = command("--resume", "moved", "--seeds", 1)
    assert code == 2
    assert "tree" in err
    code, _, err = command("--resume", "moved", "--seeds", 1, "--data", "other")
    assert code == 0, err
    code, _, err = command("--resume", "moved", "--seeds", 1)  # it remembers the new place
    assert code == 0, err
    assert [seed for seed, *_ in results("moved")] == [0, 1, 2]
    code, _, err = command("--data", "other", *options[2:], "--out", "moved")
    assert code == 0, err
    pictures(folder / "third/train", 64, 3)
    pictures(folder / "third/val", 20, 2)
    code, _, err = command("--resume", "moved", "--seeds", 1, "--data", "third")
    assert code == 2
    assert "holds a run with other settings" in err
    assert "images.fingerprint" in err
    assert len(results("moved")) == 4


OPERATION = """
from deepaa import Operation
from PIL import ImageOps

def turn_over(image, magnitude, uniforms):
    return ImageOps.flip(image)

OPERATIONS = [Operation("turn_over", pil=turn_over)]
"""


def test_policies_with_own_operations_are_trained(command: Any, folder: Path) -> None:
    from deepaa import Policy
    from deepaa.ops.apply import import_operations
    from deepaa.policy.format import save_policy

    (folder / "own_ops.py").write_text(OPERATION)
    own = import_operations(["own_ops:OPERATIONS"])
    save_policy(Policy.always(*own), folder / "own.json")
    options = (*TINY, "--policy", "own.json", "--out", "run")
    code, _, err = command(*options)
    assert code == 2
    assert "unknown operation" in err
    code, _, err = command(*options, "--operations", "own_ops:OPERATIONS")
    assert code == 0, err
    (folder / "own.json").unlink()
    code, _, err = command("--resume", "run", "--seeds", 1)
    assert code == 2
    assert "this run uses own_ops:OPERATIONS: name it again with --operations own_ops:OPER" in err
    code, _, err = command("--resume", "run", "--seeds", 1, "--operations", "own_ops:OPERATIONS")
    assert code == 0, err
    assert read_results("run")[1]["policy"]["layers"] == 1
    plain = (*TINY, "--policy", "none", "--out", "plain")
    assert command(*plain)[0] == 0
    assert results("plain")[0] != results("run")[0]


# Several policies


@pytest.mark.slow
def test_the_winner_and_what_was_found_get_a_folder_each(command: Any, folder: Path) -> None:
    (folder / "search").mkdir()
    for name in ("policy", "found"):
        assert cli.run(["convert", "crop-flip", f"search/{name}.json"]) == 0
    both = ("--policy", "search/policy.json", "--policy", "search/found.json")
    code, _, err = command(*TINY, *both, "--out", "all")
    assert code == 0, err
    folders = sorted(p.name for p in (folder / "all").iterdir() if p.is_dir())
    assert folders == ["search", "search-found"]


def test_several_policies_get_a_folder_each_and_one_table(command: Any, folder: Path) -> None:
    assert cli.run(["convert", "crop-flip-cutout", "mine.json"]) == 0
    several = ("--policy", "none", "--policy", "randaugment:n=1,m=3", "--policy", "mine.json")
    code, out, err = command(*TINY, *several, "--seeds", 2, "--parallel", 6, "--out", "all")
    assert code == 0, err
    folders = ["none", "randaugment-n=1,m=3", "mine"]
    assert sorted(p.name for p in (folder / "all").iterdir() if p.is_dir()) == sorted(folders)
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("policy"))
    assert lines[head].split() == ["policy", "seeds", "accuracy", "in", "%", "each", "seed"]
    for name, line in zip(folders, lines[head + 1 :], strict=False):
        values = [f"{100 * accuracy:.2f}" for _, accuracy, _ in results(f"all/{name}")]
        assert line.split()[:2] == [name, "2"]
        assert line.split()[-2:] == values
        assert {r.parallel for r in read_results(f"all/{name}")[0]} == {6}
    assert "of 6 networks" in err
    assert "mine: seed 1 done" in err
    for policy, name in zip(("none", "randaugment:n=1,m=3", "mine.json"), folders, strict=True):
        assert command(*TINY, "--policy", policy, "--seeds", 2, "--out", f"alone-{name}")[0] == 0
        assert results(f"alone-{name}") == results(f"all/{name}")
    code, out, err = command("--resume", "all", "--seeds", 1)
    assert code == 0, err
    assert [len(results(f"all/{name}")) for name in folders] == [3, 3, 3]
    code, _, err = command(*TINY, *several[:4], "--seed", 2, "--out", "all")
    assert code == 2
    assert "seed 2 would be trained twice" in err
    code, out, err = command(*TINY, *several[:4], "--dry-run", "--out", "all")
    assert (code, out.count("network  ")) == (0, 2), err
    code, _, err = command(*TINY, *several, "--out", "all/none")
    assert code == 2
    assert "holds a run of one policy" in err


def test_one_more_policy_joins_those_that_were_trained(command: Any, folder: Path) -> None:
    several = ("--policy", "none", "--policy", "randaugment:n=1,m=3", "--out", "all")
    assert command(*TINY, *several, "--seeds", 2)[0] == 0
    before = {name: results(f"all/{name}") for name in ("none", "randaugment-n=1,m=3")}
    more = ("--policy", "crop-flip", "--seeds", 2, "--out", "all")
    code, out, err = command(*TINY, *more, "--dry-run")
    assert (code, out.count("network  ")) == (0, 1), err
    code, out, err = command(*TINY, *more)
    assert code == 0, err
    assert not (folder / "all" / "config.json").exists()
    assert {name: results(f"all/{name}") for name in before} == before
    assert [seed for seed, _, _ in results("all/crop-flip")] == [0, 1]
    lines = [line.split() for line in out.splitlines()]
    head = next(i for i, line in enumerate(lines) if line[:1] == ["policy"])
    rows = {line[0]: line for line in lines[head + 1 : head + 4]}
    assert list(rows) == [*before, "crop-flip"], "the table has all of the folder, old ones first"
    for name, row in rows.items():
        accuracies = [f"{100 * accuracy:.2f}" for _, accuracy, _ in results(f"all/{name}")]
        assert row[-2:] == accuracies
    # the same for several at once, and a run that is there gets seeds
    code, out, err = command(*TINY, "--policy", "none", "--policy", "deepta:1", "--out", "all")
    assert code == 0, err
    names = [*before, "crop-flip", "deepta-1"]
    assert [len(results(f"all/{name}")) for name in names] == [3, 2, 2, 1]
    code, _, err = command("--resume", "all", "--seeds", 1)
    assert code == 0, err
    assert [len(results(f"all/{name}")) for name in names] == [4, 3, 3, 2]


def test_a_policy_joins_no_folder_that_only_happens_to_hold_a_training(
    command: Any, folder: Path
) -> None:
    code, _, err = command(*TINY, "--policy", "none", "--out", ".")
    assert code == 2
    assert "not empty and no run (1 file, 'blobs.npz' for one)" in err
    assert command(*TINY, "--policy", "none", "--out", "mine")[0] == 0
    code, _, err = command(*TINY, "--policy", "crop-flip", "--out", ".")
    assert code == 2
    assert "not empty and no run (2 files, 'blobs.npz' for one)" in err


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_policy_does_not_join_trainings_of_other_settings(
    command: Any, folder: Path, dry: tuple[str, ...]
) -> None:
    assert command(*TINY, "--policy", "none", "--policy", "crop-flip", "--out", "all")[0] == 0
    other = ("--policy", "deepta:1", "--out", "all", "--lr", "0.05", "--epochs", 3)
    code, _, err = command(*TINY, *other, *dry)
    assert code == 2
    assert err.count("\n") == 1
    assert "all: the policies there were trained with other settings" in err
    assert "train.epochs: 2 there, 3 now" in err
    assert "train.lr: 0.1 there, 0.05 now" in err
    assert not (folder / "all" / "deepta-1").exists()


def test_published_accuracies_stand_beside_the_images_they_were_reached_on(
    command: Any, folder: Path
) -> None:
    labels = np.arange(50_000) % 10
    images = np.zeros((50_000, 8, 8, 3), np.uint8)
    np.savez(
        folder / "c.npz", x_train=images, y_train=labels, x_test=images[:50], y_test=labels[:50]
    )
    recipe = ("--model", "small", "--recipe", "wrn-40-2-wd2e-4")
    data = ("--data", "c.npz", "--device", "cpu", *recipe)
    code, out, err = command(*data, "--policy", "none", "--dry-run")
    assert code == 0, err
    assert "known    on cifar10 after 200 epochs:\n         crop-flip-cutout 95.9 % (" in out
    assert "autoaugment 96.3" in out


def test_recipes_are_listed(command: Any) -> None:
    from deepaa.train.config import RECIPES

    code, out, _ = command("--list-recipes")
    assert code == 0
    for name, recipe in RECIPES.items():
        assert re.search(rf"^{name} +{recipe.model}, {recipe.train.epochs:,} epochs", out, re.M)
        assert recipe.command() in out
    assert "10 million images through the network; known:\n      crop-flip-cutout 95.9 %" in out
    for line in ("DeepAA 97.56 +- 0.14 %", "DeepAA 78.30 +- 0.14 %", "crop-flip-cutout 84.0 %"):
        assert f"\n      {line} (" in out
    assert max(map(len, out.splitlines())) < 120


# Stopping


def stopped_by(process: subprocess.Popen[str], number: int, run: Path) -> list[dict[str, Any]]:
    """The history that a training leaves after a signal."""
    began = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 30  # a hang, not a slow machine
    assert process.returncode == 128 + number
    assert errors.endswith(FAREWELL)
    return read_history(run)


@pytest.mark.slow
def test_a_signal_saves_and_leaves(folder: Path) -> None:
    process = start(*LONG, "--seeds", 2, "--out", "run")
    wait_for_epochs(folder / "run", 2)
    second = start("--resume", "run")
    assert second.wait(60) == 2, "two processes in one folder"
    _, errors = second.communicate()
    assert re.fullmatch(r"error: run: in use by process \d+ on \S+ since .*\n", errors)
    before = stopped_by(process, signal.SIGTERM, folder / "run")
    again = start("--resume", "run")
    wait_for_epochs(folder / "run", len(before) + 1)
    after = stopped_by(again, signal.SIGINT, folder / "run")
    assert after[: len(before)] == before, "the newest record before the signal was saved"
    assert len(after) > len(before)
    unfinished = start(*LONG, "--out", "run")
    _, errors = unfinished.communicate(timeout=60)
    assert unfinished.returncode == 2
    assert "seeds 0, 1 not finished; go on with: deepaa train --resume" in errors


@pytest.mark.slow
def test_a_stop_before_an_epoch_ended_does_not_claim_to_have_saved(folder: Path) -> None:
    more = " --parallel 2"
    process = start(*LONG, "--batch", "1", "--copies", "200", "--out", "run", *more.split())
    deadline = time.monotonic() + 60
    while not (folder / "run/results.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert read_history(folder / "run") == []
    assert errors == (
        "stopped before an epoch ended: only the settings are saved; begin with: deepaa train "
        f"--resume run{more}\n"
    )


@pytest.mark.slow
def test_ctrl_c_with_workers_leaves_no_process_behind(folder: Path) -> None:
    """The terminal signals the whole group: the command and its workers."""
    process = start(*LONG, "--workers", 2, "--out", "run", start_new_session=True)
    wait_for_epochs(folder / "run", 1)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 30  # a hang, not a slow machine
    assert process.returncode == 130, errors
    assert errors.endswith(FAREWELL)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("workers are left")


@pytest.mark.slow
def test_a_terminal_gets_one_line_that_changes(folder: Path) -> None:
    outer, inner = open_terminal(80)
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "COLUMNS"}
    words = (*TINY, "--policy", "none", "--seeds", 2, "--out", "run")
    process = start(*words, stderr=inner, env=environment)
    os.close(inner)
    text = read_terminal(outer)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert text.count("\r\x1b[2Kseed 0  epoch") == text.count("\r\x1b[2Kseed 1  epoch") == 2
    assert text.count(" done: test accuracy") == 2
    lines = lines_shown(text)
    assert max(map(len, lines)) <= 79
    epoch = r"seed \d  epoch \d/2  left \d+ s  training loss [\d.]+, accuracy [\d.]+ %"
    epoch += r"(  [\d,]+ images/s)?"
    epochs = [line for line in lines if "epoch" in line]
    assert len(epochs) == 4
    assert all(re.fullmatch(epoch, line) for line in epochs), "no number and no word is cut"


# Two processes


def start_two(*arguments: object, **options: Any) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in ("0", "1"):
        settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**ENVIRONMENT, **settings, **address}
        processes.append(start(*arguments, env=environment, **options))
    return processes


@pytest.mark.slow
def test_two_processes_share_every_batch(folder: Path) -> None:
    (folder / "mine_train.py").write_text("from blobs import Net\ndef make(n):\n    return Net()\n")
    arguments = [*TINY, "--model", "mine_train:make", "--policy", "crop-flip", "--lr", "0.01"]
    processes = start_two(*arguments, "--seeds", 2, "--out", "two")
    shown = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], shown
    assert shown[1][0] == ""
    assert "mean" in shown[0][0]
    one = start(*arguments, "--seeds", 2, "--out", "one")
    _, errors = one.communicate(timeout=60)
    assert one.returncode == 0, errors
    for a, b in zip(results("one"), results("two"), strict=True):
        assert a[0] == b[0]
        assert b[2] == pytest.approx(a[2], rel=1e-4)
    assert json.loads((folder / "two/seeds.json").read_text()) == {"asked": [0, 1]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["--policy", "none", "--device", "tpuu"], ["--policy", "none", "--set", "graph=true"]],
)
def test_two_processes_say_what_is_wrong_once(folder: Path, arguments: list[str]) -> None:
    processes = start_two(*TINY, *arguments, "--out", "run")
    shown = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [2, 2], shown
    assert shown[0][1].count("error: ") == 1
    assert shown[1][1] == ""


FAILING = """
import sys
from deepaa import distributed
from deepaa.cli import app as cli, train_run
from deepaa.data import LabelledImages
from deepaa.data import DataSpec
from deepaa.train import Experiment

real = DataSpec.load_train_and_test

def fail(*arguments, **options):
    raise OSError("the disk is gone")

def read(*arguments, **options):
    return fail() if distributed.is_main() else real(*arguments, **options)

if {where!r} == "test":
    Experiment.test = fail
else:
    DataSpec.load_train_and_test = read
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("where", "more"), [("test", []), ("download", ["--download"])])
def test_an_error_of_the_main_process_ends_both_at_once(
    folder: Path, where: str, more: list[str]
) -> None:
    """The other would wait ten minutes for it."""
    arguments = (*TINY, "--policy", "none", "--out", "run", *more)
    began = time.monotonic()
    processes = start_two(*arguments, program=["-c", FAILING.format(where=where)])
    shown = [process.communicate(timeout=90) for process in processes]
    assert time.monotonic() - began < 60
    assert [process.returncode for process in processes] == [2, 2], shown
    assert shown[0][1].endswith("error: the disk is gone\n")
    assert "error" not in shown[1][1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_the_threads_of_an_exchange_end_before_python_does(folder: Path) -> None:
    """One that met the end of Python aborted about every thirtieth process."""
    code = (
        "import os, sys\nfrom deepaa.cli import app as cli\ncode = cli.run(sys.argv[1:])\n"
        "print(f'threads {len(os.listdir(\"/proc/self/task\"))}')\nsys.exit(code)"
    )
    processes = start_two(*TINY, "--policy", "none", "--out", "run", program=["-c", code])
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert out.endswith("threads 1\n")


@pytest.mark.slow
def test_the_signal_of_one_process_stops_both_and_they_go_on(folder: Path) -> None:
    processes = start_two(*LONG, "--out", "run")
    wait_for_epochs(folder / "run", 2)
    processes[1].send_signal(signal.SIGTERM)
    shown = [process.communicate(timeout=30) for process in processes]
    assert [process.returncode for process in processes] == [143, 143], shown
    assert shown[0][1].endswith(FAREWELL)
    assert "stopped" not in shown[1][1]
    before = read_history(folder / "run")
    processes = start_two("--resume", "run")
    wait_for_epochs(folder / "run", len(before) + 1)
    processes[0].send_signal(signal.SIGTERM)
    shown = [process.communicate(timeout=30) for process in processes]
    assert [process.returncode for process in processes] == [143, 143], shown
    assert read_history(folder / "run")[: len(before)] == before


def test_tensorboard_follows_on_request(command: Any, folder: Path) -> None:
    pytest.importorskip("tensorboard")
    code, _, errors = command(*TINY, "--policy", "none", "--out", "run", "--tensorboard")
    assert code == 0, errors
    assert list((folder / "run/tensorboard").glob("events.out.tfevents.*"))
