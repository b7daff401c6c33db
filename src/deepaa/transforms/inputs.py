"""The inputs of a transform: which parts of a sample are images, and what their index is.

Neither PIL nor torchvision is imported for it.
"""

from __future__ import annotations

import operator
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from deepaa.ops import SCALE_16_BITS, integer_error, sample_key

CONTAINERS = (dict, list, tuple)
"""What the samples in a list may be."""


MOST_CHANNELS = 64
"""Arrays of more are no images; tensors may have any number."""
_WIDE = (
    f"; for 16 bits declare their range, DeepAutoAugment(policy, value_range=(0, 65535)), or scale "
    f"them to 8: {SCALE_16_BITS}"
)


_SHORT = {"BoundingBoxes": "boxes", "Mask": "mask", "KeyPoints": "points"}


def is_batch(node: Any) -> bool:
    """Whether this is a list of images, or of samples with images: each has a draw of its own.

    A list of targets, or of samples with targets alone, is one too: the draws are those of a list
    of images beside it, or that of the one image.
    A list of different things, such as an image and its label, is one sample. So is one of tensors
    that differ in kind or in channels, such as an image and its mask.
    """
    if not isinstance(node, list) or not node:
        return False
    if all(is_target(item) for item in node):
        return True
    if all(isinstance(item, CONTAINERS) for item in node):
        leaves = [tree_leaves(item) for item in node]
        with_images = [any(_found(part)) for part in leaves]
        if any(with_images):
            return all(with_images)
        return any(any(map(is_target, part)) for part in leaves)  # some images show no object
    kinds = [_kind(item) for item in node]
    return kinds[0] is not None and all(kind == kinds[0] for kind in kinds)


def _kind(leaf: Any) -> object:
    """What single images of one list have in common; None for what is no single image."""
    if isinstance(leaf, Tensor):
        if is_video(leaf):
            return "video"
        if leaf.ndim != 3 or is_target(leaf):
            return None
        return "image" if is_named_image(leaf) else (leaf.dtype, leaf.shape[0])
    if is_pil(leaf):
        return "image"
    return (leaf.dtype, leaf.shape[2:]) if _is_image_array(leaf) else None


def list_places(leaves: list[Any]) -> list[int]:
    """The places of the lists of images in a sample flat but for those that `is_batch` found.

    Where there is an image outside of them, all images are to be single: torchvision's rule then
    takes the first of those that are only arrays and tensors, and lists of others pass through.
    """
    lists = [place for place, leaf in enumerate(leaves) if isinstance(leaf, list)]
    if not lists:
        return []
    loose = [leaf for leaf in leaves if not isinstance(leaf, list)]
    alone = _found(loose)
    inside = {place: tree_leaves(leaves[place]) for place in lists}
    found = {place: _found(parts) for place, parts in inside.items()}
    images = [place for place in lists if any(found[place])]
    if alone.explicit or any(one.explicit for one in found.values()):
        images = [place for place in lists if found[place].explicit]
        if alone.explicit and images:
            raise ValueError(
                "the images of one call should all be in lists, which have one draw for each of "
                "their images, or all be outside, where they share one; this sample has both"
            )
    elif alone.implicit:
        return []
    if not images:
        return []
    if targets := [type(leaf).__name__ for leaf in loose if is_target(leaf)]:
        raise ValueError(
            f"{targets[0]} beside a list of images should be in a list too, one item for each image"
        )
    lists = [place for place in lists if place in images or any(map(is_target, inside[place]))]
    if len({len(leaves[place]) for place in lists}) > 1:
        lengths = " and ".join(str(len(leaves[place])) for place in lists)
        raise ValueError(
            f"lists of images in one call should have one length, and so should lists of their "
            f"targets, because what is at one place shares a draw; these have {lengths}"
        )
    return lists


def list_keys(key: int, n: int) -> list[int]:
    """A key for each image of a list in the sample of `key`, which the first of them takes."""
    return [sample_key(key, place, 0) if place else key for place in range(n)]


class _Found(NamedTuple):
    """The places of what is certainly an image, and of what may be one."""

    explicit: list[int]
    implicit: list[int]


def _found(leaves: list[Any]) -> _Found:
    found = _Found([], [])
    for place, leaf in enumerate(leaves):
        if is_named_image(leaf) if isinstance(leaf, Tensor) else is_pil(leaf):
            found.explicit.append(place)
        elif is_target(leaf):
            continue
        elif leaf.ndim >= 3 if isinstance(leaf, Tensor) else _is_image_array(leaf):
            found.implicit.append(place)
    return found


