"""Random policies: the control for every other method, with or without a choice by training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from deepaa.ops import hash_int
from deepaa.policy import Layers, Policy
from deepaa.search.methods.level_space import LevelSpace
from deepaa.search.methods.searcher import World, check_counts, seed_for
from deepaa.search.methods.trained_choice import TrainedChoice, TrainedChoiceConfig

RESULTS = ("chains", "layers", "schedule")
MOST_TRIALS = 10_000
"""All of them are drawn at the start."""
SLOTS = 2
"""Operations of a sub-policy."""


@dataclass(frozen=True)
class RandomConfig(TrainedChoiceConfig):
    """What is drawn, and how many times."""

    epochs: int = 20
    trials: int = 16
    """Policies that are drawn and trained with; where it is one, nothing is trained."""
    kind: str = "chains"
    """What is drawn: chains, layers or schedule, as the method has that it is the control of."""
    chains: int = 25
    """Sub-policies of two operations, where chains are drawn."""
    layers: int = 3
    """Layers over all transformations, where layers are drawn."""
    schedule_epochs: int = 60
    """Epochs that a schedule is for, where schedules are drawn."""

    def __post_init__(self) -> None:
        """Refuse values without meaning."""
        super().__post_init__()
        check_counts(
            self,
            trials=(1, MOST_TRIALS),
            chains=(1, 1_000),
            layers=(1, 100),
            schedule_epochs=(1, 10_000),
        )
        if self.kind not in RESULTS:
            raise ValueError(f"kind should be one of {', '.join(RESULTS)}, got {self.kind!r}")


def uniforms(seed: int, count: int) -> list[float]:
    """Numbers in [0, 1) that belong to a seed."""
    return [(hash_int(seed, i) >> 11) * 2.0**-53 for i in range(count)]


def random_sub_policies(space: LevelSpace, count: int, seed: int) -> Policy:
    """Sub-policies whose operations, gates and levels are uniform: Fast AutoAugment's prior."""
    numbers = iter(uniforms(seed, 3 * SLOTS * count))
    drawn = [
        [space.draw([next(numbers) for _ in range(3)]) for _ in range(SLOTS)] for _ in range(count)
    ]
    return space.policy(drawn)


def random_schedule(world: World, epochs: int, seed: int) -> Policy:
    """A line of descent of PBA's population in which nobody is selected."""
    from deepaa.search.methods.pba import PopulationBased, drifted_schedule

    settings = replace(PopulationBased.presets["fast"], epochs=epochs)
    return drifted_schedule(world, settings, seed)


def random_layers(world: World, count: int, seed: int) -> Policy:
    """Layers whose probabilities are uniform over all distributions (Dirichlet of ones)."""
    table, size = world.space.table, len(world.space)
    numbers = torch.tensor(uniforms(seed, count * size), dtype=torch.float64).view(count, size)
    weights = -torch.log1p(-numbers)  # exponential, so that their shares are Dirichlet
    policy = Policy(table, Layers(weights / weights.sum(1, keepdim=True)))
    return policy.symmetric()


class RandomSearch(TrainedChoice):
    """Draws policies at random, trains with each, and takes the best on validation images."""

    method = "random"
    result = "any"
    Config = RandomConfig
    presets: ClassVar[Mapping[str, RandomConfig]] = {
        "paper": RandomConfig(trials=1),
        "fast": RandomConfig(),
        "demo": RandomConfig(epochs=6, trials=4),
    }
    config: RandomConfig

    @classmethod
    def count(cls, config: RandomConfig) -> int:
        """Policies that are drawn."""
        return config.trials

    @classmethod
    def candidates(cls, config: RandomConfig, world: World) -> list[Policy]:
        """The drawn policies."""
        seeds = (seed_for(world.seed, cls.method, "policy", k) for k in range(config.trials))
        if config.kind == "layers":
            return [random_layers(world, config.layers, seed) for seed in seeds]
        if config.kind == "schedule":
            return [random_schedule(world, config.schedule_epochs, seed) for seed in seeds]
        space = LevelSpace.of(world.space, world.excludes)  # one table for all
        return [random_sub_policies(space, config.chains, seed) for seed in seeds]

    @classmethod
    def scaled(cls, config: RandomConfig, world: World, budget: int) -> Any:
        """As many policies as the budget pays for, more or fewer than the settings say."""
        each = cls.forecast(replace(config, trials=2), world).passes.cost / 2
        trials = math.floor(budget / each)
        if trials < 2:
            least = math.ceil(2 * each)
            raise ValueError(f"random takes {least:,} passes at least, the budget is {budget:,}")
        return replace(config, trials=min(trials, MOST_TRIALS))

    def pick(self, scores: Sequence[float], error: float) -> int:
        """The best."""
        return max(range(len(scores)), key=lambda place: (scores[place], -place))

    def describe(self, policy: int) -> str:
        """Its number."""
        return f"random policy {policy + 1}"
