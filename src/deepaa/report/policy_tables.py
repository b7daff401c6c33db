"""A policy as small tables of numbers. Nothing is drawn or printed here."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from deepaa.ops import Transformation
from deepaa.policy import Layers, Policy, Stage

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


class MagnitudeShare(NamedTuple):
    """A magnitude of an operation and its share of the operation's probability in a layer."""

    magnitude: float
    share: float


class OperationShare(NamedTuple):
    """How often a layer applies an operation, and at which magnitudes."""

    name: str
    probability: float
    magnitudes: tuple[MagnitudeShare, ...]
    """Those that occur, the most frequent first; empty for an operation without magnitudes."""


class LayerTable(NamedTuple):
    """One layer (or one slot of a policy's chains) as numbers."""

    layer: int
    """Counted from 1."""
    entropy: float
    """Of the distribution over the table's rows, in bits."""
    perplexity: float
    """2 ** entropy: how many equally likely rows would be as uncertain."""
    identity: float
    """Probability that the layer changes nothing."""
    operations: tuple[OperationShare, ...]
    """The most frequent operations, the most frequent first."""
    others: int
    """How many operations occur beyond those."""
    others_probability: float


class OperationUses(NamedTuple):
    """How often an image meets an operation, on average over a draw."""

    name: str
    uses: float


def layer_table(policy: Policy, epoch: int = 0, top: int = 6) -> tuple[LayerTable, ...]:
    """The layers in force at `epoch`, each with its `top` most frequent operations.

    Rows of one operation name count together. A closed gate of a chain counts as identity.
    """
    if top < 1:
        raise ValueError(f"top should be at least 1, got {top}")
    rows = policy.row_probabilities(epoch).tolist()
    return tuple(_layer(policy, k + 1, row, top) for k, row in enumerate(rows))


def _layer(policy: Policy, layer: int, probabilities: list[float], top: int) -> LayerTable:
    used = [p for p in probabilities if p > 0]
    total = math.fsum(used)  # 1, but for the rounding of the file
    entropy = -math.fsum(p / total * math.log2(p / total) for p in used) + 0.0
    by_name: dict[str, dict[float | None, float]] = {}
    for row, p in zip(policy.table.rows, probabilities, strict=True):
        if p > 0:
            levels = by_name.setdefault(row.operation.name, {})
            levels[row.magnitude] = levels.get(row.magnitude, 0.0) + p
    shares = [_operation_share(name, levels) for name, levels in by_name.items()]
    # Equal probabilities may differ in their last digits by the order of summation.
    shares.sort(key=lambda share: -round(share.probability, 12))
    identity = [share.probability for share in shares if share.name == "identity"]
    rest = shares[top:]
    return LayerTable(
        layer=layer,
        entropy=entropy,
        perplexity=2.0**entropy,
        identity=identity[0] if identity else 0.0,
        operations=tuple(shares[:top]),
        others=len(rest),
        others_probability=math.fsum(share.probability for share in rest),
    )


def _operation_share(name: str, levels: dict[float | None, float]) -> OperationShare:
    total = math.fsum(levels.values())
    magnitudes = [MagnitudeShare(m, p / total) for m, p in levels.items() if m is not None]
    magnitudes.sort(key=lambda item: (-round(item.share, 12), item.magnitude))
    return OperationShare(name, total, tuple(magnitudes))


def use_table(policy: Policy, epoch: int = 0) -> tuple[OperationUses, ...]:
    """How often an image meets each operation, the most frequent first, without unused ones."""
    uses = [OperationUses(*item) for item in policy.expected_uses(epoch).items() if item[1] > 0]
    return tuple(sorted(uses, key=lambda item: -round(item.uses, 12)))


class OperationRow(NamedTuple):
    """An operation's probability in every layer."""

    name: str
    family: str
    probabilities: tuple[float, ...]

    @property
    def uses(self) -> float:
        """How often an image meets the operation."""
        return round(sum(self.probabilities), 12)

    @property
    def peak(self) -> int:
        """The layer, counted from 1, that uses it most; 0 if none does."""
        most = max(self.probabilities, default=0.0)
        return 1 + self.probabilities.index(most) if most else 0


