"""Population Based Augmentation: networks that copy the best of them while their policies drift."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from deepaa.policy import SCHEDULE_EPOCHS, Policy
from deepaa.runs import part_of
from deepaa.search.methods.pba_numbers import (
    METHOD,
    Choices,
    Numbers,
    Population,
    drifted_schedule as drifted_schedule,
)
from deepaa.search.methods.searcher import (
    MOST_EPOCHS,
    Forecast,
    MethodConfig,
    Needs,
    Part,
    Passes,
    Searcher,
    TrialRecord,
    World,
    check_counts,
    seed_for,
)
from deepaa.search.methods.trainings import Job, Trainings
from deepaa.train import ImageBatches, ended_policy


@dataclass(frozen=True)
class PopulationConfig(MethodConfig):
    """The population, and how often it is sorted."""

    population: int = 8
    """Networks that train side by side."""
    interval: int = 2
    """Epochs between two times at which the worst quarter is replaced."""
    epochs: int = 60
    """Of every network; a training stretches the schedule to its own."""
    validation: int = 5000
    """Validation images at most, which are looked at by each network after each epoch; 0: all."""

    def __post_init__(self) -> None:
        """Refuse values without meaning."""
        super().__post_init__()
        check_counts(
            self,
            population=(2, 1_000),
            interval=(1, MOST_EPOCHS),
            epochs=(1, MOST_EPOCHS),
            validation=(0, sys.maxsize),
        )

    @property
    def rounds(self) -> Sequence[int]:
        """The epochs after which the worst are replaced; not the last, which nothing follows."""
        return range(self.interval, self.epochs, self.interval)


class PopulationBased(Searcher):
    """Trains a population whose policies drift, and takes the history of its best member.

    All networks see the images in the same order with the same random numbers, so a copy differs
    from its source by its policy alone.
    """

    method = METHOD
    result = "schedule"
    shares_work = True
    Config = PopulationConfig
    presets: ClassVar[Mapping[str, PopulationConfig]] = {
        "paper": PopulationConfig(population=16, interval=3, epochs=200, validation=0),
        "fast": PopulationConfig(),
        "demo": PopulationConfig(population=4, interval=1, epochs=8, validation=500),
    }
    least_members, least_rounds = 4, 3
    """Fewer select nothing."""
    config: PopulationConfig

    def __init__(self, world: World, config: PopulationConfig) -> None:
        """Nothing is trained before the iteration begins."""
        super().__init__(world, config)
        self.choices = Choices.of(world)
        self.population = Population(config.population, self.choices.count, world.seed)
        self.scores = torch.full((config.population,), math.nan, dtype=torch.float64)
        """(P,) the accuracy of each member after the last epoch; NaN for one that failed."""
        self.best: float | None = None
        self.epoch = 0
        """Epochs done."""
        self._trainings: Trainings | None = None
        behind = Policy(self.choices.table).then(self.world.defaults)
        self._table, self._defaults = behind.table, behind.phase(0).stages
        self._validation = _some(world.validation, config.validation, world.seed)

    # What it costs

    @classmethod
    def needs(cls, config: PopulationConfig) -> Needs:
        """Networks of the first part, measured on the validation part."""
        return Needs(("pretrain", "validation"), config.population, config.validation or None)

    @classmethod
    def forecast(cls, config: PopulationConfig, world: World) -> Forecast:
        """Every member trains and is measured in every epoch."""
        training = Job(world.pretrain, None, config.epochs, 0).passes(world)
        count = world.validation.count
        forward = config.epochs * (min(count, config.validation) if config.validation else count)
        passes = Passes(config.population * training, config.population * forward)
        return Forecast(passes, config.epochs)

    @classmethod
    def scaled(cls, config: PopulationConfig, world: World, budget: int) -> PopulationConfig:
        """As many epochs as the budget pays for; if those are too few, fewer members as well."""
        least = min(config.epochs, cls.least_rounds * config.interval + 1)
        members = [config.population]
        while members[-1] > cls.least_members:
            members.append(max(cls.least_members, members[-1] // 2))
        smaller = config
        for population in members:
            for epochs in range(config.epochs, least - 1, -1):
                smaller = replace(config, population=population, epochs=epochs)
                if cls.forecast(smaller, world).passes.cost <= budget:
                    return smaller
        floor = cls.forecast(smaller, world).passes.cost
        raise ValueError(
            f"{cls.method} takes {floor:,} passes at least ({smaller.population} networks, "
            f"{smaller.epochs} epochs), the budget is {budget:,}"
        )

    # Running

    @property
    def done(self) -> bool:
        """Whether every epoch is over."""
        return self.epoch == self.config.epochs

    @property
    def leader(self) -> int:
        """The best member after the last epoch; of equals the first."""
        return int(self.scores.nan_to_num(nan=-math.inf).argmax())

    @property
    def info(self) -> dict[str, str]:
        """How many epochs the schedule is for."""
        return {SCHEDULE_EPOCHS: str(self.config.epochs)}

    @property
    def policy(self) -> Policy:
        """The best member's line of descent as a schedule, with the defaults in each phase."""
        phases = self.population.line(self.leader)
        found = self.whole(self.choices.schedule(phases, self.config.epochs))
        schedule = [(phase.epoch, phase.stages) for phase in found.phases]
        return Policy(found.table, schedule=schedule, info=self.info)

    def __iter__(self) -> Iterator[TrialRecord]:
        """Train epoch after epoch; a record for each."""
        while not self.done:
            began = time.perf_counter()
            if self._trainings is None:
                self._trainings = self._start()
            records = self._trainings.train_epoch()
            self.passes = self.passes.plus(sum(each.images for each in records if each))
            self._measure(self._trainings)
            self.epoch += 1
            score, copies = float(self.scores[self.leader]), 0
            if self.epoch in self.config.rounds:
                copies = self._replace_worst(self._trainings)
            yield self._record(score, copies, time.perf_counter() - began)

    def _start(self) -> Trainings:
        """Networks with weights of their own that share everything else."""
        seed = seed_for(self.world.seed, self.method, "training")
        policy = self._member_policy((0,) * self.choices.count)
        jobs = [
            Job(self.world.pretrain, policy, self.config.epochs, seed, weights)
            for weights in (
                seed_for(self.world.seed, self.method, "weights", member)
                for member in range(self.config.population)
            )
        ]
        return Trainings(self.world, jobs)

    def _member_policy(self, numbers: Numbers) -> Policy:
        """What a member trains with; all of them share one table."""
        return Policy(self._table, self.in_order([self.choices.chains(numbers)], self._defaults))

    def _measure(self, trainings: Trainings) -> None:
        """Judge every network by the validation images, as they are."""
        found = trainings.accuracies(self._validation)
        measured = [each for each in found if each is not None]
        if not measured:
            raise FloatingPointError(
                f"epoch {self.epoch + 1}: the loss of every network is not a number; lower lr "
                f"({self.world.train.lr}) or look at the images"
            )
        self.passes = self.passes.plus(forward=len(measured) * self._validation.count)
        values = [math.nan if each is None else each for each in found]
        self.scores = torch.tensor(values, dtype=torch.float64)
        self.best = max(measured) if self.best is None else max(self.best, *measured)

    def _replace_worst(self, trainings: Trainings) -> int:
        """The worst get weights, momentum and explored numbers of the best; how many there are."""
        updates = self.population.step(self.scores.tolist(), self.epoch)
        trainings.copy({update.member: update.source for update in updates})
        for update in updates:
            self._give_policy(trainings, update.member, update.new)
        return len(updates)

    def _give_policy(self, trainings: Trainings, member: int, numbers: Numbers) -> None:
        """Let a member train with these numbers from now on."""
        if member not in trainings.each:  # another process trains it
            return
        batches = trainings.each[member].batches
        assert isinstance(batches, ImageBatches)
        policy = self._member_policy(numbers)
        batches.policy = ended_policy(policy, batches.config, batches.image_shape)

    def _record(self, score: float, copies: int, seconds: float) -> TrialRecord:
        count = self._validation.count
        done = f"{copies} of {self.config.population} replaced" if copies else "trained"
        phases = len(self.population.line(self.leader))
        return TrialRecord(
            unit="epoch",
            index=self.epoch,
            of=self.config.epochs,
            score=score,
            best=self.best,
            score_error=math.sqrt(score * (1 - score) / count),
            summary=f"{done}; phases of the best: {phases}",
            passes=self.passes.cost,
            seconds=seconds,
        )

    # Saving

    def state(self) -> dict[str, Tensor]:
        """The networks, their numbers and scores, and who copied whom."""
        best = math.nan if self.best is None else self.best
        state = {
            "scores": self.scores.clone(),
            "best": torch.tensor(best, dtype=torch.float64),
            "counts": torch.tensor([self.epoch, *self.passes]),
            **self.population.state(),
        }
        if self._trainings is not None:
            state |= {f"at.{name}": value for name, value in self._trainings.state().items()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; ValueError or LookupError if it is none of this search."""
        scores, best, counts = state["scores"], state["best"], state["counts"]
        if scores.shape != self.scores.shape or scores.dtype != torch.float64:
            raise ValueError(f"scores should be {len(self.scores)} numbers")
        whole = counts.dtype == torch.int64 and counts.shape == (1 + len(self.passes),)
        if best.shape != () or not whole:
            raise ValueError("the state's best score or its counts have another shape")
        epoch, *passes = counts.tolist()
        if not 0 <= epoch <= self.config.epochs or min(passes) < 0:
            raise ValueError(f"epoch {epoch} is none of a search of {self.config.epochs}")
        population = Population(self.config.population, self.choices.count, self.world.seed)
        population.load_state(state)
        past = {each for each in self.config.rounds if each <= epoch}
        if strange := {each.epoch for each in population.log} - past:
            raise ValueError(f"the log has a round after epoch {min(strange)} of {epoch}")
        trainings = None
        if epoch:
            trainings = self._start()
            trainings.load_state(part_of(state, "at."))
            for member, numbers in enumerate(population.numbers):
                self._give_policy(trainings, member, numbers)
                own = trainings.each.get(member)
                if own is not None and not trainings.failed[member] and own.epoch != epoch:
                    raise ValueError(f"member {member} is not at epoch {epoch}")
        self.population, self._trainings = population, trainings
        self.scores, self.epoch, self.passes = scores.cpu().clone(), epoch, Passes(*passes)
        self.best = None if math.isnan(best) else float(best)


def _some(part: Part, most: int, seed: int) -> Part:
    """At most so many images of a part, drawn once; 0 for all."""
    if not most or most >= part.count:
        return part
    generator = torch.Generator().manual_seed(seed_for(seed, METHOD, "validation"))
    rows = torch.randperm(part.count, generator=generator)[:most].sort().values
    return Part(part.images[rows], part.labels[rows])
