"""JPEG files that go to the device as they are, and are decoded and cut there.

A worker reads their bytes and headers and computes how each is cut; torchvision decodes them, on
CUDA with the GPU's own decoder. That has other rounding than Pillow's, so pixels differ by a few
levels; on a CPU the bytes are the same. All other kinds of files are decoded by the worker.
"""

from __future__ import annotations

import io
import logging
import math
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from deepaa.data.image_file import (
    BadFile,
    Decoded,
    Packed,
    Reading,
    Reason,
    orientation_of,
    read_image,
)
from deepaa.ops import Box, BoxTaps, box_taps, resize_boxes, triton_problem

_LOGGER = logging.getLogger(__name__)

START, END = b"\xff\xd8\xff", b"\xff\xd9"
"""The first and the last bytes of a whole JPEG file."""
MOST_BYTES = 1 << 18
"""Of a file that a worker hands over: hundreds of them wait in shared memory at a time."""
MOST_PIXELS = 1 << 26
"""Decoded at a time: 200 MB on the device."""
UPRIGHT = 1
"""The orientation of a picture that needs no turning."""


class Jpeg(NamedTuple):
    """A file that the device can decode."""

    content: bytes
    width: int
    """As it is stored."""
    height: int
    orientation: int
    """As EXIF counts them, from 1, which is upright."""

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height as one should see it."""
        turned = self.orientation >= 5
        return (self.height, self.width) if turned else (self.width, self.height)


def jpeg_of(file: Path | Packed, reading: Reading) -> Jpeg | None:
    """The file, if it is a whole JPEG of three colours; what is wrong with others Pillow tells.

    Large files are none either: a worker makes a small square of them.
    """
    try:
        content = _content(file)
        if not (content.startswith(START) and content.endswith(END)):
            return None
        with Image.open(io.BytesIO(content)) as image:
            usual = image.format == "JPEG" and image.mode == "RGB"
            usual = usual and image.info.get("adobe_transform", 1) == 1
            if not usual or image.width * image.height > reading.max_pixels:
                return None
            orientation = orientation_of(image) if reading.apply_exif else UPRIGHT
            if orientation is None:
                return None
            return Jpeg(content, *image.size, orientation)
    except MemoryError:  # says something about the machine, not about the file
        raise
    except Exception:  # damaged files raise whatever Pillow's parsing happens to hit
        return None


def _content(file: Path | Packed) -> bytes:
    """The bytes of a file, or none where it is too large or nothing to read."""
    if isinstance(file, Packed):
        content = file.content()
        return content if len(content) <= MOST_BYTES else b""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        return b""
    with file.open("rb") as opened:
        start = opened.read(len(START))
        return start + opened.read() if start == START else b""


class Square(NamedTuple):
    """A square that is cut from a file."""

    file: int
    """Its place among the files of the request."""
    place: int
    """Of the square in the batch."""
    box: Box


class _Arrays(NamedTuple):
    """What a worker says of the files of a request, and of the squares that they give."""

    content: npt.NDArray[np.uint8]
    """The bytes of the files, one after the other."""
    lengths: npt.NDArray[np.int64]
    """How many bytes each has."""
    sizes: npt.NDArray[np.int64]
    """(K, 2): the width and the height of each as it is stored."""
    indices: npt.NDArray[np.int64]
    """The number of each file in its source."""
    files: npt.NDArray[np.int64]
    """The file of each square; they stand in the order of the files."""
    places: npt.NDArray[np.int64]
    """Of each square in the batch."""
    facts: npt.NDArray[np.int64]
    across: npt.NDArray[np.int32]
    down: npt.NDArray[np.int32]
    """These three are the `BoxTaps` of the squares."""


class Jpegs(NamedTuple):
    """The JPEG files of a request, in one tensor that workers hand over without a copy."""

    memory: Tensor
    """uint8: the arrays one after the other, each from a multiple of 8 bytes on."""
    layout: tuple[tuple[str, tuple[int, ...]], ...]
    """The type and the shape of each."""

    @classmethod
    def of(
        cls, files: Sequence[Jpeg], indices: Sequence[int], squares: Sequence[Square], side: int
    ) -> Jpegs:
        """The files with their numbers in the source, and the squares that are cut from them."""
        shapes = [(f.width, f.height, f.orientation) for f in (files[s.file] for s in squares)]

        def longs(numbers: Iterable[int]) -> npt.NDArray[np.int64]:
            return np.array([*numbers], np.int64)

        arrays: Sequence[npt.NDArray[Any]] = _Arrays(
            np.frombuffer(b"".join(file.content for file in files), np.uint8),
            longs(len(file.content) for file in files),
            np.array([(file.width, file.height) for file in files], np.int64).reshape(-1, 2),
            longs(indices),
            longs(square.file for square in squares),
            longs(square.place for square in squares),
            *box_taps([square.box for square in squares], side, shapes),
        )
        memory = np.empty(sum(_room(array) for array in arrays), np.uint8)
        start = 0
        for array in arrays:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            memory[start : start + len(flat)] = flat
            start += _room(array)
        layout = tuple((array.dtype.str, array.shape) for array in arrays)
        return cls(torch.from_numpy(memory), layout)

    def arrays(self) -> _Arrays:
        """The arrays, which share the memory."""
        memory, start, found = self.memory.numpy(), 0, []
        for kind, shape in self.layout:
            length = math.prod(shape) * np.dtype(kind).itemsize
            found.append(memory[start : start + length].view(kind).reshape(shape))
            start += _room(found[-1])
        return _Arrays(*found)

    def parts(self) -> Iterator[_Part]:
        """Its files in parts of at most `MOST_PIXELS`, or of one file."""
        arrays, first = self.arrays(), 0
        while first < len(arrays.lengths):
            total = np.cumsum(arrays.sizes[first:].prod(1))
            last = first + max(1, int(np.searchsorted(total, MOST_PIXELS, side="right")))
            yield _Part(arrays, first, last)
            first = last


def _room(array: npt.NDArray[Any]) -> int:
    """The bytes that an array takes, with a gap behind it, so that the next one is aligned."""
    return -(-array.nbytes // 8) * 8


class DeviceDecoder:
    """Decodes JPEG files on a device, and cuts them."""

    def __init__(
        self,
        device: torch.device,
        read: Callable[[int], Decoded | BadFile],
        path: Callable[[int], Path],
    ) -> None:
        """`read` and `path` tell of a file by its number, if the device's decoder refuses it."""
        self.device, self._read, self._path = device, read, path
        self._refused: set[int] = set()
        self._cut: torch.cuda.Event | None = None

    def squares(self, batch: Sequence[Jpegs]) -> Iterator[tuple[Tensor, Tensor]]:
        """Places (N,) in the batch and, on the device, their squares uint8 (N, 3, side, side).

        Raises `BadFileError` for a file that cannot be decoded.
        """
        triton = self.device.type == "cuda" and triton_problem(self.device) is None  # tried once
        for group in _groups([part for jpegs in batch for part in jpegs.parts()]):
            pictures = self._pictures([file for part in group for file in part.files()])
            for part in group:
                mine, pictures = pictures[: part.files_in_it], pictures[part.files_in_it :]
                squares = resize_boxes(mine, part.which, part.taps, triton=triton)
                yield torch.from_numpy(part.arrays.places[part.chosen]), squares
            if self.device.type == "cuda":
                self._cut = torch.cuda.current_stream(self.device).record_event()

    def _pictures(self, files: Sequence[_File]) -> list[Tensor]:
        """The pictures as they are stored."""
        if self._cut is not None:  # the decoder's own stream writes where pictures were before
            self._cut.synchronize()
        usual = [file for file in files if file.number not in self._refused]
        try:
            made = iter(_decoded([file.content for file in usual], self.device) if usual else [])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # does not say of which file; the others keep their pixels
            made = iter([self._alone(file) for file in usual])
        pictures = [
            self._by_pillow(file) if file.number in self._refused else next(made) for file in files
        ]
        for file, picture in zip(files, pictures, strict=True):
            if picture.shape != file.shape:  # the squares are computed for another one
                bad = self._bad(file, "its picture has another size than its header says")
                raise BadFileError(bad)
        return pictures

    def _alone(self, file: _File) -> Tensor:
        """A picture whose batch was refused; one that is refused itself goes to Pillow."""
        try:
            return _decoded([file.content], self.device)[0]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not self._refused:
                why = (str(error) or type(error).__name__).splitlines()[0]
                _LOGGER.warning("Pillow decodes what torchvision cannot, for one: %s", why)
            self._refused.add(file.number)
            return torch.empty(0)

    def _by_pillow(self, file: _File) -> Tensor:
        found = self._read(file.number)
        if isinstance(found, BadFile):
            raise BadFileError(found)
        pixels = torch.from_numpy(np.asarray(found.image).transpose(2, 0, 1).copy())
        return pixels.to(self.device)

    def _bad(self, file: _File, detail: str) -> BadFile:
        return BadFile(self._path(file.number), Reason.DAMAGED, detail)


