"""Small worlds for tests of search methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa.ops import CIFAR, Space
from deepaa.policy import Policy
from deepaa.search.methods import Part, World
from deepaa.train import TrainConfig

Pair = tuple[Tensor, Tensor]
"""Images uint8 (N, C, H, W) and labels (N,)."""


class TinyNet(nn.Module):
    """Means of 4 x 4 pixels, and a hidden layer: an epoch of it takes milliseconds."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.hidden = nn.Linear(channels * (height // 4) * (width // 4), 32)
        self.head = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        means = F.avg_pool2d((images.float() - 128) / 64, 4).flatten(1)
        return self.head(F.relu(self.hidden(means)))


def make_world(
    pretrain: Pair,
    validation: Pair,
    *,
    search: Pair | None = None,
    model: Callable[[], nn.Module] | None = None,
    space: Space = CIFAR,
    seed: int = 0,
    epochs: int = 4,
    **changes: Any,
) -> World:
    """A world of these images; `changes` are other fields of it."""
    classes = int(pretrain[1].max()) + 1
    shape = tuple(pretrain[0].shape[1:])

    def make_model(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return model() if model else TinyNet(shape, classes)

    world = World(
        pretrain=Part(*pretrain),
        search=Part(*(search or pretrain)),
        validation=Part(*validation),
        classes=classes,
        space=space,
        excludes=lambda row: False,
        defaults=Policy.identity(),
        make_model=make_model,
        train=TrainConfig(epochs=epochs, batch=50, lr=0.05),
        device=torch.device("cpu"),
        seed=seed,
        pause=lambda: None,
    )
    return world._replace(**changes)
