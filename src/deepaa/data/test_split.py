"""Which images a network is tested on: the data set's own, a given folder, or a held-out share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.data.image_file import listed, shown
from deepaa.data.load import DataSpec, LabelledImages, fingerprint
from deepaa.data.splits import NoTestPartError, stratified_splits

HOLDOUT = 0.1
"""Share that is held out of images without a test part."""
HOLDOUT_SEED = 0
"""The same images are held out whatever the seed of a training."""

_log = logging.getLogger(__name__)


class TrainTest(NamedTuple):
    """Images to train on, and others to test on."""

    train: LabelledImages
    test: LabelledImages
    how: str
    """Where the test images come from, for the record."""


def load_train_and_test(
    spec: DataSpec,
    *,
    test: str | Path | None = None,
    holdout: float | None = None,
    download: bool = False,
) -> TrainTest:
    """The training images of a data set, and the images to test on.

    Args:
        test: Another source for the test images, with classes of the same names, read in the same
            way.
        holdout: Test on this share of the training images instead, the same for every seed. A
            data set without a test part has .1 of them held out.
        download: Fetch a torchvision data set that is not there.
    """
    if holdout is not None and not 0 < holdout < 1:
        raise ValueError(f"holdout should be a share between 0 and 1, got {holdout}")
    if test is not None and holdout is not None:
        raise ValueError("either other test images or a held-out share, not both")
    train = spec.load(download=download)
    if test is not None:
        found = _given(spec, str(test), train, download)
        return checked(TrainTest(train, found, f"given: {found.name}"))
    if holdout is None:
        try:
            official = spec.load(split="test", download=download)
            return checked(TrainTest(train, official, "the test part of the data set"))
        except NoTestPartError as error:
            _log.warning("%s; %g of the training images are held out", error, HOLDOUT)
    return held_out(train, HOLDOUT if holdout is None else holdout)


def load_test(spec: DataSpec, *, download: bool = False) -> LabelledImages | None:
    """The data set's own test images; None where it has none."""
    try:
        return spec.load(split="test", download=download)
    except NoTestPartError:
        return None


def held_out(data: LabelledImages, share: float) -> TrainTest:
    """A stratified share of the images as test images; the rest trains."""
    n, classes = len(data.labels), len(data.class_names)
    count = max(classes, round(share * n))
    if n - count < classes:
        raise ValueError(
            f"{data.name}: a held-out share of {share:g} leaves {max(0, n - count)} of {n} images, "
            f"too few to train {classes} classes"
        )
    sizes = (n - count, 0, count)
    train, _, test = stratified_splits(
        data.labels, sizes, HOLDOUT_SEED, class_names=data.class_names
    )
    how = f"{share:g} of the training images, held out"
    return TrainTest(_subset(data, train), _subset(data, test), how)


def _subset(data: LabelledImages, indices: Tensor) -> LabelledImages:
    indices = indices.sort().values
    images, labels = data.images[indices], data.labels[indices]
    return data._replace(images=images, labels=labels, fingerprint=fingerprint(images, labels))


def _given(spec: DataSpec, source: str, train: LabelledImages, download: bool) -> LabelledImages:
    """Test images of another source, their labels counted as the training images' are."""
    spec = replace(spec, data=source)
    found = load_test(spec, download=download) or spec.load(download=download)
    place, names = shown(source), found.class_names
    if names == tuple(map(str, range(len(train.class_names)))) and names != train.class_names:
        _log.warning("%s: labels without names count as the training images' do", place)
        names = train.class_names
    if unknown := [name for name in names if name not in train.class_names]:
        raise ValueError(
            f"{place}: {len(unknown)} classes that the training images do not have: "
            f"{listed(unknown)}; they have {listed(train.class_names)}"
        )
    numbers = torch.tensor([train.class_names.index(name) for name in names])
    return found._replace(labels=numbers[found.labels], class_names=train.class_names)


def checked(both: TrainTest) -> TrainTest:
    """Both parts, if they have the same classes and sizes; classes without tests are named."""
    train, test, _ = both
    if len(train.class_names) != len(test.class_names):
        raise ValueError(
            f"{train.name}: {len(train.class_names)} classes to train on, but "
            f"{len(test.class_names)} to test on"
        )
    if train.images.shape[1:] != test.images.shape[1:]:
        sizes = [" x ".join(map(str, part.images.shape[2:])) for part in (train, test)]
        raise ValueError(
            f"{train.name}: training images are {sizes[0]}, test images {sizes[1]} pixels; bring "
            "both to one size with --size"
        )
    if absent := absent_classes(train.class_names, test.labels):
        _log.warning("%s: %s", train.name, absent)
    return both


def absent_classes(class_names: Sequence[str], labels: Tensor) -> str | None:
    """A line about the classes that no test image has; None where each has some."""
    present = set(labels.tolist())
    absent = [name for i, name in enumerate(class_names) if i not in present]
    if not absent:
        return None
    return (
        f"no test images of {len(absent)} of {len(class_names)} classes: {listed(absent)}; "
        "the test says nothing about them"
    )
