"""Labelled images in memory, and which of them each part, split and batch has.

Every division is the same on every machine.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepaa import distributed
from deepaa.data.image_file import Pixels, listed, shown
from deepaa.files import plural
from deepaa.ops import hash_int, hash_keys, sample_keys

if TYPE_CHECKING:
    from deepaa.data.scan import ScanReport

PRETRAIN, SEARCH, VALIDATION = 4_000, 35_000, 10_000
"""The most images that each split has by default."""
PRETRAIN_OF_A_CLASS, MOST_PRETRAIN = 200, 200_000
"""Where it is more than `PRETRAIN`, pretrain has so many images of each class, up to a total: the
paper's number for the 1,000 classes of ImageNet."""
_STREAM = 0x5350_4C49_5453  # sets these numbers apart from others drawn from the same seed
MAX_CLASSES = 1_000_000
"""Each gets a name: a single label of a trillion would fill the memory with names."""
COPY_SHIFT = 40
"""Copy c of image i has the key of image i + c * 2^40: no two images or copies share one."""
INDEX = (1 << COPY_SHIFT) - 1
"""The bits of a row that are the image's index."""

Sizes = tuple[int, int, int]
"""Of pretrain, search and validation."""
HOLDOUT = 0.1
"""Share that is held out of images without a test part."""

_log = logging.getLogger(__name__)


class Splits(NamedTuple):
    """Indices of images, int64; every prefix of a split has about the class shares of the whole."""

    pretrain: Tensor
    """Trains the proxy network."""
    search: Tensor
    """Is augmented during the search."""
    validation: Tensor
    """Gives the gradient to match."""
    judge: Tensor = torch.empty(0, dtype=torch.int64)
    """Decides between policies by training, and takes part in nothing before; in ascending order.
    Empty where the images are too few, see `judge_part`."""


class LabelledImages(NamedTuple):
    """A labelled data set, or one part of it, in memory."""

    images: Tensor
    """uint8 (N, 3, H, W) RGB, on the CPU."""
    labels: Tensor
    """int64 (N,), in 0..C-1."""
    class_names: tuple[str, ...]
    """C names; those without a name are called by their number."""
    name: str
    """What the source is called in records, such as "cifar10" or the name of a folder."""
    fingerprint: str
    """sha256 over shapes, pixels and labels, in hexadecimal."""
    report: ScanReport | None = None
    """For image folders: which files were left out and what else was noticed."""
    subset_sizes: Sizes | None = None
    """Where only a part of a folder was read: the sizes of the splits for which it is enough."""
    judge: Tensor | None = None
    """Where only a part of a folder was read: the indices of those that are the folder's judge."""
    files: tuple[str, ...] = ()
    """For image folders: the path of each image below the folder."""
    groups: Tensor | None = None
    """int64 (N,): images with equal numbers belong together, as frames of one scene do, and stay
    in one part of every division. None: each image may go anywhere."""

    def part(self, indices: Tensor) -> LabelledImages:
        """The images with these indices, in this order."""
        images, labels = self.images[indices], self.labels[indices]
        files = tuple(self.files[i] for i in indices.tolist()) if self.files else ()
        return self._replace(
            images=images,
            labels=labels,
            fingerprint=fingerprint(images, labels),
            judge=None,
            files=files,
            groups=None if self.groups is None else self.groups[indices],
        )


class TrainTest(NamedTuple):
    """Images to train on, and others to test on."""

    train: LabelledImages
    test: LabelledImages
    how: str
    """Where the test images come from, for the record."""


class NoTestPartError(ValueError):
    """The data set has no images of its own to test on."""


