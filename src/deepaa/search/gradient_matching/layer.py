"""One layer of the policy: how its distribution is optimised, when it ends, and what is kept of it.

`LayerOptimizer` moves the logits by `Rewards`. At the end `is_kept` says, by the gain on pairs that
decided nothing before, whether the layer is kept; what it repeats of earlier layers is found by
`repeated_operations` and taken out by `without`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepaa.ops import Operation, Table
from deepaa.policy import Layers, Policy, perplexity
from deepaa.search.settings import LEAST_PAIRS, SearchConfig

BETA1, BETA2 = 0.9, 0.999
"""The decay of Adam's two averages."""
IDENTITY_TRAVEL = 2.4
"""Identity ends a layer once Adam could have moved a logit this many times `identity_logit`,"""
IDENTITY_CONVERGED = 0.99
"""and above this share: what has risen to a hundredth from far below is on its way up."""
LEADER_SHARE = 1 / 3
"""An operation with more than this share of a layer leads it."""
IDENTITY_LIMIT = 0.9
"""A layer with a larger share of identity changes nothing."""


class Rewards(NamedTuple):
    """Rewards of R transformations for each of G images."""

    mean: Tensor  # (G, R) over the prefix's draws
    relative: Tensor  # (G, R) the same, less the mean under the layer's distribution
    spread: Tensor  # (G, R) variance of one draw's reward
    noise: Tensor  # (G, R) variance of `relative` that is left by the draws

    @classmethod
    def of(cls, products: Tensor, probabilities: Tensor) -> Rewards:
        """The rewards in products (G, draws x R) of Eq. 9, in a layer with `probabilities` (R,).

        The mean of the rewards under the layer's own distribution is zero, because Eq. 9's
        direction is orthogonal to the layer's gradient. What a sample shows of it is noise that all
        transformations share, a baseline that `relative` is without.
        """
        each = torch.unflatten(products.double(), 1, (-1, len(probabilities)))
        relative = each - (each @ (probabilities / probabilities.sum()))[..., None]
        draws = each.shape[1]
        spread, noise = (part.var(1, correction=min(1, draws - 1)) for part in (each, relative))
        return cls(each.mean(1), relative.mean(1), spread, noise / draws)  # one draw shows none

    def variance(self, draws: int | None) -> Tensor:
        """(R,) the variance over images whose root Eq. 10 takes.

        It is the sum of the variance between images and the noise of the draws behind each image's
        reward, which is most of it. Given `draws`, it is the variance that so many draws would
        show: both parts are estimated apart, whatever number is at hand. With few images the sum
        may then be below zero; clamped here, its mean over steps would be too high.
        """
        if draws is None or len(self.mean) < 2 or not bool(self.spread.any()):
            return self.mean.var(0, correction=0)
        between = self.relative.var(0) - self.noise.mean(0)
        return between + self.spread.mean(0) / draws


