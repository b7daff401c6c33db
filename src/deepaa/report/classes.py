"""What a policy does to images of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from deepaa.data import (
    ClassImages,
    DataSpec,
    UnknownClassError,
    has_columns,
    load_class_images,
)
from deepaa.ops import apply_batch, sample_keys
from deepaa.policy import Policy
from deepaa.report.pictures import is_exact, small_url

CLASSES, IMAGES, DRAWS = 12, 2, 3
"""Classes that are shown, images of each, and draws of each image."""
NAMED = 60
"""Other classes that are named."""


class FoundClasses(NamedTuple):
    """Images by class, or the reason why there are none."""

    images: ClassImages | None
    note: str = ""
    """What the reader should know of them."""


class ClassRow(NamedTuple):
    """Some images of a class, each with its draws."""

    name: str
    images: tuple[tuple[str, ...], ...]
    """For each image the addresses of the original and of its draws."""


class ClassExamples(NamedTuple):
    """The part of a page about classes."""

    rows: tuple[ClassRow, ...]
    others: tuple[str, ...]
    """Names of classes that are not shown."""
    unnamed: int
    """How many more there are."""
    note: str
    exact: bool
    """Whether the pictures have the pixels of the images."""


def find_classes(
    config: Mapping[str, Any],
    data: Path | None = None,
    size: int | None = None,
    wanted: Sequence[str] = (),
    columns: str | None = None,
) -> FoundClasses:
    """Images of some classes of `data` if given, else of the run's images, else embedded ones.

    Args:
        config: A run's settings; empty for a policy without a run.
        wanted: Names of classes; other ones than there are raise `UnknownClassError`.
        columns: As `DataSpec.columns`, of `data`.
    """
    entry = config.get("source", {}).get("data")
    try:
        if data is not None:
            place = data.expanduser()  # a folder, also where a data set has its name
            source = str(place) if has_columns(str(place)) else str(place.absolute())
            spec = DataSpec.from_options(source, size=size, columns=columns)
        else:
            spec = DataSpec() if entry is None else DataSpec.from_json(entry)
            spec = replace(spec, size=size or spec.size)
        return FoundClasses(load_class_images(spec, CLASSES, IMAGES, wanted))
    except UnknownClassError as error:
        raise UnknownClassError(f"--class: {error}") from error
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        reason = " ".join(str(error).split())
    if data is not None:
        return FoundClasses(None, f"Images of each class cannot be shown: {reason}")
    note = "These are CIFAR-10 images of the package, since those of the run cannot be read"
    return FoundClasses(load_class_images(DataSpec(), CLASSES, IMAGES), f"{note}. ({reason})")


def class_examples(
    found: FoundClasses, policy: Policy, seed: int = 0, epoch: int = 0
) -> ClassExamples | None:
    """The images of each class and what the policy makes of them; None where there are none."""
    if found.images is None:
        return None
    rows, first = [], 0
    for name, images in found.images.groups:
        samples = torch.arange(first, first + len(images))
        first += len(images)
        columns = [images]
        for draw in range(DRAWS):
            keys = sample_keys(seed, epoch + draw, samples)
            columns.append(apply_batch(images, policy.draw(keys, epoch), policy.table))
        shown = zip(*(map(small_url, column) for column in columns), strict=True)
        rows.append(ClassRow(name, tuple(shown)))
    others, exact = found.images.others, all(is_exact(x) for _, x in found.images.groups)
    unnamed = max(0, len(others) - NAMED)
    return ClassExamples(tuple(rows), others[:NAMED], unnamed, found.note, exact)
