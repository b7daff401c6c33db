"""How a layer is optimised, and the rules by which it ends, is kept or dropped."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from blobs import row_of
from torch import Tensor

from deepaa import CIFAR
from deepaa.search.gradient_matching.layer import (
    Gain,
    LayerOptimizer,
    Rewards,
    is_kept,
    repeated_operations,
    summarize,
    without,
)
from deepaa.search.settings import SearchConfig

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


def trivial_layer() -> Tensor:
    """DeepTA's, written out: an operation uniformly, then one of its levels."""
    rows = CIFAR.table.rows
    levels = [sum(other.operation == row.operation for other in rows) for row in rows]
    return torch.tensor([1 / 18 / n for n in levels], dtype=torch.float64)


@pytest.mark.parametrize("tie_signs", [False, True])
@pytest.mark.parametrize("left", [139, 17])
@pytest.mark.parametrize("tau", [0.0, 0.003, 2.0])
def test_the_pull_to_deepta_is_the_gradient_of_the_objective(
    tau: float, left: int, tie_signs: bool
) -> None:
    """Of sum p r - tau KL(p || p0), by autograd, among the rows that are still rewarded."""
    config = SearchConfig(trivial_pull=tau, tie_signs=tie_signs, penalty=0.0, halvings=3)
    generator = torch.Generator().manual_seed(1)
    optimizer = LayerOptimizer(CIFAR.table, config, 2)
    optimizer.logits = torch.randn(139, generator=generator, dtype=torch.float64)
    optimizer.step = 0 if left == 139 else 200
    optimizer.drop_unlikely_rows()
    rows = optimizer.active
    assert len(rows) == left
    means = torch.randn(4, left, generator=generator, dtype=torch.float64) / 100
    reward, p0 = means.mean(0), trivial_layer()[rows]
    if tie_signs:
        place = {row: i for i, row in enumerate(rows.tolist())}
        twin = [place[CIFAR.table.twins[row]] for row in rows.tolist()]
        reward = (reward + reward[twin]) / 2
    logits = optimizer.logits[rows].clone().requires_grad_()
    p, p0 = logits.softmax(0), p0 / p0.sum()
    ((p * reward).sum() - tau * (p * (p / p0).log()).sum()).backward()
    found = []
    optimizer._adam_step = found.append  # type: ignore[method-assign]
    optimizer.update(constant(means))
    assert logits.grad is not None
    assert (found[0][rows] - logits.grad).abs().max() < 1e-15
    aside = torch.ones(139, dtype=torch.bool)
    aside[rows] = False
    assert not found[0][aside].any()


def test_a_layer_without_rewards_is_pulled_to_deepta() -> None:
    """From identity, far above the others, in the steps that a layer has."""
    optimizer = LayerOptimizer(CIFAR.table, SearchConfig(trivial_pull=0.01, halvings=0), 2)
    for _ in range(312):
        optimizer.update(constant(torch.zeros(2, 139, dtype=torch.float64)))
    assert (optimizer.probabilities / trivial_layer()).log().abs().max() < 0.1


def test_rows_that_deepta_favours_are_not_likelier_for_it() -> None:
    """One row of its own is no reason to stay: with the pull, rows are dropped by p / p0."""
    for tau in (0.0, 0.01):
        optimizer = LayerOptimizer(CIFAR.table, SearchConfig(trivial_pull=tau, tie_signs=False), 2)
        optimizer.logits = trivial_layer().log()
        optimizer.logits[row_of("flip")] -= 0.5  # worse than all others
        optimizer.step = 200
        optimizer.drop_unlikely_rows()
        assert (row_of("flip") in optimizer.active) == (tau == 0)
        assert len(optimizer.active) == 17


# The end of a layer


def many(*values: float) -> Gain:
    """The values eight times each."""
    return Gain.of(torch.tensor(values * 8, dtype=torch.float64))


def test_a_gain_is_a_mean_with_its_standard_error() -> None:
    values = [0.3, -0.1, 0.2, 0.5]
    gain = Gain.of(torch.tensor(values, dtype=torch.float64))
    assert gain.mean == pytest.approx(statistics.mean(values))
    assert gain.error == pytest.approx(statistics.stdev(values) / 2)
    assert gain.pairs == 4
    assert str(many(0.01, 0.03)) == "0.0200, standard error 0.0026"


