"""What holds for every method: searches repeat, stop anywhere, cost what they said."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs
from torch import Tensor
from worlds import NormNet, make_world

from deepaa import load_policy
from deepaa.ops import sample_keys
from deepaa.policy import Policy, default_policy
from deepaa.search import open_method
from deepaa.search.methods import METHODS, Searcher, World
from deepaa.search.methods.random_search import RESULTS
from deepaa.search.methods.registry import find_searcher

SHORT: dict[str, list[str]] = {
    "random": ["epochs=2", "trials=3", "parallel=2", "chains=3"],
    "randaugment": ["epochs=2", "numbers=[1,2]", "magnitudes=[3]"],
    "fast-aa": ["epochs=2", "folds=2", "trials=3", "keep=2", "startup=2", "batch=50"],
    "pba": ["epochs=4", "population=4", "interval=1", "validation=25"],
    "dada": ["epochs=3"],
}
KEYS = 6000


def small_world(**changes: Any) -> World:
    given = {"defaults": default_policy(), "model": NormNet, "batch": 20, "lr": 0.03}
    return make_world(blobs(60, 1), blobs(40, 2), **(given | changes))


def a_search(name: str, world: World | None = None) -> Searcher:
    method, _ = open_method(name, "demo", SHORT[name])
    return method.searcher(world or small_world(), method.config)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two states are equal bit for bit; NaN equals NaN."""
    return a.keys() == b.keys() and all(
        torch.equal(a[k].nan_to_num(nan=-7.0), b[k].nan_to_num(nan=-7.0)) for k in a
    )


@pytest.mark.parametrize("name", METHODS)
def test_two_searches_of_a_seed_are_equal_and_other_seeds_differ(name: str) -> None:
    one, two, other = (a_search(name, small_world(seed=seed)) for seed in (0, 0, 1))
    told = [[each._replace(seconds=0.0) for each in search] for search in (one, two, other)]
    assert told[0] == told[1]
    assert same(one.state(), two.state())
    assert one.policy.equals(two.policy)
    assert not (one.policy.equals(other.policy) and same(one.state(), other.state()))


class StopError(Exception):
    """Raised by a pause."""


def stopping(after: int) -> Callable[[], None]:
    calls = 0

    def pause() -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise StopError

    return pause


@pytest.mark.parametrize("name", METHODS)
def test_a_stop_anywhere_costs_the_unit_in_work_and_no_more(name: str) -> None:
    straight = a_search(name)
    records = [each._replace(seconds=0.0) for each in straight]
    stops = 0
    for after in (1, 2, 5, 8, 13, 21, 34):
        search, told = a_search(name, small_world(pause=stopping(after))), []
        state = search.state() if name != "dada" else None  # whose network is made at first use
        try:
            for record in search:
                told.append(record._replace(seconds=0.0))
                state = {key: value.clone() for key, value in search.state().items()}
        except StopError:
            stops += 1
        again = a_search(name)
        if state is not None:
            again.load_state(state)
        told += [each._replace(seconds=0.0) for each in again]
        assert told == records
        assert same(again.state(), straight.state())
        assert again.policy.equals(straight.policy)
    assert stops >= 3


@pytest.mark.parametrize("name", METHODS)
def test_a_search_costs_what_it_said(name: str) -> None:
    search = a_search(name)
    forecast = search.forecast(search.config, search.world)
    records = list(search)
    assert search.passes == forecast.passes
    assert len(records) == forecast.units
    assert [each.index for each in records] == list(range(1, forecast.units + 1))
    assert {each.of for each in records} == {forecast.units}
    assert records[-1].passes == forecast.passes.cost
    costs = [each.passes for each in records]
    assert costs == sorted(costs)
    scores = [each.score for each in records if each.score is not None]
    assert records[-1].best == max(scores)
    assert search.done
    assert list(search) == []


@pytest.mark.parametrize("name", METHODS)
def test_no_method_asks_for_images_that_it_does_not_need(name: str) -> None:
    """What is none of its parts may hold anything, and nothing of the search changes."""
    here = small_world()
    needs = find_searcher(name).needs(open_method(name, "demo", SHORT[name])[0].config)
    spoilt = {
        part: getattr(here, part)._replace(labels=getattr(here, part).labels.flip(0))
        for part in ("pretrain", "search", "validation")
        if part not in needs.parts
    }
    assert "search" in spoilt
    one, two = a_search(name, here), a_search(name, here._replace(**spoilt))
    list(one)
    list(two)
    assert same(one.state(), two.state())


def check_draws(policy: Policy, epoch: int) -> None:
    """The operations of many draws are as frequent as the policy says, in each layer or slot."""
    draws = policy.draw(sample_keys(3, 0, torch.arange(KEYS)), epoch).choice
    operations = {each: n for n, each in enumerate(policy.table.operations)}
    kinds = torch.tensor([operations[row.operation] for row in policy.table.rows])
    for slot, shares in enumerate(policy.operation_probabilities(epoch)):
        seen = kinds[draws[:, slot]].bincount(minlength=len(operations)).double()
        assert seen[shares == 0].sum() == 0
        common = shares * KEYS >= 5
        square = ((seen - KEYS * shares)[common] ** 2 / (KEYS * shares[common])).sum().item()
        freedom = max(1, int(common.sum()) - 1)
        assert square < freedom + 5 * math.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("name", METHODS)
def test_the_policy_is_whole_at_every_record(name: str, tmp_path: Path) -> None:
    search = a_search(name)
    records = iter(search)
    while True:
        policy = search.policy
        policy.save(tmp_path / "policy.json")
        assert load_policy(tmp_path / "policy.json").equals(policy)
        mirrored = policy.symmetric()
        for phase in policy.phases:  # it has either sign already
            shares = mirrored.row_probabilities(phase.epoch)
            assert torch.allclose(
                shares[:, : len(policy.table)], policy.row_probabilities(phase.epoch)
            )
            check_draws(policy, phase.epoch)
        if next(records, None) is None:
            break


def test_every_kind_of_result_has_a_control() -> None:
    kinds = {find_searcher(name).result for name in METHODS} - {find_searcher("random").result}
    assert kinds == set(RESULTS)
    for kind in kinds:
        method, _ = open_method("random", "paper", [f"kind={kind}", "schedule_epochs=4"])
        control = method.searcher(small_world(), method.config)
        assert control.done  # one is drawn, and nothing is trained
        assert control.policy.depth > 0
