"""Images to work on: the embedded part of CIFAR-10, image files, folders and arrays."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepaa.arrays import open_npz, rgb_of
from deepaa.image_files import (
    MAX_PIXELS,
    SUFFIXES,
    BadFile,
    Decoded,
    Pixels,
    Reading,
    check_size,
    quiet_pillow,
    read_image,
    squared,
)
from deepaa.stack import DEFAULT_SIDE, KEPT_SIDE

ARRAY_NAMES = ("images", "x", "x_train", "train_images", "x_test", "test_images")
"""Names under which a .npz file may hold its images; the first one present is read."""
NAMED_FILES = 5
"""How many unreadable files an error names; it counts the rest."""


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
    train_images, train_labels, test_images, test_labels, class_names = _stored()
    return EmbeddedData(
        train_images.clone(),
        train_labels.clone(),
        test_images.clone(),
        test_labels.clone(),
        class_names,
    )


@lru_cache(maxsize=1)
def _stored() -> EmbeddedData:
    description = _description()

    def images(part: str) -> Tensor:
        return torch.from_numpy(_sheet(part)).permute(0, 3, 1, 2).contiguous()

    def labels(part: str) -> Tensor:
        return torch.tensor(description[part]["labels"], dtype=torch.int64)

    return EmbeddedData(
        images("train"),
        labels("train"),
        images("test"),
        labels("test"),
        tuple(description["class_names"]),
    )


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


def _sheet(part: str) -> Pixels:
    """(N, 32, 32, 3): the pictures of a sheet, row by row."""
    with Image.open(io.BytesIO(_resource(f"cifar10_{part}.webp"))) as sheet:
        columns = sheet.width // 32
        pixels = np.asarray(sheet.convert("RGB"))
    tiles = pixels.reshape(-1, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(tiles).reshape(-1, 32, 32, 3)


def _resource(name: str) -> bytes:
    return resources.files("deepaa").joinpath("datasets", name).read_bytes()


def load_images(
    source: str | Path | None = None,
    limit: int = 8,
    size: int | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Up to `limit` images of `source` as uint8 (N, 3, H, W), spread evenly over it.

    Files are turned as their EXIF orientation says and become RGB: 16-bit grey is divided by 257,
    transparency is laid on white, an animation gives its first frame. Pixels without a fixed range
    (32-bit integers, floats) are refused.

    Args:
        source: A folder (with any folders below it, in sorted order), an image file, a .npz file
            with uint8 images (N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W), or None for the
            embedded training images, from the first one on.
        size: Side of the square images: the shorter side is resized to it and the middle cut out.
            None keeps images that all have one size of up to 512 pixels a side; others get 224.
        max_pixels: Larger images are refused before they are decoded. Pillow's own limit holds too.
    """
    if limit < 1:
        raise ValueError(f"limit should be at least 1, got {limit}")
    check_size(size)
    if source is None:
        images = [image.permute(1, 2, 0).numpy() for image in _stored().train_images[:limit]]
    else:
        images = _read(Path(source), limit, max_pixels)
    shapes = {image.shape for image in images}
    if size is None and (len(shapes) > 1 or max(images[0].shape) > KEPT_SIDE):
        size = DEFAULT_SIDE
    if size is not None:
        images = [squared(image, size) for image in images]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def _read(source: Path, limit: int, max_pixels: int) -> list[Pixels]:
    if source.suffix.lower() == ".npz" and source.is_file():
        return _read_npz(source, limit)
    if source.is_dir():
        paths = sorted(_image_files(source))
        if not paths:
            raise ValueError(f"{source}: no images found; looked for {' '.join(SUFFIXES)}")
        return _read_files([paths[i] for i in _spread(len(paths), limit)], max_pixels)
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file or folder")
    return _read_files([source], max_pixels)


def _spread(n: int, limit: int) -> list[int]:
    """Up to `limit` evenly spaced places of n, so that a folder per class shows every class."""
    count = min(n, limit)
    return [i * n // count for i in range(count)]


def _image_files(folder: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    for place, below, names in os.walk(folder, followlinks=True):
        here = Path(place).resolve()
        if here in seen:  # a link that leads back
            below.clear()
            continue
        seen.add(here)
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(place, name)


def _read_files(paths: list[Path], max_pixels: int) -> list[Pixels]:
    with quiet_pillow():
        results = [read_image(path, Reading(max_pixels)) for path in paths]
    bad = [f"{r.path} ({r.detail})" for r in results if isinstance(r, BadFile)]
    if bad:
        more = f"; and {len(bad) - NAMED_FILES} more" if len(bad) > NAMED_FILES else ""
        files = "1 file" if len(bad) == 1 else f"{len(bad)} files"
        raise ValueError(f"cannot read {files}: {'; '.join(bad[:NAMED_FILES])}{more}")
    return [np.asarray(r.image) for r in results if isinstance(r, Decoded)]


def _read_npz(path: Path, limit: int) -> list[Pixels]:
    with open_npz(path) as arrays:
        name = next((name for name in ARRAY_NAMES if name in arrays.names), None)
        if name is None:
            raise ValueError(f"no array named {', '.join(ARRAY_NAMES)}; it has {arrays.names}")
        pixels = arrays.images(name)
    return [rgb_of(pixels[i]) for i in _spread(len(pixels), limit)]
