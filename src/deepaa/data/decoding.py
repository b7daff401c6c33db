"""What a worker makes of an image file: the square of it that belongs into a batch.

Or, for a device that decodes JPEG files itself, their bytes and how they are to be cut.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import Image as PilImage, Resampling
from torch import Tensor
from torch.utils.data import Dataset

from deepaa.data.image_file import (
    BadFile,
    Decoded,
    Pixels,
    Reading,
    larger_than,
    quiet_pillow,
    read_image,
)
from deepaa.data.image_tree import CompactFiles, ImageTree
from deepaa.data.jpegs import Jpeg, Jpegs, Square, jpeg_of, stored_picture
from deepaa.data.splits import INDEX
from deepaa.ops import CANDIDATES, Box, hash_int, resized_crop_box, sample_key

Crop = Literal["random", "centre", "larger"]
"""What a training picture is cut to: a random box of it, its middle square, or that with more
pixels than the network sees."""
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Areas and shapes of random boxes: those of Inception's preprocessing."""
EVALUATION_SHORT = 256 / 224
"""For evaluation the shorter side is resized to this many times the size, then the middle cut.
A "larger" square has all of it."""
LONGEST = 4
"""Pictures longer than so many times their width lose their ends before they are resized."""
_CROPS = 0x63726F70
"""Sets the keys of crops apart from those of policies, which have the same seed."""


class Request(NamedTuple):
    """One piece of a batch, which a worker decodes."""

    seed: int
    epoch: int
    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """Where in the batch the rows belong."""


class Piece(NamedTuple):
    """What a request gives."""

    images: Tensor
    """uint8 (N, 3, side, side): those that the worker decoded."""
    places: Tensor
    """int64 (N,): where in the batch they belong."""
    jpegs: Jpegs | None
    """The others, which the device decodes."""
    total: int
    """Images of both kinds."""
    seconds: float
    """That a worker took for them."""


