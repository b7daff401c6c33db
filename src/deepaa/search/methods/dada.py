"""DADA's search: pairs of operations, by what a step with them does to validation images."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from deepaa.data import batch_sizes, epoch_order, halves
from deepaa.policy import Policy
from deepaa.runs import part_of
from deepaa.search.methods.dada_config import PRESETS, DadaConfig
from deepaa.search.methods.dada_estimators import (
    Adam,
    Draws,
    Noise,
    Parameters,
    Relax,
    draw,
    reinforce,
)
from deepaa.search.methods.dada_network import LivingNetwork
from deepaa.search.methods.dada_pairs import Pairs, Place
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
from deepaa.search.methods.trainings import Job
from deepaa.train import TrainConfig

START = 1e-3
"""Of all logits."""
NAMED = 3
"""Leading pairs that a record names."""


class _Step(NamedTuple):
    """What was drawn for a step."""

    place: Place
    draws: Draws
    images: Tensor
    """The originals, on the device."""
    augmented: Tensor

    @property
    def drawn(self) -> tuple[Tensor, Tensor]:
        """The pair (N,) and the gates (N, 2) of each image."""
        n = len(self.images)
        return self.draws.pair.expand(n), self.draws.chosen.expand(n, 2)


class DifferentiableAugment(Searcher):
    """Trains one network, and moves pairs, gates and levels to where a step helps other images."""

    method = "dada"
    result = "chains"
    Config = DadaConfig
    presets: ClassVar[Mapping[str, DadaConfig]] = PRESETS
    least_epochs = 4
    """Of those that move parameters."""
    config: DadaConfig

    def __init__(self, world: World, config: DadaConfig) -> None:
        """Nothing is trained before the iteration begins."""
        super().__init__(world, config)
        self.pairs = Pairs(self.world, defaults_first=self.place == "before")
        held_out = self.division(world)
        self._train, self._validation = (
            Part(world.pretrain.images[mine], world.pretrain.labels[mine])
            for mine in (~held_out, held_out)
        )
        if min(self._train.count, self._validation.count) < 2:
            raise ValueError(
                f"{world.pretrain.count} images in {self.method}'s part leave "
                f"{self._train.count} to train on and {self._validation.count} to validate on; "
                "each half takes two at least"
            )
        count = len(self.pairs)
        self.parameters = Parameters(
            torch.full((count,), START, dtype=torch.float64),
            torch.full((count, 2), 0.5, dtype=torch.float64),
            torch.full((count, 2), config.level_start, dtype=torch.float64),
        )
        self.adam = Adam(self.parameters._asdict(), config.rate)
        seed = self._seed("control") >> 1
        options = {"temperature": config.temperature, "rate": config.rate}
        self.relax = Relax(count, **options, seed=seed) if config.estimator == "relax" else None
        self.best = -math.inf
        """The highest accuracy on the validation half so far."""
        self.left_out = 0
        """Rewards that were no numbers."""
        self._step: _Step | None = None

    def _seed(self, *place: int | str) -> int:
        return seed_for(self.world.seed, self.method, *place)

    # What it costs

    @classmethod
    def division(cls, world: World) -> Tensor:
        """Whether each image (N,) is held out for validation: half of each class, groups whole."""
        part = world.pretrain
        return halves(part.labels, part.groups, seed_for(world.seed, cls.method, "halves") >> 1)

    @classmethod
    def needs(cls, config: DadaConfig) -> Needs:
        """Both halves are of the first part."""
        return Needs(("pretrain",), 1)

    @classmethod
    def training_config(cls, config: DadaConfig, world: World) -> TrainConfig:
        """How the network is trained."""
        seed = seed_for(world.seed, cls.method, "training")
        found = Job(world.pretrain, None, config.epochs, seed).config(world)
        decay = found.weight_decay if config.weight_decay is None else config.weight_decay
        return replace(found, copies=1, end_epochs=0, weight_decay=decay)

    @classmethod
    def forecast(cls, config: DadaConfig, world: World) -> Forecast:
        """Steps with slopes and a validation gradient each, and the accuracy after each epoch."""
        held_out, batch = cls.division(world), cls.training_config(config, world).batch
        count = int(held_out.sum())
        sizes = batch_sizes(len(held_out) - count, batch)
        validation = [len(rows) for rows in _parts(torch.arange(count), batch, config)]
        searching = config.epochs - config.warmup
        asked = sum(validation[step % len(validation)] for step in range(len(sizes)))
        passes = Passes(
            training=config.epochs * sum(sizes) + searching * asked,
            forward=config.epochs * count,
            slopes=searching * sum(sizes) * config.slopes_of_an_image,
        )
        return Forecast(passes, config.epochs)

    @classmethod
    def scaled(cls, config: DadaConfig, world: World, budget: int) -> DadaConfig:
        """As many epochs as the budget pays for."""
        least = min(config.epochs, config.warmup + cls.least_epochs)
        for epochs in range(config.epochs, least - 1, -1):
            smaller = replace(config, epochs=epochs)
            if cls.forecast(smaller, world).passes.cost <= budget:
                return smaller
        cost = cls.forecast(replace(config, epochs=least), world).passes.cost
        raise ValueError(f"{cls.method} takes {cost:,} passes at least, the budget is {budget:,}")

    # Running

    @cached_property
    def network(self) -> LivingNetwork:
        """The network, whose batches are augmented as the parameters stand."""
        config = self.training_config(self.config, self.world)
        model = self.world.make_model(config.seed)
        parts = self._train, self._validation
        network = LivingNetwork(model, *parts, config, self.world.device, self._augment)
        network.training.before_step = self.world.pause
        return network

    @property
    def done(self) -> bool:
        """Whether the network has had all its epochs."""
        return self.network.epoch == self.config.epochs

    @property
    def policy(self) -> Policy:
        """The leading pairs, or all of them while nothing has been learnt; and the defaults."""
        found = self.pairs.policy(self.parameters, self.config.chains if self.adam.steps else 0)
        return self.whole(found)

    def __iter__(self) -> Iterator[TrialRecord]:
        """Train epoch after epoch; a record for each."""
        while not self.done:
            began, epoch = time.perf_counter(), self.network.epoch
            rows = 0
            for step, record in enumerate(self.network.steps()):
                if record is not None:
                    rows = record.images
                elif epoch >= self.config.warmup:
                    self._learn(epoch, step)
            accuracy = self.network.accuracy()
            self.best = max(self.best, accuracy)
            self.passes = self.passes.plus(training=rows, forward=self._validation.count)
            yield self._record(accuracy, time.perf_counter() - began)

    def _record(self, accuracy: float, seconds: float) -> TrialRecord:
        order = self.parameters.pairs.argsort(descending=True, stable=True)[:NAMED].tolist()
        left_out = f"; {self.left_out} rewards left out" if self.left_out else ""
        summary = f"mean gate {self.parameters.gates.mean():.2f}{left_out}"
        if self.adam.steps:
            summary = f"{', '.join(map(self.pairs.names, order))}; {summary}"
        return TrialRecord(
            unit="epoch",
            index=self.network.epoch,
            of=self.config.epochs,
            score=accuracy,
            best=self.best,
            score_error=math.sqrt(accuracy * (1 - accuracy) / self._validation.count),
            summary=summary,
            passes=self.passes.cost,
            seconds=seconds,
        )

    # One step

    def _noise(self, name: str, epoch: int, step: int, n: int) -> Noise:
        generator = torch.Generator().manual_seed(self._seed(name, epoch, step))
        return Noise.of(n, len(self.pairs), generator)

    def _augment(self, epoch: int, step: int, rows: Tensor) -> Tensor:
        """Draw for the images of a step, and augment them."""
        count = len(rows) if self.config.draws == "image" else 1
        draws = draw(self.parameters, self._noise("draw", epoch, step, count))
        place = Place(self._seed("augmentation"), epoch, rows)
        images = self.network.originals(rows)
        self._step = _Step(place, draws, images, images)
        pair, is_open = self._step.drawn
        chosen = self.pairs.rows(pair, is_open, self.parameters.levels[pair])
        augmented = self.pairs.augmented(images, chosen, place)
        self._step = self._step._replace(augmented=augmented)
        return augmented

    def _learn(self, epoch: int, step: int) -> None:
        """Move the parameters by what the step that was just done means for validation images."""
        assert self._step is not None
        done, validation = self._step, self._validation_rows(epoch, step)
        direction = self.network.validation_gradient(validation)
        versions, moved = [done.augmented], torch.zeros(len(done.images), 2)
        if self.config.level_gradient != "none":
            ahead_and_behind, moved = self._moved(done)
            versions += ahead_and_behind
        if self.config.paired:
            nothing = torch.zeros_like(moved, dtype=torch.int64)
            versions.append(self.pairs.augmented(done.images, nothing, done.place))
        labels = self._train.labels[done.place.images].to(self.world.device).repeat(len(versions))
        slopes = self.network.slopes(torch.cat(versions), labels, direction)
        self.passes = self.passes.plus(training=len(validation), slopes=len(slopes))
        rewards, *others = slopes.chunk(len(versions))
        if self.config.paired:
            rewards = rewards - others.pop()
        across = others[0] - others[1] if others else torch.zeros_like(rewards)
        self._move(done, rewards, across[:, None] * moved, (epoch, step))

    def _validation_rows(self, epoch: int, step: int) -> Tensor:
        """The images of the validation half that judge a step."""
        config = self.training_config(self.config, self.world)
        count = self._validation.count
        order = torch.arange(count)
        if not self.config.fixed_validation:
            order = epoch_order(count, config.batch, self._seed("validation"), epoch)
        parts = _parts(order, config.batch, self.config)
        return parts[step % len(parts)]

    def _moved(self, done: _Step) -> tuple[list[Tensor], Tensor]:
        """The images a little ahead and behind in a level, and 1 / distance for each slot (N, 2).

        One slot of an image moves, and counts as often as the image has open ones.
        """
        pair, is_open = done.drawn
        if self.config.level_gradient == "straight-through":
            wide = done.augmented.short()
            both = [(wide + by).clamp(0, 255).to(torch.uint8) for by in (1, -1)]
            return both, is_open.double() / 2
        slot, step = self.pairs.moved_slot(is_open, done.place), self.config.level_step
        levels = self.parameters.levels[pair]
        ways = [(levels + by * (slot > 0)).clamp(0, 1) for by in (step, -step)]
        both = [
            self.pairs.augmented(done.images, self.pairs.rows(pair, is_open, way), done.place)
            for way in ways
        ]
        apart = ways[0] - ways[1]
        return both, torch.where(slot > 0, slot / apart.clamp(min=1e-12), 0.0)

    def _move(self, done: _Step, rewards: Tensor, slopes: Tensor, place: tuple[int, int]) -> None:
        """One step of Adam, by rewards (N,) and their slopes in the levels (N, 2) of each image."""
        known = rewards.isfinite() & slopes.isfinite().all(1)
        self.left_out += int((~known).sum())
        if not bool(known.any()):
            epoch, step = place
            raise FloatingPointError(
                f"{self.method}, epoch {epoch + 1}, step {step + 1}: no reward is a number; lower "
                f"lr ({self.world.train.lr}) or look at the images"
            )
        pair, _ = done.drawn
        levels = torch.zeros_like(self.parameters.levels)
        levels.index_add_(0, pair[known], slopes[known] / known.sum())
        draws, rewards = done.draws, rewards[known]
        if self.config.draws == "image":
            draws = draws.part(known)
        else:
            rewards = rewards.mean().view(1)
        pairs, gates = (part.mean(0) for part in self._gradients(draws, rewards, known, place))
        if self.config.summed_score:
            pairs = pairs * gates.numel()
        uphill = Parameters(pairs, gates, levels)
        moved = self.adam.step(self.parameters._asdict(), uphill._asdict())
        self.parameters = Parameters(**moved).within_bounds()

    def _gradients(
        self, draws: Draws, rewards: Tensor, known: Tensor, place: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Of the expected reward in pairs and gates, one for each draw."""
        config = self.config
        if self.relax is None:
            return reinforce(
                self.parameters,
                draws,
                rewards,
                leave_one_out=config.estimator == "leave-one-out",
                all_gates=config.all_gates,
            )
        fresh = self._noise("fresh", *place, len(rewards))
        return self.relax.estimate(self.parameters, draws, rewards, fresh)

    # Saving

    def _tensors(self) -> dict[str, Tensor]:
        """All numbers that the search moves, by name."""
        state = dict(self.parameters._asdict())
        state |= {f"adam.{name}": value for name, value in self.adam.state().items()}
        if self.relax is not None:
            state |= {f"control.{name}": value for name, value in self.relax.weights.items()}
            learning = self.relax.adam.state()
            state |= {f"control_adam.{name}": value for name, value in learning.items()}
        state["numbers"] = torch.tensor([self.left_out, *self.passes])
        state["best"] = torch.tensor(self.best, dtype=torch.float64)
        return state

    def state(self) -> dict[str, Tensor]:
        """The parameters, their averages, and the network with its momentum."""
        network = {f"network.{name}": value for name, value in self.network.state().items()}
        return {name: value.clone() for name, value in self._tensors().items()} | network

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; ValueError or LookupError if it is none of this search."""
        for name, own in self._tensors().items():
            found = state[name]
            if found.shape != own.shape or found.dtype != own.dtype:
                kinds = [f"{each.dtype} {tuple(each.shape)}" for each in (found, own)]
                raise ValueError(f"the state's {name} is {kinds[0]}, expected {kinds[1]}")
            if name != "best" and not bool(found.isfinite().all()):
                raise ValueError(f"the state's {name} holds what is no number")
        left_out, *passes = state["numbers"].tolist()
        if min(left_out, *passes) < 0:
            raise ValueError(f"the state counts {left_out} rewards left out and passes {passes}")
        self.network.load_state(part_of(dict(state), "network."))
        parameters = Parameters(*(state[name].clone() for name in Parameters._fields))
        self.parameters = parameters.within_bounds()
        self.adam.load_state(part_of(dict(state), "adam."))
        if self.relax is not None:
            self.relax.weights = part_of(dict(state), "control.")
            self.relax.adam.load_state(part_of(dict(state), "control_adam."))
        self.left_out, self.passes, self.best = left_out, Passes(*passes), float(state["best"])


def _parts(order: Tensor, batch: int, config: DadaConfig) -> list[Tensor]:
    """The validation images of each step; the next step after the last takes the first again."""
    kept = order[: sum(batch_sizes(len(order), batch))]
    parts = list(torch.split(kept, batch))
    return parts[:1] if config.fixed_validation else parts
