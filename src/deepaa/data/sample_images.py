"""A few images of any source, without labels: what previews and reports show."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepaa.data.embedded import load_embedded
from deepaa.data.folder import is_image_name, listed
from deepaa.data.image_file import (
    MAX_PIXELS,
    SUFFIXES,
    BadFile,
    Decoded,
    Pixels,
    Reading,
    quiet_pillow,
    read_image,
)
from deepaa.data.npz import open_npz, stacked

ARRAY_NAMES = ("images", "x", "x_train", "train_images", "x_test", "test_images")
"""Names under which a .npz file may hold its images; the first one present is read."""


def load_images(
    source: str | Path | None = None,
    limit: int = 8,
    size: int | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Up to `limit` images of `source` as uint8 (N, 3, H, W), spread evenly over it.

    Files become RGB as `to_rgb` says, turned as their EXIF orientation says.

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
    if source is None:
        found: Sequence[Pixels] | Pixels = (
            load_embedded().train_images[:limit].permute(0, 2, 3, 1).numpy()
        )
    else:
        found = _read(Path(source), limit, Reading(max_pixels))
    return torch.from_numpy(stacked(found, size, str(source)))


def _read(source: Path, limit: int, reading: Reading) -> Sequence[Pixels] | Pixels:
    if source.suffix.lower() == ".npz" and source.is_file():
        return _read_npz(source, limit)
    if source.is_dir():
        paths = sorted(_image_files(source))
        if not paths:
            raise ValueError(f"{source}: no images found; looked for {' '.join(SUFFIXES)}")
        return _read_files([paths[i] for i in _spread(len(paths), limit)], reading)
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file or folder")
    return _read_files([source], reading)


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
        yield from (Path(place, name) for name in names if is_image_name(name))


def _read_files(paths: list[Path], reading: Reading) -> list[Pixels]:
    with quiet_pillow():
        results = [read_image(path, reading) for path in paths]
    bad = [f"{r.path} ({r.detail})" for r in results if isinstance(r, BadFile)]
    if bad:
        files = "1 file" if len(bad) == 1 else f"{len(bad)} files"
        raise ValueError(f"cannot read {files}: {listed(bad, '; ')}")
    return [np.asarray(r.image) for r in results if isinstance(r, Decoded)]


def _read_npz(path: Path, limit: int) -> Pixels:
    with open_npz(path) as arrays:
        name = next((name for name in ARRAY_NAMES if name in arrays.names), None)
        if name is None:
            raise ValueError(f"no array named {', '.join(ARRAY_NAMES)}; it has {arrays.names}")
        pixels = arrays.images(name)
    return pixels[_spread(len(pixels), limit)]
