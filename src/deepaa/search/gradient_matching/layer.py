"""One layer of the policy: how its distribution is optimised, when it ends, and what is kept of it.

`LayerOptimizer` moves the logits by `Rewards`. At the end `evaluate_layer` measures the layer on
held-out images and says whether it is kept; `prefer_leader` reduces it to its leading operation
where that does.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepaa.ops import Operation, Table
from deepaa.policy import Layers, Policy, perplexity
from deepaa.search.settings import SearchConfig

BETA1, BETA2 = 0.9, 0.999
"""The decay of Adam's two averages."""
IDENTITY_TRAVEL = 2.4
"""Identity ends a layer once Adam could have moved a logit this many times `identity_logit`,"""
IDENTITY_CONVERGED = 0.99
"""and above this share: what has risen to a hundredth from far below is on its way up."""
LEADER_SHARE = 1 / 3
"""An operation with more than this share leads a layer, if no other has more."""
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

    _ADAM = ("step", "logits", "momentum", "square")
    _STATE = (*_ADAM, "active", "variance", "average", "averaged_steps")

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
        self.average, self.averaged_steps = torch.zeros_like(logits), 0  # of the last steps
        self._mirror = torch.tensor(table.twins) if config.tie_signs else torch.arange(len(table))

    @property
    def probabilities(self) -> Tensor:
        """(T,) the softmax of the logits."""
        return self.logits.softmax(0)

    @property
    def result(self) -> Tensor:
        """(T,) the distribution to evaluate: the mean over the last steps, as far as there is one.

        If one operation holds the layer, it is that of the last step.
        """
        is_mean = self.averaged_steps and not self.converged
        p = self.average if is_mean else self.probabilities
        return p / p.sum()

    @property
    def converged(self) -> bool:
        """Whether one operation has held the layer for long enough; never in the first layer."""
        c = self.config
        is_open = self.layer > 1 and c.converged < 1
        leader = leading_operation(self.table, self.probabilities, c.converged) if is_open else None
        if leader is None:
            return False
        if leader.name == "identity":  # what starts below it needs time to rise
            travelled = self.step * c.learning_rate >= IDENTITY_TRAVEL * c.identity_logit
            share = float(self.probabilities[self.table.identity or 0])
            return travelled and share > IDENTITY_CONVERGED
        return self.step >= c.steps / 4

    def drop_unlikely_rows(self) -> None:
        """At given steps of a later layer, stop rewarding the less likely half of the rows.

        They keep their logits. Identity stays, and rows with tied signs go together.
        """
        left = self.config.rows_left(len(self.table), self.layer, self.step)
        if left >= len(self.active):
            return
        kept, active = {self.table.identity or 0}, set(self.active.tolist())
        for row in self.logits.argsort(descending=True, stable=True).tolist():
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
        gradient = torch.zeros_like(self.logits)
        gradient[self.active] = p * (reward - p @ reward)  # Eq. 4: of sum p_n r_n in the logits
        self._adam_step(gradient)
        if self.step > math.ceil(c.steps * (1 - c.average)):
            self._average_probabilities()

    def _adam_step(self, gradient: Tensor) -> None:
        self.step += 1
        self.momentum = BETA1 * self.momentum + (1 - BETA1) * gradient
        self.square = BETA2 * self.square + (1 - BETA2) * gradient**2
        mean = self.momentum / (1 - BETA1**self.step)
        square = self.square / (1 - BETA2**self.step)
        change = torch.zeros_like(self.logits)  # rows that were dropped stay where they are
        change[self.active] = (mean / (square.sqrt() + self.config.epsilon))[self.active]
        self.logits = self.logits + self.config.learning_rate * change

    def _average_probabilities(self) -> None:
        """Take this step's distribution into the mean, which begins where identity stops leading.

        A mean over the way from identity to another operation would only tell when it was stopped.
        """
        p = self.probabilities
        if int(p.argmax()) == self.table.identity:
            self.average, self.averaged_steps = torch.zeros_like(p), 0
        else:
            self.averaged_steps += 1
            self.average = self.average + (p - self.average) / self.averaged_steps

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


class Evaluation(NamedTuple):
    """A layer on held-out images."""

    p: Tensor  # (T,) its distribution
    cosines: Tensor  # (heldout,) of all layers with it
    usable: Tensor  # (heldout,) whether the cosine and those it is compared with are finite
    gain: float
    error: float  # the gain's standard error
    helps: bool  # whether it changes images and its gain is clear
    kept: bool  # whether it helps, or the number of layers is fixed
    reason: str


def evaluate_layer(
    p: Tensor, cosines: Tensor, before: Tensor, usable: Tensor, *, identity: float, fixed: bool
) -> Evaluation:
    """What a layer (T,) gains over the cosines (heldout,) `before` it, and whether it is kept.

    Args:
        usable: (heldout,) images on which everything else that is compared is finite.
        identity: Its share of the layer.
        fixed: Whether the number of layers was given, so that none is dropped.
    """
    usable = usable & torch.isfinite(cosines + before)
    gains = (cosines - before)[usable]
    gain, error = gains.mean().item(), standard_error(gains)
    helps, reason = True, f"a gain of {gain:.4f}, standard error {error:.4f}"
    if identity > IDENTITY_LIMIT:
        helps, reason = False, f"identity has {identity:.2f} of the layer"
    elif not gain > error:
        helps, reason = False, f"a gain of {gain:.4f} is not above its standard error, {error:.4f}"
    if fixed:
        reason = "asked for" if helps else f"asked for, although {reason}"
    return Evaluation(p, cosines, usable, gain, error, helps, kept=helps or fixed, reason=reason)


def prefer_leader(
    found: Evaluation, leader: Evaluation, name: str, share: float
) -> tuple[Evaluation, str]:
    """The layer as it was found, or its leading operation alone if that has its share of the gain.

    Near a layer's optimum its shares hardly change what an image gains: they say how long and on
    which images it was searched. What the rest gains, the next layer can still find. The text says
    which of the two was taken, and why.
    """
    if not torch.equal(leader.usable, found.usable):
        return found, f"; {name} alone cannot be measured on the same images"
    more = (found.cosines - leader.cosines)[found.usable]
    mean, error = more.mean().item(), standard_error(more)
    least = min(share * found.gain, found.gain)  # of two layers that harm, the better one
    if leader.gain < least:
        return found, f"; better than {name} alone by {mean:.4f}, standard error {error:.4f}"
    if found.helps and not leader.helps:
        return found, f"; {name} alone is not enough"
    return leader, f"; {name} alone, the rest brings {mean:.4f}, standard error {error:.4f}"


def standard_error(values: Tensor) -> float:
    """The standard error of the mean of values (N,)."""
    return values.std().item() / math.sqrt(len(values)) if len(values) > 1 else 0.0


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


def leading_operation(table: Table, p: Tensor, least: float = LEADER_SHARE) -> Operation | None:
    """The operation with most of a layer (T,), if it has more than `least`."""
    shares = operation_shares(table, p)
    at = int(shares.argmax())
    return table.operations[at] if float(shares[at]) > least else None


def restricted(table: Table, p: Tensor, operation: Operation) -> Tensor:
    """(T,) the layer with one operation alone, at its magnitudes."""
    p = p * torch.tensor([row.operation == operation for row in table.rows])
    return p / p.sum()
