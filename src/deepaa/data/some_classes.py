"""A few training images, or a few of some classes, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.data.arrays import Choose, read_npz, spread
from deepaa.data.load import DataSpec
from deepaa.data.parts import SearchSubset
from deepaa.data.scan import read_images
from deepaa.data.sources import list_source, lists_files
from deepaa.files import listed


class ClassImages(NamedTuple):
    """Images of some classes of a data set."""

    groups: tuple[tuple[str, Tensor], ...]
    """Names, and uint8 (n, 3, H, W) each; H and W are the same for all."""
    others: tuple[str, ...] = ()
    """The names of the other classes."""


class UnknownClassError(ValueError):
    """There is no class of that name."""


def load_class_images(
    spec: DataSpec, classes: int = 12, count: int = 2, wanted: Sequence[str] = ()
) -> ClassImages:
    """Up to `count` training images of each of up to `classes` classes, both spread evenly.

    Of image files no others are decoded, and of an .npz file no other image is copied.

    Args:
        wanted: Names of the classes, instead of some that are spread evenly.
    """
    if classes < 1 or count < 1:
        raise ValueError(f"classes and count should be at least 1, got {classes} and {count}")

    def choose(labels: Sequence[int], names: Sequence[str]) -> list[int]:
        return _places(labels, _chosen(names, classes, wanted), count)

    images, labels, names = _some_training(spec, choose)
    shown = sorted(set(labels))
    members = [[i for i, label in enumerate(labels) if label == c] for c in shown]
    groups = [(names[c], images[mine]) for c, mine in zip(shown, members, strict=True)]
    others = tuple(name for c, name in enumerate(names) if c not in shown)
    return ClassImages(tuple(groups), others)


def load_training_images(
    spec: DataSpec, count: int = 8, subset: SearchSubset | None = None
) -> Tensor:
    """Up to `count` training images, uint8 (N, C, H, W), spread evenly over all.

    Args:
        subset: The part of a large folder that a search has read; others are not shown.
    """

    def choose(labels: Sequence[int], names: Sequence[str]) -> list[int]:
        part = None if subset is None else subset.choose(labels)
        places = range(len(labels)) if part is None else part.places
        return [int(places[i]) for i in spread(len(places), count)]

    return _some_training(spec, choose)[0]


def _some_training(spec: DataSpec, choose: Choose) -> tuple[Tensor, list[int], Sequence[str]]:
    """Chosen training images, their labels, and the names of all classes."""
    path = Path(spec.data) if spec.data is not None else None
    if spec.data is not None and lists_files(spec.data):
        links = spec.outside_links
        tree = list_source(spec.data, columns=spec.columns, outside_links=links)
        names = tree.class_names
        tree = tree.subset(choose(tree.labels, names))
        pixels, tree, _ = read_images(tree, spec.size, spec.reading, spec.on_bad_image)
        return torch.from_numpy(pixels), list(tree.labels), names
    if path is not None and path.suffix.lower() == ".npz" and path.is_file():
        array, found, names = read_npz(path, "train", spec.size, choose)
        return torch.from_numpy(array).contiguous(), found.tolist(), names
    data = spec.load()
    every = data.labels.tolist()
    places = choose(every, data.class_names)
    return data.images[places], [every[i] for i in places], data.class_names


def _chosen(names: Sequence[str], classes: int, wanted: Sequence[str]) -> list[int]:
    """The numbers of the classes that are shown."""
    if not wanted:
        return spread(len(names), classes)
    if unknown := [name for name in wanted if name not in names]:
        raise UnknownClassError(f"no class is called {listed(unknown)}; there are {listed(names)}")
    return sorted({list(names).index(name) for name in wanted})


def _places(labels: Sequence[int], chosen: Sequence[int], count: int) -> list[int]:
    """Where the images lie that are shown, class by class, in their order there."""
    members: dict[int, list[int]] = {c: [] for c in chosen}
    for place, label in enumerate(labels):
        if label in members:
            members[label].append(place)
    return [places[i] for places in members.values() for i in spread(len(places), count)]
