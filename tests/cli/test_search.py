"""`deepaa search` as a person meets it: progress, results, errors, stopping."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from blobs import Net, blobs, trained
from PIL import Image
from processes import lines_shown, open_terminal, read_terminal
from safetensors.torch import save_file

import deepaa
from deepaa import CIFAR, load_policy
from deepaa.cli import app as cli
from deepaa.data import image_stack, splits
from deepaa.data.folder import list_images
from deepaa.data.load import load_dataset
from deepaa.data.parts import SearchSubset
from deepaa.models import build_model, frozen_copy
from deepaa.ops import import_operations
from deepaa.policy import own_advice
from deepaa.report.pictures import find_originals
from deepaa.runs import Run, read_history
from deepaa.search.contest import all_candidates
from deepaa.search.cost import memory_needed
from deepaa.search.gradient_matching.search import StepRecord
from deepaa.search.policy_search import PolicySearch
from deepaa.search.progress import little_learnt
from deepaa.search.settings import SearchConfig
from deepaa.train.loop import EpochRecord

find_policy = partial(deepaa.find_policy, contest=False)
"""A search alone."""
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(deepaa.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "100",
}
TINY = (
    *("--data", "blobs.npz", "--preset", "demo", "--epochs", "2", "--steps", "3"),
    *("--layers", "2", "--ops", "rotate,flip", "--set", "heldout=8", "--set", "images=2"),
    *("--set", "validation=8", "--set", "chains=16", "--set", "converged=1", "--device", "cpu"),
    *("--contest", "off"),
)
LONG = (*TINY, "--steps", "100000")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with data in it."""
    images, labels = blobs(200, 1)
    np.savez(tmp_path / "blobs.npz", x=images.numpy(), y=labels.numpy())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def command(folder: Path, run_cli: Any) -> Any:
    return partial(run_cli, "search")


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, **options}
    return subprocess.Popen(
        [sys.executable, "-m", "deepaa", "search", *map(str, arguments)],
        text=True,
        **pipes,
    )


def wait_for(run: Path, kind: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if any(record["kind"] == kind for record in read_history(run)):
            return
        time.sleep(0.02)
    raise AssertionError(f"no {kind} in {seconds} s")


# What it prints and writes


def test_a_search_from_start_to_end(command: Any, folder: Path) -> None:
    code, out, err = command(*TINY, "--out", "run")
    assert code == 0
    lines = err.splitlines()
    cost = r"at most about \d+ s on this machine: pre-training \d+ s, search \d+ s"
    assert re.fullmatch(cost, lines[0])
    assert lines[1].startswith("warning: 200 images tell only large differences")
    assert "has 5 held-out images, and takes 16: what a layer gains is chance" in lines[2]
    assert lines[3] == "pre-training a network on 100 images for 2 epochs"
    accuracies = r"accuracy [\d.]+, held-out [\d.]+"
    assert re.fullmatch(rf"pre-training 2/2  left \d+ s  loss [\d.]+  {accuracies}", lines[4])
    step = r"layer 1 of 2  step 3/3  left \d+ s  similarity [\d.]+  identity [\d.]+, \w+ [\d.]+.*"
    assert any(re.fullmatch(step, line) for line in lines)
    kept = r"layer \d kept \(asked for(, although [^()]+)?\): held-out similarity .*"
    assert sum(re.fullmatch(kept, line) is not None for line in lines) == 2
    although = [line for line in lines if "asked for, although" in line]
    assert although, "five pairs decide nothing"
    assert all(line.endswith("; --layers auto drops such a layer") for line in although)
    assert "\x1b" not in err
    assert "\r" not in err
    assert "Layer 2" in out
    assert "DeepAutoAugment('run/policy.json')" in out
    assert f"{own_advice(load_policy('run/policy.json'))} Resize first, normalise after." in out
    assert load_policy("run/policy.json").depth == 2
    assert (folder / "run/preview.png").stat().st_size > 1000
    kinds = [record["kind"] for record in read_history("run")]
    assert kinds == ["epoch"] * 2 + ["protection"] + (["step"] * 3 + ["layer"]) * 2
    splits = json.loads((folder / "run/splits.json").read_text())
    assert {name: len(part) for name, part in splits.items()} == {
        "pretrain": 100,
        "search": 50,
        "validation": 50,
        "judge": 0,
    }
    facts = json.loads((folder / "run/provenance.json").read_text())
    assert {"starts", "data", "fingerprint", "device"} <= set(facts)
    # again: it is finished, so it only shows its result, wherever it is called from
    (folder / "elsewhere").mkdir()
    os.chdir("elsewhere")
    code, again, err = command("--resume", "../run")
    assert (code, err) == (0, "")
    assert again.split("Layer 1")[1].split("policy ")[0] in out


def test_links_out_of_the_folder(command: Any, folder: Path) -> None:
    for i, (image, label) in enumerate(zip(*blobs(200, 1), strict=True)):
        place = folder / "elsewhere" / "abcd"[int(label)]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i}.png")
    (folder / "tree").mkdir()
    for name in "abcd":
        (folder / "tree" / name).symlink_to(folder / "elsewhere" / name)
    run = (*TINY, "--data", "tree", "--layers", "1", "--out", "run")
    code, out, err = command(*run)
    assert (code, out) == (2, "")
    assert "4 links lead out of the folder" in err
    assert "allow it with --outside-links" in err
    code, _, err = command(*run, "--outside-links")
    assert code == 0, err
    assert command("--resume", "run")[0] == 0  # it reads as the run did
    config = json.loads((folder / "run/config.json").read_text())["settings"]
    assert find_originals(config, 2).origin == "Images of the search: tree."


