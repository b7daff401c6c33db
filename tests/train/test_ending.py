"""The weak ending: which images a training sees in its last epochs, and what a run keeps of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import Net, blobs
from photos import SIZE, save_photos, streamed
from torch import Tensor

from deepaa.data.splits import LabelledImages, fingerprint
from deepaa.ops.space import CIFAR
from deepaa.policy.load import compared_policy
from deepaa.policy.policy import Policy
from deepaa.runs import Run, read_config
from deepaa.train import ended_policy
from deepaa.train.batches import Batches, ExperimentImages, ImageBatches, StreamedBatches
from deepaa.train.config import TrainConfig
from deepaa.train.experiment import Experiment, PolicySpec, TrainRequest
from deepaa.train.stored import stored_request
from deepaa.train.stream_policy import crop_for
from deepaa.train.training_run import TrainingRun, train_side_by_side

SMALL, LARGE = (3, 32, 32), (3, 224, 224)
CONFIG = TrainConfig(epochs=5, batch=32, lr=0.05, end_epochs=2)
WHOLE = replace(CONFIG, end_epochs=0)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def last_operations(policy: Policy, shape: tuple[int, ...]) -> dict[str, float]:
    """What images meet in the last epoch."""
    found = ended_policy(policy, CONFIG, shape)
    assert found is not None
    return {name: uses for name, uses in found.expected_uses(4).items() if uses}


@pytest.mark.parametrize("name", ["trivialaugment-wide", "autoaugment", "crop-flip-cutout"])
def test_crop_and_flip_are_left(name: str) -> None:
    assert last_operations(compared_policy(name), SMALL) == {"crop": 1.0, "flip": 1.0}
    large = compared_policy(name, space="imagenet", defaults=True)
    assert last_operations(large, LARGE) == {"resized_crop": 1.0, "flip": 1.0}


def test_an_ending_adds_nothing_that_the_policy_does_not_have() -> None:
    """Data whose mirror images are other classes have policies without a flip."""
    searched = Policy.trivial(CIFAR, 3)
    assert last_operations(searched, SMALL) == {"crop": 1.0, "flip": 1.0}
    still = searched.without(lambda row: row.operation.name == "flip")
    assert last_operations(still, SMALL) == {"crop": 1.0}
    assert last_operations(compared_policy("none"), SMALL) == {"identity": 1.0}
    alone = compared_policy("trivialaugment", defaults=False)
    assert last_operations(alone, SMALL) == {"identity": 1.0}
    late = Policy.identity().ending(searched, 2)  # what a later phase has counts as well
    assert last_operations(late, SMALL) == {"crop": 1.0, "flip": 1.0}


def test_without_an_ending_the_policy_is_the_same() -> None:
    policy = compared_policy("trivialaugment")
    assert ended_policy(policy, WHOLE, SMALL) is policy
    assert ended_policy(None, CONFIG, SMALL) is None
    empty = Policy(CIFAR)  # a policy without layers is not no policy
    found = ended_policy(empty, CONFIG, SMALL)
    assert found is not None
    assert found.phases[-1].epoch == 3


# Batches


def epoch_of(batches: Batches, number: int) -> Tensor:
    return torch.cat([images for images, _ in batches.epoch(number)])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("copies", [1, 2])
def test_the_last_epochs_of_images_in_memory(workers: int, copies: int) -> None:
    images, labels = blobs(64, 1)
    policy, weak = compared_policy("trivialaugment-wide"), compared_policy("crop-flip")

    def batches(policy: Policy, config: TrainConfig) -> ImageBatches:
        config = replace(config, copies=copies)
        return ImageBatches(images, labels, policy, config, workers=workers)

    ended = batches(policy, CONFIG)
    for epoch in range(5):
        expected = batches(policy if epoch < 3 else weak, WHOLE)
        other = batches(weak if epoch < 3 else policy, WHOLE)
        assert torch.equal(epoch_of(ended, epoch), epoch_of(expected, epoch))
        assert not torch.equal(epoch_of(ended, epoch), epoch_of(other, epoch))


def test_the_last_epochs_of_images_on_disk(tmp_path: Path) -> None:
    folder = save_photos(tmp_path)
    # a policy for small images, since the photos have 24 pixels
    policy, weak = compared_policy("trivialaugment-wide"), compared_policy("crop-flip")
    stream = streamed(folder, crop=crop_for(ended_policy(policy, CONFIG, (3, SIZE, SIZE))))
    ended = StreamedBatches(stream, policy, CONFIG)
    for epoch in (2, 3, 4):
        expected = StreamedBatches(stream, policy if epoch < 3 else weak, WHOLE)
        assert torch.equal(epoch_of(ended, epoch), epoch_of(expected, epoch))


@pytest.mark.parametrize(
    ("name", "crop"), [("trivialaugment", "random"), ("deepta", "larger"), ("none", "centre")]
)
def test_the_way_pictures_are_cut_stays(name: str, crop: str) -> None:
    policy = compared_policy(name, space="imagenet")
    assert crop_for(policy) == crop_for(ended_policy(policy, CONFIG, LARGE)) == crop


# Runs


def experiment(config: TrainConfig, folder: Path) -> Experiment:
    def labelled(n: int, seed: int) -> LabelledImages:
        images, labels = blobs(n, seed)
        return LabelledImages(images, labels, tuple("abcd"), "b", fingerprint(images, labels))

    def network(seed: int) -> Net:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Net()

    images = ExperimentImages(labelled(128, 1), labelled(60, 2), "other blobs", "blobs")
    policy, request = compared_policy("trivialaugment"), TrainRequest(folder, PolicySpec("x"))
    return Experiment(images, policy, "net", network, config, request=request)


def trained(folder: Path, config: TrainConfig, stop_after: int | None = None) -> dict[str, Any]:
    """The results of a run, which may be stopped after some epochs and goes on then."""
    made, epochs = experiment(config, folder), 0
    with Run(folder, made.identity()) as run:
        work = TrainingRun(made, [0], run=run, checkpoint_seconds=0.0)
        for _ in train_side_by_side([work]):
            epochs += 1
            if epochs == stop_after:
                break
    found = json.loads((folder / "results.json").read_text())
    return {"train": found["train"], "seeds": [s["loss"] for s in found["seeds"]]}


def test_an_ending_belongs_to_the_identity_and_the_results_of_a_run(tmp_path: Path) -> None:
    whole, ended = trained(tmp_path / "a", WHOLE), trained(tmp_path / "b", CONFIG)
    assert (whole["train"]["end_epochs"], ended["train"]["end_epochs"]) == (0, 2)
    assert whole["seeds"] != ended["seeds"]
    assert "end_epochs" not in read_config(tmp_path / "a")["train"], "as before there were any"
    assert read_config(tmp_path / "b")["train"]["end_epochs"] == 2
    for name, config in (("a", WHOLE), ("b", CONFIG)):
        assert stored_request(tmp_path / name).config == config
    with pytest.raises(ValueError, match=r"train\.end_epochs"):
        Run(tmp_path / "a", experiment(CONFIG, tmp_path / "a").identity())
    # stopped in the middle of the ending, it goes on with the same
    for stop_after in (1, 4):
        folder = tmp_path / f"stopped-{stop_after}"
        assert trained(folder, CONFIG, stop_after)["seeds"] == []
        assert trained(folder, CONFIG)["seeds"] == ended["seeds"]


def test_a_run_from_before_there_were_endings_goes_on(tmp_path: Path) -> None:
    """Its settings do not name them, and neither do those of a run without one."""
    trained(tmp_path / "run", WHOLE, stop_after=2)
    kept = read_config(tmp_path / "run")
    since = {"end_epochs", "fused"}
    assert {*kept["train"]} == {*vars(TrainConfig())} - {"seed", *since}
    assert stored_request(tmp_path / "run").config == WHOLE
    assert trained(tmp_path / "run", WHOLE)["seeds"] == trained(tmp_path / "b", WHOLE)["seeds"]


def test_how_fast_it_is_can_be_measured_with_an_ending() -> None:
    assert (experiment(CONFIG, Path("run")).measured_rate() or 0) > 0
