"""The records that a search yields: one for each step, and one for each finished layer."""

from __future__ import annotations

from typing import NamedTuple


class StepRecord(NamedTuple):
    """The state of a layer after one step."""

    layer: int
    step: int
    similarity: float
    """The mean cosine of v and g over the step's images."""
    identity: float
    """The probability of identity."""
    perplexity: float
    top: list[tuple[str, float]]
    """The leading operations and their shares."""
    passes: int
    """Images through the network since the search began."""
    skipped: int
    """Images that were left out since then because a reward or a cosine was not finite."""
    seconds: float


class LayerRecord(NamedTuple):
    """A finished layer, measured on held-out images."""

    layer: int
    kept: bool
    reason: str
    gain: float
    gain_error: float
    improvement_mean: float
    improvement_std: float
    deepta_mean: float
    deepta_std: float
    passes: int
    seconds: float
    memory: float | None = None
    """The most GB of GPU memory that were in use so far."""
    identity: float | None = None
    """Of the layer as it was found, before it was reduced to its leading operation."""
    perplexity: float | None = None
    top: list[tuple[str, float]] | None = None