def test_dry_run(command: Any, folder: Path) -> None:
    code, out, err = command(*TINY, "--dry-run")
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()]
    wanted = ["data", "splits", "space", "network", "memory", "passes", "warning", "time"]
    assert names == wanted
    assert "pretrain 100, search 50, validation 50; 15 of the search's are held out" in out
    assert "14 transformations of 3 operations" in out
    assert not (folder / "run").exists()


def test_large_images_get_their_preset(command: Any, folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 80, 80, 3), np.uint8)
    np.savez(folder / "large.npz", x=images, y=np.arange(40) % 2)
    words = ("--data", "large.npz", "--device", "cpu", "--dry-run")
    code, out, err = command(*words)
    assert (code, err) == (0, "images of 80 x 80: --preset imagenet\n")
    assert "11,177,538 weights" in out  # ResNet-18 with two classes
    code, out, err = command(*words, "--preset", "demo")
    assert code == 0
    assert err.startswith("hint: images of 80 x 80 with the CIFAR space")
    with pytest.raises(KeyboardInterrupt):
        find_policy("large.npz", device="cpu", progress=interrupted, out="large")
    assert "resized_crop" in (folder / "large/config.json").read_text()


def interrupted(record: object) -> None:
    raise KeyboardInterrupt


def test_few_images_hold_fewer_out(command: Any) -> None:
    """The default, 256, would leave none of 50, and nobody should learn that after the training."""
    code, out, _ = command(*TINY, "--set", "heldout=256", "--dry-run")
    assert code == 0
    assert "15 of the search's are held out" in out  # a third at most, for three decisions
    code, _, err = command(*TINY, "--set", "heldout=256", "--out", "run")
    assert (code, "error" in err) == (0, False)
    assert "heldout=5" in load_policy("run/policy.json").info["settings"]


def test_the_dry_run_counts_what_the_search_then_needs(command: Any) -> None:
    options = (*TINY, "--set", "repeat_errors=0")  # nothing that depends on what is found
    _, out, _ = command(*options, "--dry-run")
    foretold = int(re.search(r"passes +([\d,]+) in the search", out)[1].replace(",", ""))
    command(*options, "--out", "run")
    needed = read_history("run")[-1]["passes"]
    # images as they are take one pass each on a CPU, instead of one for each of 16 chains
    assert foretold - needed == 2 * 8 * 15


CONTEST = (*TINY, "--contest", "on", "--contest-passes", "60000", "--target-epochs", "4")


@pytest.fixture
def many(folder: Path) -> Path:
    """The current folder, with images enough for a search and a judge."""
    images, labels = blobs(2000, 1)
    np.savez(folder / "blobs.npz", x=images.numpy(), y=labels.numpy())
    return folder


def test_a_search_ends_with_a_contest(command: Any, many: Path) -> None:
    code, out, err = command(*CONTEST, "--out", "run")
    assert code == 0, err
    assert re.match(r"at most about \d+ s on this machine: pre-training .* contest \d+ s\n", err)
    assert re.search(r"^contest: +[\d.]+ % after 4 epochs, no augmentation$", err, re.M)
    content = json.loads((many / "run/contest.json").read_text())
    assert content["status"] == "finished"
    assert content["data"]["judge"] == {
        **{"how": "part", "images": 400, "folds": None, "chooses": 200, "groups": None}
    }
    words = " ".join(out.split())
    assert content["sentence"] in words
    found, winner = (load_policy(f"run/{name}.json") for name in ("found", "policy"))
    assert found.info["description"].startswith("found by deepaa")
    assert winner.info["contest"] == content["sentence"]
    judge = json.loads((many / "run/splits.json").read_text())["judge"]
    assert len(judge) == 400
    # again: it is finished, so it only shows its result
    code, again, err = command("--resume", "run")
    assert code == 0
    assert "contest:" not in err
    assert again.split("Contest")[1] == out.split("Contest")[1]


def test_without_a_contest_nothing_is_proved(command: Any) -> None:
    _, out, _ = command(*TINY, "--out", "run")
    assert "Nothing is proved" in out
    assert load_policy("run/policy.json").equals(load_policy("run/found.json"))


def test_the_advice_is_a_command_that_holds_the_contest_of_the_search(
    command: Any, run_cli: Any, folder: Path, many: Path
) -> None:
    more = ["--size", "12", "--no-protect", "--set", "train.lr=0.05"]
    _, out, _ = command(*TINY, *more, "--out", "run")
    said = out.splitlines()[-1]
    assert said == (
        f"deepaa contest --policy run/found.json --data {folder / 'blobs.npz'} --size 12 "
        f"--passes 700000 --set lr=0.05 --no-protect"
    )
    code, told, err = run_cli(*shlex.split(said)[1:], "--dry-run")
    assert code == 0, err
    everybody = all_candidates("cifar", found=load_policy("run/found.json"))
    assert f"contest  {len(everybody)} candidates" in told
    _, told, _ = run_cli(*shlex.split(said)[1:], "--no-forms", "--dry-run")
    assert f"contest  {len(all_candidates('cifar')) + 1} candidates" in told


