"""How the errors of a contest's candidates fall as their trainings become longer.

Short trainings favour weak augmentation: a network that knows its augmented images by heart has
nothing left to learn, and one that does not goes on to gain. In the logarithms of error and epochs,

    d log(error) / d log(epochs) = -rate (1 - exp(-loss / knee))

with the training loss on augmented images, where epochs are those that all images would have had
for the same passes. What this predicts, and how it did on real contests, is
in docs/decisions/how-the-contest-picks.md.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from deepaa.search.contest.table import ContestTable

USUAL_RATE, WEIGHT = 0.5, 0.25
"""The rate before two lengths are known, and how many candidates of high loss it counts as."""
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
    """Standard deviation of the candidates' own rates about the curve."""

    def falls(self, train_loss: float) -> float:
        """The fall of log(error) in an e-fold of epochs, for a training that ended at this loss."""
        return self.rate * -math.expm1(-train_loss / self.knee)


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
    ways, falls = [], []
    for short, long in itertools.pairwise(lengths):
        for name in (name for name in trained[short] if (name, long) in wrong):
            fall = math.log(wrong[name, short] / wrong[name, long]) / math.log(long / short)
            ways.append(-math.expm1(-table.train_loss(name, short) / knee))
            falls.append(fall)
    weight = WEIGHT + sum(way**2 for way in ways)
    found = WEIGHT * USUAL_RATE + sum(w * f for w, f in zip(ways, falls, strict=True))
    rate = max(0.0, found / weight)
    error = USUAL_ERROR
    if len(falls) >= LEAST:
        squares = sum((fall - rate * way) ** 2 for way, fall in zip(ways, falls, strict=True))
        error = math.sqrt(squares / (len(falls) - 1))
    return Curve(rate, knee, error)


def _wrong(table: ContestTable, name: str, length: int) -> float:
    """The share of the images that choose which a candidate has wrong, never zero."""
    images = float(table.group_sizes(chooses=True).sum())
    right = float(table.right(name, length, chooses=True).mean(0).sum())
    return (images - right + 0.5) / (images + 1)
