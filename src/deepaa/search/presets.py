"""Named settings of a search, each with what it is for and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from deepaa.ops import CIFAR, IMAGENET, Space
from deepaa.search.gradient_matching.config import SearchConfig
from deepaa.train import TrainConfig

SPACES: Mapping[str, Space] = {"cifar": CIFAR, "imagenet": IMAGENET}


@dataclass(frozen=True)
class ProxyConfig:
    """The network whose gradients guide the search, and how it is trained."""

    model: str | None = None
    """A name for `build_model`; None takes one that fits the images and the device."""
    augment: bool = True
    """Pre-train with crop, flip and cutout, as the authors do."""
    least_passes: int = 0
    """Pre-train for more epochs where so few images would go through the network."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How it is trained."""

    def trained_on(self, images: int) -> ProxyConfig:
        """The same with the epochs that so many images take."""
        if not images or self.train.schedule == "step":  # whose milestones are epochs
            return self
        epochs = max(self.train.epochs, math.ceil(self.least_passes / images))
        return replace(self, train=replace(self.train, epochs=epochs))


class Preset(NamedTuple):
    """Settings under a name."""

    description: str
    search: SearchConfig
    proxy: ProxyConfig
    space: str


_AUTHORS = SearchConfig(
    layers=6,
    steps=1024,
    learning_rate=0.025,
    prefixes=16,
    chains=556,
    stratified=False,
    halves=False,
    tie_signs=False,
    deviation_draws=None,
    deviation_memory=0.0,
    epsilon=1e-7,
    halvings=0,
    converged=1.0,
    average=0.0,
    simplify=0.0,
)

_USUAL = ProxyConfig(least_passes=45 * 4000)
SMALL, LARGE = "fast", "imagenet"
"""The presets for small and for large images, where nobody chose one."""
PRESETS: Mapping[str, Preset] = {
    "fast": Preset(
        "the default: a quarter of the authors' samples, a third of their steps",
        SearchConfig(),
        _USUAL,
        "cifar",
    ),
    "official": Preset(
        "what the authors' code does: 6 layers, 1,024 steps, 16 x 139 prefixes, 556 chains",
        _AUTHORS,
        _USUAL,
        "cifar",
    ),
    "paper": Preset(
        "what the paper says: 512 steps, the penalty in every layer, rewards not divided by |v|, "
        "validation batches of all classes, no default augmentation anywhere",
        replace(
            _AUTHORS,
            layers=None,
            steps=512,
            penalty_first_layer=1.0,
            normalise_target=False,
            same_class=False,
            symmetric=False,
            epsilon=1e-8,
        ),
        replace(_USUAL, augment=False),
        "cifar",
    ),
    "imagenet": Preset(
        "larger images: ResNet-18, the ImageNet space, at most 5 layers",
        SearchConfig(max_layers=5, chunk=256),
        replace(_USUAL, model="resnet18", train=TrainConfig(epochs=30, batch=64, lr=0.05)),
        "imagenet",
    ),
    "demo": Preset(
        "minutes on two CPU cores: 3 layers, a small network, few samples",
        SearchConfig(
            layers=3,
            steps=40,
            learning_rate=0.3,
            images=6,
            validation=24,
            prefixes=1,
            chains=48,
            deviation_draws=2,  # few steps: the deviation of many draws would keep them at identity
            heldout=48,
        ),
        ProxyConfig(model="small", least_passes=10 * 2000, train=TrainConfig(epochs=10)),
        "cifar",
    ),
}
