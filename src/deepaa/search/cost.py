"""What a search will cost, before and while it runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from deepaa.models import frozen_copy
from deepaa.runs import duration
from deepaa.search.gradient_matching.config import SearchConfig
from deepaa.search.gradient_matching.fold_batchnorm import optimized_copy
from deepaa.search.gradient_matching.gradients import Derivatives

if TYPE_CHECKING:
    from deepaa.search.policy_search import PolicySearch

DAY = 86_400.0


def forecast(search: PolicySearch) -> dict[str, str]:
    """What a search would do and what it would cost, a text for each subject."""
    search.check_model()
    data, device, space = search.data, search.device, search.space
    images, labels = data.images[:256].to(device), data.labels[:256].to(device)
    frozen = optimized_copy(frozen_copy(search.model), images[:2], labels[:2])
    each = seconds_per_pass(frozen, images, labels)
    passes = all_passes(search.config, len(space))
    counts = {name: len(part) for name, part in search.splits._asdict().items()}
    training = counts["pretrain"] * search.proxy.train.epochs if search.pretrains else 0
    seconds = (passes + training) * each
    shape = " x ".join(map(str, data.images.shape[1:]))
    weights = sum(p.numel() for p in search.model.parameters())
    memory = memory_needed(search.config, frozen, images, len(space))
    lines = {
        "data": f"{data.name}: {len(data.labels):,} images of {shape}, "
        f"{len(data.class_names)} classes",
        "splits": ", ".join(f"{name} {count:,}" for name, count in counts.items())
        + f"; {search.config.heldout:,} of the search's are held out",
        "space": f"{len(space)} transformations of {len(space.operations)} operations",
        "network": f"{weights:,} weights on {device}",
        "memory": f"{data.images.nbytes / 1e6:,.0f} MB of images, about {memory / 1e6:,.0f} "
        "MB for the network",
        "passes": f"{passes:,} in the search at most, {training:,} in pre-training",
        "time": f"about {duration(seconds)}, at {1 / each:,.0f} passes a second measured now",
    }
    if seconds > DAY and device.type == "cpu":
        lines["hint"] = "--preset demo --size 32 takes minutes on a CPU"
    return lines


def all_passes(config: SearchConfig, rows: int) -> int:
    """Images through the network in a whole search over `rows` transformations, at most."""
    return passes_left(config, rows, 1, 0)


def passes_left(config: SearchConfig, rows: int, layer: int, step: int) -> int:
    """Images through the network after `step` steps of `layer`, if no layer is dropped."""
    last = config.layers or config.max_layers
    now = _steps(config, rows, layer, step)
    later = (last - layer) * _steps(config, rows, 2, 0) if last > layer else 0
    # the layers, their leading operations alone and DeepTA, and once the images as they are
    simpler = last - max(layer, 2) + 1 if config.simplify else 0
    measured = 2 * (last - layer + 1) + simpler + (layer == 1)
    return now + later + measured * config.heldout * (config.validation + (config.chains or rows))


def _steps(config: SearchConfig, rows: int, layer: int, done: int) -> int:
    steps = range(done, config.steps)
    return sum(config.passes_per_step(rows, layer=layer, step=step) for step in steps)


ENOUGH_SECONDS = 0.3
"""Seconds of work that show the speed of a network."""


def seconds_per_pass(frozen: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Seconds that one image takes through the network and back, measured now, in float32.

    A few images first, more while they are quick: a large network on a CPU takes seconds for each.
    """
    derivatives, count = Derivatives(frozen), 4
    while True:
        part, answers = images[:count], labels[:count]
        taken = []
        for _ in range(2):
            began = time.perf_counter()
            derivatives.mean_gradient(part, answers)
            if images.device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        if count >= len(images) or min(taken) > ENOUGH_SECONDS:
            return min(taken) / len(part)
        count *= 4


def memory_needed(config: SearchConfig, model: nn.Module, images: Tensor, rows: int) -> int:
    """Bytes that a pass through the network takes at once: weights, images and activations.

    Args:
        rows: The transformations of the space.
    """
    counted = [0]

    def count(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not isinstance(module, nn.Identity):
            counted[0] += output.nbytes

    hooks = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    try:
        with torch.no_grad():
            model(images[:1])
    finally:
        for hook in hooks:
            hook.remove()
    weights = sum(p.nbytes for p in model.parameters())
    # values and their tangents, or their gradients; weights, v, two of g and the direction
    most = max(config.validation, config.chains or 0, config.prefixes * rows, rows)
    return 5 * weights + min(config.chunk, most) * (2 * counted[0] + images[0].nbytes)
