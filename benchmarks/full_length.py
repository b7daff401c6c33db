"""Trainings of candidates in one length on a part of the images, for the benchmarks of choices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepaa.search.contest import ContestTable
from deepaa.search.contest.plan import Job, Plan, Rung


@dataclass(frozen=True)
class FullLength(Plan):
    """One training of every candidate for the target, by one seed, and no proof."""

    seed: int = 0

    def rungs(self, table: ContestTable) -> list[Rung]:
        """The only one."""
        return [Rung(self.target, list(self.names), (self.seed,))]

    def next_jobs(self, table: ContestTable) -> list[Job]:
        """Those that are missing."""
        done = {entry.candidate for entry in table.entries}
        return [Job(name, self.target, self.seed) for name in self.names if name not in done]


def shuffled(labels: Tensor, seed: int) -> Tensor:
    """All indices in an order by seed, whose beginnings have as many images of each class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    rank = torch.zeros_like(labels)  # of an image in its class
    for label in torch.unique(labels):
        own = labels[order] == label
        rank[own] = torch.arange(int(own.sum()))
    return order[rank.argsort(stable=True)]
