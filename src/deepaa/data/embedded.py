"""The part of CIFAR-10 that comes with the package."""

from __future__ import annotations

import hashlib
import io
import json
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepaa.data.arrays import Part
from deepaa.data.image_file import Pixels
from deepaa.data.image_stack import stacked

EMBEDDED = "embedded"
"""What it is called."""


class EmbeddedData(NamedTuple):
    """A class-balanced part of CIFAR-10 (Krizhevsky, 2009) that comes with the package."""

    train_images: Tensor
    """uint8 (4000, 3, 32, 32)."""
    train_labels: Tensor
    """int64 (4000,)."""
    test_images: Tensor
    """uint8 (1000, 3, 32, 32)."""
    test_labels: Tensor
    """int64 (1000,)."""
    class_names: tuple[str, ...]


def load_embedded() -> EmbeddedData:
    """The first 400 training and 100 test images of each class of CIFAR-10, in the official order.

    Classes take turns (image i has class i % 10), so the first n images are balanced for every n.
    The tensors are the caller's own: writing to them changes nothing for the next caller.
    """
    train, labels, names = read_embedded("train")
    test, test_labels, _ = read_embedded("test")
    return EmbeddedData(torch.from_numpy(train), labels, torch.from_numpy(test), test_labels, names)


def embedded_is_intact() -> bool:
    """Whether the embedded images decode to the pixels they were made from (by checksum)."""
    description = json.loads(_resource("cifar10.json"))
    return all(
        hashlib.sha256(embedded_sheet(part).tobytes()).hexdigest() == description[part]["sha256"]
        for part in ("train", "test")
    )


def read_embedded(split: str, size: int | None = None) -> Part:
    """The "train" or "test" part."""
    description, pixels = json.loads(_resource("cifar10.json")), embedded_sheet(split)
    if size is not None:
        pixels = stacked(pixels, size, EMBEDDED)
    else:
        pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    labels = torch.tensor(description[split]["labels"], dtype=torch.int64)
    return pixels, labels, tuple(description["class_names"])


@cache  # decoding takes a tenth of a second
def embedded_sheet(part: str) -> Pixels:
    """The images (N, 32, 32, 3) of "train" or "test", which are stored as the tiles of one."""
    with Image.open(io.BytesIO(_resource(f"cifar10_{part}.webp"))) as sheet:
        columns = sheet.width // 32
        pixels = np.asarray(sheet.convert("RGB"))
    tiles = pixels.reshape(-1, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(tiles).reshape(-1, 32, 32, 3)


def _resource(name: str) -> bytes:
    return resources.files("deepaa.data").joinpath("cifar10", name).read_bytes()
