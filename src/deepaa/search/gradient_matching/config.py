"""The settings of a search, and how many image passes a step takes with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LEAST_ROWS = 16
"""Halving the transformations of a layer stops at this number."""
PRECISIONS = ("auto", "float32", "bfloat16")

_VALID: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "layers max_layers steps images validation prefixes deviation_draws heldout chunk",
        lambda value: value >= 1,
        "at least 1",
    ),
    (
        "halvings converged penalty penalty_first_layer identity_logit epsilon",
        lambda value: 0 <= value < math.inf,
        "0 or more",
    ),
    ("average simplify", lambda value: 0 <= value <= 1, "in 0..1"),
    ("deviation_memory", lambda value: 0 <= value < 1, "at least 0 and below 1"),
    ("learning_rate", lambda value: value > 0, "positive"),
    ("precision", PRECISIONS.__contains__, f"one of {', '.join(PRECISIONS)}"),
)
"""Settings, what is valid for each of them (None always is), and the words for it."""


@dataclass(frozen=True)
class SearchConfig:
    """All settings that change what a search finds on given data, with a given model and space."""

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
    """Draws of the earlier layers, each followed by every transformation (Eq. 7)."""
    chains: int = 140
    """Draws of all layers for the mean gradient (Eq. 8); 0 takes the images of the prefixes."""
    halves: bool = True
    """Take two mean gradients, of half of the chains each, and products of both: otherwise the
    noise of few chains biases rewards towards transformations with large gradients."""
    halvings: int = 3
    """How often the less likely half of the transformations is dropped in a layer after the first,
    at even intervals up to the layer's middle, down to 16; the fewer are left, the more draws of
    the earlier layers each is rewarded under."""
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
    """Draws of the earlier layers that Eq. 10's standard deviation refers to: the authors take 16,
    and fewer `prefixes` would give a larger one. None takes the deviation of `prefixes` draws."""
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
        for names, is_valid, valid in _VALID:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not is_valid(value):
                    raise ValueError(f"{name} should be {valid}, got {value!r}")
        if self.halves and self.chains % 2:
            raise ValueError(f"chains should be even, or halves=false; got {self.chains}")
        if self.stratified and not 0 <= self.chains <= 1000:
            raise ValueError(f"chains should be in 0..1000 when stratified, got {self.chains}")

    def rows_left(self, rows: int, layer: int, step: int) -> int:
        """The number of `rows` transformations that are still rewarded when `step` begins."""
        if layer == 1:
            return rows
        points = (k * self.steps / (2 * self.halvings) for k in range(1, self.halvings + 1))
        done = sum(step >= max(1, point) for point in points)
        return min(rows, max(LEAST_ROWS, rows >> done))

    def passes_per_step(self, rows: int, *, layer: int, step: int = 0) -> int:
        """The number of images that go through the network in one step."""
        if layer == 1:
            return self.images * (self.validation + 2 * rows)
        left = self.rows_left(rows, layer, step)
        candidates = left * self.prefix_draws(rows, left)
        chains = self.chains or (candidates if left == rows else rows)
        return self.images * (self.validation + candidates + chains)

    def prefix_draws(self, rows: int, left: int) -> int:
        """Draws of the earlier layers for each image while `left` of `rows` are rewarded."""
        return int(self.prefixes * math.sqrt(rows / left))
