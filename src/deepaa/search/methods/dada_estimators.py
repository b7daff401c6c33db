"""Gradients of an expected reward in the probabilities of pairs and gates, from draws of them.

A draw takes one of P pairs of operations, with the probabilities softmax(logits), and opens each of
its two gates with its own probability. Every estimator gives one gradient for each draw, so that
means and variances can be looked at; all of them point uphill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MARGIN = 0.01
"""Gates stay so far from 0 and 1: an operation that is never drawn could never come back."""
BETAS = 0.5, 0.999
"""The decay of Adam's two averages."""
EPSILON = 1e-8
HIDDEN = 100
"""The width of the control variate."""
Named = dict[str, Tensor]


class Parameters(NamedTuple):
    """What the search learns, float64 on the CPU."""

    pairs: Tensor
    """(P,) logits."""
    gates: Tensor
    """(P, 2) probabilities."""
    levels: Tensor
    """(P, 2) from 0 to 1."""

    def within_bounds(self) -> Parameters:
        """The same, with gates and levels brought back to where they have a meaning."""
        return Parameters(
            self.pairs, self.gates.clamp(MARGIN, 1 - MARGIN), self.levels.clamp(0.0, 1.0)
        )


class Noise(NamedTuple):
    """Uniform numbers, strictly between 0 and 1."""

    pairs: Tensor
    """(N, P)."""
    gates: Tensor
    """(N, P, 2)."""

    @classmethod
    def of(cls, n: int, pairs: int, generator: torch.Generator) -> Noise:
        """For n draws of a pair and its gates."""
        numbers = torch.rand(n, pairs, 3, generator=generator, dtype=torch.float64)
        numbers = numbers.clamp(1e-12, 1 - 1e-12)
        return cls(numbers[..., 0], numbers[..., 1:])


class Draws(NamedTuple):
    """N draws, and the noise that they were made from."""

    pair: Tensor
    """(N,) int64."""
    open: Tensor
    """(N, P, 2) whether each gate is open; only those of the drawn pair have an effect."""
    noise: Noise

    @property
    def chosen(self) -> Tensor:
        """(N, 2) the gates of the drawn pair."""
        return self.open[torch.arange(len(self.pair)), self.pair]

    def part(self, which: Tensor) -> Draws:
        """Those of the draws that are True in (N,)."""
        noise = Noise(self.noise.pairs[which], self.noise.gates[which])
        return Draws(self.pair[which], self.open[which], noise)


class Gradients(NamedTuple):
    """One gradient for each draw."""

    pairs: Tensor
    """(N, P) in the logits."""
    gates: Tensor
    """(N, P, 2) in the probabilities."""


def draw(parameters: Parameters, noise: Noise) -> Draws:
    """The pair with the largest perturbed logit, and the gates whose noise is large enough."""
    scores = gumbel(parameters.pairs.log_softmax(0), noise.pairs)
    return Draws(scores.argmax(1), noise.gates > 1 - parameters.gates, noise)


# REINFORCE


def scores(parameters: Parameters, draws: Draws) -> Gradients:
    """The gradients of each draw's log-probability, all gates included."""
    shares, gates = parameters.pairs.softmax(0), parameters.gates
    pairs = F.one_hot(draws.pair, len(shares)).to(shares) - shares
    return Gradients(pairs, torch.where(draws.open, 1 / gates, -1 / (1 - gates)))


def of_drawn_pair(draws: Draws, gates: Tensor) -> Tensor:
    """(N, P, 2) with nothing but the drawn pair's gates left."""
    is_drawn = F.one_hot(draws.pair, gates.shape[1]).bool()
    return torch.where(is_drawn[..., None], gates, 0.0)


def reinforce(
    parameters: Parameters,
    draws: Draws,
    rewards: Tensor,
    *,
    leave_one_out: bool = False,
    all_gates: bool = False,
) -> Gradients:
    """Rewards (N,) times scores.

    Args:
        leave_one_out: Less the mean of the other draws' rewards, which leaves the mean as it is.
        all_gates: Score gates of all pairs, also those without an effect on the reward: noise.
    """
    if leave_one_out:
        n = len(rewards)
        rewards = (rewards - rewards.mean()) * (n / max(1, n - 1))
    found = scores(parameters, draws)
    gates = found.gates if all_gates else of_drawn_pair(draws, found.gates)
    return Gradients(rewards[:, None] * found.pairs, rewards[:, None, None] * gates)


# RELAX: relaxed draws, and the same again given what was drawn


def gumbel(log_shares: Tensor, noise: Tensor) -> Tensor:
    """Perturbed logits, the largest of which is what is drawn."""
    return log_shares - torch.log(-torch.log(noise))


def gumbel_given(log_shares: Tensor, pair: Tensor, noise: Tensor) -> Tensor:
    """(N, P) perturbed logits from fresh noise, given that `pair` (N,) has the largest."""
    waiting = -torch.log(noise)
    first = waiting.gather(1, pair[:, None])
    is_drawn = F.one_hot(pair, noise.shape[1]).bool()
    return -torch.log(torch.where(is_drawn, first, waiting / log_shares.exp() + first))


def logistic(gates: Tensor, noise: Tensor) -> Tensor:
    """Relaxed gates: open where above 0."""
    return torch.logit(gates) + torch.logit(noise)


def logistic_given(gates: Tensor, is_open: Tensor, noise: Tensor) -> Tensor:
    """Relaxed gates from fresh noise, given which of them are open."""
    inside = torch.where(is_open, noise * gates + 1 - gates, noise * (1 - gates))
    return logistic(gates, inside.clamp(1e-12, 1 - 1e-12))


