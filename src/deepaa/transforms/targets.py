"""Boxes, masks and key points of torchvision, moved as the image beside them.

torchvision is not imported for it: who holds a `tv_tensors` object has imported it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from deepaa.ops import (
    Layer,
    Table,
    are_outside,
    fit_rectangles,
    move_boxes,
    move_rectangles,
    moving_layers,
    rectangle_corners,
    source_index,
    track,
)
from deepaa.transforms import inputs
from deepaa.transforms.where import At, further, item_of, mapped, naming

CUTOUT_TARGETS = ("keep", "hide")
LOST = -1
"""Both coordinates of a key point that has no pixel any more."""
ROTATED = {"XYWHR": 5, "CXCYWHR": 5, "XYXYXYXY": 8}
"""The formats of rotated boxes, and how many numbers a box has."""
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
SLACK = 1.0
"""Pixels by which corners may be off, as they are where somebody rounded them."""
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Steps = Sequence[tuple[int, Sequence[float]]]


class TargetSettings(NamedTuple):
    """What a transform does with targets beyond geometry."""

    cutout: str = "keep"
    mask_fill: float = 0

    @classmethod
    def checked(cls, cutout: Any, mask_fill: Any) -> TargetSettings:
        """The settings, or an error that names the one that is wrong."""
        if cutout not in CUTOUT_TARGETS:
            raise ValueError(f"cutout_targets should be 'keep' or 'hide', got {cutout!r}")
        if isinstance(mask_fill, bool) or not isinstance(mask_fill, int | float):
            raise TypeError(f"mask_fill should be a number, got {mask_fill!r}")
        return cls(cutout, mask_fill)


class Mover:
    """Moves the targets of one image of `size` (H, W) through the steps that were drawn for it."""

    def __init__(
        self, steps: Steps, table: Table, size: tuple[int, int], settings: TargetSettings
    ) -> None:
        """Find the layers that move anything."""
        self.size = size
        self.layers: list[Layer] = moving_layers(steps, table, *size)
        self.hide = settings.cutout == "hide"
        self.fill = settings.mask_fill

    def __call__(self, leaf: Any) -> Any:
        """The leaf, moved if it is a target; everything else as it is."""
        if not inputs.is_target(leaf):
            return leaf
        name, plain = type(leaf).__name__, leaf.detach().as_subclass(Tensor)
        tv = sys.modules["torchvision.tv_tensors"]
        if isinstance(leaf, tv.Mask):
            moved = self._mask(plain)
        else:
            if tuple(leaf.canvas_size) != self.size:
                raise ValueError(
                    f"{name} have canvas_size {tuple(leaf.canvas_size)}, and their image is "
                    f"{self.size[0]} x {self.size[1]}"
                )
            _check_type(plain.dtype, name, self.size)
            numbers = plain.to("cpu", torch.float64).numpy()
            if not np.isfinite(numbers).all():
                bad = tuple(np.argwhere(~np.isfinite(numbers))[0].tolist())
                raise ValueError(
                    f"{name} should have finite coordinates, got {numbers[bad]} at {list(bad)}"
                )
            if isinstance(leaf, tv.BoundingBoxes):
                kind, whole = leaf.format.value, _is_whole(plain)
                _check_numbers(numbers, kind)
                out = (self._rotated if kind in ROTATED else self._boxes)(numbers, kind, whole)
            else:
                out = self._points(numbers, _is_whole(plain))
            if _is_whole(plain):  # far outside of the image, beyond what the type can hold
                out = out.clip(*_limits(plain.dtype))
            moved = torch.from_numpy(np.ascontiguousarray(out)).to(plain.device, plain.dtype)
        return tv.wrap(moved, like=leaf)

    # Masks

    @cached_property
    def _index(self) -> Tensor:
        return torch.from_numpy(source_index(self.layers, *self.size, hide=self.hide)).flatten()

    def _mask(self, mask: Tensor) -> Tensor:
        """Masks (..., H, W), each pixel from where the image's came; the fill where it had none."""
        if mask.ndim < 2 or tuple(mask.shape[-2:]) != self.size:
            raise ValueError(
                f"a Mask should be (..., {self.size[0]}, {self.size[1]}) as its image, got shape "
                f"{tuple(mask.shape)}"
            )
        _check_fill(self.fill, mask.dtype)
        index, signed, fill = self._index.to(mask.device), _SIGNED.get(mask.dtype), self.fill
        if signed is not None:  # the same bytes, of a type for which torch has these functions
            mask, dtype, bits = mask.view(signed), mask.dtype, torch.iinfo(signed).bits
            fill = int(fill) - (int(fill) >> (bits - 1) << bits)
            return self._moved(mask, index, fill).view(dtype)
        return self._moved(mask, index, fill)

    def _moved(self, mask: Tensor, index: Tensor, fill: float) -> Tensor:
        moved = mask.flatten(-2)[..., index.clamp(min=0)].masked_fill_(index < 0, fill)
        return moved.reshape(mask.shape)

    # Coordinates

    def _boxes(self, boxes: Floats, kind: str, whole: bool) -> Floats:
        """Boxes of a format, as whole numbers around the hull if `whole`."""
        first, last = boxes[..., :2], boxes[..., 2:]
        corners = {
            "XYXY": lambda: (first, last),
            "XYWH": lambda: (first, first + last),
            "CXCYWH": lambda: (first - last / 2, first + last / 2),
        }[kind]()
        flat = np.concatenate(corners, -1).reshape(-1, 4)
        self._check_boxes(flat, boxes.reshape(-1, 4), kind)
        moved = move_boxes(flat, self.layers, *self.size, hide=self.hide).reshape(boxes.shape)
        low, high = moved[..., :2], moved[..., 2:]
        if whole:  # outwards, but not for an error of rounding
            empty = high <= low
            low = np.floor(low + 1e-6)
            high = np.where(empty, low, np.ceil(high - 1e-6))
        second = {"XYXY": high, "XYWH": high - low, "CXCYWH": high - low}[kind]
        middle = (low + high) / 2
        return np.concatenate((middle if kind == "CXCYWH" else low, second), -1)

    def _check_boxes(self, flat: Floats, given: Floats, kind: str) -> None:
        """Refuse boxes that are turned inside out, and those beside the image."""
        height, width = self.size
        turned = (flat[:, 2:] < flat[:, :2]).any(-1)
        outside = (flat[:, 2:] < 0).any(-1) | (flat[:, :2] > (width, height)).any(-1)
        where = f"its image of {height} x {width}"
        _refuse(turned, given, kind, f"ends before it begins, in {where}")
        _refuse(outside, given, kind, f"lies outside of {where}")

    def _rotated(self, boxes: Floats, kind: str, whole: bool) -> Floats:
        """Boxes of a rotated format."""
        if whole:
            raise ValueError(f"boxes in {kind} should be floating point, got whole numbers")
        flat = boxes.reshape(-1, ROTATED[kind])
        rectangles = _as_rectangles(flat, kind)
        outside = are_outside(rectangles, *self.size, beyond=SLACK)
        where = f"its image of {self.size[0]} x {self.size[1]}"
        _refuse(outside, flat, kind, f"lies outside of {where}")
        moved = move_rectangles(rectangles, self.layers, *self.size, hide=self.hide)
        return _as_format(moved, kind).reshape(boxes.shape)

    def _points(self, points: Floats, whole: bool) -> Floats:
        """Points (..., 2); whole numbers name pixels, so that their centres are moved."""
        start = points + 0.5 if whole else points
        moved, lost = track(start, self.layers, *self.size, hide=self.hide)
        height, width = self.size
        inside = ((moved >= 0) & (moved <= (width, height))).all(-1)
        moved = np.floor(moved) if whole else moved
        out: Floats = np.where((lost & inside)[..., None], LOST, moved)
        return out


