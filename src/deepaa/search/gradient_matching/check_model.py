"""Checks that a network is fit for a search: no layer mixes images, and its derivatives are right.

Whatever runs the user's code may raise anything, so that these checks catch every `Exception`.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from deepaa.models import checked_outputs
from deepaa.search.gradient_matching import forward_mode
from deepaa.search.gradient_matching.gradients import Derivatives, Params, flattened, trainable

log = logging.getLogger(__name__)
DUAL_TOLERANCE = 1e-5
"""The largest relative error of dual numbers in float64: right ones agree to many digits."""
TOLERANCE = 0.05
"""The largest relative error of torch's forward mode, of which some models allow float32 only."""
FLOAT64_STEP = 1e-7
"""Of finite differences in float64: there it is both exact and clear of rounding."""
FLOAT32_STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
"""Of finite differences in float32: large ones meet rectifiers that turn, small ones rounding."""


def check_model(
    model: nn.Module, images: Tensor, labels: Tensor, largest: int | None = None
) -> None:
    """Refuse a model whose rewards would be wrong, with the reason.

    Layers that mix images or draw numbers have no gradient per image.

    Args:
        largest: The largest label of all data, of which `labels` are a part.
    """
    if hasattr(model, "_orig_mod"):
        raise ValueError("the model is compiled; pass the original (model._orig_mod)")
    for name, module in model.named_modules():
        where = f"layer {name!r} ({type(module).__name__})"
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(f"{where} is in training mode and mixes images: call model.eval()")
        if module.training and isinstance(module, nn.modules.dropout._DropoutNd):
            raise ValueError(f"{where} is in training mode and random: call model.eval()")
    outputs = _class_outputs(model, images, labels, largest)
    with torch.no_grad():
        again, alone = model(images), model(images[:1])
    size = outputs.norm()
    if not bool((again - outputs).norm() <= 1e-3 * size):
        raise ValueError("the model gives other outputs when asked again: a layer is random")
    if not bool((alone - outputs[:1]).norm() <= 1e-2 * size):
        raise ValueError("the model's output for an image depends on the other images of a batch")
    gradient = flattened(Derivatives(model).mean_gradient(images, labels))
    if not bool(torch.isfinite(gradient).all()):
        raise ValueError("the model's gradient is not finite")
    if not bool(gradient.any()):
        raise ValueError("the model's gradient is zero: is it trained, and are its weights free?")


def check_untrained(model: nn.Module, images: Tensor, labels: Tensor, largest: int) -> None:
    """Refuse before its training a model that no training makes fit, with the reason."""
    with torch.no_grad():
        _class_outputs(model, images, labels, largest)
    direction = {name: torch.zeros_like(p) for name, p in trainable(model).items()}
    traced = forward_mode.trace(model)
    for nodes in (None,) if traced is None else (traced, None):
        try:
            Derivatives(model, nodes=nodes).loss_jvp(images, labels, direction)
            return
        except Exception as error:
            problem = error
    raise ValueError(f"the model has no forward-mode derivative: {_first(problem)}") from problem


def _class_outputs(model: nn.Module, images: Tensor, labels: Tensor, largest: int | None) -> Tensor:
    """(N, classes) what the model gives for the images, if that is one number for each class."""
    outputs: Tensor = checked_outputs(model, images)
    if outputs.ndim != 2 or len(outputs) != len(images):
        raise ValueError(f"the model gives {tuple(outputs.shape)}, expected (images, classes)")
    largest = max(int(labels.max()), largest or 0)
    if largest >= outputs.shape[1] or int(labels.min()) < 0:
        raise ValueError(
            f"labels run from {int(labels.min())} to {largest}, but the model has "
            f"{outputs.shape[1]} outputs"
        )
    return outputs


