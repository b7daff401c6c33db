"""Planted answers: what tells the class is not spoilt, and what networks lack is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import Labelled, NormNet, PooledNet, make_world

from deepaa import CIFAR
from deepaa.policy import Policy
from deepaa.search.methods.dada import DifferentiableAugment
from deepaa.search.methods.fast_aa import FastAutoAugment
from deepaa.search.methods.fast_aa_settings import FastAutoAugmentConfig
from deepaa.search.methods.level_space import LevelSpace
from deepaa.search.methods.pba import PopulationBased, PopulationConfig, drifted_schedule
from deepaa.search.methods.randaugment import RandAugment, RandAugmentConfig
from deepaa.search.methods.random_search import random_sub_policies

CLASSES = 6
FAST_AA = FastAutoAugmentConfig(folds=2, trials=100, keep=5, epochs=10)
PBA = PopulationConfig(population=16, interval=1, epochs=30, validation=0)


def noisy(shapes: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """uint8 (N, 3, 16, 16) of shapes (N, 16, 16) from 0 to 1."""
    pixels = torch.randn(len(shapes), 3, 16, 16, generator=generator)
    return (40 + 150 * shapes[:, None] + noise * pixels).clamp(0, 255).to(torch.uint8)


def blobs_at(x: Tensor, y: Tensor) -> Tensor:
    """(N, 16, 16) with a blob at each place."""
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    square = (rows - y[:, None, None]) ** 2 + (columns - x[:, None, None]) ** 2
    return torch.exp(-square / 4)


def places(n: int, seed: int, noise: float = 12.0, heights: float = 4.0) -> Labelled:
    """How far to the right a blob lies is the class, one of four; how high it lies is not."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    x = 2.5 + 3.6 * labels + 0.5 * torch.randn(n, generator=generator)
    y = 8 + heights * (2 * torch.rand(n, generator=generator) - 1)
    return noisy(blobs_at(x, y), noise, generator), labels


