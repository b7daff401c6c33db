"""Tar archives: what is in them and where, without unpacking anything."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from deepaa.files.regular import open_regular
from deepaa.files.text import printable

BLOCK = 512
LONGEST_NAME = 1024
"""Bytes of a member's name, at most."""
LONGEST_HEADER = 1 << 16
"""Bytes of what a header says beside its block, at most: names and times, not contents."""
MOST_EMPTY = 2048
"""Empty blocks that may follow each other: archives end with a few."""
_FILES, _FOLDER, _LINKS = b"0\07", b"5", b"12"
_NAME, _ATTRIBUTES, _FOR_ALL = b"L", b"xX", b"g"
"""Kinds of members, a letter each: what says the name of the next one, or more of it, or of all."""
_FIELDS = struct.Struct("100s 24x 12s 12x 8s c 100x 6s 82x 155s 12x")
"""Name, size, checksum, kind, sign of the format and first part of the name, of a block."""
_EMPTY = bytes(BLOCK)


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    """With slashes; inside of the folder that an archive is unpacked to."""
    offset: int
    size: int


class _Header(NamedTuple):
    name: str
    kind: bytes
    size: int


def tar_members(file: IO[bytes]) -> Iterator[Member]:
    """The files of an open archive in their order; ValueError for what is wrong with it.

    Folders are passed over. Links, devices, names that lead out, and archives that are cut short
    are refused. Archives that were joined are read one after the other.
    """
    end = os.fstat(file.fileno()).st_size
    said: dict[str, str] = {}
    place, empty = 0, 0
    while (block := _block(file, place, end)) is not None:
        place += BLOCK
        if block == _EMPTY:
            if (empty := empty + 1) > MOST_EMPTY:
                return
            continue
        header, empty = _header(block, place - BLOCK), 0
        if header.size < 0:
            raise ValueError(f"damaged: {_shown(header.name)} has no size")
        if place + header.size > end:
            name = said.get("path", header.name)
            raise ValueError(f"cut short: {_shown(name)} should have {header.size:,} bytes")
        size = header.size
        if header.kind in _NAME + _ATTRIBUTES + _FOR_ALL:
            said |= _extended(file, header, place)
        elif header.kind == _FOLDER:
            size, said = 0, {}
        else:
            name, size = said.pop("path", header.name), _size(said, header)
            _check(name, header)
            if place + size > end:
                raise ValueError(f"cut short: {_shown(name)} should have {size:,} bytes")
            yield Member(name.removeprefix("./"), place, size)
            said = {}
        place += -(-size // BLOCK) * BLOCK
    if not empty:
        raise ValueError("cut short: it has no end")


def open_tar(path: Path) -> IO[bytes]:
    """The archive at a path that a person gave; a pipe or a device is an OSError."""
    return os.fdopen(open_regular(path, links=True), "rb")


def _block(file: IO[bytes], place: int, end: int) -> bytes | None:
    """The block at a place; None at the end of the file."""
    if place >= end:
        return None
    file.seek(place)
    block = file.read(BLOCK)
    if len(block) < BLOCK:
        raise ValueError("cut short: it ends within a header")
    return block


def _header(block: bytes, place: int) -> _Header:
    name, size, checksum, kind, sign, before = _FIELDS.unpack(block)
    if _number(checksum) != sum(block) - sum(checksum) + 8 * ord(" "):
        if place:
            raise ValueError(f"damaged: no header at byte {place:,}")
        what = "is packed with gzip; unpack it with gunzip" if block[:2] == b"\x1f\x8b" else ""
        raise ValueError(what or "not a tar archive")
    text = _text(name)
    if sign == b"ustar\0" and before[0]:
        text = f"{_text(before)}/{text}"
    if kind == b"\0" and text.endswith("/"):  # as the oldest archives have folders
        kind = _FOLDER
    return _Header(text, kind, _number(size))


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    """A number in octal digits, or in bytes where it is large; -1 where it is none."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    if digits.isdigit() and not digits.strip(b"01234567"):
        return int(digits, 8)
    return -1 if digits else 0


def _extended(file: IO[bytes], header: _Header, place: int) -> dict[str, str]:
    """What a header says of the next file: its name, if it is long, and its size, if large."""
    if header.size > LONGEST_HEADER:
        raise ValueError(f"a header of {header.size:,} bytes; at most {LONGEST_HEADER:,} are read")
    file.seek(place)
    data = file.read(header.size)
    if header.kind == _NAME:
        return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if header.kind == _FOR_ALL:  # comments and times
        return {}
    said = {}
    while data and data[0]:
        length, _, _ = data.partition(b" ")
        if not length.isdigit() or len(length) > 6 or not 4 < int(length) <= len(data):
            raise ValueError(f"damaged: a header at byte {place:,} that cannot be read")
        record, data = data[len(length) + 1 : int(length) - 1], data[int(length) :]
        key, _, value = record.partition(b"=")
        said[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
    if any(key.startswith("GNU.sparse") for key in said):
        raise ValueError("holds a sparse file, which is not read")
    return {key: said[key] for key in ("path", "size") if key in said}


def _size(said: dict[str, str], header: _Header) -> int:
    if "size" not in said:
        return header.size
    if not said["size"].isdecimal() or len(said["size"]) > 15:
        raise ValueError(f"damaged: {_shown(header.name)} has no size")
    return int(said["size"])


def _check(name: str, header: _Header) -> None:
    """Refuse what is no file inside of the archive's folder."""
    if header.kind not in _FILES:
        kind = "a link" if header.kind in _LINKS else "no regular file"
        raise ValueError(f"{_shown(name)} is {kind}; pack the files themselves")
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise ValueError(f"a name of {len(name):,} characters: {_shown(name)}")
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise ValueError(f"{_shown(name)} leads out of the archive")


def _shown(name: str) -> str:
    return printable(name[:200])