def found_images(leaves: list[Any]) -> list[int]:
    """The places of what would be taken for images, if there are any."""
    explicit, implicit = _found(leaves)
    return explicit or implicit[:1]


def image_places(leaves: list[Any]) -> list[int]:
    """The places of the images in a flat sample: torchvision's rule, see `DeepAutoAugment`."""
    places = found_images(leaves)
    if not places:
        others = [leaf for leaf in leaves if not is_target(leaf)]
        targets = [leaf for leaf in leaves if is_target(leaf)]
        raise TypeError(
            "no image in this sample: an image is a PIL image, a numpy array uint8 (H, W) or "
            f"uint8 or float (H, W, C) with at most {MOST_CHANNELS} channels, fewer than pixels "
            "a side, or a tensor (C, H, W) or "
            f"(N, C, H, W); got {', '.join(map(described, leaves)) or 'nothing'}"
            + next(filter(None, map(_advice, [*others, *targets])), "")
        )
    for place in places:
        if isinstance(leaves[place], Tensor):
            check_shape(leaves[place])
    return places


def is_pil(leaf: Any) -> bool:
    """Whether this is a PIL image."""
    # Who holds a PIL image has imported PIL; looking it up saves everybody else the import.
    pil = None if torch.compiler.is_compiling() else sys.modules.get("PIL.Image")
    return pil is not None and isinstance(leaf, pil.Image)


def is_plain_image(given: Any) -> bool:
    """Whether this is a PIL image, or a uint8 array or tensor, by itself; not when compiling."""
    if torch.compiler.is_compiling():
        return False
    if type(given) is Tensor and given.dtype == torch.uint8 and given.ndim == 3:
        check_shape(given)
        return True
    if isinstance(given, np.ndarray):
        return given.dtype == np.uint8 and _is_image_array(given)
    return is_pil(given)


def _is_tv(leaf: Any, *names: str) -> bool:
    """Whether this is one of torchvision's `tv_tensors` of these names; older ones lack some."""
    if type(leaf) is Tensor or not isinstance(leaf, Tensor):
        return False
    tv = sys.modules.get("torchvision.tv_tensors")
    return tv is not None and isinstance(
        leaf, tuple(getattr(tv, n) for n in names if hasattr(tv, n))
    )


def is_target(leaf: Any) -> bool:
    """Whether this moves with an image: boxes, masks or key points of torchvision."""
    return _is_tv(leaf, "BoundingBoxes", "Mask", "KeyPoints")


def is_video(leaf: Any) -> bool:
    """Whether this is a `tv_tensors.Video`, whose frames share a draw."""
    return _is_tv(leaf, "Video")


def is_named_image(leaf: Tensor) -> bool:
    """Whether this is a `tv_tensors.Image` or `Video`; what would stay behind is refused."""
    if _is_tv(leaf, "Image", "Video"):
        return True
    if _is_tv(leaf, "TVTensor") and not is_target(leaf):
        raise TypeError(
            f"DeepAutoAugment moves boxes, masks and key points with an image, and this sample "
            f"holds {type(leaf).__name__}, which it would leave behind: take it out of the sample"
        )
    return False


def image_size(image: Any) -> tuple[int, int]:
    """The (H, W) of one image, or of all in a batch or video."""
    if is_pil(image):
        return image.height, image.width
    height, width = image.shape[-2:] if isinstance(image, Tensor) else image.shape[:2]
    return height, width


def _is_image_array(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray):
        return False
    if leaf.ndim == 2:
        return bool(leaf.dtype == np.uint8)
    known = (np.uint8, np.float16, np.float32, np.float64)
    if leaf.ndim != 3 or leaf.dtype.newbyteorder("=") not in known:
        return False
    height, width, channels = leaf.shape
    return bool(channels <= 4 or channels < min(height, width, MOST_CHANNELS + 1))


def _advice(leaf: Any) -> str:
    """What to do with something that people take for an image."""
    if isinstance(leaf, np.ndarray):
        return _array_advice(leaf)
    if type(leaf) is Tensor and leaf.ndim == 2 and min(leaf.shape) > 4:
        return "; give a grey image its channel: image[None]"
    if isinstance(leaf, str | os.PathLike):
        return "; open the file first: PIL.Image.open(path)"
    if isinstance(leaf, Mapping):
        return f"; {type(leaf).__name__} is not looked into: give dict(sample)"
    if is_target(leaf):
        kind = type(leaf).__name__
        call = f"augment(image, {_SHORT.get(kind, 'targets')})"
        return f"; {kind} move with their image, which is missing: {call}"
    if getattr(leaf, "__dict__", None) and not callable(leaf):
        kind = type(leaf).__name__
        return f"; {kind} is not looked into: give its parts, augment(sample.image, sample.boxes)"
    return ""


