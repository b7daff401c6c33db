"""Data sets of torchvision, and any data set of labelled images, read into memory."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image as PilImage
from torch import Tensor

from deepaa.data.image_file import Pixels, to_rgb
from deepaa.data.image_stack import ImageStack
from deepaa.data.npz import rgb_of

_FLAG: Mapping[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
_SPLIT: Mapping[str, dict[str, Any]] = {"train": {"split": "train"}, "test": {"split": "test"}}
_TRAINVAL = {**_SPLIT, "train": {"split": "trainval"}}
DATASETS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "CIFAR10": _FLAG,
    "CIFAR100": _FLAG,
    "MNIST": _FLAG,
    "FashionMNIST": _FLAG,
    "KMNIST": _FLAG,
    "SVHN": _SPLIT,
    "STL10": _SPLIT,
    "Food101": _SPLIT,
    "Flowers102": _SPLIT,
    "DTD": _SPLIT,
    "GTSRB": _SPLIT,
    "OxfordIIITPet": _TRAINVAL,
    "FGVCAircraft": _TRAINVAL,
    "EuroSAT": {"train": {}},
}
"""The classes of torchvision.datasets that are known by name, and the arguments of each part."""


def read_torchvision(
    name: str, split: str, root: Path, size: int | None, *, download: bool
) -> tuple[Pixels, Tensor, tuple[str, ...]]:
    """uint8 (N, 3, H, W), int64 (N,) and the class names of one part of a data set."""
    if split not in DATASETS[name]:
        parts = " and ".join(map(repr, DATASETS[name]))
        raise ValueError(f"{name} has the splits {parts}, got {split!r}")
    from torchvision import datasets  # not needed to apply policies

    try:
        dataset = getattr(datasets, name)(root=root, download=download, **DATASETS[name][split])
    except (RuntimeError, OSError) as error:
        if download:
            raise RuntimeError(f"{name} could not be downloaded to {root}: {error}") from error
        raise FileNotFoundError(
            f"{name}: not found under {root}, or damaged ({error}). Fetch it with download=True "
            "(--download), or say with root where it lies, in its official layout"
        ) from error
    return read_items(dataset, name, size)


def read_items(
    dataset: Any, name: str, size: int | None = None
) -> tuple[Pixels, Tensor, tuple[str, ...]]:
    """The same of an object with a length, whose items are images with their labels."""
    n = len(dataset)
    stack = ImageStack(n, size, name)
    labels = torch.empty(n, dtype=torch.int64)
    for i in range(n):
        image, labels[i] = _item(dataset, i, name)
        stack.add(image)
    return stack.images(), labels, _class_names(dataset, labels)


def _item(dataset: Any, i: int, name: str) -> tuple[Pixels, int]:
    try:
        image, label = dataset[i]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}[{i}] is not an image with a label: {error}") from error
    except Exception as error:  # a damaged file raises whatever Pillow's parsing happens to hit
        raise ValueError(f"{name}[{i}] cannot be read: {error}") from error
    try:
        return _pixels(image), operator.index(label)
    except (TypeError, ValueError) as error:
        kind = f"{type(image).__name__} with {type(label).__name__} {label!r}"
        raise ValueError(
            f"{name}[{i}] is no image with an integer label ({kind}): {error}"
        ) from error


def _pixels(image: Any) -> Pixels:
    if isinstance(image, PilImage):
        return np.asarray(to_rgb(image))
    if isinstance(image, Tensor) and image.dtype == torch.uint8 and image.ndim == 3:
        if image.shape[0] in (1, 3):
            return rgb_of(image.permute(1, 2, 0).numpy())
        raise ValueError(f"a tensor should be (1 or 3, H, W), got {tuple(image.shape)}")
    without = "; leave out the transform" if isinstance(image, Tensor) else ""
    raise TypeError(f"expected a PIL image or a uint8 tensor (C, H, W){without}")


def _class_names(dataset: Any, labels: Tensor) -> tuple[str, ...]:
    """The names that the data set gives its classes, or their numbers."""
    count = int(labels.max()) + 1 if len(labels) else 0
    names = getattr(dataset, "classes", None)
    if not isinstance(names, (list, tuple)) or len(names) < count:
        return tuple(str(c) for c in range(count))
    # torchvision's ImageNet has a tuple of synonyms for each
    return tuple(str(n[0]) if isinstance(n, (list, tuple)) and n else str(n) for n in names)
