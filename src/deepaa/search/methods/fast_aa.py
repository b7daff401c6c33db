"""Fast AutoAugment: sub-policies under which held-out images stay recognisable.

Lim et al., Fast AutoAugment, NeurIPS 2019. Networks are trained once, without a policy, each on
some of the images; policies are then judged by how the networks do on the augmented others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.data import folds
from deepaa.policy import Policy
from deepaa.runs import part_of
from deepaa.search.methods.fast_aa_settings import FastAutoAugmentConfig
from deepaa.search.methods.level_space import LevelSpace, Slot
from deepaa.search.methods.recognition import DRAWS, Recogniser, Score, score_of
from deepaa.search.methods.searcher import (
    Forecast,
    Needs,
    Part,
    Passes,
    Searcher,
    TrialRecord,
    World,
    seed_for,
)
from deepaa.search.methods.sub_policy_trials import (
    PER_SLOT,
    SLOTS,
    SUB_POLICIES,
    Place,
    SubPolicy,
    Trials,
    numbers_of,
    sub_policies_of,
)
from deepaa.search.methods.tpe import TreeParzen
from deepaa.search.methods.trainings import Job, Trainings

CPU_BATCH = 160
"""On a CPU larger batches are slower, since caches do not hold them."""
FIFTHS, HELD_OUT = 5, 2
"""Two fifths of the images are held out of a fold's training."""


# Images


def pool_of(config: FastAutoAugmentConfig, world: World) -> Part:
    """The images that are divided into folds."""
    if not config.equal_data:
        return world.pretrain
    parts = world.pretrain, world.search, world.validation
    groups = [part.groups for part in parts if part.groups is not None]
    return Part(
        torch.cat([part.images for part in parts]),
        torch.cat([part.labels for part in parts]),
        torch.cat(groups) if len(groups) == len(parts) else None,
    )


def held_out(pool: Part, count: int, seed: int) -> Tensor:
    """(count, N) whether each image is held out of a fold: by class, and groups whole.

    Each fold is a random division of its own, so that they overlap.
    """
    seeds = [seed_for(seed, FastAutoAugment.method, "fold", fold) for fold in range(count)]
    return torch.stack([folds(pool.labels, pool.groups, FIFTHS, s) < HELD_OUT for s in seeds])


