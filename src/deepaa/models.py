"""Networks by name, normalisation inside, and frozen copies for gradients."""

from __future__ import annotations

import copy
import difflib
import importlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from deepaa.shake import ShakeShake

__all__ = [
    "Normalize",
    "ScaleShift",
    "build_model",
    "channel_statistics",
    "copied",
    "frozen_copy",
    "model_names",
    "outputs_of",
    "unwrapped",
]

Levels = float | Sequence[float] | Tensor
"""One number for all channels, or one for each."""

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
    if images.dtype != torch.uint8 or images.ndim != 4 or images.numel() == 0:
        raise ValueError(
            f"images should be uint8 (N, C, H, W) and not empty, got {images.dtype} "
            f"{tuple(images.shape)}"
        )
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).cpu().double()
        share /= share.sum()
        mean = share @ levels
        means.append(float(mean))
        stds.append(max(math.sqrt(float(share @ (levels - mean).square())), 1 / 255))
    return tuple(means), tuple(stds)


# Our own networks


class _WideBlock(nn.Module):
    """Two 3x3 convolutions, each after batch norm and ReLU, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        inner: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        # a shortcut that changes the shape starts behind the activation, one that does not at x
        short: Tensor = x if self.shortcut is None else self.shortcut(active)
        return short + inner


class _WideResNet(nn.Module):
    """Wide residual network of Zagoruyko and Komodakis (2016) for any image size."""

    def __init__(self, depth: int, width: int, classes: int, channels: int) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        widths = (16, 16 * width, 32 * width, 64 * width)
        self.stem = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        layers: list[nn.Module] = []
        for group in range(3):
            for block in range(blocks):
                inputs = widths[group] if block == 0 else widths[group + 1]
                stride = 2 if group > 0 and block == 0 else 1
                layers.append(_WideBlock(inputs, widths[group + 1], stride))
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(widths[3])
        self.classify = nn.Linear(widths[3], classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        out: Tensor = self.classify(x.mean((2, 3)))
        return out


def _small(classes: int, channels: int) -> nn.Module:
    """Four convolutions, 16 to 64 wide, for CPUs: 5 million multiplications at 32x32."""
    layers: list[nn.Module] = []
    inputs = channels
    for outputs, stride in ((16, 1), (32, 2), (64, 2), (64, 1)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
        inputs = outputs
    network = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
    )
    _initialise(network)
    return network


def _shake_shake(classes: int, channels: int) -> nn.Module:
    network = ShakeShake(26, 96, classes, channels)
    _initialise(network)
    return network


def _initialise(network: nn.Module) -> None:
    """He's normal weights for convolutions, no bias at the output."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


# Networks by name

_OWN: Mapping[str, Callable[[int, int], nn.Module]] = {
    "small": _small,
    "wrn-40-2": lambda classes, channels: _WideResNet(40, 2, classes, channels),
    "wrn-28-10": lambda classes, channels: _WideResNet(28, 10, classes, channels),
    "shake-shake-26-2x96d": _shake_shake,
}
_LIBRARIES = {"torchvision": "torchvision.models", "timm": "timm"}
# these two would return several outputs in train mode
_ONE_OUTPUT = {"aux_logits": False, "init_weights": True}
_OPTIONS: Mapping[str, dict[str, Any]] = {"googlenet": _ONE_OUTPUT, "inception_v3": _ONE_OUTPUT}


def model_names() -> tuple[str, ...]:
    """The networks of this package; `build_model` knows torchvision's and timm's too."""
    return tuple(_OWN)


def build_model(
    name: str,
    num_classes: int,
    *,
    mean: Levels | None = None,
    std: Levels | None = None,
    channels: int = 3,
    seed: int = 0,
) -> nn.Module:
    """A network with fresh weights on the CPU: uint8 (N, C, H, W) in, (N, num_classes) logits out.

    The weights are a function of `seed`; torch's global generators stay as they are.

    Args:
        name: One of `model_names()`, "torchvision:NAME", "timm:NAME", or the bare name of a network
            of torchvision or, if that has none, timm.
        mean: As for `Normalize`; .5 and .25 where nothing is given.
        std: As for `Normalize`.
    """
    if num_classes < 1 or channels < 1:
        raise ValueError(f"{num_classes} classes and {channels} channels: both should be above 0")
    normalize = Normalize(0.5 if mean is None else mean, 0.25 if std is None else std, channels)
    make = _OWN[name] if name in _OWN else _maker(name)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would seed the generators of CUDA too
        torch.default_generator.manual_seed(seed)
        network = make(num_classes, channels)
    return nn.Sequential(OrderedDict(normalize=normalize, network=network))


def _maker(name: str) -> Callable[[int, int], nn.Module]:
    library, colon, inner = name.rpartition(":")
    if colon and library not in _LIBRARIES:
        raise ValueError(f"{name!r}: no model library {library!r}; there are torchvision and timm")
    known = {each: _names(each) for each in _LIBRARIES if library in ("", each)}
    for each, names in known.items():
        if inner in names:
            return partial(_from_library, each, inner)
    if colon and not known[library]:
        raise ValueError(f"{name!r}: {library} is not installed")
    # libraries share names, and each should be named once
    every = dict.fromkeys([*_OWN, *(each for names in known.values() for each in names)])
    close = difflib.get_close_matches(inner.lower(), every, 4)
    hint = f"did you mean {' or '.join(map(repr, close))}? There" if close else "there"
    absent = [each for each, names in known.items() if not names]
    note = f" ({' and '.join(absent)} not installed)" if absent else ""
    raise ValueError(
        f"no model {name!r}; {hint} are {', '.join(_OWN)}, torchvision:NAME and timm:NAME{note}"
    )


def _names(library: str) -> list[str]:
    """The image classifiers of a library; none if it is not installed."""
    try:
        module = importlib.import_module(_LIBRARIES[library])
    except ImportError:
        return []
    # torchvision counts detectors and the like as models unless told where to look
    options = {"module": module} if library == "torchvision" else {}
    names: list[str] = module.list_models(**options)
    return names


def _from_library(library: str, name: str, classes: int, channels: int) -> nn.Module:
    module = importlib.import_module(_LIBRARIES[library])
    if library == "timm":
        options: dict[str, Any] = {"pretrained": False, "in_chans": channels}
    elif channels == 3:
        options = {"weights": None, **_OPTIONS.get(name, {})}
    else:
        raise ValueError(f"torchvision:{name} takes 3 channels, got {channels}; timm takes any")
    make = module.create_model if library == "timm" else module.get_model
    network: nn.Module = make(name, num_classes=classes, **options)
    return network


# Frozen copies


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

    def slope_of(self, slope: Tensor) -> Tensor:
        """How the output moves when `x` moves by `slope`."""
        return slope * self.scale.to(slope.dtype).view((-1,) + (1,) * (slope.ndim - 2))


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, or the module itself."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner


def outputs_of(model: nn.Module, images: Tensor) -> Any:
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


def copied(model: nn.Module) -> nn.Module:
    """A copy, also of a model that keeps its activations, which torch refuses to copy."""
    model = unwrapped(model)
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
    frozen = _frozen(copied(model).eval(), "", {})
    for name, module in frozen.named_modules():
        if module.training:
            raise ValueError(f"{_place(name, module)} stays in train mode after eval()")
    return frozen


def _frozen(module: nn.Module, name: str, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """The replacement of a module and of all below it; one used twice is replaced by one."""
    if module not in done:
        done[module] = found = _replacement(unwrapped(module), name)
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
