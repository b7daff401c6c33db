"""How much of an image a policy hides: what is cut out, and what geometry leaves uncovered."""

from __future__ import annotations

import torch

from deepaa.keys import sample_keys
from deepaa.ops import apply_batch
from deepaa.policy import Policy
from deepaa.space import Operation, Table

DRAWS, TOGETHER = 2048, 256
_PLACING = {"shear_x", "shear_y", "translate_x", "translate_y", "rotate"}
_PLACING |= {"flip", "cutout", "crop", "resized_crop"}
"""Operations that decide where pixels go; the others only change what is there."""


def hidden_share(policy: Policy, side: int = 32, epoch: int = 0) -> float:
    """The share of an augmented image that shows a fill instead of the image, on average.

    Counted on draws: a pixel that comes out alike for a black and for a white image shows neither.
    Your own operations count as hiding nothing, and a resized crop hides nothing of what it keeps.

    Args:
        side: Of the square images; operations that count in pixels hide less of larger ones.
        epoch: Which phase of a schedule to take.
    """
    placing = _placing_only(policy.table)
    hidden = 0.0
    for first in range(0, DRAWS, TOGETHER):
        draw = policy.draw(sample_keys(0, epoch, torch.arange(first, first + TOGETHER)), epoch)
        black = torch.zeros(TOGETHER, 1, side, side, dtype=torch.uint8)
        alike = apply_batch(black, draw, placing) == apply_batch(black + 255, draw, placing)
        hidden += float(alike.double().mean())
    return hidden * TOGETHER / DRAWS


def _placing_only(table: Table) -> Table:
    """The table with identity in place of every row that moves and covers no pixel."""
    identity = (Operation("identity"), None)
    return Table(row if row.operation.name in _PLACING else identity for row in table.rows)
