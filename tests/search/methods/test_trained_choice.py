"""Methods that train with each of several policies: RandAugment's grid, and random policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from blobs import Net, blobs
from torch import Tensor
from worlds import make_world

from deepaa import CIFAR, Operation, Policy, load_policy
from deepaa.search.methods import Searcher, TrainedChoice, TrainedChoiceConfig, World
from deepaa.search.methods.level_space import LevelSpace, Slot
from deepaa.search.methods.randaugment import RandAugment, RandAugmentConfig, weakest_within
from deepaa.search.methods.random_search import RandomConfig, RandomSearch

GRID = RandAugmentConfig(epochs=2, numbers=(1, 2), magnitudes=(3, 14), parallel=3)
RANDOM = RandomConfig(epochs=2, trials=4, parallel=3, chains=3)
DRIFT = replace(RANDOM, kind="schedule", schedule_epochs=6)
BOTH = [(RandAugment, GRID), (RandomSearch, RANDOM), (RandomSearch, DRIFT)]


def world(**changes: Any) -> World:
    return make_world(blobs(120, 0), blobs(80, 1), **changes)


def run(search: Searcher) -> list[Any]:
    return list(search)


def equal_states(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    same = (torch.equal(a[name].nan_to_num(-1.0), b[name].nan_to_num(-1.0)) for name in a)
    return a.keys() == b.keys() and all(same)


@pytest.mark.parametrize(("searcher", "config"), BOTH)
def test_a_search_goes_on_from_any_record_as_if_nothing_had_happened(
    searcher: type[Searcher], config: Any, tmp_path: Path
) -> None:
    place, states = world(), []
    whole = searcher(place, config)
    for _ in whole:
        states.append(whole.state())
        whole.policy.save(tmp_path / "policy.json")  # valid at any time
        load_policy(tmp_path / "policy.json")
    assert len(states) == searcher.forecast(config, place).units == 4
    for state in states:
        again = searcher(place, config)
        again.load_state(state)
        run(again)
        assert again.done
        assert again.policy.equals(whole.policy)
        assert again.passes == whole.passes
        assert equal_states(again.state(), whole.state())


@pytest.mark.parametrize(("searcher", "config"), BOTH)
def test_passes_are_those_of_the_forecast(searcher: type[Searcher], config: Any) -> None:
    place = world()
    search = searcher(place, config)
    records = run(search)
    forecast = searcher.forecast(config, place)
    assert search.passes == forecast.passes
    assert [record.index for record in records] == list(range(1, forecast.units + 1))
    assert records[-1].passes == forecast.passes.cost
    assert searcher.needs(config).images(place) == 200


@pytest.mark.parametrize(("searcher", "config"), BOTH)
def test_a_state_of_another_search_is_refused(searcher: type[Searcher], config: Any) -> None:
    search = searcher(world(), config)
    next(iter(search))
    state = search.state()
    spoilt = (
        {k: v for k, v in state.items() if k != "numbers"},
        {**state, "scores": torch.zeros(3)},
        {**state, "numbers": torch.tensor([9, 0, 0, 0, 0])},
        {**state, "at.failed": torch.zeros(2)},
        {k: v for k, v in state.items() if not k.startswith("at.0.model")},
    )
    for bad in spoilt:
        with pytest.raises((ValueError, LookupError)):
            searcher(world(), config).load_state(bad)


def test_a_budget_is_kept_and_used() -> None:
    place = world()
    grid = replace(GRID, epochs=30)
    each = RandAugment.forecast(replace(grid, epochs=1), place).passes
    fitted = RandAugment.scaled(grid, place, 10 * 3 * each.training + each.forward)
    assert fitted.epochs == 10
    with pytest.raises(ValueError, match=r"randaugment takes .* at least, the budget is 100"):
        RandAugment.scaled(grid, place, 100)
    drawn = RandomSearch.scaled(RANDOM, place, 10**5)
    costs = [
        RandomSearch.forecast(replace(drawn, trials=drawn.trials + n), place).passes.cost
        for n in (0, 1)
    ]
    assert costs[0] <= 10**5 < costs[1]
    with pytest.raises(ValueError, match="random takes"):
        RandomSearch.scaled(RANDOM, place, 100)
    assert RandomSearch.scaled(RANDOM, place, 10**12).trials == 10_000  # all are drawn at once


def test_trainings_that_are_shorter_than_the_shortest_fit_a_budget_as_they_are() -> None:
    place, cost = world(), RandAugment.forecast(GRID, world()).passes.cost
    assert GRID.epochs < RandAugment.least_epochs
    assert RandAugment.scaled(GRID, place, cost) == GRID
    with pytest.raises(ValueError, match=f"takes {cost:,} passes at least"):
        RandAugment.scaled(GRID, place, cost - 1)


def test_a_grid_has_each_point_once_and_something_to_choose() -> None:
    with pytest.raises(ValueError, match="numbers should hold each value once"):
        RandAugmentConfig(numbers=(1, 1))
    invert = world(space=CIFAR.only("identity", "invert"))  # which is none of its operations
    with pytest.raises(ValueError, match="no operation is left that randaugment could choose"):
        RandAugment(invert, GRID)
    rotate = RandAugment(world(space=CIFAR.only("identity", "rotate")), GRID)
    assert {row.operation.name for row in rotate.policy.table.rows} == {"identity", "rotate"}


def test_the_weakest_of_those_that_are_as_good_is_taken() -> None:
    strengths = [3.0, 14.0, 6.0, 28.0]
    assert weakest_within([0.50, 0.58, 0.57, 0.60], strengths, 0.0) == 3
    assert weakest_within([0.50, 0.58, 0.57, 0.60], strengths, 0.02) == 1
    assert weakest_within([0.50, 0.58, 0.57, 0.60], strengths, 0.03) == 2
    assert weakest_within([0.60, 0.60, 0.60, 0.60], strengths, 0.0) == 0
    assert weakest_within([-math.inf, 0.2, -math.inf, 0.1], strengths, 0.05) == 1


def test_the_grid_is_trained_once_each_and_its_pick_is_told() -> None:
    search = RandAugment(world(), GRID)
    run(search)
    assert GRID.grid == [(1, 3), (1, 14), (2, 3), (2, 14)]
    assert int(search.scores.isfinite().sum()) == 4
    n, m = GRID.grid[search.pick(search.scores.tolist(), search._error(float(search.scores.max())))]
    assert search.info == {"randaugment": f"n={n} m={m}, of 30"}
    assert search.policy.depth == n


class NotBright(Net):
    """Has no answer to bright images."""

    def forward(self, images: Tensor) -> Tensor:
        bright = images.float().mean((1, 2, 3), keepdim=True) > 150
        return super().forward(images) + torch.where(bright, math.nan, 0.0).view(-1, 1)


class PlainOrInverted(TrainedChoice):
    """Two policies, of which one makes all images bright."""

    method, result, Config = "plain-or-inverted", "layers", TrainedChoiceConfig
    presets: ClassVar = {"fast": TrainedChoiceConfig()}

    @classmethod
    def count(cls, config: Any) -> int:
        return 2

    @classmethod
    def candidates(cls, config: Any, world: World) -> list[Policy]:
        return [Policy.always(Operation("invert")), Policy.identity()]

    def pick(self, scores: Sequence[float], error: float) -> int:
        return scores.index(max(scores))

    def describe(self, policy: int) -> str:
        return str(policy)


def test_a_training_that_fails_is_one_policy_less() -> None:
    search = PlainOrInverted(world(model=NotBright), TrainedChoiceConfig(epochs=3))
    records = run(search)
    assert search.scores.isnan().tolist() == [True, False]
    assert search.policy.expected_uses()["identity"] == 1.0
    assert records[-1].score == search.scores[1]
    state = search.state()
    again = PlainOrInverted(world(model=NotBright), TrainedChoiceConfig(epochs=3))
    again.load_state(state)
    assert again.done


def brightness(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images whose class is how bright they are."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    noise = 12 * torch.randn(n, 3, 16, 16, generator=generator)
    images = 40 + 45.0 * labels[:, None, None, None] + noise
    return images.clamp(0, 255).to(torch.uint8), labels


@pytest.mark.slow
def test_where_brightness_is_the_class_strong_augmentation_loses() -> None:
    space = CIFAR.only("identity", "brightness", "contrast", "solarize", "invert", "equalize")
    place = make_world(brightness(300, 0), brightness(600, 1), space=space)
    config = RandAugmentConfig(epochs=12, numbers=(2,), magnitudes=(3, 30))
    search = RandAugment(place, config)
    run(search)
    weak, strong = search.scores.tolist()
    error = math.sqrt((weak * (1 - weak) + strong * (1 - strong)) / 600)
    assert weak - strong > 3 * error
    assert search.info["randaugment"] == "n=2 m=3, of 30"


# Random policies


def test_one_random_policy_needs_no_training() -> None:
    search = RandomSearch(world(), replace(RANDOM, trials=1))
    assert RandomSearch.forecast(search.config, search.world).passes.cost == 0
    assert search.done
    assert run(search) == []
    assert len(search.policy.phases[0].stages[0].weights) >= 3


def test_random_policies_are_those_of_the_seed_and_differ() -> None:
    def policies(seed: int) -> list[Policy]:
        return RandomSearch(world(seed=seed), RANDOM).policies

    first, again, other = policies(0), policies(0), policies(1)
    assert all(a.equals(b) for a, b in zip(first, again, strict=True))
    assert not any(a.equals(b) for a in first for b in other)
    assert not first[0].equals(first[1])


@pytest.mark.parametrize("kind", ["chains", "layers"])
def test_random_policies_use_every_operation_alike(kind: str) -> None:
    """A uniform prior over operations, levels and gates, by 200 draws."""
    config = RandomConfig(kind=kind, trials=200, chains=25, layers=2)
    uses: dict[str, float] = {}
    for policy in RandomSearch(world(), config).policies:
        for name, count in policy.expected_uses().items():
            uses[name] = uses.get(name, 0.0) + count / 200
    if kind == "layers":
        for operation in CIFAR.operations:
            rows = sum(row.operation == operation for row in CIFAR.table.rows)
            assert uses[operation.name] == pytest.approx(2 * rows / len(CIFAR), rel=0.15)
        return
    named = [name for name in uses if name != "identity"]
    assert len(named) == 15
    for name in named:
        assert uses[name] == pytest.approx(2 * 0.5 / 15, rel=0.2)


# The space of levels


def test_levels_go_from_one_end_to_the_other_and_leave_out_what_is_excluded() -> None:
    whole = LevelSpace.of(CIFAR)
    names = [operation.name for operation in whole.operations]
    assert len(names) == 15
    rotate = names.index("rotate")
    ends = [whole.table.rows[whole.row(rotate, level)].magnitude for level in (0.0, 0.5, 1.0)]
    assert ends == pytest.approx([-30, 0, 30], abs=0.25)
    small = LevelSpace.of(
        CIFAR.without("invert"),
        lambda row: row.operation.name == "solarize" or abs(row.magnitude or 0) > 20,
    )
    have = {row.operation.name for row in small.table.rows}
    assert have == {*names, "identity"} - {"invert", "solarize"}
    assert max(abs(row.magnitude or 0) for row in small.table.rows) <= 20
    with pytest.raises(ValueError, match="no operation is left"):
        LevelSpace.of(CIFAR, lambda row: True)


def test_sub_policies_take_either_sign() -> None:
    space = LevelSpace.of(CIFAR.only("identity", "rotate", "invert"))
    policy = space.policy([[Slot(0, 0.5, 0.9), Slot(1, 1.0, 0.0)]])
    magnitudes = {
        policy.table.rows[int(row)].magnitude for row in policy.phases[0].stages[0].rows[:, 0]
    }
    assert magnitudes == {24.140625, -24.140625}
    assert policy.expected_uses()["rotate"] == 0.5
