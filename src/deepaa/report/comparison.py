"""Policies compared: as tables, as a figure and as a picture of samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from PIL.Image import Image
from torch import Tensor

from deepaa.files import plural
from deepaa.ops import CIFAR, IMAGENET, Operation
from deepaa.policy import (
    SIDES,
    Policy,
    SpaceName,
    compared_policy,
    default_policy,
    hidden_share,
    layer_distances,
    load_policy,
    parse_policy_ref,
    use_distance,
)
from deepaa.report.drawing import Drawing, Line, Mark, Rect, Text
from deepaa.report.figures import LABELS, ticks
from deepaa.report.pictures import empty_sheet, preview_grid
from deepaa.runs import FOUND

STRONGEST = 5
LEVELS = tuple(range(-STRONGEST, STRONGEST + 1))
"""Magnitudes are shown on this scale, as in Appendix E of the paper."""
BESIDE = 3
"""Policies side by side in figures and pictures; more go below."""
BAR, COLUMN, LINE = 150.0, 212.0, 17.0
"""Of the figure: length of the longest bar, width of a policy, height of an operation."""


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

    The folder of a run means what its search found: the winner of its contest may be a policy that
    was known before. `run/policy.json` means the winner.

    Args:
        operations: Your own operations that files name.
        space: Which default augmentation, and which ranges where a name has them for both.
        epoch: Which phase of a schedule to take.
    """
    sources = [_found(source) for source in sources]
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


def common_space(sources: Sequence[str | Path], operations: Sequence[Operation] = ()) -> SpaceName:
    """The space that policies are compared in: ImageNet's where a file has its resized crop."""
    files = [source for source in map(_found, sources) if parse_policy_ref(source).name is None]
    for source in files:
        policy = load_policy(source, operations)
        if any(operation.name == "resized_crop" for operation in policy.table.operations):
            return "imagenet"
    return "cifar"


def _found(source: str | Path) -> str | Path:
    """The file of what was found, for the folder of a run that keeps it."""
    ref = parse_policy_ref(source)
    if ref.name is not None or ref.path is None or not has_found(ref.path):
        return source
    text = ref.text.replace(str(ref.path), str(ref.path / FOUND))
    return Path(text) if isinstance(source, Path) else text


def has_found(path: Path) -> bool:
    """Whether this is the folder of a run that keeps what its search found."""
    with suppress(OSError):  # a text that is too long for a path
        return (path / FOUND).is_file()
    return False


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
    ranges, names = _ranges(entries), _operations(entries)
    return Comparison(
        policies=tuple(_bars(entry, names, ranges, SIDES[space]) for entry in entries),
        ranges=tuple(ranges[name] for name in names if name in ranges),
        pairs=tuple(_pair(a, b) for a, b in combinations(entries, 2)),
    )


def _operations(entries: Iterable[Entry]) -> list[str]:
    """The names that occur: in the order of the paper's spaces, then others, identity last."""
    used = [
        name for entry in entries for name, uses in entry.policy.expected_uses().items() if uses > 0
    ]
    usual = [op.name for op in (*CIFAR.operations, *IMAGENET.operations) if op.name in used]
    return sorted(dict.fromkeys((*usual, *used)), key=lambda name: name == "identity")


def _ranges(entries: Iterable[Entry]) -> dict[str, Range]:
    """The widest range of each operation among the policies: a level is then one magnitude."""
    found: dict[str, Range] = {}
    for op in (op for entry in entries for op in entry.policy.table.operations):
        if op.low is not None and op.high is not None:
            _, low, high = found.get(op.name, Range(op.name, op.low, op.high))
            found[op.name] = Range(op.name, min(low, op.low), max(high, op.high))
    return found


def level(magnitude: float, scale: Range) -> int:
    """The magnitude on the scale of -5 to 5, rounded to a whole number away from 0."""
    # a digit fewer, since 2.5 and -2.5 come out of sums that differ in their last bit
    exact = round(2 * STRONGEST * (magnitude - scale.low) / (scale.high - scale.low), 9) - STRONGEST
    return int(math.copysign(math.floor(round(abs(exact), 9) + 0.5), exact))


def _bars(entry: Entry, names: Sequence[str], ranges: Mapping[str, Range], side: int) -> PolicyBars:
    found = {name: [0.0] * (len(LEVELS) + 2) for name in names}  # then without one, and by default
    for name in entry.defaults:
        found[name][-1] += 1.0
    own = entry.policy.row_probabilities()[: entry.depth].sum(0).tolist()
    for row, uses in zip(entry.policy.table.rows, own, strict=True):
        if uses:
            name, m = row.operation.name, row.magnitude
            found[name][-2 if m is None else level(m, ranges[name]) + STRONGEST] += uses
    bars = tuple(Bar(n, tuple(uses[:-2]), uses[-2], uses[-1]) for n, uses in found.items())
    hidden = hidden_share(entry.policy, side)
    return PolicyBars(entry.label, entry.depth, entry.defaults, bars, hidden, side)


def _pair(a: Entry, b: Entry) -> Pair:
    layers = layer_distances(a.policy.first_layers(a.depth), b.policy.first_layers(b.depth))
    distance = fmean(layers) if layers else 0.0
    return Pair(a.label, b.label, use_distance(a.policy, b.policy), distance, layers)