@pytest.mark.parametrize(
    ("gain", "identity", "kept", "reason"),
    [
        (many(0.01, 0.03), 0.5, True, "a gain of 0.0200, standard error 0.0026"),
        (
            many(-0.08, 0.1),
            0.5,
            False,
            "a gain of 0.0100, standard error 0.0232, and 2 of those are needed",
        ),
        (
            many(-0.03, 0.07),
            0.5,
            False,
            "a gain of 0.0200, standard error 0.0129, and 2 of those are needed",
        ),
        (many(-0.01, 0.05), 0.5, True, "a gain of 0.0200, standard error 0.0077"),
        (
            many(0.0, 0.0),
            0.5,
            False,
            "a gain of 0.0000, standard error 0.0000, and 2 of those are needed",
        ),
        (many(0.01, 0.03), 0.91, False, "identity has 0.91 of the layer"),
        (many(0.01, 0.03), 0.90, True, "a gain of 0.0200, standard error 0.0026"),
        (Gain(0.02, 0.001, 15), 0.0, False, "15 pairs decide nothing, 16 are needed"),
    ],
)
def test_the_stop_rule(gain: Gain, identity: float, kept: bool, reason: str) -> None:
    assert is_kept(gain, identity=identity, errors=2.0, fixed=False) == (kept, reason)
    fixed, words = is_kept(gain, identity=identity, errors=2.0, fixed=True)
    assert fixed
    assert words == ("asked for" if kept else f"asked for, although {reason}")


@pytest.mark.parametrize(("errors", "kept"), [(0.0, True), (1.0, True), (1.5, True), (1.6, False)])
def test_how_many_standard_errors_is_a_setting(errors: float, kept: bool) -> None:
    gain = many(-0.03, 0.07)  # 1.55 standard errors
    assert is_kept(gain, identity=0.0, errors=errors, fixed=False)[0] == kept


def test_harmless_layers_are_seldom_kept() -> None:
    """One of 44 that change nothing, at two standard errors; one of six at one."""
    generator = torch.Generator().manual_seed(1)
    gains = [Gain.of(torch.randn(48, generator=generator)) for _ in range(4000)]
    for errors, share in ((2.0, 0.0228), (1.0, 0.159)):
        found = sum(gain.is_above(errors) for gain in gains) / len(gains)
        assert found == pytest.approx(share, abs=0.01)


def mixture(**shares: float) -> Tensor:
    """All magnitudes of an operation alike."""
    p = torch.zeros(len(CIFAR.table), dtype=torch.float64)
    for name, share in shares.items():
        rows = [i for i, row in enumerate(CIFAR.table.rows) if row.operation.name == name]
        p[rows] = share / len(rows)
    return p


def test_what_a_layer_is_in_few_numbers() -> None:
    p = mixture(rotate=0.6, crop=0.3, identity=0.1)
    identity, perplexity, top = summarize(CIFAR.table, p).values()
    assert identity == pytest.approx(0.1)
    names, shares = zip(*top, strict=True)
    assert names == ("rotate", "crop", "identity")
    assert shares == pytest.approx((0.6, 0.3, 0.1))
    bits = 0.6 * math.log(12 / 0.6) + 0.3 * math.log(1 / 0.3) + 0.1 * math.log(10)
    assert perplexity == pytest.approx(math.exp(bits))


@pytest.mark.parametrize(
    ("before", "p", "names"),
    [
        ([], mixture(rotate=1.0), []),
        ([mixture(crop=1.0)], mixture(rotate=1.0), []),
        ([mixture(rotate=0.4, crop=0.6)], mixture(rotate=0.34, flip=0.33, crop=0.33), ["rotate"]),
        ([mixture(rotate=0.33, crop=0.67)], mixture(rotate=1.0), []),  # a third is not more
        (
            [mixture(rotate=1.0), mixture(flip=1.0)],
            mixture(rotate=0.4, flip=0.6),
            ["rotate", "flip"],
        ),
        ([mixture(identity=0.5, crop=0.5)], mixture(identity=0.6, crop=0.4), ["crop"]),
    ],
)
def test_what_a_layer_repeats(before: list[Tensor], p: Tensor, names: list[str]) -> None:
    kept = torch.stack(before) if before else torch.zeros(0, 139, dtype=torch.float64)
    repeated = repeated_operations(CIFAR.table, p, kept)
    assert [operation.name for operation in repeated] == names
    rest = without(CIFAR.table, p, repeated)
    for i, row in enumerate(CIFAR.table.rows):
        if row.operation.name == "identity":
            moved = sum(
                float(share)
                for other, share in zip(CIFAR.table.rows, p, strict=True)
                if other.operation.name in names
            )
            assert float(rest[i]) == pytest.approx(float(p[i]) + moved)
        else:
            assert float(rest[i]) == (0.0 if row.operation.name in names else float(p[i]))
