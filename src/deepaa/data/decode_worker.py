"""Image files cut to squares, a piece of a batch at a time: the work of decoding processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import Image as PilImage
from PIL.Image import Resampling
from torch import Tensor
from torch.utils.data import Dataset

from deepaa.data.epoch_order import INDEX
from deepaa.data.folder import ImageTree
from deepaa.data.image_file import BadFile, Pixels, Reading, quiet_pillow, read_image
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


def decoded_side(size: int, crop: Crop | None) -> int:
    """The side of what a worker makes for a network that sees images of side `size`."""
    return round(EVALUATION_SHORT * size) if crop == "larger" else size


class Request(NamedTuple):
    """What a worker is asked for."""

    seed: int
    epoch: int
    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """Where in the batch the rows belong; the worker does not need it."""


class Decoder(Dataset[Tensor | BadFile]):
    """What a worker knows: names as bytes in one array, since a million objects would be copied."""

    def __init__(self, tree: ImageTree, size: int, crop: Crop | None, reading: Reading) -> None:
        """`crop` is None for evaluation."""
        self.root, self.names = tree.root, np.array(tree.names())
        self.size, self.side = size, decoded_side(size, crop)
        self._crop, self._reading = crop, reading

    def path(self, index: int) -> Path:
        """Where the image lies."""
        return self.root / os.fsdecode(bytes(self.names[index]))

    def __getitem__(self, request: Request) -> Tensor | BadFile:
        """The images uint8 (N, 3, side, side) of N rows, or the first file that is bad."""
        out = np.empty((len(request.rows), 3, self.side, self.side), np.uint8)
        last, picture = -1, None
        with quiet_pillow():
            for place, row in enumerate(request.rows.tolist()):
                index = row & INDEX
                if index != last or picture is None:
                    result = read_image(self.path(index), self._reading)
                    if isinstance(result, BadFile):
                        return result  # the parent raises: errors lose parts on the way
                    last, picture = index, result.image
                out[place] = self._cut(picture, request, row).transpose(2, 0, 1)
        return torch.from_numpy(out)

    def evaluation_view(self, index: int) -> Pixels | BadFile:
        """One image (size, size, 3) as an evaluation sees it, whatever the crop."""
        result = read_image(self.path(index), self._reading)
        if isinstance(result, BadFile):
            return result
        return np.asarray(evaluation_view(result.image, self.size))

    def _cut(self, picture: PilImage, request: Request, row: int) -> Pixels:
        if self._crop == "random":
            key = sample_key(hash_int(request.seed, _CROPS), request.epoch, row)
            u = [(hash_int(key, slot) >> 40) * 2.0**-24 for slot in range(CANDIDATES + 2)]
            cut = random_box(picture, self.size, u)
        elif self._crop is None:
            cut = evaluation_view(picture, self.size)
        else:
            cut = centred(picture, self.side, self.side)
        return np.asarray(cut)


def evaluation_view(picture: PilImage, size: int) -> PilImage:
    """What an evaluation sees of a picture."""
    return centred(picture, round(EVALUATION_SHORT * size), size)


def random_box(picture: PilImage, size: int, u: list[float]) -> PilImage:
    """A box of the picture by the 12 numbers `u` in 0..1, resized to a square."""
    x, y, w, h = resized_crop_box(u, picture.height, picture.width, SCALE, RATIO)
    return picture.crop((x, y, x + w, y + h)).resize((size, size), Resampling.BICUBIC)


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
