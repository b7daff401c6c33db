"""PBA with networks: copies, lines of descent, resumption, failures, and planted answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from torch import Tensor, nn
from worlds import Labelled, PooledNet, make_world as any_world

from deepaa.ops import CIFAR, Space
from deepaa.policy import (
    SCHEDULE_EPOCHS,
    Policy,
    PolicyFileError,
    compared_policy,
    default_policy,
    load_policy,
)
from deepaa.search.methods import Passes, Searcher, World
from deepaa.search.methods.pba import PopulationBased, PopulationConfig, drifted_schedule
from deepaa.search.methods.trainings import Trainings

SMALL = PopulationConfig(population=4, interval=2, epochs=7, validation=0)


def small_world(pretrain: Labelled, validation: Labelled, **settings: Any) -> World:
    """A world whose networks take milliseconds for an epoch."""
    classes, shape = int(pretrain[1].max()) + 1, tuple(pretrain[0].shape[1:])
    given = {"model": lambda: PooledNet(shape, classes), "batch": 50, **settings}
    return any_world(pretrain, validation, **given)


def blob_world(**changes: object) -> World:
    settings = {"defaults": default_policy(cutout=False), **changes}
    return small_world(blobs(100, 1), blobs(60, 2), **settings)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two states are equal bit for bit; NaN equals NaN."""
    return a.keys() == b.keys() and all(
        torch.equal(a[k].nan_to_num(nan=-7.0), b[k].nan_to_num(nan=-7.0)) for k in a
    )


def trainings_of(search: PopulationBased) -> Trainings:
    assert search._trainings is not None
    return search._trainings


def poisoned(world: World, *members: int) -> World:
    """The world in which some members' weights are no numbers from the start."""
    made = 0

    def make_model(seed: int) -> nn.Module:
        nonlocal made
        model = world.make_model(seed)
        if made % SMALL.population in members:
            torch.nn.init.constant_(next(model.parameters()), math.nan)
        made += 1
        return model

    return world._replace(make_model=make_model)


# A search


def test_records_and_passes() -> None:
    world = blob_world()
    search = PopulationBased(world, SMALL)
    assert isinstance(search, Searcher)
    assert (search.method, search.result) == ("pba", "schedule")
    forecast = PopulationBased.forecast(SMALL, world)
    assert forecast.passes == Passes(training=4 * 7 * 100, forward=4 * 7 * 60)
    records = list(search)
    assert search.done
    assert list(search) == []
    assert search.passes == forecast.passes
    assert len(records) == forecast.units == 7
    assert [(each.index, each.of, each.unit) for each in records] == [
        (index, 7, "epoch") for index in range(1, 8)
    ]
    best = 0.0
    for record in records:
        assert record.score is not None
        best = max(best, record.score)
        assert record.best == best
        error = math.sqrt(record.score * (1 - record.score) / 60)
        assert record.score_error == pytest.approx(error)
    assert [each.passes for each in records] == [4 * (300 + 60) * i for i in range(1, 8)]
    assert [each.summary.startswith("1 of 4 replaced") for each in records] == [
        index in (2, 4, 6) for index in range(1, 8)
    ]
    assert [update.epoch for update in search.population.log] == [2, 4, 6]
    needs = PopulationBased.needs(SMALL)
    assert needs.images(world) == 160
    assert needs.networks == 4


def test_a_search_goes_on_from_every_record_bit_for_bit(tmp_path: Path) -> None:
    world = blob_world()
    straight = PopulationBased(world, SMALL)
    states = [straight.state()]
    policies = [straight.policy]
    for _ in straight:
        states.append(straight.state())
        policies.append(straight.policy)
    assert policies[-1].phases[-1].epoch > 0  # the best has explored
    for epoch, state in enumerate(states):
        resumed = PopulationBased(world, SMALL)
        resumed.load_state(state)
        assert same(resumed.state(), state)
        assert resumed.policy.equals(policies[epoch])
        records = list(resumed)
        assert len(records) == 7 - epoch
        assert same(resumed.state(), states[-1])
        assert resumed.policy.equals(policies[-1])
        policies[epoch].save(tmp_path / "policy.json")
        loaded = load_policy(tmp_path / "policy.json")
        assert loaded.equals(policies[epoch])
        assert loaded.info == {SCHEDULE_EPOCHS: "7"}
    other = PopulationBased(world._replace(seed=1), SMALL)
    list(other)
    assert not same(other.state(), states[-1])


