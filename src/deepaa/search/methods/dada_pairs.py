"""Pairs of operations with gates and levels: what they do to images, and the policy they make."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepaa.ops import Draw, apply_batch, draw_words, hash_int, sample_keys
from deepaa.policy import Policy
from deepaa.search.methods.dada_estimators import Parameters
from deepaa.search.methods.level_space import LevelSpace, Slot
from deepaa.search.methods.searcher import World

_PAIRS = 0x4441_4441  # sets the draws of a pair apart from those of the defaults


class Place(NamedTuple):
    """Where in a search images are augmented: they always get the same numbers there."""

    seed: int
    epoch: int
    images: Tensor
    """(N,) int64 indices."""

    def words(self, uniforms: int) -> tuple[Tensor, Tensor, Tensor]:
        """The random numbers of two slots, as `draw_words` gives them."""
        keys = sample_keys(hash_int(self.seed, _PAIRS), self.epoch, self.images)
        return draw_words(keys, 2, uniforms)


class Pairs:
    """All pairs i < j of the operations that a world allows; i is applied first."""

    def __init__(self, world: World, *, defaults_first: bool = False) -> None:
        """Put the rows of all levels and those of the defaults into one table."""
        self.defaults_first = defaults_first
        self.space = LevelSpace.of(world.space, world.excludes)
        count = len(self.space.operations)
        if count < 2:
            name = self.space.operations[0].name
            raise ValueError(f"only {name} is left to choose from; a pair takes two operations")
        self.operations = torch.tensor(list(combinations(range(count), 2)))
        """(P, 2)."""
        both = self.space.table.extended(row.mirrored for row in self.space.table.rows)
        self.defaults = Policy(both).then(world.defaults)
        """The defaults, over a table that has the rows of the pairs too."""
        first = [self.space.row(operation, 0.0) for operation in range(count)]
        last = [self.space.row(operation, 1.0) for operation in range(count)]
        self._first, self._count = torch.tensor(first), torch.tensor(last) - torch.tensor(first) + 1
        self._twins = torch.tensor(self.defaults.table.twins)

    def __len__(self) -> int:
        """P."""
        return len(self.operations)

    def names(self, pair: int) -> str:
        """What a pair is called."""
        chosen = self.operations[pair].tolist()
        return "+".join(self.space.operations[operation].name for operation in chosen)

    # Images

    def rows(self, pair: Tensor, is_open: Tensor, levels: Tensor) -> Tensor:
        """(N, 2) rows of the pairs (N,) at levels (N, 2), identity where a gate is closed."""
        operations = self.operations[pair]
        count = self._count[operations]
        step = (levels * count).long().minimum(count - 1)
        return torch.where(is_open, self._first[operations] + step, 0)

    def signed(self, rows: Tensor, place: Place) -> Tensor:
        """The rows (N, 2), or those of the opposite sign where they have one, equally likely."""
        word, _, _ = place.words(0)
        return torch.where((word & 1).bool(), self._twins[rows], rows)

    def augmented(self, images: Tensor, rows: Tensor, place: Place) -> Tensor:
        """Images (N, C, H, W) under rows (N, 2), either sign equally likely, and the defaults."""
        table, device = self.defaults.table, images.device
        rows, (_, _, numbers) = self.signed(rows, place), place.words(table.uniforms)
        keys = sample_keys(place.seed, place.epoch, place.images)
        choice, uniform = self.defaults.draw(keys)
        each = [(rows, numbers), (choice, uniform)]
        choices, uniforms = zip(*(reversed(each) if self.defaults_first else each), strict=True)
        whole = Draw(torch.cat(choices, 1), torch.cat(uniforms, 1))
        return apply_batch(images, whole.to(device), table)

    def moved_slot(self, is_open: Tensor, place: Place) -> Tensor:
        """(N, 2) one open slot of each image, chosen at random: how many are open there, 0 else."""
        _, word, _ = place.words(0)
        second = torch.where(is_open.all(1), word[:, 0] & 1, is_open[:, 1].long())
        chosen = F.one_hot(second, 2) * is_open
        return chosen * is_open.sum(1, keepdim=True)

    # The policy

    def policy(self, parameters: Parameters, chains: int) -> Policy:
        """The `chains` pairs with the largest logits, equally likely, or all of them if 0.

        All of them are drawn with their probabilities. The defaults are not in it.
        """
        order = parameters.pairs.argsort(descending=True, stable=True)
        kept = (order[:chains] if chains else order).tolist()
        shares = parameters.pairs.softmax(0)[order].tolist()
        parts = self.operations, parameters.gates.clamp(0, 1), parameters.levels.clamp(0, 1)
        numbers = zip(*(part[kept].tolist() for part in parts), strict=True)
        slots = [[Slot(*slot) for slot in zip(*pair, strict=True)] for pair in numbers]
        return self.space.policy(slots, None if chains else shares)
