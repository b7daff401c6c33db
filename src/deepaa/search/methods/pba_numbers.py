"""PBA without its networks: the numbers of a population, how they spread, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from deepaa.ops import Operation, Row, Table, draw_words, sample_keys
from deepaa.policy import (
    IDENTITY,
    PBA_NAMES,
    SCHEDULE_EPOCHS,
    Chains,
    Policy,
    pba_mixture,
    pba_rows,
)
from deepaa.search.methods.searcher import World, seed_for

METHOD = "pba"
TOP_GATE, TOP_LEVEL = 10, 9
"""The largest numbers of an operation: its probability in tenths, and its level."""
FRESH = 0.2
"""How likely a number is drawn anew; otherwise it moves."""
LONGEST = 3
"""The farthest that a number moves."""
QUANTILE = 0.25
"""The share of a population that is replaced, and the share that replaces it."""
MOST_CHAINS = 40_000
"""Over all phases of a schedule, so that a policy file can hold it."""
KEPT = 64
"""Mixtures that are remembered: those of the lines of descent of the last epochs."""

Numbers = tuple[int, ...]
"""A gate and a level for each operation, and the whole list twice."""
Mixture = list[tuple[Sequence[tuple[Row, float]], float]]
"""Chains of rows with their gates, and how likely each is."""


# What numbers mean


class Choices:
    """The operations whose gates and levels a search sets, with the rows of each level."""

    def __init__(self, rows: Sequence[Sequence[Sequence[Row]]]) -> None:
        """`rows` holds those of each operation at each level."""
        if not rows:
            raise ValueError("no operation is left to choose from")
        self.rows = rows
        every = (row for levels in rows for level in levels for row in level)
        self.table = Table(dict.fromkeys([IDENTITY, *every]))
        """All rows, so that the policies of one search share a table."""
        self._place = {row: place for place, row in enumerate(self.table.rows)}
        self.mixture = lru_cache(KEPT)(self._mixture)

    @classmethod
    def of(cls, world: World) -> Choices:
        """PBA's operations that the world's space has too, and the user's own in the space.

        A row that turns one class into another becomes identity; an operation of which nothing else
        is left is not there.
        """
        side = min(world.pretrain.images.shape[2:])
        allowed = {operation.name for operation in world.space.operations}
        listed = [
            [pba_rows(name, level, side) for level in range(TOP_LEVEL + 1)]
            for name in PBA_NAMES
            if name in allowed
        ]
        listed += [_own_rows(each) for each in world.space.operations if each.is_custom]
        safe = [
            [[IDENTITY if world.excludes(row) else row for row in rows] for rows in levels]
            for levels in listed
        ]
        acts = [any(row != IDENTITY for rows in levels for row in rows) for levels in safe]
        return cls([levels for levels, some in zip(safe, acts, strict=True) if some])

    @property
    def count(self) -> int:
        """How many numbers a member has."""
        return 4 * len(self.rows)

    def _mixture(self, numbers: Numbers) -> Mixture:
        """What PBA does with these numbers, as chains of two rows and their probabilities."""
        pairs = zip([*self.rows, *self.rows], numbers[::2], numbers[1::2], strict=True)
        return pba_mixture([(levels[level], gate) for levels, gate, level in pairs])

    def chains(self, numbers: Numbers) -> Chains:
        """The same over the table of all rows."""
        pairs = self.mixture(numbers)
        return Chains.of([([(self._place[r], g) for r, g in chain], w) for chain, w in pairs])

    def schedule(self, phases: Mapping[int, Numbers], epochs: int) -> Policy:
        """The policy whose numbers change at some epochs, for a training of so many.

        If they are too many for a policy file, those that were in force shortest are left out.
        """
        kept = dict(sorted(phases.items()))
        sizes = {epoch: len(self.mixture(numbers)) for epoch, numbers in kept.items()}
        while sum(sizes[epoch] for epoch in kept) > MOST_CHAINS:
            lengths = {start: end - start for start, end in pairwise([*kept, epochs]) if start}
            del kept[min(lengths, key=lambda start: (lengths[start], start))]
        mixtures = {epoch: self.mixture(numbers) for epoch, numbers in kept.items()}
        return Policy.of_chains(mixtures, {SCHEDULE_EPOCHS: str(epochs)})


def _own_rows(operation: Operation) -> list[list[Row]]:
    """The rows of a user's operation: its range in even steps, or as it is without one."""
    low, high = operation.low, operation.high
    if low is None or high is None:
        return [[Row(operation, None)]] * (TOP_LEVEL + 1)
    steps = [level / TOP_LEVEL for level in range(TOP_LEVEL + 1)]
    if operation.is_signed:
        signed = ([high * step, -high * step] if step else [0.0] for step in steps)
        return [[Row(operation, value) for value in values] for values in signed]
    return [[Row(operation, min(high, low + step * (high - low)))] for step in steps]


# How numbers spread


class Update(NamedTuple):
    """`member` became a copy of `source` and went on with other numbers."""

    member: int
    source: int
    epoch: int
    """Epochs that both had done."""
    old: Numbers
    """Those of the source."""
    new: Numbers


