"""Policies made from a policy: weaker, spread out, without some rows, with other phases.

The first three say for each row which rows take its place, with which shares. The result is an
ordinary policy: equal rows and equal chains are one, rows that nothing draws are left out, and so
are layers that change nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from deepaa.ops import BITS, SLOTS, TABLES, Draw, Operation, Row, Table, hash_keys
from deepaa.policy.stages import IDENTITY, Chains, Layers, Stage

if TYPE_CHECKING:
    from deepaa.policy.policy import Policy

CHANGED = "changed"
"""The key of a policy's `info` that says what was made of it."""
SCHEDULE_EPOCHS = "epochs of the schedule"
"""The key of a schedule's `info` that says how many epochs it is for."""
STEPS = 11
"""Even steps that stand for a uniform magnitude: a prime, so that chains can pair them."""
PAIRING = 7
"""Slot s of the k-th copy of a chain takes step k PAIRING^s mod STEPS, so each step just once."""
DIGITS = 12
"""Magnitudes are rounded as those of a space are, so that equal ones are found equal."""
Ways = Sequence[tuple[Row, float]]
"""The rows that take the place of a row, and their shares, which sum to 1."""


def schedule_info(info: dict[str, str], epochs: int) -> dict[str, str]:
    """The info of a schedule that was stretched to so many epochs."""
    return {**info, SCHEDULE_EPOCHS: str(epochs)} if SCHEDULE_EPOCHS in info else info


def strength(policy: Policy, s: float) -> Policy:
    """See `Policy.strength`."""
    if not 0 <= s <= 1:
        raise ValueError(f"the strength of a policy should be in 0..1, got {s!r}")
    if s == 1:
        return policy
    return _changed(policy, lambda row: _weaker(row, s), f"strength {s:g}")


def _weaker(row: Row, s: float) -> Ways:
    distance = _distance(row)
    if distance is None:
        return [(IDENTITY, 1 - s), (row, s)]
    return [(_at_distance(row, s * distance), 1.0)]


def weaker_draw(policy: Policy, keys: Tensor, s: float, epoch: int = 0) -> tuple[Draw, Table]:
    """What `policy.draw(keys)` becomes at a strength from 0 to 1, and the table of its rows.

    Each image keeps its operations and random numbers, so that it changes step by step as `s`
    falls: magnitudes shrink, and what has none disappears at a strength of the image's own. Over
    many keys the draws come as often as those of `policy.strength(s)`, whose own draws for the same
    keys are others.
    """
    if not 0 <= s <= 1:
        raise ValueError(f"the strength of a draw should be in 0..1, got {s!r}")
    draw = policy.draw(keys, epoch)
    if s == 1:
        return draw, policy.table
    table, places, shares = _weaker_table(policy.table.handle, s)
    kept = torch.tensor(places, device=keys.device)
    gates = torch.tensor(shares, dtype=torch.float64, device=keys.device)
    layers = torch.arange(draw.choice.shape[1], device=keys.device)
    words = hash_keys(keys[:, None], layers * SLOTS + SLOTS - 1)  # slots that no draw reads
    numbers = ((words >> 1) & (2**BITS - 1)).double() * 2.0**-BITS
    choice = torch.where(numbers < gates[draw.choice], kept[draw.choice], 0)
    return Draw(choice, draw.uniform), table


@lru_cache(maxsize=16)  # a page has many draws in a few strengths
def _weaker_table(handle: int, s: float) -> tuple[Table, list[int], list[float]]:
    """Identity and the weaker rows; for each row of the table its place there, and its share."""
    rows = TABLES[handle].rows
    ways = [[(IDENTITY, 1.0)] if row == IDENTITY else _weaker(row, s) for row in rows]
    kept = [some[-1] for some in ways]  # before it stands identity, if anything
    place = {row: i for i, row in enumerate(dict.fromkeys((IDENTITY, *(row for row, _ in kept))))}
    return Table(place), [place[row] for row, _ in kept], [share for _, share in kept]


def spread(policy: Policy) -> Policy:
    """See `Policy.spread`."""
    rows = policy.table.rows
    found = _cells(rows[place] for place in _drawn(policy))

    def even(row: Row) -> Ways:
        distance = _distance(row)
        if distance is None:
            return [(row, 1.0)]
        if row.operation.name == "posterize":  # whole bits, the neutral number included
            bits = range(round(distance) + 1)
            return [(_at_distance(row, float(bit)), 1 / len(bits)) for bit in bits]
        inside = [cell for cell in found[_side(row)] if cell.end <= distance]
        ways = [(cell.row, cell.width / distance) for cell in inside]
        return ways or [(IDENTITY, 1.0)]  # at the neutral magnitude there is nothing to spread

    return _changed(policy, even, "spread")