def _array_advice(array: np.ndarray[Any, Any]) -> str:
    """What to do with an array that people take for an image."""
    if array.dtype.name == "uint16" and array.ndim in (2, 3):
        return _WIDE
    if array.ndim == 4:
        return (
            "; give a batch of arrays as a list of its images: list(batch); frames share a draw as "
            "tv_tensors.Video (T, C, H, W)"
        )
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and min(array.shape[1:]) > 4:
        return "; the channels of an array come last: array.transpose(1, 2, 0)"
    if array.ndim in (2, 3) and array.dtype.kind in "iu" and array.dtype != np.uint8:
        return "; give 8 bits as array.astype(np.uint8)"
    return ""


def described(leaf: Any) -> str:
    """The kind of a leaf, and its shape if it has one."""
    if isinstance(leaf, Tensor | np.ndarray):
        return f"{type(leaf).__name__} {leaf.dtype} {tuple(leaf.shape)}"
    return type(leaf).__name__


def check_shape(image: Tensor) -> None:
    """Raise for a tensor that is no image or batch, with a hint for (H, W, C)."""
    shape = tuple(image.shape)
    if is_video(image) and image.ndim not in (4, 5):
        raise ValueError(f"a Video is (T, C, H, W) or (N, T, C, H, W), got shape {shape}")
    if image.ndim not in (3, 4) and not is_video(image):
        video = "; wrap videos, tv_tensors.Video(batch)" if image.ndim == 5 else ""
        raise ValueError(f"an image tensor is (C, H, W) or (N, C, H, W), got shape {shape}{video}")
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise TypeError(integer_error(image))
    if 0 in shape[-3:]:
        raise ValueError(f"images have no pixels: shape {shape}")
    if shape[-1] in (1, 3, 4) and min(shape[-3:-1]) > 4:
        layout, order = {
            3: ("H, W, C", "2, 0, 1"),
            4: ("N, H, W, C", "0, 3, 1, 2"),
            5: ("N, T, H, W, C", "0, 1, 4, 2, 3"),
        }[image.ndim]
        raise ValueError(
            f"a tensor of shape {shape} looks like ({layout}), but channels come before height and "
            f"width: use permute({order})"
        )


def batch_size(images: list[Any]) -> int | None:
    """N of the batches, or None for single images and videos."""
    sizes = [
        image.shape[0]
        if isinstance(image, Tensor) and image.ndim == (5 if is_video(image) else 4)
        else None
        for image in images
    ]
    if any(size != sizes[0] for size in sizes):
        raise ValueError(
            f"the images of one call share one draw, so they should all be single or be batches of "
            f"one size; got {', '.join(map(described, images))}"
        )
    return sizes[0]


def rewrap(out: Tensor, like: Tensor) -> Tensor:
    """`out` as a `tv_tensors.Image` or `Video` if `like` is one."""
    if not is_named_image(like):
        return out
    wrapped: Tensor = sys.modules["torchvision.tv_tensors"].wrap(out, like=like)
    return wrapped


def whole_number(value: Any, what: str, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """`value` as an int in low..high, or an error that says `what` it is."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} should be a whole number, got {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{what} should be in {low}..{high}, got {number}")
    return number


def batch_numbers(index: Any, n: int) -> Tensor:
    """The index of a batch as (N,) int64."""
    numbers = torch.as_tensor(index)
    if numbers.is_floating_point() or numbers.dtype == torch.bool or numbers.shape != (n,):
        raise ValueError(
            f"index of a batch of {n} should be {n} whole numbers, got {numbers.dtype} of shape "
            f"{tuple(numbers.shape)}"
        )
    return numbers.to(torch.int64)


def shared_tensor(values: Tensor) -> Tensor:
    """A copy of `values` in shared memory, where worker processes see changes."""
    if values.is_shared():  # type: ignore[no-untyped-call]
        return values
    copy = values.clone()
    try:
        copy.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        warnings.warn(
            f"no shared memory, so that persistent workers will not see set_epoch: {error}",
            stacklevel=4,
        )
    return copy