def bars(n: int, seed: int, noise: float = 12.0) -> Labelled:
    """The direction of a bar is the class, one of six, 30 degrees apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    angle = math.pi / CLASSES * labels + 0.06 * torch.randn(n, generator=generator)
    off = 0.5 * torch.randn(2, n, 1, 1, generator=generator)
    y, x = rows - 7.5 - off[0], columns - 7.5 - off[1]
    away = y * torch.cos(angle)[:, None, None] - x * torch.sin(angle)[:, None, None]
    return noisy(torch.exp(-(away**2) / 3), noise, generator), labels


PLANTED: dict[str, tuple[Callable[..., Labelled], str]] = {
    "places": (places, "translate_x"),
    "bars": (bars, "rotate"),
}
"""Images, and the operation that turns one class into another."""


def use(policy: Policy, name: str, epochs: int = 1) -> float:
    """How often an image meets an operation, on average over the epochs."""
    return float(np.mean([policy.expected_uses(epoch).get(name, 0.0) for epoch in range(epochs)]))


# Spoilers


@cache
def random_uses(name: str) -> np.ndarray:
    """The same of as many random sub-policies as a search of Fast AutoAugment keeps."""
    space, count = LevelSpace.of(CIFAR), 5 * FAST_AA.all_kept
    return np.array([use(random_sub_policies(space, count, seed), name) for seed in range(300)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", PLANTED)
def test_fast_aa_avoids_what_changes_the_class(kind: str, seed: int) -> None:
    make, spoiler = PLANTED[kind]
    model: dict[str, Any] = {} if kind == "places" else {"model": lambda: NormNet(CLASSES)}
    search = FastAutoAugment(
        make_world(make(400, 10 + seed), make(40, 2), seed=seed, **model), FAST_AA
    )
    list(search)
    assert use(search.policy, spoiler) < np.quantile(random_uses(spoiler), 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", PLANTED)
def test_pba_avoids_what_changes_the_class(kind: str, seed: int) -> None:
    """The noise is such that networks still err, else there is nothing to choose by."""
    make, spoiler = PLANTED[kind]
    noise, model = (90.0, PooledNet) if kind == "places" else (70.0, lambda: NormNet(CLASSES))
    space = CIFAR.only("identity", spoiler, "brightness", "contrast")
    world = make_world(
        make(200, 10 + seed, noise),
        make(600, 2, noise),
        space=space,
        seed=seed,
        model=model,
        batch=50,
        lr=0.1,
    )
    search = PopulationBased(world, PBA)
    list(search)
    drifted = (drifted_schedule(world, PBA, number) for number in range(100))
    null = [use(policy, spoiler, PBA.epochs) for policy in drifted]
    assert use(search.policy, spoiler, PBA.epochs) < np.quantile(null, 0.05)


def leading_use(search: DifferentiableAugment, order: Tensor, spoiler: int) -> float:
    """How often the leading pairs apply an operation.

    Args:
        order: Whose parameters each pair has: their own, or those of another pair.
    """
    pairs, gates, _ = (part[order] for part in search.parameters)
    leading = pairs.argsort(descending=True, stable=True)[:25]
    return float((gates[leading] * (search.pairs.operations[leading] == spoiler)).sum()) / 25


def mean_level(search: DifferentiableAugment, order: Tensor, spoiler: int) -> float:
    """The level of an operation in all pairs that have it, or in as many others."""
    return float(search.parameters.levels[order][search.pairs.operations == spoiler].mean())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", PLANTED)
def test_dada_avoids_what_changes_the_class(kind: str, seed: int) -> None:
    """It shifts blobs less often, and turns bars less far: within 15 degrees they are of a class.

    A level of a half turns by nothing, and all begin at .75.
    """
    make, spoiler = PLANTED[kind]
    noise, lr = (12.0, 0.03) if kind == "places" else (60.0, 0.1)
    world = make_world(
        make(600, 10 + seed, noise),
        make(40, 2),
        seed=seed,
        model=lambda: NormNet(CLASSES),
        batch=32,
        lr=lr,
    )
    search = DifferentiableAugment(world, DifferentiableAugment.presets["fast"])
    list(search)
    names = [operation.name for operation in search.pairs.space.operations]
    measure = leading_use if kind == "places" else mean_level
    generator, count = torch.Generator().manual_seed(0), len(search.pairs)
    orders = (torch.randperm(count, generator=generator) for _ in range(1000))
    null = [measure(search, order, names.index(spoiler)) for order in orders]
    found = measure(search, torch.arange(count), names.index(spoiler))
    assert found < np.quantile(null, 0.05)


# The grid of RandAugment, which cannot leave an operation out


@pytest.mark.slow
def test_randaugment_takes_the_strength_that_validation_images_need() -> None:
    """Blobs to train on lie at one height, those of the validation part at any."""
    world = make_world(
        places(300, 0, heights=0.3),
        places(600, 1, heights=5.0),
        space=CIFAR.only("identity", "translate_y"),
    )
    search = RandAugment(world, RandAugmentConfig(epochs=12, numbers=(2,), magnitudes=(1, 20)))
    list(search)
    weak, strong = search.scores.tolist()
    assert strong - weak > 3 * math.sqrt((weak * (1 - weak) + strong * (1 - strong)) / 600)
    assert search.info["randaugment"] == "n=2 m=20, of 30"


def test_labels_without_meaning_make_no_strength_better() -> None:
    """All accuracies are those of guesses, and of equal ones the weakest is taken."""
    pairs = []
    for n, seed in ((300, 0), (600, 1)):
        images, labels = places(n, seed)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        pairs.append((images, labels[order]))
    grid = RandAugmentConfig(epochs=6, numbers=(1, 2), magnitudes=(3, 20))
    search = RandAugment(make_world(*pairs, model=PooledNet), grid)
    list(search)
    error = math.sqrt(0.25 * 0.75 / 600)
    assert all(abs(score - 0.25) < 3.5 * error for score in search.scores.tolist())
    kept = [
        n * m
        for (n, m), score in zip(grid.grid, search.scores.tolist(), strict=True)
        if score >= max(search.scores.tolist()) - search._error(max(search.scores.tolist()))
    ]
    n, m = grid.grid[search.taken or 0]
    assert n * m == min(kept)
