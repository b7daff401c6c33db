"""Images of other values than 0..255 and [0, 1]: 16 bits, or numbers with a declared range."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from deepaa.transforms import inputs

KINDS = ("uint16", "int16", "int32", "float16", "float32", "float64")
"""Types whose values a declared range may describe; uint8 is taken as it is."""


WIDE_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
"""PIL images whose values a declared range may describe."""


class ValueRange(NamedTuple):
    """The values that stand for black and for white."""

    low: float
    high: float

    @classmethod
    def checked(cls, given: Any) -> ValueRange:
        """The range that a user gave as two numbers."""
        try:
            low, high = map(float, given)
        except (TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(
                f"value_range should be two numbers, the darkest and the brightest value, such as "
                f"(0, 65535); got {given!r}"
            )
        return cls(low, high)

    def apply(self, augment: Callable[[Any], Any], sample: Any) -> Any:
        """What `augment` makes of the sample, whose images it sees as floats in [0, 1].

        The first `tv_tensors.Image` or `Video` of these types is an image, or, where there is no
        PIL image, the first array or tensor, and so are others of its type and dimensions.
        """
        if torch.compiler.is_compiling():  # the compiler leaves this call out of its graphs
            raise TypeError("value_range cannot be compiled: scale the images to [0, 1] before")
        leaves, structure = tree_flatten(sample)
        kinds = [_kind(leaf) for leaf in leaves]
        first = max(filter(None, kinds), key=lambda kind: kind.is_named, default=None)
        if first is None or (not first.is_named and any(map(inputs.is_pil, leaves))):
            return augment(sample)
        places = [place for place, kind in enumerate(kinds) if kind == first]
        for place in places:
            leaves[place] = self._to_unit(leaves[place])
        done, structure = tree_flatten(augment(tree_unflatten(leaves, structure)))
        flat = kinds[places[0]]
        assert flat is not None
        for place in places:
            done[place] = self._from_unit(done[place], flat)
        return tree_unflatten(done, structure)

    def apply_pil(self, augment: Callable[[Any], Any], image: Any) -> Any:
        """What `augment` makes of a PIL image of 16 bits, which it sees as floats (H, W, 1)."""
        values = np.asarray(image)
        kind = _kind(values)
        assert kind is not None
        out = self._from_unit(augment(self._to_unit(values)), kind).astype(values.dtype)
        made = sys.modules["PIL.Image"].frombytes(image.mode, image.size, out.tobytes())
        made.info = image.info.copy()
        return made

    def _to_unit(self, image: Any) -> Any:
        """The image as floats in [0, 1]; an array (H, W) as (H, W, 1)."""
        wide = _type_name(image) in ("int32", "float64")
        is_tensor = isinstance(image, Tensor)
        if is_tensor:
            values = image.as_subclass(Tensor).to(torch.float64 if wide else torch.float32)
        else:
            values = image.astype(np.float64 if wide else np.float32)
            values = values[:, :, None] if values.ndim == 2 else values
        if math.prod(values.shape) == 0:
            return inputs.rewrap(values, image) if is_tensor else values
        low, high = float(values.min()), float(values.max())
        if not (self.low <= low and high <= self.high):  # NaN is neither
            raise ValueError(
                f"images should lie in value_range ({self.low:g}, {self.high:g}), but these span "
                f"[{low:g}, {high:g}]; clip them first, or declare their range"
            )
        unit = (values - self.low) / (self.high - self.low)
        return inputs.rewrap(unit, image) if is_tensor else unit

    def _from_unit(self, image: Any, kind: _Kind) -> Any:
        """The image with its own values and type again."""
        plain: Any = image.as_subclass(Tensor) if isinstance(image, Tensor) else image
        values = plain * (self.high - self.low) + self.low
        is_float = kind.dtype.startswith("float")
        if not is_float:
            values = values.round()
        if isinstance(image, Tensor):
            return inputs.rewrap(values.to(getattr(torch, kind.dtype)), image)
        return (values[:, :, 0] if kind.ndim == 2 else values).astype(kind.dtype)


class _Kind(NamedTuple):
    is_tensor: bool
    dtype: str
    ndim: int
    is_named: bool
    """Whether torchvision's name says that it is an image or a video."""


def _kind(leaf: Any) -> _Kind | None:
    """What images of one sample have in common; None for what is none of these types."""
    if isinstance(leaf, Tensor):
        dimensions = (4, 5) if inputs.is_video(leaf) else (3, 4)
        if inputs.is_target(leaf) or leaf.ndim not in dimensions:
            return None
    elif not isinstance(leaf, np.ndarray) or leaf.ndim not in (2, 3):
        return None
    is_tensor, dtype = isinstance(leaf, Tensor), _type_name(leaf)
    named = is_tensor and inputs.is_named_image(leaf)
    return _Kind(is_tensor, dtype, leaf.ndim, named) if dtype in KINDS else None


def _type_name(values: Any) -> str:
    """uint16 and the like, whatever the order of the bytes."""
    return str(getattr(values.dtype, "name", values.dtype)).removeprefix("torch.")
