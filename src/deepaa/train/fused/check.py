"""Whether the fused kernels give torch's numbers on a device, before they are used there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa.train.fused.kernels import Layer
from deepaa.train.fused.network import Launcher, Passes

IMAGES = 258
"""So many that every block of threads makes several tiles, some one more than others."""
TOLERANCE = 0.01
"""Largest relative error of what a kernel gives; bfloat16 rounds by a fifth of it."""


@torch.no_grad()
def is_right(
    layer: Layer, launcher: Launcher, device: torch.device, *, images: int = IMAGES
) -> bool:
    """Whether all kernels of a layer give what torch gives, on random images."""
    pairs = _pairs(layer, Passes(launcher, [layer]), device, images)
    return all(
        float((found.float() - wanted).norm()) < TOLERANCE * float(wanted.norm())
        for found, wanted in pairs
    )


def _pairs(
    layer: Layer, passes: Passes, device: torch.device, images: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """What the kernels of a layer give, and what it should be."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=generator, device=device).bfloat16()
        return made.contiguous(memory_format=torch.channels_last)

    x = random(images, layer.inputs, layer.side, layer.side) + 0.5
    w = random(layer.outputs, layer.inputs, layer.edge, layer.edge)
    y, add = (random(images, layer.outputs, layer.out_side, layer.out_side) for _ in range(2))
    other, pixels = random(*x.shape), images * layer.side**2

    norm = nn.BatchNorm2d(layer.inputs).to(device)
    norm.weight.copy_(torch.rand(layer.inputs, generator=generator, device=device) + 0.5)
    sums = passes.measure(x) if layer.inputs == 16 else _sums(x)[None].contiguous()
    stats = passes.normalise(sums, norm, pixels)
    assert norm.running_mean is not None
    wide = x.float()
    inverse = (wide.var((0, 2, 3), correction=0) + norm.eps).rsqrt()
    yield stats[:2], torch.stack([wide.mean((0, 2, 3)), inverse])
    yield norm.running_mean, 0.1 * wide.mean((0, 2, 3))

    before = _along(stats[2]) * wide + _along(stats[3])
    active = before.relu().bfloat16().float()
    found, sums = passes.forward(layer, x, w, stats, add)
    where = layer.stride, layer.edge // 2
    yield found, F.conv2d(active, w.float(), None, *where) + add.float()
    yield sums.sum(0), _sums(found)

    steps = [layer.stride] * 2, [layer.edge // 2] * 2, [1, 1], False, [0, 0], 1
    back = torch.ops.aten.convolution_backward
    dx, dw, _ = back(y.float(), active, w.float(), None, *steps, [True, True, False])
    yield passes.weight_gradient(layer, y, x, stats), dw
    if layer.taps == 1:
        yield passes.backward(layer, y, w, x, stats)[0], dx
        return
    g, sums = passes.backward(layer, y, w, x, stats, other)
    yield g, (dx + other.float()) * (before > 0)
    normal = (wide - _along(stats[0])) * _along(stats[1])
    product = (g.float() * normal).sum((0, 2, 3))
    yield sums.sum(0), torch.stack([g.float().sum((0, 2, 3)), product])
    dx, dgamma, dbeta = passes.normalise_backward(g, sums, x, stats, norm.weight, other)
    means = (g.float().sum((0, 2, 3)) / pixels, product / pixels)
    inner = g.float() - _along(means[0]) - normal * _along(means[1])
    yield dx, _along(norm.weight * stats[1]) * inner + other.float()
    yield torch.stack([dbeta, dgamma]), sums.sum(0)


def _along(values: Tensor) -> Tensor:
    """One number for each channel, beside images."""
    return values.view(-1, 1, 1)


def _sums(x: Tensor) -> Tensor:
    """(2, C): over the pixels of a channel, and over their squares."""
    wide = x.float()
    return torch.stack([wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3))])
