"""Several seeds in a run folder: accumulating, stopping, resuming, being killed."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import Net, blobs
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from deepaa.data.splits import LabelledImages, fingerprint
from deepaa.models import load_model
from deepaa.policy.load import load_policy
from deepaa.policy.policy import Policy
from deepaa.runs import Run, RunError, read_history, read_json
from deepaa.train.batches import ExperimentImages, ImageBatches
from deepaa.train.config import TrainConfig
from deepaa.train.experiment import Experiment, policy_hash
from deepaa.train.loop import Training, evaluate
from deepaa.train.results import SeedFailure, SeedResult, read_results
from deepaa.train.training_run import (
    SeedEpoch,
    SeedEvent,
    SeedRequest,
    TrainingRun,
    train_side_by_side,
    weights_name,
)

CONFIG = TrainConfig(epochs=3, batch=32, lr=0.05)
POLICY = load_policy("crop-flip")


def labelled(n: int, seed: int) -> LabelledImages:
    images, labels = blobs(n, seed)
    names = tuple("abcd")
    return LabelledImages(images, labels, names, "blobs", fingerprint(images, labels))


TRAIN, TEST = labelled(128, 1), labelled(60, 2)
IMAGES = ExperimentImages(TRAIN, TEST, "other blobs", "blobs")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def experiment(config: TrainConfig = CONFIG, **changes: Any) -> Experiment:
    fields = {"images": IMAGES, "policy": POLICY, "model_name": "net", "make_model": network}
    return Experiment(**{**fields, "config": config, **changes})


def training_run(
    run: Run | None,
    seeds: list[int],
    config: TrainConfig = CONFIG,
    make_model: Any = network,
    device: str = "cpu",
    **options: Any,
) -> TrainingRun:
    options = {"checkpoint_seconds": 0.0, **options}
    made = experiment(config, make_model=make_model, device=torch.device(device))
    return TrainingRun(made, seeds, run=run, **options)


def events_of(work: TrainingRun, parallel: int = 1) -> Iterator[SeedEvent]:
    """Train the seeds of one run."""
    return (event for _, event in train_side_by_side([work], parallel))


def seeds_of(run: Run, count: int | None, given: list[int], resume: bool) -> list[int]:
    return SeedRequest(count, tuple(given), resume).add_to(run)


def opened(folder: Path, config: TrainConfig = CONFIG) -> Run:
    return Run(folder, experiment(config).identity())


def lasting(folder: Path) -> list[dict[str, Any]]:
    """The history without what depends on the clock."""
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in r.items() if k not in timed} for r in read_history(folder)]


# Results


def test_every_seed_is_trained_and_tested_as_if_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        events = list(events_of(training_run(run, [0, 4])))
    kinds = [event.seed if isinstance(event, SeedEpoch) else "done" for event in events]
    assert kinds == [0, 0, 0, "done", 4, 4, 4, "done"]
    found, content = read_results(tmp_path / "run")
    assert [result.seed for result in found] == [0, 4]
    for result in found:
        config = replace(CONFIG, seed=result.seed)
        batches = ImageBatches(TRAIN.images, TRAIN.labels, POLICY, config)
        alone = Training(network(result.seed), batches, config)
        list(alone)
        expected = evaluate(alone.model, TEST.images, TEST.labels)
        assert (result.accuracy, result.loss) == (expected.accuracy, expected.loss)
        assert (result.epochs, result.device, result.parallel) == (3, "cpu", 1)
        assert result.seconds > 0
        assert result.images_per_second > 0
    mean = sum(result.accuracy for result in found) / 2
    assert content["accuracy"]["mean"] == pytest.approx(mean)
    assert content["accuracy"]["seeds"] == 2
    starts = read_json(tmp_path / "run" / "provenance.json")["starts"]
    assert content["made_by"] == starts[-1]
    assert "versions" in content["made_by"]
    epochs = [record for record in read_history(tmp_path / "run") if record["kind"] == "epoch"]
    assert [(r["seed"], r["epoch"]) for r in epochs] == [(s, e) for s in (0, 4) for e in range(3)]
    assert {"loss", "accuracy", "lr", "images"} <= epochs[0].keys()


def test_at_once_or_one_by_one_is_the_same(tmp_path: Path) -> None:
    results = []
    for parallel in (1, 2, 5):
        work = training_run(None, [0, 1, 2])
        list(events_of(work, parallel))
        results.append([(r.seed, r.accuracy, r.loss) for r in sorted(work.results)])
        together = {r.seed: r.parallel for r in work.results}
        assert together == {1: {0: 1, 1: 1, 2: 1}, 2: {0: 2, 1: 2, 2: 1}}.get(
            parallel, {0: 3, 1: 3, 2: 3}
        )
    assert results[0] == results[1] == results[2]


def test_runs_side_by_side_take_turns_and_end_as_if_alone(tmp_path: Path) -> None:
    policies = {"crop": POLICY, "cutout": load_policy("crop-flip-cutout")}
    alone = {}
    for name, policy in policies.items():
        work = TrainingRun(experiment(policy=policy), [0, 1])
        list(events_of(work))
        alone[name] = [(r.seed, r.accuracy, r.loss) for r in sorted(work.results)]
    assert alone["crop"] != alone["cutout"]
    for parallel in (1, 3):
        runs = {
            name: TrainingRun(experiment(policy=policy), [0, 1])
            for name, policy in policies.items()
        }
        names = {id(run): name for name, run in runs.items()}
        events = [
            (names[id(run)], event.seed)
            for run, event in train_side_by_side(list(runs.values()), parallel)
            if isinstance(event, SeedResult)
        ]
        if parallel == 1:
            assert events == [("crop", 0), ("cutout", 0), ("crop", 1), ("cutout", 1)]
        else:
            together = {(n, r.seed): r.parallel for n, run in runs.items() for r in run.results}
            assert together == {
                ("crop", 0): 3,
                ("cutout", 0): 3,
                ("crop", 1): 3,
                ("cutout", 1): 1,
            }
        for name, run in runs.items():
            assert [(r.seed, r.accuracy, r.loss) for r in sorted(run.results)] == alone[name]


@pytest.mark.parametrize("calls", [3, 10, 22])
def test_runs_side_by_side_stop_and_go_on(tmp_path: Path, calls: int) -> None:
    """Folders may have been saved after different epochs."""
    left = calls

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    def both(where: Path, **options: Any) -> list[TrainingRun]:
        return [
            training_run(
                opened(where / str(i), replace(CONFIG, epochs=2 + i)), [0], epochs, **options
            )
            for i, epochs in enumerate((CONFIG, replace(CONFIG, epochs=4)))
        ]

    def closed(runs: list[TrainingRun]) -> None:
        for each in runs:
            assert each.run is not None
            each.run.close()

    straight = both(tmp_path / "straight")
    list(train_side_by_side(straight, 2))
    closed(straight)
    parts = both(tmp_path / "parts", stop=stop, checkpoint_seconds=1000.0)
    list(train_side_by_side(parts, 2))
    assert all(each.stopped for each in parts)
    closed(parts)
    again = both(tmp_path / "parts")
    list(train_side_by_side(again, 2))
    closed(again)
    for i in "01":
        a, b = (lasting(tmp_path / name / i) for name in ("straight", "parts"))
        assert a == b


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    work = training_run(None, [3])
    assert len(list(events_of(work))) == 4
    assert work.pending == []
    assert not list(tmp_path.iterdir())


def test_bad_amounts() -> None:
    with pytest.raises(ValueError, match="parallel should be at least 1, got 0"):
        next(events_of(training_run(None, [0]), 0))
    with pytest.raises(ValueError, match="a seed is trained once, got 1, 2, 1"):
        training_run(None, [1, 2, 1])


# Seeds


def test_seeds_accumulate_and_never_repeat(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for count, given, expected in (
        (2, [], [0, 1]),
        (1, [], [0, 1, 2]),
        (None, [9, 5], [0, 1, 2, 9, 5]),
        (2, [20], [0, 1, 2, 9, 5, 20, 21, 22]),
    ):
        with opened(folder) as run:
            seeds = seeds_of(run, count, given, False)
            assert seeds == expected
            before = {result.seed for result in training_run(run, seeds).results}
            list(events_of(training_run(run, seeds, replace(CONFIG, epochs=1))))
            assert before < {result.seed for result in training_run(run, seeds).results}
    found, _ = read_results(folder)
    assert [result.seed for result in found] == [0, 1, 2, 5, 9, 20, 21, 22]
    with opened(folder) as run:
        with pytest.raises(RunError, match="seed 5 would be trained twice; the run has 0"):
            seeds_of(run, None, [5], False)
        with pytest.raises(ValueError, match="seed 30 would be trained twice: give it once"):
            seeds_of(run, None, [30, 30], False)
        for seed in (-1, 2**63, 2**70):
            with pytest.raises(ValueError, match=rf"--seed should be in 0\.\.\d+, got {seed}"):
                seeds_of(run, None, [seed], False)
        assert SeedRequest(1).preview(folder) == [23]
        assert seeds_of(run, None, [], True)[-1] == 22


def test_a_run_that_was_killed_before_it_knew_its_seeds_takes_one(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with opened(tmp_path) as run:
        assert seeds_of(run, None, [], True) == [0]
    with opened(tmp_path) as run:
        assert seeds_of(run, 2, [], True) == [0, 1, 2]


def test_seeds_that_were_trained_are_known_without_their_file(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        list(events_of(training_run(run, [0, 4], replace(CONFIG, epochs=1))))
        assert not (tmp_path / "seeds.json").exists()
        assert seeds_of(run, 1, [], False) == [0, 4, 5]
        with pytest.raises(RunError, match="seed 4 would be trained twice; the run has 0, 4, 5"):
            seeds_of(run, None, [4], True)


def test_unfinished_seeds_come_first(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        assert seeds_of(run, 2, [], False) == [0, 1]
    with opened(tmp_path) as run:
        with pytest.raises(RunError, match=r"seeds 0, 1 not finished; go on with: .*--resume"):
            seeds_of(run, 1, [], False)
        assert seeds_of(run, None, [], True) == [0, 1]
        assert seeds_of(run, 1, [], True) == [0, 1, 2]
        list(events_of(training_run(run, [0])))
        with pytest.raises(RunError, match="seeds 1, 2 not finished"):
            seeds_of(run, 1, [], False)


def test_another_configuration_is_refused_naming_the_difference(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.save({}, {"seeds": []})
    with pytest.raises(RunError, match=r"train.lr: 0.05 there, 0.1 now"):
        opened(tmp_path / "run", replace(CONFIG, lr=0.1))
    other = experiment(policy=load_policy("crop-flip-cutout")).identity()
    with pytest.raises(RunError, match="policy_sha256"):
        Run(tmp_path / "run", other)
    images = ExperimentImages(labelled(128, 7), TEST, "other blobs", "blobs")
    config = experiment(images=images).identity()
    with pytest.raises(RunError, match=r"images\.fingerprint"):
        Run(tmp_path / "run", config)
    # the seed of the settings says nothing
    opened(tmp_path / "run", replace(CONFIG, seed=5)).close()


def test_the_hash_of_a_policy_is_that_of_its_content() -> None:
    stages = [(phase.epoch, phase.stages) for phase in POLICY.phases]
    renamed = Policy(POLICY.table, schedule=stages, info={"description": "another name"})
    assert policy_hash(renamed) == policy_hash(POLICY)
    assert policy_hash(load_policy("crop-flip-cutout")) != policy_hash(POLICY)


# Networks


class _Wide(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 16 * 16, classes + 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.float().flatten(1) / 255)


def test_a_network_has_as_many_outputs_as_there_are_classes(monkeypatch: Any) -> None:
    for spec, message in (
        ("tests.train.test_training_run:_Wide", "has 7 outputs, but blobs has 4 classes"),
        ("vit_b_16", r"cannot take images of shape \(3, 16, 16\)"),
    ):
        with pytest.raises(ValueError, match=message):
            experiment(make_model=partial(load_model, spec, TRAIN.images, 4)).check()


def test_a_network_normalises_by_its_images_unless_told_otherwise() -> None:
    levels = (0.5,) * 3, (0.25,) * 3
    model = load_model("small", TRAIN.images, 4, 3, normalisation=levels)
    again = load_model("small", TRAIN.images, 4, 3)
    assert torch.equal(model.network[0].weight, again.network[0].weight)
    assert not torch.equal(model.normalize.mean, again.normalize.mean)


# Stopping


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Run folders of seeds 0 and 1 that were never stopped, by how many were trained at once."""
    folders = {parallel: tmp_path_factory.mktemp("straight") for parallel in (1, 2)}
    for parallel, folder in folders.items():
        with opened(folder) as run:
            list(events_of(training_run(run, [0, 1]), parallel))
    return folders


