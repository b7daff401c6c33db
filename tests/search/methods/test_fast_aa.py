"""Fast AutoAugment: its scores by hand, its state, its cost, and planted answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs
from torch import Tensor, nn
from torch.nn import functional as F
from worlds import make_world

from deepaa import CIFAR, load_policy
from deepaa.ops import Space, apply_batch, sample_key, sample_keys
from deepaa.policy import Chains, Policy, compared_policy, default_policy
from deepaa.search.methods import World
from deepaa.search.methods.fast_aa import FastAutoAugment, held_out, pool_of
from deepaa.search.methods.fast_aa_settings import FastAutoAugmentConfig
from deepaa.search.methods.level_space import LevelSpace, Slot
from deepaa.search.methods.recognition import DRAWS, Outcomes, Recogniser, score_of
from deepaa.search.methods.searcher import Part
from deepaa.search.methods.sub_policy_trials import Place, Trials, distinct, sub_policies_of
from deepaa.train import image_outcomes

SMALL = FastAutoAugmentConfig(folds=2, rounds=2, trials=4, keep=2, epochs=2, startup=2, batch=100)
DEFAULTS = default_policy("cifar").without(lambda row: row.operation.name == "flip")


@cache
def world(**changes: Any) -> World:
    return make_world(blobs(120, 1), blobs(40, 2), defaults=DEFAULTS, **changes)


def same_state(one: FastAutoAugment, other: FastAutoAugment) -> bool:
    a, b = one.state(), other.state()
    return a.keys() == b.keys() and all(
        torch.equal(a[k].nan_to_num(), b[k].nan_to_num()) for k in a
    )


# Scores


class Lookup(nn.Module):
    """Says class 1 of an image that is bright, with fixed logits."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))

    def forward(self, images: Tensor) -> Tensor:
        return self.logits[(images.float().mean((1, 2, 3)) > 127).long()]


@pytest.mark.parametrize("objective", ["any5", "accuracy", "loss"])
def test_the_score_of_three_images_is_what_a_hand_counts(objective: str) -> None:
    """Two dark images and a bright one; a gate of a half inverts them."""
    images = torch.tensor([10, 20, 240]).view(3, 1, 1, 1).expand(3, 3, 4, 4).to(torch.uint8)
    labels = torch.tensor([0, 1, 1])
    space = LevelSpace.of(CIFAR, lambda row: row.operation.name != "invert")
    policy = space.policy([[Slot(0, 0.5, 0.0), Slot(0, 0.0, 0.0)]])
    values = []
    for image, (is_bright, label) in enumerate([(False, 0), (False, 1), (True, 1)]):
        hits, losses = [], []
        for draw in range(DRAWS):
            (row, _), (other, _) = policy.draw_one(sample_key(7, draw, image))
            assert other == policy.table.identity
            says = is_bright != (row != policy.table.identity)  # inverted
            hits.append(float(says == bool(label)))
            if says:  # logits 0, 1
                losses.append(math.log(1 + math.e) - label)
            else:  # logits 2, 0
                losses.append(math.log(1 + math.e**2) - 2 * (1 - label))
        found = {"any5": max(hits), "accuracy": sum(hits) / 5, "loss": -sum(losses) / 5}
        values.append(found[objective])
    assert len(set(values)) > 1
    score = score_of(Recogniser(Lookup(), images, labels).outcomes(policy, 7), objective)
    assert score.value == pytest.approx(sum(values) / 3, abs=1e-6)
    mean = sum(values) / 3
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    assert score.error == pytest.approx(deviation / math.sqrt(3), abs=1e-6)


@cache
def recognised() -> tuple[nn.Module, Tensor, Tensor, Policy]:
    search = FastAutoAugment(world(), SMALL)
    numbers = torch.stack([search._ask(Place(0, 0, 0))])[0]
    return (
        world().make_model(3).eval(),
        *blobs(61, 3),
        search.trial_policy(sub_policies_of(numbers)),
    )


def test_one_forward_of_five_draws_equals_five_forwards() -> None:
    network, images, labels, policy = recognised()
    together = Recogniser(network, images, labels).outcomes(policy, 11)
    for draw in range(DRAWS):
        drawn = policy.draw(sample_keys(11, draw, torch.arange(len(images))))
        augmented = apply_batch(images, drawn, policy.table)
        losses, right = image_outcomes(network, augmented, labels)
        assert torch.equal(together.right[draw], right)
        torch.testing.assert_close(together.losses[draw], losses)
    assert not torch.equal(together.losses[0], together.losses[1])


