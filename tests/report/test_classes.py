"""Pictures of each class, by their pixels, and what stands in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from shown_pictures import decoded

from deepaa.data import ClassImages, DataSpec, load_class_images
from deepaa.ops import apply_batch
from deepaa.ops.rng import sample_keys
from deepaa.ops.space import CIFAR
from deepaa.policy.policy import Policy
from deepaa.report.classes import NAMED, FoundClasses, class_examples, find_classes

POLICY = Policy.trivial(CIFAR, 2)


def test_every_picture() -> None:
    found = find_classes({})
    examples = class_examples(found, POLICY, seed=3)
    assert examples is not None
    assert found.images is not None
    assert (examples.others, examples.unnamed, examples.note, examples.exact) == ((), 0, "", True)
    assert len(examples.rows) == 10
    for c, (row, (name, images)) in enumerate(zip(examples.rows, found.images.groups, strict=True)):
        assert (row.name, len(images)) == (name, 2)
        for i, pictures in enumerate(row.images):
            assert torch.equal(decoded(pictures[0]), images[i])
            assert len(pictures) == 4
            for draw, picture in enumerate(pictures[1:]):
                keys = sample_keys(3, draw, torch.tensor([2 * c + i]))
                want = apply_batch(images[i : i + 1], POLICY.draw(keys), POLICY.table)[0]
                assert torch.equal(decoded(picture), want)


def test_of_very_many_classes_some_are_shown_and_some_are_named() -> None:
    others = tuple(f"class {i}" for i in range(100))
    images = torch.zeros(1, 3, 90, 90, dtype=torch.uint8)
    found = FoundClasses(ClassImages((("a", images),), others))
    examples = class_examples(found, POLICY)
    assert examples is not None
    assert (len(examples.rows), examples.others) == (1, others[:NAMED])
    assert (examples.unnamed, examples.exact) == (100 - NAMED, False)


def make_tree(folder: Path) -> Path:
    for name in ("left", "right"):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (40, 40), (80 * i, 20, 90)).save(folder / name / f"{i}.png")
    return folder


def test_the_images_of_the_run_or_those_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = make_tree(tmp_path / "tree")
    config = {"source": {"data": DataSpec(str(tree), size=20).to_json()}}
    for found, side in ((find_classes(config), 20), (find_classes(config, size=16), 16)):
        assert found.images is not None
        assert [name for name, _ in found.images.groups] == ["left", "right"]
        assert {images.shape[-1] for _, images in found.images.groups} == {side}
    monkeypatch.chdir(tmp_path)
    found = find_classes({}, Path("tree"))
    assert found.images is not None
    assert found.images.groups[0][1].shape == (2, 3, 40, 40)


def test_classes_that_are_asked_for() -> None:
    found = find_classes({}, wanted=("truck", "cat", "truck"))
    assert found.images is not None
    assert [name for name, _ in found.images.groups] == ["cat", "truck"]
    assert len(found.images.others) == 8
    with pytest.raises(ValueError, match=r"--class: no class is called car; there are airplane,"):
        find_classes({}, wanted=("cat", "car"))


def test_those_of_images_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    config = {"source": {"data": DataSpec(str(tmp_path / "gone")).to_json()}}
    found = find_classes(config, wanted=("left",))
    assert found.images is not None
    assert len(found.images.groups) == 10


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "one.png")
    for place, reason in ((tmp_path, "1 image but no class folders"), ("one.png", "expected a")):
        found = find_classes({}, tmp_path / place)
        assert found.images is None
        assert found.note.startswith("Images of each class cannot be shown: ")
        assert reason in found.note
        assert class_examples(found, POLICY) is None


def test_embedded_images_stand_in_for_those_that_are_gone(tmp_path: Path) -> None:
    config = {"source": {"data": DataSpec(str(tmp_path / "gone")).to_json()}}
    found = find_classes(config)
    embedded = load_class_images(DataSpec())
    assert found.images is not None
    assert found.images.groups[0][0] == embedded.groups[0][0] == "airplane"
    assert "those of the run cannot be read. (" in found.note
    assert "gone" in found.note
    assert find_classes({"source": {"data": None}}).note == ""  # the page says it already