@pytest.mark.parametrize(
    ("calls", "parallel"), [(1, 1), (4, 2), (9, 1), (9, 2), (14, 1), (14, 2), (20, 1), (20, 2)]
)
def test_asked_to_stop_it_saves_and_goes_on_bit_for_bit(
    tmp_path: Path, uninterrupted: dict[int, Path], calls: int, parallel: int
) -> None:
    """Asked at every step and after every epoch; a stop in an epoch loses that epoch."""
    straight, parts = uninterrupted[parallel], tmp_path / "parts"
    left = calls

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    with opened(parts) as run:
        work = training_run(run, [0, 1], checkpoint_seconds=1000.0, stop=stop)
        events = list(events_of(work, parallel))
        assert work.stopped
    whole = [r for r in read_history(parts) if r["kind"] == "epoch"]
    assert len(whole) == sum(isinstance(event, SeedEpoch) for event in events)
    with opened(parts) as run:
        assert len(run.history()) == len(whole) + sum(
            not isinstance(event, SeedEpoch) for event in events
        ), "what was shown before the stop is kept"
        work = training_run(run, [0, 1])
        assert work.epochs_left == 2 * CONFIG.epochs - len(whole)
        if {record["seed"] for record in whole} == {0, 1}:
            asked = SeedRequest(resume=True)
            assert asked.epochs_left(parts, CONFIG.epochs) == work.epochs_left
        list(events_of(work, parallel))
        assert (work.stopped, work.epochs_left) == (False, 0)
    assert lasting(parts) == lasting(straight)
    for seed in (0, 1):
        a, b = (load_file(folder / weights_name(seed)) for folder in (parts, straight))
        assert a.keys() == b.keys() == Net().state_dict().keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("calls", "checkpoint_seconds"), [(1, 1000.0), (6, 0.0), (6, 1000.0), (24, 0.0)]
)
def test_begun_seeds_beyond_parallel_wait_with_their_state(
    tmp_path: Path, calls: int, checkpoint_seconds: float
) -> None:
    whole = training_run(None, [0, 1, 2])
    list(events_of(whole, 3))
    with opened(tmp_path) as run:
        together = events_of(training_run(run, [0, 1, 2]), 3)
        assert [e.seed for _, e in zip(range(3), together, strict=False)] == [0, 1, 2]
    left = calls
    events: list[Any] = []

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    options: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds}
    with opened(tmp_path) as run:  # stopped while some of them wait
        work = training_run(run, [0, 1, 2], stop=stop, **options)
        assert work.begun == [0, 1, 2]
        events += events_of(work)
        assert work.stopped
    with opened(tmp_path) as run:
        events += events_of(training_run(run, [0, 1, 2], **options))
    # each goes on after its first epoch, one after the other, none of them twice
    epochs = [(e.seed, e.record.epoch) for e in events if isinstance(e, SeedEpoch)]
    assert epochs == [(seed, epoch) for seed in (0, 1, 2) for epoch in (1, 2)]
    found, _ = read_results(tmp_path)
    assert [(r.seed, r.accuracy, r.loss) for r in found] == [
        (r.seed, r.accuracy, r.loss) for r in whole.results
    ]
    assert {result.parallel for result in found} == {1}


