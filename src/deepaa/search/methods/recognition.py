"""How well a trained network recognises held-out images that a policy augments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.ops import apply_batch, sample_keys
from deepaa.policy import Policy
from deepaa.train import image_outcomes

DRAWS = 5
"""Each image is augmented so many times."""
OBJECTIVES = ("loss", "accuracy", "any5")


class Outcomes(NamedTuple):
    """What a network said to every draw of every image."""

    losses: Tensor
    """(DRAWS, N)."""
    right: Tensor
    """(DRAWS, N) whether each was classified right."""


class Score(NamedTuple):
    """How well images are recognised, larger is better."""

    value: float
    error: float
    """The standard error, over the images."""


def score_of(outcomes: Outcomes, objective: str) -> Score:
    """The score of outcomes by one of the `OBJECTIVES`.

    any5 counts the images that are right in at least one draw, accuracy the draws that are right;
    loss is the mean loss, below zero.
    """
    losses, right = outcomes
    if objective == "any5":
        values = right.any(0).double()
    elif objective == "accuracy":
        values = right.double().mean(0)
    else:
        values = -losses.double().mean(0)
    deviation = values.std().item() if len(values) > 1 else math.nan
    return Score(values.mean().item(), deviation / math.sqrt(len(values)))


class Recogniser:
    """A network, and images that it was not trained on."""

    def __init__(
        self, network: nn.Module, images: Tensor, labels: Tensor, batch: int = 1280
    ) -> None:
        """Take uint8 (N, C, H, W) and int64 (N,) on the network's device.

        Args:
            batch: Augmented images that go through the network at once; halved where the device
                has too little memory.
        """
        self.network, self.images, self.labels = network, images, labels
        self.chunk = max(1, batch // DRAWS)
        """Images whose draws go through the network at once."""

    def outcomes(
        self, policy: Policy, seed: int, pause: Callable[[], None] = lambda: None
    ) -> Outcomes:
        """What the network says to `DRAWS` draws of each image.

        Args:
            seed: Of the draws: they depend on it and the image's place, and not on the chunk.
            pause: Called before each chunk.
        """
        found, start = list[Outcomes](), 0
        while start < len(self.images):
            pause()
            some = self._attempt(policy, seed, start)
            if some is not None:
                found.append(some)
                start += some.right.shape[1]
        losses, right = zip(*found, strict=True)
        return Outcomes(torch.cat(losses, 1), torch.cat(right, 1))

    def _attempt(self, policy: Policy, seed: int, start: int) -> Outcomes | None:
        """The outcomes of one chunk; None where it was too large, and the next is smaller."""
        try:
            return self._outcomes(policy, seed, slice(start, start + self.chunk))
        except torch.OutOfMemoryError:
            if self.chunk == 1:
                raise
        # outside the except clause, so that the failed tensors are free
        self.chunk //= 2
        if self.images.is_cuda:
            torch.cuda.empty_cache()
        return None

    def _outcomes(self, policy: Policy, seed: int, part: slice) -> Outcomes:
        images, labels = self.images[part], self.labels[part].repeat(DRAWS)
        places = torch.arange(part.start, part.start + len(images), device=images.device)
        keys = torch.cat([sample_keys(seed, draw, places) for draw in range(DRAWS)])
        augmented = apply_batch(images.repeat(DRAWS, 1, 1, 1), policy.draw(keys), policy.table)
        losses, right = image_outcomes(self.network, augmented, labels, batch=len(labels))
        return Outcomes(losses.view(DRAWS, -1), right.view(DRAWS, -1))