@pytest.mark.parametrize("batch", [5, 37, 100])
def test_the_batch_does_not_change_scores(batch: int) -> None:
    network, images, labels, policy = recognised()
    whole = Recogniser(network, images, labels, 10_000).outcomes(policy, 11)
    parts = Recogniser(network, images, labels, batch).outcomes(policy, 11)
    assert torch.equal(whole.right, parts.right)
    torch.testing.assert_close(whole.losses, parts.losses, rtol=0, atol=1e-5)


class Narrow(nn.Module):
    """A network that has room for a few images only."""

    def __init__(self, inner: nn.Module, most: int) -> None:
        super().__init__()
        self.inner, self.most = inner, most

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.most:
            raise torch.OutOfMemoryError(f"{len(images)} images")
        logits: Tensor = self.inner(images)
        return logits


def test_a_batch_that_does_not_fit_is_halved() -> None:
    network, images, labels, policy = recognised()
    whole = Recogniser(network, images, labels).outcomes(policy, 11)
    judge = Recogniser(Narrow(network, 40), images, labels)
    parts = judge.outcomes(policy, 11)
    assert judge.chunk == 8
    assert torch.equal(whole.right, parts.right)
    torch.testing.assert_close(whole.losses, parts.losses, rtol=0, atol=1e-5)
    with pytest.raises(torch.OutOfMemoryError):
        Recogniser(Narrow(network, 4), images, labels).outcomes(policy, 11)


@pytest.mark.parametrize("common_noise", [True, False])
def test_the_order_of_trials_does_not_change_scores(common_noise: bool) -> None:
    config = replace(SMALL, sampler="random", common_noise=common_noise)
    search = FastAutoAugment(world(), config)
    for _ in search:
        pass
    for number in reversed(range(config.all_trials)):
        place = search.trials.place(number)
        score = search._measure(place, search._ask(place))
        assert score.value == search.trials.scores[place].item()
    same = search.trials.numbers[0, 0, 0]
    scores = {search._measure(Place(0, 0, trial), same).value for trial in range(4)}
    assert (len(scores) == 1) == common_noise


def test_trials_share_a_table_and_have_the_defaults_behind() -> None:
    search = FastAutoAugment(world(), SMALL)
    policies = [
        search.trial_policy(sub_policies_of(search._ask(Place(0, 0, trial)))) for trial in (0, 1)
    ]
    assert policies[0].table is policies[1].table
    expected = search.space.policy(sub_policies_of(search._ask(Place(0, 0, 1)))).then(DEFAULTS)
    assert policies[1].equals(expected)
    assert policies[1].expected_uses()["crop"] == 1


# Folds


def test_folds_hold_two_fifths_of_each_class_and_overlap() -> None:
    pool = Part(*blobs(200, 1))
    held = held_out(pool, 5, 3)
    for mask in held:
        counts = pool.labels[mask].bincount(minlength=4)
        assert bool(((counts - 20).abs() <= 2).all())
    assert all(int((a & b).sum()) > 10 for a, b in pairwise(held))
    assert all(not torch.equal(a, b) for a, b in pairwise(held))
    assert torch.equal(held, held_out(pool, 5, 3))
    assert torch.equal(held[:2], held_out(pool, 2, 3))
    assert not torch.equal(held, held_out(pool, 5, 4))


def test_groups_stay_together() -> None:
    images, labels = blobs(200, 1)
    groups = torch.arange(200) // 8
    for mask in held_out(Part(images, labels, groups), 3, 0):
        for group in range(25):
            assert len(set(mask[groups == group].tolist())) == 1
        assert 60 <= int(mask.sum()) <= 100


def test_equal_data_uses_all_three_parts() -> None:
    small, large = SMALL, replace(SMALL, equal_data=True)
    there = make_world(blobs(60, 1), blobs(40, 2), search=blobs(80, 3))
    assert pool_of(small, there).count == FastAutoAugment.needs(small).images(there) == 60
    assert pool_of(large, there).count == FastAutoAugment.needs(large).images(there) == 180
    parts = [
        part._replace(groups=torch.arange(part.count) + 1000 * place)
        for place, part in enumerate((there.pretrain, there.search, there.validation))
    ]
    names = ("pretrain", "search", "validation")
    grouped = there._replace(**dict(zip(names, parts, strict=True)))
    groups = pool_of(large, grouped).groups
    assert groups is not None
    assert len(groups.unique()) == 180


