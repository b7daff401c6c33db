"""Files of weights: read into a network, whose last layer may be for other classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
from safetensors.torch import load_file
from torch import Tensor, nn

MOST_SHOWN = 60
"""Characters of a key that an error shows."""


def load_weights(model: nn.Module, path: str | Path, *, new_head: bool = False) -> bool:
    """Whether the last layer keeps the weights it has, as the file's is for other classes.

    All others get those of the file.

    Args:
        path: A safetensors file of the network's state, or of the library's network in it.
        new_head: Let the last layer be for another number of classes.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"--weights {path}: no such file")
    try:
        state = load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"--weights {path}: not a safetensors file ({error})") from error
    # a library's own file of a named network, around which ours normalises
    inner = dict(model.named_children()).get("network")
    if inner is not None and not state.keys() & model.state_dict().keys():
        model = inner
    kept: list[str] = []
    if new_head:
        fresh = model.state_dict()
        last = [name for name, _ in model.named_parameters()][-1].rpartition(".")[0]
        other = [n for n in state if n in fresh and state[n].shape != fresh[n].shape]
        if other and all(name.rpartition(".")[0] == last for name in other):
            state |= {name: fresh[name] for name in other}
            kept = other
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = misfit(state, model.state_dict()) or str(error).split("\n", 1)[0][:MOST_SHOWN]
        raise ValueError(f"--weights {path}: they do not fit the model: {reason}") from error
    return bool(kept)


def misfit(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> str:
    """The first tensor in which a file differs from a network, and how many do; empty if none."""
    found = []
    for name, tensor in ours.items():
        if name not in theirs:
            found.append(f"{_key(name)} is not in the file")
        elif theirs[name].shape != tensor.shape:
            there, here = tuple(theirs[name].shape), tuple(tensor.shape)
            found.append(f"{_key(name)} is {there} in the file, {here} in the model")
    found += [f"{_key(name)} is not in the model" for name in theirs if name not in ours]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else ""


def _key(name: str) -> str:
    return repr(name if len(name) <= MOST_SHOWN else f"{name[:MOST_SHOWN]}...")