# The figure


def plot_comparison(found: Comparison) -> Drawing:
    """A bar per operation and policy, coloured by magnitude (Appendix E of the paper)."""
    operations = len(found.policies[0].bars)
    most = max((bar.total for policy in found.policies for bar in policy.bars), default=1.0)
    scale = BAR / (most or 1.0)
    columns = min(BESIDE, len(found.policies))
    width = LABELS + columns * COLUMN
    marks: list[Mark] = _key(found)
    tall = operations * LINE + 66
    for i, policy in enumerate(found.policies):
        x, y = LABELS + i % columns * COLUMN, 38 + i // columns * tall
        if not i % columns:
            rows = enumerate(policy.bars)
            marks += [Text(0, y + 46 + j * LINE, bar.operation, 12, "ink") for j, bar in rows]
            marks.append(Text(0, y + 48 + operations * LINE, "uses per image", 10))
        marks += _policy_bars(policy, x, y, scale, most)
    names = ", ".join(policy.label for policy in found.policies)
    description = f"Cumulative probability of each operation for {names}."
    height = 38 + -(-len(found.policies) // columns) * tall
    return Drawing("comparison", description, width, height, tuple(marks))


def _key(found: Comparison) -> list[Mark]:
    """What the colours mean: magnitudes from lowest to highest, none, default augmentation."""
    marks: list[Mark] = [Text(0, 12, "magnitude", 11)]
    x = LABELS
    for i, level in enumerate(LEVELS):
        marks += [Rect(x, 2, 16, 12, f"level-{i}"), _outline(x, 2, 16, 12)]
        if level % 5 == 0:
            marks.append(Text(x + 8, 26, f"{level}", 10, anchor="middle"))
        x += 16
    marks += [Rect(x + 24, 2, 16, 12, "nothing"), Text(x + 45, 12, "no magnitude", 11)]
    if any(policy.defaults for policy in found.policies):
        marks += [*_hatched(x + 140, 2, 16, 12), Text(x + 161, 12, "default augmentation", 11)]
    return marks


def _policy_bars(
    policy: PolicyBars, x: float, y: float, scale: float, most: float
) -> Iterable[Mark]:
    """The column of a policy: its name, an axis, and a bar with a number for each operation."""
    label = policy.label if len(policy.label) <= 28 else f"...{policy.label[-25:]}"
    yield Text(x, y + 12, label, 12, "ink", bold=True)
    yield Text(x, y + 27, policy.size, 10)
    top, bottom = y + 34, y + 36 + len(policy.bars) * LINE
    for value in ticks(0, most, 3):
        yield Line(((x + value * scale, top), (x + value * scale, bottom)), "grid", 1)
        yield Text(x + value * scale, bottom + 12, f"{value:g}", 10, anchor="middle")
    for i, bar in enumerate(policy.bars):
        yield from _stacked(bar, x, top + 3 + i * LINE, scale)
        number = f"{bar.total:.2f}" if bar.total >= 0.005 else "·"
        colour = "ink" if bar.total >= 0.1 else "faint"
        yield Text(x + BAR + 34, top + 12 + i * LINE, number, 10, colour, "end")


def _stacked(bar: Bar, x: float, y: float, scale: float) -> Iterable[Mark]:
    parts = [
        (p, f"level-{i}", f"{bar.operation}, magnitude {level} of -5 to 5: {p:.3f}")
        for i, (level, p) in enumerate(zip(LEVELS, bar.levels, strict=True))
    ]
    parts.append((bar.plain, "nothing", f"{bar.operation}: {bar.plain:.3f}"))
    start = x
    for p, colour, title in parts:
        if p > 0:
            yield Rect(x, y, p * scale, LINE - 6, colour, 1.0, title)
            x += p * scale
    if bar.default:
        yield from _hatched(x, y, bar.default * scale, LINE - 6)
        x += bar.default * scale
    if x > start:
        yield _outline(start, y, x - start, LINE - 6)


def _outline(x: float, y: float, width: float, height: float) -> Line:
    right, low = x + width, y + height
    return Line(((x, y), (right, y), (right, low), (x, low), (x, y)), "faint", 0.5)


def _hatched(x: float, y: float, width: float, height: float) -> Iterable[Mark]:
    """A box with slanted lines across, for what is not the policy's own."""
    yield _outline(x, y, width, height)
    yield from (
        Line(((left, y + height), (left + height / 2, y)), "faint", 0.75)
        for left in (x + 5.0 * i for i in range(int((width - height / 2) / 5) + 1))
    )


# A picture of samples


def comparison_grid(
    images: Tensor, entries: Sequence[Entry], draws: int = 3, seed: int = 0
) -> Image:
    """The same uint8 (N, 1 or 3, H, W) images under each policy: originals on top, draws below."""
    if not entries:
        raise ValueError("no policies to show")
    grids = [preview_grid(images, e.policy, draws, seed, title=e.label) for e in entries]
    width, height = grids[0].size
    columns = 2 if len(grids) == 4 else min(BESIDE, len(grids))
    sheet = empty_sheet(width * columns, height * -(-len(grids) // columns))
    for i, grid in enumerate(grids):
        sheet.paste(grid, (i % columns * width, i // columns * height))
    return sheet
