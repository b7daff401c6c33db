"""A frozen network laid out for speed: channels last, batch norm folded into convolutions.

Convolutions prefer channels last on CUDA and by oneDNN. On a CPU, where every walk over the pixels
counts, a frozen batch norm is folded into the convolution before it. The weights are still those of
the convolution alone, so that gradients and JVPs are what they were.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from deepaa.models import ScaleShift
from deepaa.search.gradient_matching.forward_mode import traced_graph
from deepaa.search.gradient_matching.gradients import Derivatives, flattened

Named = dict[str, Tensor]
TOLERANCE = 0.1
"""Of the gradient: rounding is far below, another network far above."""


def optimized_copy(model: nn.Module, images: Tensor, labels: Tensor) -> nn.Module:
    """The fastest layout of a frozen model that has the same gradient on these images."""
    expected = flattened(Derivatives(model).mean_gradient(images, labels))
    layouts: list[Callable[[], nn.Module]] = [lambda: _channels_last(copy.deepcopy(model))]
    if not images.is_cuda:
        layouts = [lambda: _channels_last(folded(model)), lambda: folded(model), *layouts]
    for layout in layouts:
        try:
            fast = layout()
            found = flattened(Derivatives(fast).mean_gradient(images, labels))
        except Exception:  # for example a view of pixels as a row, which needs them in order
            continue
        same_size = len(found) == len(expected)
        if same_size and bool((found - expected).norm() <= TOLERANCE * expected.norm()):
            return fast
    return model


def _channels_last(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return nn.Sequential(_ChannelsLast(), model).eval()


class _ChannelsLast(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)


class ScaledConv2d(nn.Conv2d):
    """A convolution that includes the scale and shift of a frozen batch norm behind it."""

    scale: Tensor
    shift: Tensor

    def __init__(self, conv: nn.Conv2d, after: ScaleShift) -> None:
        """Share the weights of `conv`, and apply the scale and shift of `after`."""
        names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        same: dict[str, Any] = {name: getattr(conv, name) for name in names}
        has_bias = conv.bias is not None
        super().__init__(conv.in_channels, conv.out_channels, **same, bias=has_bias, device="meta")
        self.weight, self.bias = conv.weight, conv.bias
        self.register_buffer("scale", after.scale)
        self.register_buffer("shift", after.shift)
        self.eval()

    def merged(self, values: Named, tangents: Named) -> tuple[Named, Named]:
        """Weight and bias of an equal plain convolution, and their tangents."""
        scale = values["scale"]
        wide = scale.view(-1, 1, 1, 1)
        bias = values["shift"]
        if "bias" in values:
            bias = torch.addcmul(bias, values["bias"], scale)
        return (
            {"weight": values["weight"] * wide, "bias": bias},
            {k: t * (wide if k == "weight" else scale) for k, t in tangents.items()},
        )

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W)."""
        one, _ = self.merged({**dict(self.named_parameters()), **dict(self.named_buffers())}, {})
        out: Tensor = self._conv_forward(input, one["weight"], one["bias"])
        return out


def folded(model: nn.Module) -> nn.Module:
    """A copy of a frozen model with every batch norm folded into the convolution before it.

    It stays outside where the convolution's outputs are used elsewhere too, or where the model
    cannot be traced.
    """
    graph = traced_graph(model)
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
    hooks = (m._forward_hooks or m._forward_pre_hooks for m in (conv, after))
    names = [m for _, m in model.named_modules(remove_duplicate=False) if m in (conv, after)]
    if any(hooks) or len(names) > 2:
        return  # the value in between is used, or a layer is called by another name
    model.set_submodule(name, ScaledConv2d(conv, after))
    model.set_submodule(behind, nn.Identity().eval())
