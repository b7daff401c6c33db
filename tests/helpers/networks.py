"""Images and networks for tests of models."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def pictures(n: int = 6, size: int = 32, channels: int = 3) -> torch.Tensor:
    """Random images uint8 (n, channels, size, size)."""
    return torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8)


def needs(name: str) -> None:
    """Skip where the optional library of a network is not installed."""
    if name.startswith("timm"):
        pytest.importorskip("timm")


def lived_in(model: nn.Module) -> nn.Module:
    """The model with batch norm that is not at its start."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.3, 3)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                nn.init.normal_(module.bias)
    return model