def test_a_run_that_is_done_needs_no_large_file_for_further_seeds(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        list(events_of(training_run(run, [0, 1])))
    assert load_file(tmp_path / "run/state.safetensors") == {}
    for path in [*tmp_path.glob("run/weights-*"), *tmp_path.glob("run/*.previous.*")]:
        path.unlink()
    with opened(tmp_path / "run") as run:
        work = training_run(run, [0, 1, 2])
        assert work.pending == [2]
        list(events_of(work))
    assert [r["seed"] for r in read_history(tmp_path / "run") if r["kind"] == "seed"] == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.glob("run/weights-*")) == [weights_name(2)]


class Breaking(Net):
    """After six steps, in its second epoch, the loss is no number."""

    steps = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        out = super().forward(images)
        return out * math.nan if self.steps > 6 else out  # four steps an epoch


def sometimes_broken(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Breaking() if seed == 5 else Net()


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1000.0])
@pytest.mark.parametrize("parallel", [1, 3])
def test_a_seed_that_fails_is_listed_and_the_others_go_on(
    tmp_path: Path, parallel: int, checkpoint_seconds: float
) -> None:
    def work(run: Run, seeds: list[int]) -> TrainingRun:
        options: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds}
        return training_run(run, seeds, make_model=sometimes_broken, **options)

    alone = training_run(None, [1, 2])
    list(events_of(alone))
    with opened(tmp_path) as run:
        seeds = seeds_of(run, None, [1, 5, 2], False)
        events = list(events_of(work(run, seeds), parallel))
        (failure,) = [event for event in events if isinstance(event, SeedFailure)]
        assert (failure.seed, failure.epoch) == (5, 1)
        assert failure.reason.startswith("seed 5, epoch 2, step 3: loss nan")
        assert failure.reason.endswith("the epochs before it are in failed-5.safetensors")
    found, content = read_results(tmp_path)
    assert [(r.seed, r.accuracy, r.loss) for r in found] == [
        (r.seed, r.accuracy, r.loss) for r in alone.results
    ]
    assert content["failed"] == [failure._asdict()]
    assert content["accuracy"]["seeds"] == 2
    # the state of its last whole epoch is that of a healthy training
    state = load_file(tmp_path / "failed-5.safetensors")
    healthy = experiment().training(5)
    healthy.train_epoch()
    expected = healthy.state()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in state)
    # neither again nor in the way
    with opened(tmp_path) as run:
        again = work(run, seeds_of(run, None, [], True))
        assert (again.pending, list(events_of(again))) == ([], [])
        assert again.failures == [failure]
        seeds = seeds_of(run, 1, [], False)
        assert seeds == [1, 5, 2, 6]
        list(events_of(work(run, seeds), parallel))
    assert [r.seed for r in read_results(tmp_path)[0]] == [1, 2, 6]


