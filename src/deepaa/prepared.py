"""A frozen network as its device runs it fastest, with the same weights and the same outputs.

Channels come last, as convolutions prefer them on CUDA and by oneDNN. On a CPU, where every walk
over the pixels counts, a batch norm goes inside the convolution before it. The weights are still
those of the convolution alone, so that gradients and slopes are what they were.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from deepaa.dual import follow
from deepaa.models import ScaleShift

__all__ = ["ScaledConv2d", "folded", "prepared"]

Named = Mapping[str, Tensor]


def prepared(model: nn.Module, images: Tensor) -> nn.Module:
    """A copy of a frozen model for images like these; itself where it needs channels first."""
    model = copy.deepcopy(model) if images.is_cuda else folded(model)
    last = nn.Sequential(_ChannelsLast(), model.to(memory_format=torch.channels_last)).eval()
    try:
        with torch.no_grad():
            last(images)
    except RuntimeError:  # for example a view of pixels as a row, which needs them in order
        return model.to(memory_format=torch.contiguous_format)
    return last


class _ChannelsLast(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)


# Batch norm inside the convolution


class ScaledConv2d(nn.Conv2d):
    """A convolution with a scale and a shift behind it, in one."""

    scale: Tensor
    shift: Tensor

    def __init__(self, conv: nn.Conv2d, after: ScaleShift) -> None:
        """Take over the weights of `conv`, and what `after` does to its outputs."""
        names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        same: dict[str, Any] = {name: getattr(conv, name) for name in names}
        has_bias = conv.bias is not None
        super().__init__(conv.in_channels, conv.out_channels, **same, bias=has_bias, device="meta")
        self.weight, self.bias = conv.weight, conv.bias
        self.register_buffer("scale", after.scale)
        self.register_buffer("shift", after.shift)
        self.eval()

    def merged(self, values: Named, moves: Named) -> tuple[Named, Named]:
        """Weight and bias of one plain convolution that does the same, and how these move."""
        scale = values["scale"]
        wide = scale.view(-1, 1, 1, 1)
        bias = values["shift"]
        if "bias" in values:
            bias = torch.addcmul(bias, values["bias"], scale)
        return (
            {"weight": values["weight"] * wide, "bias": bias},
            {name: move * (wide if name == "weight" else scale) for name, move in moves.items()},
        )

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W)."""
        one, _ = self.merged({**dict(self.named_parameters()), **dict(self.named_buffers())}, {})
        out: Tensor = self._conv_forward(input, one["weight"], one["bias"])
        return out


def folded(model: nn.Module) -> nn.Module:
    """A copy of a frozen model with every scale and shift inside the convolution before it.

    It stays outside where the convolution's outputs go elsewhere as well, or where the code of the
    model cannot be followed.
    """
    graph = follow(model)
    model = copy.deepcopy(model)
    if graph is None:
        return model
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        if len(before.users) == calls[before.target] == calls[node.target] == 1:
            _fold(model, str(before.target), str(node.target))
    return model


def _fold(model: nn.Module, name: str, behind: str) -> None:
    conv, after = model.get_submodule(name), model.get_submodule(behind)
    if type(conv) is not nn.Conv2d or type(after) is not ScaleShift:
        return
    if conv._forward_hooks or conv._forward_pre_hooks or after._forward_hooks:
        return  # somebody looks in between
    model.set_submodule(name, ScaledConv2d(conv, after))
    model.set_submodule(behind, nn.Identity().eval())
