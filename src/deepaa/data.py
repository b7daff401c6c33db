"""Images to work on: the embedded part of CIFAR-10, image files, folders and arrays."""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.Image import Image as PilImage
from PIL.Image import Resampling, Transpose
from torch import Tensor

Pixels = npt.NDArray[np.uint8]

SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".jp2", ".avif"),
)
"""Files of a folder that count as images; others are passed over."""
ARRAY_NAMES = ("images", "x", "x_train", "train_images", "x_test", "test_images")
"""Names under which a .npz file may hold its images; the first one present is read."""
MAX_PIXELS = 64_000_000
"""Images above this are refused before they are decoded."""
KEPT_SIDE = 512
"""Without a size, images that all have one size up to this side are kept as they are."""
DEFAULT_SIDE = 224
"""Without a size, all others are brought to this side."""
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
            with uint8 images (N, H, W) or (N, H, W, 1 or 3), or None for the embedded training
            images, from the first one on.
        size: Side of the square images: the shorter side is resized to it and the middle cut out.
            None keeps images that all have one size of up to 512 pixels a side; others get 224.
        max_pixels: Larger images are refused before they are decoded. Pillow's own limit holds too.
    """
    if limit < 1:
        raise ValueError(f"limit should be at least 1, got {limit}")
    if size is not None and not 1 <= size <= 4096:
        raise ValueError(f"size should be in 1..4096 pixels, got {size}")
    if source is None:
        images = [image.permute(1, 2, 0).numpy() for image in _stored().train_images[:limit]]
    else:
        images = _read(Path(source), limit, max_pixels)
    shapes = {image.shape for image in images}
    if size is None and (len(shapes) > 1 or max(images[0].shape) > KEPT_SIDE):
        size = DEFAULT_SIDE
    if size is not None:
        images = [_squared(image, size) for image in images]
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
    images: list[Pixels] = []
    bad: list[str] = []
    for path in paths:
        try:
            images.append(np.asarray(_open_rgb(path, max_pixels)))
        except UnidentifiedImageError:
            empty = path.stat().st_size == 0
            bad.append(f"{path} ({'empty file' if empty else 'not an image'})")
        except Exception as error:  # damaged files raise whatever Pillow's parsing happens to hit
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            bad.append(f"{path} ({reason})")
    if bad:
        more = f"; and {len(bad) - NAMED_FILES} more" if len(bad) > NAMED_FILES else ""
        files = "1 file" if len(bad) == 1 else f"{len(bad)} files"
        raise ValueError(f"cannot read {files}: {'; '.join(bad[:NAMED_FILES])}{more}")
    return images


def _open_rgb(path: Path, max_pixels: int) -> PilImage:
    with warnings.catch_warnings():
        # Pillow warns of damaged EXIF data, which we leave aside, and of sizes, which we limit.
        warnings.simplefilter("ignore")
        with Image.open(path) as image:
            if (pixels := image.width * image.height) > max_pixels:
                size = f"{image.width} x {image.height}"
                raise ValueError(f"{size} is {pixels:,} pixels, over the limit of {max_pixels:,}")
            image.load()
            rgb, turn = to_rgb(image), _orientation(image)
    return rgb if turn is None else rgb.transpose(turn)


_TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
"""What makes an image of each EXIF orientation upright."""


def _orientation(image: PilImage) -> Transpose | None:
    try:
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data raise whatever parsing hits; the pixels are still good
        return None


def to_rgb(image: PilImage) -> PilImage:
    """The image in mode RGB, by one rule per mode.

    16-bit grey is divided by 257 (Pillow would clip it to white), transparency is laid on white,
    1-bit becomes black and white, palettes, CMYK and grey are converted by Pillow.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        wide = np.asarray(image).astype(np.uint32)
        narrow = ((wide + 128) // 257).astype(np.uint8)
        return Image.fromarray(narrow).convert("RGB")
    if image.mode in ("I", "F"):
        kind = "32-bit integer" if image.mode == "I" else "floating point"
        raise ValueError(f"{kind} pixels have no fixed range; save the image with 8 or 16 bits")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _read_npz(path: Path, limit: int) -> list[Pixels]:
    try:
        with np.load(path, allow_pickle=False) as data:
            names = [name for name in ARRAY_NAMES if name in data.files]
            if not names:
                raise ValueError(f"no array named {', '.join(ARRAY_NAMES)}; it has {data.files}")
            array = data[names[0]]
    except Exception as error:  # zipfile, zlib and numpy each raise their own
        raise ValueError(f"{path}: {error}") from error
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape:
        raise ValueError(
            f"{path}: {names[0]} has shape {array.shape}, expected (N, H, W) or (N, H, W, 1 or 3)"
        )
    if array.dtype != np.uint8:
        raise ValueError(f"{path}: {names[0]} holds {array.dtype}, expected uint8")
    chosen = array[_spread(len(array), limit)]
    return list(np.broadcast_to(chosen, (*chosen.shape[:3], 3)))


def _squared(image: Pixels, size: int) -> Pixels:
    """The middle square of the image after its shorter side became `size` pixels."""
    if image.shape[:2] == (size, size):
        return image
    fitted = ImageOps.fit(Image.fromarray(image), (size, size), Resampling.BICUBIC)
    return np.asarray(fitted)