def test_a_copy_is_its_source_but_for_the_policy() -> None:
    """The same bits, and bits that stay the same as long as the policies are."""
    search = PopulationBased(blob_world(), SMALL)
    records = iter(search)
    next(records)
    weights = [each.state()["model.head.weight"] for each in trainings_of(search).each.values()]
    assert not any(torch.equal(weights[0], other) for other in weights[1:])
    next(records)
    (update,) = search.population.log
    source, copy = (trainings_of(search).each[i] for i in (update.source, update.member))
    assert any(name.startswith("momentum.") for name in source.state())
    assert same(source.state(), copy.state())
    for one, other in zip(source.batches.epoch(2), copy.batches.epoch(2), strict=True):
        assert torch.equal(one[1], other[1])
        assert not torch.equal(one[0], other[0])
    search._give_policy(trainings_of(search), update.member, update.old)
    next(records)
    assert same(source.state(), copy.state())
    search = PopulationBased(blob_world(), SMALL)
    records = iter(search)
    for _ in range(3):
        next(records)
    source, copy = (trainings_of(search).each[i] for i in (update.source, update.member))
    assert not same(source.state(), copy.state())


def test_members_train_with_what_the_schedule_says() -> None:
    search = PopulationBased(blob_world(), replace(SMALL, interval=1))
    list(search)
    policy, keys = search.policy, torch.arange(200)
    assert len(policy.phases) > 1
    training = trainings_of(search).each[search.leader].batches.policy  # type: ignore[attr-defined]
    drawn = [
        [[each.table.rows[row] for row in rows] for rows in each.draw(keys, 6).choice.tolist()]
        for each in (training, policy)
    ]
    assert drawn[0] == drawn[1]
    ends = [row.operation.name for row in drawn[0][0][-2:]]
    assert ends == ["crop", "flip"]


def test_the_defaults_are_behind_each_phase() -> None:
    world = blob_world()
    search = PopulationBased(world, replace(SMALL, interval=1))
    assert search.policy.phases[0].depth == 4
    assert search.policy.expected_uses() == {"identity": 2.0, "crop": 1.0, "flip": 1.0}
    list(search)
    for phase in search.policy.phases:
        uses = search.policy.expected_uses(phase.epoch)
        assert (uses["crop"], uses["flip"]) == (1.0, 1.0)


def test_the_last_epochs_may_have_crop_and_flip_alone() -> None:
    world = blob_world()
    world = world._replace(train=replace(world.train, epochs=7, end_epochs=2))
    search = PopulationBased(world, replace(SMALL, interval=1))
    list(search)
    for training in trainings_of(search).each.values():
        policy = training.batches.policy  # type: ignore[attr-defined]
        assert {n for n, use in policy.expected_uses(5).items() if use} <= {"crop", "flip"}
    explored = [len(search.population.line(member)) > 1 for member in range(4)]
    assert any(explored)


def test_grey_images() -> None:
    grey = [(images[:, :1].contiguous(), labels) for images, labels in (blobs(60, 1), blobs(40, 2))]
    search = PopulationBased(small_world(*grey), replace(SMALL, interval=1))
    assert len(list(search)) == 7


def test_part_of_the_validation_images() -> None:
    world, config = blob_world(), replace(SMALL, validation=25)
    search = PopulationBased(world, config)
    list(search)
    assert search.passes == PopulationBased.forecast(config, world).passes
    assert search.passes.forward == 4 * 7 * 25
    whole = PopulationBased(world, replace(SMALL, validation=60))
    assert whole._validation is world.validation


# Failures


def test_a_member_that_fails_becomes_a_copy() -> None:
    world = poisoned(blob_world(), 1)
    straight = PopulationBased(world, SMALL)
    states = []
    for record in straight:
        states.append(straight.state())
        assert record.score is not None
        if record.index == 1:
            assert trainings_of(straight).failed == [False, True, False, False]
            assert straight.scores.isnan().tolist() == [False, True, False, False]
    assert trainings_of(straight).failed == [False] * 4
    assert straight.population.log[0].member == 1
    assert straight.passes == Passes(training=(28 - 2) * 100, forward=(28 - 2) * 60)
    for state in states:  # also from a state with one that has failed
        resumed = PopulationBased(world, SMALL)
        resumed.load_state(state)
        list(resumed)
        assert same(resumed.state(), states[-1])