def test_too_few_images_for_a_search(command: Any, folder: Path) -> None:
    words = (*TINY, "--contest", "on", "--contest-passes", "20000", "--target-epochs", "2")
    _, told, _ = command(*words, "--dry-run")
    names = [line.split()[0] for line in told.splitlines()]
    assert names == ["data", "network", "search", "contest", "warning", "time"]
    assert "search   200 images are too few for a search (1,000 or more)" in told
    code, out, err = command(*words, "--out", "run")
    assert code == 0, err
    assert "200 images are too few for a search (1,000 or more)" in err
    assert "layer 1" not in err
    assert re.search(r"^policy +run/policy.json$", out, re.M)
    assert "found.json" not in out  # nothing was searched
    content = json.loads((folder / "run/contest.json").read_text())
    assert {row["kind"] for row in content["candidates"]} == {"named"}
    assert content["data"]["judge"]["folds"] == 5
    assert content["sentence"] in " ".join(out.split())


def test_a_contest_that_cannot_be_held_is_refused_before_the_search(command: Any) -> None:
    code, _, err = command(*TINY, "--contest", "on", "--contest-passes", "100")
    assert code == 2
    assert "a contest of 100 passes is too short" in err
    assert "--contest off" in err


@pytest.mark.slow
def test_a_contest_that_is_stopped_goes_on(command: Any, many: Path) -> None:
    assert command(*CONTEST, "--out", "whole")[0] == 0
    process = start(*CONTEST, "--out", "run")
    wait_for(many / "run", "contest-epoch")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "stopped and saved; go on with: deepaa search --resume run" in errors
    assert not (many / "run/policy.json").exists()
    code, _, err = command("--resume", "run")
    assert code == 0, err
    assert "pre-training" not in err
    one, two = (json.loads(Path(run, "contest.json").read_text()) for run in ("whole", "run"))
    entries = [sorted(each["table"]["entries"], key=str) for each in (one, two)]
    assert entries[0] == entries[1]
    assert one["sentence"] == two["sentence"]


def test_a_terminal_gets_one_line_that_changes(folder: Path) -> None:
    outer, inner = open_terminal(80)
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "COLUMNS"}
    process = start(*TINY, "--out", "run", stderr=inner, env=environment)
    os.close(inner)
    text = read_terminal(outer)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert text.count("\r\x1b[2Kpre-training a network on 100 images") == 1
    assert text.count("\r\x1b[2Kpre-training ") == 3
    assert text.count("\r\x1b[2Klayer") >= 6
    for what in ("the layers", "DeepTA", "no augmentation", "the layers before"):
        assert f"measuring held-out similarity  {what}: 0 of 5 images" in text
    lines = lines_shown(text)
    assert max(map(len, lines)) <= 80
    step = (
        r"layer \d of 2  step \d/3  (left \d+ s  )?similarity [\d.]+  \w+ \d\.\d\d(, \w+ \d\.\d\d)*"
    )
    steps = [line for line in lines if re.match(r"layer \d of", line)]
    assert steps
    assert all(re.fullmatch(step, line) for line in steps), "no number and no name is cut"
    kept = " ".join(line.strip() for line in lines)
    assert (
        len(re.findall(r"layer \d kept \(.*?\): held-out similarity \S+ over no augm", kept)) == 2
    )


# Own networks and operations

MODULE = """
import torch
from blobs import Net
from deepaa import Operation

def make(classes):
    assert classes == 4
    return Net()

def broken(classes):
    raise RuntimeError("no such thing")

number = 3

def three(classes):
    return 3

def darker(batch, magnitudes, uniforms):
    return (batch.float() * (1 - magnitudes.view(-1, 1, 1, 1))).to(torch.uint8)

OWN = Operation("darker", 0.0, 0.5, neutral=0.0, batched=darker)
"""


def test_own_network_weights_and_operation(command: Any, folder: Path) -> None:
    (folder / "mine_search.py").write_text(MODULE)
    save_file(trained().state_dict(), "net.safetensors")
    own = ["--model", "mine_search:make", "--weights", "net.safetensors"]
    own += ["--operations", "mine_search:OWN", "--ops", "rotate,darker"]
    code, out, err = command(*TINY, *own, "--out", "run")
    assert code == 0, err
    assert "darker" in out
    assert "pre-training" not in err
    named = ["--model", "mine_search:make", "--operations", "mine_search:OWN"]
    code, again, err = command("--resume", "run", *named)
    assert code == 0, err
    assert "darker" in again
    save_file(Net().state_dict(), "net.safetensors")
    code, _, err = command("--resume", "run", *named)
    assert code == 2
    assert "network: " in err
    # without weights it is trained first
    code, _, err = command(*TINY, "--model", "mine_search:make", "--out", "run2")
    assert code == 0
    assert "pre-training 2/2" in err


# Errors: one line, with the value and the choices