def _decoded(contents: list[Tensor], device: torch.device) -> list[Tensor]:
    """uint8 (3, H, W) each, as they are stored; RuntimeError if any of them is no picture."""
    from torchvision.io import ImageReadMode, decode_jpeg

    _expect_move()
    return [*decode_jpeg(contents, ImageReadMode.RGB, device=device)]


@cache
def _expect_move() -> None:
    """Leave out the warning that torchvision's decoders move: without them Pillow decodes."""
    told = "The image decoding and encoding capabilities of TorchVision"
    warnings.filterwarnings("ignore", told, DeprecationWarning)


class _File(NamedTuple):
    """A file that is decoded."""

    number: int
    """In the source."""
    content: Tensor
    shape: tuple[int, int, int]
    """Of the picture, as the worker has read it."""


class _Part(NamedTuple):
    """Some files of a request that are decoded together."""

    arrays: _Arrays
    first: int
    last: int

    @property
    def files_in_it(self) -> int:
        return self.last - self.first

    @property
    def pixels(self) -> int:
        return int(self.arrays.sizes[self.first : self.last].prod(1).sum())

    @property
    def chosen(self) -> slice:
        """The squares that come from them, which stand in the order of the files."""
        return slice(*np.searchsorted(self.arrays.files, (self.first, self.last)).tolist())

    @property
    def which(self) -> list[int]:
        """The file of each square, counted in this part."""
        found: list[int] = (self.arrays.files[self.chosen] - self.first).tolist()
        return found

    @property
    def taps(self) -> BoxTaps:
        arrays, chosen = self.arrays, self.chosen
        return BoxTaps(arrays.facts[chosen], arrays.across[chosen], arrays.down[chosen])

    def files(self) -> Iterator[_File]:
        """Each of them."""
        content, ends = torch.from_numpy(self.arrays.content), np.cumsum(self.arrays.lengths)
        for place in range(self.first, self.last):
            end, (width, height) = int(ends[place]), self.arrays.sizes[place].tolist()
            start = end - int(self.arrays.lengths[place])
            index = int(self.arrays.indices[place])
            yield _File(index, content[start:end], (3, height, width))


def _groups(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Neighbouring parts, as many as have `MOST_PIXELS` together."""
    group: list[_Part] = []
    for part in parts:
        if group and sum(each.pixels for each in group) + part.pixels > MOST_PIXELS:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


class BadFileError(Exception):
    """A file that the device was to decode gives no image."""

    def __init__(self, file: BadFile) -> None:
        """With the file and the reason."""
        super().__init__(file.detail)
        self.file = file


def stored_picture(file: Path | Packed, reading: Reading) -> Decoded | BadFile:
    """A file as it is stored, not turned upright, decoded by Pillow."""
    return read_image(file, replace(reading, apply_exif=False))


@cache
def device_problem(device: torch.device) -> str | None:
    """Why torchvision cannot decode JPEG files on this device; None where it can."""
    picture = io.BytesIO()
    Image.new("RGB", (16, 16)).save(picture, "JPEG")
    try:
        _decoded([torch.frombuffer(bytearray(picture.getvalue()), dtype=torch.uint8)], device)
    except (ImportError, AttributeError, RuntimeError) as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    return None
