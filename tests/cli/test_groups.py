"""`--groups` and the judge as a person meets them, in `deepaa search` and `deepaa train`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from PIL import Image

import deepaa
from deepaa.cli import app as cli
from deepaa.data import DataSpec, judge_part, load_dataset
from deepaa.data.parts import held_out
from deepaa.search import ContestConfig, open_search
from deepaa.search.run import SearchRequest

find_policy = partial(deepaa.find_policy, contest=False)
"""A search alone."""
TINY = (
    *("--preset", "demo", "--epochs", "1", "--steps", "1", "--layers", "1", "--ops", "flip"),
    *("--set", "heldout=4", "--set", "images=2", "--set", "validation=8", "--set", "chains=16"),
    *("--set", "converged=1", "--set", "least_passes=1", "--device", "cpu", "--contest", "off"),
)
TRAIN = ("--model", "small", "--epochs", "1", "--batch", "32", "--device", "cpu")
SCENE = r"scene(\d+)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with 160 pictures of 20 scenes in it, each of which shows all classes."""
    for i, (image, label) in enumerate(zip(*blobs(160, 1), strict=True)):
        place = tmp_path / "pets" / "abcd"[int(label)] / f"scene{i // 8}_{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place)
    images, labels = (part.numpy() for part in blobs(2400, 1))
    patients = np.array([f"p{i // 24}" for i in range(2400)])
    np.savez(tmp_path / "many.npz", x=images, y=labels, patient=patients)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    return tmp_path


@pytest.fixture
def search(folder: Path, run_cli: Any) -> Any:
    return partial(run_cli, "search")


@pytest.fixture
def train(folder: Path, run_cli: Any) -> Any:
    return partial(run_cli, "train")


def stored(run: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = json.loads((Path(run) / "splits.json").read_text())
    return found


def images_of(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(run) / "results.json").read_text())["images"]
    return found


def scenes(files: tuple[str, ...], part: list[int]) -> set[str]:
    return {re.findall(SCENE, files[i])[0] for i in part}


# Search


def test_scenes_of_a_folder_stay_together_in_a_search(search: Any) -> None:
    code, out, err = search(*TINY, "--data", "pets", "--groups", SCENE, "--dry-run")
    assert code == 0, err
    assert "pets: 160 images of 3 x 16 x 16, 4 classes, 20 groups" in out
    assert "splits   pretrain 80, search 40, validation 40; 4 of" in out
    code, _, err = search(*TINY, "--data", "pets", "--groups", SCENE, "--out", "run")
    assert code == 0, err
    parts, files = stored("run"), load_dataset("pets").files
    found = [scenes(files, parts[name]) for name in ("pretrain", "search", "validation")]
    assert sum(map(len, found)) == len(set.union(*found)) == 20
    assert search("--resume", "run")[0] == 0
    code, _, err = search(*TINY, "--data", "pets", "--out", "run")  # without them it is another run
    assert code == 2
    assert "holds a run with other settings" in err
    code, _, err = search("--resume", "run", "--groups", SCENE)
    assert code == 2
    assert "leave out --groups" in err


def test_a_table_says_the_same_as_the_pattern(search: Any, folder: Path) -> None:
    files = load_dataset("pets").files
    rows = [f"{file},{re.findall(SCENE, file)[0]}\n" for file in files]
    (folder / "pets" / "scenes.csv").write_text("file,group\n" + "".join(rows))
    assert search(*TINY, "--data", "pets", "--groups", SCENE, "--out", "a")[0] == 0
    assert search(*TINY, "--data", "pets", "--groups", "pets/scenes.csv", "--out", "b")[0] == 0
    assert stored("a") == stored("b")
    (folder / "pets").rename(folder / "moved")  # the table moves along
    code, _, err = search("--resume", "b", "--data", "moved")
    assert code == 0, err


