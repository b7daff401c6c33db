"""The settings of a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class SearchConfig:
    """Everything that changes what a search finds, but the data, the model and the space."""

    layers: int | None = None
    """Layers to find; None adds layers until one brings nothing (see `max_layers`)."""
    max_layers: int = 6
    """Most layers when their number is not given."""
    steps: int = 192
    """Steps per layer. Adam moves a logit by about the learning rate a step: keep their product
    at or above `identity_logit`, or no operation can overtake identity."""
    learning_rate: float = 0.06
    """Of Adam, on the logits."""
    images: int = 16
    """Images per step; Eq. 10 takes its mean and standard deviation over them."""
    validation: int = 64
    """Original images in the batch whose gradient is matched."""
    prefixes: int = 4
    """Draws of the earlier layers, each seen under every transformation."""
    chains: int = 139
    """Draws of all layers for the mean gradient; 0 takes the images of the prefixes instead."""
    stratified: bool = True
    """Spread the chains' last rows evenly over the layer's distribution."""
    penalty: float = 1.0
    """c of Eq. 10."""
    penalty_first_layer: float = 0.0
    """c of Eq. 10 in the first layer; the authors' code has none there."""
    same_class: bool = True
    """Match the gradient of validation images of the image's own class, as the authors do."""
    normalise_target: bool = True
    """Divide rewards by |v| too: the exact derivative of the cosine."""
    identity_logit: float = 8.0
    """How far identity starts above the others."""
    tie_signs: bool = True
    """Give m and -m one reward, since the policy is made symmetric in the end."""
    symmetric: bool = True
    """Make the found policy symmetric in its signs, as the authors' evaluation does."""
    epsilon: float = 1e-7
    """Of Adam."""
    heldout: int = 256
    """Images set aside to measure the improvement after each layer."""
    precision: str = "float32"
    """float32 or bfloat16: what the network is computed in."""
    compile: bool | None = None
    """Compile the passes through the network; None does so on CUDA."""
    chunk: int = 1024
    """Images through the network at a time; halved when memory runs out."""
    seed: int = 0
    """Of everything random in the search."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for name in ("steps", "images", "validation", "prefixes", "max_layers", "heldout", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        if self.layers is not None and self.layers < 1:
            raise ValueError(f"layers should be at least 1, got {self.layers}")
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision should be one of {list(PRECISIONS)}, got {self.precision!r}"
            )
        if self.stratified and not 0 <= self.chains <= 1000:
            raise ValueError(f"chains should be in 0..1000 when stratified, got {self.chains}")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate should be positive, got {self.learning_rate}")

    def passes_per_step(self, rows: int, *, first: bool) -> int:
        """Images through the network in one step."""
        if first:
            return self.images * (self.validation + 2 * rows)
        seen = self.prefixes * rows
        return self.images * (self.validation + seen + (self.chains or seen))