class Relax:
    """REINFORCE with a control variate that sees relaxed draws and learns to lower the variance.

    The pair is relaxed given the noise of all gates, and the gates given the pair. So gates of
    other pairs get no gradient, and both estimates keep their means whatever the control is.
    """

    def __init__(self, pairs: int, *, temperature: float, rate: float, seed: int) -> None:
        """A network of one hidden layer for the inputs of `pairs` pairs and two gates."""
        self.temperature = temperature
        generator = torch.Generator().manual_seed(seed)
        inputs = pairs + 2
        first = torch.randn(HIDDEN, inputs, generator=generator, dtype=torch.float64)
        self.weights: Named = {
            "first": first / inputs**0.5,
            "shift": torch.zeros(HIDDEN, dtype=torch.float64),
            "last": torch.zeros(HIDDEN, dtype=torch.float64),
            "mean": torch.zeros((), dtype=torch.float64),
        }
        self.adam = Adam(self.weights, rate)

    def estimate(
        self, parameters: Parameters, draws: Draws, rewards: Tensor, fresh: Noise
    ) -> Gradients:
        """One gradient for each draw; the control variate then learns from them."""
        weights = {name: value.clone().requires_grad_() for name, value in self.weights.items()}
        with torch.enable_grad():
            found = self._estimate(weights, parameters, draws, rewards, fresh)
            loss = (found.pairs.square().sum() + found.gates.square().sum()) / len(rewards)
            slopes = torch.autograd.grad(loss, list(weights.values()))
        downhill = {name: -slope for name, slope in zip(weights, slopes, strict=True)}
        self.weights = self.adam.step(self.weights, downhill)
        return Gradients(*(part.detach() for part in found))

    def _estimate(
        self, weights: Named, parameters: Parameters, draws: Draws, rewards: Tensor, fresh: Noise
    ) -> Gradients:
        pairs = self._of_pairs(weights, parameters, draws, rewards, fresh)
        chosen = self._of_gates(weights, parameters, draws, rewards, fresh)
        gates = of_drawn_pair(draws, chosen[:, None].expand_as(draws.open))
        return Gradients(pairs, gates)

    def _of_pairs(
        self, weights: Named, parameters: Parameters, draws: Draws, rewards: Tensor, fresh: Noise
    ) -> Tensor:
        n, shares = len(rewards), parameters.pairs.softmax(0)
        logs = parameters.pairs.log_softmax(0).expand(n, -1).clone().requires_grad_()
        gates = torch.sigmoid(logistic(parameters.gates, draws.noise.gates) / self.temperature)

        def control(perturbed: Tensor) -> Tensor:
            soft = (perturbed / self.temperature).softmax(1)
            return _control(weights, soft, (soft[..., None] * gates).sum(1))

        free = control(gumbel(logs, draws.noise.pairs))
        given = control(gumbel_given(logs, draws.pair, fresh.pairs))
        (slope,) = torch.autograd.grad((free - given).sum(), logs, create_graph=True)
        # from log-probabilities to logits
        slope = slope - shares * slope.sum(1, keepdim=True)
        return (rewards - given)[:, None] * scores(parameters, draws).pairs + slope

    def _of_gates(
        self, weights: Named, parameters: Parameters, draws: Draws, rewards: Tensor, fresh: Noise
    ) -> Tensor:
        rows, pair = torch.arange(len(rewards)), draws.pair
        gates, is_open = parameters.gates[pair].clone().requires_grad_(), draws.chosen
        hard = F.one_hot(pair, len(parameters.pairs)).to(gates)

        def control(relaxed: Tensor) -> Tensor:
            return _control(weights, hard, torch.sigmoid(relaxed / self.temperature))

        free = control(logistic(gates, draws.noise.gates[rows, pair]))
        given = control(logistic_given(gates, is_open, fresh.gates[rows, pair]))
        (slope,) = torch.autograd.grad((free - given).sum(), gates, create_graph=True)
        return (rewards - given)[:, None] * scores(parameters, draws).gates[rows, pair] + slope


def _control(weights: Named, pairs: Tensor, gates: Tensor) -> Tensor:
    """(N,) of relaxed pairs (N, P) and gates (N, 2)."""
    inputs = 2 * torch.cat((pairs, gates), 1) - 1
    hidden = torch.tanh(inputs @ weights["first"].T + weights["shift"])
    return hidden @ weights["last"] + weights["mean"]


# Steps


class Adam:
    """Adam on named tensors, uphill."""

    def __init__(self, values: Mapping[str, Tensor], rate: float) -> None:
        """Both averages start from zero."""
        self.rate, self.steps = rate, 0
        self.means = {name: torch.zeros_like(value) for name, value in values.items()}
        self.squares = {name: torch.zeros_like(value) for name, value in values.items()}

    def step(self, values: Mapping[str, Tensor], uphill: Mapping[str, Tensor]) -> Named:
        """The values after one step."""
        self.steps += 1
        (first, second), moved = BETAS, {}
        for name, value in values.items():
            mean = self.means[name].lerp(uphill[name], 1 - first)
            square = self.squares[name].lerp(uphill[name].square(), 1 - second)
            self.means[name], self.squares[name] = mean, square
            length = (square / (1 - second**self.steps)).sqrt() + EPSILON
            moved[name] = value + self.rate * mean / (1 - first**self.steps) / length
        return moved

    def state(self) -> Named:
        """The averages and the number of steps."""
        averages = {f"means.{name}": value.clone() for name, value in self.means.items()}
        averages |= {f"squares.{name}": value.clone() for name, value in self.squares.items()}
        return {**averages, "steps": torch.tensor(self.steps)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that fits."""
        self.means = {name: state[f"means.{name}"].clone() for name in self.means}
        self.squares = {name: state[f"squares.{name}"].clone() for name in self.squares}
        self.steps = int(state["steps"])
