"""Small worlds for search methods: images, a network, a space and a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from deepaa import CIFAR, Policy
from deepaa.ops import Space
from deepaa.search.methods import Part, World
from deepaa.train import TrainConfig

Labelled = tuple[Tensor, Tensor]
"""Images and labels."""


class TinyNet(nn.Module):
    """One convolution with batch norm, and a layer that knows places."""

    def __init__(self, seed: int = 0, classes: int = 4, side: int = 16) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed % 2**63)
            self.conv = nn.Conv2d(3, 6, 3, 2, 1)
            self.norm = nn.BatchNorm2d(6)
            self.head = nn.Linear(6 * (side // 4) ** 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = (images.to(self.head.weight.dtype) - 100) / 60
        x = nn.functional.avg_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(x.flatten(1))


def make_world(
    pretrain: Labelled,
    validation: Labelled,
    *,
    search: Labelled | None = None,
    model: Callable[[int], nn.Module] | None = None,
    space: Space = CIFAR,
    seed: int = 0,
    epochs: int = 4,
    batch: int = 32,
    lr: float = 0.1,
    **changes: Any,
) -> World:
    """A world of these images on the CPU, without default augmentation unless that is given.

    Args:
        model: A network for a seed.
        changes: Of other fields of `World`, or of the settings of its trainings.
    """
    train = TrainConfig(epochs=epochs, batch=batch, lr=lr)
    own = {name: changes.pop(name) for name in list(changes) if name in World._fields}
    labels = torch.cat((pretrain[1], validation[1]))
    world = World(
        pretrain=Part(*pretrain),
        search=Part(*(pretrain if search is None else search)),
        validation=Part(*validation),
        classes=int(labels.max()) + 1,
        space=space,
        excludes=lambda row: False,
        defaults=Policy(space),
        make_model=TinyNet if model is None else model,
        train=replace(train, **changes),
        device=torch.device("cpu"),
        seed=seed,
        pause=lambda: None,
    )
    return world._replace(**own)
