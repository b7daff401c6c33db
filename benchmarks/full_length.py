"""Trainings of candidates in one length on a part of the images, for the benchmarks of choices."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepaa.data import DataSpec, LabelledImages
from deepaa.policy import Policy
from deepaa.search.contest import (
    Candidate,
    Contest,
    ContestEntry,
    ContestTable,
    Entry,
    JudgedImages,
    Network,
)
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


def forms(name: str, policy: Policy) -> list[Candidate]:
    """A policy as it is, spread, and at half strength."""
    each = {"": policy, "-spread": policy.spread(), "-half": policy.strength(0.5)}
    return [Candidate(f"{name}{form}", name, made) for form, made in each.items()]


def trained(
    candidates: Sequence[Candidate], images: JudgedImages, network: Network, epochs: int, seed: int
) -> Iterator[tuple[ContestEntry, Entry]]:
    """Each candidate, once it is trained: what was recorded and what it answered."""
    plan = FullLength(tuple(each.name for each in candidates), epochs, 0, seed)
    contest = Contest(candidates, images, network, plan)
    for record in contest:
        if isinstance(record, ContestEntry):
            print(f"  {record.candidate}: {100 * record.accuracy:.2f} %", flush=True)
            yield record, contest.table.of(record.candidate, epochs)[0]


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which images there are, and where the rows go."""
    parser.add_argument("--data")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--size", type=int)
    parser.add_argument("--out", type=Path, required=True)


def rows_and_images(given: argparse.Namespace) -> tuple[list[dict[str, Any]], LabelledImages]:
    """The rows that the file has already, and all training images."""
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    return rows, DataSpec.from_options(given.data, size=given.size, root=given.root).load()
