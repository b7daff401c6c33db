"""Trials of several sub-policies each: what was tried, how well it did, and what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.search.methods.level_space import Slot
from deepaa.search.methods.recognition import Score
from deepaa.search.methods.tpe import Values

SUB_POLICIES, SLOTS, PER_SLOT = 5, 2, 3
"""A trial is so many sub-policies of so many slots: an operation, its gate and its level."""
SubPolicy = Sequence[Slot]


class Place(NamedTuple):
    """Which trial is meant."""

    round: int
    fold: int
    trial: int


def distinct(sub_policies: Sequence[SubPolicy]) -> list[SubPolicy]:
    """The first sub-policy with each pair of operations, in their order."""
    found: dict[tuple[int, ...], SubPolicy] = {}
    for each in sub_policies:
        found.setdefault(tuple(slot.operation for slot in each), each)
    return list(found.values())


def sub_policies_of(numbers: Tensor) -> list[SubPolicy]:
    """The sub-policies that the (30,) numbers of a trial describe."""
    table = numbers.view(SUB_POLICIES, SLOTS, PER_SLOT).tolist()
    return [[Slot(int(op), gate, level) for op, gate, level in each] for each in table]


def numbers_of(values: Values) -> Tensor:
    """The (30,) numbers of a trial that TPE asked for."""
    rest = values.numbers.view(-1, PER_SLOT - 1)
    return torch.cat([values.choices.double()[:, None], rest], 1).flatten()


class Trials:
    """The trials of every round on every fold."""

    def __init__(self, shape: tuple[int, int, int], keep: int, operations: int) -> None:
        """Nothing was tried yet.

        Args:
            shape: Rounds, folds and trials.
            keep: Trials of each round and fold whose sub-policies are kept.
            operations: How many there are to choose from.
        """
        self.shape, self.keep, self.operations = shape, keep, operations
        slots = SUB_POLICIES * SLOTS
        self.numbers = torch.zeros(*self.shape, slots * PER_SLOT, dtype=torch.float64)
        """(rounds, folds, trials, 30): operation, gate and level of the slots of each trial."""
        self.scores = torch.full(self.shape, math.nan, dtype=torch.float64)
        """(rounds, folds, trials), NaN where a trial is still to come or failed."""
        self.errors = self.scores.clone()
        """Their standard errors."""

    def place(self, number: int) -> Place:
        """The trial of a number: folds take turns, so that at any time all have their share."""
        _, folds, trials = self.shape
        t, rest = divmod(number, folds * trials)
        trial, fold = divmod(rest, folds)
        return Place(t, fold, trial)

    @property
    def searches(self) -> Iterator[tuple[int, int]]:
        """Every round and fold."""
        return product(range(self.shape[0]), range(self.shape[1]))

    def add(self, place: Place, numbers: Tensor, score: Score) -> None:
        """Note a trial; one whose score is not a number has failed."""
        self.numbers[place], self.errors[place] = numbers, score.error
        self.scores[place] = score.value if math.isfinite(score.value) else math.nan

    def before(self, place: Place) -> tuple[Values, Tensor]:
        """What was tried before in the same search without failing, and the scores."""
        t, k, b = place
        valid = self.scores[t, k, :b].isfinite()
        numbers = self.numbers[t, k, :b][valid]
        table = numbers.view(len(numbers), SUB_POLICIES * SLOTS, PER_SLOT)
        values = Values(table[..., 0].long(), table[..., 1:].flatten(1))
        return values, self.scores[t, k, :b][valid]

    @property
    def best(self) -> float | None:
        """The best score of all."""
        measured = self.scores[self.scores.isfinite()]
        return measured.max().item() if len(measured) else None

    def best_of(self, t: int, k: int) -> list[int]:
        """The trials that are kept of round `t` on fold `k`, the best first."""
        scores = self.scores[t, k]
        order = scores.nan_to_num(-math.inf).argsort(descending=True, stable=True)
        count = min(self.keep, int(scores.isfinite().sum()))
        found: list[int] = order[:count].tolist()
        return found

    def kept(self) -> list[SubPolicy]:
        """The sub-policies of the best trials of each round and fold."""
        found = list[SubPolicy]()
        for t, k in self.searches:
            for trial in self.best_of(t, k):
                found += distinct(sub_policies_of(self.numbers[t, k, trial]))
        return found

    def is_saturated(self, t: int, k: int) -> bool:
        """Whether the best trials differ by no more than their standard error: luck chose them."""
        best = self.best_of(t, k)
        scores, errors = self.scores[t, k, best], self.errors[t, k, best]
        return len(best) > 1 and bool(scores.max() - scores.min() <= errors.mean())

    # Saving

    def state(self) -> dict[str, Tensor]:
        """What was tried, the scores and their errors."""
        return {name: getattr(self, name).clone() for name in ("numbers", "scores", "errors")}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; nothing changes if it does not fit."""
        mine = self.state()
        for name, tensor in mine.items():
            found = state[name]
            if found.shape != tensor.shape or found.dtype != torch.float64:
                raise ValueError(f"{name} should be {tuple(tensor.shape)} numbers")
        table = state["numbers"].view(-1, PER_SLOT)
        top = torch.tensor([self.operations - 1.0, 1.0, 1.0], dtype=torch.float64)
        if not bool(((table >= 0) & (table <= top)).all()):
            raise ValueError("numbers hold an operation, a gate or a level that there is not")
        for name in mine:
            setattr(self, name, state[name].clone())
