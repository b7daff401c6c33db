"""`Contest`: trains candidates side by side until one is chosen, and proves what was chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.policy import Policy, fitted_schedule
from deepaa.runs import checks_state, short
from deepaa.search.contest.candidates import Candidate
from deepaa.search.contest.judged import JudgedImages
from deepaa.search.contest.plan import Job, Plan, Size
from deepaa.search.contest.table import ContestTable, Entry
from deepaa.train import (
    EpochRecord,
    ImageBatches,
    TrainConfig,
    Training,
    image_outcomes,
    train_together,
)

PARALLEL = {"cuda": 4, "cpu": 1}
"""Networks that are trained side by side, by the kind of device."""
DIGITS = 4
"""Losses are rounded to so many decimals before anything looks at them, so that contest.json, which
has no more, leads to the same choice."""


class Network(NamedTuple):
    """What every candidate trains."""

    name: str
    make: Callable[[int], nn.Module]
    """A network for a seed, with fresh weights or those to begin from."""
    config: TrainConfig
    """The settings; epochs and seed are those of a training."""
    device: torch.device


class Unit(NamedTuple):
    """A training of one network: a job in one part of the images."""

    candidate: str
    length: int
    seed: int
    part: int

    @property
    def key(self) -> str:
        """What its tensors are called in a state."""
        return f"{self.candidate}/{self.length}/{self.seed}/{self.part}"


class Judged(NamedTuple):
    """How a trained network does on the images that judge it."""

    losses: Tensor
    correct: Tensor
    train_loss: float


class ContestEpoch(NamedTuple):
    """An epoch of one training."""

    candidate: str
    length: int
    seed: int
    part: int
    size: Size
    epoch: int
    """Counted from 0."""
    loss: float
    """On the images as they were augmented."""
    accuracy: float
    passes: int
    """Images through the network since the contest began."""
    seconds: float


class ContestEntry(NamedTuple):
    """A candidate was trained at one length, and judged."""

    candidate: str
    length: int
    seed: int
    size: Size
    accuracy: float
    loss: float | None
    """None where a training failed: its loss was not a number."""
    passes: int
    seconds: float
    """Since its training began, beside others."""


ContestRecord = ContestEpoch | ContestEntry


class Contest:
    """A resumable contest: iterate to run it; each epoch and each judged training is a record."""

    before_step: Callable[[], None] = staticmethod(lambda: None)
    """Called before each step; what it raises leaves the epochs in work, which are then lost."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        images: JudgedImages,
        network: Network,
        plan: Plan,
        parallel: int | None = None,
    ) -> None:
        """Nothing is trained before the iteration begins."""
        self.candidates = {each.name: each for each in candidates if each.name in plan.names}
        self.left_out = [each.title for each in candidates if each.name not in plan.names]
        """The titles of those that the passes are not enough for."""
        self.images, self.network, self.plan = images, network, plan
        self.parallel = parallel or PARALLEL[network.device.type]
        self.passes = 0
        """Images through the network so far."""
        self._judged: dict[Unit, Judged] = {}
        self._at_work: dict[Unit, Training] = {}
        self._states: dict[Unit, dict[str, Tensor]] = {}  # after the newest whole epoch
        self._losses: dict[Unit, float] = {}  # of the newest epoch
        self._began: dict[Unit, float] = {}
        self._on_device: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def table(self) -> ContestTable:
        """The outcomes of all jobs whose parts were all judged, in the order of the plan.

        A state that was read again has its trainings in another order than they came in, and the
        order of the entries is that of the trainings to come.
        """
        jobs = sorted({Job(*unit[:3]) for unit in self._judged}, key=self.plan.place)
        entries = [entry for job in jobs if (entry := self._entry(job)) is not None]
        lengths = {self.plan.target, *(entry.length for entry in entries)}
        images = {n: count for n in sorted(lengths) if (count := self.plan.images(n)) is not None}
        return ContestTable(self.images.chooses, tuple(entries), self.images.clusters, images)

    def _units(self, job: Job) -> list[Unit]:
        return [Unit(*job, part) for part in range(len(self.images.parts))]

    def _entry(self, job: Job) -> Entry | None:
        units = self._units(job)
        if not all(unit in self._judged for unit in units):
            return None
        losses = torch.zeros(len(self.images.chooses), dtype=torch.float64)
        correct = torch.zeros(len(losses), dtype=torch.bool)
        for unit in units:
            places = self.images.parts[unit.part].places
            losses[places] = self._judged[unit].losses
            correct[places] = self._judged[unit].correct
        train_loss = sum(self._judged[unit].train_loss for unit in units) / len(units)
        return Entry(*job, losses, correct, train_loss)

    # Training

    def __iter__(self) -> Iterator[ContestRecord]:
        """Train until nothing is left to train; stop and go on at any time."""
        while jobs := self.plan.next_jobs(self.table):
            units = [unit for job in jobs for unit in self._units(job) if unit not in self._judged]
            units.sort(key=lambda unit: unit not in self._states)  # those that were begun first
            yield from self._train(units[: self.parallel])

    def _train(self, group: Sequence[Unit]) -> Iterator[ContestRecord]:
        for unit in group:
            self._began[unit] = time.perf_counter()
            self._at_work[unit] = self._begin(unit)
        for outcomes in train_together([self._at_work[unit] for unit in group]):
            for unit, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, EpochRecord):
                    self.passes += outcome.images
                    self._losses[unit] = outcome.loss
                    self._states[unit] = self._at_work[unit].state(self._states.get(unit))
                    yield self._epoch(unit, outcome)
                elif outcome is not None:
                    self._losses[unit] = float("nan")
        judged = {unit: self._judge(unit) for unit in group}
        for unit in group:  # all before the first record: a state never holds a part of a group
            self._judged[unit] = judged[unit]
            del self._at_work[unit]
            self._states.pop(unit, None)
        for job, unit in {Job(*unit[:3]): unit for unit in group}.items():
            if (entry := self._entry(job)) is not None:
                yield self._summary(entry, self._began[unit])

    def _begin(self, unit: Unit) -> Training:
        """The training of a unit, at the epoch where it was left."""
        device, size = self.network.device, self.plan.size(unit.length)
        config = replace(self.network.config.stretched(size.epochs), seed=unit.seed)
        policy: Policy = fitted_schedule(self.candidates[unit.candidate].policy, size.epochs)
        images, labels = (each[: size.images] for each in self._images(unit.part))
        model = self.network.make(unit.seed)
        training = Training(model, ImageBatches(images, labels, policy, config, device), config)
        training.before_step = self.before_step
        if unit in self._states:
            with checks_state(None):
                training.load_state(self._states[unit])
        return training

    def _images(self, part: int) -> tuple[Tensor, Tensor]:
        """The images to train on in a part; trainings share one copy on the device."""
        if part not in self._on_device:
            chosen = self.images.in_class_order(part)
            found = (each[chosen].to(self.network.device) for each in self.images.data[:2])
            images, labels = found
            self._on_device[part] = images, labels
        return self._on_device[part]

    def _judge(self, unit: Unit) -> Judged:
        part, loss = self.images.parts[unit.part], self._losses.pop(unit)
        if loss != loss:
            bad = torch.full((len(part.judge),), float("nan"), dtype=torch.float64)
            return Judged(bad, torch.zeros(len(bad), dtype=torch.bool), loss)
        images, labels = (each[part.judge] for each in self.images.data[:2])
        losses, correct = image_outcomes(self._at_work[unit].model, images, labels)
        return Judged(losses.double().round(decimals=DIGITS), correct, round(loss, DIGITS))

    # Records

    def _epoch(self, unit: Unit, record: EpochRecord) -> ContestEpoch:
        return ContestEpoch(
            *unit,
            size=self.plan.size(unit.length),
            epoch=record.epoch,
            loss=record.loss,
            accuracy=record.accuracy,
            passes=self.passes,
            seconds=record.seconds,
        )

    def _summary(self, entry: Entry, began: float) -> ContestEntry:
        loss = entry.losses.mean().item()
        return ContestEntry(
            *entry[:3],
            size=self.plan.size(entry.length),
            accuracy=entry.correct.double().mean().item(),
            loss=loss if loss == loss else None,
            passes=self.passes,
            seconds=time.perf_counter() - began,
        )

    # Saving

    def state(self) -> dict[str, Tensor]:
        """What was judged, and the trainings in work after their newest whole epoch."""
        state: dict[str, Tensor] = {}
        for unit, judged in self._judged.items():
            train_loss = torch.tensor(judged.train_loss, dtype=torch.float64)
            for name, value in zip(Judged._fields, (*judged[:2], train_loss), strict=True):
                state[f"judged/{unit.key}/{name}"] = value
        for unit, tensors in self._states.items():
            state |= {f"work/{unit.key}/{name}": value for name, value in tensors.items()}
        for unit, loss in self._losses.items():
            state[f"loss/{unit.key}"] = torch.tensor(loss, dtype=torch.float64)
        for length in {unit.length for unit in (*self._judged, *self._states)}:
            state[f"size/{length}"] = self._size(length)
        return {**state, "passes": torch.tensor(self.passes)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; ValueError or LookupError if it is none of this contest."""
        self.passes = int(state["passes"])
        found: dict[Unit, dict[str, Tensor]] = {}
        sizes: dict[int, Tensor] = {}
        for key, tensor in state.items():
            kind, _, rest = key.partition("/")
            if kind == "size":
                sizes[int(rest)] = tensor
            if kind not in ("judged", "work", "loss"):
                continue
            candidate, length, seed, part, *name = rest.split("/")
            unit = Unit(candidate, int(length), int(seed), int(part))
            self._check_unit(unit)
            if kind == "judged":
                found.setdefault(unit, {})[name[0]] = tensor
            elif kind == "work":
                self._states.setdefault(unit, {})[name[0]] = tensor
            else:
                self._losses[unit] = float(tensor.item())
        if lost := [unit.key for unit in self._states if unit not in self._losses]:
            raise ValueError(f"it has no loss of {lost[0]}")
        for unit, parts in found.items():
            train_loss = float(parts["train_loss"].item())
            self._judged[unit] = Judged(parts["losses"], parts["correct"], train_loss)
            self._check_judged(unit)
        for unit in (*self._judged, *self._states):
            size = self._size(unit.length)
            if sizes.get(unit.length, size[:0]).tolist() != size.tolist():
                raise ValueError(f"its trainings of length {unit.length} have other sizes")

    def _size(self, length: int) -> Tensor:
        """Epochs and images of trainings of this length, 0 for all images."""
        epochs, images = self.plan.size(length)
        return torch.tensor([epochs, images or 0])

    def _check_unit(self, unit: Unit) -> None:
        parts = len(self.images.parts)
        if unit.candidate not in self.candidates or unit.length < 1 or unit.seed < 0:
            raise ValueError(f"no training of this contest is {short(unit.key)}")
        if not 0 <= unit.part < parts:
            raise ValueError(f"{unit.key}: part {unit.part} of {parts}")

    def _check_judged(self, unit: Unit) -> None:
        judged, count = self._judged[unit], len(self.images.parts[unit.part].judge)
        wanted = (
            ("losses", judged.losses, torch.float64),
            ("correct", judged.correct, torch.bool),
        )
        for name, values, dtype in wanted:
            if values.shape != (count,) or values.dtype != dtype:
                got = f"{values.dtype} of shape {tuple(values.shape)}"
                raise ValueError(f"{name} of {unit.key} are {got}, expected {dtype} ({count},)")
