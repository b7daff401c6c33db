"""A network in dual numbers: values and slopes through one pass, convolutions as one product.

`torch.func.jvp` runs three convolutions for each layer: x * w, x' * w and x * w'. Stacked along the
channels they are one convolution, (x, x') with the weights ((w, 0), (w', w)): a third more
arithmetic, but a third of the reads and writes, which is where small networks spend their time on a
GPU. The sum of the two slopes then also happens before rounding, inside the convolution.
"""

from __future__ import annotations

import importlib
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call, jvp
from torch.utils._pytree import tree_flatten, tree_unflatten

Named = Mapping[str, Tensor]


@cache
def load_forward_mode() -> None:
    """Import torch's rules of forward mode without the warning they give about torch's own code.

    They come with torch's compiler, which takes two seconds.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=FutureWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def forward_mode(call: Callable[..., Any], at: tuple[Any, ...], along: tuple[Any, ...]) -> Any:
    """`torch.func.jvp`; compiled code needs its rules loaded before."""
    if not torch.compiler.is_compiling():
        load_forward_mode()
    return jvp(call, at, along)


class Dual(NamedTuple):
    """A tensor and its slope along a direction; None where it does not depend on the weights."""

    value: Tensor
    slope: Tensor | None


class _Tracer(fx.Tracer):
    """Looks inside every module that is made of others, and at the rest from outside."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(True for _ in m.children())


class Step(NamedTuple):
    """One node of the network: what it computes from which earlier ones."""

    name: str
    kind: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Ref(NamedTuple):
    """The result of an earlier step."""

    name: str


def follow(model: nn.Module) -> fx.Graph | None:
    """What a network with one input computes, or None if its code cannot be followed."""
    try:
        graph = _Tracer().trace(model)
    except Exception:  # a trace runs the user's code with stand-ins, which may raise anything
        return None
    return graph if sum(node.op == "placeholder" for node in graph.nodes) == 1 else None


def trace(model: nn.Module) -> list[Step] | None:
    """The steps of such a network, or None."""
    graph = follow(model)
    if graph is None:
        return None
    return [
        Step(
            node.name,
            node.op,
            node.target,
            fx.node.map_arg(node.args, lambda n: _Ref(n.name)),
            dict(fx.node.map_arg(node.kwargs, lambda n: _Ref(n.name))),
        )
        for node in graph.nodes
    ]


