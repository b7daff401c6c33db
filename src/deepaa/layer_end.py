"""How a layer ends: what it brings on held-out images, whether it is kept, and in which form."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.gate import perplexity
from deepaa.policy import Layers, Policy
from deepaa.space import Operation, Table

LEADS = 1 / 3
"""An operation with more than this share leads a layer, if no other has more."""
IDENTITY = 0.9
"""A layer with more of identity than this changes nothing."""


class Measured(NamedTuple):
    """A layer on held-out images."""

    p: Tensor
    """(T,) its distribution."""
    cosines: Tensor
    """(heldout,) of all layers with it."""
    usable: Tensor
    """(heldout,) whether the cosine and those it is compared with are finite."""
    gain: float
    error: float
    """The gain's standard error."""
    helps: bool
    """Whether it changes images and its gain is clear."""
    kept: bool
    """It helps, or was asked for."""
    reason: str


def measured(
    p: Tensor, cosines: Tensor, before: Tensor, usable: Tensor, *, identity: float, asked: bool
) -> Measured:
    """What a layer (T,) brings over the cosines (heldout,) `before` it, and what follows from it.

    Args:
        usable: (heldout,) images on which everything else that is compared is finite.
        identity: Its share of the layer.
        asked: Whether the number of layers was given, so that none is dropped.
    """
    usable = usable & torch.isfinite(cosines + before)
    gains = (cosines - before)[usable]
    gain, error = gains.mean().item(), standard_error(gains)
    helps, reason = True, f"a gain of {gain:.4f}, standard error {error:.4f}"
    if identity > IDENTITY:
        helps, reason = False, f"identity has {identity:.2f} of the layer"
    elif not gain > error:
        helps, reason = False, f"a gain of {gain:.4f} is not above its standard error, {error:.4f}"
    if asked:
        reason = "asked for" if helps else f"asked for, although {reason}"
    return Measured(p, cosines, usable, gain, error, helps, helps or asked, reason)


def simplest(found: Measured, alone: Measured, name: str, share: float) -> tuple[Measured, str]:
    """`found`, or its leading operation `alone` if that brings this share of the gain; and why.

    Near a layer's optimum its shares hardly change what an image gains: they say how long and on
    which images it was searched. What the rest brings, the next layer can still find.
    """
    if not torch.equal(alone.usable, found.usable):
        return found, f"; {name} alone cannot be measured on the same images"
    more = (found.cosines - alone.cosines)[found.usable]
    mean, error = more.mean().item(), standard_error(more)
    least = min(share * found.gain, found.gain)  # of two layers that harm, the better one
    if alone.gain < least:
        return found, f"; better than {name} alone by {mean:.4f}, standard error {error:.4f}"
    if found.helps and not alone.helps:
        return found, f"; {name} alone is not enough"
    return alone, f"; {name} alone, the rest brings {mean:.4f}, standard error {error:.4f}"


def standard_error(values: Tensor) -> float:
    """Of the mean of values (N,)."""
    return values.std().item() / math.sqrt(len(values)) if len(values) > 1 else 0.0


# What a distribution says


def shares_of(table: Table, p: Tensor) -> Tensor:
    """The share of each operation in a layer (T,)."""
    return Policy(table, Layers(p[None] / p.sum())).operation_probabilities()[0]


def leader_of(table: Table, p: Tensor, least: float = LEADS) -> Operation | None:
    """The operation with most of a layer (T,), if it has more than `least`."""
    shares = shares_of(table, p)
    at = int(shares.argmax())
    return table.operations[at] if float(shares[at]) > least else None


def only(table: Table, p: Tensor, operation: Operation) -> Tensor:
    """(T,) the layer with one operation alone, at its magnitudes."""
    p = p * torch.tensor([row.operation == operation for row in table.rows])
    return p / p.sum()


def described(table: Table, p: Tensor) -> tuple[float, float, list[tuple[str, float]]]:
    """Identity's share of a layer (T,), its perplexity, and its three leading operations."""
    names = [op.name for op in table.operations]
    shares = zip(names, shares_of(table, p).tolist(), strict=True)
    top = sorted(shares, key=lambda pair: -pair[1])[:3]
    return p[table.identity or 0].item(), perplexity(p), top
