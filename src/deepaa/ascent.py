"""A layer in work: logits that climb along the rewards."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepaa.rewards import Rewards, variance
from deepaa.search_config import SearchConfig
from deepaa.space import Table

MOMENTUM, SQUARE = 0.9, 0.999
"""How much Adam keeps of its two averages."""


class Ascent:
    """The logits of one layer, which start at identity, and what moves them."""

    def __init__(self, table: Table, config: SearchConfig, layer: int) -> None:
        """A layer that has not moved yet."""
        self.table, self.config, self.layer = table, config, layer
        logits = torch.zeros(len(table), dtype=torch.float64)
        logits[table.identity or 0] = config.identity_logit
        self.logits = logits - logits.mean()
        self._momentum = torch.zeros_like(self.logits)
        self._square = torch.zeros_like(self.logits)
        self._variance = torch.zeros_like(self.logits)
        self._twin = torch.tensor(table.twins) if config.tie_signs else torch.arange(len(table))
        self._mean, self._count = torch.zeros_like(self.logits), 0  # of the last steps
        self.active = torch.arange(len(table))
        """(R,) the rows that are rewarded."""

    @property
    def probabilities(self) -> Tensor:
        """(T,) of all rows."""
        return self.logits.softmax(0)

    @property
    def settled(self) -> Tensor:
        """(T,) the mean over the last steps, as far as identity does not lead them."""
        return self._mean if self._count else self.probabilities

    def put_aside(self, step: int) -> None:
        """At given steps of a later layer, leave the less likely half of the rows as they are.

        Identity stays, and rows with tied signs go together.
        """
        left = self.config.rows_left(len(self.table), self.layer, step)
        if left >= len(self.active):
            return
        order = self.logits.argsort(descending=True, stable=True).tolist()
        kept = {self.table.identity or 0}
        active = set(self.active.tolist())
        for row in order:
            pair = {row, int(self._twin[row])}
            if pair <= active and len(kept | pair) <= left:
                kept |= pair
        self.active = torch.tensor(sorted(kept))

    def climb(self, rewards: Rewards, step: int) -> None:
        """Eq. 10 with the rewards of the active rows, and one step of Adam."""
        c = self.config
        penalty = c.penalty_first_layer if self.layer == 1 else c.penalty
        reward = rewards.mean.mean(0) - penalty * self._deviation(rewards, step)  # Eq. 10
        if c.tie_signs:
            places = torch.full((len(self.table),), -1)
            places[self.active] = torch.arange(len(self.active))
            reward = (reward + reward[places[self._twin[self.active]]]) / 2
        p = self.probabilities[self.active]
        p = p / p.sum()
        gradient = torch.zeros_like(self.logits)
        gradient[self.active] = p * (reward - p @ reward)  # of sum p_n r_n in the logits
        t = step + 1
        self._momentum = MOMENTUM * self._momentum + (1 - MOMENTUM) * gradient
        self._square = SQUARE * self._square + (1 - SQUARE) * gradient**2
        mean, square = self._momentum / (1 - MOMENTUM**t), self._square / (1 - SQUARE**t)
        change = torch.zeros_like(self.logits)  # rows put aside stay where they are
        change[self.active] = (mean / (square.sqrt() + c.epsilon))[self.active]
        self.logits = self.logits + c.learning_rate * change
        if step >= math.ceil(c.steps * (1 - c.average)):
            self._gather()

    def _gather(self) -> None:
        """Take the distribution of this step into the mean, which begins where identity falls.

        A mean over the way from identity to another operation would say when the layer was stopped.
        """
        last = self.probabilities
        if int(last.argmax()) == self.table.identity:
            self._mean, self._count = torch.zeros_like(last), 0
        else:
            self._count += 1
            self._mean = self._mean + (last - self._mean) / self._count

    def _deviation(self, rewards: Rewards, step: int) -> Tensor:
        """(R,) the standard deviation of rewards over images; its square is a mean over steps.

        Rows that are put aside never come back, so that all active ones have the same history.
        """
        keep, rows = self.config.deviation_memory, self.active
        if len(rewards.mean) > 1:  # one image, when others gave no finite reward, shows nothing
            now = variance(rewards, self.config.deviation_draws)
            now = keep * self._variance[rows] + (1 - keep) * now
            self._variance = self._variance.index_copy(0, rows, now)
        share = 1 - keep ** (step + 1)
        return (self._variance[rows] / share).clamp(min=0).sqrt()

    def state(self) -> dict[str, Tensor]:
        """Everything that a layer needs to go on, as tensors."""
        return {
            "logits": self.logits,
            "momentum": self._momentum,
            "square": self._square,
            "variance": self._variance,
            "active": self.active,
            "mean": self._mean,
            "count": torch.tensor(self._count),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from a state."""
        self.logits, self.active = state["logits"].clone(), state["active"].clone()
        self._momentum, self._square = state["momentum"].clone(), state["square"].clone()
        self._variance = state["variance"].clone()
        self._mean, self._count = state["mean"].clone(), int(state["count"])