@pytest.mark.slow
def test_an_array_names_the_groups_and_a_judge_is_set_aside(search: Any) -> None:
    asked = (*TINY, "--data", "many.npz", "--groups", "patient")
    code, out, err = search(*asked, "--dry-run")
    assert code == 0, err
    assert "4 classes, 100 groups" in out
    assert "splits   pretrain 960, search 480, validation 480, judge 480;" in out
    assert search(*asked, "--out", "run")[0] == 0
    parts = stored("run")
    patients = [{i // 24 for i in part} for part in parts.values()]
    assert sum(map(len, patients)) == 100
    assert parts["judge"] == judge_part(torch.arange(2400) % 4, torch.arange(2400) // 24).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "pets", "--groups", "("), "neither a .csv file nor a regular expression"),
        (
            ("--data", "pets", "--groups", "cow"),
            "matches none of 160 paths, such as a/scene0_0.png",
        ),
        (("--data", "pets", "--groups", "no.csv"), "no.csv: No such file"),
        (("--data", "many.npz", "--groups", "x2"), "no array x2 or x2_train or train_x2; it has"),
        (("--groups", "x"), "embedded has none"),
        (("--data", "pets", "--groups", "^(.)"), "too few in: a (1), b (1), c (1), d (1)"),
        (
            ("--data", "many.npz", "--splits", "1200,600,600"),
            "has 480 of the 2,400; 1,920 are left",
        ),
    ],
)
def test_what_is_wrong_with_groups_is_one_line(
    search: Any, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = search(*TINY, *arguments, "--dry-run")
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")
    assert [line for line in err.splitlines() if line != "reading 160 images"] == [
        err.splitlines()[-1]
    ]


@pytest.mark.slow
def test_runs_from_before_the_judge_go_on_without_one(search: Any, folder: Path) -> None:
    few = (*TINY, "--data", "many.npz", "--splits", "400,300,200", "--steps", "2")
    assert search(*few, "--out", "run")[0] == 0
    path, parts = folder / "run" / "splits.json", stored("run")
    del parts["judge"]
    parts["pretrain"] = sorted(set(range(2400)) - {*parts["search"], *parts["validation"]})
    path.write_text(json.dumps(parts))  # all images, as the first versions took them
    code, out, err = search("--resume", "run", "--dry-run")
    assert code == 0, err
    assert "splits   pretrain 1,900, search 300, validation 200; 4 of" in out
    code, _, err = search("--resume", "run")
    assert code == 0, err
    assert json.loads(path.read_text()) == parts


def test_a_contest_trains_on_all_but_the_judge(folder: Path) -> None:
    request = replace(SearchRequest.from_run(_begun(folder), None), contest=ContestConfig())
    with open_search(request, device=torch.device("cpu")) as opened:
        (part,) = opened.images.parts
        assert torch.equal(part.judge, opened.search.splits.judge)
        images = opened.search.data.images
        judge, train = ({i.numpy().tobytes() for i in images[each]} for each in part[1::-1])
        assert len(judge) == 480
        assert len(train) == 2400 - 480
        assert not train & judge


def _begun(folder: Path) -> Path:
    """A run that only has its settings."""
    few: dict[str, Any] = {"preset": "demo", "steps": 1, "layers": 1, "epochs": 1, "ops": "flip"}
    few |= {"heldout": 4, "images": 2, "validation": 8, "device": "cpu", "progress": _stop}
    with pytest.raises(KeyboardInterrupt):
        find_policy("many.npz", out=folder / "run", **few)
    return folder / "run"


def _stop(record: object) -> None:
    raise KeyboardInterrupt


def test_find_policy_takes_groups_in_each_form(folder: Path) -> None:
    few: dict[str, Any] = {"preset": "demo", "steps": 1, "layers": 1, "epochs": 1, "ops": "flip"}
    few |= {"heldout": 4, "images": 2, "validation": 8, "device": "cpu", "chains": 16}
    images, labels = blobs(160, 1)
    groups = [f"scene {i // 8}" for i in range(160)]
    find_policy((images, labels, groups), out="tuple", **few)
    find_policy((images, labels), groups=groups, out="argument", **few)
    find_policy("pets", groups=SCENE, out="folder", **few)
    assert stored("tuple") == stored("argument")
    for name in ("pretrain", "search", "validation"):
        assert len(stored("tuple")[name]) == len(stored("folder")[name])
        assert len({i // 8 for i in stored("tuple")[name]}) * 8 == len(stored("tuple")[name])


def test_a_large_folder_is_read_in_whole_scenes(
    search: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked = (*TINY, "--data", "pets", "--groups", SCENE, "--splits", "32,16,16", "--seed", "3")
    code, _, err = search(*asked, "--out", "run")
    assert code == 0, err
    assert re.search(r"(72|80) of 160 images are enough, and no others are read", caplog.text)
    config = json.loads(Path("run/config.json").read_text())["settings"]
    assert config["source"]["data"]["subset_sizes"] == [32, 16, 16]
    spec = DataSpec.from_json(config["source"]["data"])
    data = spec.load(subset=spec.subset(3))
    assert data.fingerprint == config["fingerprint"]
    assert set(data.groups.bincount().tolist()) <= {0, 8}
    assert search("--resume", "run")[0] == 0
    assert search(*asked, "--out", "run")[0] == 0


# Train


def test_whole_scenes_are_held_out(train: Any, folder: Path) -> None:
    base = ("--data", "pets", "--policy", "none", *TRAIN)
    code, _, err = train(*base, "--groups", SCENE, "--holdout", "0.25", "--out", "run")
    assert code == 0, err
    facts = images_of("run")
    assert facts["test"] == "0.25 of the training images, held out in whole groups"
    assert (facts["train_images"], facts["test_images"]) == (120, 40)
    both = held_out(load_dataset("pets", groups=SCENE), 0.25)
    assert facts["test_fingerprint"] == both.test.fingerprint
    train_scenes, test_scenes = (
        scenes(part.files, list(range(len(part.files)))) for part in both[:2]
    )
    assert not train_scenes & test_scenes
    assert train("--resume", "run")[0] == 0
    code, _, err = train(*base, "--groups", SCENE, "--out", "default")  # no test part: a tenth
    assert code == 0, err
    assert images_of("default")["test_images"] == 16


def test_groups_where_nothing_is_divided(
    train: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images, labels = (part.numpy() for part in blobs(200, 1))
    parts = {"x_train": images[:160], "y_train": labels[:160], "g": np.arange(160) // 8}
    np.savez("parts.npz", **parts, x_test=images[160:], y_test=labels[160:])
    base = ("--data", "parts.npz", "--groups", "g", "--policy", "none", *TRAIN)
    assert train(*base, "--out", "run")[0] == 0
    assert "parts: --groups changes nothing, as the test images are given" in caplog.text
    code, _, err = train("--data", "pets", "--groups", "g", "--policy", "none", "--stream", *TRAIN)
    assert code == 2
    assert "no --test, --holdout, --groups" in err


def test_equal_images_in_train_and_test_are_said(
    train: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images, labels = (part.numpy() for part in blobs(200, 1))
    parts = {"x_train": images[:164], "y_train": labels[:164]}
    np.savez("parts.npz", **parts, x_test=images[160:], y_test=labels[160:])
    assert train("--data", "parts.npz", "--policy", "none", *TRAIN, "--out", "run")[0] == 0
    assert (
        "parts: 4 of 40 test images have the same pixels as training images, as image 0 and image "
        "160; such a measurement is too good"
    ) in caplog.text