class FastAutoAugment(Searcher):
    """Trains a network for each fold, then looks for policies that it sees through."""

    method = "fast-aa"
    result = "chains"
    shares_work = True
    Config = FastAutoAugmentConfig
    presets: ClassVar[Mapping[str, FastAutoAugmentConfig]] = {
        "paper": FastAutoAugmentConfig(rounds=2, trials=200, keep=10, epochs=200),
        "official": FastAutoAugmentConfig(trials=200, keep=10, epochs=200, objective="any5"),
        "fast": FastAutoAugmentConfig(),
        "demo": FastAutoAugmentConfig(folds=2, trials=16, keep=2, epochs=8, startup=6),
    }
    config: FastAutoAugmentConfig

    def __init__(self, world: World, config: FastAutoAugmentConfig) -> None:
        """Nothing is trained before the iteration begins."""
        super().__init__(world, config)
        self.pool = pool_of(config, world)
        self.held = held_out(self.pool, config.folds, world.seed)
        """(folds, N) whether each image is held out."""
        self.space = LevelSpace.of(world.space, world.excludes)
        slots = SUB_POLICIES * SLOTS
        self.tpe = TreeParzen(
            choices=slots,
            options=len(self.space.operations),
            numbers=slots * (PER_SLOT - 1),
            startup=config.startup,
            candidates=config.candidates,
        )
        shape = config.rounds, config.folds, config.trials
        self.trials = Trials(shape, config.keep, self.tpe.options)
        self.epoch = 0
        """Epochs done."""
        self.tried = 0
        """Trials that are over."""
        self.failed = [False] * config.folds
        """The folds whose network could not be trained: they have no trials."""
        self._training: Trainings | None = None
        self._recognisers: dict[int, Recogniser] = {}  # of the folds whose network is here
        self._ahead: dict[Place, tuple[Tensor, Score]] = {}  # of trials that are not yet told
        self._behind = self._over_shared_table()

    # What it costs

    @classmethod
    def needs(cls, config: FastAutoAugmentConfig) -> Needs:
        """A network for each fold."""
        parts = ("pretrain", "search", "validation") if config.equal_data else ("pretrain",)
        return Needs(parts, config.folds)

    @classmethod
    def forecast(cls, config: FastAutoAugmentConfig, world: World) -> Forecast:
        """Every network is trained, and every trial has five draws of the held-out images."""
        pool = pool_of(config, world)
        return cls._forecast(config, world, pool, held_out(pool, config.folds, world.seed))

    @classmethod
    def _forecast(
        cls, config: FastAutoAugmentConfig, world: World, pool: Part, held: Tensor
    ) -> Forecast:
        passes = Passes()
        for mask in held[: config.folds]:
            counted = Part(pool.images[:0], pool.labels[~mask])
            training = Job(counted, None, config.epochs, 0).passes(world)
            draws = config.rounds * config.trials * DRAWS * int(mask.sum())
            passes = passes.plus(training, draws)
        return Forecast(passes, config.epochs + config.all_trials)

    @classmethod
    def scaled(
        cls, config: FastAutoAugmentConfig, world: World, budget: int
    ) -> FastAutoAugmentConfig:
        """As many trials and epochs as the budget pays for, then fewer rounds and folds."""
        pool = pool_of(config, world)
        held, cost = held_out(pool, config.folds, world.seed), 0
        for smaller in config.smaller():
            cost = cls._forecast(smaller, world, pool, held).passes.cost
            if cost <= budget:
                return smaller
        raise ValueError(f"{cls.method} takes {cost:,} passes at least, the budget is {budget:,}")

    # The policy

    @property
    def policy(self) -> Policy:
        """The sub-policies of the best trials so far, equally likely; random ones at the start."""
        found = self.trials.kept() or self._prior()
        rows, chains = self.space.table.rows, self.space.chains(found)
        pairs = [
            ([(rows[row], gate) for row, gate in slots], weight) for slots, weight in chains.pairs()
        ]
        whole = self.whole(Policy.of_chains({0: pairs}).symmetric())
        schedule = [(phase.epoch, phase.stages) for phase in whole.phases]
        return Policy(whole.table, schedule=schedule, info=self._info(found))

    def _prior(self) -> list[SubPolicy]:
        """As many random sub-policies as one fold gives."""
        place = self.method, "prior"
        drawn = [
            self.tpe.random(seed_for(self.world.seed, *place, number))
            for number in range(self.config.keep)
        ]
        return [each for values in drawn for each in sub_policies_of(numbers_of(values))]

    def _info(self, found: Sequence[SubPolicy]) -> dict[str, str]:
        """What stands in the file beside the sub-policies."""
        gates = torch.tensor([[slot.gate for slot in each] for each in found])
        info = {
            "method": self.method,
            "objective": self.config.objective,
            "sampler": self.config.sampler,
            "sub-policies": str(len(found)),
            "mean gate": f"{gates.mean().item():.3f}",
            "both gates closed": f"{(1 - gates).prod(1).mean().item():.3f}",
        }
        searches = [self.trials.is_saturated(t, k) for t, k in self.trials.searches]
        if count := sum(searches):
            info["saturated"] = (
                f"in {count} of {len(searches)} searches the best trials differ by less than their "
                "standard error: luck chose among them"
            )
        return info

    # Running

    @property
    def done(self) -> bool:
        """Whether every trial is over."""
        return self.epoch == self.config.epochs and self.tried == self.config.all_trials

    def __iter__(self) -> Iterator[TrialRecord]:
        """Train the networks, a record for each epoch; then try policies, a record for each."""
        while self.epoch < self.config.epochs:
            yield self._train_epoch()
        while not self.done:
            yield self._try_one()

    def _train_epoch(self) -> TrialRecord:
        began = time.perf_counter()
        if self._training is None:
            self._training = self._fresh_training()
        records = self._training.train_epoch()
        self.failed = list(self._training.failed)
        if all(self.failed):
            raise FloatingPointError(
                f"{self.method}: the loss of each of the {self.config.folds} networks is not a "
                f"number; lower lr ({self.world.train.lr}) or look at the images"
            )
        self.epoch += 1
        losses = [each.loss for each in records if each]
        self.passes = self.passes.plus(sum(each.images for each in records if each))
        if self.epoch == self.config.epochs:
            trained = self._training.each.items()
            self._recognise({fold: each.model for fold, each in trained if not self.failed[fold]})
            self._training = None
            self._skip_failed()
        summary = f"{len(losses)} networks, loss {sum(losses) / len(losses):.3f}"
        return self._record("epoch", None, summary, began)

    def _fresh_training(self) -> Trainings:
        """The networks of all folds, with fresh weights."""
        jobs = []
        for fold, mask in enumerate(self.held):
            part = Part(self.pool.images[~mask], self.pool.labels[~mask])
            jobs.append(Job(part, self.world.defaults, self.config.epochs, self._seed(fold)))
        return Trainings(self.world, jobs)

    def _seed(self, fold: int) -> int:
        return seed_for(self.world.seed, self.method, "network", fold)

    def _recognise(self, networks: Mapping[int, nn.Module]) -> None:
        """Have the network of each fold judge the images that were held out of its training."""
        device = self.world.device
        images, labels = self.pool.images.to(device), self.pool.labels.to(device)
        batch = min(self.config.batch, CPU_BATCH) if device.type == "cpu" else self.config.batch
        self._recognisers = {}
        for fold, network in networks.items():
            mine = self.held[fold].to(device)
            self._recognisers[fold] = Recogniser(network.eval(), images[mine], labels[mine], batch)

    def _skip_failed(self) -> None:
        """Leave out the trials of folds without a network."""
        place, last = self.trials.place, self.config.all_trials
        while self.tried < last and self.failed[place(self.tried).fold]:
            self.tried += 1

    def _try_one(self) -> TrialRecord:
        began, place = time.perf_counter(), self.trials.place(self.tried)
        if place not in self._ahead:
            self._ahead = self._tried_at_once(place)
        numbers, score = self._ahead.pop(place)
        self.passes = self.passes.plus(forward=DRAWS * int(self.held[place.fold].sum()))
        self.trials.add(place, numbers, score)
        self.tried += 1
        self._skip_failed()
        t, k, b = place
        summary = f"round {t + 1}, fold {k + 1}, trial {b + 1}"
        if b == self.config.trials - 1 and self.trials.is_saturated(t, k):
            summary += f": the best {self.config.keep} differ by less than their standard error"
        return self._record("trial", score, summary, began)

    def _tried_at_once(self, place: Place) -> dict[Place, tuple[Tensor, Score]]:
        """The trial at `place`; with several processes also those that follow it on other folds.

        Folds know nothing of each other, so each process tries on its own.
        """
        last = place.fold if distributed.world_size() == 1 else self.config.folds - 1
        places = [place._replace(fold=fold) for fold in range(place.fold, last + 1)]

        def measured() -> dict[Place, tuple[Tensor, Score]]:
            mine = [each for each in places if each.fold in self._recognisers]
            asked = {each: self._ask(each) for each in mine}
            return {each: (asked[each], self._measure(each, asked[each])) for each in mine}

        return distributed.all_parts(measured)

    def _ask(self, place: Place) -> Tensor:
        """The (30,) numbers to try."""
        seed = seed_for(self.world.seed, self.method, "ask", *place)
        if self.config.sampler == "random":
            return numbers_of(self.tpe.random(seed))
        return numbers_of(self.tpe.ask(*self.trials.before(place), seed))

    def _measure(self, place: Place, numbers: Tensor) -> Score:
        """How well the network of a fold sees through a policy."""
        judge = self._recognisers[place.fold]
        luck = (place.round, place.fold) if self.config.common_noise else place
        seed = seed_for(self.world.seed, self.method, "noise", *luck)
        outcomes = judge.outcomes(
            self.trial_policy(sub_policies_of(numbers)), seed, self.world.pause
        )
        return score_of(outcomes, self.config.objective)

    def _over_shared_table(self) -> Policy:
        """The defaults alone, over the table that all trials share."""
        mirrored = self.space.policy([[Slot(0, 0.0, 0.0)] * SLOTS]).table
        behind = Policy(mirrored).then(self.world.defaults)
        assert behind.table.rows[: len(self.space.table)] == self.space.table.rows
        self._twins = torch.tensor(behind.table.twins)
        return behind

    def trial_policy(self, sub_policies: Sequence[SubPolicy]) -> Policy:
        """Sub-policies with the defaults, over the table that all trials share."""
        chains = self.space.chains(sub_policies).symmetric(self._twins)
        stages = self.in_order([chains], self._behind.phase(0).stages)
        return Policy(self._behind.table, stages)

    def _record(self, unit: str, score: Score | None, summary: str, began: float) -> TrialRecord:
        is_valid = score is not None and math.isfinite(score.value)
        return TrialRecord(
            unit=unit,
            index=self.epoch + self.tried,
            of=self.config.epochs + self.config.all_trials,
            score=score.value if score is not None and is_valid else None,
            best=self.trials.best,
            score_error=score.error if score is not None and is_valid else None,
            summary=summary,
            passes=self.passes.cost,
            seconds=time.perf_counter() - began,
        )

    # Saving

    def state(self) -> dict[str, Tensor]:
        """The trials, and the networks: with their momentum while they are trained."""
        state = {
            **self.trials.state(),
            "failed": torch.tensor(self.failed),
            "counts": torch.tensor([self.epoch, self.tried, *self.passes]),
        }
        if self._training is not None:
            state |= {f"at.{name}": value for name, value in self._training.state().items()}
        for fold, judge in self._recognisers.items():
            weights = judge.network.state_dict()
            state |= {f"network.{fold}.{name}": w.clone() for name, w in weights.items()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; ValueError or LookupError if it is none of this search."""
        failed = state["failed"]
        if failed.shape != (self.config.folds,) or failed.dtype != torch.bool:
            raise ValueError(f"failed should be {self.config.folds} truth values")
        epoch, tried, *passes = self._checked_counts(state["counts"])
        self.trials.load_state(state)
        self.failed = failed.tolist()
        self._training, self._recognisers, self._ahead = None, {}, {}
        if epoch == self.config.epochs:
            self._recognise(self._loaded_networks(state))
        elif epoch:
            self._training = self._fresh_training()
            self._training.load_state(part_of(state, "at."))
        self.epoch, self.tried, self.passes = epoch, tried, Passes(*passes)

    def _checked_counts(self, counts: Tensor) -> list[int]:
        """Epochs, trials and passes, if they can be of this search."""
        config, size = self.config, 2 + len(Passes._fields)
        if counts.shape != (size,) or counts.dtype != torch.int64:
            raise ValueError(f"counts should be {size} whole numbers")
        epoch, tried, *passes = counts.tolist()
        most = config.all_trials if epoch == config.epochs else 0
        if not (0 <= epoch <= config.epochs and 0 <= tried <= most):
            raise ValueError(f"trial {tried} after epoch {epoch} is none of this search")
        return [epoch, tried, *passes]

    def _loaded_networks(self, state: Mapping[str, Tensor]) -> dict[int, nn.Module]:
        """The networks of this process that were trained, with the weights of a state."""
        networks = {}
        for fold, failed in enumerate(self.failed):
            if failed or not distributed.is_mine(fold):
                continue
            network = self.world.make_model(self._seed(fold))
            if self.world.train.channels_last:  # as the training has it
                network.to(memory_format=torch.channels_last)
            weights = part_of(state, f"network.{fold}.")
            try:
                network.load_state_dict(weights)
            except RuntimeError as error:
                line = str(error).splitlines()[-1].strip()
                raise ValueError(f"the network of fold {fold + 1}: {line}") from None
            networks[fold] = network
        return networks
