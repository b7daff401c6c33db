"""Images of .npz files, of torchvision and of other torch data sets, as one array in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import Image as PilImage
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from deepaa.data.image_file import Pixels, shown, to_rgb
from deepaa.data.image_stack import ImageStack, check_memory, stacked, told
from deepaa.data.splits import (
    MAX_CLASSES,
    LabelledImages,
    NoTestPartError,
    check_classes,
    check_labels,
    fingerprint,
    labelled,
)
from deepaa.files import Archive, Header, listed, open_archive
from deepaa.ops import check_images

Part = tuple[Pixels, Tensor, tuple[str, ...]]
"""uint8 (N, 3, H, W), int64 (N,) and the class names of one part of a data set."""


# .npz files, read without ever running what a file holds

Pairs = tuple[tuple[str, str], ...]
TRAIN: Pairs = (("x_train", "y_train"), ("train_images", "train_labels"))
TEST: Pairs = (("x_test", "y_test"), ("test_images", "test_labels"))
WHOLE: Pairs = (("x", "y"), ("images", "labels"))
"""Names of the images and their labels; a file without parts is all training data."""


@contextmanager
def open_npz(path: Path) -> Iterator[Archive]:
    """The file, open; whatever is wrong with it is a ValueError that begins with its path."""
    try:
        with open_archive(path) as data:
            yield data
    except (MemoryError, NoTestPartError) as error:
        raise type(error)(f"{shown(path)}: {error}") from error
    except OSError as error:
        raise ValueError(f"{shown(path)}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{shown(path)}: {error}") from error


Choose = Callable[[Sequence[int], Sequence[str]], list[int]]
"""Places of the images that are wanted, by the labels of all and the names of classes."""


def read_npz(path: Path, split: str, size: int | None, choose: Choose | None = None) -> Part:
    """The "train" or "test" part of a file, or some images of it."""
    pairs = (*TRAIN, *WHOLE) if split == "train" else TEST
    with open_npz(path) as data:
        pair = _first_of(pairs, data)
        if pair is None:
            choices = " or ".join(f"{x} and {y}" for x, y in pairs)
            error = NoTestPartError if split == "test" else ValueError
            raise error(f"has no {split} part: no {choices}; it has {_names(data)}")
        x, y = pair
        images, labels = _images(data, x), _labels(data, y)
        if len(images) != len(labels):
            raise ValueError(f"{x} has {len(images)} images, but {y} has {len(labels)} labels")
        if "class_names" in data.files:
            found = read_array(data, "class_names", _check_class_names)
            names = tuple(map(str, found))
            check_labels(labels, len(names), y)
        else:
            classes = check_labels(labels, place=y)
            if split == "test" and (train := _first_of(TRAIN, data)):
                classes = max(classes, check_labels(_labels(data, train[1]), place=train[1]))
            names = tuple(str(c) for c in range(classes))
    if choose is not None:  # before anything is copied
        places = choose(labels.tolist(), names)
        images, labels = images[places], labels[places]
    return stacked(images, size, shown(path)), labels.long(), names


def some_of_npz(path: Path, limit: int) -> Pixels:
    """Up to `limit` images (N, H, W, 1 or 3), spread evenly over the first array that has any."""
    names = [x for x, _ in (*reversed(WHOLE), *TRAIN, *TEST)]
    with open_npz(path) as data:
        name = next((name for name in names if name in data.files), None)
        if name is None:
            raise ValueError(f"no array named {', '.join(names)}; it has {_names(data)}")
        pixels = _images(data, name)
    return pixels[spread(len(pixels), limit)]


def spread(n: int, limit: int) -> list[int]:
    """Up to `limit` evenly spaced places of n, so that a folder per class shows every class."""
    count = min(n, limit)
    return [i * n // count for i in range(count)]


def _names(data: Archive) -> str:
    return listed(data.files) or "none"


def _first_of(pairs: Pairs, data: Archive) -> tuple[str, str] | None:
    """The first pair of names of which the file has both arrays."""
    return next((pair for pair in pairs if set(pair) <= set(data.files)), None)


def _images(data: Archive, name: str) -> Pixels:
    """uint8 (N, H, W, 1 or 3), whichever way it is stored.

    Axis 1 holds the channels where it has 1 or 3 entries and the last axis has not.
    """
    stored = read_array(data, name, _check_images)
    array = stored[..., None] if stored.ndim == 3 else stored
    return array if array.shape[3] in (1, 3) else array.transpose(0, 2, 3, 1)


def _check_images(header: Header) -> None:
    if header.dtype != np.uint8:
        raise ValueError(f"holds {_kind(header)}, expected uint8")
    shape = header.shape
    has_channels = len(shape) == 4 and bool({1, 3} & {shape[1], shape[3]})
    if not (len(shape) == 3 or has_channels) or 0 in shape:
        shapes = "(N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W)"
        raise ValueError(f"has shape {shape}, expected {shapes}")


def _labels(data: Archive, name: str) -> Tensor:
    """int64 or uint64 (N,), also from (N, 1)."""
    array = read_array(data, name, _check_labels)
    return torch.from_numpy(array.reshape(-1).astype(f"{array.dtype.kind}8"))


def _check_labels(header: Header) -> None:
    if header.dtype.kind not in "iu" or header.shape[1:] not in ((), (1,)) or not header.shape:
        wanted = "the number of each image's class: integers (N,)"
        raise ValueError(f"holds {_kind(header)} of shape {header.shape}, expected {wanted}")


def _check_class_names(header: Header) -> None:
    if header.dtype.kind != "U" or len(header.shape) != 1 or header.shape[0] > MAX_CLASSES:
        wanted = f"at most {MAX_CLASSES:,} strings"
        raise ValueError(f"holds {_kind(header)} of shape {header.shape}, expected {wanted}")


def _kind(header: Header) -> str:
    return str(header.dtype)[:60]


def read_array(
    data: Archive, name: str, check: Callable[[Header], None] = lambda header: None
) -> npt.NDArray[Any]:
    """The array as it is stored, if it is what `check` wants and the memory allows."""

    def check_all(header: Header) -> None:
        check(header)
        check_memory(header.bytes, f"array {name}")

    try:
        return data.read(name, check_all)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error


# torchvision

_FLAG: Mapping[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
_SPLIT: Mapping[str, dict[str, Any]] = {"train": {"split": "train"}, "test": {"split": "test"}}
_TRAINVAL = {**_SPLIT, "train": {"split": "trainval"}}
DATASETS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    **dict.fromkeys(("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST"), _FLAG),
    **dict.fromkeys(("SVHN", "STL10", "Food101", "Flowers102", "DTD", "GTSRB"), _SPLIT),
    **dict.fromkeys(("OxfordIIITPet", "FGVCAircraft"), _TRAINVAL),
    "EuroSAT": {"train": {}},
}
"""The classes of torchvision.datasets that are known by name, and the arguments of each part."""
SHORT_NAMES = {"CIFAR10": "cifar10", "CIFAR100": "cifar100"}
"""Names of their own for two of them."""
TORCHVISION = "torchvision:"
"""What may stand before a name."""


def torchvision_name(source: str) -> str | None:
    """The data set of torchvision that a source means by its name; None for other sources."""
    name = source.removeprefix(TORCHVISION)
    if name in DATASETS and (name != source or not Path(source).exists()):
        return name
    return next((name for name, short in SHORT_NAMES.items() if short == source), None)


def read_torchvision(
    name: str,
    split: str,
    root: Path,
    size: int | None,
    side: int | None = None,
    *,
    download: bool,
) -> Part:
    """One part of a data set of torchvision; `side` as for `ImageStack`."""
    if split not in DATASETS[name]:
        raise NoTestPartError(f"{name}: has no {split} part")
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
    return read_items(dataset, name, size, side)


def read_items(dataset: Any, name: str, size: int | None = None, side: int | None = None) -> Part:
    """The images, labels and class names of an object whose items are images with their labels."""
    n = len(dataset)
    stack = ImageStack(n, size, name, side=side)
    labels = torch.empty(n, dtype=torch.int64)
    for i in range(n):
        image, labels[i] = _item(dataset, i, name)
        stack.add(image)
    return told(stack), labels, _class_names(dataset, labels)


def _item(dataset: Any, i: int, name: str) -> tuple[Pixels, int]:
    try:
        item = dataset[i]
        if isinstance(item, Mapping):
            raise TypeError(f"it is a {type(item).__name__} with {listed([*map(str, item)])}")
        image, label = item
    except Exception as error:  # a damaged file raises whatever Pillow's parsing happens to hit
        raise ValueError(f"{name}[{i}] cannot be read as an image and a label: {error}") from error
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
            return image.permute(1, 2, 0).numpy().copy()  # a copy: a data set may reuse its tensor
        raise ValueError(f"a tensor should be (1 or 3, H, W), got {tuple(image.shape)}")
    without = "; leave out the transform" if isinstance(image, Tensor) else ""
    raise TypeError(f"expected a PIL image or a uint8 tensor (C, H, W){without}")


def _class_names(dataset: Any, labels: Tensor) -> tuple[str, ...]:
    """The names that the data set gives its classes, or their numbers."""
    count = check_labels(labels) if len(labels) else 0
    inner, names = dataset, getattr(dataset, "classes", None)
    while names is None and isinstance(inner, Subset):
        inner = inner.dataset
        names = getattr(inner, "classes", None)
    if not isinstance(names, (list, tuple)) or len(names) < count:
        return tuple(str(c) for c in range(count))
    # torchvision's ImageNet has a tuple of synonyms for each
    return tuple(str(n[0]) if isinstance(n, (list, tuple)) and n else str(n) for n in names)


# Images that Python code gives


def given_images(data: object) -> LabelledImages:
    """The images of a torch data set, or of (images, labels)."""
    kind = type(data).__name__
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__"):
            advice = "; give its shards, as 'train-{000..127}.tar'" if kind == "WebDataset" else ""
            wanted = "a data set that is read by number is needed"
            raise TypeError(f"{kind} has no length; {wanted}{advice}")
        return labelled(*read_items(data, kind), kind, "train")
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TypeError(
            "data should be a source, a path, a torch Dataset, (images, labels) or (images, "
            f"labels, groups), got {kind}{_advice(data)}"
        )
    images = _tensor(data[0], "images should be uint8 (N, C, H, W)")
    labels = _tensor(data[1], "labels should be integers (N,)")
    check_images(images)
    if images.shape[1] not in (1, 3):
        shape, last = tuple(images.shape), images.shape[3] in (1, 3)
        advice = "; channels come before height and width" if last else ""
        wanted = "images should be (N, C, H, W) with 1 or 3 channels"
        raise ValueError(f"{wanted}, got {shape}{advice}")
    if labels.shape != (len(images),):
        raise ValueError(f"{len(images)} images, but labels of shape {tuple(labels.shape)}")
    names = tuple(str(i) for i in range(check_labels(labels)))
    labels = labels.long()
    check_classes(labels, names, "tensors", "train")
    return LabelledImages(images, labels, names, "tensors", fingerprint(images, labels))


def _advice(data: object) -> str:
    """What to give in place of something that people take for a data set."""
    if isinstance(data, DataLoader):
        return "; give its data set, loader.dataset, without a transform"
    if hasattr(data, "to_csv"):  # a DataFrame
        return "; write it, table.to_csv('table.csv', index=False), and give 'table.csv'"
    return ""


def _tensor(values: Any, wanted: str) -> Tensor:
    """What a user gave, as a tensor on the CPU."""
    try:
        return torch.as_tensor(values).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        is_list = isinstance(values, list | tuple) and len(values) > 0
        kind = f"a {type(values).__name__}{f' of {type(values[0]).__name__}' if is_list else ''}"
        advice = "; what is not in one array is given as a torch Dataset"
        raise TypeError(f"{wanted}, got {kind}{advice if 'images' in wanted else ''}") from error