class LayerOptimizer:
    """The logits of one layer, which start at identity, and the Adam steps that move them."""

    _STATE = ("step", "logits", "momentum", "square", "active", "variance")

    def __init__(self, table: Table, config: SearchConfig, layer: int) -> None:
        """A layer without steps; `layer` counts from 1."""
        self.table, self.config, self.layer = table, config, layer
        self.step = 0  # steps taken
        logits = torch.zeros(len(table), dtype=torch.float64)
        logits[table.identity or 0] = config.identity_logit
        self.logits = logits - logits.mean()
        self.active = torch.arange(len(table))  # (R,) the rows that are still rewarded
        self.momentum, self.square = torch.zeros_like(logits), torch.zeros_like(logits)  # of Adam
        self.variance = torch.zeros_like(logits)  # of rewards over images, averaged over steps
        self._trivial = Policy.trivial(table, 1).row_probabilities()[0]  # DeepTA's layer
        self._mirror = torch.tensor(table.twins) if config.tie_signs else torch.arange(len(table))

    @property
    def probabilities(self) -> Tensor:
        """(T,) the softmax of the logits."""
        return self.logits.softmax(0)

    @property
    def converged(self) -> bool:
        """Whether one operation has held the layer for long enough; never in the first layer."""
        c, shares = self.config, operation_shares(self.table, self.probabilities)
        if self.layer == 1 or c.converged >= 1 or float(shares.max()) <= c.converged:
            return False
        leader = self.table.operations[int(shares.argmax())]
        if leader.name == "identity":  # what starts below it needs time to rise
            travelled = self.step * c.learning_rate >= IDENTITY_TRAVEL * c.identity_logit
            return travelled and float(shares.max()) > IDENTITY_CONVERGED
        return self.step >= c.steps / 4

    def drop_unlikely_rows(self) -> None:
        """At given steps of a later layer, stop rewarding the less likely half of the rows.

        They keep their logits. Identity stays, and rows with tied signs go together. What a pull to
        DeepTA gives them does not count: an only row has twelve times as much as one of twelve.
        """
        left = self.config.rows_left(len(self.table), self.layer, self.step)
        if left >= len(self.active):
            return
        kept, active = {self.table.identity or 0}, set(self.active.tolist())
        start = self._trivial.log() if self.config.trivial_pull else 0.0
        for row in (self.logits - start).argsort(descending=True, stable=True).tolist():
            pair = {row, int(self._mirror[row])}
            if pair <= active and len(kept | pair) <= left:
                kept |= pair
        self.active = torch.tensor(sorted(kept))

    def update(self, rewards: Rewards) -> None:
        """One Adam step along the gradient of the expected reward (Eq. 4 and 10)."""
        c = self.config
        penalty = c.penalty_first_layer if self.layer == 1 else c.penalty
        reward = rewards.mean.mean(0) - penalty * self._deviation(rewards)  # Eq. 10
        if c.tie_signs:
            places = torch.full((len(self.table),), -1)
            places[self.active] = torch.arange(len(self.active))
            reward = (reward + reward[places[self._mirror[self.active]]]) / 2
        p = self.probabilities[self.active]
        p = p / p.sum()
        if c.trivial_pull:
            reward = reward - c.trivial_pull * (p.log() - self._trivial[self.active].log())
        gradient = torch.zeros_like(self.logits)
        gradient[self.active] = p * (reward - p @ reward)  # Eq. 4: of sum p_n r_n in the logits
        self._adam_step(gradient)

    def _adam_step(self, gradient: Tensor) -> None:
        self.step += 1
        self.momentum = BETA1 * self.momentum + (1 - BETA1) * gradient
        self.square = BETA2 * self.square + (1 - BETA2) * gradient**2
        mean = self.momentum / (1 - BETA1**self.step)
        square = self.square / (1 - BETA2**self.step)
        change = torch.zeros_like(self.logits)  # rows that were dropped stay where they are
        change[self.active] = (mean / (square.sqrt() + self.config.epsilon))[self.active]
        self.logits = self.logits + self.config.learning_rate * change

    def _deviation(self, rewards: Rewards) -> Tensor:
        """(R,) the standard deviation of rewards over images; its square is averaged over steps.

        Rows that were dropped never come back, so that all active ones have the same history.
        """
        decay, rows = self.config.deviation_memory, self.active
        if len(rewards.mean) > 1:  # one image, when others gave no finite reward, shows nothing
            now = rewards.variance(self.config.deviation_draws)
            now = decay * self.variance[rows] + (1 - decay) * now
            self.variance = self.variance.index_copy(0, rows, now)
        return (self.variance[rows] / (1 - decay ** (self.step + 1))).clamp(min=0).sqrt()

    def state(self) -> dict[str, Tensor]:
        """Everything that the layer needs to go on, as tensors."""
        return {name: torch.as_tensor(getattr(self, name)) for name in self._STATE}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from a state."""
        for name in self._STATE:
            setattr(self, name, state[name].clone() if state[name].ndim else state[name].item())


# The end of a layer


class Gain(NamedTuple):
    """How much the cosine of pairs rises on average."""

    mean: float
    error: float  # the mean's standard error
    pairs: int

    @classmethod
    def of(cls, gains: Tensor) -> Gain:
        """The mean of gains (pairs,)."""
        error = gains.std().item() / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        return cls(gains.mean().item(), error, len(gains))

    def is_above(self, errors: float) -> bool:
        """Whether it is above so many standard errors; few pairs do not show that."""
        return self.pairs >= LEAST_PAIRS and self.mean > errors * self.error

    def __str__(self) -> str:
        """`0.0123, standard error 0.0045`."""
        return f"{self.mean:.4f}, standard error {self.error:.4f}"


def is_kept(gain: Gain, *, identity: float, errors: float, fixed: bool) -> tuple[bool, str]:
    """Whether a layer is kept, and why.

    Args:
        gain: Over the layers before it, on pairs that decided nothing before.
        identity: Its share of the layer.
        errors: How many standard errors the gain has to be above.
        fixed: Whether the number of layers was given, so that none is dropped.
    """
    helps, reason = gain.is_above(errors), f"a gain of {gain}"
    if identity > IDENTITY_LIMIT:
        helps, reason = False, f"identity has {identity:.2f} of the layer"
    elif gain.pairs < LEAST_PAIRS:
        reason = f"{gain.pairs} pairs decide nothing, {LEAST_PAIRS} are needed"
    elif not helps:
        reason += f", and {errors:g} of those are needed"
    if fixed:
        reason = "asked for" if helps else f"asked for, although {reason}"
    return helps or fixed, reason


# What a distribution says


def summarize(table: Table, p: Tensor) -> dict[str, Any]:
    """Identity's share of a layer (T,), its perplexity, and its three leading operations.

    By their names in the records of a search.
    """
    names = [op.name for op in table.operations]
    shares = zip(names, operation_shares(table, p).tolist(), strict=True)
    top = sorted(shares, key=lambda pair: -pair[1])[:3]
    return {"identity": p[table.identity or 0].item(), "perplexity": perplexity(p), "top": top}


def operation_shares(table: Table, p: Tensor) -> Tensor:
    """The share of each operation in a layer (T,)."""
    return Policy(table, Layers(p[None] / p.sum())).operation_probabilities()[0]


def repeated_operations(table: Table, p: Tensor, before: Tensor) -> list[Operation]:
    """The operations with more than a third of a layer (T,) and of one (K, T) before it.

    Identity, which does nothing, is never repeated.
    """
    leads = [operation_shares(table, layer) > LEADER_SHARE for layer in (p, *before)]
    earlier = torch.stack(leads[1:]).any(0) if len(before) else torch.zeros_like(leads[0])
    operations = zip(table.operations, (leads[0] & earlier).tolist(), strict=True)
    return [op for op, is_repeated in operations if is_repeated and op.name != "identity"]


def without(table: Table, p: Tensor, operations: Collection[Operation]) -> Tensor:
    """(T,) the layer with the shares of some operations moved to identity."""
    moved = torch.tensor([row.operation in operations for row in table.rows])
    rest = p.masked_fill(moved, 0.0)
    rest[table.identity or 0] += p[moved].sum()
    return rest
