"""Networks by name or of a user's function, their normalisation and weights, and frozen copies."""

from __future__ import annotations

import copy
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from deepaa.models.networks import LIBRARIES, ShakeShake, WideResNet, library_network
from deepaa.models.weights import load_weights
from deepaa.ops import check_images, import_object

SMALL_SIDE = 64
"""Images up to this side are searched with a wide ResNet, larger ones with ResNet-18."""
SMALL_WEIGHTS, LOW_SIDE = 500_000, 32
"""A network of more weights, and images of more pixels a side, are named where time is short."""
LONG_ON_CPU = 3600.0
"""Seconds from which on a cheaper way is named."""
Levels = float | Sequence[float] | Tensor
"""One number for all channels, or one for each."""


def is_large(images: Tensor) -> bool:
    """Whether images (N, C, H, W) get what is made for large ones: preset, space, network."""
    return max(images.shape[-2:]) > SMALL_SIDE


def default_model(images: Tensor, device: torch.device) -> str:
    """The network for these images on this device, where the user names none."""
    if is_large(images):
        return "resnet18"
    return "small" if device.type == "cpu" else "wrn-40-2"


def quicker_options(images: Tensor, weights: int) -> list[str]:
    """Options with which images (N, C, H, W) and a network of so many weights take less time."""
    options = ["--model small"] if weights > SMALL_WEIGHTS else []
    return options + (["--size 32"] if max(images.shape[-2:]) > LOW_SIDE else [])


def quicker(options: Sequence[str]) -> str | None:
    """What to say of these options; None where there is none."""
    verb = "is" if len(options) == 1 else "are"
    return f"{' and '.join(options)} {verb} quicker" if options else None


# Normalisation


class Normalize(nn.Module):
    """The first layer: pixels, uint8 or float in [0, 1], become (pixel - mean) / std."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Levels, std: Levels, channels: int = 3) -> None:
        """Check the levels and store them as fractions of white.

        Args:
            mean: In 0..1, or in 0..255 if `mean` or `std` holds a number above 1.
            std: In the unit of `mean`.
        """
        super().__init__()
        means, stds = _levels(mean, channels, "mean"), _levels(std, channels, "std")
        if float(stds.min()) <= 0:
            raise ValueError(f"std should be above 0, got {stds.tolist()}")
        if max(float(means.max()), float(stds.max())) > 1:
            means, stds = means / 255, stds / 255
        self.register_buffer("mean", means.to(torch.float32)[:, None, None])
        self.register_buffer("std", stds.to(torch.float32)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) in the type of the buffers, which follows the model's."""
        if images.dtype != torch.uint8 and not images.dtype.is_floating_point:
            raise TypeError(f"images should be uint8 or float in [0, 1], got {images.dtype}")
        if images.shape[-3] != len(self.mean):  # one channel would broadcast silently
            raise ValueError(
                f"the model takes {len(self.mean)} channels, got images of shape "
                f"{tuple(images.shape)}"
            )
        white = 255.0 if images.dtype == torch.uint8 else 1.0
        # bfloat16 cannot hold the difference of two levels, so the arithmetic is never narrower
        # than float32.
        wide = torch.promote_types(self.mean.dtype, torch.float32)
        mean, std = self.mean.to(wide) * white, self.std.to(wide) * white
        return ((images.to(wide) - mean) / std).to(self.mean.dtype)


