"""What a worker makes of an image file: the square of it that belongs into a batch."""

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
from deepaa.data.splits import INDEX
from deepaa.ops import CANDIDATES, hash_int, resized_crop_box, sample_key

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
    """Where in the batch the rows belong; the worker does not need it."""


class Piece(NamedTuple):
    """What a request gives."""

    images: Tensor
    """uint8 (N, 3, side, side)."""
    seconds: float
    """That a worker took for them."""


class Decoder(Dataset[Piece | BadFile]):
    """Decodes and cuts the image files of a source; every worker has a copy."""

    def __init__(self, tree: ImageTree, size: int, crop: Crop | None, reading: Reading) -> None:
        """`crop` is None for evaluation."""
        self.files = CompactFiles(tree)
        self.size, self._short = size, round(EVALUATION_SHORT * size)
        self.side = self._short if crop == "larger" else size
        self._crop, self._reading = crop, reading

    def __getitem__(self, request: Request) -> Piece | BadFile:
        """The images of a request's rows, or the first file that is bad."""
        began = time.perf_counter()
        out = np.empty((len(request.rows), 3, self.side, self.side), np.uint8)
        last, decoded = -1, None  # copies of an image are neighbours
        by_box = self._reading.reduce and self._crop == "random"  # boxes need other scales
        with quiet_pillow():
            for place, row in enumerate(request.rows.tolist()):
                index = row & INDEX
                if index != last or decoded is None or by_box:
                    spare = partial(self._spare, request, row)
                    result = read_image(self.files.file(index), self._reading, spare)
                    if isinstance(result, BadFile):
                        return result  # the parent raises: errors lose parts on the way
                    last, decoded = index, result
                out[place] = np.asarray(self._cut(decoded, request, row)).transpose(2, 0, 1)
        return Piece(torch.from_numpy(out), time.perf_counter() - began)

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

    def _cut(self, decoded: Decoded, request: Request, row: int) -> PilImage:
        """The square of a picture that belongs into a row."""
        picture = decoded.image
        if self._crop is None:
            return centred(picture, self._short, self.size)
        if self._crop != "random":
            return centred(picture, self.side, self.side)
        x, y, w, h = random_box(request, row, *decoded.size)
        left, top, right, bottom = x, y, x + w, y + h
        if picture.size != decoded.size:  # the same part of a picture of fewer pixels
            across, down = picture.width / decoded.size[0], picture.height / decoded.size[1]
            left, right = round(left * across), round(right * across)
            top, bottom = round(top * down), round(bottom * down)
        box = picture.crop((left, top, right, bottom))
        return box.resize((self.size, self.size), Resampling.BICUBIC)


def random_box(request: Request, row: int, width: int, height: int) -> tuple[int, int, int, int]:
    """The (left, top, width, height) that a row gets of a picture of this size."""
    key = sample_key(hash_int(request.seed, _CROPS), request.epoch, row)
    u = [(hash_int(key, slot) >> 40) * 2.0**-24 for slot in range(CANDIDATES + 2)]
    return resized_crop_box(u, height, width, SCALE, RATIO)


def centred(picture: PilImage, short: int, size: int) -> PilImage:
    """The middle square of side `size` after the shorter side became `short` pixels."""
    w, h = picture.size
    if max(w, h) > LONGEST * min(w, h):  # a line of pixels would become an image of gigabytes
        most = LONGEST * min(w, h)
        x, y = max(0, w - most) // 2, max(0, h - most) // 2
        picture = picture.crop((x, y, x + min(w, most), y + min(h, most)))
        w, h = picture.size
    longer = int(short * max(w, h) / min(w, h))
    target = (short, longer) if w <= h else (longer, short)
    if target != (w, h):
        picture = picture.resize(target, Resampling.BICUBIC)
    x, y = round((target[0] - size) / 2), round((target[1] - size) / 2)
    return picture.crop((x, y, x + size, y + size))
