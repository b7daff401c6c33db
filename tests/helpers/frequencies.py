"""What a policy does, spelt out, and whether something that was counted agrees with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from itertools import product

from deepaa.ops.space import Row
from deepaa.policy.policy import Policy
from deepaa.policy.stages import Layers

Step = tuple[str, float | None]
"""An operation and its magnitude, rounded so that float32 and float64 agree."""


def our_name(name: str) -> str:
    """`shear_x` for `ShearX`."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def step(name: str, magnitude: float | None) -> Step:
    # thousandths: finer than any grid of levels, coarser than float32; + 0.0: no negative zero
    return name, None if magnitude is None else round(magnitude, 3) + 0.0


def outcomes(policy: Policy, epoch: int = 0) -> dict[tuple[Step, ...], float]:
    """Every sequence of steps, identity left out, and its probability: by enumeration."""
    found: dict[tuple[Step, ...], float] = {(): 1.0}
    for stage in policy.phase(epoch).stages:
        ways: list[tuple[tuple[Step, ...], float]] = []
        if isinstance(stage, Layers):
            for layer in stage.probabilities.tolist():
                found = _times(
                    found,
                    [(_named([row]), p) for row, p in zip(policy.table.rows, layer, strict=True)],
                )
            continue
        for weight, rows, gates in zip(
            stage.weights.tolist(), stage.rows.tolist(), stage.gates.tolist(), strict=True
        ):
            for is_open in product((True, False), repeat=len(rows)):
                p = weight
                for gate, this in zip(gates, is_open, strict=True):
                    p *= gate if this else 1 - gate
                applied = [r for r, this in zip(rows, is_open, strict=True) if this]
                ways.append((_named([policy.table.rows[r] for r in applied]), p))
        found = _times(found, ways)
    return {steps: p for steps, p in found.items() if p > 0}


def _named(rows: list[Row]) -> tuple[Step, ...]:
    return tuple(
        step(r.operation.name, r.magnitude) for r in rows if r.operation.name != "identity"
    )


def _times(
    before: Mapping[tuple[Step, ...], float], ways: list[tuple[tuple[Step, ...], float]]
) -> dict[tuple[Step, ...], float]:
    merged: dict[tuple[Step, ...], float] = {}
    for steps, p in ways:
        merged[steps] = merged.get(steps, 0.0) + p
    found: dict[tuple[Step, ...], float] = {}
    for first, p in before.items():
        for second, q in merged.items():
            found[first + second] = found.get(first + second, 0.0) + p * q
    return found


def check_counts(counts: Counter[Hashable], expected: Mapping[Hashable, float]) -> None:
    """Nothing impossible was seen, each count is within 5 sigma, and so is their chi-square."""
    n = counts.total()
    assert math.isclose(math.fsum(expected.values()), 1.0, abs_tol=1e-9)
    impossible = sorted(set(counts) - set(expected), key=str)
    assert not impossible, f"seen, but not in the policy: {impossible[:3]}"
    square, cells = 0.0, 0
    for key, p in expected.items():
        gap, variance = counts[key] - n * p, n * p * (1 - p)
        # + 3: a rare outcome is Poisson, which is wider than a normal one
        assert abs(gap) <= 5 * math.sqrt(variance) + 3, (key, counts[key], n * p)
        if n * p >= 5:
            square, cells = square + gap * gap / (n * p), cells + 1
    assert square <= cells + 5 * math.sqrt(2 * cells), (square, cells)