def operation_table(policy: Policy, epoch: int = 0) -> tuple[OperationRow, ...]:
    """The distribution of operations at each layer (the paper's Figure 3).

    Operations come family by family, within one in the order of the policy's table.
    """
    names = list(dict.fromkeys(op.name for op in policy.table.operations))
    layers = layer_table(policy, epoch, top=len(names))
    shares = [{share.name: share.probability for share in layer.operations} for layer in layers]
    rows = [
        OperationRow(name, family_of(name), tuple(share.get(name, 0.0) for share in shares))
        for name in names
    ]
    order = [*FAMILIES, OWN]
    return tuple(sorted(rows, key=lambda row: order.index(row.family)))


def family_of(name: str) -> str:
    """The family of an operation."""
    return next((family for family, names in FAMILIES.items() if name in names), OWN)


class MagnitudeTable(NamedTuple):
    """How an operation's magnitudes are distributed in each layer (Appendices B and C)."""

    name: str
    family: str
    magnitudes: tuple[float, ...]
    """Rising."""
    probabilities: tuple[float, ...]
    """Of the operation, per layer."""
    shares: tuple[tuple[float, ...], ...]
    """Per layer and magnitude, summing to 1; empty where the layer hardly uses the operation."""


def magnitude_tables(policy: Policy, epoch: int = 0) -> tuple[MagnitudeTable, ...]:
    """A table for each operation with several magnitudes that some layer uses."""
    layers = layer_table(policy, epoch, top=len(policy.table.operations))
    found = []
    for row in operation_table(policy, epoch):
        own = [r.magnitude for r in policy.table.rows if r.operation.name == row.name]
        levels = sorted({magnitude for magnitude in own if magnitude is not None})
        if len(levels) < 2 or max(row.probabilities, default=0.0) < RARE:
            continue
        shares = tuple(_levels(layer, row.name, levels) for layer in layers)
        found.append(MagnitudeTable(row.name, row.family, tuple(levels), row.probabilities, shares))
    return tuple(found)


def _levels(layer: LayerTable, name: str, levels: Sequence[float]) -> tuple[float, ...]:
    for share in layer.operations:
        if share.name == name and share.probability >= RARE:
            known = {item.magnitude: item.share for item in share.magnitudes}
            return tuple(known.get(level, 0.0) for level in levels)
    return ()


# Sequences


class OperationSequence(NamedTuple):
    """Operations that an image meets one after the other, and the share of images that do."""

    operations: tuple[str, ...]
    """Without identity; empty where the image stays as it is."""
    probability: float


class TransformationUse(NamedTuple):
    """A transformation and how often an image meets it, on average over a draw."""

    row: int
    """Its place in the policy's table."""
    transformation: Transformation
    uses: float


def likely_sequences(
    policy: Policy, top: int = 10, epoch: int = 0
) -> tuple[OperationSequence, ...]:
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
    return tuple(OperationSequence(*item) for item in best[:top])


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


# All together


class PolicyTable(NamedTuple):
    """All that `deepaa show` tells about a policy."""

    name: str
    epoch: int
    epochs: tuple[int, ...]
    """First epochs of the policy's phases; `(0,)` unless it changes over time."""
    transformations: int
    """Rows of the policy's table."""
    operations: int
    """Distinct operations among them."""
    info: dict[str, str]
    layers: tuple[LayerTable, ...]
    uses: tuple[OperationUses, ...]


def policy_table(policy: Policy, name: str, epoch: int = 0, top: int = 6) -> PolicyTable:
    """A policy's size, notes, layers and expected uses."""
    if epoch < 0:
        raise ValueError(f"epoch should be at least 0, got {epoch}")
    return PolicyTable(
        name=name,
        epoch=epoch,
        epochs=tuple(phase.epoch for phase in policy.phases),
        transformations=len(policy.table),
        operations=len(policy.table.operations),
        info=dict(policy.info),
        layers=layer_table(policy, epoch, top),
        uses=use_table(policy, epoch),
    )


def as_dict(table: Any) -> Any:
    """A table as dicts, lists, numbers and text, ready for `json.dumps`."""
    if isinstance(table, tuple) and hasattr(table, "_asdict"):
        return {key: as_dict(value) for key, value in table._asdict().items()}
    if isinstance(table, tuple | list):
        return [as_dict(item) for item in table]
    if isinstance(table, dict):
        return {key: as_dict(value) for key, value in table.items()}
    return table
