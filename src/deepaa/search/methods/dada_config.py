"""The settings of DADA's search, and those of the paper, of the public code and of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from deepaa.search.methods.searcher import MOST_EPOCHS, MethodConfig


@dataclass(frozen=True)
class DadaConfig(MethodConfig):
    """How the parameters are drawn, judged and moved; the network is trained as all others are."""

    epochs: int = 20
    """Of the network."""
    warmup: int = 1
    """The first epochs, in which the network learns and the parameters stay: before that, running
    statistics of batch norm are none of the network's."""
    draws: str = "image"
    """image draws a pair and its gates for each image; batch draws once for all of a step."""
    estimator: str = "leave-one-out"
    """Of the gradient: plain REINFORCE; leave-one-out, less the mean reward of the others; or
    relax, with a control variate that learns."""
    paired: bool = True
    """Subtract from each reward that of the image without its pair: most of what rewards differ by
    is the image, not what was drawn for it."""
    all_gates: bool = False
    """Score the gates of pairs that were not drawn too, as the public code does."""
    summed_score: bool = False
    """Multiply the gradient of the pairs by the number of gates, as the public code does."""
    fixed_validation: bool = False
    """Take the same validation images in every step, as the public code does."""
    level_gradient: str = "difference"
    """difference: of the reward between two levels; straight-through: as if a level were added to
    every pixel, as the public code does; none leaves levels as they are."""
    level_step: float = 0.1
    """How far a difference goes to either side of a level."""
    level_start: float = 0.75
    """Of all levels; .5 is the middle of each range, at which most operations do nothing."""
    rate: float = 0.005
    """Of Adam, on all parameters."""
    temperature: float = 0.5
    """Of relaxed draws."""
    chains: int = 25
    """Pairs of the policy, equally likely; 0 takes all of them, with their probabilities."""
    weight_decay: float | None = None
    """Of the network; null takes that of all trainings."""

    def __post_init__(self) -> None:
        """Refuse values without meaning."""
        super().__post_init__()
        limits: dict[str, tuple[float, float]] = {
            "epochs": (1, MOST_EPOCHS),
            "warmup": (0, self.epochs - 1),
            "chains": (0, math.inf),
            "level_start": (0, 1),
        }
        for name, (low, high) in limits.items():
            if not low <= (value := getattr(self, name)) <= high:
                raise ValueError(f"{name} should be in {low}..{high}, got {value}")
        for name, high in (("level_step", 1.0), ("rate", math.inf), ("temperature", math.inf)):
            if not 0 < (value := getattr(self, name)) <= high or math.isinf(value):
                raise ValueError(f"{name} should be above 0 and at most {high}, got {value}")
        choices = {
            "draws": ("image", "batch"),
            "estimator": ("plain", "leave-one-out", "relax"),
            "level_gradient": ("difference", "straight-through", "none"),
        }
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} should be {', '.join(known)}, got {value!r}")
        if self.draws == "batch" and self.estimator == "leave-one-out":
            raise ValueError("leave-one-out takes several draws a step: draws should be image")
        if self.estimator == "relax" and self.all_gates:
            raise ValueError("all_gates belongs to plain and leave-one-out, not to relax")

    @property
    def slopes_of_an_image(self) -> int:
        """Derivatives that a step takes for each image."""
        return 1 + self.paired + (0 if self.level_gradient == "none" else 2)


_PUBLIC = DadaConfig(
    warmup=0,
    draws="batch",
    estimator="plain",
    paired=False,
    all_gates=True,
    summed_score=True,
    fixed_validation=True,
    level_gradient="straight-through",
    level_start=0.5,
    weight_decay=2e-4,
)
"""The settings of the public code, with what is wrong in it."""

PRESETS: Mapping[str, DadaConfig] = {
    "paper": replace(
        _PUBLIC,
        estimator="relax",
        all_gates=False,
        summed_score=False,
        fixed_validation=False,
    ),
    "official": _PUBLIC,
    "fast": DadaConfig(),
    "demo": DadaConfig(epochs=8),
}
