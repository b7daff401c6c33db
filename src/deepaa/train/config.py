"""The settings of a training, and the learning rate they mean at each moment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import SupportsIndex

import torch

PRECISIONS = ("float32", "bfloat16")
SCHEDULES = ("cosine", "step")


def precision_on(device: torch.device, precision: str = "auto") -> str:
    """float32 or bfloat16: auto takes the latter where CUDA computes it in hardware."""
    if precision != "auto":
        return precision
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if fast else "float32"


@dataclass(frozen=True)
class TrainConfig:
    """How a network is trained; the defaults are those of the search's pre-training."""

    epochs: int = 45
    """Passes over the images."""
    batch: int = 128
    """Images per step; a last batch of less than half of it is left out of the epoch."""
    copies: int = 1
    """Draws of each image in a batch (batch augmentation): a step sees batch x copies rows."""
    lr: float = 0.1
    """Highest learning rate."""
    schedule: str = "cosine"
    """cosine takes the learning rate down to 0; step multiplies it by gamma at the milestones."""
    milestones: tuple[float, ...] = ()
    """Epochs after which the step schedule lowers the learning rate, counted from the start; none
    keeps it as it is."""
    gamma: float = 0.1
    """Factor of the learning rate at each milestone."""
    warmup_epochs: float = 0.0
    """Epochs in which the learning rate rises in a line, before the schedule."""
    warmup_from: float = 0.0
    """Share of lr at which the rise begins: .125 of .8 is a warm-up from .1, multiplied by 8."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Nesterov's form of momentum."""
    weight_decay: float = 5e-4
    """Weight decay, added to the gradient."""
    decay_norm: bool = False
    """Whether normalisation weights and biases decay too."""
    clip: float = 5.0
    """Longest gradient, over all weights; 0 for no limit."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    seed: int = 0
    """Decides order, augmentation and dropout."""
    precision: str = "float32"
    """float32, or bfloat16 for the forward pass (autocast); weights stay as they are."""
    channels_last: bool = False
    """Whether images and weights keep channels innermost, which convolutions on CUDA prefer."""
    compile: bool = False
    """Whether the network is compiled, which takes a while and pays in long trainings."""
    tune: bool = False
    """Whether the compiler tries many ways for each kernel and joins small ones: a minute more
    before the first step, and steps up to a fifth faster. For compiled networks."""
    graph: bool | None = None
    """Whether a step is recorded once and replayed as a CUDA graph; null where that is possible."""

    def __post_init__(self) -> None:
        """Refuse values without meaning."""
        object.__setattr__(self, "milestones", tuple(self.milestones))  # JSON gives a list
        for name in ("epochs", "batch", "copies", "seed"):
            value = getattr(self, name)
            if not isinstance(value, SupportsIndex):  # 128.0 would fail much later
                raise ValueError(f"{name} should be a whole number, got {value!r}")
        limits: dict[str, tuple[float, float]] = {"warmup_epochs": (0, self.epochs)}
        limits |= dict.fromkeys(("batch", "copies"), (1, math.inf))
        limits |= dict.fromkeys(("momentum", "label_smoothing", "warmup_from"), (0, 1))
        limits |= dict.fromkeys(("epochs", "lr", "weight_decay", "clip", "gamma"), (0, math.inf))
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not (low <= value <= high and math.isfinite(value)):
                raise ValueError(f"{name} should be in {low}..{high}, got {value}")
        if self.warmup_epochs and self.warmup_epochs == self.epochs:
            raise ValueError(f"warmup_epochs leaves nothing of the {self.epochs} epochs")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        for name, known in (("precision", PRECISIONS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                choices = " or ".join(known)
                raise ValueError(f"{name} should be {choices}, got {getattr(self, name)!r}")
        self._check_milestones()

    def _check_milestones(self) -> None:
        if self.milestones and self.schedule != "step":
            raise ValueError(
                f"milestones {list(self.milestones)} belong to the step schedule, not to "
                f"{self.schedule!r}"
            )
        rising = all(a < b for a, b in zip(self.milestones, self.milestones[1:], strict=False))
        if not rising or any(not 0 < m < math.inf for m in self.milestones):
            raise ValueError(f"milestones should rise and be above 0, got {list(self.milestones)}")


def learning_rate(config: TrainConfig, progress: float) -> float:
    """The learning rate after `progress` epochs: up in a line, then down as the schedule says."""
    if progress < config.warmup_epochs:
        start = config.warmup_from
        return config.lr * (start + (1 - start) * progress / config.warmup_epochs)
    if config.schedule == "step":
        return config.lr * config.gamma ** sum(progress >= m for m in config.milestones)
    share = (progress - config.warmup_epochs) / (config.epochs - config.warmup_epochs)
    return config.lr * 0.5 * (1 + math.cos(math.pi * share))
