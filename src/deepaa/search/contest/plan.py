"""How much a contest trains, and what it trains next, which follows from what is known so far."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from deepaa.files import plural
from deepaa.search.contest.candidates import NONE, REFERENCES
from deepaa.search.contest.pick import Pick, foremost, no_reference, pick, staying
from deepaa.search.contest.proof import Proof, proof
from deepaa.search.contest.table import ContestTable
from deepaa.train import MOST_EPOCHS

PASSES = {"cuda": 20_000_000, "cpu": 3_000_000}
"""Images through the network, by the kind of device: minutes with its default network."""
TARGET_EPOCHS, TARGET_PASSES = 200, 200_000
"""The training that a user is taken to mean, where none is named: so many epochs, and more of few
images, so that so many images go through the network, but no more than `MOST_EPOCHS`."""
LEAST_STEPS = 150
"""Steps of the shortest training that tells candidates apart, or some are left out."""
FIRST_SHARE, SHARE = 0.2, 0.5
"""Of the passes, what the first rung takes, and of those that are left, what any other takes."""
FEWEST = 4
"""A rung has at least so many candidates, the references among them, and half of the one before."""
LONGER, GROWTH = 2, 4
"""A rung is at least and at most so many times as long as the one before."""
EPOCHS_POWER = 1 / 3
"""A training of a share of the target's work has that share's power of the target's epochs, and as
many images as are then left: few epochs of all images favour weak augmentation."""
LEAST_IMAGES, LEAST_OF_A_CLASS = 500, 20
"""No training has fewer images in order to have more epochs."""
FIRST_FRESH_SEED = 1000
"""Seeds of the proof are counted from here: no rung uses them."""
MOST = {"passes": 10**15, "target_epochs": 1_000_000, "fresh_seeds": 1_000}
"""Of a contest in config.json, which may come from anybody."""


@dataclass(frozen=True)
class ContestConfig:
    """What a user can say about a contest."""

    passes: int | None = None
    """Most images through the network in all trainings; None has minutes of the device's work."""
    target_epochs: int | None = None
    """Epochs of the training that the policy is wanted for; None means 200, up to 600 for few
    images."""
    fresh_seeds: int = 2
    """Networks of the winner and of the reference that are trained for the proof alone; one of each
    where the passes are not enough to train them as long as the target, and then as long as they
    reach."""

    def __post_init__(self) -> None:
        """Refuse what no contest can do."""
        for name, most in MOST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                wanted = "at least 1" if value < 1 else f"at most {most:,}"
                raise ValueError(f"{name} of a contest should be {wanted}, got {value}")

    def limit(self, device: torch.device) -> int:
        """Most images through the network on a device."""
        return self.passes or PASSES[device.type]


class Job(NamedTuple):
    """One training of a candidate, in each fold if there are folds."""

    candidate: str
    length: int
    """What it costs, in epochs of all images to train on."""
    seed: int


class Size(NamedTuple):
    """What a training of some length consists of."""

    epochs: int
    images: int | None = None
    """None means all images to train on."""

    def __str__(self) -> str:
        """`50 epochs of 640 images`, or `50 epochs` where they are of all."""
        epochs = plural(self.epochs, "epoch")
        return epochs if self.images is None else f"{epochs} of {plural(self.images, 'image')}"


def flat(record: Any) -> dict[str, Any]:
    """The fields of a named tuple, with epochs and images in place of its size."""
    fields = record._asdict()
    size: Size = fields.pop("size")
    return {**fields, **size._asdict()}