def without(policy: Policy, is_excluded: Callable[[Row], bool]) -> Policy:
    """See `Policy.without`."""
    drawn = [policy.table.rows[place] for place in _drawn(policy)]
    gone = {row for row in drawn if row != IDENTITY and is_excluded(row)}
    if not gone:
        return policy
    left = {row.operation.name for row in drawn if row not in gone}
    names = dict.fromkeys(row.operation.name for row in drawn if row in gone)
    note = ", ".join(f"parts of {name}" if name in left else name for name in names)
    return _changed(
        policy, lambda row: [(IDENTITY if row in gone else row, 1.0)], f"without {note}"
    )


def ending(policy: Policy, weak: Policy, epoch: int) -> Policy:
    """See `Policy.ending`."""
    if epoch < 0:
        raise ValueError(f"the ending of a policy begins at an epoch from 0 on, got {epoch}")
    table = policy.table.extended(weak.table.rows)
    mine, theirs = policy._over(table).phases, weak._over(table)
    schedule = [(phase.epoch, phase.stages) for phase in mine if phase.epoch < epoch]
    schedule.append((epoch, theirs.phase(epoch).stages))
    schedule += [(phase.epoch, phase.stages) for phase in theirs.phases if phase.epoch > epoch]
    info = _noted(policy, f"another policy from epoch {epoch} on")
    return type(policy)(table, schedule=schedule, info=info)


def fitted_schedule(policy: Policy, epochs: int) -> Policy:
    """A schedule that says how many epochs it is for, stretched to `epochs`; others as they are."""
    noted = policy.info.get(SCHEDULE_EPOCHS)
    if noted is None:
        return policy
    if not (noted.isascii() and noted.isdecimal() and len(noted) < 10):
        raise ValueError(f"info: {SCHEDULE_EPOCHS} should be a whole number, got {noted[:80]!r}")
    return policy.stretched(epochs, int(noted))


# Magnitudes


def _distance(row: Row) -> float | None:
    """How far the row's magnitude is from the neutral one; None without either of them."""
    operation, magnitude = row
    if magnitude is None or operation.neutral is None:
        return None
    acting = math.floor(magnitude) if operation.name == "posterize" else magnitude
    return round(abs(acting - operation.neutral), DIGITS)


def _at_distance(row: Row, distance: float) -> Row:
    """The row at a magnitude so far from the neutral one, on the same side."""
    operation, sign = _side(row)
    neutral, low, high = operation.neutral, operation.low, operation.high
    assert neutral is not None
    assert low is not None
    assert high is not None
    value = neutral + sign * distance
    if operation.name == "posterize":  # whole bits; of two the weaker
        value = neutral + sign * math.ceil(distance - 0.5)
    value = min(max(round(value, DIGITS), low), high)
    return IDENTITY if value == neutral else Row(operation, value)


def _side(row: Row) -> tuple[Operation, int]:
    """The operation, and whether the magnitude is above (1) or below (-1) the neutral one."""
    operation, magnitude = row
    return operation, 1 if (magnitude or 0.0) > (operation.neutral or 0.0) else -1


class _Cell(NamedTuple):
    """A step of magnitudes, by distances from the neutral one."""

    row: Row
    """At the middle of the step."""
    width: float
    end: float
    """The smallest distance of a row that the whole step lies within."""


def _cells(rows: Iterable[Row]) -> dict[tuple[Operation, int], list[_Cell]]:
    """Steps of at most 1 / STEPS of the largest distance of an operation's side.

    The distances of the rows are ends of steps, so that a uniform magnitude up to any of them is a
    mixture of whole steps, and rows of one operation share them.
    """
    sides: dict[tuple[Operation, int], dict[float, Row]] = {}
    for row in rows:
        if (distance := _distance(row)) is not None:
            sides.setdefault(_side(row), {})[distance] = row
    found: dict[tuple[Operation, int], list[_Cell]] = {}
    for side, ends in sides.items():
        cells = found.setdefault(side, [])
        for start, end in pairwise(sorted({0.0, *ends})):
            parts = math.ceil(STEPS * (end - start) / max(ends) - 1e-9)
            width = (end - start) / parts
            middles = [start + (i + 0.5) * width for i in range(parts)]
            cells += [_Cell(_at_distance(ends[end], m), width, end) for m in middles]
    return found


# Replacing rows