class Decoder(Dataset[Piece | BadFile]):
    """Decodes and cuts the image files of a source; every worker has a copy."""

    def __init__(
        self,
        tree: ImageTree,
        size: int,
        crop: Crop | None,
        reading: Reading,
        *,
        leaves_jpegs: bool = False,
    ) -> None:
        """Without a crop, for evaluation; or leaving JPEG files for the device to decode."""
        self.files = CompactFiles(tree)
        self.size, self._short = size, round(EVALUATION_SHORT * size)
        self.side = self._short if crop == "larger" else size
        self._crop, self._reading, self._leaves_jpegs = crop, reading, leaves_jpegs

    def __getitem__(self, request: Request) -> Piece | BadFile:
        """The images of a request's rows, or the first file that is bad."""
        began = time.perf_counter()
        images: list[Pixels] = []
        places: list[int] = []
        files: list[Jpeg] = []
        indices: list[int] = []
        squares: list[Square] = []
        found: Jpeg | Decoded | BadFile | None = None
        last = -1  # copies of an image are neighbours
        by_box = self._reading.reduce and self._crop == "random"  # boxes need other scales
        with quiet_pillow():
            for place, row in zip(request.places.tolist(), request.rows.tolist(), strict=True):
                index = row & INDEX
                if index != last or found is None or by_box:
                    found, last = self._read(request, row), index
                    if isinstance(found, Jpeg):
                        files.append(found)
                        indices.append(index)
                if isinstance(found, BadFile):
                    return found  # the parent raises: errors lose parts on the way
                if isinstance(found, Jpeg):
                    box = self._box(request, row, *found.upright)
                    squares.append(Square(len(files) - 1, place, box))
                else:
                    square = self._cut(found, request, row)
                    images.append(np.asarray(square).transpose(2, 0, 1))
                    places.append(place)
        stacked = np.stack(images) if images else np.empty((0, 3, self.side, self.side), np.uint8)
        jpegs = Jpegs.of(files, indices, squares, self.side) if files else None
        where, seconds = torch.tensor(places, dtype=torch.int64), time.perf_counter() - began
        return Piece(torch.from_numpy(stacked), where, jpegs, len(request.rows), seconds)

    def _read(self, request: Request, row: int) -> Jpeg | Decoded | BadFile:
        """The file of a row, decoded unless the device does it."""
        file = self.files.file(row & INDEX)
        jpeg = jpeg_of(file, self._reading) if self._leaves_jpegs else None
        return jpeg or read_image(file, self._reading, partial(self._spare, request, row))

    def stored(self, index: int) -> Decoded | BadFile:
        """A file that was left for the device, as it is stored: Pillow's word on it."""
        with quiet_pillow():
            return stored_picture(self.files.file(index), self._reading)

    def evaluation_view(self, index: int) -> Pixels | BadFile:
        """One image (3, size, size) as an evaluation sees it, whatever the crop."""
        spare = partial(larger_than, self._short)
        result = read_image(self.files.file(index), self._reading, spare)
        if isinstance(result, BadFile):
            return result
        return np.asarray(centred(result.image, self._short, self.size)).transpose(2, 0, 1)

    def _spare(self, request: Request, row: int, width: int, height: int) -> float:
        """How many times larger than needed a picture of this size is."""
        if self._crop == "random":
            _, _, width, height = random_box(request, row, width, height)
        return larger_than(self._short if self._crop is None else self.side, width, height)

    def _box(self, request: Request, row: int, width: int, height: int) -> Box:
        """What of an upright picture of this size belongs into a row, and how it is resized."""
        if self._crop == "random":
            return Box(*random_box(request, row, width, height), self.size, self.size)
        if self._crop is None:
            return centre_box(width, height, self._short, self.size)
        return centre_box(width, height, self.side, self.side)

    def _cut(self, decoded: Decoded, request: Request, row: int) -> PilImage:
        """The square of a picture that belongs into a row."""
        picture = decoded.image
        if picture.size == decoded.size or self._crop != "random":
            return boxed(picture, self._box(request, row, *picture.size), self.side)
        x, y, w, h, *target = self._box(request, row, *decoded.size)
        # the same part of a picture of fewer pixels
        across, down = picture.width / decoded.size[0], picture.height / decoded.size[1]
        left, right = round(x * across), round((x + w) * across)
        top, bottom = round(y * down), round((y + h) * down)
        return boxed(picture, Box(left, top, right - left, bottom - top, *target), self.side)


def random_box(request: Request, row: int, width: int, height: int) -> tuple[int, int, int, int]:
    """The (left, top, width, height) that a row gets of a picture of this size."""
    key = sample_key(hash_int(request.seed, _CROPS), request.epoch, row)
    u = [(hash_int(key, slot) >> 40) * 2.0**-24 for slot in range(CANDIDATES + 2)]
    return resized_crop_box(u, height, width, SCALE, RATIO)


def centre_box(width: int, height: int, short: int, size: int) -> Box:
    """The middle square of side `size` after the shorter side became `short` pixels."""
    left, top = 0, 0
    if max(width, height) > LONGEST * min(width, height):
        # a line of pixels would become an image of gigabytes
        most = LONGEST * min(width, height)
        left, top = max(0, width - most) // 2, max(0, height - most) // 2
        width, height = min(width, most), min(height, most)
    longer = int(short * max(width, height) / min(width, height))
    target = (short, longer) if width <= height else (longer, short)
    x, y = (round((length - size) / 2) for length in target)
    return Box(left, top, width, height, *target, x, y)


def boxed(picture: PilImage, box: Box, side: int) -> PilImage:
    """The square of this side that a box of a picture becomes, resized by Pillow."""
    left, top, width, height, target_width, target_height, x, y = box
    if (width, height) != picture.size:
        picture = picture.crop((left, top, left + width, top + height))
    if picture.size != (target_width, target_height):
        picture = picture.resize((target_width, target_height), Resampling.BICUBIC)
    return picture.crop((x, y, x + side, y + side))


def centred(picture: PilImage, short: int, size: int) -> PilImage:
    """The middle square of side `size` after the shorter side became `short` pixels."""
    return boxed(picture, centre_box(*picture.size, short, size), size)
