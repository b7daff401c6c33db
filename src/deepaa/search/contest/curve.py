"""How the errors of a contest's candidates fall as their trainings become larger.

Small trainings favour weak augmentation: a network that knows its augmented images by heart gains
nothing from more epochs, and one that does not goes on to gain. More images help both. In
logarithms,

    d log(error) = -rate (1 - exp(-loss / knee)) d log(epochs) - scaling d log(images)

with the training loss on augmented images. What this predicts, and how it did on real contests, is
in docs/decisions/how-the-contest-picks.md.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.search.contest.table import ContestTable, Growth

USUAL_RATE, USUAL_SCALING, WEIGHT = 0.5, 0.5, 0.25
"""The rates before two lengths are known, and how many candidates each of them counts as."""
KNEE = 1 / 3
"""The knee in units of the highest training loss of the first length."""
USUAL_ERROR = 0.1
"""Standard deviation of a candidate's own rate about the curve, where few candidates tell it."""
LEAST = 3
"""Candidates of two lengths that tell it."""


class Curve(NamedTuple):
    """The law by which the errors of all candidates of a contest fall."""

    rate: float
    """Fall of log(error) in each e-fold of epochs while hardly anything is known by heart."""
    knee: float
    """Training loss below which the fall becomes slow."""
    error: float
    """Standard deviation of the candidates' own rates about the curve, in each e-fold of both
    together."""
    scaling: float
    """Fall of log(error) in each e-fold of images."""

    def fall(self, train_loss: float, growth: Growth) -> float:
        """The fall of log(error) from a training that ended at this loss to a larger one."""
        new = _not_by_heart(train_loss, self.knee)
        return self.rate * new * growth.epochs + self.scaling * growth.images


def learning_curve(table: ContestTable) -> Curve:
    """The curve through what the images that choose say of all lengths, by least squares.

    Each candidate gives a fall for each two lengths that follow each other; the training loss is
    that of the shorter.
    """
    lengths = table.lengths
    trained = {length: table.trained(length) for length in lengths}
    losses = [table.train_loss(name, lengths[0]) for name in trained[lengths[0]]]
    knee = max(KNEE * max(losses, default=0.0), 1e-6)
    wrong = {
        (name, length): _wrong(table, name, length)
        for length in lengths
        for name in trained[length]
    }
    ways: list[tuple[float, float]] = []
    falls: list[float] = []  # both of an e-fold of epochs and images together
    for short, long in itertools.pairwise(lengths):
        growth, whole = table.growth(short, long), math.log(long / short)
        for name in (name for name in trained[short] if (name, long) in wrong):
            new = _not_by_heart(table.train_loss(name, short), knee)
            ways.append((new * growth.epochs / whole, growth.images / whole))
            falls.append(math.log(wrong[name, short] / wrong[name, long]) / whole)
    way = torch.tensor(ways, dtype=torch.float64).reshape(-1, 2)
    fall = torch.tensor(falls, dtype=torch.float64)
    found = _rates(way, fall)
    error = USUAL_ERROR
    if len(falls) >= LEAST:
        told = 1 + bool(way[:, 1].any())  # rates that the candidates tell
        squares = float((fall - way @ found).square().sum())
        error = math.sqrt(squares / max(1, len(falls) - told))
    rate, scaling = found.tolist()
    return Curve(rate, knee, error, scaling)


def _not_by_heart(train_loss: float, knee: float) -> float:
    """How much of what more epochs can give is left to a training that ended at this loss."""
    return 1 - math.exp(-train_loss / knee)


def _rates(way: Tensor, fall: Tensor) -> Tensor:
    """(2,) the rate and the scaling, neither below zero, which the usual ones hold near to them."""
    usual = torch.tensor([USUAL_RATE, USUAL_SCALING], dtype=torch.float64)
    weight = way.T @ way + WEIGHT * torch.eye(2, dtype=torch.float64)
    told = way.T @ fall + WEIGHT * usual
    found: Tensor = torch.linalg.solve(weight, told)
    if (found < 0).any():  # then it is zero, and the other one alone has to do
        found = torch.where(found < 0, 0.0, (told / weight.diagonal()).clamp(min=0))
    return found


def _wrong(table: ContestTable, name: str, length: int) -> float:
    """The share of the images that choose which a candidate has wrong, never zero."""
    images = float(table.group_sizes(chooses=True).sum())
    right = float(table.right(name, length, chooses=True).mean(0).sum())
    return (images - right + 0.5) / (images + 1)
