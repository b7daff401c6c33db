"""How a layer is optimised, and the rules by which it ends, is kept, dropped, or made simpler."""

from __future__ import annotations

import math

import pytest
import torch
from blobs import row_of
from torch import Tensor

from deepaa import CIFAR
from deepaa.search.gradient_matching.layer import (
    Evaluation,
    LayerOptimizer,
    Rewards,
    evaluate_layer,
    leading_operation,
    operation_shares,
    prefer_leader,
    restricted,
    summarize,
)
from deepaa.search.settings import SearchConfig

P = torch.tensor([0.3, 0.7], dtype=torch.float64)


def layer(
    gains: list[float],
    *,
    identity: float = 0.0,
    asked: bool = False,
    usable: Tensor | None = None,
) -> Evaluation:
    cosines = torch.tensor(gains, dtype=torch.float64) + 0.5
    before = torch.full((len(gains),), 0.5, dtype=torch.float64)
    usable = torch.ones(len(gains), dtype=torch.bool) if usable is None else usable
    return evaluate_layer(P, cosines, before, usable, identity=identity, fixed=asked)


# Optimisation


def constant(means: Tensor) -> Rewards:
    """Rewards without noise."""
    return Rewards(means, means, means, means)


def holding(name: str, share: float) -> Tensor:
    """The logits of a layer in which one transformation has a share, and the others the rest."""
    p = torch.full((139,), (1 - share) / 138, dtype=torch.float64)
    p[row_of(name)] = share
    return p.log()


def test_the_deviation_is_a_mean_over_steps() -> None:
    config = SearchConfig(deviation_memory=0.8, deviation_draws=None)
    optimizer, generator = LayerOptimizer(CIFAR.table, config, 2), torch.Generator().manual_seed(1)
    seen = []
    for step in range(6):
        means = torch.randn(5, 139, generator=generator, dtype=torch.float64)
        seen.append(means.var(0, correction=0))
        ages = [0.8 ** (step - k) for k in range(step + 1)]
        expected = sum(a * v for a, v in zip(ages, seen, strict=True)) / sum(ages)
        found = optimizer._deviation(constant(means))
        optimizer.step += 1
        assert (found - expected.sqrt()).abs().max() < 1e-12


@pytest.mark.parametrize(("gain", "wins"), [(0.0001, False), (0.001, True)])
def test_gains_that_are_sure_but_tiny_are_left(gain: float, wins: bool) -> None:
    """The bound that `epsilon` states: 2e-6 e^8 / (312 * 0.1 - 8) is 0.00026."""
    config = SearchConfig(halvings=0, tie_signs=False)
    optimizer, means = (
        LayerOptimizer(CIFAR.table, config, 2),
        torch.zeros(2, 139, dtype=torch.float64),
    )
    means[:, 7] = gain
    for _ in range(config.steps):
        optimizer.update(constant(means))
    assert (float(optimizer.probabilities[7]) > 0.5) is wins
    assert (float(optimizer.probabilities[0]) > 0.5) is not wins


def mean_of_last(seen: list[Tensor], steps: int, average: float) -> Tensor:
    """The rule of `average`, written out."""
    late = seen[math.ceil(steps * (1 - average)) :]
    led = [int(p.argmax()) == 0 for p in late]
    late = late[len(led) - led[::-1].index(True) :] if any(led) else late
    return torch.stack(late).mean(0) if late else seen[-1]


