"""What a search tells of itself."""

from __future__ import annotations

from typing import NamedTuple


class StepRecord(NamedTuple):
    """One step."""

    layer: int
    step: int
    similarity: float
    identity: float
    perplexity: float
    top: list[tuple[str, float]]
    passes: int
    skipped: int
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
    """Most GB of the GPU that were in use so far."""
    identity: float | None = None
    """Of the layer as it was found, before it was made its leading operation alone."""
    perplexity: float | None = None
    top: list[tuple[str, float]] | None = None
    """Its leading operations."""
