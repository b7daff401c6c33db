"""One image file as RGB pixels, by one rule per kind of file, or the reason why not."""

from __future__ import annotations

import io
import stat
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.Image import DecompressionBombError, Image as PilImage, Resampling, Transpose

from deepaa.files import listed as listed, shown as shown
from deepaa.runs import ADDED, apply_changes, parse_changes

Pixels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".jp2", ".avif"),
)
"""Files of a folder that count as images; others are passed over."""
WHITE = (255, 255, 255)
MARGIN = 2
"""A reduced picture has so many times the pixels that are needed, on each side."""
DECODERS = ("auto", "pillow", "torchvision")
Spare = Callable[[int, int], float]


class Reason(StrEnum):
    """Why a file gives no image."""

    EMPTY = "empty"
    NOT_AN_IMAGE = "not-an-image"  # no format that Pillow knows, such as a web page saved as .jpg
    DAMAGED = "damaged"  # cut off, or its pixels do not decode
    TOO_MANY_PIXELS = "too-many-pixels"  # refused before decoding
    NO_PIXEL_RANGE = "no-pixel-range"  # floats or 32-bit integers: nothing says what is white
    UNREADABLE = "unreadable"  # permission, a broken link, not a regular file
    MISSING = "missing"  # named by a table, and not there


class Packed(NamedTuple):
    """An image file inside of a larger file."""

    path: Path
    """What it is called, below the larger file."""
    content: Callable[[], bytes]
    """Reads its bytes; an OSError says why they are not there."""


class BadFile(NamedTuple):
    """A file that gives no image."""

    path: Path
    reason: Reason
    detail: str


class Decoded(NamedTuple):
    """A file that gave an image."""

    image: PilImage
    """Mode RGB."""
    exif_is_readable: bool
    """False where damaged EXIF data were left aside."""
    size: tuple[int, int]
    """Width and height of the whole picture; the image has fewer pixels where it was reduced."""


@dataclass(frozen=True)
class Reading:
    """How image files become pixels."""

    max_pixels: int = 64_000_000
    """Larger images are refused before they are decoded. Pillow's own limit holds too."""
    alpha_colour: Colour = WHITE
    """What shows through transparent pixels."""
    apply_exif: bool = True
    """Turn images as their EXIF orientation says. Pillow always turns TIFF files."""
    reduce: bool = field(default=False, metadata=ADDED)
    """Decode JPEG files at 1/2, 1/4 or 1/8 of their size where twice the pixels that are needed
    are left on each side: faster for large photos, and nearly the same pixels."""
    decoder: str = field(default="auto", metadata=ADDED)
    """What decodes JPEG files that are trained on with --stream: `pillow` in the workers,
    `torchvision` on the device, or `auto`, which is torchvision on CUDA and Pillow elsewhere."""

    def __post_init__(self) -> None:
        """Refuse values that no image could be read with."""
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels should be at least 1, got {self.max_pixels}")
        if not all(0 <= level <= 255 for level in self.alpha_colour):
            raise ValueError(f"alpha_colour should be three of 0..255, got {self.alpha_colour}")
        if self.decoder not in DECODERS:
            raise ValueError(f"decoder should be {' or '.join(DECODERS)}, got {self.decoder!r}")
        if self.reduce and self.decoder == "torchvision":
            raise ValueError("reduce=true needs decoder=pillow: torchvision decodes whole pictures")

    @classmethod
    def parse(cls, choices: Sequence[str]) -> Reading:
        """What `--read` says: NAME=VALUE each, the last one of a name holds."""
        try:
            return apply_changes(cls(), parse_changes(choices, cls))
        except ValueError as error:
            raise ValueError(f"--read {' '.join(choices)}: {error}") from error


DEFAULT_READING = Reading()


class NoPixelRangeError(ValueError):
    """The pixels have no fixed range."""


_REASONS = {
    UnidentifiedImageError: Reason.NOT_AN_IMAGE,
    DecompressionBombError: Reason.TOO_MANY_PIXELS,
    NoPixelRangeError: Reason.NO_PIXEL_RANGE,
}
"""What the errors of decoding mean; any other one means that the file is damaged."""


def quiet_pillow() -> warnings.catch_warnings[None]:
    """Inside it, Pillow warns neither of damaged EXIF data nor of sizes, which we handle.

    Enter it once around all threads that decode: Python's warning filters are global.
    """
    return warnings.catch_warnings(action="ignore")


