"""The description of a run's images: options, JSON, and what it loads."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepaa.data import DataSpec, load_dataset
from deepaa.data.image_file import Reading


def folder_of_images(folder: Path) -> Path:
    """Two classes with three transparent images each."""
    for name in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            pixels = np.full((6, 8, 4), 10 * i, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_paths_become_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(folder_of_images(tmp_path))
    assert DataSpec.from_options("train") == DataSpec(data=str(tmp_path / "train"))
    (tmp_path / "cifar10").mkdir()
    assert DataSpec.from_options("./cifar10").data == str(tmp_path / "cifar10")
    assert DataSpec.from_options("embedded", root="x") == DataSpec(data="embedded")
    assert DataSpec.from_options() == DataSpec()
    named = DataSpec.from_options("cifar10")
    assert (named.data, named.root) == ("cifar10", str(tmp_path / "data"))
    assert DataSpec.from_options("cifar10", root="sets").root == str(tmp_path / "sets")


def test_a_spec_loads_what_its_fields_say(tmp_path):
    folder = folder_of_images(tmp_path)
    black = ["alpha_colour=0,0,0"]
    spec = DataSpec.from_options(folder, size=4, read=black)
    found = spec.load()
    expected = load_dataset(folder, size=4, alpha_colour=(0, 0, 0))
    assert found.fingerprint == expected.fingerprint
    assert found.images.shape == (6, 3, 4, 4)
    white = dataclasses.replace(spec, reading=Reading())
    assert white.load().fingerprint != found.fingerprint
    test = spec.load_test()
    both = spec.load_train_and_test()
    assert test is not None
    assert both.test.fingerprint == test.fingerprint
    assert both.train.fingerprint == found.fingerprint
    assert len(spec.load_train_and_test(holdout=0.5).test.labels) == 3
    moved = folder.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert dataclasses.replace(spec, data=str(moved)).load().fingerprint == found.fingerprint


def test_json_gives_the_spec_back():
    spec = DataSpec(
        "cifar10", 32, "/sets", "skip", True, Reading(1_000, (1, 2, 3), False), (10, 20, 30)
    )
    assert DataSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert DataSpec.from_json(DataSpec().to_json()) == DataSpec.from_json({}) == DataSpec()
    subset = spec.subset(7)
    assert subset is not None
    assert (subset.sizes, subset.seed) == ((10, 20, 30), 7)
    assert DataSpec().subset(7) is None


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ([], "expected an object, got []"),
        ({"data": 3}, "data should be text or null, got 3"),
        ({"size": True}, "size should be a whole number or null, got True"),
        ({"size": 0}, "size should be in 1..4096 pixels, got 0"),
        ({"outside_links": "no"}, "outside_links should be true or false, got 'no'"),
        ({"on_bad_image": "go"}, "on_bad_image should be stop or skip, got 'go'"),
        ({"subset_sizes": [1, 2]}, "subset_sizes should be "),
        ({"reading": {"alpha_colour": [1, 2]}}, "reading.alpha_colour should be "),
        ({"reading": {"alpha_colour": [1, 2, 256]}}, "alpha_colour should be three of 0..255"),
        ({"reading": {"gamma": 1}}, "no setting 'reading.gamma'; there are "),
        ({"sise": 3}, "no setting 'sise'; there are data, size, root"),
    ],
)
def test_wrong_json_is_one_error_that_names_the_field(entry, said):
    with pytest.raises(ValueError, match=re.escape(f"runs/a/config.json: {said}")):
        DataSpec.from_json(entry, "runs/a/config.json")


def test_read_choices():
    assert Reading.parse(["apply_exif=false", "max_pixels=5", "alpha_colour=1,2,3"]) == Reading(
        5, (1, 2, 3), False
    )
    for wrong in ("apply_exif=no", "max_pixels=0", "max_pixels=1,2", "alpha_colour=1,2,256", "x"):
        with pytest.raises(ValueError, match=f"--read {wrong}: "):
            Reading.parse([wrong])
