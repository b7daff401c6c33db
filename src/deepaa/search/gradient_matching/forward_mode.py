"""Forward-mode differentiation of a network with dual numbers: a value and its tangent.

`torch.func.jvp` runs three convolutions for each layer: x * w, x' * w and x * w'. Stacked along the
channels they are one convolution, (x, x') with the weights ((w, 0), (w', w)): a third more
arithmetic, but a third of the reads and writes, which is where small networks spend their time on a
GPU. The sum of the two tangents then also happens before rounding, inside the convolution. On a
CPU, where every walk over the pixels counts, a frozen batch norm is folded into the convolution
before it.
"""

from __future__ import annotations

import copy
import importlib
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from deepaa.models import ScaleShift
from deepaa.runs import part_of

Named = dict[str, Tensor]


@cache
def load_jvp_rules() -> None:
    """Import torch's forward-mode rules without the warning that they give about torch's own code.

    They come with torch's compiler, which takes two seconds.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=FutureWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def jvp(call: Callable[..., Any], at: tuple[Any, ...], along: tuple[Any, ...]) -> Any:
    """`torch.func.jvp`; compiled code needs its rules loaded before."""
    if not torch.compiler.is_compiling():
        load_jvp_rules()
    return torch.func.jvp(call, at, along)


class Dual(NamedTuple):
    """A tensor and its tangent; the tangent is None where nothing moves."""

    value: Tensor
    tangent: Tensor | None


# The graph of a network


class _Tracer(fx.Tracer):
    """Traces into every module that is made of others; the rest are leaves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(True for _ in m.children())


class Node(NamedTuple):
    """A node of a traced network as plain data, which can be compiled; `fx.Node` cannot."""

    name: str
    kind: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Ref(NamedTuple):
    """The result of an earlier node."""

    name: str


def traced_graph(model: nn.Module) -> fx.Graph | None:
    """The graph of a network with one input; None if its code cannot be traced."""
    try:
        graph = _Tracer().trace(model)
    except Exception:  # a trace runs the user's code with stand-ins, which may raise anything
        return None
    return graph if sum(node.op == "placeholder" for node in graph.nodes) == 1 else None


def trace(model: nn.Module) -> list[Node] | None:
    """The nodes of such a network in order; None if its code cannot be traced."""
    graph = traced_graph(model)
    if graph is None:
        return None

    def plain(part: Any) -> Any:
        return fx.node.map_arg(part, lambda node: _Ref(node.name))

    return [Node(n.name, n.op, n.target, plain(n.args), dict(plain(n.kwargs))) for n in graph.nodes]


def dual_forward(
    model: nn.Module, nodes: Sequence[Node], values: Named, tangents: Named, images: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs and their tangents, for weights and buffers `values` that move by `tangents`."""
    found: dict[str, Any] = {}
    for node in nodes:
        args, kwargs = _resolved((node.args, node.kwargs), found)
        if node.kind == "placeholder":
            found[node.name] = Dual(images, None)
        elif node.kind == "output":
            out = args[0]
            return out.value, torch.zeros_like(out.value) if out.tangent is None else out.tangent
        elif node.kind == "get_attr":
            found[node.name] = Dual(values[node.target], tangents.get(node.target))
        elif node.kind == "call_module":
            module = model.get_submodule(node.target)
            own, moves = (part_of(tensors, f"{node.target}.") for tensors in (values, tangents))
            found[node.name] = _module(module, args, kwargs, own, moves)
        else:
            call = node.target if node.kind == "call_function" else getattr(Tensor, node.target)
            found[node.name] = _function(call, args, kwargs)
    raise AssertionError("a graph ends with its output")


def _resolved(part: Any, found: dict[str, Any]) -> Any:
    """`part` with the results of nodes in the place of references to them.

    Not by `tree_map`, which keeps the lists of fx: those cannot be compiled.
    """
    if isinstance(part, _Ref):
        return found[part.name]
    if isinstance(part, tuple):
        return tuple(_resolved(each, found) for each in part)
    if isinstance(part, list):
        return [_resolved(each, found) for each in part]
    if isinstance(part, dict):
        return {key: _resolved(each, found) for key, each in part.items()}
    return part


# Modules


def _module(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], own: Named, moves: Named
) -> Any:
    """A module on dual numbers, with tensors `own`, some of which move."""
    is_convolution = type(module) in (nn.Conv2d, ScaledConv2d)
    if is_convolution and module.groups == 1 and module.padding_mode == "zeros":
        return _convolution(module, args[0], own, moves)
    if isinstance(module, ScaleShift) and args[0].tangent is not None:
        value = functional_call(module, own, args[0].value)
        return Dual(value, module.tangent_of(args[0].tangent))
    if type(module) is nn.Linear:
        return _linear(args[0], own, moves)
    if type(module) is nn.MaxPool2d and not module.return_indices and args[0].tangent is not None:
        return _max_pool(module, args[0])

    def apply(weights: Named, *inputs: Any, **named: Any) -> Any:
        return functional_call(module, {**own, **weights}, inputs, named)

    weights = {name: Dual(own[name], move) for name, move in moves.items()}
    return _function(apply, (weights, *args), kwargs, type(module))


def _convolution(module: Any, x: Dual, own: Named, moves: Named) -> Dual:
    if isinstance(module, ScaledConv2d):
        own, moves = module.merged(own, moves)
    where = (module.stride, module.padding, module.dilation)
    if x.value.is_cuda and (x.tangent is not None or "weight" in moves):
        return _stacked_convolution(x, own, moves, where)
    # one for each product: on a CPU arithmetic costs more than reading twice
    value = F.conv2d(x.value, own["weight"], own.get("bias"), *where)
    parts = []
    if "weight" in moves:
        parts.append(F.conv2d(x.value, moves["weight"], moves.get("bias"), *where))
    elif "bias" in moves:
        parts.append(moves["bias"].view(-1, 1, 1).expand_as(value))
    if x.tangent is not None:
        parts.append(F.conv2d(x.tangent, own["weight"], None, *where))
    return Dual(value, sum(parts[1:], parts[0]) if parts else None)


def _stacked_convolution(x: Dual, own: Named, moves: Named, where: Any) -> Dual:
    """(x, x') with the weights ((w, 0), (w', w)), in one convolution."""
    weight, bias = own["weight"], own.get("bias")
    blank = torch.zeros_like(weight)
    stacked, inputs = torch.cat((weight, moves.get("weight", blank))), x.value
    if x.tangent is not None:
        stacked = torch.cat((stacked, torch.cat((blank, weight))), 1)
        inputs = torch.cat((x.value, x.tangent), 1)
    if bias is not None:
        bias = torch.cat((bias, moves.get("bias", torch.zeros_like(bias))))
    value, tangent = F.conv2d(inputs, stacked, bias, *where).chunk(2, 1)
    return Dual(value, tangent)


def _linear(x: Dual, own: Named, moves: Named) -> Dual:
    value = F.linear(x.value, own["weight"], own.get("bias"))
    parts = []
    if x.tangent is not None:
        parts.append(F.linear(x.tangent, own["weight"]))
    if "weight" in moves:
        parts.append(F.linear(x.value, moves["weight"]))
    if "bias" in moves:
        parts.append(moves["bias"].expand_as(value))
    return Dual(value, sum(parts[1:], parts[0]) if parts else None)


def _max_pool(module: nn.MaxPool2d, x: Dual) -> Dual:
    """The tangent of a maximum is that of the place it came from."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    options: dict[str, Any] = {name: getattr(module, name) for name in names}
    value, places = F.max_pool2d(x.value, **options, return_indices=True)
    assert x.tangent is not None
    return Dual(value, x.tangent.flatten(2).gather(2, places.flatten(2)).view(value.shape))


