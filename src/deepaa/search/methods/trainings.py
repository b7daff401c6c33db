"""Networks that are trained side by side for a search method, resumable after every epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.data import batch_sizes
from deepaa.policy import Policy
from deepaa.runs import part_of
from deepaa.search.methods.searcher import Part, World
from deepaa.train import (
    EpochRecord,
    ImageBatches,
    TrainConfig,
    Training,
    image_outcomes,
    train_together,
)


class Job(NamedTuple):
    """One network to train."""

    part: Part
    policy: Policy | None
    epochs: int
    seed: int
    """Of the network's weights, the order of images and their augmentation."""
    weights: int | None = None
    """A seed of the weights alone, for networks that share the rest."""

    def config(self, world: World) -> TrainConfig:
        """The settings of the world for this job."""
        return replace(world.train.stretched(self.epochs), seed=self.seed)

    def passes(self, world: World) -> int:
        """Images through the network, forward and back."""
        config = self.config(world)
        sizes = batch_sizes(self.part.count, config.batch, config.copies)
        return self.epochs * sum(sizes) * config.copies


class Trainings:
    """Networks that train together, an epoch at a time.

    One whose loss is not a number has failed: the others go on.
    """

    def __init__(self, world: World, jobs: Sequence[Job]) -> None:
        """Make the networks, each with the seed of its job."""
        self.world, self.jobs = world, jobs
        self._on_device: dict[int, tuple[Tensor, Tensor]] = {}  # networks of a part share a copy
        self.each = [self._training(job) for job in jobs]
        self.failed = [False] * len(jobs)

    def _training(self, job: Job) -> Training:
        config, device = job.config(self.world), self.world.device
        if id(job.part) not in self._on_device:
            self._on_device[id(job.part)] = job.part.images.to(device), job.part.labels.to(device)
        images, labels = self._on_device[id(job.part)]
        batches = ImageBatches(images, labels, job.policy, config, device)
        weights = job.seed if job.weights is None else job.weights
        training = Training(self.world.make_model(weights), batches, config)
        training.before_step = self.world.pause
        return training

    @property
    def done(self) -> bool:
        """Whether every network has all its epochs, or has failed."""
        pairs = zip(self.each, self.failed, strict=True)
        return all(failed or each.epoch >= each.config.epochs for each, failed in pairs)

    def train_epoch(self) -> list[EpochRecord | None]:
        """One more epoch of each network; None for those that failed or have no epoch left."""
        places = [place for place, failed in enumerate(self.failed) if not failed]
        records: list[EpochRecord | None] = [None] * len(self.each)
        outcomes = next(train_together([self.each[place] for place in places]), [])
        for place, outcome in zip(places, outcomes, strict=bool(outcomes)):
            if isinstance(outcome, EpochRecord):
                records[place] = outcome
            elif outcome is not None:
                self.failed[place] = True
        return records

    def accuracies(self, part: Part) -> list[float | None]:
        """The share of a part's images that each network classifies right; None if it failed."""
        found: list[float | None] = []
        for each, failed in zip(self.each, self.failed, strict=True):
            if failed:
                found.append(None)
                continue
            self.world.pause()
            _, right = image_outcomes(each.model, part.images, part.labels)
            found.append(right.double().mean().item())
        return found

    # Saving

    def state(self) -> dict[str, Tensor]:
        """Weights and momentum of each network that has not failed, and which have."""
        state = {"failed": torch.tensor(self.failed)}
        for place, each in enumerate(self.each):
            if not self.failed[place]:
                state |= {f"{place}.{name}": value for name, value in each.state().items()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        failed = state["failed"]
        if failed.shape != (len(self.each),) or failed.dtype != torch.bool:
            raise ValueError(f"failed should be {len(self.each)} truth values")
        self.failed = failed.tolist()
        for place, each in enumerate(self.each):
            if not self.failed[place]:
                each.load_state(part_of(dict(state), f"{place}."))
