"""Networks that are trained side by side for a search method, resumable after every epoch.

Under torchrun each process trains some of them, and all know how each of them does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa import distributed
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
        self.each = {
            place: self._training(job)
            for place, job in enumerate(jobs)
            if distributed.is_mine(place)
        }
        """Those of this process, by the place of their job."""
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

    def train_epoch(self) -> list[EpochRecord | None]:
        """One more epoch of each network; None for those that failed or have no epoch left."""
        found = distributed.all_parts(self._train_own)
        for place, outcome in found.items():
            self.failed[place] = outcome is None
        return [found.get(place) for place in range(len(self.jobs))]

    def _train_own(self) -> dict[int, EpochRecord | None]:
        """By place, for the networks of this process that have an epoch left; None: it failed."""
        places = [place for place in self.each if not self.failed[place]]
        outcomes = next(train_together([self.each[place] for place in places]), [])
        return {
            place: outcome if isinstance(outcome, EpochRecord) else None
            for place, outcome in zip(places, outcomes, strict=bool(outcomes))
            if outcome is not None
        }

    def accuracies(self, part: Part) -> list[float | None]:
        """The share of a part's images that each network classifies right; None if it failed."""
        found = distributed.all_parts(lambda: self._accuracies_of_own(part))
        return [found.get(place) for place in range(len(self.jobs))]

    def _accuracies_of_own(self, part: Part) -> dict[int, float]:
        found = {}
        for place, each in self.each.items():
            if not self.failed[place]:
                self.world.pause()
                _, right = image_outcomes(each.model, part.images, part.labels)
                found[place] = right.double().mean().item()
        return found

    def copy(self, sources: Mapping[int, int]) -> None:
        """Give networks the weights and the momentum of others: by place, the place of its source.

        No source may be a copy itself.
        """
        states = self._states({*sources.values()})
        for place, source in sources.items():
            if place in self.each:
                self.each[place].load_state(states[source])
            self.failed[place] = False

    def _states(self, places: set[int]) -> Mapping[int, Mapping[str, Tensor]]:
        """The states of some networks, whichever process has them."""
        own = {place: self.each[place].state() for place in places if place in self.each}
        if distributed.world_size() == 1:
            return own
        return distributed.all_parts(
            lambda: {place: {k: v.cpu() for k, v in state.items()} for place, state in own.items()}
        )

    # Saving

    def state(self) -> dict[str, Tensor]:
        """Weights and momentum of each own network that has not failed, and which have."""
        state = {"failed": torch.tensor(self.failed)}
        for place, each in self.each.items():
            if not self.failed[place]:
                state |= {f"{place}.{name}": value for name, value in each.state().items()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        failed = state["failed"]
        if failed.shape != (len(self.jobs),) or failed.dtype != torch.bool:
            raise ValueError(f"failed should be {len(self.jobs)} truth values")
        self.failed = failed.tolist()
        for place, each in self.each.items():
            if not self.failed[place]:
                each.load_state(part_of(dict(state), f"{place}."))
