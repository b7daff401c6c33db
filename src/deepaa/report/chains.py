"""The most likely sequences of operations of a policy, and its most used transformations."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deepaa.policy import Policy
from deepaa.space import Transformation
from deepaa.stages import Layers, Stage

WIDTH = 4096
"""Partial sequences that are followed; shares below the last of them are lost."""


class LikelyChain(NamedTuple):
    """Operations that an image meets one after the other, and how often it meets just these."""

    operations: tuple[str, ...]
    """Without identity; empty where the image stays as it is."""
    probability: float


class TransformationUse(NamedTuple):
    """A transformation and how often an image meets it, on average over a draw."""

    row: int
    """Its place in the policy's table."""
    transformation: Transformation
    uses: float


def likely_chains(policy: Policy, top: int = 10, epoch: int = 0) -> tuple[LikelyChain, ...]:
    """The most frequent sequences of operations, the most frequent first.

    Sequences that differ only in where identity stands, or in magnitudes, count together. Where a
    policy has more than some thousands of them, the shares are lower bounds.
    """
    names = [row.operation.name for row in policy.table.rows]
    known: dict[tuple[str, ...], float] = {(): 1.0}
    for stage in policy.phase(epoch).stages:
        for choices in _factors(stage, names):
            known = _extended(known, choices)
    best = sorted(known.items(), key=lambda item: (-round(item[1], 12), item[0]))
    return tuple(LikelyChain(*item) for item in best[:top])


Choices = dict[tuple[str, ...], float]


def _factors(stage: Stage, names: Sequence[str]) -> Iterable[Choices]:
    """Independent parts of a stage: each layer, or all slots of chains at once."""
    if isinstance(stage, Layers):
        for layer in stage.probabilities.tolist():
            yield _summed(((_kept(name), p) for name, p in zip(names, layer, strict=True)))
        return
    total: Choices = {}
    for weight, rows, gates in zip(
        stage.weights.tolist(), stage.rows.tolist(), stage.gates.tolist(), strict=True
    ):
        chain: Choices = {(): weight}
        for row, gate in zip(rows, gates, strict=True):
            chain = _extended(chain, _summed([(_kept(names[row]), gate), ((), 1 - gate)]))
        for sequence, p in chain.items():
            total[sequence] = total.get(sequence, 0.0) + p
    yield total


def _kept(name: str) -> tuple[str, ...]:
    return () if name == "identity" else (name,)


def _summed(items: Iterable[tuple[tuple[str, ...], float]]) -> Choices:
    found: Choices = {}
    for key, p in items:
        if p > 0:
            found[key] = found.get(key, 0.0) + p
    return found


def _extended(known: Choices, choices: Choices) -> Choices:
    """Every sequence followed by every choice; only the likeliest are kept."""
    found = _summed(
        (first + second, p * q) for first, p in known.items() for second, q in choices.items()
    )
    if len(found) <= WIDTH:
        return found
    return dict(heapq.nlargest(WIDTH, found.items(), key=lambda item: item[1]))


def top_transformations(
    policy: Policy, top: int = 8, epoch: int = 0
) -> tuple[TransformationUse, ...]:
    """The most used transformation of each of the most used operations, without identity."""
    uses = policy.row_probabilities(epoch).sum(0).tolist()
    by_name: dict[str, list[TransformationUse]] = {}
    for i, (row, use) in enumerate(zip(policy.table.rows, uses, strict=True)):
        if use > 0 and row.operation.name != "identity":
            by_name.setdefault(row.operation.name, []).append(
                TransformationUse(i, row.transformation, use)
            )
    ranked = sorted(by_name.values(), key=lambda group: -round(sum(u.uses for u in group), 12))
    return tuple(max(group, key=lambda u: round(u.uses, 12)) for group in ranked[:top])
