"""`.npz` archives, read without unpickling and without trusting the sizes that they claim."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deepaa.files.regular import open_regular
from deepaa.files.text import listed

Array = npt.NDArray[Any]

MAX_DIRECTORY = 1 << 20
"""Bytes of an archive's list of entries, which all become objects: some ten thousand names."""
MOST_PACKED = 1032
"""A byte of zlib's unpacks to so many at most; an entry that claims more is damaged."""


class Header(NamedTuple):
    """What an array of an archive says it is."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bytes: int
    """Of its numbers."""


class _Bounded:
    """A file of which no part larger than `most` is read, until `most` is None."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.most: int | None = MAX_DIRECTORY
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, n: int = -1) -> bytes:
        if self.most is None:
            return self._file.read(n)
        data = self._file.read(self.most + 1 if n < 0 else min(n, self.most + 1))
        if len(data) > self.most:
            raise zipfile.BadZipFile("its list of entries is too long")
        return data


class Archive:
    """The arrays of an `.npz` file; whatever is wrong with it is a ValueError of one line."""

    def __init__(self, file: IO[bytes]) -> None:
        """Read the list of entries, and no array."""
        bounded: Any = _Bounded(file)
        with _one_line("not an .npz file, or a damaged one"):
            self._zip = zipfile.ZipFile(bounded)
        bounded.most = None
        entries = self._zip.infolist()
        self._entries = {e.filename.removesuffix(".npy"): e for e in entries}

    @property
    def files(self) -> list[str]:
        """Names of the arrays, which may hold anything: show them with `listed`."""
        return list(self._entries)

    def read(self, name: str, check: Callable[[Header], None]) -> Array:
        """An array.

        Args:
            check: Called before memory is taken; raises what is wrong with type, shape or size.

        Raises:
            KeyError: There is no such array.
            ValueError: The reason, without the name.
        """
        entry = self._entries[name]
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("is packed in a way that numpy does not use")
        if entry.flag_bits & 1:
            raise ValueError("is encrypted")
        if entry.file_size > MOST_PACKED * (entry.compress_size + 1):
            raise ValueError(f"claims {entry.file_size:,} bytes, more than its data can hold")
        with self._stream(entry) as stream:
            header = _header(stream, entry.file_size)
        check(header)
        with self._stream(entry) as stream, _one_line("is damaged"):
            found: Array = np.lib.format.read_array(stream, allow_pickle=False)
        return found

    def _stream(self, entry: zipfile.ZipInfo) -> IO[bytes]:
        with _one_line("is damaged"):
            return self._zip.open(entry)


def _header(stream: IO[bytes], size: int) -> Header:
    try:
        is_first = np.lib.format.read_magic(stream) == (1, 0)
        read_header = "read_array_header_1_0" if is_first else "read_array_header_2_0"
        shape, _, dtype = getattr(np.lib.format, read_header)(stream)
    # the header is a Python literal, and numpy lets tokeniser, parser and its own errors through
    except Exception as error:
        raise ValueError("its header cannot be read") from error
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are never unpickled")
    if not dtype.itemsize:
        raise ValueError("has entries of no bytes")
    found = Header(shape, dtype, size - stream.tell())
    # numpy would allocate what the header claims before it finds the data missing
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != found.bytes:
        claimed = str(shape) if len(str(shape)) <= 60 else f"{str(shape)[:56]}..."
        raise ValueError(f"its header promises shape {claimed}, which its data do not fill")
    return found


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """The archive at a path that a person gave; a pipe or a device is an OSError."""
    with os.fdopen(open_regular(path, links=True), "rb") as file:
        yield Archive(file)


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """What zip, zlib and numpy raise becomes a ValueError that begins with `what`."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # zipfile, zlib, struct and numpy each raise their own
        reason = listed([" ".join(str(error).split())])
        raise ValueError(f"{what} ({reason})" if reason else what) from error
