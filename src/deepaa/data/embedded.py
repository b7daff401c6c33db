"""The part of CIFAR-10 that comes with the package."""

from __future__ import annotations

import hashlib
import io
import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepaa.data.image_file import Pixels


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
    description = _description()

    def part(name: str) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(_sheet(name)).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(description[name]["labels"], dtype=torch.int64)

    return EmbeddedData(*part("train"), *part("test"), tuple(description["class_names"]))


def embedded_is_intact() -> bool:
    """Whether the embedded images decode to the pixels they were made from (by checksum)."""
    description = _description()
    return all(
        hashlib.sha256(_sheet(part).tobytes()).hexdigest() == description[part]["sha256"]
        for part in ("train", "test")
    )


def _description() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_resource("cifar10.json"))
    return found


@cache  # decoding takes a tenth of a second
def _sheet(part: str) -> Pixels:
    """The images (N, 32, 32, 3) of "train" or "test", which are stored as the tiles of one."""
    with Image.open(io.BytesIO(_resource(f"cifar10_{part}.webp"))) as sheet:
        columns = sheet.width // 32
        pixels = np.asarray(sheet.convert("RGB"))
    tiles = pixels.reshape(-1, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(tiles).reshape(-1, 32, 32, 3)


def _resource(name: str) -> bytes:
    return resources.files("deepaa.data").joinpath("cifar10", name).read_bytes()
