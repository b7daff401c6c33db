"""Small worlds in which search methods are tested: images, a network and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from blobs import Net
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa import CIFAR, Policy
from deepaa.ops import Space
from deepaa.search.methods import Part, World
from deepaa.train import TrainConfig

Labelled = tuple[Tensor, Tensor]
"""Images uint8 (N, C, H, W) and labels (N,)."""


class PooledNet(nn.Module):
    """Means of 4 x 4 pixels, and a hidden layer: an epoch of it takes milliseconds."""

    def __init__(self, shape: tuple[int, ...] = (3, 16, 16), classes: int = 4) -> None:
        super().__init__()
        channels, height, width = shape
        self.hidden = nn.Linear(channels * (height // 4) * (width // 4), 32)
        self.head = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        means = F.avg_pool2d((images.float() - 128) / 64, 4).flatten(1)
        return self.head(F.relu(self.hidden(means)))


class NormNet(nn.Module):
    """One convolution with batch norm, and a layer that knows places."""

    def __init__(self, classes: int = 4, side: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, 2, 1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * (side // 4) ** 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = (images.to(self.head.weight.dtype) - 100) / 60
        x = F.avg_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(x.flatten(1))


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The network that `make` gives, with weights by the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed % 2**63)
        return make()


def make_world(
    pretrain: Labelled,
    validation: Labelled,
    *,
    search: Labelled | None = None,
    model: Callable[[], nn.Module] = Net,
    space: Space = CIFAR,
    seed: int = 0,
    epochs: int = 4,
    batch: int = 64,
    lr: float = 0.05,
    **changes: Any,
) -> World:
    """A world of (images, labels) pairs on the CPU, without default augmentation.

    Args:
        model: Makes the network, with fresh weights of torch's generator.
        changes: Other fields of `World`, or of the settings of its trainings.
    """
    train = TrainConfig(epochs=epochs, batch=batch, lr=lr)
    names = {field.name for field in fields(TrainConfig)}
    own = {name: changes.pop(name) for name in list(changes) if name in names}
    world = World(
        pretrain=Part(*pretrain),
        search=Part(*(validation if search is None else search)),
        validation=Part(*validation),
        classes=int(torch.cat((pretrain[1], validation[1])).max()) + 1,
        space=space,
        excludes=lambda row: False,
        defaults=Policy(space),
        make_model=lambda number: seeded(model, number),
        train=replace(train, **own),
        device=torch.device("cpu"),
        seed=seed,
        pause=lambda: None,
    )
    return world._replace(**changes)