# State


@pytest.mark.parametrize("objective", ["any5", "loss"])
def test_a_search_goes_on_after_any_record(objective: str) -> None:
    config = replace(SMALL, objective=objective)
    straight = FastAutoAugment(world(), config)
    records, states = [], [straight.state()]
    for record in straight:
        records.append(record)
        states.append(straight.state())
    assert straight.done
    assert len(records) == config.epochs + 2 * 2 * 4
    for start, state in enumerate(states):
        resumed = FastAutoAugment(world(), config)
        resumed.load_state(state)
        assert resumed.done == (start == len(records))
        rest = [record._replace(seconds=0.0) for record in resumed]
        assert rest == [record._replace(seconds=0.0) for record in records[start:]]
        assert same_state(resumed, straight)
        assert resumed.policy.equals(straight.policy)


def test_two_searches_are_equal_and_seeds_differ() -> None:
    one, two = (FastAutoAugment(world(), SMALL) for _ in range(2))
    other = FastAutoAugment(world(seed=1), SMALL)
    for search in (one, two, other):
        for _ in search:
            pass
    assert same_state(one, two)
    assert one.policy.info == two.policy.info
    assert not other.policy.equals(one.policy)


def test_records_count_up_to_the_forecast_and_every_policy_can_be_saved(tmp_path: Path) -> None:
    search = FastAutoAugment(world(), SMALL)
    forecast = FastAutoAugment.forecast(SMALL, world())
    policies = [search.policy]
    for number, record in enumerate(search, start=1):
        assert (record.index, record.of) == (number, forecast.units)
        assert record.passes == search.passes.cost
        is_epoch = number <= SMALL.epochs
        assert record.unit == ("epoch" if is_epoch else "trial")
        assert (record.score is None) == (record.score_error is None) == is_epoch
        if not is_epoch:
            assert record.best == search.trials.scores[search.trials.scores.isfinite()].max()
        policies.append(search.policy)
    assert search.passes == forecast.passes
    for policy in policies:
        policy.save(tmp_path / "policy.json")
        assert load_policy(tmp_path / "policy.json").equals(policy)
        mirrored = policy.symmetric().row_probabilities()
        torch.testing.assert_close(mirrored, policy.row_probabilities())
        chains, *rest = policy.phases[0].stages
        assert isinstance(chains, Chains)
        assert chains.depth == 2
        assert sum(stage.depth for stage in rest) == DEFAULTS.depth
    # a training adds no second crop
    assert compared_policy(tmp_path / "policy.json").expected_uses()["crop"] == 1
    assert policies[-1].info["sub-policies"] == str(len(search.trials.kept()))


def test_draws_are_as_frequent_as_the_sub_policies_say() -> None:
    search = FastAutoAugment(world(), SMALL)
    for _ in search:
        pass
    policy, kept = search.policy, search.trials.kept()
    names = [row.operation.name for row in policy.table.rows]
    rows = policy.draw(torch.arange(20_000)).choice[:, 0]
    expected: dict[str, float] = {"identity": 0.0}
    for first, _ in kept:
        name = search.space.operations[first.operation].name
        expected[name] = expected.get(name, 0.0) + first.gate / len(kept)
        expected["identity"] += (1 - first.gate) / len(kept)
    counts = dict.fromkeys(expected, 0)
    for row, count in enumerate(rows.bincount(minlength=len(names)).tolist()):
        if count:
            counts[names[row]] += count
    chi = sum((counts[name] - 20_000 * p) ** 2 / (20_000 * p) for name, p in expected.items())
    assert chi < len(expected) + 4 * math.sqrt(2 * len(expected))


BROKEN: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "no scores": lambda s: s.pop("scores"),
    "scores of another shape": lambda s: s.update(scores=s["scores"][:1]),
    "numbers in float32": lambda s: s.update(numbers=s["numbers"].float()),
    "an operation that there is not": lambda s: s.update(numbers=s["numbers"] + 100),
    "a gate below 0": lambda s: s.update(numbers=s["numbers"] - 0.5),
    "numbers that are none": lambda s: s.update(numbers=s["numbers"] * math.nan),
    "too many trials": lambda s: s["counts"].__setitem__(1, 17),
    "trials before the last epoch": lambda s: s["counts"].__setitem__(0, 1),
    "epochs below 0": lambda s: s["counts"].__setitem__(0, -1),
    "counts that are too few": lambda s: s.update(counts=s["counts"][:2]),
    "counts in float": lambda s: s.update(counts=s["counts"].float()),
    "failed of another search": lambda s: s.update(failed=torch.tensor([False])),
    "a network without weights": lambda s: s.pop("network.1.head.weight"),
    "weights of another network": lambda s: s.update({"network.0.head.bias": torch.zeros(3)}),
}


