"""Networks by name: those of this package, of torchvision and of timm."""

from __future__ import annotations

import difflib
import importlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from deepaa.models.normalize import Levels, Normalize
from deepaa.models.shake_shake import ShakeShake
from deepaa.models.wide_resnet import WideResNet


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
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _initialise(network: nn.Module) -> None:
    """He's normal weights for convolutions, no bias at the output."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


_OWN: Mapping[str, Callable[[int, int], nn.Module]] = {
    "small": _small,
    "wrn-40-2": partial(WideResNet, 40, 2),
    "wrn-28-10": partial(WideResNet, 28, 10),
    "shake-shake-26-2x96d": partial(ShakeShake, 26, 96),
}
_LIBRARIES = {"torchvision": "torchvision.models", "timm": "timm"}
# these two would return several outputs in train mode
_ONE_OUTPUT = {"aux_logits": False, "init_weights": True}
_OPTIONS: Mapping[str, dict[str, Any]] = {"googlenet": _ONE_OUTPUT, "inception_v3": _ONE_OUTPUT}


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
        name: "small", "wrn-40-2", "wrn-28-10", "shake-shake-26-2x96d", "torchvision:NAME",
            "timm:NAME", or the bare name of a network of torchvision or, if that has none, timm.
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
        if name in _OWN:
            _initialise(network)
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
