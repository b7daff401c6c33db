"""Copies of a network in eval mode that treat every image of a batch on its own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


class ScaleShift(nn.Module):
    """Batch norm in eval mode as it is computed: x * scale + shift, per channel, no parameters."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        """Fold the running statistics and the weights of `norm`, in float64."""
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = (norm.running_var.detach().double() + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight.detach().double()
        shift = -norm.running_mean.detach().double() * scale
        if norm.bias is not None:
            shift = shift + norm.bias.detach().double()
        dtype = norm.running_mean.dtype if norm.weight is None else norm.weight.dtype
        self.register_buffer("scale", scale.to(dtype))
        self.register_buffer("shift", shift.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """`x` (N, C, ...), scaled and shifted."""
        shape = (-1,) + (1,) * (x.ndim - 2)
        scale, shift = self.scale.to(x.dtype).view(shape), self.shift.to(x.dtype).view(shape)
        return torch.addcmul(shift, x, scale)

    def tangent_of(self, tangent: Tensor) -> Tensor:
        """The tangent of the output, for a tangent of the input (forward mode)."""
        shape = (-1,) + (1,) * (tangent.ndim - 2)
        return tangent * self.scale.to(tangent.dtype).view(shape)


def unwrap_compiled(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, or the module itself."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner


def checked_outputs(model: nn.Module, images: Tensor) -> Any:
    """What a model gives for images; one that cannot take them is refused with the reason."""
    try:
        return model(images)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:
        advice = ""
        if images.dtype == torch.uint8 and "type" in str(error):
            advice = "; it gets uint8 images: put deepaa.models.Normalize(mean, std) in front"
        shape = tuple(images.shape[1:])
        raise ValueError(
            f"the model cannot take images of shape {shape}{advice}: {error}"
        ) from error


def copy_model(model: nn.Module) -> nn.Module:
    """A copy, also of a model that keeps its activations, which torch refuses to copy."""
    model = unwrap_compiled(model)
    kept = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(model, kept)


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode whose batch norm is a plain scale and shift and whose dropout is gone.

    It computes what `model.eval()` computes, image by image, and no parameter of a batch norm is
    left among its parameters. Layers that would mix the images of a batch or stay random are
    refused by name. Wrappers of `torch.compile` are taken off.
    """
    frozen = _frozen(copy_model(model).eval(), "", {})
    for name, module in frozen.named_modules():
        if module.training:
            raise ValueError(f"{_place(name, module)} stays in train mode after eval()")
    return frozen


def _frozen(module: nn.Module, name: str, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """The replacement of a module and of all below it; one used twice is replaced by one."""
    if module not in done:
        done[module] = found = _replacement(unwrap_compiled(module), name)
        for key, child in list(found._modules.items()):
            if child is not None:
                found.register_module(key, _frozen(child, f"{name}.{key}".lstrip("."), done))
    return done[module]


def _replacement(module: nn.Module, name: str) -> nn.Module:
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(f"{_place(name, module)} is a script: its layers cannot be replaced")
    if isinstance(module, _DropoutNd):
        return nn.Identity().eval()
    if not isinstance(module, _BatchNorm):
        return module
    if not isinstance(module.running_mean, Tensor) or not isinstance(module.running_var, Tensor):
        raise ValueError(f"{_place(name, module)} has no running statistics: it mixes images")
    if type(module).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
        return ScaleShift(module).eval()
    act, drop = getattr(module, "act", None), getattr(module, "drop", None)
    if type(module).__name__ == "BatchNormAct2d" and act is not None and drop is not None:
        return nn.Sequential(ScaleShift(module), drop, act).eval()  # timm's norm with activation
    raise ValueError(f"{_place(name, module)} is a batch norm with a forward of its own")


def _place(name: str, module: nn.Module) -> str:
    return f"layer {name or 'model'!r} ({type(module).__name__})"
