"""Networks with new weights, for trainings that begin from nothing."""

from __future__ import annotations

import torch
from torch import nn

from deepaa.models import copy_model


def fresh_copy(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a network with new weights by the seed: each layer draws its own again.

    Raises:
        ValueError: A layer has weights, but no `reset_parameters` to draw them with.
    """
    copy = copy_model(model)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        copy = copy.cpu()
        for name, module in copy.named_modules():
            if not any(True for _ in module.parameters(recurse=False)):
                continue
            reset = getattr(module, "reset_parameters", None)
            if not callable(reset):
                raise ValueError(
                    f"your network is trained from new weights, but {name or 'it'} "
                    f"({type(module).__name__}) has no reset_parameters; name the network instead, "
                    "use deepaa.hold_contest with your own loop, or leave the contest out"
                )
            reset()
    return copy
