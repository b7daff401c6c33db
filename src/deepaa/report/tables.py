"""A policy as small tables of numbers. Nothing is drawn or printed here."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from deepaa.policy import Policy


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
    shares = [_share(name, levels) for name, levels in by_name.items()]
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


def _share(name: str, levels: dict[float | None, float]) -> OperationShare:
    total = math.fsum(levels.values())
    magnitudes = [MagnitudeShare(m, p / total) for m, p in levels.items() if m is not None]
    magnitudes.sort(key=lambda item: (-round(item.share, 12), item.magnitude))
    return OperationShare(name, total, tuple(magnitudes))


def use_table(policy: Policy, epoch: int = 0) -> tuple[OperationUses, ...]:
    """How often an image meets each operation, the most frequent first, without unused ones."""
    uses = [OperationUses(*item) for item in policy.expected_uses(epoch).items() if item[1] > 0]
    return tuple(sorted(uses, key=lambda item: -round(item.uses, 12)))


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
