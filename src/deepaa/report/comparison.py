"""Policies compared, as tables of numbers. Nothing is drawn or printed here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from deepaa.ops import CIFAR, IMAGENET, Operation
from deepaa.policy import (
    SIDES,
    SPACES,
    Policy,
    SpaceName,
    compared_policy,
    default_policy,
    hidden_share,
    layer_distances,
    parse_policy_ref,
    use_distance,
)
from deepaa.report.wording import plural

STRONGEST = 5
LEVELS = tuple(range(-STRONGEST, STRONGEST + 1))
"""Magnitudes are shown on this scale, as in Appendix E of the paper."""


class Entry(NamedTuple):
    """A policy that is compared."""

    label: str
    policy: Policy
    """As its authors run it, with the default augmentation behind it if they do."""
    defaults: tuple[str, ...]
    """Names of the operations of that default augmentation; the last layers of `policy`."""

    @property
    def depth(self) -> int:
        """Layers without the default augmentation."""
        return self.policy.depth - len(self.defaults)

    @property
    def own(self) -> Policy:
        """The policy without the default augmentation."""
        return self.policy.first_layers(self.depth)


class Bar(NamedTuple):
    """How often an image meets an operation, summed over all layers."""

    operation: str
    levels: tuple[float, ...]
    """By magnitude: one number for each of `LEVELS`."""
    plain: float
    """Without a magnitude."""
    default: float
    """By the default augmentation."""

    @property
    def total(self) -> float:
        """The cumulative probability, which may be above 1."""
        return math.fsum((*self.levels, self.plain, self.default))


class PolicyBars(NamedTuple):
    """The cumulative probabilities of a policy."""

    label: str
    layers: int
    """Without the default augmentation."""
    defaults: tuple[str, ...]
    bars: tuple[Bar, ...]
    """The same operations in the same order for all policies."""
    hidden: float
    """The share of an augmented image that shows a fill instead of the image."""
    side: int
    """Of the square images on which that was counted."""

    @property
    def size(self) -> str:
        """`2 layers, then crop, flip, cutout`."""
        then = f", then {', '.join(self.defaults)}" if self.defaults else ""
        return plural(self.layers, "layer") + then


class Range(NamedTuple):
    """The magnitudes of an operation that are -5 and 5 on the common scale."""

    operation: str
    low: float
    high: float


class Pair(NamedTuple):
    """How far two policies are apart: 0 for equal ones, 1 for no operation in common."""

    first: str
    second: str
    uses: float
    """By how often an image meets each operation in all, whatever the order of the layers."""
    distance: float
    """Layer by layer, without the default augmentation: the mean of `layers`."""
    layers: tuple[float, ...]
    """A layer that only the longer policy has is compared with identity."""


class Comparison(NamedTuple):
    """All that `deepaa compare` tells."""

    policies: tuple[PolicyBars, ...]
    ranges: tuple[Range, ...]
    pairs: tuple[Pair, ...]


# Reading


def load_entries(
    sources: Sequence[str | Path],
    operations: Sequence[Operation] = (),
    *,
    space: SpaceName = "cifar",
    epoch: int = 0,
) -> tuple[Entry, ...]:
    """The policies of names and files, each as its authors run it.

    Args:
        operations: Your own operations that files name.
        space: Which default augmentation, and which ranges where a name has them for both.
        epoch: Which phase of a schedule to take.
    """
    if space not in SPACES:
        raise ValueError(f"space should be {' or '.join(SPACES)}, got {space!r}")
    labels = _labels([str(source) for source in sources])
    added = tuple(op.name for op in default_policy(space).table.operations)
    entries = []
    for label, source in zip(labels, sources, strict=True):
        alone = compared_policy(source, defaults=False, space=space, operations=operations)
        whole = compared_policy(source, space=space, operations=operations)
        defaults = added if whole.depth > alone.depth else ()
        if len(whole.phases) > 1:  # PBA's, say, does nothing in its first epochs
            label = f"{label} in epoch {epoch}"
            whole = Policy(whole.table, whole.phase(epoch).stages, info=whole.info)
        entries.append(Entry(label, whole, defaults))
    return tuple(entries)


def _labels(sources: Sequence[str]) -> list[str]:
    """File names without folders where that tells them apart; a repeated source is numbered."""
    short = [parse_policy_ref(source).label for source in sources]
    names = [s if short.count(s) == 1 else source for s, source in zip(short, sources, strict=True)]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]


# Tables


def compare_policies(entries: Sequence[Entry], *, space: SpaceName = "cifar") -> Comparison:
    """How often an image meets each operation, how much is hidden, and distances."""
    ranges = {item.operation: item for item in _ranges(entries)}
    names = _operations(entries)
    return Comparison(
        policies=tuple(_bars(entry, names, ranges, SIDES[space]) for entry in entries),
        ranges=tuple(ranges[name] for name in names if name in ranges),
        pairs=tuple(_pair(a, b) for a, b in combinations(entries, 2)),
    )


def _operations(entries: Iterable[Entry]) -> list[str]:
    """The names that occur: in the order of the paper's spaces, then others, identity last."""
    found: dict[str, float] = {}
    for entry in entries:
        for name, uses in entry.policy.expected_uses().items():
            found[name] = found.get(name, 0.0) + uses
    usual = [op.name for op in (*CIFAR.operations, *IMAGENET.operations)]
    order = [name for name in dict.fromkeys((*usual, *found)) if found.get(name, 0.0) > 0]
    return sorted(order, key=lambda name: name == "identity")


def _ranges(entries: Iterable[Entry]) -> list[Range]:
    """The widest range of each operation among the policies: a level is then one magnitude."""
    ends: dict[str, tuple[float, float]] = {}
    for entry in entries:
        for op in entry.policy.table.operations:
            if op.low is not None and op.high is not None:
                low, high = ends.get(op.name, (op.low, op.high))
                ends[op.name] = (min(low, op.low), max(high, op.high))
    return [Range(name, low, high) for name, (low, high) in ends.items()]


def level(magnitude: float, scale: Range) -> int:
    """The magnitude on the scale of -5 to 5, rounded to a whole number away from 0."""
    # a digit fewer, since 2.5 and -2.5 come out of sums that differ in their last bit
    exact = round(2 * STRONGEST * (magnitude - scale.low) / (scale.high - scale.low), 9) - STRONGEST
    return int(math.copysign(math.floor(round(abs(exact), 9) + 0.5), exact))


def _bars(entry: Entry, names: Sequence[str], ranges: Mapping[str, Range], side: int) -> PolicyBars:
    levels = {name: [0.0] * len(LEVELS) for name in names}
    plain, default = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for name in entry.defaults:
        default[name] += 1.0
    own = entry.policy.row_probabilities()[: entry.depth].sum(0).tolist()
    for row, uses in zip(entry.policy.table.rows, own, strict=True):
        name = row.operation.name
        if uses and row.magnitude is not None:
            levels[name][level(row.magnitude, ranges[name]) + STRONGEST] += uses
        elif uses:
            plain[name] += uses
    bars = (Bar(name, tuple(levels[name]), plain[name], default[name]) for name in names)
    hidden = hidden_share(entry.policy, side)
    return PolicyBars(entry.label, entry.depth, entry.defaults, tuple(bars), hidden, side)


def _pair(a: Entry, b: Entry) -> Pair:
    layers = layer_distances(a.own, b.own)
    distance = fmean(layers) if layers else 0.0
    return Pair(a.label, b.label, use_distance(a.policy, b.policy), distance, layers)