def explore(numbers: Sequence[int], seed: int) -> Numbers:
    """Each number is drawn anew with probability .2, or moves by 0 to 3 up or down.

    A number that would leave its range stays at the end of it.
    """
    before = torch.tensor(numbers)
    _, _, words = draw_words(sample_keys(seed, 0, torch.arange(len(before))), 1, 4)
    anew, value, sign, step = words[:, 0].double().unbind(1)
    most = torch.where(torch.arange(len(before)) % 2 == 0, TOP_GATE, TOP_LEVEL)
    fresh = (value * (most + 1)).long()
    moved = before + torch.where(sign < 0.5, -1, 1) * (step * (LONGEST + 1)).long()
    moved = torch.minimum(moved.clamp(min=0), most)
    return tuple(torch.where(anew < FRESH, fresh, moved).tolist())


def quantile(members: int) -> int:
    """How many of a population are the best, and how many the worst."""
    return min(math.ceil(QUANTILE * members), members // 2)


class Population:
    """The numbers of all members, which begin at 0, and the log of what became of them."""

    def __init__(self, members: int, count: int, seed: int) -> None:
        """`count` numbers for each member."""
        self.seed = seed
        self.numbers: list[Numbers] = [(0,) * count] * members
        self.log: list[Update] = []

    def step(self, scores: Sequence[float], epoch: int) -> list[Update]:
        """The worst quarter become copies of some of the best quarter, and explore.

        So does whoever has failed, whose score is NaN; with no score at all nothing is done.
        """
        alive = [member for member, score in enumerate(scores) if not math.isnan(score)]
        order = sorted(alive, key=lambda member: (-scores[member], member))
        failed = [member for member in range(len(scores)) if member not in alive]
        few = quantile(len(scores))
        best, others = order[:few], order[few:]
        worst = failed + others[max(0, len(others) - max(0, few - len(failed))) :]
        updates = []
        for member in sorted(worst) if best else []:
            place = (epoch, member)
            source = best[seed_for(self.seed, METHOD, "source", *place) % len(best)]
            old = self.numbers[source]
            new = explore(old, seed_for(self.seed, METHOD, "explore", *place))
            updates.append(Update(member, source, epoch, old, new))
        for update in updates:
            self.numbers[update.member] = update.new
        self.log += updates
        return updates

    def line(self, member: int) -> dict[int, Numbers]:
        """The line of descent of a member: its numbers now, and by epoch those of its ancestors."""
        phases = {}
        for update in reversed(self.log):
            if update.member == member:
                phases[update.epoch], member = update.new, update.source
        count = len(self.numbers[0])
        return {0: (0,) * count} | dict(reversed(phases.items()))

    # Saving

    def state(self) -> dict[str, Tensor]:
        """The log, from which the numbers follow."""
        count = len(self.numbers[0])
        lines = [[*update[:3], *update.old, *update.new] for update in self.log]
        return {"log": torch.tensor(lines, dtype=torch.int64).view(-1, 3 + 2 * count)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; ValueError or LookupError if it is none of such a population."""
        log, members, count = state["log"], len(self.numbers), len(self.numbers[0])
        if log.dtype != torch.int64 or log.ndim != 2 or log.shape[1] != 3 + 2 * count:
            raise ValueError(f"the log should have lines of {3 + 2 * count} whole numbers")
        most = torch.tensor([TOP_GATE, TOP_LEVEL]).repeat(count)
        if bool(((log[:, 3:] < 0) | (log[:, 3:] > most)).any()):
            raise ValueError("the log holds a gate or a level outside of its range")
        numbers: list[Numbers] = [(0,) * count] * members
        updates: list[Update] = []
        epoch = 1
        for member, source, when, *rest in log.tolist():
            update = Update(member, source, when, tuple(rest[:count]), tuple(rest[count:]))
            known = 0 <= member < members and 0 <= source < members and when >= epoch
            if not known or numbers[source] != update.old:
                raise ValueError(f"line {len(updates) + 1} of the log does not follow the others")
            numbers[member], epoch = update.new, when
            updates.append(update)
        self.numbers, self.log = numbers, updates


# The control


class Rounds(Protocol):
    """The settings of a search that say how often its members explore."""

    @property
    def population(self) -> int:
        """Members."""

    @property
    def epochs(self) -> int:
        """Epochs of the search."""

    @property
    def rounds(self) -> Sequence[int]:
        """The epochs after which the worst are replaced."""


def drifted_population(config: Rounds, count: int, seed: int) -> Population:
    """A population whose scores are noise: numbers drift, and nothing is selected."""
    population = Population(config.population, count, seed)
    members = range(config.population)
    for epoch in config.rounds:
        noise = [seed_for(seed, METHOD, "noise", epoch, member) for member in members]
        population.step([float(each >> 11) for each in noise], epoch)
    return population


def drifted_schedule(world: World, config: Rounds, seed: int) -> Policy:
    """The schedule of a line of descent without selection, without the defaults: PBA's control."""
    choices = Choices.of(world)
    population = drifted_population(config, choices.count, seed)
    member = seed_for(seed, METHOD, "member") % config.population
    return choices.schedule(population.line(member), config.epochs)
