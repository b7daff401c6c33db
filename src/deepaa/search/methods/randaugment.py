"""RandAugment's search: a grid over the number of operations and their strength."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from deepaa.policy import IDENTITY, Policy, rand_augment
from deepaa.search.methods.searcher import World
from deepaa.search.methods.trained_choice import TrainedChoice, TrainedChoiceConfig
from deepaa.train import space_of

TOP = 30
"""The strongest magnitude: the scale is torchvision's, 0 to 30."""


@dataclass(frozen=True)
class RandAugmentConfig(TrainedChoiceConfig):
    """The grid, and how its points are trained."""

    numbers: tuple[int, ...] = (1, 2, 3)
    """Operations for each image, n."""
    magnitudes: tuple[int, ...] = (3, 5, 7, 9, 11, 14)
    """Their strength, m, on a scale from 0 to 30."""
    one_se: bool = True
    """Take the weakest point within a standard error of the best, not the best."""

    def __post_init__(self) -> None:
        """Refuse points that are no RandAugment."""
        super().__post_init__()
        for name in ("numbers", "magnitudes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON gives a list
        if not self.numbers or not all(1 <= n <= 10 for n in self.numbers):
            raise ValueError(f"numbers should be in 1..10, got {self.numbers}")
        if not self.magnitudes or not all(0 <= m <= TOP for m in self.magnitudes):
            raise ValueError(f"magnitudes should be in 0..{TOP}, got {self.magnitudes}")
        for name in ("numbers", "magnitudes"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} should hold each value once, got {values}")

    @property
    def grid(self) -> list[tuple[int, int]]:
        """All pairs of n and m."""
        return list(product(self.numbers, self.magnitudes))


def weakest_within(scores: Sequence[float], strengths: Sequence[float], error: float) -> int:
    """The weakest whose score is at most `error` below the best; of equals the better one."""
    best = max(scores)
    close = [place for place, score in enumerate(scores) if score >= best - error]
    return min(close, key=lambda place: (strengths[place], -scores[place], place))


class RandAugment(TrainedChoice):
    """Trains with every n and m, and takes the weakest that is as good as the best."""

    method = "randaugment"
    result = "layers"
    Config = RandAugmentConfig
    presets: ClassVar[Mapping[str, RandAugmentConfig]] = {
        "paper": RandAugmentConfig(epochs=200, one_se=False),
        "fast": RandAugmentConfig(),
        "demo": RandAugmentConfig(epochs=8, numbers=(1, 2), magnitudes=(5, 14)),
    }
    config: RandAugmentConfig

    @classmethod
    def count(cls, config: RandAugmentConfig) -> int:
        """Points of the grid."""
        return len(config.grid)

    @classmethod
    def candidates(cls, config: RandAugmentConfig, world: World) -> list[Policy]:
        """RandAugment at every point, without operations that the space leaves out."""
        names = {operation.name for operation in world.space.operations}
        space = space_of(world.pretrain.images.shape[1:])
        found = [
            rand_augment(n, m, space).without(
                lambda row: row.operation.name not in names or world.excludes(row)
            )
            for n, m in config.grid
        ]
        if not any(set(policy.table.rows) - {IDENTITY} for policy in found):
            raise ValueError(f"no operation is left that {cls.method} could choose from")
        return found

    def pick(self, scores: Sequence[float], error: float) -> int:
        """The weakest within one standard error of the best, by n times m; or the best."""
        strengths = [float(n * m) for n, m in self.config.grid]
        return weakest_within(scores, strengths, error if self.config.one_se else 0.0)

    def describe(self, policy: int) -> str:
        """Its n and m."""
        n, m = self.config.grid[policy]
        return f"n={n} m={m}"

    @property
    def info(self) -> dict[str, str]:
        """The point that was taken, and the scale of its strength."""
        if self.taken is None:
            return {}
        return {"randaugment": f"{self.describe(self.taken)}, of {TOP}"}
