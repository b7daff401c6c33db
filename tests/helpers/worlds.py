"""Small worlds in which search methods are tested: images, a network and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from blobs import Net
from torch import Tensor, nn

from deepaa import CIFAR
from deepaa.ops import Space
from deepaa.policy import default_policy
from deepaa.search.methods import Part, World
from deepaa.train import TrainConfig

Labelled = tuple[Tensor, Tensor]


def make_world(
    pretrain: Labelled,
    validation: Labelled,
    *,
    search: Labelled | None = None,
    model: Callable[[], nn.Module] | None = None,
    space: Space = CIFAR,
    seed: int = 0,
    epochs: int = 4,
    batch: int = 64,
    lr: float = 0.05,
    **changes: Any,
) -> World:
    """A world of (images, labels) pairs on the CPU; crop, flip and cutout are left out.

    Args:
        model: Makes the network, with fresh weights of torch's generator; None for a small one.
        changes: Other fields of `World`.
    """
    make = Net if model is None else model

    def fresh(number: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(number % 2**63)
            return make()

    world = World(
        pretrain=Part(*pretrain),
        search=Part(*(validation if search is None else search)),
        validation=Part(*validation),
        classes=int(pretrain[1].max()) + 1,
        space=space,
        excludes=lambda row: False,
        defaults=default_policy("cifar").without(lambda row: True),
        make_model=fresh,
        train=TrainConfig(epochs=epochs, batch=batch, lr=lr),
        device=torch.device("cpu"),
        seed=seed,
        pause=lambda: None,
    )
    return world._replace(**changes)