def _check_numbers(boxes: Floats, kind: str) -> None:
    """Refuse boxes with more numbers or fewer, such as a class behind the corners."""
    numbers = ROTATED.get(kind, 4)
    if boxes.size and boxes.shape[-1] != numbers:
        raise ValueError(f"a box in {kind} has {numbers} numbers, got {boxes.shape[-1]}")


def _refuse(bad: Bools | np.bool_, boxes: Floats, kind: str, what: str) -> None:
    """An error about the first bad box, if there is one."""
    if bad.any():
        place = int(bad.argmax())
        raise ValueError(f"box {place}, {boxes[place].tolist()} in {kind}, {what}")


def _as_rectangles(boxes: Floats, kind: str) -> Floats:
    """Centre, size and angle of rotated boxes of any format."""
    if kind != "XYXYXYXY":
        _refuse((boxes[:, 2:4] < 0).any(-1), boxes, kind, "has a negative width or height")
        if kind == "CXCYWHR":
            return boxes
        # as far from the first corner as the third one of a box about it is from its centre
        return np.concatenate((rectangle_corners(boxes)[:, 2], boxes[:, 2:]), -1)
    corners = boxes.reshape(-1, 4, 2)
    rectangles = fit_rectangles(corners)
    off = np.abs(rectangle_corners(rectangles) - corners).max((1, 2), initial=0)
    what = "is no rectangle with corners top left, top right, bottom right, bottom left"
    _refuse(off > SLACK, boxes, kind, what)
    return rectangles


def _as_format(rectangles: Floats, kind: str) -> Floats:
    """Centres, sizes and angles as a format of rotated boxes."""
    if kind == "CXCYWHR":
        return rectangles
    corners = rectangle_corners(rectangles)
    if kind == "XYXYXYXY":
        return corners.reshape(-1, 8)
    return np.concatenate((corners[:, 0], rectangles[:, 2:]), -1)


def _is_whole(values: Tensor) -> bool:
    return not values.is_floating_point()


