"""Data sets of torchvision.datasets, by name, in memory."""

from __future__ import annotations

import difflib
import inspect
import operator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image as PilImage
from torch import Tensor

from deepaa.arrays import rgb_of
from deepaa.image_files import Pixels, to_rgb
from deepaa.stack import ImageStack

NOT_NAMED = {"VisionDataset", "ImageFolder", "DatasetFolder"}
"""Classes for data sets of one's own; a folder is given by its path, and is then looked through."""


class NoSplitError(ValueError):
    """The data set has no part of that name."""


def is_dataset(name: str) -> bool:
    """Whether torchvision.datasets has a data set of that name."""
    return name in _names()


def nearest_names(name: str, others: list[str]) -> list[str]:
    """Up to three names of torchvision's and of `others` that look like `name`."""
    known = {known.lower(): known for known in (*_names(), *others)}
    return [known[found] for found in difflib.get_close_matches(name.lower(), known)]


def _names() -> list[str]:
    from torchvision import datasets  # not needed to apply policies

    return [
        name
        for name, value in vars(datasets).items()
        if inspect.isclass(value)
        and issubclass(value, datasets.VisionDataset)
        and name not in NOT_NAMED
    ]


def read_torchvision(
    name: str, split: str, root: Path, size: int | None, *, download: bool
) -> tuple[Pixels, Tensor, tuple[str, ...]]:
    """uint8 (N, 3, H, W), int64 (N,) and the class names of one part of a data set."""
    return read_items(_open(name, split, root, download), name, size)


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


def _open(name: str, split: str, root: Path, download: bool) -> Any:
    from torchvision import datasets

    maker = getattr(datasets, name)
    options = _options(name, _parameters(maker), split, root, download)
    try:
        return maker(**options)
    except ModuleNotFoundError:  # says which package to install
        raise
    except ValueError as error:  # torchvision names the splits there are
        kind = NoSplitError if "argument split" in str(error) else ValueError
        raise kind(f"{name}, split {split!r}: {error}") from error
    except (RuntimeError, OSError) as error:
        if download:
            raise RuntimeError(f"{name} could not be downloaded to {root}: {error}") from error
        raise FileNotFoundError(
            f"{name}: not found under {root}, or damaged ({error}). Fetch it with download=True "
            "(--download), or say with root where it lies, in its official layout"
        ) from error


def _parameters(maker: type) -> dict[str, inspect.Parameter]:
    """What the class and those it hands its **kwargs to can be called with."""
    found: dict[str, inspect.Parameter] = {}
    for cls in maker.__mro__:
        if "__init__" not in vars(cls):
            continue
        own = inspect.signature(vars(cls)["__init__"]).parameters
        found = {**own, **found}
        if not any(p.kind is p.VAR_KEYWORD for p in own.values()):
            break
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {key: p for key, p in found.items() if key != "self" and p.kind not in kinds}


def _options(
    name: str, known: dict[str, inspect.Parameter], split: str, root: Path, download: bool
) -> dict[str, Any]:
    options: dict[str, Any] = {"root": root} if "root" in known else {}
    if "train" in known:
        if split not in ("train", "test"):
            raise NoSplitError(f"{name} has the splits 'train' and 'test', got {split!r}")
        options["train"] = split == "train"
    elif "split" in known:
        options["split"] = split
    elif split != "train":
        raise NoSplitError(f"{name} has no splits; all of it is 'train', got {split!r}")
    if "download" in known:
        options["download"] = download
    elif download:
        raise ValueError(f"torchvision cannot download {name}; fetch it yourself, without download")
    needed = [k for k, p in known.items() if p.default is p.empty and k not in options]
    if needed:
        raise ValueError(
            f"{name} needs more than a root and a split ({', '.join(needed)}); "
            "save its images as a folder or an .npz file"
        )
    return options


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
    # ImageNet has a tuple of synonyms for each
    return tuple(str(n[0]) if isinstance(n, (list, tuple)) and n else str(n) for n in names)
