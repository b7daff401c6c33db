"""Divisions that keep groups of images whole and the shares of classes close."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepaa.data.splits import random_order


def divide_groups(
    labels: Tensor,
    groups: Tensor,
    targets: Sequence[Sequence[int]],
    least: Sequence[int],
    seed: int,
    fewest: int = 0,
) -> Tensor:
    """The part (N,) of each image: all images of a group are in one.

    The largest group is first. Each goes to the part that lacks most of the group's classes, for
    its size, among the parts that still have room. So groups of one image fill every part exactly.
    Then parts in which a class has too few groups take the smallest ones that others can spare.

    Args:
        groups: int64 (N,), equal numbers for the images of a group.
        targets: Images of each class that each part should have; a part without any gets none.
        least: Groups with images of each class that each part should have at least; where there
            are not as many, the first parts have them.
        seed: Decides between groups of one size.
        fewest: Groups that each part has at least, whatever their classes, if there are as many for
            every part.
    """
    division = _Division(labels, groups, targets, seed)
    division.assign()
    division.fill(fewest)
    for part in range(len(targets)):
        division.complete(part, least)
    return division.parts()


def groups_of_classes(labels: Tensor, groups: Tensor, classes: int) -> list[int]:
    """In how many groups each class has images."""
    _, numbers = torch.unique(groups, return_inverse=True)
    pairs = torch.unique(numbers * classes + labels)
    found: list[int] = (pairs % classes).bincount(minlength=classes).tolist()
    return found


class _Division:
    """Groups on their way into parts."""

    def __init__(
        self, labels: Tensor, groups: Tensor, targets: Sequence[Sequence[int]], seed: int
    ) -> None:
        self.targets, classes, n = targets, len(targets[0]), len(labels)
        values, self.numbers = torch.unique(groups, return_inverse=True)
        sizes = self.numbers.bincount(minlength=len(values))
        # known by their first image, so that the numbers themselves decide nothing
        first = torch.full_like(values, n).scatter_reduce(
            0, self.numbers, torch.arange(n), "amin", include_self=False
        )
        order = random_order(first, seed)
        self.order: list[int] = order[sizes[order].argsort(descending=True, stable=True)].tolist()
        self.sizes: list[int] = sizes.tolist()
        self.holds: list[dict[int, int]] = [{} for _ in self.sizes]
        """Images of each class in each group."""
        pairs, counts = torch.unique(self.numbers * classes + labels, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.holds[pair // classes][pair % classes] = count
        self.totals: list[int] = labels.bincount(minlength=classes).tolist()
        self.part_of = [-1] * len(self.sizes)
        self.room = [sum(target) for target in targets]
        self.open = [part for part, room in enumerate(self.room) if room > 0]
        self.lacking = [list(target) for target in targets]
        """Images of each class that each part still has to get."""
        self.count = [0] * len(targets)
        """Groups in each part."""
        self.fewest = 0
        """Groups that no part gives away."""

    def assign(self) -> None:
        """Give every group to a part."""
        for group in self.order:
            fitting = [part for part in self.open if self.room[part] >= self.sizes[group]]
            if len(fitting) > 1:
                self.move(group, max(fitting, key=lambda part: self.need(part, group)))
            else:
                self.move(group, max(fitting or self.open, key=self.room.__getitem__))

    def fill(self, fewest: int) -> None:
        """Have so many groups in every part that gets any, the smallest of those with the most."""
        if len(self.order) < fewest * len(self.open):
            return
        self.fewest = fewest
        for part in self.open:
            while self.count[part] < fewest:
                richest = max(self.open, key=self.count.__getitem__)
                smallest = (g for g in reversed(self.order) if self.part_of[g] == richest)
                self.move(next(smallest), part)

    def has_more(self, part: int) -> bool:
        """Whether a part can give a group away."""
        return not self.fewest or self.count[part] > self.fewest

    def need(self, part: int, group: int) -> float:
        """How much of the group's classes the part lacks, as shares of what it should have.

        Counted from the middle of the group, or small parts would get the largest groups. A class
        counts by how much of it is in the group: common ones can be made up for.
        """
        target, lacking, found = self.targets[part], self.lacking[part], 0.0
        for c, count in self.holds[group].items():
            found += count / self.totals[c] * (lacking[c] - count / 2) / max(target[c], 0.5)
        return found

    def move(self, group: int, part: int) -> None:
        """Give the group to the part, if it was in another from there."""
        before, self.part_of[group] = self.part_of[group], part
        for place, sign in ((before, 1), (part, -1)):
            if place >= 0:
                self.count[place] -= sign
                self.room[place] += sign * self.sizes[group]
                for c, count in self.holds[group].items():
                    self.lacking[place][c] += sign * count

    def complete(self, part: int, least: Sequence[int]) -> None:
        """Have each class in at least `least[part]` groups of a part, if others can spare them."""
        if part not in self.open:
            return
        having = [[0] * len(self.totals) for _ in self.targets]
        """Groups with each class in each part."""
        members: list[list[int]] = [[] for _ in self.totals]
        for group in reversed(self.order):  # small ones first
            for c in self.holds[group]:
                members[c].append(group)
                having[self.part_of[group]][c] += 1

        def can_spare(group: int) -> bool:
            other = self.part_of[group]
            return all(having[other][c] > least[other] for c in self.holds[group])

        for c, owned in enumerate(members):
            while having[part][c] < least[part]:
                others = [group for group in owned if self.part_of[group] != part]
                spared = [group for group in others if can_spare(group)]
                spared += [group for group in others if self.part_of[group] > part]
                spared = [group for group in spared if self.has_more(self.part_of[group])]
                if not spared:
                    break
                taken = spared[0]
                for d in self.holds[taken]:
                    having[self.part_of[taken]][d] -= 1
                    having[part][d] += 1
                self.move(taken, part)

    def parts(self) -> Tensor:
        """The part of each image."""
        return torch.tensor(self.part_of)[self.numbers]