def _levels(value: Levels, channels: int, name: str) -> Tensor:
    found = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().reshape(-1)
    if len(found) not in (1, channels):
        raise ValueError(f"{name} should hold 1 or {channels} numbers, got {found.tolist()}")
    if not bool(found.isfinite().all()) or float(found.min()) < 0:
        raise ValueError(f"{name} should hold finite numbers of 0 or more, got {found.tolist()}")
    return found.expand(channels).clone()


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels, as fractions of white, exactly.

    The deviation is that of the pixels, about .247 on CIFAR-10; the .2023 of the literature is the
    average over images. It is at least one grey level, so that a constant channel can be divided.
    """
    check_images(images)
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).cpu().double()
        share /= share.sum()
        mean = share @ levels
        means.append(float(mean))
        stds.append(max(math.sqrt(float(share @ (levels - mean).square())), 1 / 255))
    return tuple(means), tuple(stds)


# Networks by name


def _small(classes: int, channels: int) -> nn.Module:
    """Four convolutions, 16 to 64 wide, for CPUs: 5 million multiplications at 32x32."""
    layers: list[nn.Module] = []
    inputs = channels
    for outputs, stride in ((16, 1), (32, 2), (64, 2), (64, 1)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


_OWN: Mapping[str, Callable[[int, int], nn.Module]] = {
    "small": _small,
    "wrn-40-2": partial(WideResNet, 40, 2),
    "wrn-28-10": partial(WideResNet, 28, 10),
    "shake-shake-26-2x96d": partial(ShakeShake, 26, 96),
}


def build_model(
    name: str,
    num_classes: int,
    *,
    mean: Levels = 0.5,
    std: Levels = 0.25,
    channels: int = 3,
    seed: int = 0,
) -> nn.Module:
    """A network with fresh weights on the CPU: uint8 (N, C, H, W) in, (N, num_classes) logits out.

    The weights are a function of `seed`; torch's global generators stay as they are.

    Args:
        name: "small", "wrn-40-2", "wrn-28-10", "shake-shake-26-2x96d", "torchvision:NAME",
            "timm:NAME", or the bare name of a network of torchvision or, if that has none, timm.
        mean: As for `Normalize`.
        std: As for `Normalize`.
    """
    if num_classes < 1 or channels < 1:
        raise ValueError(f"{num_classes} classes and {channels} channels: both should be above 0")
    normalize = Normalize(mean, std, channels)
    make = _OWN.get(name) or library_network(name, _OWN)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would seed the generators of CUDA too
        torch.default_generator.manual_seed(seed)
        network = make(num_classes, channels)
        if name in _OWN:
            _initialise(network)
    return nn.Sequential(OrderedDict(normalize=normalize, network=network))


def _initialise(network: nn.Module) -> None:
    """He's normal weights for convolutions, no bias at the output."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


# Networks as `--model` and `--weights` name them


def load_model(
    spec: str,
    images: Tensor,
    classes: int,
    seed: int,
    weights: str | Path | None = None,
    normalisation: tuple[Levels, Levels] | None = None,
    *,
    new_head: bool = False,
) -> nn.Module:
    """The network that `--model` means, for uint8 batches, with fresh weights by the seed.

    Args:
        spec: A name of `build_model`, or `module:function`; the function gets `classes`.
        images: uint8 (N, C, H, W), by whose statistics a network with a name normalises.
        weights: A safetensors file of its state.
        normalisation: Mean and deviation of the channels in place of those of the images.
        new_head: Let a last layer for another number of classes keep its fresh weights.
    """
    if is_own_code(spec):
        model = _call_factory(spec, classes, seed)
    else:
        mean, std = normalisation or channel_statistics(images)
        channels = images.shape[1]
        model = build_model(spec, classes, mean=mean, std=std, channels=channels, seed=seed)
    if weights is not None:
        load_weights(model, Path(weights), new_head=new_head)
    return model


def is_own_code(spec: str | None) -> bool:
    """Whether `--model` means a function of the user's own, whose module is imported."""
    module, colon, _ = (spec or "").partition(":")
    return bool(colon) and module not in LIBRARIES


def _call_factory(spec: str, classes: int, seed: int) -> nn.Module:
    """The network that the user's function makes, with weights that depend on the seed alone."""
    function = import_object(spec, "--model")
    if not callable(function):
        kind = type(function).__name__
        raise ValueError(f"--model {spec}: expected a function of the class count, got {kind}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            model = function(classes)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"--model {spec}: called with {classes} (classes): {reason}"
            ) from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"--model {spec} gave {type(model).__name__}, expected an nn.Module")
    return model


def state_hash(model: nn.Module) -> str:
    """The sha256 over names and values of all weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


# Copies in eval mode that treat every image of a batch on its own


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
