"""Training steps of wide residual networks in few passes over memory, on Hopper GPUs and newer."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import nn

from deepaa.train.fused.check import is_right
from deepaa.train.fused.cuda import CudaKernels
from deepaa.train.fused.kernels import COMMON, LARGEST, TILES, kernels_of, library_source
from deepaa.train.fused.network import FusedNetwork, serves

__all__ = ["FusedNetwork", "fused_network"]
_LOGGER = logging.getLogger(__name__)


def fused_network(model: nn.Module, device: torch.device) -> FusedNetwork | None:
    """The fused training steps of a network; None where it or the device is not served."""
    if device.type != "cuda" or torch.version.hip is not None or not serves(model):
        return None
    found = torch.cuda.get_device_properties(device)
    if found.major < 9 or found.shared_memory_per_block_optin < LARGEST:
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    kernels = _kernels(torch.device("cuda", index))
    assert isinstance(model, nn.Sequential)
    return None if kernels is None else FusedNetwork(model, kernels)


@cache
def _kernels(device: torch.device) -> CudaKernels | None:
    """The kernels on a device, compiled and tested once; None where they cannot be had."""
    every = list(kernels_of(list(TILES)))
    try:
        found = CudaKernels(device)
        found.add(library_source(), {kernel.name: kernel.source for kernel in every}, COMMON)
        found.reserve({kernel.name: kernel.shared for kernel in every})
        wrong = [layer.name for layer in TILES if not is_right(layer, found, device)]
    except Exception as error:  # whatever it is, torch's own kernels go on
        reason = str(error).strip().split("\n")[0]
        _LOGGER.warning("torch's own kernels train wide residual networks: %s", reason)
        return None
    if wrong:
        _LOGGER.warning("torch's own kernels train wide residual networks: %s differ", wrong)
    return None if wrong else found
