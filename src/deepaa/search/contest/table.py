"""What the networks of a contest said of the judge images: the table that the pick reads."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.files import plural


class Entry(NamedTuple):
    """One trained network, or the networks of all folds, on the J judge images."""

    candidate: str
    length: int
    """What its training cost, in epochs of all images to train on."""
    seed: int
    losses: Tensor
    """(J,) float64: the cross entropy of each image."""
    correct: Tensor
    """(J,) bool: whether each image was classified right."""
    train_loss: float
    """Mean over the last epoch, of the images as augmented: the stronger the augmentation, the
    higher."""

    @property
    def failed(self) -> bool:
        """Whether the training ended in something that is not a number."""
        return not (bool(self.losses.isfinite().all()) and abs(self.train_loss) < torch.inf)


class Growth(NamedTuple):
    """By how much one training is larger than another, in logarithms."""

    epochs: float
    """Of the epochs."""
    images: float
    """Of the images."""


@dataclass(frozen=True, eq=False)
class ContestTable:
    """All entries of a contest, and which judge images choose and which confirm."""

    chooses: Tensor
    """(J,) bool: the images that choose the winner; the others confirm it."""
    entries: tuple[Entry, ...] = ()
    clusters: Tensor | None = None
    """(J,) int64, equal for images of one group; None where each image stands for itself."""
    images: Mapping[int, int] = field(default_factory=dict)
    """How many images trainings of some lengths have, where shorter ones have fewer."""

    def __post_init__(self) -> None:
        """Refuse entries that do not fit the judge images, and networks that are there twice."""
        shape, seen = self.chooses.shape, set()
        if self.clusters is not None and self.clusters.shape != shape:
            raise ValueError(f"clusters {tuple(self.clusters.shape)}, expected {tuple(shape)}")
        for entry in self.entries:
            name = f"{entry.candidate}, {plural(entry.length, 'epoch')}, seed {entry.seed}"
            for values in (entry.losses, entry.correct):
                if values.shape != shape:
                    raise ValueError(
                        f"{name}: {tuple(values.shape)} outcomes, expected {tuple(shape)}, one for "
                        "each judge image"
                    )
            if name in seen:
                raise ValueError(f"{name}: the contest has this network twice; give another seed")
            seen.add(name)

    def plus(self, *entries: Entry) -> ContestTable:
        """The table with more entries."""
        return replace(self, entries=(*self.entries, *entries))

    def only(self, seeds: Collection[int]) -> ContestTable:
        """The table with the entries of these seeds alone."""
        return replace(self, entries=tuple(e for e in self.entries if e.seed in seeds))

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """In the order of their first entries."""
        return tuple(dict.fromkeys(entry.candidate for entry in self.entries))

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """From short to long."""
        return tuple(sorted({entry.length for entry in self.entries}))

    def seeds(self, candidate: str, length: int) -> tuple[int, ...]:
        """The seeds of a candidate's networks of one length, in order."""
        return tuple(sorted(entry.seed for entry in self.of(candidate, length)))

    def of(self, candidate: str, length: int) -> list[Entry]:
        """The entries of a candidate at one length."""
        return [e for e in self.entries if e.candidate == candidate and e.length == length]

    def trained(self, length: int) -> tuple[str, ...]:
        """The candidates with networks of this length, none of which failed."""
        found = {e.candidate: True for e in self.entries if e.length == length}
        for entry in self.entries:
            if entry.length == length and entry.failed:
                found[entry.candidate] = False
        return tuple(name for name in self.candidates if found.get(name, False))

    def train_loss(self, candidate: str, length: int) -> float:
        """The mean over its seeds, by which candidates of one length are ordered by strength."""
        losses = [entry.train_loss for entry in self.of(candidate, length)]
        return sum(losses) / len(losses)

    def growth(self, short: int, long: int) -> Growth:
        """From trainings of one length to those of another.

        A length is what a training costs, so the epochs of its images are that by their number.
        """
        images = 0.0
        if {short, long} <= self.images.keys():
            images = math.log(self.images[long] / self.images[short])
        return Growth(math.log(long / short) - images, images)

    # Images and their groups

    def group_sums(self, values: Tensor, *, chooses: bool) -> Tensor:
        """Sums over the images of each group of one half: (..., J) to (..., groups)."""
        half = self.chooses == chooses
        if self.clusters is None:
            return values[..., half].double()
        groups, place = torch.unique(self.clusters[half], return_inverse=True)
        sums = values.new_zeros((*values.shape[:-1], len(groups)), dtype=torch.float64)
        return sums.index_add_(-1, place, values[..., half].double())

    def group_sizes(self, *, chooses: bool) -> Tensor:
        """How many images of one half each group has: (groups,) float64."""
        return self.group_sums(torch.ones_like(self.chooses, dtype=torch.float64), chooses=chooses)

    def right(
        self, candidate: str, length: int, *, chooses: bool, seeds: Collection[int] | None = None
    ) -> Tensor:
        """Images of each group of one half that each network classified right: (seeds, groups)."""
        entries = self.of(candidate, length)
        found = [e.correct for e in entries if seeds is None or e.seed in seeds]
        if not found:
            asked = "" if seeds is None else f" of seeds {sorted(seeds)}"
            raise ValueError(f"the contest has no network{asked} of {candidate}, {length} epochs")
        return self.group_sums(torch.stack(found), chooses=chooses)
