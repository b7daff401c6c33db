"""The check of a saved search before it goes on."""

from collections.abc import Mapping

from torch import Tensor

OTHER_LENGTHS = ("found", "baseline", "previous", "active")
"""Tensors of a state that are not of one number for each transformation."""


def check_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], rows: int) -> None:
    """Raise ValueError unless a state could be that of a search over `rows` transformations.

    Args:
        expected: The state of such a search before its first step.
    """
    for name, like in expected.items():
        if name not in state:
            raise ValueError(f"it has no {name}")
        kinds = [f"{part.dtype} of {part.ndim} dimensions" for part in (state[name], like)]
        if kinds[0] != kinds[1]:
            raise ValueError(f"{name} is {kinds[0]}, expected {kinds[1]}")
    if state["logits"].shape != (rows,) or state["found"].shape[1:] != (rows,):
        found = len(state["logits"])
        raise ValueError(f"the state has {found} transformations, the space {rows}")
    for name, like in expected.items():
        wide = like.ndim == 1 and name not in OTHER_LENGTHS
        if wide and not (len(state[name]) == rows and bool(state[name].isfinite().all())):
            raise ValueError(f"{name} should be {rows} finite numbers")
    active, layer, found = state["active"], int(state["layer"]), len(state["found"])
    if not len(active) or int(active.min()) < 0 or int(active.max()) >= rows:
        raise ValueError(f"active should name transformations, 0 to {rows - 1}")
    if not 1 <= layer <= found + 1 or int(state["step"]) < 0:
        raise ValueError(f"it is in step {int(state['step'])} of layer {layer} after {found}")
