"""What lies beside an image and would stay behind while it moves: refused, or told once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from deepaa.transforms import inputs

USUAL_NAMES = {
    "BoundingBoxes": ("boxes", "bboxes", "bbox", "gt_boxes", "gt_bboxes", "bndbox"),
    "Mask": ("mask", "masks", "gt_masks"),
    "KeyPoints": ("keypoints", "kpts", "gt_keypoints"),
}
"""What targets are called in the dictionaries and objects of other libraries."""
LEAST_SIDE = 8
"""Images of fewer pixels a side may have the shape of a list of boxes by chance."""
DEEPEST = 3
"""Objects inside of each other that are looked into."""
MOST_LOOKED_AT = 64
"""Attributes of one object that are looked at."""
LONG = 8
"""Longer lists that begin and end with a number or a text hold nothing else."""

_KINDS = {name: kind for kind, names in USUAL_NAMES.items() for name in names}
_TOLD: set[str] = set()
_SIZED = "what has the size of its image"
_RECORDS = "what annotations hold"
_WRAP = (
    "wrap the data set, torchvision.datasets.wrap_dataset_for_transforms_v2(dataset), or make one "
    "tv_tensors.BoundingBoxes of all boxes"
)
_EMPTY = (str, bytes, int, float, complex, type(None))
_OF_IMAGES = ("uint8", "float16", "float32", "float64")
_PLAIN = (*_EMPTY, Tensor, np.ndarray)


def told(node: Any) -> Iterator[str]:
    """A line for each thing in a sample that would stay behind, once in a process.

    Boxes, masks and key points in an object that nobody looks into are a TypeError, and so is what
    is called a mask and would be taken for the image.
    """
    found = list(_leaves(node))
    _refuse_first(found)
    yield from _hidden([leaf for _, leaf in found])
    yield from _named_like_targets(node)
    if _SIZED not in _TOLD and (line := _sized_like_image(found)):
        _TOLD.add(_SIZED)
        yield line


# What has the name of a target


def _named_like_targets(node: Any) -> Iterator[str]:
    if _RECORDS not in _TOLD and (line := _recorded(node)):
        _TOLD.add(_RECORDS)
        yield line
    if isinstance(node, dict):
        for name, value in node.items():
            if name in _KINDS and name not in _TOLD and (line := _misread(value, _KINDS[name])):
                _TOLD.add(name)
                yield f"{name!r} in this sample is a plain {line}"
    if isinstance(node, inputs.CONTAINERS):
        for item in node.values() if isinstance(node, dict) else node:
            if isinstance(item, inputs.CONTAINERS):
                yield from _named_like_targets(item)


def _recorded(node: Any) -> str | None:
    """What to say of annotations as COCO and VOC have them, a dict for each object."""
    objects = [node] if isinstance(node, dict) and "bndbox" in node else node
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        return None
    for name, value in (pair for item in objects for pair in item.items()):
        if name in _KINDS and _is_record(value):
            if isinstance(node, list) and any(map(_holds_image, node)):
                return None  # they are samples
            return (
                f"{name!r} in an annotation, as COCO and VOC have them, does not move with the "
                f"image: {_WRAP}"
            )
    return None


def _is_record(value: Any) -> bool:
    """Whether this is one box, or the key points of one object, in numbers or texts alone."""
    if isinstance(value, dict):
        numbers, least = list(value.values()), 1
    else:
        numbers, least = value, 4
    return (
        isinstance(numbers, list | tuple)
        and len(numbers) >= least
        and all(isinstance(number, str | int | float) for number in numbers)
    )


def _holds_image(node: Any) -> bool:
    return bool(inputs.found_images([leaf for _, leaf in _leaves(node)]))


def _misread(value: Any, kind: str) -> str | None:
    """What a value is, and what happens to it, if it is no target but looks like one."""
    if isinstance(value, list) and value and not isinstance(value[0], list | tuple):
        return _misread(value[0], kind)  # a target of each image of a list
    if isinstance(value, Tensor | np.ndarray):
        plain = value.ndim >= 2 and not inputs.is_target(value)
    else:
        plain = isinstance(value, list) and bool(value)
    fate = "does not move with the image"
    if not plain and kind == "Mask" and inputs.is_pil(value):
        plain, fate = True, "gets the image's colours too"
    advice = f"wrap it in tv_tensors.{kind}, or rename it if it is something else"
    return f"{type(value).__name__}, which {fate}: {advice}" if plain else None


def _refuse_first(found: list[tuple[object, Any]]) -> None:
    """Raise TypeError where a plain mask comes before the image, in whose place it would be."""
    places = inputs.found_images([leaf for _, leaf in found])
    if not places or not isinstance(name := found[place := places[0]][0], str):
        return
    leaf, others = found[place][1], [leaf for _, leaf in found[place + 1 :]]
    plain = type(leaf) is Tensor or isinstance(leaf, np.ndarray)
    if plain and name in _KINDS and inputs.found_images(others):
        raise TypeError(
            f"{name!r} in this sample is a plain {type(leaf).__name__} and comes first, so that it "
            f"would be taken for the image: wrap it in tv_tensors.{_KINDS[name]}, or put the image "
            "first"
        )


# What has the size of the image


def _sized_like_image(found: list[tuple[object, Any]]) -> str | None:
    """What to say of a plain array or tensor that is most likely the mask of the image."""
    images = inputs.found_images([leaf for _, leaf in found])
    if not images:
        return None
    first = found[images[0]][1]
    if first.ndim == 2 if isinstance(first, np.ndarray) else getattr(first, "mode", "") == "L":
        return None  # images of one channel look like masks themselves
    size = inputs.image_size(first)
    for place, (name, leaf) in enumerate(found):
        if name in _KINDS or place == images[0] or min(size) < LEAST_SIDE:
            continue
        if inputs.is_pil(leaf):
            is_mask = leaf.mode in ("L", "1", "P", "I") and inputs.image_size(leaf) == size
            what, fate = f"an image of mode {leaf.mode}", "gets its colours too"
        elif place not in images and isinstance(leaf, Tensor | np.ndarray):
            is_mask = _has_size(leaf, size)
            what, fate = f"a plain {inputs.described(leaf)}", "does not move with it"
        else:
            continue
        if is_mask:
            where = f" {name!r}" if isinstance(name, str) else ""
            return (
                f"{what}{where} beside an image of {size[0]} x {size[1]} {fate}: if it is a mask, "
                "wrap it, mask = tv_tensors.Mask(mask), after from torchvision import tv_tensors"
            )
    return None


def _leaves(node: Any, name: object = None) -> Iterator[tuple[object, Any]]:
    """What is in a sample, each with its key; of a list of images or samples only the first."""
    if not _is_walked(node):
        yield name, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, key)
    elif isinstance(node, list | tuple):
        if len(node) > LONG and isinstance(node[0], _EMPTY) and isinstance(node[-1], _EMPTY):
            return  # the corners of a polygon
        is_batch = isinstance(node, list) and inputs.is_batch(node[:2])
        for item in node[:1] if is_batch else node:
            yield from _leaves(item, name)
    else:
        yield from ((name, leaf) for leaf in tree_leaves(node))


def _is_walked(node: Any) -> bool:
    """Whether a transform looks into this: also into what is registered as a part of a tree."""
    if type(node) in inputs.CONTAINERS or isinstance(node, _PLAIN):
        return type(node) in inputs.CONTAINERS
    leaves = tree_leaves(node)
    return len(leaves) != 1 or leaves[0] is not node


def _has_size(leaf: Any, size: tuple[int, int]) -> bool:
    """Whether an array or tensor is as large as the image, and is no image in colour."""
    if inputs.is_target(leaf) or leaf.ndim < 2:
        return False
    shape, is_image_type = tuple(leaf.shape), str(leaf.dtype).endswith(_OF_IMAGES)
    if shape[-2:] == size:
        return leaf.ndim == 2 or shape[-3] not in (3, 4) or not is_image_type
    return isinstance(leaf, np.ndarray) and shape[:2] == size and shape[2:] == (1,)


# What is inside of an object


def _hidden(leaves: list[Any]) -> Iterator[str]:
    """Raise TypeError for targets in objects; a line for what only has their name."""
    for leaf in leaves:
        if not _is_object(leaf):
            continue
        kind = type(leaf).__name__
        reason = f"only dicts, lists and tuples are looked into, and not {kind}"
        for path, value in _inside(leaf, DEEPEST):
            if inputs.is_target(value):
                raise TypeError(
                    f"{type(value).__name__} in {path} of {kind} would stay behind: {reason}; take "
                    "it out, image, boxes = augment(image, target.boxes), and put it back"
                )
            name = re.split(r"\W+", path.rstrip("']"))[-1]
            if name in _KINDS and name not in _TOLD and not isinstance(value, _EMPTY):
                _TOLD.add(name)
                yield (
                    f"{path} of {kind} does not move with the image: {reason}; give "
                    f"tv_tensors.{_KINDS[name]} beside the image, or rename it if it is something "
                    "else"
                )


def _is_object(leaf: Any) -> bool:
    if isinstance(leaf, _PLAIN) or inputs.is_pil(leaf) or isinstance(leaf, type):
        return False
    return not callable(leaf) or isinstance(leaf, Mapping)


def _inside(holder: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """What an object holds, with the way to it, as .boxes or ['boxes']."""
    for step, value in islice(_contents(holder), MOST_LOOKED_AT):
        yield step, value
        if depth > 1 and _is_object(value):
            yield from ((step + rest, deep) for rest, deep in _inside(value, depth - 1))


def _contents(holder: Any) -> Iterator[tuple[str, Any]]:
    """What lies directly in an object; no code of its own runs but that of a mapping."""
    if isinstance(holder, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in holder.items())
    elif isinstance(holder, list | tuple):
        yield from ((f"[{i}]", value) for i, value in enumerate(holder))
    else:
        yield from ((f".{name}", value) for name, value in getattr(holder, "__dict__", {}).items())
        for kind in type(holder).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(holder, name):
                    yield f".{name}", getattr(holder, name)