@pytest.mark.parametrize("average", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize(("start", "rate"), [(0.1, 0.3), (4.0, 0.6), (8.0, 0.3)])
def test_a_layer_is_the_mean_of_its_last_steps(average: float, start: float, rate: float) -> None:
    """Where identity never leads, leads first, and leads to the end."""
    config = SearchConfig(steps=10, average=average, identity_logit=start, learning_rate=rate)
    generator = torch.Generator().manual_seed(1)
    favour = torch.linspace(0, 1, 139, dtype=torch.float64)
    rewards = [favour + 0.3 * torch.randn(4, 139, generator=generator) for _ in range(10)]
    optimizer, seen = LayerOptimizer(CIFAR.table, config, 1), []
    for step, means in enumerate(rewards):
        if step == 8:  # a layer that goes on from here has the same mean
            again = LayerOptimizer(CIFAR.table, config, 1)
            again.load_state(optimizer.state())
        optimizer.update(constant(means))
        seen.append(optimizer.probabilities)
    leads = [int(p.argmax()) == 0 for p in seen]
    expected = {0.1: (False, False), 4.0: (True, False), 8.0: (True, True)}
    assert (any(leads), leads[-1]) == expected[start]
    assert (optimizer.result - mean_of_last(seen, 10, average)).abs().max() < 1e-15
    for means in rewards[8:]:
        again.update(constant(means))
    assert torch.equal(again.result, optimizer.result)


def test_an_operation_that_holds_a_layer_late_is_not_averaged_away() -> None:
    optimizer = LayerOptimizer(CIFAR.table, SearchConfig(), 2)
    nothing = constant(torch.zeros(2, 139, dtype=torch.float64))
    optimizer.step = 238
    for share in (0.6, 0.96):
        optimizer.logits = holding("crop", share)
        optimizer.update(nothing)
    assert float(optimizer.result[row_of("crop")]) == pytest.approx(0.78)  # their mean
    optimizer.logits = holding("crop", 0.98)
    optimizer.update(nothing)
    assert float(optimizer.result[row_of("crop")]) == pytest.approx(0.98)


@pytest.mark.parametrize(
    ("share", "step", "ends"), [(0.98, 77, False), (0.98, 78, True), (0.96, 300, False)]
)
def test_an_operation_holds_a_layer_from_a_quarter_of_its_steps(
    share: float, step: int, ends: bool
) -> None:
    for layer in (1, 2):
        optimizer = LayerOptimizer(CIFAR.table, SearchConfig(), layer)
        optimizer.step, optimizer.logits = step, holding("crop", share)
        assert optimizer.converged == (ends and layer == 2)


@pytest.mark.parametrize(("identity", "ends"), [(0.98, False), (0.995, True)])
def test_what_rises_beside_identity_is_given_time(identity: float, ends: bool) -> None:
    optimizer = LayerOptimizer(CIFAR.table, SearchConfig(), 2)
    p = torch.full((139,), 1e-6, dtype=torch.float64)
    p[0], p[row_of("crop")] = identity, 1 - identity
    optimizer.logits = p.log()
    for step in (191, 192, 311):
        optimizer.step = step
        assert optimizer.converged == (ends and step >= 192)


# The end of a layer


@pytest.mark.parametrize(
    ("gains", "identity", "kept", "reason"),
    [
        ([0.01, 0.03], 0.5, True, "a gain of 0.0200, standard error 0.0100"),
        ([-0.01, 0.03], 0.5, False, "a gain of 0.0100 is not above its standard error, 0.0200"),
        ([0.0, 0.0], 0.5, False, "a gain of 0.0000 is not above its standard error, 0.0000"),
        ([0.01, 0.03], 0.91, False, "identity has 0.91 of the layer"),
        ([0.01, 0.03], 0.90, True, "a gain of 0.0200, standard error 0.0100"),
        ([0.02], 0.0, True, "a gain of 0.0200, standard error 0.0000"),
    ],
)
def test_the_stop_rule(gains: list[float], identity: float, kept: bool, reason: str) -> None:
    found = layer(gains, identity=identity)
    assert (found.kept, found.reason) == (kept, reason)
    wanted = layer(gains, identity=identity, asked=True)
    assert wanted.kept
    assert wanted.reason == ("asked for" if kept else f"asked for, although {reason}")


def test_images_without_a_finite_cosine_are_left_out() -> None:
    found = layer([0.01, math.nan, 0.03, math.inf])
    assert found.usable.tolist() == [True, False, True, False]
    assert found.gain == pytest.approx(0.02)
    assert found.error == pytest.approx(0.01)


def test_the_leader_has_to_bring_its_share_of_the_gain() -> None:
    found, alone = layer([0.03, 0.04, 0.05]), layer([0.02, 0.04, 0.03])  # 0.04 and 0.03
    chosen, why = prefer_leader(found, alone, "crop", 0.76)
    assert chosen is found
    assert why == "; better than crop alone by 0.0100, standard error 0.0058"
    chosen, why = prefer_leader(found, alone, "crop", 0.74)
    assert chosen is alone
    assert why == "; crop alone, the rest brings 0.0100, standard error 0.0058"


@pytest.mark.parametrize(("gain", "taken"), [(-0.03, False), (-0.02, True), (0.01, True)])
def test_of_layers_that_harm_the_better_one_is_kept(gain: float, taken: bool) -> None:
    """When the number of layers is given."""
    found, alone = layer([-0.02, -0.02], asked=True), layer([gain, gain], asked=True)
    assert (prefer_leader(found, alone, "crop", 0.5)[0] is alone) == taken


@pytest.mark.parametrize("asked", [False, True])
def test_a_simpler_layer_that_would_be_dropped_does_not_replace_one_that_helps(
    asked: bool,
) -> None:
    """So that layers which are asked for are those that an open search would find."""
    found = layer([0.001, 0.004, 0.001], asked=asked)
    alone = layer([0.004, 0.001, -0.003], asked=asked)
    assert (found.helps, alone.helps) == (True, False)
    assert (found.kept, alone.kept) == (True, asked)
    chosen, why = prefer_leader(found, alone, "crop", 0.1)
    assert chosen is found
    assert why == "; crop alone is not enough"


@pytest.mark.parametrize("alone", [[0.02, math.nan], [math.nan, math.nan], [0.9, math.inf]])
def test_a_form_that_cannot_be_measured_is_not_taken(alone: list[float]) -> None:
    found = layer([0.02, 0.03])
    chosen, why = prefer_leader(found, layer(alone, usable=found.usable), "crop", 0.5)
    assert chosen is found
    assert why == "; crop alone cannot be measured on the same images"


def test_a_form_that_can_be_measured_on_more_images_is_compared_on_the_same() -> None:
    found = layer([0.02, math.nan, 0.03])
    alone = layer([0.02, 0.9, 0.03], usable=found.usable)
    assert alone.gain == pytest.approx(0.025)
    assert prefer_leader(found, alone, "crop", 0.5)[0] is alone


def mixture(**shares: float) -> Tensor:
    """All magnitudes of an operation alike."""
    p = torch.zeros(len(CIFAR.table), dtype=torch.float64)
    for name, share in shares.items():
        rows = [i for i, row in enumerate(CIFAR.table.rows) if row.operation.name == name]
        p[rows] = share / len(rows)
    return p


def test_who_leads_a_layer() -> None:
    p = mixture(rotate=0.33, crop=0.32, identity=0.3, flip=0.05)
    assert leading_operation(CIFAR.table, p) is None  # not more than a third
    p = mixture(rotate=0.4, crop=0.3, identity=0.3)
    leader = leading_operation(CIFAR.table, p)
    assert leader is not None
    assert leader.name == "rotate"
    assert leading_operation(CIFAR.table, mixture(rotate=0.4, identity=0.6)).name == "identity"
    p = mixture(rotate=0.6, crop=0.3, identity=0.1)
    leader = leading_operation(CIFAR.table, p)
    assert leader is not None
    assert leader.name == "rotate"
    assert leading_operation(CIFAR.table, p, 0.7) is None
    alone = restricted(CIFAR.table, p, leader)
    assert alone.sum() == pytest.approx(1)
    assert float(operation_shares(CIFAR.table, alone).max()) == pytest.approx(1)
    assert torch.allclose(alone[alone > 0], torch.full((12,), 1 / 12, dtype=torch.float64))
    identity, perplexity, top = summarize(CIFAR.table, p).values()
    assert identity == pytest.approx(0.1)
    names, shares = zip(*top, strict=True)
    assert names == ("rotate", "crop", "identity")
    assert shares == pytest.approx((0.6, 0.3, 0.1))
    bits = 0.6 * math.log(12 / 0.6) + 0.3 * math.log(1 / 0.3) + 0.1 * math.log(10)
    assert perplexity == pytest.approx(math.exp(bits))
