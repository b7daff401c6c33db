"""The settings of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

LEAST_ROWS = 16
"""Fewer transformations are never left by putting others aside."""
PRECISIONS = ("auto", "float32", "bfloat16")


def precision_on(device: torch.device, precision: str = "auto") -> str:
    """float32 or bfloat16: auto takes the latter where CUDA computes it in hardware."""
    if precision != "auto":
        return precision
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if fast else "float32"


@dataclass(frozen=True)
class SearchConfig:
    """Everything that changes what a search finds, but the data, the model and the space."""

    layers: int | None = None
    """Layers to find; None adds layers until one brings nothing (see `max_layers`)."""
    max_layers: int = 6
    """Most layers when their number is not given."""
    steps: int = 312
    """Steps per layer. Adam moves a logit by about the learning rate a step: keep their product
    at or above `identity_logit`, or no operation can overtake identity."""
    learning_rate: float = 0.1
    """Of Adam, on the logits."""
    images: int = 16
    """Images per step; Eq. 10 takes its mean and standard deviation over them."""
    validation: int = 64
    """Original images in the batch whose gradient is matched."""
    prefixes: int = 4
    """Draws of the earlier layers, each seen under every transformation."""
    chains: int = 140
    """Draws of all layers for the mean gradient; 0 takes the images of the prefixes instead."""
    halves: bool = True
    """Take two mean gradients, of half of the chains each, and products of both: the noise of few
    chains otherwise speaks for transformations with large gradients."""
    halvings: int = 3
    """How often the less likely half of the transformations is put aside in a layer after the
    first, in even steps up to the layer's middle, down to 16; the fewer are left, the more draws
    of the earlier layers each is seen under."""
    converged: float = 0.97
    """An operation with more than this share holds a layer after the first: the layer ends early,
    after a quarter of its steps at least (for identity only above .99 and once Adam could have
    moved others from below it to far above), and the last step is kept instead of a mean. 1 lets
    every layer take all its steps."""
    average: float = 0.25
    """Share of a layer's steps, at its end, whose distributions are averaged into the one that is
    kept, from where identity no longer leads: where two operations bring alike, single steps wander
    between them. 0 takes the last."""
    simplify: float = 0.3
    """The operation with most of a layer after the first, and more than a third, gets all of it, at
    its magnitudes, if alone it brings at least this share of the layer's gain on the held-out
    images and would be kept: the next layer can still find what the rest brings. 0 keeps every
    layer as it was found; identity never gets one."""
    stratified: bool = True
    """Spread the chains' last rows evenly over the layer's distribution."""
    deviation_draws: int | None = 16
    """Draws of the earlier layers that Eq. 10's standard deviation speaks of: the authors take 16,
    and fewer `prefixes` would show a larger one. None takes the deviation as `prefixes` show it."""
    deviation_memory: float = 0.9
    """How much of Eq. 10's variance is carried from step to step, as in Adam's averages; 0 takes
    each step's own, whose noise is larger than what most operations gain."""
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
    epsilon: float = 2e-6
    """Of Adam. A gain that never varies takes a layer over if it is above about
    epsilon e^identity_logit / (steps learning_rate - identity_logit); smaller ones are left."""
    heldout: int = 256
    """Images set aside to measure the improvement after each layer; a search on labelled images
    takes at most a third of those that it augments."""
    precision: str = "auto"
    """What the network is computed in, in its pre-training too: float32, bfloat16, or auto for
    bfloat16 on a GPU that has it."""
    compile: bool | None = None
    """Compile the passes through the network; None does so on CUDA."""
    chunk: int = 1112
    """Images through the network at a time; halved when memory runs out."""
    seed: int = 0
    """Of everything random in the search."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for name in ("steps", "images", "validation", "prefixes", "max_layers", "heldout", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1, got {getattr(self, name)}")
        if self.halvings < 0:
            raise ValueError(f"halvings should be 0 or more, got {self.halvings}")
        for name in ("converged", "penalty", "penalty_first_layer", "identity_logit", "epsilon"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} should be 0 or more, got {getattr(self, name)}")
        if self.deviation_draws is not None and self.deviation_draws < 1:
            raise ValueError(f"deviation_draws should be at least 1, got {self.deviation_draws}")
        if self.layers is not None and self.layers < 1:
            raise ValueError(f"layers should be at least 1, got {self.layers}")
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision should be one of {', '.join(PRECISIONS)}, got {self.precision!r}"
            )
        for name in ("average", "simplify"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} should be in 0..1, got {getattr(self, name)}")
        if not 0 <= self.deviation_memory < 1:
            raise ValueError(
                f"deviation_memory should be at least 0 and below 1, got {self.deviation_memory}"
            )
        if self.halves and self.chains % 2:
            raise ValueError(f"chains should be even, or halves=false; got {self.chains}")
        if self.stratified and not 0 <= self.chains <= 1000:
            raise ValueError(f"chains should be in 0..1000 when stratified, got {self.chains}")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate should be positive, got {self.learning_rate}")

    def rows_left(self, rows: int, layer: int, step: int) -> int:
        """How many of `rows` transformations are still rewarded when `step` begins."""
        if layer == 1:
            return rows
        points = (k * self.steps / (2 * self.halvings) for k in range(1, self.halvings + 1))
        done = sum(step >= max(1, point) for point in points)
        return min(rows, max(LEAST_ROWS, rows >> done))

    def passes_per_step(self, rows: int, *, layer: int, step: int = 0) -> int:
        """Images through the network in one step."""
        if layer == 1:
            return self.images * (self.validation + 2 * rows)
        left = self.rows_left(rows, layer, step)
        seen = left * draws_of(self.prefixes, rows, left)
        chains = self.chains or (seen if left == rows else rows)
        return self.images * (self.validation + seen + chains)


def draws_of(prefixes: int, rows: int, left: int) -> int:
    """Draws of the earlier layers where `left` of `rows` transformations are seen under each."""
    return int(prefixes * math.sqrt(rows / left))