def bfloat16_problem(model: nn.Module, images: Tensor, labels: Tensor) -> str | None:
    """Why the model does not run in bfloat16; None if it does."""
    try:
        Derivatives(model, dtype=torch.bfloat16).losses(images, labels)
    except (RuntimeError, TypeError) as error:
        return _first(error)
    return None


# Derivatives against finite differences


def checked_trace(
    model: nn.Module, images: Tensor, labels: Tensor
) -> list[forward_mode.Node] | None:
    """The traced network, if dual numbers give the JVPs that finite differences give.

    Such a model needs torch's forward mode no more, nor the seconds that loading it takes.
    """
    nodes = forward_mode.trace(model)
    if nodes is None:
        return None
    generator = torch.Generator().manual_seed(0)
    try:
        direction = {
            name: (p.double().norm() / math.sqrt(p.numel())).cpu()
            * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            for name, p in trainable(model).items()
        }
        error = _float64_error(model, images, labels, direction, nodes)
    except Exception:  # a layer that is not what it seemed, or insists on float32
        return None
    return nodes if error < DUAL_TOLERANCE else None


def check_forward_mode(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Refuse a model whose forward-mode derivative is missing or not that of finite differences."""
    gradient = Derivatives(model).mean_gradient(images, labels)
    error = math.nan
    try:
        error = _float64_error(model, images, labels, gradient)
    except Exception as reason:
        log.debug("no derivative in float64, float32 is tried: %s", reason)
    try:
        if not error < TOLERANCE:  # a model that insists on float32
            errors = [_jvp_error(model, images, labels, gradient, s) for s in FLOAT32_STEPS]
            error = min(errors)
    except Exception as reason:
        raise ValueError(f"the model has no forward-mode derivative: {_first(reason)}") from reason
    if not error < TOLERANCE:
        raise ValueError(
            f"the model's forward-mode derivative is off by {100 * error:.0f} % from finite "
            "differences or from the gradient; a layer with its own jvp or backward, or one that "
            "is random, may be the cause"
        )


def _float64_error(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    direction: Params,
    nodes: Sequence[forward_mode.Node] | None = None,
) -> float:
    """The error of JVPs in float64, where rounding hides nothing."""
    wide = copy.deepcopy(model).double()
    with _InFloat64():
        return _jvp_error(wide, images, labels, direction, FLOAT64_STEP, nodes)


def _jvp_error(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    direction: Params,
    relative_step: float,
    nodes: Sequence[forward_mode.Node] | None = None,
) -> float:
    """The relative error of JVPs against central differences, and of their mean to the gradient.

    The median over images: where a rectifier turns within the step, a difference is no derivative.
    The gradient shows layers with a backward pass of their own, such as one that rounds.
    """
    params = trainable(model)
    images = images.to(next(iter(params.values())).dtype) if images.is_floating_point() else images
    norm = flattened(direction).norm()
    direction = {name: (d / norm).to(params[name]) for name, d in direction.items()}
    derivatives = Derivatives(model, nodes=nodes)
    products = derivatives.loss_jvp(images, labels, direction)
    step = relative_step * max(1.0, flattened(params).norm().item())
    ahead, behind = (
        derivatives.losses(images, labels, {k: p + way * direction[k] for k, p in params.items()})
        for way in (step, -step)
    )
    difference = (ahead - behind) / (2 * step)
    error = (products - difference).abs().median() / difference.abs().mean().clamp(min=1e-12)
    gradient = derivatives.mean_gradient(images, labels)
    along = torch.dot(flattened(gradient), flattened(direction))
    apart = (products.mean() - along).abs() / torch.maximum(along.abs(), products.abs().mean())
    return max(float(error), float(apart))


class _InFloat64(TorchFunctionMode):
    """Has code that names float32, as `images.float()` does, compute in float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by torch in the place of each of its functions."""
        args = tuple(torch.float64 if each is torch.float32 else each for each in args)
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        call: Callable[..., Any] = Tensor.double if func is Tensor.float else func
        return call(*args, **named)


def _first(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
