"""What a training is after all that was asked for and left open is decided; how fast it will be."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepaa.data import DataSpec
from deepaa.data.embedded import load_embedded
from deepaa.data.splits import LabelledImages
from deepaa.distributed import check_device
from deepaa.models import build_model
from deepaa.policy.load import compared_policy
from deepaa.train import experiment as experiment_module
from deepaa.train.batches import ExperimentImages
from deepaa.train.config import (
    TrainConfig,
)
from deepaa.train.experiment import (
    Experiment,
    PolicySpec,
    TrainRequest,
    build_experiment,
    load_requested_policy,
)
from deepaa.train.stored import runs_in, stored_request

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def request(policy: str = "crop-flip", layers: int | None = None, **more: Any) -> TrainRequest:
    return TrainRequest(Path("run"), PolicySpec(policy, first_layers=layers), **more)


# Policies


def test_too_many_layers_are_said_in_the_words_of_the_command() -> None:
    for name, layers in (("none", "1 layer"), ("deepta:4", "4 layers")):
        with pytest.raises(ValueError, match=f"^--first-layers 9: {name} has {layers}$"):
            load_requested_policy(request(name, 9), 3, "cifar")
    with pytest.raises(ValueError, match="crop-flipp"):
        load_requested_policy(request("crop-flipp", 9), 3, "cifar")
    assert load_requested_policy(request("deepta:4", 3), 3, "cifar").depth == 3


def test_a_policy_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = experiment_module.compared_policy

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(experiment_module, "compared_policy", counted)
    found = build_experiment(request(given={"epochs": 1}), CPU)
    assert len(calls) == 1
    assert found.facts()["policy"]["name"] == "crop-flip"
    assert found.facts()["policy"]["layers"] == 2


# Images


def test_experiments_with_the_same_images_share_them() -> None:
    one = build_experiment(request(given={"epochs": 1}), CPU)
    none = request("none", given={"epochs": 1})
    assert build_experiment(none, CPU, like=one).images is one.images
    other = build_experiment(replace(none, holdout=0.5), CPU, like=one)
    assert other.images is not one.images
    assert other.images.facts()["train_images"] == 2000


def test_data_sets_with_a_name_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their folder is written down in full, also where it is the usual one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.npz").touch()
    for data, test, root, expected in (
        ("cifar10", None, None, "data"),
        ("cifar10", None, "sets", "sets"),
        ("mine.npz", None, None, None),
        ("mine.npz", "MNIST", None, "data"),
        (None, None, None, None),
    ):
        made = request(data=DataSpec(data=data, root=root), test=test)
        found = experiment_module._completed(made, None).data.root
        assert found == (None if expected is None else str(tmp_path / expected))


def test_an_experiment_is_checked_before_anything_is_made() -> None:
    found = build_experiment(request(given={"epochs": 1}, changes=("graph=true",)), CPU)
    with pytest.raises(
        ValueError, match="graph: a step cannot be recorded where the device is cpu"
    ):
        found.check()


def test_devices() -> None:
    for device in ("auto", "cpu"):
        check_device(device)
    for device in ("tpuu", "cudaa", "cuda:x", ""):
        with pytest.raises(ValueError, match="--device should be cpu, cuda or auto"):
            check_device(device)


# Run folders


def test_a_request_comes_back_from_its_run_folder(tmp_path: Path) -> None:
    from deepaa.runs import Run

    spec = PolicySpec("deepta:2", defaults=True, first_layers=1, operations=("mine:OPS",))
    data = DataSpec(data="/some/images.npz", size=32, outside_links=True)
    asked = TrainRequest(
        tmp_path / "all/one", spec, data, test="/t.npz", normalisation=((0.5,) * 3, (0.2,) * 3)
    )
    config = TrainConfig(epochs=3, schedule="step", milestones=(1.0, 2.0))
    images, policy = embedded(20), compared_policy("deepta:2")
    made = Experiment(images, policy, "small", lambda seed: nn.Identity(), config, request=asked)
    Run(asked.folder, made.identity()).close()
    assert runs_in(tmp_path / "all") == runs_in(asked.folder) == [asked.folder]
    assert runs_in(tmp_path) == [tmp_path], "which holds no run"
    found = stored_request(asked.folder, operations=["mine:OPS"])
    assert found == replace(asked, model="small", config=config)
    now = {"data": "/other.npz", "test": None, "root": "/root"}
    moved = stored_request(asked.folder, now, operations=["mine:OPS"])
    assert moved.places() == {"data": "/other.npz", "test": "/t.npz", "root": "/root"}
    # the places of the run do not count: checksums do
    there = replace(made, request=moved)
    assert there.identity() == made.identity()
    elsewhere = replace(there, request=replace(moved, folder=tmp_path / "new"))
    assert elsewhere.identity() != made.identity()


# How fast it will be


def embedded(count: int) -> ExperimentImages:
    found = load_embedded()
    names = tuple("abcdefghij")
    images, labels = found.train_images[:count], found.train_labels[:count]
    data = LabelledImages(images, labels, names, "embedded", "")
    return ExperimentImages(data, data, "the same", "embedded")


def measured_rate(count: int, model: nn.Module, policy: str, config: TrainConfig) -> float:
    images = embedded(count)
    experiment = Experiment(images, compared_policy(policy), "net", lambda seed: model, config)
    rate = experiment.measured_rate()
    assert rate is not None
    return rate


class Watched(nn.Module):
    """A network that notes how many images it gets, and may take its time over them."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.inner, self.seconds, self.seen = build_model("small", 10), seconds, [0]

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        time.sleep(self.seconds if self.training else 0.0)
        out: Tensor = self.inner(images)
        return out


def test_a_slow_network_is_timed_on_few_images() -> None:
    """A whole batch of WRN-28-10 with eight copies would take half an hour and 40 GB."""
    config = TrainConfig(batch=128, copies=8)
    model = Watched(0.6)
    rate = measured_rate(200, model, "crop-flip", config)
    few = max(model.seen)
    assert few <= 8
    assert 0 < rate < few / 0.6


def test_a_quick_network_is_timed_on_a_whole_batch() -> None:
    model = Watched(0.0)
    rate = measured_rate(60, model, "none", TrainConfig())
    assert max(model.seen) == 60
    assert rate > 0


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_may_be_smaller_than_the_few(batch: int) -> None:
    model = Watched(0.0)
    config = TrainConfig(batch=batch)
    assert measured_rate(8, model, "none", config) > 0
    assert max(model.seen) == batch
