"""Stochastic gradient descent by torch's own kernels.

`torch.optim.SGD` does the same with them, but loads torch's compiler when it is made: two seconds
of every start.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from deepaa.train.config import TrainConfig


class Group(NamedTuple):
    """Weights with the same weight decay."""

    weights: list[nn.Parameter]
    decay: float


class Sgd:
    """SGD on all weights of a network that can be trained, its momentum starting from zero."""

    rate: float | Tensor
    """The learning rate; on CUDA a tensor, which a graph can read."""

    def __init__(self, model: nn.Module, config: TrainConfig, device: torch.device) -> None:
        """Nothing is changed before the first step."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("the model has no weights that can be trained")
        # weights of normalisation and biases are those with one dimension
        free = [p for p in trained if p.ndim <= 1 and not config.decay_norm]
        decayed = [p for p in trained if p.ndim > 1 or config.decay_norm]
        groups = Group(decayed, config.weight_decay), Group(free, 0.0)
        self.groups = [group for group in groups if group.weights]
        self.config = config
        self._fused = device.type == "cuda"  # one launch for all weights
        self.rate = float(config.lr)
        if self._fused:
            self.rate = torch.tensor(self.rate, device=device)
        # zero is what momentum would start from; so every state has the same names
        self.momentum: dict[Tensor, Tensor] = {}
        if config.momentum:
            self.momentum = {p: torch.zeros_like(p) for p in self.weights}

    @property
    def weights(self) -> list[nn.Parameter]:
        """All weights that are trained, group by group."""
        return [p for group in self.groups for p in group.weights]

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps, without waiting for the device."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    def zero_grad(self) -> None:
        """Drop all gradients, so that the next are not added to them."""
        for p in self.weights:
            p.grad = None

    def step(self) -> None:
        """Update all weights that have a gradient."""
        for weights, decay in self.groups:
            moved = [p for p in weights if p.grad is not None]
            gradients = [p.grad for p in moved if p.grad is not None]
            with torch.no_grad():
                sgd(
                    list[Tensor](moved),
                    gradients,
                    [self.momentum[p] for p in moved if p in self.momentum],
                    fused=self._fused,
                    weight_decay=decay,
                    momentum=self.config.momentum,
                    lr=self.rate,
                    dampening=0.0,
                    nesterov=self.config.nesterov,
                    maximize=False,
                )
