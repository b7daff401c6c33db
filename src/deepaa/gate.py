"""Does a policy found on CIFAR-10 look like the paper's? A gate, and a distance of policies."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.policy import Policy

GEOMETRY = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
DROPPED_IDENTITY = "identity of the dropped layer"
"""The entry of a policy's `info` that says how the layer after the last one ended."""
STRONG = 0.8
"""A magnitude is strong above this share of its range's end."""


class Check(NamedTuple):
    """One thing that the published policies have in common."""

    name: str
    passed: bool
    found: str


def reproduction_gate(policy: Policy, last_identity: float | None = None) -> tuple[Check, ...]:
    """What the authors' CIFAR policies have in common, checked one by one.

    Args:
        last_identity: Identity's share of the layer that ended the search, if it was dropped; None
            takes what the policy's `info` says of it, or else the policy's last layer.
    """
    if not policy.depth:
        raise ValueError("a policy without layers has nothing to check")
    rows, uses = policy.row_probabilities(), policy.expected_uses()
    operations = [op.name for op in policy.table.operations]
    shares = policy.operation_probabilities()
    cutout = shares[:3, operations.index("cutout")].max().item() if "cutout" in operations else 0.0
    if last_identity is None:
        last_identity = _said(policy)
    if last_identity is None:
        last_identity = shares[-1, operations.index("identity")].item()
    broad, strong = perplexity(rows[0]), _strong_share(policy, rows[0])
    wanted = {"crop": 1.0, "cutout": 0.8, "flip": 0.5}
    return (
        Check("layer 1 is broad", broad > 20, f"perplexity {broad:.1f}, above 20"),
        Check(
            "its geometry is strong",
            strong > 0.5,
            f"{100 * strong:.0f} % of it above {STRONG} of the range, more than half",
        ),
        Check("a layer up to the third is cutout", cutout > 0.7, f"{cutout:.2f}, above 0.7"),
        *(
            Check(
                f"{name} is used",
                uses.get(name, 0.0) >= least,
                f"{uses.get(name, 0.0):.3f} times an image, at least {least}",
            )
            for name, least in wanted.items()
        ),
        Check("the end is identity", last_identity > 0.9, f"{last_identity:.3f}, above 0.9"),
    )


def _said(policy: Policy) -> float | None:
    try:
        return float(policy.info[DROPPED_IDENTITY])
    except (KeyError, ValueError):
        return None


def perplexity(layer: Tensor) -> float:
    """How many equally likely transformations would be as uncertain as the layer (T,)."""
    return math.exp(-(layer * layer.clamp(min=1e-300).log()).sum().item())


def _strong_share(policy: Policy, layer: Tensor) -> float:
    strong = total = 0.0
    for row, share in zip(policy.table.rows, layer.tolist(), strict=True):
        if row.operation.name in GEOMETRY and row.magnitude is not None:
            total += share
            strong += share * (abs(row.magnitude) > STRONG * (row.operation.high or 1.0))
    return strong / total if total else 0.0


def policy_distance(a: Policy, b: Policy) -> float:
    """How differently two policies treat an image: total variation of operations, mean over layers.

    0 for equal policies, 1 for policies that never choose the same operation. Layers that only one
    of them has count as identity in the other.
    """
    names = sorted({op.name for p in (a, b) for op in p.table.operations} | {"identity"})
    depth = max(a.depth, b.depth)
    if not depth:
        return 0.0
    tables = []
    for policy in (a, b):
        table = torch.zeros(depth, len(names), dtype=torch.float64)
        table[policy.depth :, names.index("identity")] = 1
        shares = policy.operation_probabilities()
        for i, operation in enumerate(policy.table.operations):
            table[: policy.depth, names.index(operation.name)] += shares[:, i]
        tables.append(table)
    return float((tables[0] - tables[1]).abs().sum(1).mean() / 2)