def test_most_may_fail_but_not_all() -> None:
    search = PopulationBased(poisoned(blob_world(), 0, 1, 3), SMALL)
    list(search)
    assert [update.source for update in search.population.log[:3]] == [2, 2, 2]
    search = PopulationBased(poisoned(blob_world(), 0, 1, 2, 3), SMALL)
    with pytest.raises(FloatingPointError, match=r"epoch 1: the loss of every network .* lower lr"):
        list(search)
    assert search.epoch == 0
    assert search.policy.phases[0].depth == 4


def test_what_pause_raises_leaves_the_search() -> None:
    class StopError(Exception):
        pass

    asked = 0

    def pause() -> None:
        nonlocal asked
        asked += 1
        if asked == 40:
            raise StopError

    world = blob_world()
    search = PopulationBased(world._replace(pause=pause), SMALL)
    states = [search.state()]
    with pytest.raises(StopError):
        states.extend(search.state() for _ in search)
    straight, resumed = PopulationBased(world, SMALL), PopulationBased(world, SMALL)
    resumed.load_state(states[-1])
    assert 0 < resumed.epoch < 7
    list(straight)
    list(resumed)
    assert same(straight.state(), resumed.state())


Spoil = Callable[[dict[str, Tensor]], None]


def put(name: str, value: Tensor) -> Spoil:
    return lambda state: state.update({name: value})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("scores"),
        lambda state: state.pop("log"),
        lambda state: state.pop("counts"),
        lambda state: state.pop("at.failed"),
        lambda state: state.pop("at.2.epoch"),
        lambda state: state["at.2.epoch"].add_(1),
        lambda state: state["log"][0].add_(1),
        lambda state: state["log"][:, 2].fill_(1),
        put("scores", torch.zeros(3, dtype=torch.float64)),
        put("counts", torch.tensor([8, 0, 0, 0])),
        put("counts", torch.tensor([3, 0, 0, -1])),
        put("counts", torch.tensor([1, 0, 0, 0])),
        put("counts", torch.tensor([3.0, 0, 0, 0])),
        put("best", torch.zeros(2)),
        put("at.0.model.head.weight", torch.zeros(2, 2)),
    ],
)
def test_states_of_no_such_search_are_refused(spoil: Spoil) -> None:
    state = {name: value.clone() for name, value in three_epochs().items()}
    spoil(state)
    search = PopulationBased(blob_world(), SMALL)
    with pytest.raises((ValueError, LookupError)):
        search.load_state(state)
    assert search.epoch == 0
    assert search.population.log == []


@cache
def three_epochs() -> dict[str, Tensor]:
    search = PopulationBased(blob_world(), SMALL)
    records = iter(search)
    for _ in range(3):
        next(records)
    return search.state()


# Settings


@pytest.mark.parametrize(
    ("name", "value"), [("population", 1), ("interval", 0), ("epochs", 0), ("validation", -1)]
)
def test_bad_settings(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} should be at least"):
        PopulationConfig(**{name: value})


def test_presets() -> None:
    presets = PopulationBased.presets
    paper = presets["paper"]
    assert (paper.population, paper.interval, paper.epochs) == (16, 3, 200)
    assert paper.validation == 0
    fast = presets["fast"]
    assert (fast.population, fast.interval, fast.epochs) == (8, 2, 60)
    assert list(presets["demo"].rounds) == [1, 2, 3, 4, 5, 6, 7]
    assert list(replace(paper, epochs=9).rounds) == [3, 6]


def test_a_budget_takes_epochs_and_then_members() -> None:
    world, config = blob_world(), PopulationConfig(population=8, interval=2, epochs=20)
    each = 3 * 100 + 60  # of a member in an epoch
    for budget, members, epochs in (
        (10**9, 8, 20),
        (8 * 20 * each, 8, 20),
        (8 * 20 * each - 1, 8, 19),
        (8 * 7 * each, 8, 7),
        (8 * 7 * each - 1, 4, 13),
        (4 * 7 * each, 4, 7),
    ):
        found = PopulationBased.scaled(config, world, budget)
        assert (found.population, found.epochs, found.interval) == (members, epochs, 2)
        assert PopulationBased.forecast(found, world).passes.cost <= budget
    least = f"pba takes {4 * 7 * each:,} passes at least .4 networks, 7 epochs., the budget is"
    with pytest.raises(ValueError, match=least):
        PopulationBased.scaled(config, world, 4 * 7 * each - 1)