def run(
    model: nn.Module, steps: Sequence[Step], values: Named, slopes: Named, images: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs and their slopes, for weights and buffers `values` that move along `slopes`."""
    found: dict[str, Any] = {}
    for step in steps:
        args, kwargs = _filled((step.args, step.kwargs), found)
        if step.kind == "placeholder":
            found[step.name] = Dual(images, None)
        elif step.kind == "output":
            out = args[0]
            return out.value, torch.zeros_like(out.value) if out.slope is None else out.slope
        elif step.kind == "get_attr":
            found[step.name] = Dual(values[step.target], slopes.get(step.target))
        elif step.kind == "call_module":
            module = model.get_submodule(step.target)
            found[step.name] = _module(module, step.target, args, kwargs, values, slopes)
        else:
            call = step.target if step.kind == "call_function" else getattr(Tensor, step.target)
            found[step.name] = _function(call, args, kwargs)
    raise AssertionError("a graph ends with its output")


def _filled(part: Any, found: Mapping[str, Any]) -> Any:
    """`part` with results in the place of references to them."""
    if isinstance(part, _Ref):
        return found[part.name]
    if isinstance(part, tuple):
        return tuple(_filled(each, found) for each in part)
    if isinstance(part, list):
        return [_filled(each, found) for each in part]
    if isinstance(part, dict):
        return {key: _filled(each, found) for key, each in part.items()}
    return part


# Modules


def _module(
    module: nn.Module,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: Named,
    slopes: Named,
) -> Any:
    prefix = f"{name}."
    mine = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
    moves = {k.removeprefix(prefix): v for k, v in slopes.items() if k.startswith(prefix)}
    merge: Callable[..., tuple[Named, Named]] | None = getattr(module, "merged", None)
    if type(module) is nn.Conv2d or merge is not None:
        assert isinstance(module, nn.Conv2d)
        if module.padding_mode == "zeros" and module.groups == 1:
            return _convolution(module, args[0], *(merge(mine, moves) if merge else (mine, moves)))
    own: Callable[[Tensor], Tensor] | None = getattr(module, "slope_of", None)
    if own is not None and args[0].slope is not None:
        return Dual(functional_call(module, mine, args[0].value), own(args[0].slope))
    if type(module) is nn.Linear:
        return _linear(args[0], mine, moves)
    if type(module) is nn.MaxPool2d and not module.return_indices and args[0].slope is not None:
        return _max_pool(module, args[0])
    if not moves:

        def apply(*inputs: Any, **named: Any) -> Any:
            return functional_call(module, mine, inputs, named)

        return _function(apply, args, kwargs, type(module))
    return _with_weights(module, args, kwargs, mine, moves)


def _convolution(module: nn.Conv2d, x: Dual, mine: Named, moves: Named) -> Dual:
    weight, bias = mine["weight"], mine.get("bias")
    move, shift = moves.get("weight"), moves.get("bias")
    where: Any = (module.stride, module.padding, module.dilation)
    outputs = len(weight)
    if not x.value.is_cuda:
        return _in_parts(x, (weight, bias), (move, shift), where)
    if x.slope is None and move is None:
        out = F.conv2d(x.value, weight, bias, *where)
        return Dual(out, None if shift is None else shift.view(-1, 1, 1).expand_as(out))
    down = torch.zeros_like(weight) if move is None else move
    if x.slope is None:
        stacked, inputs = torch.cat((weight, down)), x.value
    else:
        blank = torch.zeros_like(weight)
        stacked = torch.cat((torch.cat((weight, blank), 1), torch.cat((down, weight), 1)))
        inputs = torch.cat((x.value, x.slope), 1)
    if bias is not None:
        bias = torch.cat((bias, torch.zeros_like(bias) if shift is None else shift))
    out = F.conv2d(inputs, stacked, bias, *where)
    return Dual(out[:, :outputs], out[:, outputs:])


def _in_parts(
    x: Dual,
    mine: tuple[Tensor, Tensor | None],
    moves: tuple[Tensor | None, Tensor | None],
    where: Any,
) -> Dual:
    """One convolution for each product: on a CPU arithmetic costs more than reading twice."""
    value = F.conv2d(x.value, *mine, *where)
    weight, shift = moves
    parts = []
    if weight is not None:
        parts.append(F.conv2d(x.value, weight, shift, *where))
    elif shift is not None:
        parts.append(shift.view(-1, 1, 1).expand_as(value))
    if x.slope is not None:
        parts.append(F.conv2d(x.slope, mine[0], None, *where))
    return Dual(value, sum(parts[1:], parts[0]) if parts else None)


def _linear(x: Dual, mine: Named, moves: Named) -> Dual:
    value = F.linear(x.value, mine["weight"], mine.get("bias"))
    parts = []
    if x.slope is not None:
        parts.append(F.linear(x.slope, mine["weight"]))
    if "weight" in moves:
        parts.append(F.linear(x.value, moves["weight"]))
    if "bias" in moves:
        parts.append(moves["bias"].expand_as(value))
    return Dual(value, sum(parts[1:], parts[0]) if parts else None)


def _max_pool(module: nn.MaxPool2d, x: Dual) -> Dual:
    """The slope of a maximum is that of the place it came from."""
    value, places = F.max_pool2d(
        x.value,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        ceil_mode=module.ceil_mode,
        return_indices=True,
    )
    assert x.slope is not None
    return Dual(value, x.slope.flatten(2).gather(2, places.flatten(2)).view(value.shape))


def _with_weights(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mine: Named, moves: Named
) -> Any:
    """Any other module whose weights move: torch's own forward mode, for this module alone."""
    names = list(moves)
    state = dict(mine)

    def apply(*tensors: Any) -> Any:
        weights = dict(zip(names, tensors[: len(names)], strict=True))
        return functional_call(module, {**state, **weights}, tensors[len(names) :], kwargs)

    duals = [Dual(mine[name], moves[name]) for name in names]
    return _function(apply, (*duals, *args), {})


# Everything else

_ADDITIONS = (operator.add, torch.add)
_RECTIFIERS = (F.relu, torch.relu, Tensor.relu)
_LINEAR_MODULES = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity)
_LINEAR = (
    *(torch.flatten, Tensor.flatten, torch.mean, Tensor.mean),
    *(F.avg_pool2d, F.adaptive_avg_pool2d),
)
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
    moving = [i for i, each in enumerate(flat) if _is_dual(each) and each.slope is not None]
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
    slopes = tuple(flat[i].slope.to(flat[i].value.dtype) for i in moving)
    if call in _LINEAR or kind in _LINEAR_MODULES or (call in _ADDITIONS and len(moving) == 2):
        return Dual(at(*values), at(*slopes))
    if call in _RECTIFIERS or kind is nn.ReLU:
        value = at(*values)
        # slopes where the value is above 0, and 0 elsewhere: in one walk, as `where` is not
        return Dual(value, torch.ops.aten.threshold_backward(slopes[0], value, 0))
    return _paired(*forward_mode(at, values, slopes))


def _paired(values: Any, slopes: Any) -> Any:
    if isinstance(values, Tensor):
        return Dual(values, slopes)
    if isinstance(values, tuple | list) and any(isinstance(each, Tensor) for each in values):
        rest = slopes if slopes is not None else [None] * len(values)
        return [_paired(value, slope) for value, slope in zip(values, rest, strict=True)]
    return values  # a shape, a number