# Everything else

_ADDITIONS = (operator.add, torch.add)
_RECTIFIERS = (F.relu, torch.relu, Tensor.relu)
_LINEAR_MODULES = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity)
_POOLS = (F.avg_pool2d, F.adaptive_avg_pool2d)
_LINEAR = (torch.flatten, Tensor.flatten, torch.mean, Tensor.mean, *_POOLS)
_SHAPES = (getattr, Tensor.size, Tensor.dim)
"""What they give does not move."""


def _is_dual(part: Any) -> bool:
    return isinstance(part, Dual)


def _function(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    kind: type[nn.Module] | None = None,
) -> Any:
    """A call on duals: linear ones on both parts, any other by torch's forward mode."""
    flat, spec = tree_flatten((args, kwargs), is_leaf=_is_dual)
    moving = [i for i, each in enumerate(flat) if _is_dual(each) and each.tangent is not None]
    plain = [each.value if _is_dual(each) else each for each in flat]

    def at(*tensors: Tensor) -> Any:
        full = list(plain)
        for i, tensor in zip(moving, tensors, strict=True):
            full[i] = tensor
        inputs, named = tree_unflatten(full, spec)
        return call(*inputs, **named)

    values = tuple(flat[i].value for i in moving)
    if not moving or call in _SHAPES:
        return _paired(at(*values), None)
    tangents = tuple(flat[i].tangent.to(flat[i].value.dtype) for i in moving)
    if call in _LINEAR or kind in _LINEAR_MODULES or (call in _ADDITIONS and len(moving) == 2):
        return Dual(at(*values), at(*tangents))
    if call in _RECTIFIERS or kind is nn.ReLU:
        value = at(*values)
        # tangents where the value is above 0, and 0 elsewhere: in one walk, as `where` is not
        return Dual(value, torch.ops.aten.threshold_backward(tangents[0], value, 0))
    return _paired(*jvp(at, values, tangents))


def _paired(values: Any, tangents: Any) -> Any:
    if isinstance(values, Tensor):
        return Dual(values, tangents)
    if isinstance(values, tuple | list) and any(isinstance(each, Tensor) for each in values):
        rest = tangents if tangents is not None else [None] * len(values)
        return [_paired(value, tangent) for value, tangent in zip(values, rest, strict=True)]
    return values  # a shape, a number


# Layouts of a frozen network


def channels_last(model: nn.Module) -> nn.Module:
    """The model, changed in place to run with channels innermost, as convolutions prefer it."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return nn.Sequential(_ChannelsLast(), model).eval()


class _ChannelsLast(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)


class ScaledConv2d(nn.Conv2d):
    """A convolution that includes the scale and shift of a frozen batch norm behind it.

    Its weights are those of the convolution alone, so that gradients and JVPs stay what they are.
    """

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
