"""Estimators of DADA's gradient against the gradient that an enumeration of all draws gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepaa.search.methods.dada_estimators import (
    Adam,
    Draws,
    Gradients,
    Noise,
    Parameters,
    Relax,
    draw,
    gumbel,
    gumbel_given,
    logistic,
    logistic_given,
    reinforce,
    scores,
)

DRAWS = 100_000
TEMPERATURE = 0.5


def toy() -> Parameters:
    """Three pairs."""
    gates = torch.tensor([[0.3, 0.6], [0.5, 0.8], [0.7, 0.4]], dtype=torch.float64)
    logits = torch.tensor([0.4, -0.2, 0.1], dtype=torch.float64)
    return Parameters(logits, gates, torch.full((3, 2), 0.5, dtype=torch.float64))


def table() -> Tensor:
    """(3, 2, 2) the reward of each pair and each state of its gates."""
    generator = torch.Generator().manual_seed(5)
    return 1 + torch.randn(3, 2, 2, generator=generator, dtype=torch.float64)


def noise(n: int, seed: int, pairs: int = 3) -> Noise:
    return Noise.of(n, pairs, torch.Generator().manual_seed(seed))


def rewards_of(draws: Draws) -> Tensor:
    first, second = draws.chosen.long().unbind(1)
    return table()[draws.pair, first, second]


def exact() -> tuple[Tensor, Tensor]:
    """The gradient of the expected reward, by a sum over all draws."""
    logits, gates = (part.clone().requires_grad_() for part in toy()[:2])
    states = torch.stack((1 - gates, gates), 2)  # (pair, slot, state)
    joint = states[:, 0, :, None] * states[:, 1, None, :]
    expected = (logits.softmax(0)[:, None, None] * joint * table()).sum()
    found = torch.autograd.grad(expected, (logits, gates))
    return found[0], found[1]


def trained_relax(steps: int) -> Relax:
    relax = Relax(3, temperature=TEMPERATURE, rate=0.01, seed=0)
    for step in range(steps):
        draws = draw(toy(), noise(64, 10 + step))
        relax.estimate(toy(), draws, rewards_of(draws), noise(64, 100_000 + step))
    return relax


@pytest.fixture(scope="module")
def estimates() -> dict[str, Gradients]:
    """Each estimator at the same draws."""
    draws = draw(toy(), noise(DRAWS, 1))
    rewards, parameters = rewards_of(draws), toy()
    return {
        "plain": reinforce(parameters, draws, rewards),
        "all gates": reinforce(parameters, draws, rewards, all_gates=True),
        "leave-one-out": reinforce(parameters, draws, rewards, leave_one_out=True),
        "relax": trained_relax(400).estimate(parameters, draws, rewards, noise(DRAWS, 2)),
    }


@pytest.mark.parametrize("name", ["plain", "all gates", "leave-one-out", "relax"])
def test_means_are_the_enumerated_gradient(estimates: dict[str, Gradients], name: str) -> None:
    for found, expected in zip(estimates[name], exact(), strict=True):
        error = found.std(0) / DRAWS**0.5
        assert ((found.mean(0) - expected).abs() < 3 * error).all()


def test_variance_falls_from_plain_to_leave_one_out_to_relax(
    estimates: dict[str, Gradients],
) -> None:
    spread = {
        name: sum(part.var(0).sum().item() for part in found) for name, found in estimates.items()
    }
    assert spread["relax"] < spread["leave-one-out"] < spread["plain"] < spread["all gates"]


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    draws, parameters = draw(toy(), noise(5, 3)), toy()
    rewards = rewards_of(draws)
    found = reinforce(parameters, draws, rewards, leave_one_out=True)
    for i in range(5):
        others = torch.cat((rewards[:i], rewards[i + 1 :])).mean()
        score = scores(parameters, draws).pairs[i]
        torch.testing.assert_close(found.pairs[i], (rewards[i] - others) * score)


def test_gates_of_other_pairs_are_left_alone() -> None:
    draws = draw(toy(), noise(50, 4))
    drawn = torch.nn.functional.one_hot(draws.pair, 3).bool()
    fresh = noise(50, 5)
    relax = Relax(3, temperature=TEMPERATURE, rate=0.01, seed=0)
    for found in (
        reinforce(toy(), draws, rewards_of(draws)),
        relax.estimate(toy(), draws, rewards_of(draws), fresh),
    ):
        assert (found.gates[~drawn] == 0).all()
        assert (found.gates[drawn] != 0).all()


def test_relax_at_two_losses_of_one_draw_cancels_to_plain_reinforce() -> None:
    """The public code takes a difference of two RELAX estimates: no control is left of it."""
    draws, fresh, parameters = draw(toy(), noise(20, 6)), noise(20, 7), toy()
    generator = torch.Generator().manual_seed(8)
    ahead, behind = torch.randn(2, 20, generator=generator, dtype=torch.float64)
    relax, same = trained_relax(50), trained_relax(50)
    first = relax.estimate(parameters, draws, ahead, fresh)
    second = same.estimate(parameters, draws, behind, fresh)
    plain = reinforce(parameters, draws, ahead - behind)
    for one, other, expected in zip(first, second, plain, strict=True):
        torch.testing.assert_close(one - other, expected, rtol=0, atol=1e-12)


def test_what_was_drawn_has_the_largest_number_given_it() -> None:
    draws, fresh, parameters = draw(toy(), noise(DRAWS, 9)), noise(DRAWS, 10), toy()
    logs = parameters.pairs.log_softmax(0)
    given = gumbel_given(logs.expand(DRAWS, -1), draws.pair, fresh.pairs)
    assert (given.argmax(1) == draws.pair).all()
    gates = logistic_given(parameters.gates.expand(DRAWS, -1, -1), draws.open, fresh.gates)
    assert ((gates > 0) == draws.open).all()
    # over all draws they have the law of numbers that nothing is known of
    free = gumbel(logs, draws.noise.pairs), logistic(parameters.gates, draws.noise.gates)
    for known, unknown in zip((given, gates), free, strict=True):
        for power in (1, 2):
            a, b = known.sigmoid() ** power, unknown.sigmoid() ** power
            error = ((a.var(0) + b.var(0)) / DRAWS).sqrt()
            assert ((a.mean(0) - b.mean(0)).abs() < 4 * error).all()


def test_draws_have_their_probabilities() -> None:
    draws, parameters = draw(toy(), noise(DRAWS, 11)), toy()
    shares = draws.pair.bincount(minlength=3) / DRAWS
    assert (shares - parameters.pairs.softmax(0)).abs().max() < 4 * 0.5 / DRAWS**0.5
    assert (draws.open.double().mean(0) - parameters.gates).abs().max() < 4 * 0.5 / DRAWS**0.5


def test_adam_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(7, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(value.clone())
    optimiser = torch.optim.Adam([theirs], 0.005, (0.5, 0.999), maximize=True)
    ours, adam = {"value": value}, Adam({"value": value}, 0.005)
    for _ in range(20):
        gradient = torch.randn(7, generator=generator, dtype=torch.float64)
        theirs.grad = gradient.clone()
        optimiser.step()
        ours = adam.step(ours, {"value": gradient})
    torch.testing.assert_close(ours["value"], theirs.detach(), rtol=1e-12, atol=1e-12)


def test_gates_and_levels_stay_where_they_have_a_meaning() -> None:
    numbers = torch.tensor([[-1.0, 2.0]], dtype=torch.float64)
    found = Parameters(torch.zeros(1, dtype=torch.float64), numbers, numbers).within_bounds()
    assert found.gates.tolist() == [[0.01, 0.99]]
    assert found.levels.tolist() == [[0.0, 1.0]]
