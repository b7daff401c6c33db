"""The network and the weights that a user names with `--model` and `--weights`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from deepaa.models.factory import build_model
from deepaa.models.normalize import channel_statistics
from deepaa.ops import import_object

LIBRARIES = ("torchvision:", "timm:")


def is_custom(spec: str) -> bool:
    """Whether a model is given as `module:function`, not by a name of `build_model`."""
    return ":" in spec and not spec.startswith(LIBRARIES)


def load_model(
    spec: str, images: Tensor, classes: int, seed: int, weights: str | Path | None = None
) -> nn.Module:
    """The network that `--model` means, for uint8 batches, with fresh weights by the seed.

    Args:
        spec: A name of `build_model`, or `module:function`; the function gets `classes`.
        images: uint8 (N, C, H, W), by whose statistics a network with a name normalises.
        weights: A safetensors file of its state.
    """
    if is_custom(spec):
        model = _call_factory(spec, classes, seed)
    else:
        mean, std = channel_statistics(images)
        channels = images.shape[1]
        model = build_model(spec, classes, mean=mean, std=std, channels=channels, seed=seed)
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