class Rung(NamedTuple):
    """Trainings of one length that are compared with each other."""

    length: int
    names: list[str]
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Plan(ABC):
    """Which trainings a contest does: its rungs, then the proof of the pick.

    All of it is a function of the table, so a contest that was stopped goes on as if it had not
    been.
    """

    names: tuple[str, ...]
    """The candidates, the references first."""
    target: int
    """Epochs of the training that the policy is wanted for."""
    fresh_seeds: int
    """Networks of the winner and of its rival that prove, and choose nothing."""

    @abstractmethod
    def rungs(self, table: ContestTable) -> list[Rung]:
        """The rungs that are known so far; the last is the one that decides."""

    def size(self, length: int) -> Size:
        """The epochs and images of a training of this length."""
        return Size(length)

    def images(self, length: int) -> int | None:
        """How many images a training of this length has, where that depends on it."""
        return None

    def proof_length(self, table: ContestTable) -> int:
        """The length of the trainings that prove."""
        return self.rungs(table)[-1].length

    def to_json(self, table: ContestTable) -> dict[str, Any]:
        """What contest.json says of the plan."""
        lengths = list(dict.fromkeys(rung.length for rung in self.rungs(table)))
        fresh = len(self.proof_seeds(table))
        return {"lengths": lengths, "fresh_seeds": fresh, "target_epochs": self.target}

    @property
    def references(self) -> tuple[str, ...]:
        """Those of the candidates that others are compared with."""
        return tuple(name for name in REFERENCES if name in self.names)

    def proof_seeds(self, table: ContestTable) -> range:
        """The seeds of the networks that prove."""
        return range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + self.fresh_seeds)

    def place(self, job: Job) -> tuple[bool, int, int, int]:
        """By what jobs are sorted so that they stand as they are trained."""
        is_proof = job.seed >= FIRST_FRESH_SEED
        return is_proof, job.length, job.seed, self.names.index(job.candidate)

    def next_jobs(self, table: ContestTable) -> list[Job]:
        """What is to be trained next; empty when the contest is over."""
        rungs = self.rungs(table)
        for length, names, seeds in rungs:
            self._check_references(table, length)
            jobs = [Job(name, length, seed) for seed in seeds for name in names]
            if missing := [job for job in jobs if not has(table, job)]:
                return missing
        length, chosen = self.proof_length(table), self.chosen(table)
        rival = self.rival(chosen)
        pair = () if rival is None else (chosen.winner, rival)
        jobs = [Job(name, length, seed) for seed in self.proof_seeds(table) for name in pair]
        return [job for job in jobs if not has(table, job)]

    def _check_references(self, table: ContestTable, length: int) -> None:
        """Refuse to go on where nothing is left to compare with, before others are trained."""
        chooses = self.without_proof(table)
        if all(chooses.of(name, length) for name in self.references) and not (
            {*self.references} & {*chooses.trained(length)}
        ):
            raise no_reference(self.references)

    def chosen(self, table: ContestTable) -> Pick:
        """The pick from the rungs, which networks of the proof do not change."""
        return pick(self.without_proof(table), self.references, self.target)

    @staticmethod
    def without_proof(table: ContestTable) -> ContestTable:
        """The entries that choose."""
        entries = (entry for entry in table.entries if entry.seed < FIRST_FRESH_SEED)
        return replace(table, entries=tuple(entries))

    def rival(self, chosen: Pick) -> str | None:
        """Whom the winner is proved against: None where the winner is no augmentation."""
        if chosen.winner != chosen.reference:
            return chosen.reference
        others = [name for name in self.references if name != chosen.winner]
        return None if chosen.winner == NONE or not others else others[0]

    def unproved(self, table: ContestTable) -> tuple[str, ...]:
        """Of the winner and its rival, those of whose trainings for the proof one failed."""
        chosen = self.chosen(table)
        pair, length = (chosen.winner, self.rival(chosen)), self.proof_length(table)
        failed = {
            entry.candidate
            for entry in table.entries
            if entry.failed and entry.length == length and entry.seed in self.proof_seeds(table)
        }
        return tuple(name for name in pair if name in failed)

    def proved(self, table: ContestTable) -> Proof | None:
        """The interval of winner minus rival, from images and networks that chose nothing.

        None where the winner is no augmentation, and where a training failed: its networks would
        have everything wrong.
        """
        chosen = self.chosen(table)
        rival, length = self.rival(chosen), self.proof_length(table)
        if rival is None or self.unproved(table):
            return None
        return proof(table, chosen.winner, rival, length, tuple(self.proof_seeds(table)))


def has(table: ContestTable, job: Job) -> bool:
    """Whether a training is done."""
    return job.seed in table.seeds(job.candidate, job.length)


