"""How far policies are apart, how much of an image they hide, and their likely sequences."""

import heapq
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from deepaa.ops import Table, apply_batch, sample_keys
from deepaa.policy.policy import Policy
from deepaa.policy.stages import IDENTITY, Layers, Stage

DRAWS, TOGETHER = 2048, 256
_PLACING = {"shear_x", "shear_y", "translate_x", "translate_y", "rotate"}
_PLACING |= {"flip", "cutout", "crop", "resized_crop"}
"""Operations that decide where pixels go; the others only change what is there."""
Operations = tuple[str, ...]
"""Names of operations that an image meets one after the other, without identity."""
Shares = dict[Operations, float]
"""The share of images that meet each sequence of operations."""
WIDTH = 4096
"""Partial sequences that are followed; shares below the last of them are lost."""


_OWN = ("crop", "resized_crop", "flip", "cutout")
"""Operations that people have in their code already."""
_SELDOM = 0.05
"""An operation that an image meets less often is not worth a word."""


def own_advice(policy: Policy) -> str:
    """What to do with the crop, flip and cutout that people have already: it depends on the policy.

    Of a schedule every phase counts.
    """
    phases = [policy.expected_uses(phase.epoch) for phase in policy.phases]
    most = {name: max(uses.get(name, 0.0) for uses in phases) for name in _OWN}
    has = [name.replace("_", " ") for name in _OWN if most[name] > _SELDOM]
    if not has:
        return "It has no crop, flip or cutout; whether yours help beside it, a training tells."
    listed = f"{', '.join(has[:-1])} and {has[-1]}" if len(has) > 1 else has[0]
    return f"It has its own {listed}: remove yours."


def policy_distance(a: Policy, b: Policy) -> float:
    """The mean of `layer_distances`: 0 for equal policies, 1 for no operation in common."""
    layers = layer_distances(a, b)
    return math.fsum(layers) / len(layers) if layers else 0.0


def layer_distances(a: Policy, b: Policy) -> tuple[float, ...]:
    """The total variation distance between the operations of each layer, from 0 to 1.

    A layer that only one of the policies has is compared with identity.
    """
    names = sorted({op.name for p in (a, b) for op in p.table.operations} | {"identity"})
    depth = max(a.depth, b.depth)
    gaps = _operation_shares(a, names, depth) - _operation_shares(b, names, depth)
    return tuple((gaps.abs().sum(1) / 2).tolist())


def _operation_shares(policy: Policy, names: Sequence[str], depth: int) -> Tensor:
    """(depth, names) how often each layer applies each operation; identity past the last layer."""
    shares = torch.zeros(depth, len(names), dtype=torch.float64)
    shares[policy.depth :, names.index("identity")] = 1
    columns = zip(policy.operation_probabilities().T, policy.table.operations, strict=True)
    for column, operation in columns:
        shares[: policy.depth, names.index(operation.name)] += column
    return shares


def use_distance(a: Policy, b: Policy) -> float:
    """How differently often an image meets operations other than identity, from 0 to 1.

    It is the difference of the expected uses over their sum; the order of layers has no influence.
    """
    first, second = a.expected_uses(), b.expected_uses()
    names = (first.keys() | second.keys()) - {"identity"}
    pairs = [(first.get(name, 0.0), second.get(name, 0.0)) for name in sorted(names)]
    total = math.fsum(x + y for x, y in pairs)
    return math.fsum(abs(x - y) for x, y in pairs) / total if total else 0.0


def hidden_share(policy: Policy, side: int = 32, epoch: int = 0) -> float:
    """The share of an augmented image that shows a fill instead of the image, on average.

    Counted on draws: a pixel that comes out alike for a black and for a white image shows neither.
    Your own operations count as hiding nothing, and a resized crop hides nothing of what it keeps.

    Args:
        side: Of the square images; operations that count in pixels hide less of larger ones.
        epoch: Which phase of a schedule to take.
    """
    # identity in place of every row that moves and covers no pixel
    rows = policy.table.rows
    placing = Table(row if row.operation.name in _PLACING else IDENTITY for row in rows)
    hidden = 0.0
    for first in range(0, DRAWS, TOGETHER):
        draw = policy.draw(sample_keys(0, epoch, torch.arange(first, first + TOGETHER)), epoch)
        black = torch.zeros(TOGETHER, 1, side, side, dtype=torch.uint8)
        alike = apply_batch(black, draw, placing) == apply_batch(black + 255, draw, placing)
        hidden += float(alike.double().mean())
    return hidden * TOGETHER / DRAWS


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


def _factors(stage: Stage, names: Sequence[Operations]) -> list[Shares]:
    """Independent parts of a stage: each layer, or all slots of chains at once."""
    if isinstance(stage, Layers):
        return [_summed(zip(names, layer, strict=True)) for layer in stage.probabilities.tolist()]
    ends: list[tuple[Operations, float]] = []
    parts = (stage.weights, stage.rows, stage.gates)
    for weight, rows, gates in zip(*(part.tolist() for part in parts), strict=True):
        chain: Shares = {(): weight}
        for row, gate in zip(rows, gates, strict=True):
            chain = _extended(chain, _summed([(names[row], gate), ((), 1 - gate)]))
        ends += chain.items()
    return [_summed(ends)]


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