def _check_type(dtype: torch.dtype, name: str, size: tuple[int, int]) -> None:
    """Refuse types of whole numbers in which what leaves the image could come back into it."""
    if dtype.is_floating_point:
        return
    low, high = _limits(dtype)
    if high < max(size):
        reason = f"cannot hold the places in an image of {size[0]} x {size[1]}"
    elif name == "KeyPoints" and low == 0:
        reason = "cannot say which points left their image, where places are below 0"
    else:
        return
    raise ValueError(f"{name} of {dtype} {reason}: give torch.int64 or torch.float32")


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    """The lowest and the highest number of a type of whole numbers."""
    return (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _check_fill(fill: float, dtype: torch.dtype) -> None:
    """Refuse a fill that masks of this type cannot hold."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    low, high = _limits(dtype)
    if not (math.isfinite(fill) and fill == int(fill) and low <= fill <= high):
        raise ValueError(f"mask_fill is {fill}, which masks of {dtype} cannot hold")


# Samples


def target_places(leaves: list[Any]) -> list[int]:
    """The places of targets in a flat sample, and of lists that hold some."""
    return [
        place
        for place, leaf in enumerate(leaves)
        if any(map(inputs.is_target, tree_leaves(leaf) if isinstance(leaf, list) else [leaf]))
    ]


def move_sample(
    leaves: list[Any],
    images: list[Any],
    draw: Callable[[], Steps],
    table: Table,
    settings: TargetSettings,
    at: At,
) -> None:
    """Replace the targets in a flat sample by those moved as its images, which share a draw."""
    if not (places := target_places(leaves)):
        return
    if inputs.batch_size(images) is not None:
        raise ValueError(
            "boxes, masks and key points in a list of samples go with single images, and this "
            "sample has a batch (N, C, H, W)"
        )
    mover = Mover(draw(), table, _size(images, table), settings)
    for place in places:
        leaves[place] = mapped(mover, leaves[place], partial(further, at, place))


def move_batch(
    leaves: list[Any],
    images: list[Tensor],
    draws: Callable[[], list[Steps]],
    table: Table,
    settings: TargetSettings,
    at: At,
) -> None:
    """Replace the targets of a batch: masks (N, ..., H, W), and lists with one item per image."""
    if not (places := target_places(leaves)):
        return
    n, size = len(images[0]), _size(images, table)
    for place in places:
        with naming(partial(at, place)):
            _check_batched(leaves[place], n)
    movers = [Mover(steps, table, size, settings) for steps in draws()]
    for place in places:
        leaf = leaves[place]
        if not n:
            continue
        items = leaf if isinstance(leaf, list) else _masks(leaf)
        moved = [
            mapped(move, item, partial(item_of, at, place, i))
            for i, (move, item) in enumerate(zip(movers, items, strict=True))
        ]
        if isinstance(leaf, list):
            leaves[place] = moved
        else:
            wrap = sys.modules["torchvision.tv_tensors"].wrap
            leaves[place] = wrap(torch.stack([m.as_subclass(Tensor) for m in moved]), like=leaf)


def refuse_compiled(leaves: list[Any]) -> None:
    """Refuse what compiled code does not move."""
    if target_places(leaves) or any(map(inputs.is_video, leaves)):
        raise TypeError(
            "boxes, masks, key points and videos cannot be compiled: call the transform outside of "
            "torch.compile"
        )


def _masks(batch: Tensor) -> list[Tensor]:
    """The masks of a batch, each a `tv_tensors.Mask`."""
    wrap = sys.modules["torchvision.tv_tensors"].wrap
    return [wrap(mask, like=batch) for mask in batch.detach().as_subclass(Tensor)]


def _check_batched(leaf: Any, n: int) -> None:
    """Refuse targets that do not say which image of a batch of n they belong to."""
    if isinstance(leaf, list):
        if len(leaf) != n:
            raise ValueError(f"a batch of {n} images needs a list of {n} targets, got {len(leaf)}")
    elif not isinstance(leaf, sys.modules["torchvision.tv_tensors"].Mask):
        raise ValueError(
            f"{type(leaf).__name__} beside a batch of {n} images should be in a list of {n}, one "
            "item for each image"
        )
    elif leaf.ndim < 3 or len(leaf) != n:
        raise ValueError(
            f"a Mask beside a batch of {n} images should be ({n}, ..., H, W), got shape "
            f"{tuple(leaf.shape)}"
        )


def _size(images: list[Any], table: Table) -> tuple[int, int]:
    """The (H, W) that all images of a sample with targets have; refuse what has no geometry."""
    for operation in table.operations:
        if operation.is_custom:
            raise TypeError(
                f"the own operation {operation.name!r} may move pixels to anywhere, so that boxes, "
                "masks and key points could not follow: use a policy without it"
            )
    sizes = list(dict.fromkeys(map(inputs.image_size, images)))
    if len(sizes) > 1:
        told = " and ".join(f"{height} x {width}" for height, width in sizes)
        raise ValueError(
            f"boxes, masks and key points go with images of one size, and these are {told}; give "
            "several samples as a list of samples"
        )
    return sizes[0]
