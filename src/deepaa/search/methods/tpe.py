"""The tree-structured Parzen estimator: which values to try next, from the scores of others.

Bergstra et al., Algorithms for Hyper-Parameter Optimization, NeurIPS 2011. With l the density of
the values of the best trials and g that of the others, a value with large l / g is likely to
improve. Every parameter is estimated on its own, all of them in a few tensor operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.ops import BITS, hash_keys, sample_keys

BEST_SHARE, MOST_BEST = 0.1, 25
"""So many of the trials are the best: a tenth of them, and no more than 25."""
RECENT = 25
"""The latest trials count fully, and those before them less and less."""
NARROWEST = 100
"""No kernel is narrower than this part of the range."""


class Values(NamedTuple):
    """What one trial has tried, or, with a dimension in front, several trials."""

    choices: Tensor
    """(C,) int64: the option that each choice takes."""
    numbers: Tensor
    """(D,) float64 in 0..1."""


@dataclass(frozen=True)
class TreeParzen:
    """Asks for values; it has no state but the trials and the seed that it is given."""

    choices: int
    options: int
    """Of each choice."""
    numbers: int
    startup: int = 20
    """The first trials are random."""
    candidates: int = 24
    """Values of each parameter, drawn from the density of the best, of which one is taken."""

    def random(self, seed: int) -> Values:
        """Values that are uniform."""
        drawn = _uniforms(seed, self.choices + self.numbers)
        options = (drawn[: self.choices] * self.options).long()
        return Values(options, drawn[self.choices :])

    def ask(self, tried: Values, scores: Tensor, seed: int) -> Values:
        """Values that may improve on those that were tried.

        Args:
            tried: (n, C) and (n, D), in the order in which they were tried.
            scores: (n,), larger is better.
        """
        n = len(scores)
        if n < self.startup:
            return self.random(seed)
        order = scores.argsort(descending=True, stable=True)
        best = min(math.ceil(BEST_SHARE * n), MOST_BEST)
        good, bad = order[:best].sort().values, order[best:].sort().values  # by age
        drawn = _uniforms(seed, self.candidates * (self.choices + 2 * self.numbers))
        first, others = drawn.tensor_split([self.candidates * self.choices])
        options = self._options(tried.choices, good, bad, first.view(self.candidates, -1))
        shape = 2, self.candidates, self.numbers
        return Values(options, self._numbers(tried.numbers, good, bad, others.view(shape)))

    def _options(self, tried: Tensor, good: Tensor, bad: Tensor, drawn: Tensor) -> Tensor:
        """(C,) the options, by (candidates, C) uniform numbers."""
        likely, rare = (self.shares(tried[some]) for some in (good, bad))
        sums = likely.cumsum(1)
        words = drawn.T.contiguous() * sums[:, -1:]
        found = torch.searchsorted(sums, words, right=True).clamp_(max=self.options - 1)
        gains = likely.log() - rare.log()
        return found.gather(1, gains.gather(1, found).argmax(1, keepdim=True)).squeeze(1)

    def shares(self, tried: Tensor) -> Tensor:
        """(C, options) the probability of each option, by (n, C) that were tried."""
        n, kernels = len(tried), len(tried) + 1
        weights = kernel_weights(n)
        hot = torch.nn.functional.one_hot(tried, self.options).double()
        smooth = (hot + 1 / kernels) / (1 + self.options / kernels)
        return torch.einsum("n,nco->co", weights[:-1], smooth) + weights[-1] / self.options

    def _numbers(self, tried: Tensor, good: Tensor, bad: Tensor, drawn: Tensor) -> Tensor:
        """(D,) the numbers, by (2, candidates, D) uniform ones."""
        likely, rare = (Kernels.of(tried[some]) for some in (good, bad))
        found = likely.draw(*drawn)
        gains = likely.log_density(found) - rare.log_density(found)
        return found.gather(0, gains.argmax(0, keepdim=True)).squeeze(0)


class Kernels(NamedTuple):
    """The density of each of D numbers in 0..1: n normal kernels, cut off there, and a wide one."""

    weights: Tensor
    """(n + 1,), summing to 1."""
    middles: Tensor
    """(n + 1, D)."""
    widths: Tensor
    """(n + 1, D): the distance to the farther neighbour."""

    @classmethod
    def of(cls, values: Tensor) -> Kernels:
        """A kernel at each of (n, D) values; the last covers the whole range."""
        n, numbers = values.shape
        ordered, place = values.sort(0)
        ends = values.new_zeros(1, numbers), values.new_ones(1, numbers)
        gaps = torch.cat([ends[0], ordered, ends[1]]).diff(dim=0)
        if n > 1:  # the ends of the range are no neighbours
            gaps[0], gaps[-1] = gaps[1], gaps[-2]
        wide = torch.maximum(gaps[:-1], gaps[1:]).clamp(1 / min(NARROWEST, n + 2), 1)
        widths = torch.empty_like(wide).scatter_(0, place, wide)
        middles = torch.cat([values, ends[1] / 2])
        return cls(kernel_weights(n), middles, torch.cat([widths, ends[1]]))

    def _inside(self) -> tuple[Tensor, Tensor]:
        """(n + 1, D) the normal distribution of each kernel at 0, and its part from 0 to 1."""
        low, high = (torch.special.ndtr((x - self.middles) / self.widths) for x in (0.0, 1.0))
        return low, high - low

    def draw(self, which: Tensor, where: Tensor) -> Tensor:
        """(m, D) numbers, by as many uniform ones that say the kernel and the place in it."""
        place = torch.searchsorted(self.weights.cumsum(0), which, right=True)
        place = place.clamp_(max=len(self.weights) - 1)
        low, inside = (part.gather(0, place) for part in self._inside())
        normal: Tensor = torch.special.ndtri(low + where * inside)
        return (self.middles.gather(0, place) + self.widths.gather(0, place) * normal).clamp_(0, 1)

    def log_density(self, numbers: Tensor) -> Tensor:
        """(m, D) of (m, D) numbers."""
        distance = (numbers[:, None] - self.middles) / self.widths
        inside = self._inside()[1] * self.widths * math.sqrt(2 * math.pi)
        each = self.weights.log()[:, None] - inside.log() - distance.square() / 2
        return torch.logsumexp(each, 1)


def kernel_weights(n: int) -> Tensor:
    """(n + 1,) the weights of trials, the oldest first, and of the prior; they sum to 1."""
    weights = torch.ones(n + 1, dtype=torch.float64)
    if n >= RECENT:
        weights[: n - RECENT] = torch.linspace(1 / n, 1, n - RECENT, dtype=torch.float64)
    return weights / weights.sum()


def _uniforms(seed: int, count: int) -> Tensor:
    """(count,) numbers in [0, 1) that a hash of the seed gives."""
    key = sample_keys(seed, 0, torch.zeros(1, dtype=torch.int64))
    words = (hash_keys(key, torch.arange(count)) >> (64 - BITS)) & ((1 << BITS) - 1)
    return words.double() * 2.0**-BITS
