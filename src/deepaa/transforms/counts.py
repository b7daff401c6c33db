"""What a sample says of each of its boxes: refused where there are more or fewer than boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from deepaa.transforms import inputs
from deepaa.transforms.where import SAMPLE

PER_BOX = ("labels", "class_labels", "area", "iscrowd", "masks", "keypoints")
"""What torchvision and transformers call what has one item for each box of a dictionary."""
TARGETS = ("masks", "keypoints")
"""Those of them that move with the image."""
Steps = tuple[tuple[Any, object], ...]
"""The containers on the way to something in a sample, each with the key or place that is taken."""


def refuse_uneven(sample: Any) -> None:
    """Raise ValueError where boxes and their labels, masks or the like differ in number.

    torchvision's `SanitizeBoundingBoxes` takes labels in the same way. Vectors of floats and bools
    are labels of an image, one mask alone is a mask of it, and so are key points (K, 2).
    """
    for steps, held in _dicts(sample, ()):
        for name, many, key, n, item in _uneven(held):
            if name in TARGETS and any(map(inputs.is_video, tree_leaves(sample))):
                continue  # one for each frame
            place = _place(steps, item)
            raise ValueError(
                f"{place and f'in {place}: '}{name!r} has {many} and {key!r} has {n}, and there "
                f"should be one for each box; give what is not about single boxes another name"
            )


def _dicts(node: Any, steps: Steps) -> Iterator[tuple[Steps, dict[Any, Any]]]:
    """The dictionaries in a sample, each with the way to it."""
    if isinstance(node, dict):
        yield steps, node
    if isinstance(node, inputs.CONTAINERS):
        for key, item in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(item, inputs.CONTAINERS):
                yield from _dicts(item, (*steps, (node, key)))


def _place(steps: Steps, item: int | None) -> str:
    """Where the steps lead, as `deepaa.transforms.where` says it."""
    sample, way = "" if item is None else f"{SAMPLE}{item}", ""
    for node, key in steps:
        if sample or not inputs.is_batch(node):
            way += f"[{key!r}]"
        else:
            sample, way = f"{SAMPLE}{key}", way and f"{way}[{key!r}]"
    return ", ".join(filter(None, (sample, way)))


def _uneven(held: dict[Any, Any]) -> Iterator[tuple[str, int, object, int, int | None]]:
    """What has another number than the boxes beside it, and of which image of several."""
    names = [name for name in PER_BOX if name in held]
    keys = [key for key, value in held.items() if _is_boxes(value)] if names else []
    if not keys or ("boxes" not in keys and len(keys) > 1):
        return
    key = "boxes" if "boxes" in keys else keys[0]
    boxes = held[key]
    for name in names:
        value, lists = held[name], isinstance(boxes, list)
        if lists != isinstance(value, list):
            continue
        for item, (some, one) in enumerate(
            zip(boxes, value, strict=False) if lists else [(boxes, value)]
        ):
            many = _count(name, one)
            if many is not None and many != len(some):
                yield name, many, key, len(some), item if lists else None


def _is_boxes(value: Any) -> bool:
    """Whether these are the boxes of an image, or of each of several."""
    if isinstance(value, list):
        return bool(value) and not isinstance(value[0], list) and all(map(_is_boxes, value))
    return inputs.is_target(value) and hasattr(value, "format") and value.ndim == 2


def _count(name: str, value: Any) -> int | None:
    """How many boxes a value tells about; None if it seems to be about something else."""
    if name in TARGETS:
        several = inputs.is_target(value) and value.ndim == 3
        return len(value) if several and (name != "masks" or len(value) != 1) else None
    if not isinstance(value, Tensor | np.ndarray) or value.ndim != 1:
        return None
    return len(value) if "int" in str(value.dtype) or not name.endswith("labels") else None