def fingerprint(images: Tensor, labels: Tensor) -> str:
    """The sha256 over shapes, pixels and labels that identifies a data set on any machine."""
    digest = hashlib.sha256(f"{tuple(images.shape)} {tuple(labels.shape)}".encode())
    for start in range(0, len(images), 1024):  # a part at a time, should a copy be needed
        digest.update(images[start : start + 1024].contiguous().numpy().tobytes())
    digest.update(labels.to(torch.int64).numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def check_labels(labels: Tensor, num_classes: int | None = None, place: str = "labels") -> int:
    """The number of classes C; raises ValueError with the offending entries outside of 0..C-1.

    Numbers of uint64 that int64 cannot hold are negative in the comparison, but shown as given.
    """
    if labels.ndim != 1 or labels.dtype.is_floating_point or labels.dtype == torch.bool:
        kind = f"{labels.dtype} {tuple(labels.shape)}"
        raise ValueError(f"{shown(place)}: expected integers of shape (N,), got {kind}")
    if not len(labels):
        raise ValueError(f"{shown(place)}: no labels")
    signed = labels.long()
    top = int(signed.max()) + 1 if num_classes is None else num_classes
    if top > MAX_CLASSES:
        raise ValueError(
            f"{shown(place)}: a label of {top - 1:,}; classes count from 0, and at most "
            f"{MAX_CLASSES:,} are read"
        )
    if wrong := ((signed < 0) | (signed >= top)).nonzero()[:, 0].tolist():
        entries = listed([f"[{i}] = {labels[i].item()}" for i in wrong])
        raise ValueError(f"{shown(place)}: should be in 0..{max(top, 1) - 1}, but {entries}")
    return top


def labelled(
    pixels: Pixels, labels: Tensor, class_names: tuple[str, ...], name: str, split: str
) -> LabelledImages:
    """Checks that hold for every source, and the fingerprint."""
    check_classes(labels, class_names, name, split)
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    return LabelledImages(images, labels, class_names, name, fingerprint(images, labels))


def check_classes(labels: Tensor, class_names: Sequence[str], name: str, split: str) -> None:
    """Raises ValueError unless there are two classes, and images of each to train on."""
    check_labels(labels, len(class_names), f"{name}: labels")
    if len(class_names) < 2:
        raise ValueError(
            f"{shown(name)}: only one class, {shown(class_names[0])}; it takes at least two"
        )
    missing = without_images(class_names, labels)
    if missing and split == "train":  # as where labels count from 1
        raise ValueError(
            f"{shown(name)}: {len(missing)} of {len(class_names)} classes have no image: "
            f"{listed(missing)}; labels should count from 0 without gaps"
        )


def with_classes_of(train: LabelledImages, found: LabelledImages, place: str) -> LabelledImages:
    """Test images of another source, their labels counted as the training images' are."""
    names = found.class_names
    if names == tuple(map(str, range(len(train.class_names)))) and names != train.class_names:
        _log.warning("%s: labels without names count as the training images' do", place)
        names = train.class_names
    if unknown := [name for name in names if name not in train.class_names]:
        raise ValueError(
            f"{place}: {plural(len(unknown), 'class')} that the training images do not have: "
            f"{listed(unknown)}; they have {listed(train.class_names)}"
        )
    numbers = torch.tensor([train.class_names.index(name) for name in names])
    return found._replace(labels=numbers[found.labels], class_names=train.class_names)


def checked(both: TrainTest) -> TrainTest:
    """Both parts, if they have the same classes and sizes; classes without tests are named."""
    train, test, _ = both
    if len(train.class_names) != len(test.class_names):
        counts = f"{len(train.class_names)} classes to train on, but {len(test.class_names)}"
        raise ValueError(f"{train.name}: {counts} to test on")
    if train.images.shape[1:] != test.images.shape[1:]:
        sizes = [" x ".join(map(str, part.images.shape[2:])) for part in (train, test)]
        found = f"training images are {sizes[0]}, test images {sizes[1]} pixels"
        raise ValueError(f"{train.name}: {found}; bring both to one size with --size")
    if absent := absent_classes(train.class_names, test.labels):
        _log.warning("%s: %s", train.name, absent)
    return both


def absent_classes(class_names: Sequence[str], labels: Tensor) -> str | None:
    """A line about the classes that no test image has; None where each has some."""
    if not (absent := without_images(class_names, labels)):
        return None
    classes = f"{len(absent)} of {len(class_names)} classes: {listed(absent)}"
    return f"no test images of {classes}; the test says nothing about them"


def without_images(class_names: Sequence[str], labels: Tensor) -> list[str]:
    """The names of the classes that no label is of."""
    present = set(labels.tolist())
    return [name for i, name in enumerate(class_names) if i not in present]


# Splits


def default_sizes(n: int, classes: int = 1, *, pretrains: bool = True) -> Sizes:
    """Half, a quarter and a quarter of n images, up to 4,000, 35,000 and 10,000.

    What pretrain and validation leave goes to search: 50,000 images give 4,000, 35,000 and 10,000,
    and the 4,000 embedded ones 2,000, 1,000 and 1,000. Every part has room for every class, and a
    network that is to tell more than 20 classes apart gets more than 4,000 images. Without
    `pretrains` no network is trained, and pretrain is empty.
    """
    parts = 3 if pretrains else 2
    if n < parts:
        raise ValueError(f"{parts} parts need at least {parts} images, got {n}")
    validation = max(classes, min(VALIDATION, n // 4))
    pretrain = 0
    if pretrains:
        wanted = max(PRETRAIN, min(PRETRAIN_OF_A_CLASS * classes, MOST_PRETRAIN))
        pretrain = max(classes, min(wanted, n // 2, n - validation - classes))
    return pretrain, max(classes, min(SEARCH, n - pretrain - validation)), validation


def stratified_splits(
    labels: Tensor | Sequence[int],
    sizes: Sizes | None = None,
    seed: int = 0,
    *,
    class_names: Sequence[str] = (),
) -> Splits:
    """Disjoint random parts in which each class has the share that it has in `labels`.

    Shares are rounded so that the sizes are exact and no part misses a class. The numbers come from
    a hash of the seed, so they depend on neither machine nor library version.

    Args:
        labels: The class of each image, from 0: (N,).
        sizes: How many images each part has, 0 for none; None means `default_sizes`.
        class_names: Used in errors; also says how many classes there are.
    """
    labels = torch.as_tensor(labels).cpu()
    classes = check_labels(labels, len(class_names) or None)
    sizes = default_sizes(len(labels), classes) if sizes is None else sizes
    left = members(labels, seed, classes)
    check_sizes(sizes, [len(c) for c in left], class_names or [str(c) for c in range(classes)])
    parts = []
    for k, size in enumerate(sizes):
        later = sum(other > 0 for other in sizes[k + 1 :])  # images each class still has to keep
        taken = apportion([len(c) for c in left], size, later)
        parts.append(interleaved([c[:n] for c, n in zip(left, taken, strict=True)]))
        left = [c[n:] for c, n in zip(left, taken, strict=True)]
    return Splits(*parts)


def check_sizes(sizes: Sizes, counts: list[int], class_names: Sequence[str]) -> None:
    """Raises ValueError unless every split can have images of every class."""
    if len(sizes) != 3 or any(type(size) is not int or size < 0 for size in sizes):
        numbers = "numbers of images for pretrain, search and validation"
        raise ValueError(f"sizes should be {numbers}, got {sizes}")
    for part, size in zip(Splits._fields, sizes, strict=False):
        if 0 < size < len(counts):
            raise ValueError(
                f"{part} of {size} images cannot hold {len(counts)} classes; "
                f"it needs at least one image of each"
            )
    parts = sum(size > 0 for size in sizes)
    few = [f"{name} ({n})" for name, n in zip(class_names, counts, strict=True) if n < parts]
    if few:
        raise ValueError(
            f"{parts} disjoint parts need at least {parts} images of every class; "
            f"too few in: {listed(few)}"
        )
    if not 0 < sum(sizes) <= sum(counts):
        have = f"{sum(sizes):,} images; the data set has {sum(counts):,}"
        raise ValueError(f"sizes {tuple(sizes)} are {have}")


def random_order(places: Tensor, seed: int) -> Tensor:
    """The order (N,) of different numbers (N,) that a hash of each and the seed gives."""
    keys = sample_keys(hash_int(seed, _STREAM), 0, places)
    return hash_keys(keys, torch.tensor(0)).argsort(stable=True)


def members(labels: Tensor, seed: int, classes: int) -> list[Tensor]:
    """Indices of the images of each class, in random order."""
    order = random_order(torch.arange(len(labels)), seed)
    counts: list[int] = labels.bincount(minlength=classes).tolist()
    return list(torch.split(order[labels[order].argsort(stable=True)], counts))


def class_order(labels: Tensor) -> Tensor:
    """A random order (N,) in which the first of any number have about the shares of all classes."""
    return interleaved(members(labels, 0, int(labels.max()) + 1))


def apportion(left: list[int], size: int, later: int) -> list[int]:
    """How many of each class make a part of `size`: `later` stay of each, and it has at least 1.

    Shares of `left` by largest remainders, in whole numbers, so that no rounding of floats decides.
    A class with no more than `later` gives none; what the others have is enough for the size.
    """
    if size == 0:
        return [0] * len(left)
    total = sum(left)
    top = [max(0, n - later) for n in left]
    taken = [min(max(n * size // total, 1), most) for n, most in zip(left, top, strict=True)]
    while gap := size - sum(taken):
        step = 1 if gap > 0 else -1
        open_ = [c for c, n in enumerate(taken) if (n < top[c] if gap > 0 else n > 1)]
        open_.sort(key=lambda c: step * (taken[c] * total - left[c] * size))
        for c in open_[: abs(gap)]:
            taken[c] += step
    return taken


def interleaved(groups: list[Tensor]) -> Tensor:
    """All entries, such that every prefix holds about the same share of every group."""
    ranks = [(torch.arange(len(g), dtype=torch.float64) + 0.5) / max(len(g), 1) for g in groups]
    return torch.cat(groups)[torch.cat(ranks).argsort(stable=True)]


# Epochs


def batch_sizes(count: int, batch: int, copies: int = 1, world_size: int = 1) -> list[int]:
    """The sizes of an epoch's batches: whole ones, and a last one of at least half a batch.

    Batch norm over a few images would only add noise; fewer images than a batch are one batch.
    Raises ValueError where one of the `world_size` processes that share a batch would get no row.
    """
    whole, rest = divmod(count, batch)
    sizes = [batch] * whole + [rest] * (rest >= batch / 2 or whole == 0)
    if min(sizes) * copies < world_size:
        raise ValueError(
            f"{plural(min(sizes), 'image')} in a batch: too few for {world_size} processes"
        )
    return sizes


def epoch_order(count: int, batch: int, seed: int, epoch: int) -> Tensor:
    """The images of an epoch in the order in which they are trained on, wherever they lie."""
    generator = torch.Generator().manual_seed(hash_int(seed, epoch))
    return torch.randperm(count, generator=generator)[: sum(batch_sizes(count, batch))]


def batch_rows(images: Tensor, copies: int, rank: int = 0, world: int = 1) -> Tensor:
    """Index and copy of each row as one number; all images of a copy, then those of the next.

    Process `rank` of `world` takes neighbouring rows, so as many processes as copies see every one
    of the `images`, which are indices, once each.
    """
    numbers = torch.arange(copies).repeat_interleave(len(images))
    rows = images.repeat(copies) + (numbers << COPY_SHIFT)
    own = distributed.share(len(rows), rank, world)
    return rows[own.start : own.stop]