def read_image(
    file: Path | Packed, reading: Reading, spare: Spare | None = None
) -> Decoded | BadFile:
    """The image in mode RGB, decoded to its last byte, or why there is none.

    Args:
        spare: From the width and height of the upright picture, how many times larger than needed
            it is; for a `reading` that may reduce it.
    """
    path = file.path if isinstance(file, Packed) else file
    try:
        if isinstance(file, Packed):
            content = file.content()
            if not content:
                return BadFile(path, Reason.EMPTY, "empty file")
            return _decode(io.BytesIO(content), reading, spare)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            return BadFile(path, Reason.UNREADABLE, "not a regular file")
        if status.st_size == 0:
            return BadFile(path, Reason.EMPTY, "empty file")
        return _decode(path, reading, spare)
    except MemoryError:  # says something about the machine, not about the file
        raise
    except Exception as error:  # damaged files raise whatever Pillow's parsing happens to hit
        detail = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = _REASONS.get(type(error), Reason.DAMAGED)
        if isinstance(error, OSError) and error.errno is not None:  # Pillow's own have no number
            reason = Reason.UNREADABLE
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            reason = Reason.MISSING
        return BadFile(path, reason, "not an image" if reason is Reason.NOT_AN_IMAGE else detail)


def _decode(file: Path | io.BytesIO, reading: Reading, spare: Spare | None) -> Decoded:
    with Image.open(file) as image:
        if (pixels := image.width * image.height) > reading.max_pixels:
            size = f"{image.width} x {image.height} is {pixels:,} pixels"
            raise DecompressionBombError(f"{size}, over the limit of {reading.max_pixels:,}")
        width, height = image.size
        if reading.reduce and spare is not None:
            turned = reading.apply_exif and (orientation_of(image) or 1) >= 5
            _reduce(image, spare(height, width) if turned else spare(width, height))
        image.load()
        rgb = to_rgb(image, reading.alpha_colour)
        orientation = orientation_of(image) if reading.apply_exif else 1
    if orientation in _TURNS:
        rgb = rgb.transpose(_TURNS[orientation])
        if orientation >= 5:
            width, height = height, width
    return Decoded(rgb, orientation is not None, (width, height))


def _reduce(image: PilImage, spare: float) -> None:
    """Let a JPEG file that is so many times larger than needed be decoded at less than its size."""
    for scale in (8, 4, 2):
        if spare >= MARGIN * scale:
            image.draft(image.mode, (image.width // scale, image.height // scale))
            return


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


def orientation_of(image: PilImage) -> int | None:
    """The EXIF orientation, 1..8, or None where the EXIF data are damaged; 1 is upright."""
    try:
        exif = image.getexif()
        if image.info.get("exif") and not len(exif):  # bytes that Pillow could make nothing of
            return None
        value = exif.get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF data raise whatever parsing hits; the pixels are still good
        return None
    return value if value in range(1, 9) else None


def to_rgb(image: PilImage, alpha_colour: Colour = WHITE) -> PilImage:
    """The image in mode RGB, by one rule per mode.

    16-bit grey is divided by 257 (Pillow would clip it to white), transparency is laid on
    `alpha_colour`, 1-bit becomes black and white, palettes, CMYK and grey are converted by Pillow.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        wide = np.asarray(image).astype(np.uint32)
        narrow = ((wide + 128) // 257).astype(np.uint8)
        return Image.fromarray(narrow).convert("RGB")
    if image.mode in ("I", "F"):
        kind = "32-bit integer" if image.mode == "I" else "floating point"
        advice = "save the image with 8 or 16 bits"
        raise NoPixelRangeError(f"{kind} pixels have no fixed range; {advice}")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (*alpha_colour, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    return image.convert("RGB")


def larger_than(size: int, width: int, height: int) -> float:
    """How many times larger than `size` the shorter side of a picture is: a `Spare`."""
    return min(width, height) / size


def squared(image: Pixels, size: int) -> Pixels:
    """The middle square of the (H, W, 3) image after its shorter side became `size` pixels.

    Bicubic, and antialiased where the image gets smaller.
    """
    if image.shape[:2] == (size, size):
        return image
    fitted = ImageOps.fit(Image.fromarray(image), (size, size), Resampling.BICUBIC)
    return np.asarray(fitted)


def check_size(size: int | None) -> None:
    """Raises ValueError for a side no image can get."""
    if size is not None and not 1 <= size <= 4096:
        raise ValueError(f"size should be in 1..4096 pixels, got {size}")