def _changed(policy: Policy, ways_of: Callable[[Row], Ways], note: str) -> Policy:
    """The policy in which other rows take the place of each row but identity."""
    rows = policy.table.rows
    ways = {
        i: [(IDENTITY, 1.0)] if rows[i] == IDENTITY else ways_of(rows[i]) for i in _drawn(policy)
    }
    order = {IDENTITY.operation: -1} | {op: i for i, op in enumerate(policy.table.operations)}
    listed = {IDENTITY, *(row for some in ways.values() for row, _ in some)}
    table = sorted(listed, key=lambda row: (order[row.operation], row.magnitude or 0.0))
    place = {row: i for i, row in enumerate(table)}
    placed = {i: [(place[row], share) for row, share in some] for i, some in ways.items()}
    identity = place[IDENTITY]
    schedule = []
    for phase in policy.phases:
        changed = (_stage(stage, placed, identity, len(table)) for stage in phase.stages)
        stages: list[Stage] = [stage for stage in changed if stage is not None]
        if phase.depth and not stages:  # one layer that changes nothing, as in `Policy.identity`
            stages = [Layers(torch.eye(len(table), dtype=torch.float64)[[identity]])]
        schedule.append((phase.epoch, stages))
    return _compact(type(policy)(Table(table), schedule=schedule, info=_noted(policy, note)))


PlacedWays = dict[int, list[tuple[int, float]]]
"""`Ways` by the places of rows: in the old table for the key, in the new one for the values."""


def _stage(stage: Stage, ways: PlacedWays, identity: int, width: int) -> Stage | None:
    """A stage over the new table, without layers that change nothing; None if none is left."""
    if isinstance(stage, Chains):
        return _chains(stage, ways, identity)
    if not stage.depth:
        return None
    old, new, shares = zip(*((i, j, p) for i, some in ways.items() for j, p in some), strict=True)
    matrix = torch.zeros(stage.probabilities.shape[1], width, dtype=torch.float64)
    share = torch.tensor(shares, dtype=torch.float64)
    matrix.index_put_((torch.tensor(old), torch.tensor(new)), share, accumulate=True)
    layers = stage.probabilities @ matrix
    acts = layers.index_fill(1, torch.tensor([identity]), 0.0).any(1)
    return Layers(layers[acts]) if bool(acts.any()) else None


def _chains(stage: Chains, ways: PlacedWays, identity: int) -> Chains | None:
    """Chains over the new table.

    A share of identity closes the gate further. A slot with several other ways makes STEPS copies
    of the chain, which hold the middles of even steps of that slot's cumulative shares.
    """
    nothing = (identity, 1.0)
    copies: list[tuple[list[tuple[int, float]], float]] = []
    for slots, weight in stage.pairs():
        if weight == 0:
            continue
        parts = [_gated(ways[row], gate, identity) if gate else ([], 0.0) for row, gate in slots]
        count = STEPS if any(len(others) > 1 for others, _ in parts) else 1
        for copy in range(count):
            chain = []
            for s, (others, gate) in enumerate(parts):
                u = (copy * pow(PAIRING, s, STEPS) % STEPS + 0.5) / STEPS
                chain.append((_quantile(others, u), gate) if others else nothing)
            copies.append((chain, weight / count))
    acts = [s for s in range(stage.depth) if any(chain[s] != nothing for chain, _ in copies)]
    weights: dict[tuple[tuple[int, float], ...], float] = {}
    for chain, weight in copies:
        key = tuple(chain[s] for s in acts)
        weights[key] = weights.get(key, 0.0) + weight
    return Chains.of(list(weights.items())) if acts else None


def _gated(
    ways: Sequence[tuple[int, float]], gate: float, identity: int
) -> tuple[list[tuple[int, float]], float]:
    """The ways other than identity, and the gate that lets them through."""
    others = [(row, share) for row, share in ways if row != identity and share]
    total = math.fsum(share for _, share in others) if len(others) < len(ways) else 1.0
    return [(row, share / total) for row, share in others], gate * total


def _quantile(ways: Sequence[tuple[int, float]], u: float) -> int:
    """The row at which the cumulative shares pass `u`."""
    sums = list(accumulate(share for _, share in ways))
    return ways[min(bisect_right(sums, u), len(ways) - 1)][0]


def _drawn(policy: Policy) -> list[int]:
    """The rows that an image may get in some epoch, by their places."""
    uses = sum(policy.row_probabilities(phase.epoch).sum(0) for phase in policy.phases)
    return torch.as_tensor(uses).nonzero().flatten().tolist()


def _compact(policy: Policy) -> Policy:
    """The policy over a table of the rows it draws."""
    stages = [stage for phase in policy.phases for stage in phase.stages]
    kept = set(_drawn(policy))
    if not kept or any(isinstance(stage, Chains) for stage in stages):  # whose gates may close
        kept.add(policy.table.identity or 0)
    order = sorted(kept)
    place = torch.zeros(len(policy.table), dtype=torch.int64)
    place[order] = torch.arange(len(order))
    table = Table(policy.table.rows[i] for i in order)
    return policy._map(lambda stage: stage.moved(place, len(order)), table)


def _noted(policy: Policy, note: str) -> dict[str, str]:
    """The policy's `info` with what was done to it, behind what was done before."""
    before = policy.info.get(CHANGED)
    return {**policy.info, CHANGED: note if before is None else f"{before}; {note}"}