def test_a_seed_that_failed_is_trained_again_where_it_is_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        seeds = seeds_of(run, None, [1, 5], False)
        list(events_of(training_run(run, seeds, make_model=sometimes_broken)))
        with pytest.raises(RunError, match="seed 1 would be trained twice"):
            seeds_of(run, None, [5, 1], False)
        assert SeedRequest(1, (5,)).preview(tmp_path) == [5, 6]
        assert training_run(run, seeds).pending == []
        assert seeds_of(run, None, [5], False) == [1, 5]
    with opened(tmp_path) as run:  # as after a kill before its first epoch ended
        assert seeds_of(run, None, [], True) == [1, 5]
        work = training_run(run, seeds)
        assert (work.pending, work.begun, work.failures) == ([5], [], [])
        assert [event.seed for event in events_of(work)] == [5, 5, 5, 5]
    found, content = read_results(tmp_path)
    alone = training_run(None, [1, 5])
    list(events_of(alone))
    assert [(r.seed, r.accuracy, r.loss) for r in found] == [
        (r.seed, r.accuracy, r.loss) for r in alone.results
    ]
    assert content["failed"] == []
    assert not list(tmp_path.glob("failed-*"))
    seconds = [r["seconds"] for r in read_history(tmp_path) if r["kind"] == "epoch"]
    assert found[1].seconds == pytest.approx(sum(seconds[-3:]))


