"""Training steps of wide residual networks in few passes over memory, on Hopper GPUs and newer."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from deepaa.train.fused.cuda import CudaKernels
from deepaa.train.fused.kernels import (
    COMMON,
    LARGEST,
    TILES,
    Layer,
    kernels_of,
    library_source,
)
from deepaa.train.fused.network import FusedNetwork, Launcher, Passes, serves

__all__ = ["FusedNetwork", "fused_network"]
_LOGGER = logging.getLogger(__name__)
IMAGES = 4
"""Of the test of the kernels on a device."""
TOLERANCE = 0.01
"""Largest relative error of what a kernel gives; bfloat16 rounds by a fifth of it."""


def fused_network(model: nn.Module, device: torch.device) -> FusedNetwork | None:
    """The fused training steps of a network; None where it or the device is not served."""
    if device.type != "cuda" or torch.version.hip is not None or not serves(model):
        return None
    found = torch.cuda.get_device_properties(device)
    if found.major < 9 or found.shared_memory_per_block_optin < LARGEST:
        return None
    assert isinstance(model, nn.Sequential)
    with torch.cuda.device(device):
        kernels = _kernels(torch.device("cuda", torch.cuda.current_device()))
    return None if kernels is None else FusedNetwork(model, kernels)


@cache
def _kernels(device: torch.device) -> CudaKernels | None:
    """The kernels on a device, compiled and tested once; None where they cannot be had."""
    major, minor = torch.cuda.get_device_capability(device)
    sources = {kernel.name: kernel.source for kernel in kernels_of(list(TILES))}
    try:
        found = CudaKernels.compiled(library_source(), sources, [*COMMON], f"sm_{major}{minor}")
        wrong = [layer.name for layer in TILES if not is_right(layer, found, device)]
    except Exception as error:  # whatever it is, torch's own kernels go on
        reason = str(error).strip().split("\n")[0]
        _LOGGER.warning("torch's own kernels train wide residual networks: %s", reason)
        return None
    if wrong:
        _LOGGER.warning("torch's own kernels train wide residual networks: %s differ", wrong)
    return None if wrong else found


@torch.no_grad()
def is_right(layer: Layer, launcher: Launcher, device: torch.device) -> bool:
    """Whether a layer's kernels give what torch gives, on a few random images."""
    passes, last = Passes(launcher, [layer]), torch.channels_last
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=generator, device=device)
        return made.bfloat16().contiguous(memory_format=last) if len(shape) == 4 else made

    n, inputs, outputs, edge = IMAGES, layer.inputs, layer.outputs, 3 if layer.taps == 9 else 1
    x, w = random(n, inputs, layer.side, layer.side), random(outputs, inputs, edge, edge)
    y = random(n, outputs, layer.out_side, layer.out_side)
    norm = random(4, inputs).abs() + 0.5
    before = norm[3].view(-1, 1, 1) + x.float() * norm[2].view(-1, 1, 1)
    active = before.relu().bfloat16().float()
    wanted = F.conv2d(active, w.float(), None, layer.stride, edge // 2)
    steps = [layer.stride] * 2, [edge // 2] * 2, [1, 1], False, [0, 0], 1
    back = torch.ops.aten.convolution_backward
    dx, dw, _ = back(y.float(), active, w.float(), None, *steps, [True, True, False])
    if layer.taps == 9:
        dx = dx * (before > 0)
    found = passes.forward(layer, x, w, norm)[0], passes.backward(layer, y, w, x, norm)[0]
    pairs = zip((*found, passes.weight_gradient(layer, y, x, norm)), (wanted, dx, dw), strict=True)
    return all(float((a.float() - b).norm()) < TOLERANCE * float(b.norm()) for a, b in pairs)
