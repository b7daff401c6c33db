"""The operations of a policy as tables for figures and pages: by layer, magnitude and sequence."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from deepaa.policy import Layers, Policy, Stage
from deepaa.report.policy_tables import OperationShare, layer_table

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "nothing": ("identity",),
    "geometry": (
        *("shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
        *("flip", "crop", "resized_crop"),
    ),
    "colour": (
        *("auto_contrast", "invert", "equalize", "solarize", "posterize"),
        *("contrast", "color", "brightness", "sharpness"),
    ),
    "erasing": ("cutout",),
}
OWN = "own"
"""Family of operations that are not built in."""
RARE = 0.001
"""An operation below this share of a layer gets no table of its magnitudes there."""
WIDTH = 4096
"""Partial sequences that are followed; shares below the last of them are lost."""


class OperationRow(NamedTuple):
    """An operation's probability in every layer, and how its magnitudes are distributed there."""

    name: str
    family: str
    probabilities: tuple[float, ...]
    magnitudes: tuple[float, ...]
    """Rising; empty for an operation without magnitudes."""
    shares: tuple[tuple[float, ...], ...]
    """Per layer and magnitude, summing to 1; empty where the layer hardly uses the operation."""

    @property
    def uses(self) -> float:
        """How often an image meets the operation."""
        return round(sum(self.probabilities), 12)

    @property
    def peak(self) -> int:
        """The layer, counted from 1, that uses it most; 0 if none does."""
        most = max(self.probabilities, default=0.0)
        return 1 + self.probabilities.index(most) if most else 0

    @property
    def is_spread(self) -> bool:
        """Whether it has several magnitudes, and some layer uses it."""
        return len(self.magnitudes) > 1 and max(self.probabilities, default=0.0) >= RARE


def operation_table(policy: Policy, epoch: int = 0) -> tuple[OperationRow, ...]:
    """The distribution of operations at each layer (the paper's Figure 3, Appendices B and C).

    Operations come family by family, within one in the order of the policy's table.
    """
    layers = [
        {share.name: share for share in layer.operations}
        for layer in layer_table(policy, epoch, top=None)
    ]
    found = []
    for name in dict.fromkeys(op.name for op in policy.table.operations):
        own = [layer.get(name, OperationShare(name, 0.0, ())) for layer in layers]
        levels = {r.magnitude for r in policy.table.rows if r.operation.name == name}
        magnitudes = tuple(sorted(m for m in levels if m is not None))
        known = [dict(share.magnitudes) if share.probability >= RARE else None for share in own]
        shares = (() if k is None else tuple(k.get(m, 0.0) for m in magnitudes) for k in known)
        family = next((family for family, names in FAMILIES.items() if name in names), OWN)
        probabilities = tuple(share.probability for share in own)
        found.append(OperationRow(name, family, probabilities, magnitudes, tuple(shares)))
    order = [*FAMILIES, OWN]
    return tuple(sorted(found, key=lambda row: order.index(row.family)))


# Sequences


Operations = tuple[str, ...]
"""Names of operations that an image meets one after the other, without identity."""
Shares = dict[Operations, float]
"""The share of images that meet each sequence of operations."""


def likely_sequences(
    policy: Policy, top: int = 10, epoch: int = 0
) -> list[tuple[Operations, float]]:
    """The most frequent sequences of operations and their shares, the most frequent first.

    Sequences that differ only in where identity stands, or in magnitudes, count together. Where a
    policy has more than some thousands of them, the shares are lower bounds.
    """
    rows = [row.operation.name for row in policy.table.rows]
    names = [() if name == "identity" else (name,) for name in rows]
    known: Shares = {(): 1.0}
    for stage in policy.phase(epoch).stages:
        for choices in _factors(stage, names):
            known = _extended(known, choices)
    return sorted(known.items(), key=lambda item: (-round(item[1], 12), item[0]))[:top]


def _factors(stage: Stage, names: Sequence[Operations]) -> Iterator[Shares]:
    """Independent parts of a stage: each layer, or all slots of chains at once."""
    if isinstance(stage, Layers):
        for layer in stage.probabilities.tolist():
            yield _summed(zip(names, layer, strict=True))
        return
    ends: list[tuple[Operations, float]] = []
    for weight, rows, gates in zip(
        stage.weights.tolist(), stage.rows.tolist(), stage.gates.tolist(), strict=True
    ):
        chain: Shares = {(): weight}
        for row, gate in zip(rows, gates, strict=True):
            chain = _extended(chain, _summed([(names[row], gate), ((), 1 - gate)]))
        ends += chain.items()
    yield _summed(ends)


def _summed(items: Iterable[tuple[Operations, float]]) -> Shares:
    found: Shares = {}
    for key, p in items:
        if p > 0:
            found[key] = found.get(key, 0.0) + p
    return found


def _extended(known: Shares, choices: Shares) -> Shares:
    """Every sequence followed by every choice; only the likeliest are kept."""
    found = _summed(
        (first + second, p * q) for first, p in known.items() for second, q in choices.items()
    )
    if len(found) <= WIDTH:
        return found
    return dict(heapq.nlargest(WIDTH, found.items(), key=lambda item: item[1]))


def top_transformations(policy: Policy, top: int = 8, epoch: int = 0) -> list[tuple[int, float]]:
    """The most used transformation of each of the most used operations, without identity.

    Pairs of its row in the policy's table, and how often an image meets it.
    """
    uses = policy.row_probabilities(epoch).sum(0).tolist()
    by_name: dict[str, list[tuple[int, float]]] = {}
    for i, (row, use) in enumerate(zip(policy.table.rows, uses, strict=True)):
        if use > 0 and row.operation.name != "identity":
            by_name.setdefault(row.operation.name, []).append((i, use))
    ranked = sorted(by_name.values(), key=lambda rows: -round(sum(use for _, use in rows), 12))
    return [max(rows, key=lambda row: round(row[1], 12)) for rows in ranked[:top]]