def test_a_seed_that_fails_at_once_leaves_no_state(tmp_path: Path) -> None:
    broken = replace(CONFIG, lr=1e30, clip=0.0)
    with opened(tmp_path, broken) as run:
        (failure,) = events_of(training_run(run, [0], broken))
        assert isinstance(failure, SeedFailure)
        assert failure.reason.endswith("no epoch ended")
        assert not list(tmp_path.glob("failed-*"))
    with opened(tmp_path, broken) as run:
        assert training_run(run, [0], broken).failures == [failure]
    assert read_results(tmp_path)[1]["accuracy"] is None


class BreakingTest(Net):
    """Every loss of its training is a number, that of its test is none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(x)
        return out if self.training else out * math.nan


def untestable(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BreakingTest() if seed == 5 else Net()


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1000.0])
def test_a_seed_whose_test_fails_is_listed_and_the_others_end(
    tmp_path: Path, checkpoint_seconds: float
) -> None:
    def work(run: Run | None, seeds: list[int]) -> TrainingRun:
        options: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds}
        return training_run(run, seeds, make_model=untestable, **options)

    with opened(tmp_path) as run:
        events = list(events_of(work(run, [1, 5, 2]), 3))
    (failure,) = [event for event in events if isinstance(event, SeedFailure)]
    assert (failure.seed, failure.epoch) == (5, 3)
    assert failure.reason.startswith("seed 5, test after epoch 3: loss nan; lower lr (0.05)")
    assert failure.reason.endswith("the epochs before it are in failed-5.safetensors")
    found, content = read_results(tmp_path)
    assert [result.seed for result in found] == [1, 2]
    assert content["failed"] == [failure._asdict()]
    assert {path.name for path in tmp_path.glob("weights-*")} == {weights_name(1), weights_name(2)}
    # its last state is that of a healthy training
    healthy = experiment().training(5)
    list(healthy)
    state, expected = load_file(tmp_path / "failed-5.safetensors"), healthy.state()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in state)
    with opened(tmp_path) as run:
        again = work(run, [1, 5, 2])
        assert (again.failures, list(events_of(again))) == ([failure], [])
    (alone,) = [event for event in events_of(work(None, [5])) if isinstance(event, SeedFailure)]
    assert alone.reason.endswith("the epochs before it are not kept")


def test_a_test_that_raises_loses_no_epoch(tmp_path: Path, monkeypatch: Any) -> None:
    def raising(its: Experiment, model: nn.Module) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, opened(tmp_path) as run:
        patch.setattr(Experiment, "test", raising)
        with pytest.raises(MemoryError):
            list(events_of(training_run(run, [0], checkpoint_seconds=1000.0)))
    with opened(tmp_path) as run:
        (result,) = events_of(training_run(run, [0]))
    assert isinstance(result, SeedResult)
    expected = training_run(None, [0])
    list(events_of(expected))
    assert (result.accuracy, result.loss) == (
        expected.results[0].accuracy,
        expected.results[0].loss,
    )


def test_an_error_between_checkpoints_loses_no_epoch(tmp_path: Path, monkeypatch: Any) -> None:
    with opened(tmp_path) as run:
        begun = training_run(run, [0], checkpoint_seconds=1000.0)
        events = events_of(begun)
        next(events)
        record = begun.record
        monkeypatch.setattr(begun, "record", lambda seed, outcome: record(seed, 1 / 0))
        with pytest.raises(ZeroDivisionError):
            next(events)
    with opened(tmp_path) as run:
        left = [e for e in events_of(training_run(run, [0])) if isinstance(e, SeedEpoch)]
    assert [e.record.epoch for e in left] == list(range(1, CONFIG.epochs))


def test_seeds_of_other_numbers_of_processes_are_told_apart(tmp_path: Path, caplog: Any) -> None:
    with opened(tmp_path) as run:
        (result,) = [e for e in events_of(training_run(run, [0])) if isinstance(e, SeedResult)]
        assert result.processes == 1
    path = tmp_path / "history.jsonl"
    with opened(tmp_path) as run:
        more = training_run(run, [0, 1])
        more.history.results[0] = result._replace(processes=8)
        list(events_of(more))
    assert "shared a batch among 8 processes, now 1" in caplog.text
    assert path.read_text().count('"processes": 1') == 2


def test_a_seed_begun_by_another_number_of_processes_is_told(tmp_path: Path, caplog: Any) -> None:
    with opened(tmp_path) as run:
        work = training_run(run, [0], stop=lambda: bool(run.history()), checkpoint_seconds=0.0)
        list(events_of(work))
        assert work.stopped
        saved = run.latest()
        assert saved is not None
        assert saved.position["processes"] == [[1]]
        assert not caplog.text
        run.save(saved.tensors, {**saved.position, "processes": [[4]]})
    for epochs in (2, None):  # a second stop must not make it forget
        caplog.clear()
        with opened(tmp_path) as run:
            done = partial(_has_epochs, run, epochs)
            work = training_run(run, [0], stop=done, checkpoint_seconds=0.0)
            assert work.processes == ({4} if epochs else {1, 4})
            list(events_of(work))
            assert work.stopped == bool(epochs)
        assert "shared a batch among 4 processes, now 1" in caplog.text
    (result,) = read_results(tmp_path)[0]
    assert (result.processes, result.other_processes) == (1, [4])
    with opened(tmp_path) as run:
        assert training_run(run, [0, 1]).processes == {1, 4}


def _has_epochs(run: Run, count: int | None) -> bool:
    return count is not None and len(run.history()) >= count


# Copies


class _Copies(TorchDispatchMode):
    """Counts the tensors that are copied."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default):
            self.sizes.append(args[0].numel())
        if func is torch.ops.aten._foreach_copy_.default:
            self.sizes += [tensor.numel() for tensor in args[1]]
        return func(*args, **(kwargs or {}))


