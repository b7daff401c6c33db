"""The images on which a page shows a policy at work: those of the run, and no others."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deepaa.cli import app as cli
from deepaa.data import DataSpec, load_training_images
from deepaa.policy import load_policy
from deepaa.report import read_subject
from deepaa.report.page import Options, classes_of, originals_of
from deepaa.report.pictures import find_originals

GREY = {"train": 200, "test": 20}
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder with pictures, brighter ones to train on and darker ones to test on."""
    monkeypatch.chdir(tmp_path)
    for part, grey in GREY.items():
        for label in ("cat", "dog"):
            folder = tmp_path / "pets" / part / label
            folder.mkdir(parents=True)
            for i in range(20):
                pixels = np.full((24, 24, 3), grey + i % 10, np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.run([*map(str, words)])
    return code, *capsys.readouterr()


def config_of(data: str, **more: Any) -> dict[str, Any]:
    return {"source": {"data": DataSpec.from_options(data, **more).to_json()}}


def test_test_images_are_not_shown_as_those_of_a_search(here: Path) -> None:
    images, origin = find_originals(config_of("pets"), 6)
    assert origin == "Images of the search: pets."
    assert images.min() >= GREY["train"]
    rows = [
        (f"pets/{part}/{c}/{i}.png", c, part)
        for part in GREY
        for c in ("cat", "dog")
        for i in range(4)
    ]
    with Path("pets.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    images, origin = find_originals(config_of("pets.csv"), 6)
    assert origin == "Images of the search: pets.csv."
    assert images.min() >= GREY["train"]


def test_images_are_spread_over_all_that_were_trained_on(here: Path) -> None:
    found = load_training_images(DataSpec.from_options("pets"), 4)
    whole = DataSpec.from_options("pets").load().images
    assert found.tolist() == whole[[0, 10, 20, 30]].tolist()


def test_a_contest_shows_its_own_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device", "cpu", "--no-protect", "--no-usual", "--policy", "trivialaugment")
    words += ("--passes", "9000", "--target-epochs", "2", "--out", "run")
    code, _, err = command(capsys, "contest", "--data", "pets", *words)
    assert code == 0, err
    config = json.loads(Path("run/config.json").read_text())
    assert read_subject("run").config["source"] == config["settings"]["source"]
    images, origin = originals_of(read_subject("run"), Options())
    assert origin == "Images of the contest: pets."
    assert images.min() >= GREY["train"]

    # a policy of the run as a file shows the images of the run, too
    load_policy("trivialaugment").save(Path("run/other.json"))
    subject = read_subject("run/other.json")
    images, origin = originals_of(subject, Options())
    assert origin == "Images of the contest: pets."
    assert [name for name, _ in classes_of(subject, Options()).images.groups] == ["cat", "dog"]
    code, _, err = command(capsys, "report", "run/other.json")
    assert (code, f"examples are images of {here}/pets" in err) == (0, True)

    # who leaves every image as it is has no pictures, and none are announced
    load_policy("none").save(Path("run/policy.json"))
    contest = json.loads(Path("run/contest.json").read_text())
    contest["winner"] = "none"
    Path("run/contest.json").write_text(json.dumps(contest))
    code, _, err = command(capsys, "report", "run")
    assert (code, err) == (0, "")
