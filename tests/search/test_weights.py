"""Searches with a file of weights: every training begins there, also one of other classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs
from PIL import Image
from safetensors.torch import load_file, save_file

import deepaa
from deepaa.data import splits
from deepaa.data.load import DataSpec, as_images
from deepaa.models import build_model
from deepaa.search import SearchRequest, SettingsRequest, open_method, open_search
from deepaa.train.loop import EpochRecord


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Weights of the network small for seven classes, where the images have four."""
    path = tmp_path / "seven.safetensors"
    save_file(build_model("small", 7, seed=3).state_dict(), path)
    return path


def opened_with(weights: Path, images: Any, **more: Any) -> Any:
    settings = SettingsRequest("demo", model="small", changes=["train.epochs=2"])
    request = SearchRequest(settings, as_images(images), weights=weights, **more)
    return open_search(request, device=torch.device("cpu"))


@pytest.mark.parametrize("classes", [4, 7])
def test_the_contest_of_a_search_begins_from_the_file(
    tmp_path: Path, file: Path, classes: int
) -> None:
    save_file(build_model("small", classes, seed=3).state_dict(), file)
    with opened_with(file, blobs(2000, 1)) as proved:
        made = proved.network.make(5).state_dict()
        theirs = load_file(file)
        same = {name for name, tensor in made.items() if theirs[name].equal(tensor)}
        body = {name for name in made if "network.14" not in name}  # which is the last layer
        assert body <= same
        assert (same == {*made}) == (classes == 4)
        assert proved.search.pretrains == (classes == 7)
        assert len(proved.search.splits.pretrain) == (800 if classes == 7 else 0)


def test_a_last_layer_for_other_classes_is_trained_before_the_search(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    search = {"max_layers": 1, "steps": 2, "images": 2, "validation": 8, "chains": 16}
    records: list[Any] = []
    deepaa.find_policy(
        blobs(200, 1),
        "small",
        weights=file,
        preset="demo",
        epochs=2,
        contest=False,
        progress=records.append,
        protect=False,
        heldout=8,
        **search,
    )
    assert [type(record) for record in records[:2]] == [EpochRecord] * 2
    told = [text for text in caplog.messages if "last layer" in text]
    assert told == [f"{file}: its last layer is for other classes; a new one is trained first"]


def test_other_methods_begin_from_the_file(file: Path) -> None:
    with opened_with(file, blobs(2000, 1), method=open_method("random", "demo")[0]) as proved:
        made, theirs = proved.search.world.make_model(1).state_dict(), load_file(file)
        assert made["network.0.weight"].equal(theirs["network.0.weight"])
        assert proved.search.training_note is None  # as no network is trained before


def test_a_new_last_layer_needs_images_to_be_trained_on(file: Path) -> None:
    with pytest.raises(ValueError, match="first number of --splits should be above 0, got 0,60,60"):
        opened_with(file, blobs(200, 1), splits=(0, 60, 60)).__enter__()


def test_of_a_large_folder_enough_is_read_for_a_new_last_layer(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("SEARCH", 15), ("VALIDATION", 10), ("PRETRAIN_OF_A_CLASS", 5)):
        monkeypatch.setattr(splits, name, most)
    monkeypatch.setattr(splits, "PRETRAIN", 20)
    pictures, (images, labels) = tmp_path / "pictures", blobs(200, 1)
    for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        (pictures / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(pictures / f"{label}/{i}.png")
    spec = DataSpec.from_options(pictures)
    settings = SettingsRequest("demo", model="small")
    request = SearchRequest(settings, spec, weights=file, contest=None)
    with open_search(request, tmp_path / "run", device=torch.device("cpu")) as proved:
        assert [len(part) for part in proved.search.splits[:3]] == [20, 15, 10]
        assert len(proved.search.data.labels) < 200
    again = SearchRequest.from_run(tmp_path / "run")
    assert again.pretrain
    with open_search(again, tmp_path / "run", device=torch.device("cpu")) as proved:
        assert proved.search.pretrains


def test_a_file_of_another_network_is_refused_with_one_key(file: Path) -> None:
    save_file(build_model("wrn-40-2", 4).state_dict(), file)
    with pytest.raises(ValueError, match="they do not fit the model: ") as raised:
        opened_with(file, blobs(2000, 1)).__enter__()
    reason = str(raised.value).split("fit the model: ")[1]
    assert re.fullmatch(r"'network\.0\.weight' is not in the file, and \d+ more", reason)
    inner = build_model("small", 4).get_submodule("network").state_dict()
    save_file({name: tensor for name, tensor in inner.items() if name != "3.weight"}, file)
    with pytest.raises(ValueError, match=r"they do not fit the model: '3\.weight' is not in the"):
        opened_with(file, blobs(2000, 1)).__enter__()


def test_weights_that_torchvision_has_for_its_thousand_classes(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    path, name = tmp_path / "net.safetensors", "shufflenet_v2_x0_5"
    save_file(torchvision.models.get_model(name).state_dict(), path)
    theirs = load_file(path)
    settings = SettingsRequest("demo", model=f"torchvision:{name}")
    request = SearchRequest(settings, as_images(blobs(2000, 1)), weights=path)
    with open_search(request, device=torch.device("cpu")) as proved:
        made = proved.network.make(1)
        inner = made.get_submodule("network").state_dict()
        assert inner["conv1.0.weight"].equal(theirs["conv1.0.weight"])
        assert inner["fc.weight"].shape == (4, 1024)
        assert proved.search.training_note
