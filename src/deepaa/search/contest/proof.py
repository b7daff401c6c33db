"""The proof of a contest's winner, from images and networks that did not choose it."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.search.contest.pick import estimate
from deepaa.search.contest.table import ContestTable


class Proof(NamedTuple):
    """What the winner is worth, from images and networks that did not choose it."""

    winner: str
    reference: str
    mean: float
    """Accuracy of the winner minus that of the reference."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    images: int
    seeds: int
    """Networks of the winner."""


def proof(
    table: ContestTable, winner: str, reference: str, length: int, seeds: Collection[int]
) -> Proof:
    """The 95 % interval of the winner's gain, from the images that did not choose and these seeds.

    A t interval over groups of images. What an image says varies with the seed, and images carry
    that; with two seeds or more, what all images of a network have in common is added: the variance
    of the networks' accuracies beyond what images explain, where that is positive.
    """
    sizes = table.group_sizes(chooses=False)
    ours, theirs = (
        table.right(name, length, chooses=False, seeds=seeds) for name in (winner, reference)
    )
    mean, error = estimate(ours.mean(0) - theirs.mean(0), sizes)
    images, groups = int(sizes.sum()), len(sizes)
    common = sum(_common_variance(right, images) / len(right) for right in (ours, theirs))
    half = math.inf
    if groups > 1:
        half = _t_quantile(groups - 1) * math.sqrt(error**2 + max(common, 0.0))
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return Proof(winner, reference, mean, low, high, images, len(ours))


def _common_variance(right: Tensor, images: int) -> float:
    """The variance of accuracy that networks of one candidate share over images, unbiased.

    Args:
        right: (seeds, groups) images of each group that each network has right.
    """
    if len(right) < 2:
        return 0.0
    whole = float(right.sum(1).var())
    return (whole - float(right.var(0).sum())) / images**2


@lru_cache
def _t_quantile(freedom: int) -> float:
    """Student's t that 95 % of absolute values are below; t = sqrt(freedom) * tan(angle)."""
    angles = torch.linspace(0, math.pi / 2, 200_001, dtype=torch.float64)
    density = angles.cos() ** (freedom - 1)
    share = torch.cumulative_trapezoid(density, angles)
    place = int(torch.searchsorted(share, 0.95 * share[-1]))
    return math.sqrt(freedom) * math.tan(float(angles[place + 1]))


def confirmed(found: Proof) -> bool:
    """Whether the winner may stay: images that did not choose it do not contradict.

    Where they put it behind the reference, the reference should be taken.
    """
    return found.mean >= 0
