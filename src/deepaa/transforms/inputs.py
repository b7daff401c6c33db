"""The inputs of a transform: which parts of a sample are images, and what their index is.

Neither PIL nor torchvision is imported for it.
"""

from __future__ import annotations

import operator
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from deepaa.ops import SCALE_16_BITS, integer_error, sample_key

CONTAINERS = (dict, list, tuple)
"""What the samples in a list may be."""


def is_batch(node: Any) -> bool:
    """Whether this is a list of images, or of samples with images: each has a draw of its own.

    A list of different things, such as an image and its label, is one sample. So is one of tensors
    that differ in kind or in channels, such as an image and its mask.
    """
    if not isinstance(node, list) or not node:
        return False
    if all(isinstance(item, CONTAINERS) for item in node):
        return all(any(_found(tree_leaves(item))) for item in node)
    kinds = [_kind(item) for item in node]
    return kinds[0] is not None and all(kind == kinds[0] for kind in kinds)


def _kind(leaf: Any) -> object:
    """What single images of one list have in common; None for what is no single image."""
    if isinstance(leaf, Tensor):
        if leaf.ndim != 3:
            return None
        return "image" if _is_tv_image(leaf) else (leaf.dtype, leaf.shape[0])
    if _is_pil(leaf):
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
    alone = _found([leaf for leaf in leaves if not isinstance(leaf, list)])
    inside = [_found(tree_leaves(leaves[place])) for place in lists]
    if alone.explicit or any(found.explicit for found in inside):
        lists = [place for place, found in zip(lists, inside, strict=True) if found.explicit]
        if alone.explicit and lists:
            raise ValueError(
                "the images of one call should all be in lists, which have one draw for each of "
                "their images, or all be outside, where they share one; this sample has both"
            )
    elif alone.implicit:
        return []
    if len({len(leaves[place]) for place in lists}) > 1:
        lengths = " and ".join(str(len(leaves[place])) for place in lists)
        raise ValueError(
            f"lists of images in one call should have one length, because images at one place "
            f"share a draw; these have {lengths}"
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
        if _is_tv_image(leaf) if isinstance(leaf, Tensor) else _is_pil(leaf):
            found.explicit.append(place)
        elif leaf.ndim >= 3 if isinstance(leaf, Tensor) else _is_image_array(leaf):
            found.implicit.append(place)
    return found


def image_places(leaves: list[Any]) -> list[int]:
    """The places of the images in a flat sample: torchvision's rule, see `DeepAutoAugment`."""
    explicit, implicit = _found(leaves)
    if not (explicit or implicit):
        raise TypeError(
            "no image in this sample: an image is a PIL image, a numpy array uint8 (H, W) or "
            "uint8 or float (H, W, C) with at most 4 channels, or a tensor (C, H, W) or "
            f"(N, C, H, W); got {', '.join(map(_described, leaves)) or 'nothing'}"
            + (f"; scale 16 bits to 8: {SCALE_16_BITS}" if any(map(_is_wide, leaves)) else "")
        )
    places = explicit or implicit[:1]
    for place in places:
        if isinstance(leaves[place], Tensor):
            check_shape(leaves[place])
    return places


def _is_pil(leaf: Any) -> bool:
    # Who holds a PIL image has imported PIL; looking it up saves everybody else the import.
    pil = None if torch.compiler.is_compiling() else sys.modules.get("PIL.Image")
    return pil is not None and isinstance(leaf, pil.Image)


def _is_tv_image(leaf: Tensor) -> bool:
    tv = None if type(leaf) is Tensor else sys.modules.get("torchvision.tv_tensors")
    if tv is None or not isinstance(leaf, tv.TVTensor):
        return False
    if not isinstance(leaf, tv.Image):
        raise TypeError(
            f"DeepAutoAugment transforms images only, and this sample holds {type(leaf).__name__}: "
            "shear, rotation and crops would leave it behind. Take it out of the sample; with "
            "a policy without geometry, pass it as a plain tensor."
        )
    return True


def _is_image_array(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray):
        return False
    if leaf.ndim == 2:
        return bool(leaf.dtype == np.uint8)
    known = (np.uint8, np.float16, np.float32, np.float64)
    return leaf.ndim == 3 and leaf.shape[2] <= 4 and leaf.dtype in known


def _is_wide(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.ndim in (2, 3) and leaf.dtype == np.uint16


def _described(leaf: Any) -> str:
    if isinstance(leaf, Tensor | np.ndarray):
        return f"{type(leaf).__name__} {leaf.dtype} {tuple(leaf.shape)}"
    return type(leaf).__name__


def check_shape(image: Tensor) -> None:
    """Raise for a tensor that is no image or batch, with a hint for (H, W, C)."""
    shape = tuple(image.shape)
    if image.ndim not in (3, 4):
        raise ValueError(f"an image tensor is (C, H, W) or (N, C, H, W), got shape {shape}")
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise TypeError(integer_error(image))
    if 0 in shape[-3:]:
        raise ValueError(f"images have no pixels: shape {shape}")
    if shape[-1] in (1, 3, 4) and min(shape[-3:-1]) > 4:
        layout, order = ("H, W, C", "2, 0, 1") if image.ndim == 3 else ("N, H, W, C", "0, 3, 1, 2")
        raise ValueError(
            f"a tensor of shape {shape} looks like ({layout}), but channels come before height and "
            f"width: use permute({order})"
        )


def batch_size(images: list[Any]) -> int | None:
    """N of the batches, or None for single images."""
    sizes = [
        image.shape[0] if isinstance(image, Tensor) and image.ndim == 4 else None
        for image in images
    ]
    if any(size != sizes[0] for size in sizes):
        raise ValueError(
            f"the images of one call share one draw, so they should all be single or be batches of "
            f"one size; got {', '.join(map(_described, images))}"
        )
    return sizes[0]


def rewrap(out: Tensor, like: Tensor) -> Tensor:
    """`out` as a `tv_tensors.Image` if `like` is one."""
    if not _is_tv_image(like):
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
