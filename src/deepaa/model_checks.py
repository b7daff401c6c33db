"""Is a network fit for a search? Layers that mix images, slopes that are wrong, and so on."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from deepaa import dual
from deepaa.gradients import (
    Params,
    even_weights,
    flattened,
    functions,
    loss_slopes,
    losses,
    mean_gradient,
    places_of,
    weights_of,
)
from deepaa.models import outputs_of

log = logging.getLogger(__name__)
WRONG = 0.05
"""A derivative that is off by more is another."""
TINY_STEP = 1e-7
"""Of finite differences in float64: there it is both exact and clear of rounding."""
COARSE_STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
"""Of finite differences in float32: large ones meet rectifiers that turn, small ones rounding."""


def dual_steps(model: nn.Module, images: Tensor, labels: Tensor) -> list[dual.Step] | None:
    """The network for dual numbers, if these give the slopes that finite differences give.

    What they agree on needs torch's forward mode no more, nor the seconds that loading it takes.
    """
    steps = dual.trace(model)
    if steps is None:
        return None
    try:
        wide = copy.deepcopy(model).double()  # where two right ways agree to many digits
        generator = torch.Generator().manual_seed(0)
        direction = {
            name: (p.norm() / math.sqrt(p.numel())).cpu() * _normal(p, generator)
            for name, p in weights_of(wide).items()
        }
        with _InFloat64():
            off = _slope_error(wide, images, labels, direction, TINY_STEP, steps)
    except Exception:  # a layer that is not what it seemed, or insists on float32
        return None
    return steps if off < 1e-5 else None


class _InFloat64(TorchFunctionMode):
    """Has code that says float32, as `images.float()`, compute in float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by torch in the place of each of its functions."""
        args = tuple(torch.float64 if each is torch.float32 else each for each in args)
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        call: Callable[..., Any] = Tensor.double if func is Tensor.float else func
        return call(*args, **named)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype)


def problem_in(model: nn.Module, images: Tensor, labels: Tensor) -> str | None:
    """Why the model does not run in bfloat16; None if it does."""
    try:
        with torch.no_grad():
            losses(model, weights_of(model), images, labels, torch.bfloat16, places_of(model))
    except (RuntimeError, TypeError) as error:
        return _first(error)
    return None


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
    outputs = _outputs(model, images, labels, largest)
    with torch.no_grad():
        again, alone = model(images), model(images[:1])
    size = outputs.norm()
    if not bool((again - outputs).norm() <= 1e-3 * size):
        raise ValueError("the model gives other outputs when asked again: a layer is random")
    if not bool((alone - outputs[:1]).norm() <= 1e-2 * size):
        raise ValueError("the model's output for an image depends on the other images of a batch")
    gradient = flattened(mean_gradient(model, images, labels, even_weights(images)))
    if not bool(torch.isfinite(gradient).all()):
        raise ValueError("the model's gradient is not finite")
    if not bool(gradient.any()):
        raise ValueError("the model's gradient is zero: is it trained, and are its weights free?")


def check_untrained(model: nn.Module, images: Tensor, labels: Tensor, largest: int) -> None:
    """Refuse before its training a model that no training makes fit, with the reason."""
    with torch.no_grad():
        _outputs(model, images, labels, largest)
    direction = {name: torch.zeros_like(p) for name, p in weights_of(model).items()}
    steps = dual.trace(model)
    for way in (steps, None) if steps is not None else (None,):
        try:
            loss_slopes(model, images, labels, direction, passes=functions(model, steps=way))
            return
        except Exception as error:  # the user's code may raise anything
            problem = error
    raise ValueError(f"the model has no forward-mode derivative: {_first(problem)}") from problem


def _first(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _outputs(model: nn.Module, images: Tensor, labels: Tensor, largest: int | None) -> Tensor:
    """What the model gives for the images, if that is one number for each class."""
    outputs: Tensor = outputs_of(model, images)
    if outputs.ndim != 2 or len(outputs) != len(images):
        raise ValueError(f"the model gives {tuple(outputs.shape)}, expected (images, classes)")
    largest = max(int(labels.max()), largest or 0)
    if largest >= outputs.shape[1] or int(labels.min()) < 0:
        raise ValueError(
            f"labels run from {int(labels.min())} to {largest}, but the model has "
            f"{outputs.shape[1]} outputs"
        )
    return outputs


def check_forward_mode(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Refuse a model whose forward-mode derivative is missing or not that of finite differences."""
    gradient = mean_gradient(model, images, labels, even_weights(images))
    off = math.nan
    try:
        wide = copy.deepcopy(model).double()
        direction = {name: g.double() for name, g in gradient.items()}
        with _InFloat64():
            off = _slope_error(wide, images, labels, direction, TINY_STEP)
    except Exception as error:  # the user's code may raise anything
        log.debug("no derivative in float64, float32 is tried: %s", error)
    try:
        if not off < WRONG:  # a model that insists on float32
            errors = [_slope_error(model, images, labels, gradient, s) for s in COARSE_STEPS]
            off = min(errors)
    except Exception as error:
        raise ValueError(f"the model has no forward-mode derivative: {_first(error)}") from error
    if not off < WRONG:
        raise ValueError(
            f"the model's forward-mode derivative is off by {100 * off:.0f} % from finite "
            "differences or from the gradient; a layer with its own jvp or backward, or one that "
            "is random, may be the cause"
        )


def _slope_error(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    direction: Params,
    relative: float,
    steps: Sequence[dual.Step] | None = None,
) -> float:
    """How far slopes are from central differences, or their mean from the gradient, relatively.

    The median of the images: where a rectifier turns within the step, a difference is no slope. A
    gradient that is another has a layer with a backward pass of its own, such as one that rounds.
    """
    params = weights_of(model)
    images = images.to(next(iter(params.values())).dtype) if images.is_floating_point() else images
    norm = flattened(direction).norm()
    direction = {name: (d / norm).to(params[name]) for name, d in direction.items()}
    passes = functions(model, steps=steps)
    slopes = loss_slopes(model, images, labels, direction, passes=passes)
    step = relative * max(1.0, flattened(params).norm().item())
    places = places_of(model)
    there = []
    with torch.no_grad():
        for way in (step, -step):
            moved = {k: p + way * direction[k] for k, p in params.items()}
            there.append(losses(model, moved, images, labels, None, places))
    difference = (there[0] - there[1]) / (2 * step)
    off = (slopes - difference).abs().median() / difference.abs().mean().clamp(min=1e-12)
    gradient = mean_gradient(model, images, labels, even_weights(images))
    along = torch.dot(flattened(gradient), flattened(direction))
    apart = (slopes.mean() - along).abs() / torch.maximum(along.abs(), slopes.abs().mean())
    return max(float(off), float(apart))