@cache
def ended_state() -> dict[str, Tensor]:
    search = FastAutoAugment(world(), SMALL)
    for _ in search:
        pass
    return search.state()


@pytest.mark.parametrize("name", BROKEN)
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    state = {key: tensor.clone() for key, tensor in ended_state().items()}
    BROKEN[name](state)
    with pytest.raises((ValueError, LookupError)):
        FastAutoAugment(world(), SMALL).load_state(state)


def test_a_state_in_training_needs_its_networks() -> None:
    search = FastAutoAugment(world(), SMALL)
    next(iter(search))
    state = {name: value for name, value in search.state().items() if not name.startswith("at.0.")}
    with pytest.raises((ValueError, LookupError)):
        FastAutoAugment(world(), SMALL).load_state(state)


def test_what_pause_raises_leaves_a_trial_that_can_be_done_again() -> None:
    class StopError(Exception):
        pass

    straight = FastAutoAugment(world(), SMALL)
    for _ in straight:
        pass
    calls = iter(range(1000))

    def pause() -> None:
        if next(calls) == 40:
            raise StopError

    search = FastAutoAugment(world()._replace(pause=pause), SMALL)
    with pytest.raises(StopError):
        for _ in search:
            pass
    assert 0 < search.tried < SMALL.all_trials
    for _ in search:
        pass
    assert same_state(search, straight)


# Failures


