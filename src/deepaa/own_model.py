"""A user's own network by name: what `--model` and `--weights` mean."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

from deepaa.models import build_model, channel_statistics
from deepaa.sources import LabelledImages

LIBRARIES = ("torchvision:", "timm:")


def is_own(spec: str) -> bool:
    """Whether a model is given as `module:function`, not by a name of `build_model`."""
    return ":" in spec and not spec.startswith(LIBRARIES)


def load_model(
    spec: str, data: LabelledImages, seed: int, weights: str | Path | None = None
) -> nn.Module:
    """A network for uint8 batches of `data`: the result of `module:function`, or a named one.

    The function gets the number of classes. Fresh weights depend on the seed alone.

    Args:
        weights: A safetensors file of its state.
    """
    classes = len(data.class_names)
    if is_own(spec):
        model = _made(spec, _function(spec), classes, seed)
    else:
        mean, std = channel_statistics(data.images)
        model = build_model(spec, classes, mean=mean, std=std, seed=seed)
    if weights is not None:
        _load_weights(model, Path(weights))
    return model


def state_hash(model: nn.Module) -> str:
    """The sha256 over names and values of all weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _function(spec: str) -> Callable[[int], object]:
    module, _, name = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module does
        raise ValueError(f"--model {spec}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"--model {spec}: {name} is no function, but {type(found).__name__}")
    function: Callable[[int], object] = found
    return function


def _made(spec: str, function: Callable[[int], object], classes: int, seed: int) -> nn.Module:
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


def _load_weights(model: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"--weights {path}: no such file")
    try:
        state = load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"--weights {path}: not a safetensors file ({error})") from error
    # a library's own file of a named network, around which ours normalises
    inner = model.get_submodule("network") if "network" in dict(model.named_children()) else None
    if inner is not None and state.keys() == inner.state_dict().keys():
        model = inner
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"--weights {path}: they do not fit the model: {reason[:300]}") from error