@dataclass(frozen=True)
class LengthPlan(Plan):
    """Rungs that become longer, within a number of images through the network."""

    first: int
    """The length of the first rung."""
    passes: int
    """The limit."""
    per_epoch: int
    """Images through the network in an epoch of one candidate, over all folds."""
    train_images: int
    """Images to train on in each of the folds."""
    batch: int
    classes: int
    left_out: tuple[str, ...] = ()
    """Candidates that the passes are not enough for."""
    enough: int = 0
    """Passes with which all take part, each in trainings that tell them apart."""

    @classmethod
    def make(
        cls,
        names: Sequence[str],
        *,
        train_images: int,
        batch: int,
        classes: int = 1,
        folds: int = 1,
        device: torch.device | str = "cpu",
        config: ContestConfig | None = None,
    ) -> LengthPlan:
        """The plan for so many images to train on in each of the folds.

        The first rung takes a fifth of the passes: at least `LEAST_STEPS` each, at most a quarter
        of the target. The last candidates are left out where two fifths are not enough for that.
        """
        config = config or ContestConfig()
        passes = config.limit(torch.device(device))
        usual = min(max(TARGET_EPOCHS, math.ceil(TARGET_PASSES / train_images)), MOST_EPOCHS)
        target = config.target_epochs or usual
        per_epoch, fewest = train_images * folds, min(len(names), len(REFERENCES) + 1)
        if passes < (cost := per_epoch * fewest * (1 + 2 * config.fresh_seeds)):
            raise ValueError(
                f"a contest of {passes:,} passes is too short: an epoch of {fewest} candidates and "
                f"of their proof takes {cost:,}; give more (--contest-passes in a search, --passes "
                "in deepaa contest), or search with --contest off"
            )
        steps = max(1, round(train_images / batch))
        least = min(target, math.ceil(LEAST_STEPS / steps))
        epochs = passes // per_epoch
        kept = tuple(names[: max(int(2 * FIRST_SHARE * epochs / least), fewest)])
        first = int(FIRST_SHARE * epochs / len(kept))
        first = max(1, min(max(first, least), max(least, target // 4), epochs // (3 * len(kept))))
        left_out = tuple(names[len(kept) :])
        enough = math.ceil(per_epoch * least * len(names) / FIRST_SHARE)
        sizes = passes, per_epoch, train_images, batch, classes
        return cls(kept, target, config.fresh_seeds, first, *sizes, left_out, enough)

    def size(self, length: int) -> Size:
        """As few images, in whole batches, as leave passes for about the target's epochs.

        With a share x of the target's work it is x^(1/3) of its epochs and x^(2/3) of the images:
        what many epochs of few images say of augmentation is nearer to the target than what few
        epochs of all images say.
        """
        work = length * self.train_images
        epochs = self.target * (length / self.target) ** EPOCHS_POWER
        least = max(LEAST_IMAGES, LEAST_OF_A_CLASS * self.classes)
        images = self.batch * math.ceil(max(least, work / epochs) / self.batch)
        if length >= self.target or images >= self.train_images:
            return Size(length)
        return Size(work // images, images)

    def images(self, length: int) -> int:
        """How many images a training of this length has."""
        return self.size(length).images or self.train_images

    @property
    def shortness(self) -> str | None:
        """What so few passes leave out; None where they are enough."""
        if self.passes >= self.enough:
            return None
        count = len(self.names) + len(self.left_out)
        left = f"they leave out {len(self.left_out)} of {count} candidates"
        left = left if self.left_out else f"trainings of {self.size(self.first)} tell little"
        return f"{self.passes:,} passes are few: {left}; {self.enough:,} would do"

    def rungs(self, table: ContestTable) -> list[Rung]:
        """Each has fewer candidates than the one before, in longer trainings."""
        rungs, table = [Rung(self.first, list(self.names))], self.without_proof(table)
        while all(has(table, Job(name, rungs[-1].length, 0)) for name in rungs[-1].names):
            last = rungs[-1].length
            going_on = staying(table, last, self.references, self.target)
            following = self._following(rungs, len(going_on))
            if following is None:
                break
            count, length = following
            names = foremost(table, last, going_on, count, self.references, self.target)
            rungs.append(Rung(length, names))
        return rungs

    def _following(self, rungs: list[Rung], most: int) -> tuple[int, int] | None:
        """How many candidates, of so many that stay, train next, and for how many epochs.

        All of them if half of the passes that are left lets them train four times as long as
        before, or for the target; else fewer, down to half of the last rung's. None where the
        trainings would hardly be longer than before.
        """
        last, names, _ = rungs[-1]
        if most < 2:
            return None
        wanted = min(self.target, GROWTH * last)
        share = int(SHARE * self._epochs_left(rungs))
        fewest = min(most, max(FEWEST, math.ceil(len(names) / 2)))
        count = max(fewest, min(most, share // wanted))
        length = min(wanted, share // count)
        return (count, length) if length >= LONGER * last else None

    def _epochs_left(self, rungs: list[Rung]) -> int:
        """Epochs of single candidates that rungs leave of the passes."""
        used = sum(rung.length * len(rung.names) for rung in rungs)
        return max(0, self.passes // self.per_epoch - used)

    def proof_seeds(self, table: ContestTable) -> range:
        """As many as can train for the target, and at least one."""
        return self._proof_seeds(self.rungs(table))

    def _proof_seeds(self, rungs: list[Rung]) -> range:
        affordable = self._epochs_left(rungs) // (2 * self.target)
        count = max(1, min(self.fresh_seeds, affordable))
        return range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + count)

    def proof_length(self, table: ContestTable) -> int:
        """As long as the passes reach, at least as the last rung, at most as the target."""
        return self._proof_length(self.rungs(table))

    def _proof_length(self, rungs: list[Rung]) -> int:
        affordable = self._epochs_left(rungs) // (2 * len(self._proof_seeds(rungs)))
        return max(rungs[-1].length, min(self.target, affordable))

    def most_passes(self, table: ContestTable | None = None) -> int:
        """Images through the network that the whole contest takes at most, whoever leaves."""
        rungs = [Rung(self.first, list(self.names))] if table is None else self.rungs(table)
        last, names, _ = rungs[-1]
        # rungs that at least double their length with fewer candidates take no more than one that
        # trains all of these for the target
        going_on = len(names) if LONGER * last <= self.target else 0
        left = min(self._epochs_left(rungs), (going_on + 2 * self.fresh_seeds) * self.target)
        return self.per_epoch * (sum(rung.length * len(rung.names) for rung in rungs) + left)

    def to_json(self, table: ContestTable) -> dict[str, Any]:
        """What contest.json says of the plan."""
        own = {"passes": self.passes, "left_out": list(self.left_out)}
        return {**super().to_json(table), **own}
