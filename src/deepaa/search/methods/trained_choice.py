"""Methods that train a network with each of several policies and take one by validation images."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deepaa.policy import Policy, fitted_schedule
from deepaa.runs import part_of
from deepaa.search.methods.searcher import (
    MOST_EPOCHS,
    Forecast,
    MethodConfig,
    Needs,
    Passes,
    Searcher,
    TrialRecord,
    World,
    check_counts,
    seed_for,
)
from deepaa.search.methods.trainings import Job, Trainings


@dataclass(frozen=True)
class TrainedChoiceConfig(MethodConfig):
    """How the network of each policy is trained."""

    epochs: int = 40
    """Of every training: a whole schedule from fresh weights."""
    repeats: int = 1
    """Trainings of each policy, with different seeds; their mean is its score."""
    parallel: int = 4
    """Networks that train side by side."""

    def __post_init__(self) -> None:
        """Refuse values without meaning."""
        super().__post_init__()
        check_counts(self, epochs=(1, MOST_EPOCHS), repeats=(1, 1_000), parallel=(1, 1_000))


class TrainedChoice(Searcher):
    """Trains with each policy from scratch; all share seeds, so that luck is the same for each."""

    shares_work = True
    least_epochs = 4
    """Shorter trainings say nothing about a policy."""

    def __init__(self, world: World, config: Any) -> None:
        """Nothing is trained before the iteration begins."""
        super().__init__(world, config)
        self.policies = self.candidates(config, self.world)
        count = len(self.policies) * config.repeats
        self.scores = torch.full((count,), math.nan, dtype=torch.float64)
        """(P repeats,) the accuracy of each training, one policy after the other."""
        self.trained = 0
        """Trainings that are over."""
        self.epoch = 0
        """Epochs done by those that are not."""
        self._running: Trainings | None = None

    # What a method says

    @classmethod
    @abstractmethod
    def candidates(cls, config: Any, world: World) -> list[Policy]:
        """The policies to train with, without the defaults."""

    @abstractmethod
    def pick(self, scores: Sequence[float], error: float) -> int:
        """Which policy is taken, by the scores (-inf for a failure) and the error of the best."""

    @abstractmethod
    def describe(self, policy: int) -> str:
        """What a policy is called in records."""

    # What it costs

    @classmethod
    def needs(cls, config: Any) -> Needs:
        """Networks of the first part, measured on the validation part."""
        return Needs(("pretrain", "validation"), cls.count(config) * config.repeats)

    @classmethod
    @abstractmethod
    def count(cls, config: Any) -> int:
        """How many policies there are."""

    @classmethod
    def forecast(cls, config: Any, world: World) -> Forecast:
        """Every policy is trained with, and measured once."""
        if cls.count(config) == 1:  # nothing to choose
            return Forecast(Passes(), 0)
        jobs = cls.count(config) * config.repeats
        each = Job(world.pretrain, None, config.epochs, 0).passes(world)
        passes = Passes(training=jobs * each, forward=jobs * world.validation.count)
        return Forecast(passes, math.ceil(jobs / config.parallel) * config.epochs)

    @classmethod
    def scaled(cls, config: Any, world: World, budget: int) -> Any:
        """As many epochs as the budget pays for."""
        cost = 0
        for epochs in range(config.epochs, min(config.epochs, cls.least_epochs) - 1, -1):
            smaller = replace(config, epochs=epochs)
            cost = cls.forecast(smaller, world).passes.cost
            if cost <= budget:
                return smaller
        raise ValueError(f"{cls.method} takes {cost:,} passes at least, the budget is {budget:,}")

    # Running

    @property
    def done(self) -> bool:
        """Whether every training is over; of one policy none is needed."""
        return self.trained == len(self.scores) or len(self.policies) == 1

    @property
    def policy(self) -> Policy:
        """The policy that is taken by the scores so far, with the defaults."""
        found = self.taken
        return self.whole(self.policies[0 if found is None else found])

    @property
    def taken(self) -> int | None:
        """Which policy is taken; None while none was measured."""
        means = self._means()
        best = max(means)
        return None if best == -math.inf else self.pick(means, self._error(best))

    @property
    def info(self) -> dict[str, str]:
        """What the policy that is taken says of itself."""
        found = self.taken
        return self.policies[0 if found is None else found].info

    def _means(self) -> list[float]:
        """The mean score of each policy; -inf while one of its trainings is missing or failed."""
        table = self.scores.view(len(self.policies), -1)
        return table.mean(1).nan_to_num(nan=-math.inf).tolist()

    def _error(self, accuracy: float) -> float:
        """The standard error of an accuracy on the validation images."""
        return math.sqrt(accuracy * (1 - accuracy) / self.world.validation.count)

    def __iter__(self) -> Iterator[TrialRecord]:
        """Train group after group; a record for each epoch."""
        while not self.done:
            if self._running is None:
                self._running = self._group()
            began = time.perf_counter()
            records = self._running.train_epoch()
            self.epoch += 1
            self.passes = self.passes.plus(sum(each.images for each in records if each))
            is_last = self.epoch == self.config.epochs
            group = range(self.trained, self.trained + len(self._running.jobs))
            score = self._measure(group) if is_last else None
            yield self._record(group, score, time.perf_counter() - began)

    def _group(self) -> Trainings:
        """The next networks that train side by side."""
        last = min(len(self.scores), self.trained + self.config.parallel)
        jobs = []
        for number in range(self.trained, last):
            policy, repeat = divmod(number, self.config.repeats)
            seed = seed_for(self.world.seed, self.method, "training", repeat)
            fitted = fitted_schedule(self.policies[policy], self.config.epochs)
            jobs.append(Job(self.world.pretrain, self.whole(fitted), self.config.epochs, seed))
        return Trainings(self.world, jobs)

    def _measure(self, group: range) -> float | None:
        """Judge the networks of a group by the validation images; the best accuracy."""
        assert self._running is not None
        found = self._running.accuracies(self.world.validation)
        measured = [each for each in found if each is not None]
        self.passes = self.passes.plus(forward=len(measured) * self.world.validation.count)
        values = [math.nan if each is None else each for each in found]
        self.scores[group.start : group.stop] = torch.tensor(values, dtype=torch.float64)
        self.trained, self.epoch, self._running = group.stop, 0, None
        return max(measured, default=None)

    def _record(self, group: range, score: float | None, seconds: float) -> TrialRecord:
        config, measured = self.config, self.scores[~self.scores.isnan()]
        policies = dict.fromkeys(number // config.repeats for number in group)
        groups = self.trained // config.parallel + (self.trained % config.parallel > 0)
        return TrialRecord(
            unit="epoch",
            index=groups * config.epochs + self.epoch,
            of=self.forecast(config, self.world).units,
            score=score,
            best=measured.max().item() if len(measured) else None,
            score_error=None if score is None else self._error(score),
            summary=" to ".join(map(self.describe, sorted({min(policies), max(policies)}))),
            passes=self.passes.cost,
            seconds=seconds,
        )

    # Saving

    def state(self) -> dict[str, Tensor]:
        """The scores, and the networks at work."""
        numbers = [self.trained, self.epoch, *self.passes]
        state = {"scores": self.scores.clone(), "numbers": torch.tensor(numbers)}
        if self._running is not None:
            state |= {f"at.{name}": value for name, value in self._running.state().items()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; ValueError or LookupError if it is none of this search."""
        scores, numbers = state["scores"], state["numbers"]
        if scores.shape != self.scores.shape or scores.dtype != torch.float64:
            raise ValueError(f"scores should be {len(self.scores)} numbers")
        trained, epoch, *passes = numbers.tolist()
        if not (0 <= trained <= len(scores) and 0 <= epoch < self.config.epochs):
            raise ValueError(f"epoch {epoch} of training {trained} is none of this search")
        self.scores, self.trained, self.epoch = scores.clone(), trained, epoch
        self.passes, self._running = Passes(*passes), None
        if epoch:
            self._running = self._group()
            self._running.load_state(part_of(state, "at."))
