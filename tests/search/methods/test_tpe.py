"""The tree-structured Parzen estimator: densities, asks, and Optuna's as an oracle."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepaa.search.methods.tpe import Kernels, TreeParzen, Values, kernel_weights

SPACE = TreeParzen(choices=10, options=15, numbers=20)
COSTS = torch.cat([torch.zeros(5), torch.linspace(0.2, 0.6, 10)]).double()
"""Of 15 operations: five do no harm."""
NOTHING = Values(torch.empty(0, 10, dtype=torch.int64), torch.empty(0, 20, dtype=torch.float64))


def harm(values: Values) -> Tensor:
    """(n,) how much of the accuracy the sub-policies of each trial cost."""
    operations, numbers = values.choices.view(-1, 5, 2), values.numbers.view(-1, 5, 2, 2)
    hurt = COSTS[operations] * numbers[..., 0] * numbers[..., 1]
    return (1 - (1 - hurt).prod(-1)).mean(-1)


def measured(values: Values, generator: torch.Generator) -> Tensor:
    """(n,) accuracies on 1,600 images."""
    right = (0.9 * (1 - harm(values))).float()
    return torch.binomial(torch.full_like(right, 1600), right, generator=generator).double() / 1600


def joined(before: Values, one: Values) -> Values:
    return Values(*(torch.cat([a, b[None]]) for a, b in zip(before, one, strict=True)))


def searched(seed: int, trials: int, *, is_random: bool) -> float:
    """The harm of the ten best trials."""
    generator = torch.Generator().manual_seed(seed)
    tried = NOTHING
    scores = torch.empty(0, dtype=torch.float64)
    for number in range(trials):
        place = 1000 * seed + number
        asked = SPACE.random(place) if is_random else SPACE.ask(tried, scores, place)
        tried = joined(tried, asked)
        one = Values(*(part[-1:] for part in tried))
        scores = torch.cat([scores, measured(one, generator)])
    best = scores.argsort(descending=True)[:10]
    return harm(Values(*(part[best] for part in tried))).mean().item()


def history(n: int, seed: int) -> tuple[Values, Tensor]:
    """Random trials and their accuracies."""
    drawn = [SPACE.random(1000 * seed + number) for number in range(n)]
    tried = NOTHING
    for one in drawn:
        tried = joined(tried, one)
    return tried, measured(tried, torch.Generator().manual_seed(seed))


# Asks


@pytest.mark.parametrize("n", [0, 19, 20, 60])
def test_an_ask_is_a_function_of_the_trials_and_the_seed(n: int) -> None:
    tried, scores = history(n, 1)
    one, again, other = (SPACE.ask(tried, scores, seed) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one.numbers, other.numbers)
    assert bool(((one.choices >= 0) & (one.choices < 15)).all())
    assert bool(((one.numbers >= 0) & (one.numbers <= 1)).all())
    is_random = torch.equal(one.numbers, SPACE.random(5).numbers)
    assert is_random == (n < SPACE.startup)


def test_random_values_are_uniform() -> None:
    drawn = [SPACE.random(seed) for seed in range(500)]
    counts = torch.stack([each.choices for each in drawn]).flatten().bincount(minlength=15)
    numbers = torch.stack([each.numbers for each in drawn]).flatten().sort().values
    expected = 5000 / 15
    assert float(((counts - expected) ** 2 / expected).sum()) < 36  # 14 degrees, p = .001
    steps = torch.arange(1, len(numbers) + 1) / len(numbers)
    assert float((numbers - steps).abs().max()) < 1.95 / math.sqrt(len(numbers))


def test_tpe_does_less_than_half_of_the_harm_of_random_search() -> None:
    found = [
        [searched(seed, 200, is_random=is_random) for seed in (1, 2, 3)]
        for is_random in (False, True)
    ]
    tpe, control = (sum(each) / 3 for each in found)
    assert tpe <= control / 2, found


def test_asks_go_to_what_the_best_have() -> None:
    """One choice and one number decide the score; the others are left as they come."""
    tried, _ = history(60, 2)
    scores = (tried.choices[:, 3] == 7).double() - (tried.numbers[:, 4] - 0.8).abs()
    asked = [SPACE.ask(tried, scores, seed) for seed in range(100)]
    choices = torch.stack([each.choices for each in asked])
    numbers = torch.stack([each.numbers for each in asked])
    assert float((choices[:, 3] == 7).double().mean()) > 0.9
    assert float((numbers[:, 4] > 0.6).double().mean()) > 0.95
    others = [place for place in range(20) if place != 4]
    assert float((numbers[:, others] > 0.6).double().mean()) < 0.6  # chance alone: 0.4


# Densities


@pytest.mark.parametrize("n", [1, 2, 24, 60])
def test_densities_sum_to_one(n: int) -> None:
    tried, _ = history(n, 3)
    kernels = Kernels.of(tried.numbers)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    inside = kernels.log_density(grid[:, None].expand(-1, 20)).exp().mean(0)
    torch.testing.assert_close(inside, torch.ones_like(inside), rtol=0, atol=1e-4)
    shares = SPACE.shares(tried.choices)
    torch.testing.assert_close(shares.sum(1), torch.ones(10, dtype=torch.float64))
    assert bool((shares > 0).all())


def test_draws_follow_the_density() -> None:
    kernels = Kernels.of(history(12, 4)[0].numbers[:, :1])
    generator = torch.Generator().manual_seed(0)
    drawn = kernels.draw(*torch.rand(2, 20_000, 1, dtype=torch.float64, generator=generator))
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    below = kernels.log_density(grid[:, None]).exp().cumsum(0).flatten() / 20_000
    expected = below[(drawn.flatten().sort().values * 20_000).long().clamp_(max=19_999)]
    steps = torch.arange(1, 20_001) / 20_000
    assert float((expected - steps).abs().max()) < 1.95 / math.sqrt(20_000)


def test_old_trials_count_less() -> None:
    assert kernel_weights(24).unique().numel() == 1
    weights = kernel_weights(60)
    assert weights[0] == pytest.approx(weights[-1].item() / 60)
    assert bool((weights.diff() >= -1e-12).all())
    assert weights.sum().item() == pytest.approx(1)


# Optuna


@pytest.mark.slow
def test_asks_are_those_of_optuna() -> None:
    """From one history, the values that both ask for have the same distribution."""
    optuna = pytest.importorskip("optuna")
    tried, scores = history(70, 5)
    space = TreeParzen(choices=1, options=15, numbers=1)
    few = Values(tried.choices[:, :1], tried.numbers[:, :1])
    kinds = {
        "choice": optuna.distributions.CategoricalDistribution(list(range(15))),
        "number": optuna.distributions.FloatDistribution(0, 1),
    }
    study = optuna.create_study(direction="maximize")
    for choice, number, score in zip(
        few.choices.flatten().tolist(), few.numbers.flatten().tolist(), scores.tolist(), strict=True
    ):
        params = {"choice": choice, "number": number}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=score))
    ours, theirs = [], []
    for seed in range(600):
        ours.append(space.ask(few, scores, seed))
        study.sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=20, multivariate=False, constant_liar=False
        )
        trial = study.ask(kinds)
        theirs.append((trial.params["choice"], trial.params["number"]))
        study.tell(trial, state=optuna.trial.TrialState.FAIL)  # no part of the history
    mine = torch.cat([each.choices for each in ours]).bincount(minlength=15).double()
    other = torch.tensor([choice for choice, _ in theirs]).bincount(minlength=15).double()
    used = mine + other > 0
    chi = ((mine - other)[used] ** 2 / (mine + other)[used]).sum().item()
    assert chi < 36  # at most 14 degrees, p = .001
    assert int(used.sum()) > 1
    first = torch.cat([each.numbers for each in ours]).sort().values
    second = torch.tensor([number for _, number in theirs], dtype=torch.float64).sort().values
    grid = torch.cat([first, second]).sort().values
    shares = (torch.searchsorted(some, grid, right=True) / 600 for some in (first, second))
    assert float((next(shares) - next(shares)).abs().max()) < 1.95 * math.sqrt(2 / 600)


def _optuna_search(seed: int, trials: int) -> float:
    """The harm of the ten best trials of Optuna's estimator."""
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=20, multivariate=False, constant_liar=False
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    generator, scores, harms = torch.Generator().manual_seed(seed), [], []
    kinds = {f"c{i}": optuna.distributions.CategoricalDistribution(range(15)) for i in range(10)}
    kinds |= {f"n{i}": optuna.distributions.FloatDistribution(0, 1) for i in range(20)}
    for _ in range(trials):
        trial = study.ask(kinds)
        choices = torch.tensor([[trial.params[f"c{i}"] for i in range(10)]])
        numbers = torch.tensor([[trial.params[f"n{i}"] for i in range(20)]], dtype=torch.float64)
        scores.append(measured(Values(choices, numbers), generator).item())
        harms.append(harm(Values(choices, numbers)).item())
        study.tell(trial, scores[-1])
    best = torch.tensor(scores).argsort(descending=True)[:10]
    return torch.tensor(harms)[best].mean().item()


@pytest.mark.slow
def test_searches_are_as_good_as_those_of_optuna() -> None:
    theirs = torch.tensor([_optuna_search(seed, 80) for seed in range(8)])
    ours = torch.tensor([searched(seed, 80, is_random=False) for seed in range(30)])
    error = math.hypot(theirs.std() / math.sqrt(len(theirs)), ours.std() / math.sqrt(len(ours)))
    assert abs(ours.mean() - theirs.mean()) < 3 * error, (ours.mean(), theirs.mean(), error)
    assert error < 0.2 * theirs.mean()  # or the comparison would say nothing