class Failing(nn.Module):
    """A network whose answers are not numbers, from some weights on."""

    made = 0
    which: tuple[int, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.fails = Failing.made in Failing.which
        Failing.made += 1

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.inner(images.float().mean((2, 3)) / 255)
        return logits * math.nan if self.fails and self.training else logits


def failing_world(monkeypatch: pytest.MonkeyPatch, *which: int) -> World:
    monkeypatch.setattr(Failing, "made", 0)
    monkeypatch.setattr(Failing, "which", which)
    return make_world(blobs(120, 1), blobs(40, 2), model=Failing)


@pytest.mark.parametrize("fold", [0, 1])
def test_a_fold_that_fails_has_no_trials(monkeypatch: pytest.MonkeyPatch, fold: int) -> None:
    there = failing_world(monkeypatch, fold)
    search = FastAutoAugment(there, SMALL)
    records = list(search)
    assert search.failed == [fold == 0, fold == 1]
    assert bool(search.trials.scores[:, fold].isnan().all())
    assert bool(search.trials.scores[:, 1 - fold].isfinite().all())
    assert len(records) == SMALL.epochs + 8
    assert records[-1].index == records[-1].of
    assert len(search.trials.kept()) > 0
    again = FastAutoAugment(there, SMALL)
    again.load_state(search.state())
    assert again.done
    assert again.policy.equals(search.policy)
    assert search.passes.cost < FastAutoAugment.forecast(SMALL, there).passes.cost


def test_a_search_without_any_network_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    search = FastAutoAugment(failing_world(monkeypatch, 0, 1), SMALL)
    with pytest.raises(FloatingPointError, match="each of the 2 networks is not a number"):
        next(iter(search))


def test_a_trial_whose_score_is_not_a_number_is_not_kept() -> None:
    search = FastAutoAugment(world(), replace(SMALL, objective="loss"))
    records = iter(search)
    for _ in range(SMALL.epochs + 2):
        next(records)
    judge = search._recognisers[0]
    right = judge.outcomes
    judge.outcomes = lambda *rest: Outcomes(right(*rest).losses * math.nan, right(*rest).right)
    failed = next(records)
    assert (failed.score, failed.score_error) == (None, None)
    judge.outcomes = right
    for _ in records:
        pass
    assert search.done
    assert int(search.trials.scores.isnan().sum()) == 1
    assert 1 not in search.trials.best_of(0, 0)


# What is kept


def test_an_ordered_pair_of_operations_is_kept_once() -> None:
    pairs = [(1, 2), (2, 1), (1, 2), (3, 3), (3, 3)]
    given = [[Slot(a, n / 10, 0.5), Slot(b, 0.5, 0.5)] for n, (a, b) in enumerate(pairs)]
    assert distinct(given) == [given[0], given[1], given[3]]


def test_no_trial_leaves_two_equal_pairs() -> None:
    few = Space(tuple(op for op in CIFAR.operations if op.name in ("rotate", "invert")))
    search = FastAutoAugment(world(space=few), SMALL)
    for _ in search:
        pass
    kept = 0
    for t, k in search.trials.searches:
        for trial in search.trials.best_of(t, k):
            found = distinct(sub_policies_of(search.trials.numbers[t, k, trial]))
            pairs = [tuple(slot.operation for slot in each) for each in found]
            assert len(set(pairs)) == len(pairs) <= 4
            kept += len(pairs)
    assert len(search.trials.kept()) == kept < 2 * 2 * 2 * 5


def test_the_best_trials_are_kept() -> None:
    trials = Trials((1, 1, 6), 3, 15)
    trials.scores[0, 0] = torch.tensor([0.1, 0.9, math.nan, 0.9, 0.5, 0.2])
    trials.errors[0, 0] = 0.01
    assert trials.best_of(0, 0) == [1, 3, 4]
    assert not trials.is_saturated(0, 0)
    trials.errors[0, 0] = 0.5
    assert trials.is_saturated(0, 0)


class Constant(nn.Module):
    """Says class 0 of every image."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.expand(len(images), -1)


@pytest.mark.parametrize("objective", ["any5", "accuracy", "loss"])
def test_saturation_is_told(objective: str) -> None:
    """Where every trial has every image right, nothing tells them apart."""
    part = torch.zeros(60, 3, 8, 8, dtype=torch.uint8), torch.zeros(60, dtype=torch.int64)
    there, config = make_world(part, part, model=Constant), replace(SMALL, objective=objective)
    search = FastAutoAugment(there, config)
    assert "saturated" not in search.policy.info
    records = list(search)
    assert "in 4 of 4 searches" in search.policy.info["saturated"]
    told = [record for record in records if "standard error" in record.summary]
    assert [record.summary[:25] for record in told] == [
        f"round {t}, fold {k}, trial 4:" for t in (1, 2) for k in (1, 2)
    ]


def test_excluded_rows_and_left_out_operations_are_never_tried() -> None:
    names = ("rotate", "brightness", "crop")
    few = Space(tuple(op for op in CIFAR.operations if op.name in names))

    def excludes(row: Any) -> bool:
        return bool(row.operation.name == "brightness" and row.magnitude > 1)

    search = FastAutoAugment(world(space=few)._replace(excludes=excludes), SMALL)
    for _ in search:
        pass
    policy = search.policy
    uses = policy.row_probabilities().sum(0)
    used = [row for row, use in zip(policy.table.rows, uses.tolist(), strict=True) if use > 0]
    assert {row.operation.name for row in used} <= {"identity", "cutout", *names}
    assert not any(map(excludes, used))


def test_random_search_is_the_same_search_without_tpe() -> None:
    tpe, control = (FastAutoAugment(world(), replace(SMALL, sampler=s)) for s in ("tpe", "random"))
    for search in (tpe, control):
        for _ in search:
            pass
    assert tpe.passes == control.passes
    first = slice(0, SMALL.startup)
    assert torch.equal(tpe.trials.scores[..., first], control.trials.scores[..., first])
    assert not torch.equal(tpe.trials.numbers, control.trials.numbers)


# Settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": 0}, "folds should be at least 1, got 0"),
        ({"keep": 5}, "keep should be at most the 4 trials, got 5"),
        ({"batch": 4}, "batch should be at least 5, got 4"),
        ({"objective": "any"}, "objective should be loss or accuracy or any5, got 'any'"),
        ({"sampler": "grid"}, "sampler should be tpe or random, got 'grid'"),
    ],
)
def test_settings_without_meaning_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_presets() -> None:
    presets = FastAutoAugment.presets
    assert presets.keys() == {"paper", "official", "fast", "demo"}
    paper, official = (asdict(presets[name]) for name in ("paper", "official"))
    assert official == {**paper, "objective": "any5", "rounds": 1}
    assert paper["objective"] == "loss"
    assert [paper[n] for n in ("folds", "rounds", "trials", "keep", "epochs")] == [
        5,
        2,
        200,
        10,
        200,
    ]
    costs = [FastAutoAugment.forecast(c, world()).passes.cost for c in presets.values()]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("share", [1.0, 0.6, 0.1, 0.01])
def test_a_search_fits_its_budget(share: float) -> None:
    config = FastAutoAugment.presets["paper"]
    whole = FastAutoAugment.forecast(config, world()).passes.cost
    smaller = FastAutoAugment.scaled(config, world(), int(share * whole))
    cost = FastAutoAugment.forecast(smaller, world()).passes.cost
    assert 0.4 * share * whole < cost <= share * whole
    assert (smaller == config) == (share == 1)
    assert smaller.startup < smaller.trials


def test_a_budget_that_is_too_small_names_the_least() -> None:
    with pytest.raises(ValueError, match=r"fast-aa takes .* at least, the budget is 10") as e:
        FastAutoAugment.scaled(FastAutoAugment.presets["paper"], world(), 10)
    least = int(str(e.value).split()[2].replace(",", ""))
    found = FastAutoAugment.scaled(FastAutoAugment.presets["paper"], world(), least)
    assert FastAutoAugment.forecast(found, world()).passes.cost == least
    with pytest.raises(ValueError, match="passes at least"):
        FastAutoAugment.scaled(FastAutoAugment.presets["paper"], world(), least - 1)


# Planted answers

SPOILERS = {"brightness", "contrast", "solarize", "invert", "equalize", "auto_contrast"}
PLANTED = FastAutoAugmentConfig(folds=2, trials=100, keep=5, epochs=8)


def lamps(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """uint8 (n, 3, 16, 16): the brightness of a lamp in the middle is the class, 0 to 3."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    height = 60 + 55 * labels.float() + 6 * torch.randn(n, generator=generator)
    lamp = height[:, None, None] * torch.exp(-((y - 7.5) ** 2 + (x - 7.5) ** 2) / 18)
    noise = 4 * torch.randn(n, 3, 16, 16, generator=generator)
    return (lamp[:, None] + noise).clamp(0, 255).to(torch.uint8), labels


def spoiling(policy: Policy) -> float:
    """How many spoilers an image meets."""
    return sum(use for name, use in policy.expected_uses().items() if name in SPOILERS)


@cache
def null() -> Tensor:
    """(1000,) the same for as many random sub-policies as the planted searches keep."""
    search = FastAutoAugment(make_world(lamps(40, 1), lamps(40, 2)), PLANTED)
    spoils = torch.tensor([op.name in SPOILERS for op in search.space.operations]).double()
    trials, found = PLANTED.folds * PLANTED.keep, []
    for draw in range(1000):
        drawn = [search.tpe.random(1000 * draw + number) for number in range(trials)]
        choices = torch.stack([each.choices for each in drawn])
        gates = torch.stack([each.numbers.view(-1, 2)[:, 0] for each in drawn])
        found.append(2 * (spoils[choices] * gates).mean().item())
    return torch.tensor(found, dtype=torch.float64)


def found_in(images: Tensor, labels: Tensor, seed: int, **changes: Any) -> FastAutoAugment:
    there = make_world((images, labels), lamps(40, 2), seed=seed)
    search = FastAutoAugment(there, replace(PLANTED, **changes))
    for _ in search:
        pass
    return search


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["accuracy", "loss"])
@pytest.mark.parametrize("seed", [0, 1])
def test_spoilers_are_rare(objective: str, seed: int) -> None:
    search = found_in(*lamps(400, 10 + seed), seed, objective=objective)
    assert spoiling(search.policy) < null().quantile(0.05)


def permuted(seed: int) -> tuple[Tensor, Tensor]:
    images, labels = lamps(400, 10 + seed)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(seed))
    return images, labels[order]


@pytest.mark.slow
def test_labels_without_meaning_give_a_policy_like_any_other() -> None:
    search = found_in(*permuted(0), 0, objective="loss")
    low, high = null().quantile(torch.tensor([0.01, 0.99], dtype=torch.float64)).tolist()
    assert low < spoiling(search.policy) < high


@pytest.mark.slow
def test_any_of_five_rewards_another_answer_of_a_network_that_guesses() -> None:
    """Five different guesses are right more often than five equal ones: the page says so."""
    search = found_in(*permuted(0), 0, objective="any5")
    assert spoiling(search.policy) > null().quantile(0.95)
    with torch.no_grad():
        judge = search._recognisers[0]
        plain = F.cross_entropy(judge.network(judge.images), judge.labels).item()
    assert plain > 1.3  # ln 4 = 1.39: it knows nothing