def test_a_training_stretches_the_schedule(tmp_path: Path) -> None:
    search = PopulationBased(blob_world(), replace(SMALL, interval=1))
    list(search)
    path = tmp_path / "policy.json"
    search.policy.save(path)
    starts = [phase.epoch for phase in search.policy.phases]
    assert len(starts) > 1
    trained = compared_policy(path, epochs=70)
    assert [phase.epoch for phase in trained.phases] == [10 * start for start in starts]
    assert trained.depth == search.policy.depth  # its defaults are there already
    assert trained.info[SCHEDULE_EPOCHS] == "70"
    trained.save(path)  # the copy of the training is for 70 epochs
    assert compared_policy(path, epochs=7).equals(search.policy)
    assert compared_policy(path).equals(trained)
    for bad in ("soon", "3", "-1", "0x10"):
        schedule = [(phase.epoch, phase.stages) for phase in trained.phases]
        Policy(trained.table, schedule=schedule, info={SCHEDULE_EPOCHS: bad}).save(path)
        assert load_policy(path).equals(trained)
        with pytest.raises(PolicyFileError, match=r"policy\.json: "):
            compared_policy(path, epochs=9)


# Planted answers


def mean_use(policy: Policy, names: set[str], epochs: int) -> float:
    """How often an image meets the operations, on average over the epochs of a schedule."""
    uses = [policy.expected_uses(epoch) for epoch in range(epochs)]
    return float(np.mean([sum(use.get(name, 0.0) for name in names) for use in uses]))


def null_uses(world: World, config: PopulationConfig, names: set[str]) -> np.ndarray:
    """The same of schedules that drifted without selection."""
    schedules = (drifted_schedule(world, config, seed) for seed in range(100))
    return np.array([mean_use(policy, names, config.epochs) for policy in schedules])


def only(*names: str) -> Space:
    kept = {"identity", *names}
    return Space(tuple(operation for operation in CIFAR.operations if operation.name in kept))


def brightnesses(n: int, seed: int) -> Labelled:
    """Brightness tells the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    level = 75 + 50 * labels + 16 * torch.randn(n, generator=generator)
    noise = 25 * torch.randn(n, 3, 16, 16, generator=generator)
    return (level[:, None, None, None] + noise).clamp(0, 255).to(torch.uint8), labels


SPOILERS = {"invert", "solarize", "brightness"}
SPOILED = only(*SPOILERS, "translate_x", "rotate", "shear_y")
LONG = PopulationConfig(population=16, interval=1, epochs=30, validation=0)


@cache
def spoiler_null() -> np.ndarray:
    world = small_world(brightnesses(200, 1), brightnesses(400, 2), space=SPOILED)
    return null_uses(world, LONG, SPOILERS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_planted_spoilers_are_avoided(seed: int) -> None:
    world = small_world(brightnesses(200, 1), brightnesses(400, 2), space=SPOILED, seed=seed)
    search = PopulationBased(world._replace(train=replace(world.train, lr=0.2)), LONG)
    list(search)
    assert mean_use(search.policy, SPOILERS, 30) < np.quantile(spoiler_null(), 0.05)


def test_with_permuted_labels_nothing_is_found() -> None:
    pairs = []
    for n, seed in ((200, 1), (400, 2)):
        images, labels = brightnesses(n, seed)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        pairs.append((images, labels[order]))
    search = PopulationBased(small_world(*pairs, space=SPOILED), LONG)
    list(search)
    low, high = np.quantile(spoiler_null(), [0.01, 0.99])
    assert low <= mean_use(search.policy, SPOILERS, 30) <= high


@pytest.mark.slow
def test_a_planted_gain_is_found() -> None:
    """Validation images are negatives, so networks have to be shown some."""

    def noisy(n: int, seed: int) -> Labelled:
        images, labels = blobs(n, seed)
        generator = torch.Generator().manual_seed(seed + 99)
        noise = 200 * torch.randn(images.shape, generator=generator)
        return (images + noise).clamp(0, 255).to(torch.uint8), labels

    images, labels = noisy(300, 2)
    space = only("invert", "color", "sharpness", "shear_x", "posterize", "cutout")
    world, config = small_world(noisy(200, 1), (255 - images, labels), space=space), LONG
    search = PopulationBased(world, config)
    records = list(search)
    used = mean_use(search.policy, {"invert"}, config.epochs)
    assert used > np.quantile(null_uses(world, config, {"invert"}), 0.95)
    assert records[-1].score is not None
    assert records[-1].score > 0.6