def test_every_tensor_of_a_state_is_copied_once() -> None:
    config = replace(CONFIG, channels_last=True)
    training = experiment(config).training(0)
    with _Copies() as copies:
        state = training.state()
    assert len(copies.sizes) == len(state) - 1  # the epoch is no copy
    before = {name: tensor.clone() for name, tensor in state.items()}
    training.train_epoch()
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_a_state_can_be_written_over_an_earlier_one() -> None:
    training = experiment(CONFIG).training(0)
    training.train_epoch()
    first = training.state()
    kept = {name: tensor.clone() for name, tensor in first.items()}
    training.train_epoch()
    fresh = training.state()
    again = training.state(first)
    assert all(again[name] is first[name] for name in first if name != "epoch")
    assert all(torch.equal(again[name], fresh[name]) for name in fresh)
    assert not all(torch.equal(again[name], kept[name]) for name in kept)
    training.load_state(kept)  # what was read from a file may lie elsewhere
    other = training.state({name: tensor.to("meta") for name, tensor in kept.items()})
    assert all(torch.equal(other[name], kept[name]) for name in kept)


class _Centred(nn.Module):
    """A network that puts another tensor in the place of a buffer, as running means may do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        means = images.float().mean((2, 3)) / 255
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * means.mean(0).detach()
        return self.head(means - self.centre)


def test_states_have_buffers_that_a_network_replaces() -> None:
    images = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(64) % 2
    config = TrainConfig(epochs=3, batch=16, lr=0.1)

    def training() -> Training:
        torch.manual_seed(0)
        return Training(_Centred(), ImageBatches(images, labels, None, config, "cpu"), config)

    whole, first = training(), training()
    state = None
    for _ in range(2):
        first.train_epoch()
        state = first.state(state)
        assert torch.equal(state["model.centre"], first.model.centre)
    resumed = training()
    resumed.load_state(state)
    resumed.train_epoch()
    for _ in whole:
        pass
    assert all(
        torch.equal(a, b)
        for a, b in zip(*(t.state().values() for t in (whole, resumed)), strict=True)
    )


@pytest.mark.gpu
def test_kept_states_are_on_the_device(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        work = training_run(run, [0], device="cuda", checkpoint_seconds=1000.0)
        next(events_of(work))
        kept = work._states[0]
        assert kept
        assert all(tensor.is_cuda for name, tensor in kept.items() if name != "epoch")


def test_trainings_share_one_copy_of_the_images() -> None:
    images = ExperimentImages(TRAIN, TEST, "other blobs", "blobs")
    meta = torch.device("meta")  # holds no bytes; the CPU's images are never copied
    first, second = (images.batches(POLICY, CONFIG, meta).images for _ in range(2))
    assert first is second
    assert first.device == meta
    one, two = (experiment(images=images).training(s) for s in (0, 1))
    assert one.batches.images.data_ptr() == two.batches.images.data_ptr()  # type: ignore


@pytest.mark.gpu
def test_trainings_on_one_gpu_share_one_copy_of_the_images() -> None:
    images = ExperimentImages(TRAIN, TEST, "other blobs", "blobs")
    cuda = torch.device("cuda")
    one, two = (experiment(images=images, device=cuda).training(s) for s in (0, 1))
    assert one.batches.images.data_ptr() == two.batches.images.data_ptr()  # type: ignore
    assert one.batches.images.is_cuda  # type: ignore


# Files that a kill left out


def test_results_that_a_kill_kept_from_the_file_are_written_next_time(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        list(events_of(training_run(run, [0])))
    (tmp_path / "results.json").unlink()
    with opened(tmp_path) as run:
        assert list(events_of(training_run(run, [0]))) == []
    assert len(read_results(tmp_path)[0]) == 1


# Kills

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "OMP_NUM_THREADS": "1",
}


def kill_again_and_again(out: Path, arguments: list[str], times: int) -> None:
    """Start, kill at a random instant or before a file operation, resume, until it ends."""
    from killing import attempt, finish, kill_some_time, lines

    import deepaa.cli.train_run  # noqa: F401 - so that forks need not

    torch.set_num_threads(1)
    chance = random.Random(0)
    killed: Counter[str] = Counter()
    by_hand = 0
    for number in range(300):
        # one that was killed before it knew its seeds has to be told how many
        resumes = (out / "config.json").exists()
        rest = ["--checkpoint-seconds", "0"]
        if resumes and not (out / "seeds.json").exists():
            rest += ["--seeds", "3"]
        now = ["train", "--resume", str(out), *rest] if resumes else [*arguments, *rest]
        records = [json.loads(line) for line in lines(out)]
        phase = f"{sum(r['kind'] == 'seed' for r in records)} done" if records else "start"
        if number >= times:
            pid = attempt(now)
        elif number % 2:
            pid = attempt(now, die_at=chance.randint(1, 30))
        else:
            pid = attempt(now)
            kill_some_time(pid, out, chance, 0.03)
        if finish(pid):
            killed[phase] += 1
            by_hand += number % 2
        else:
            break
    sys.stdout.write(json.dumps({"killed": killed, "in_file_operations": by_hand}))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
def test_killed_at_any_instant_it_ends_with_the_same_networks(
    tmp_path: Path, parallel: int
) -> None:
    images, labels = blobs(200, 1)
    np.savez(tmp_path / "blobs.npz", x=images.numpy(), y=labels.numpy())
    arguments = ["train", "--data", str(tmp_path / "blobs.npz"), "--policy", "crop-flip"]
    arguments += ["--model", "small", "--epochs", "4", "--batch", "32", "--seeds", "3"]
    arguments += ["--device", "cpu", "--parallel", str(parallel), "--out"]
    straight, out = tmp_path / "straight", tmp_path / "killed"
    command = [sys.executable, "-m", "deepaa", *arguments, str(straight)]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, timeout=120)
    code = (
        "import sys, pathlib, tests.train.test_training_run as t\n"
        "t.kill_again_and_again(pathlib.Path(sys.argv[1]), sys.argv[3:], int(sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, out, "20", *arguments, out],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sum(report["killed"].values()) >= 10, report
    assert report["in_file_operations"] >= 4, report
    for name in ("policy.json", "config.json", "seeds.json"):
        assert (out / name).read_bytes() == (straight / name).read_bytes(), name
    if parallel == 1:  # resumed without --parallel, seeds come one by one
        assert lasting(out) == lasting(straight)
    results = [
        [(r.seed, r.accuracy, r.loss) for r in read_results(folder)[0]]
        for folder in (out, straight)
    ]
    assert len(results[0]) == 3
    assert results[0] == results[1]
    assert not list(out.glob(".*.tmp"))