WRONG = """
from deepaa import Operation

FLOATS = Operation("floats", batched=lambda images, m, u: images.float())
RAISES = Operation("raises", 0.0, 1.0, pil=lambda image, m, u: image.nothing())
SMALLER = Operation("smaller", uniforms=1, pil=lambda image, m, u: image.resize((8, 8)))
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("floats", "operation 'floats' gave torch.float32 (2, 3, "),
        ("raises", "operation 'raises' fails: AttributeError: "),
        ("smaller", "operation 'smaller' gave Image ('RGB', (8, 8)); expected a PIL image"),
    ],
)
def test_own_operations_are_tried_before_anything_is_trained(
    command: Any, folder: Path, name: str, message: str
) -> None:
    (folder / "wrong_search.py").write_text(WRONG)
    own = ["--operations", f"wrong_search:{name.upper()}", "--ops", f"rotate,{name}"]
    code, out, err = command(*TINY, *own, "--out", "run")
    assert code == 2
    assert not out
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1  # no epoch was shown
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "best"], "no preset 'best'; there are fast, official, paper"),
        (["--layers", "many"], "--layers takes a number from 1, or auto, got 'many'"),
        (["--layers", "0"], "--layers takes a number from 1, or auto, got '0'"),
        (["--exclude", "flop"], "no operation 'flop' in this space; it has identity"),
        (["--ops", "rotat"], "no operation 'rotat' in this space; it has identity"),
        (["--data", "nowhere"], "nowhere"),
        (["--on-bad-image", "hide"], "--on-bad-image should be stop or skip, got 'hide'"),
        (["--weights", "w.safetensors"], "--weights needs --model"),
        (["--model", "small", "--weights", "w.safetensors"], "w.safetensors: no such file"),
        (["--model", "small", "--weights", "blobs.npz"], "blobs.npz: not a safetensors file"),
        (["--model", "smal"], "no model 'smal'; did you mean 'small'"),
        (["--model", "mine_errors:make2"], "mine_errors:make2: AttributeError"),
        (["--model", "no_module:make"], "no_module:make: ModuleNotFoundError"),
        (["--model", "mine_errors:number"], "expected a function of the class count, got int"),
        (["--model", "mine_errors:broken"], "called with 4 (classes): RuntimeError: no such thing"),
        (["--model", "mine_errors:three"], "gave int, expected an nn.Module"),
        (["--set", "helout=3"], "no setting 'helout'"),
        (["--precision", "float16"], "precision should be one of"),
        (["--resume", "nothing"], "nothing: no such folder, so there is nothing to resume"),
        (["--resume", "."], "holds no run, so there is nothing to resume"),
        (["--operations", "mine_errors:number"], "expected an Operation"),
        (["--steps", "0"], "try 'deepaa search --help'"),
        (["--method", "pba"], "--layers is of gradient matching; pba has its own: --set"),
        (["--method", "pba", "--preset", "quick"], "no preset 'quick'; pba has paper, fast, demo"),
        (["--device", "tpuu"], "--device should be cpu, cuda or auto, got 'tpuu'"),
    ],
)
def test_bad_input_is_one_line(
    command: Any, folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "mine_errors.py").write_text(MODULE)
    given = arguments if "--resume" in arguments else [*TINY, "--out", "run", *arguments]
    code, out, err = command(*given)
    errors = [line for line in err.splitlines() if not line.startswith("pre-training")]
    assert (code, out) == (2, "")
    assert len(errors) == 1, err
    assert errors[0].startswith("error: ")
    assert message in errors[0]


def test_labels_that_do_not_fit(command: Any) -> None:
    images, _ = blobs(200, 1)
    for labels, message in (
        (torch.arange(200) % 4 + 1, "classes have no image: 0; labels should count from 0"),
        (torch.zeros(200).long(), "only one class"),
        (torch.arange(200) // 100 - 1, "should be in 0..0, but [0] = -1"),
        (
            torch.tensor([0] * 199 + [1]),
            "1 of 2 classes have too few images: 1 (1); every class needs at",
        ),
    ):
        np.savez("blobs.npz", x=images.numpy(), y=labels.numpy())
        code, out, err = command(*TINY, "--out", "run")
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


def test_images_of_a_run_can_move(command: Any, folder: Path) -> None:
    assert command(*TINY, "--out", "run")[0] == 0
    (folder / "blobs.npz").rename(folder / "elsewhere.npz")
    assert command("--resume", "run")[0] == 2
    code, out, err = command("--resume", "run", "--data", "elsewhere.npz")
    assert code == 0, err
    assert "policy" in out
    images, labels = blobs(200, 3)
    np.savez("others.npz", x=images.numpy(), y=labels.numpy())
    code, _, err = command("--resume", "run", "--data", "others.npz")
    assert code == 2
    assert "fingerprint" in err


def test_how_files_are_read(command: Any, folder: Path) -> None:
    for name in "ab":
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("RGBA", (8, 8), (200, 9 * i, 0, 0)).save(f"pictures/{name}/{i}.png")
    few = ("--data", "pictures", "--preset", "demo", "--device", "cpu", "--dry-run")
    for choices in ((), ("--read", "apply_exif=false", "--read", "alpha_colour=0,0,9")):
        assert command(*few, *choices)[0] == 0
    code, _, err = command(*few, "--read", "max_pixels=63")
    assert code == 2
    assert "pixels" in err
    for wrong in (
        "exif=false",
        "max_pixels=0",
        "alpha_colour=1,2",
        "alpha_colour=1,2,256",
        "alpha_colour=1,x,2,3",
    ):
        code, _, err = command(*few, "--read", wrong)
        assert code == 2
        assert f"--read {wrong}: " in err


def test_the_parts_of_the_data_can_be_chosen(command: Any, folder: Path) -> None:
    code, out, _ = command(*TINY, "--splits", "60,80,40", "--dry-run")
    assert code == 0
    assert "splits   pretrain 60, search 80, validation 40" in out
    assert command(*TINY, "--splits", "60,80,40", "--steps", "1", "--out", "run")[0] == 0
    kept = json.loads((folder / "run/splits.json").read_text())
    assert {name: len(part) for name, part in kept.items()} == {
        "pretrain": 60,
        "search": 80,
        "validation": 40,
        "judge": 0,
    }
    assert command("--resume", "run")[0] == 0
    for wrong, message in (("60,80", "three numbers"), ("9999,80,40", "the data set has 200")):
        code, _, err = command(*TINY, "--splits", wrong, "--dry-run")
        assert code == 2
        assert message in err


def small_folder(place: Path, counts: dict[str, int], side: int = 12) -> None:
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (place / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (side, side + i % 5, 3), np.uint8)
            Image.fromarray(pixels).save(place / name / f"{i}.png")


@pytest.mark.parametrize("name", ["search", "contest"])
def test_too_few_images_in_a_folder_are_refused_by_name(
    run_cli: Any, folder: Path, name: str
) -> None:
    small_folder(folder / "pets", {"cat": 60, "dog": 2})
    small_folder(folder / "few", {"cat": 6, "dog": 6})
    for data, message in (
        ("pets", "1 of 2 classes have too few images: dog (2); every class needs at least 3"),
        ("few", "12 images in all, at least 30 are needed"),
    ):
        code, out, err = run_cli(name, "--data", data, "--device", "cpu", "--dry-run")
        assert (code, out) == (2, "")
        assert message in err


def test_a_small_folder_of_mixed_sizes_with_a_bad_file(
    run_cli: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small_folder(folder / "pets", {"cat": 20, "dog": 25}, side=33)
    (folder / "pets/cat/3.png").write_bytes(b"no image")
    words = ("--data", "pets", "--device", "cpu", "--preset", "demo", "--dry-run")
    for name in ("search", "contest"):
        more = ("--on-bad-image", "skip")
        arguments = (*words, *more) if name == "search" else (*words[:4], words[-1], *more)
        code, out, err = run_cli(name, *arguments)
        assert code == 0, err
        assert err.splitlines()[0] == "reading 45 images"
        assert "1 of 45 files is bad (1 not-an-image): cat/3.png" in caplog.text
        assert "have 33 pixels; each is resized to 32 x 32, its middle square" in caplog.text
        assert "44 images of 3 x 32 x 32" in out
        assert "44 images tell only large differences between policies" in out


def test_what_a_contest_finds_before_it_begins_has_a_line_of_its_own(
    run_cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_folder(folder / "pets", {"cat": 20, "dog": 20})
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    words = ("--data", "pets", "--device", "cpu", "--passes", 6_000, "--out", "run")
    code, _, err = run_cli("contest", *words)
    assert code == 0, err
    looking = "looking for operations that turn one class into another"
    assert f"{looking}\r\x1b[2K2 of 2 classes are not testable" in err


@pytest.fixture
def pictures(folder: Path) -> Path:
    for i, image in enumerate(blobs(120, 2)[0]):
        place = folder / "pictures" / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i}.png")
    return folder / "pictures"


def test_of_a_large_folder_the_parts_alone_are_read(
    command: Any, pictures: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = pictures.parent / "run"
    asked = (*TINY, "--data", "pictures", "--splits", "20,20,10", "--seed", "3", "--steps", "1")
    code, _, err = command(*asked, "--out", "run")
    assert code == 0, err
    assert "54 of 120 images are enough, and no others are read" in caplog.text
    config = json.loads((run / "config.json").read_text())["settings"]
    assert config["source"]["data"]["subset_sizes"] == [20, 20, 10]
    found = load_dataset("pictures", subset=SearchSubset((20, 20, 10), seed=3))
    assert config["fingerprint"] == found.fingerprint
    assert sum(map(len, json.loads((run / "splits.json").read_text()).values())) == 50
    assert command("--resume", "run")[0] == 0
    assert command(*asked, "--out", "run")[0] == 0  # the same command goes on
    originals = find_originals(config, 4)
    assert originals.origin == "Images of pictures, of which the search used a part."
    config["source"]["data"] |= {"on_bad_image": "skip"}
    tree = list_images(pictures)
    chosen = SearchSubset((20, 20, 10), seed=3).choose(tree.labels)
    assert chosen is not None
    for i in set(range(120)) - set(chosen.places):
        tree.files[i].write_bytes(b"")
    assert find_originals(config, 4).origin == originals.origin


def test_a_run_that_did_nothing_leaves_no_parts_behind(
    command: Any, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("on purpose")

    with monkeypatch.context() as wrong:
        wrong.setattr(PolicySearch, "check_model", refuse)
        assert command(*TINY, "--splits", "20,20,10", "--out", "run")[0] == 2
    parts = ("--data", "pictures", "--splits", "30,25,12", "--seed", "3", "--out", "run")
    code, _, err = command(*TINY, *parts)
    assert code == 0, err
    kept = json.loads((pictures.parent / "run/splits.json").read_text())
    assert [len(part) for part in kept.values()] == [30, 25, 12, 0]


def test_fewer_images_of_a_folder_need_less_memory(
    command: Any, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_stack, "available_memory", lambda: 120 * 3 * 16 * 16)
    code, _, err = command(*TINY, "--data", "pictures", "--dry-run")
    assert code == 2
    assert "fewer images, as three numbers for --splits" in err
    code, _, err = command(*TINY, "--data", "pictures", "--splits", "20,20,10", "--dry-run")
    assert code == 0, err
    code, _, err = command(*TINY, "--dry-run")  # a file is read whole
    assert code == 2
    assert "--splits" not in err


@pytest.mark.parametrize("source", ["blobs.npz", "pictures"])
def test_a_run_keeps_its_parts_whatever_the_defaults_become(
    command: Any, pictures: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr(splits, "SEARCH", 20)
    code, _, err = command(*TINY, "--data", source, "--steps", "1", "--out", "run")
    assert code == 0, err
    path = pictures.parent / "run/splits.json"
    before = path.read_text()
    config = json.loads(path.with_name("config.json").read_text())["settings"]
    assert config["source"]["data"]["subset_sizes"] == (
        [60, 20, 30] if source == "pictures" else None
    )
    for name in ("PRETRAIN", "PRETRAIN_OF_A_CLASS", "MOST_PRETRAIN", "SEARCH"):
        monkeypatch.setattr(splits, name, 15)
    assert command("--resume", "run")[0] == 0
    assert path.read_text() == before
    code, out, err = command("--resume", "run", "--dry-run")
    assert code == 0, err
    first = 60 if source == "pictures" else 100
    assert f"splits   pretrain {first}, search 20, validation" in out


def test_damaged_parts_are_refused(command: Any, folder: Path) -> None:
    assert command(*TINY, "--steps", "1", "--out", "run")[0] == 0
    path = folder / "run/splits.json"
    before = path.read_text()
    for damage, message in (
        ("{", "damaged"),
        ('{"pretrain": [1], "search": [2]}', "the splits are drawn again"),
        ('{"pretrain": [1], "search": [2], "validation": ["x"]}', "the splits are drawn again"),
        ('{"pretrain": [1], "search": [2], "validation": [-1]}', "images that are not there"),
        ('{"pretrain": [1], "search": [2], "validation": [200]}', "images that are not there"),
        ('{"pretrain": [1], "search": [2], "validation": [1]}', "or one twice"),
    ):
        path.write_text(damage)
        code, _, err = command("--resume", "run")
        assert code == 2
        assert "splits.json: damaged" in err
        assert message in err
    path.unlink()
    assert command("--resume", "run")[0] == 0
    assert path.read_text() == before


def test_find_policy_reads_what_it_needs(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pictures.parent / "run"
    few: dict[str, Any] = {"preset": "demo", "steps": 1, "layers": 1, "heldout": 4, "images": 2}
    few |= {"device": "cpu", "out": run, "ops": "flip", "epochs": 1}
    monkeypatch.setattr(splits, "SEARCH", 20)
    first = find_policy(pictures, **few)
    config = json.loads((run / "config.json").read_text())["settings"]
    assert config["source"]["data"]["subset_sizes"] == [60, 20, 30]
    expected = load_dataset(pictures, subset=SearchSubset((60, 20, 30))).fingerprint
    assert config["fingerprint"] == expected
    monkeypatch.setattr(splits, "SEARCH", 15)
    assert find_policy(pictures, **few).equals(first)
    with pytest.raises(ValueError, match="splits"):  # asked for in another way
        find_policy(pictures, sizes=(40, 20, 10), **few)


def test_find_policy_refuses_runs_of_another_kind(pictures: Path) -> None:
    out = pictures.parent / "run"
    Run(out, {"a": 1}).close()
    checkpointed = {"device": "cpu", "out": out, "preset": "demo", "sizes": (20, 20, 10)}
    (out / "history.jsonl").write_text('{"kind": "step"}\n')
    with pytest.raises(ValueError, match="holds a run with other settings"):
        find_policy(pictures, **checkpointed)  # type: ignore[arg-type]


def test_weights_of_another_network(command: Any) -> None:
    save_file(Net().state_dict(), "net.safetensors")
    code, _, err = command(*TINY, "--model", "small", "--weights", "net.safetensors")
    assert code == 2
    assert "net.safetensors: they do not fit the model" in err
    assert err.count("\n") == 1


def test_weights_of_a_library_fit_its_network(command: Any) -> None:
    """As the library saves them, without the normalisation that is put in front."""
    torchvision = pytest.importorskip("torchvision")
    net = torchvision.models.shufflenet_v2_x0_5(num_classes=4)
    save_file(net.state_dict(), "net.safetensors")
    named = ("--model", "torchvision:shufflenet_v2_x0_5", "--weights", "net.safetensors")
    code, _, err = command(*TINY, *named, "--dry-run")
    assert code == 0, err
    code, _, err = command(*TINY, "--model", "torchvision:squeezenet1_1", "--dry-run")
    assert code == 2
    assert "the model cannot take images of shape (3, 16, 16)" in err


def test_memory_is_that_of_the_largest_batch() -> None:
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    model = frozen_copy(build_model("small", 4))
    small = SearchConfig(validation=8, prefixes=1, chains=16, chunk=1112)
    needed = memory_needed(small, model, images, 139)
    assert needed == memory_needed(replace(small, chunk=139), model, images, 139)
    assert needed > memory_needed(replace(small, chunk=138), model, images, 139)
    assert needed < memory_needed(replace(small, chains=140), model, images, 139)


def test_a_run_keeps_its_settings(command: Any, folder: Path) -> None:
    assert command(*TINY, "--out", "run")[0] == 0
    code, _, err = command(*TINY, "--out", "run", "--steps", "5", "--exclude", "flip")
    assert code == 2
    assert "holds a run with other settings: search.steps: 3 there, 5 now" in err
    assert err.count("\n") == 1
    code, _, err = command("--resume", "run", "--steps", "5")
    assert code == 2
    assert "--resume takes every setting from the run; leave out --steps" in err
    images, labels = blobs(200, 2)
    np.savez("blobs.npz", x=images.numpy(), y=labels.numpy())
    code, _, err = command("--resume", "run")
    assert code == 2
    assert "fingerprint" in err, "other images under the same name"


def test_folders_that_cannot_be_used(command: Any, folder: Path) -> None:
    (folder / "full").mkdir()
    (folder / "full/thesis.tex").write_text("precious")
    code, _, err = command(*TINY, "--out", "full")
    assert code == 2
    assert "not empty and no run" in err
    (folder / "file").write_text("")
    code, _, err = command(*TINY, "--out", "file")
    assert code == 2
    assert "file: a file, expected a folder" in err
    if os.geteuid():  # root may write anywhere
        (folder / "locked").mkdir(mode=0o500)
        code, _, err = command(*TINY, "--out", "locked/run")
        assert code == 2
        assert "cannot be used: Permission denied" in err


def test_state_of_which_nothing_is_whole(command: Any, folder: Path) -> None:
    assert command(*TINY, "--out", "run")[0] == 0
    for name in ("state.safetensors", "state.previous.safetensors"):
        (folder / "run" / name).write_bytes(b"cut off")
    code, _, err = command("--resume", "run")
    assert code == 2
    assert "no whole state is left: start in a new folder" in err
    assert err.count("error:") == 1


# One run, begun and resumed by the command or by Python

FROM_PYTHON: dict[str, Any] = {
    **{"preset": "demo", "epochs": 2, "steps": 3, "layers": 2, "ops": "rotate,flip"},
    **{"heldout": 8, "images": 2, "validation": 8, "chains": 16, "converged": 1.0},
    **{"device": "cpu"},
}
"""TINY as arguments of `find_policy`."""


def test_python_and_the_command_begin_the_same_run(command: Any, folder: Path) -> None:
    assert command(*TINY, "--out", "command")[0] == 0
    find_policy("blobs.npz", out="python", **FROM_PYTHON)
    for name in ("config.json", "splits.json", "policy.json"):
        first, second = (folder / run / name for run in ("command", "python"))
        assert first.read_bytes() == second.read_bytes(), name


@pytest.mark.parametrize("after", ["epoch", "step"])
def test_a_run_that_python_began_is_resumed_by_the_command(
    command: Any, folder: Path, after: str
) -> None:
    def leave(record: Any) -> None:
        if isinstance(record, EpochRecord if after == "epoch" else StepRecord):
            raise KeyboardInterrupt

    whole = find_policy("blobs.npz", **FROM_PYTHON)
    with pytest.raises(KeyboardInterrupt):
        find_policy("blobs.npz", out="run", progress=leave, **FROM_PYTHON)
    assert read_history("run")[-1]["kind"] == after
    code, out, err = command("--resume", "run")
    assert code == 0, err
    assert "Use it:" in out
    assert load_policy("run/policy.json").equals(whole)


@pytest.mark.slow
def test_a_run_that_the_command_began_is_resumed_by_python(folder: Path) -> None:
    process = start(*TINY, "--steps", "2000", "--out", "run")
    wait_for(folder / "run", "step")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    before = read_history("run")
    seen: list[Any] = []

    def leave(record: Any) -> None:
        seen.append(record)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_policy("blobs.npz", out="run", progress=leave, **{**FROM_PYTHON, "steps": 2000})
    assert read_history("run")[:-1] == before
    assert (seen[0].layer, seen[0].step) == (1, before[-1]["step"] + 1)


@pytest.mark.parametrize("given", ["the images", "the network", "the operations darker"])
def test_what_only_python_knows_is_named(command: Any, folder: Path, given: str) -> None:
    (folder / "mine_python.py").write_text(MODULE)
    data: Any = blobs(200, 1) if given == "the images" else "blobs.npz"
    options: dict[str, Any] = {"layers": 1, "steps": 1}
    if given == "the network":
        options["model"] = trained()
    if given.startswith("the operations"):
        options["space"] = CIFAR.plus(*import_operations(["mine_python:OWN"]))
        options["ops"] = "darker"
    options = {**FROM_PYTHON, **options}
    found = find_policy(data, out="run", **options)
    code, _, err = command("--resume", "run")
    assert code == 2
    assert f"{given} of this run came from Python code" in err
    assert "call find_policy again with the same arguments" in err
    assert err.count("\n") == 1
    assert find_policy(data, out="run", **options).equals(found)


def test_equal_images_go_on_wherever_they_are(command: Any, folder: Path) -> None:
    """A run is known by its images, not by their place."""
    found = find_policy("blobs.npz", out="run", **FROM_PYTHON)
    (folder / "blobs.npz").rename("moved.npz")
    assert find_policy("moved.npz", out="run", **FROM_PYTHON).equals(found)
    assert find_policy(blobs(200, 1), out="run", **FROM_PYTHON).equals(found)
    assert command("--resume", "run", "--data", "moved.npz")[0] == 0


def test_find_policy_takes_what_the_command_takes(command: Any, folder: Path) -> None:
    options = {**FROM_PYTHON, "ops": ["rotate", "flip"], "exclude": ["flip"]}
    options |= {"model": "mine_names:make", "size": 16, "layers": 1, "steps": 1}
    (folder / "mine_names.py").write_text(MODULE)
    find_policy("blobs.npz", out="run", **options)
    same = ("--exclude", "flip", "--model", "mine_names:make", "--size", "16")
    code, _, err = command(*TINY, *same, "--layers", "1", "--steps", "1", "--out", "run")
    assert code == 0, err
    with pytest.raises(ValueError, match="size=8 is for images in files"):
        find_policy(blobs(200, 1), size=8, **FROM_PYTHON)
    with pytest.raises(ValueError, match="did you mean 'small'"):
        find_policy("blobs.npz", "smal", **FROM_PYTHON)


def test_find_policy_shows_progress_where_somebody_looks(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**FROM_PYTHON, "layers": 1, "steps": 1}
    find_policy("blobs.npz", **options)
    assert capsys.readouterr().err == ""
    find_policy("blobs.npz", progress=True, **options)
    assert "pre-training 2/2" in capsys.readouterr().err
    kernel = SimpleNamespace(get_ipython=object)
    monkeypatch.setitem(sys.modules, "IPython", kernel)  # type: ignore[arg-type]
    find_policy("blobs.npz", **options)
    assert "\rpre-training 2/2" in capsys.readouterr().err
    find_policy("blobs.npz", progress=False, **options)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_searching_from_python_needs_no_typer(folder: Path) -> None:
    code = (
        "import sys; sys.modules['typer'] = None\n"
        f"from deepaa import find_policy; find_policy('blobs.npz', **{FROM_PYTHON!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(folder: Path) -> None:
    def small_files() -> None:
        # a limit on the size of files fails in the middle of a write, as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    process = start(*TINY, "--out", "run", preexec_fn=small_files)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert re.fullmatch(
        r"error: \S+state.next.safetensors: could not write, the old file is kept: .*",
        errors.splitlines()[-1],
    )
    assert not list((folder / "run").glob(".*.tmp"))
    again = start("--resume", "run")
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors


# Stopping


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "phase"),
    [(signal.SIGTERM, 143, "epoch"), (signal.SIGINT, 130, "step")],
)
def test_a_signal_saves_and_leaves(folder: Path, number: int, code: int, phase: str) -> None:
    arguments = [*TINY, "--epochs", "2000"] if phase == "epoch" else [*LONG]
    process = start(*arguments, "--out", "run")
    wait_for(folder / "run", phase)
    second = start("--resume", "run")
    began = time.monotonic()
    assert second.wait(60) == 2, "two processes in one folder"
    _, errors = second.communicate()
    assert re.fullmatch(r"error: run: in use by process \d+ on \S+ since .*\n", errors)
    began = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 30  # a hang, not a slow machine
    assert process.returncode == code
    assert errors.endswith("stopped and saved; go on with: deepaa search --resume run\n")
    assert "Traceback" not in errors
    before = read_history(folder / "run")
    assert (folder / "run/state.safetensors").exists()
    again = start("--resume", "run")
    deadline = time.monotonic() + 60
    while len(read_history(folder / "run")) <= len(before) and time.monotonic() < deadline:
        time.sleep(0.05)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=60)
    after = read_history(folder / "run")
    assert after[: len(before)] == before, "the newest record before the signal was saved"
    assert len(after) > len(before)


@pytest.mark.parametrize(
    ("accuracy", "classes", "warned"),
    [(0.12, 10, True), (0.19, 10, True), (0.25, 10, False), (0.4, 6, False), (0.105, 100, True)],
)
def test_a_network_that_only_guesses_is_told_of(
    accuracy: float, classes: int, warned: bool
) -> None:
    record = EpochRecord(9, 2.0, accuracy, 0.1, 1.0, 100)
    text = little_learnt(record, classes)
    assert (text is not None) == warned
    assert text is None or f"accuracy {accuracy:.2f}" in text


def test_tensorboard_follows_on_request(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    process = start(*TINY, "--out", "run", "--tensorboard")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert list((folder / "run/tensorboard").glob("events.out.tfevents.*"))
