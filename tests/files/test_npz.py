from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepaa.files import Archive, Header, open_archive


def packed(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def everything(header: Header) -> None:
    """Any array is taken."""


def entry(data: bytes, how: int = zipfile.ZIP_STORED) -> bytes:
    """An archive with one entry."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", how) as out:
        out.writestr("a.npy", data)
    return stream.getvalue()


def npy(shape: str, descr: str = "<f4", data: bytes = b"") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def read(data: bytes) -> Any:
    return Archive(io.BytesIO(data)).read("a", everything)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(3),
        np.zeros((0, 5)),
        np.array(["a", "bcd"]),
        np.array([1, 2], ">i8"),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_of_numpy(array: Any, save: Any, tmp_path: Path) -> None:
    save(tmp_path / "x.npz", a=array, b=array)
    with open_archive(tmp_path / "x.npz") as archive:
        assert archive.files == ["a", "b"]
        found = archive.read("a", everything)
        with np.load(tmp_path / "x.npz") as known:
            np.testing.assert_array_equal(found, known["a"])
            assert found.dtype == known["a"].dtype
        with pytest.raises(KeyError):
            archive.read("c", everything)


def test_a_header_is_checked_before_memory_is_taken() -> None:
    seen = []

    def refuse(header: Header) -> None:
        seen.append(header)
        raise ValueError("too large")

    with pytest.raises(ValueError, match=r"^too large$"):
        Archive(io.BytesIO(packed(a=np.zeros((5, 2), np.int16)))).read("a", refuse)
    assert seen == [Header((5, 2), np.dtype(np.int16), 20)]


WRONG = {
    "pickle": (packed(a=np.array([print], object)), "Python objects, which are never unpickled"),
    "short": (entry(npy("(9,)", data=b"1234")), r"promises shape \(9,\), which its data do not"),
    "huge": (entry(npy("(10**6,)")), "its header cannot be read"),
    "huge_number": (entry(npy("(1000000000000,)")), "which its data do not fill"),
    "negative": (entry(npy("(-2, -2)", data=b"0" * 16)), "which its data do not fill"),
    "no_bytes": (entry(npy("(1000000000,)", "<U0")), "has entries of no bytes"),
    "no_magic": (entry(b"hello"), "its header cannot be read"),
    "empty": (entry(b""), "its header cannot be read"),
    "call": (entry(npy("(exit(),)")), "its header cannot be read"),
    "packing": (entry(npy("(0,)"), zipfile.ZIP_BZIP2), "packed in a way that numpy does not use"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays(name: str) -> None:
    data, message = WRONG[name]
    with pytest.raises(ValueError, match=message) as caught:
        read(data)
    assert "\n" not in str(caught.value)


def test_a_claim_that_deflate_cannot_keep_is_refused() -> None:
    data = bytearray(entry(npy("(250000000,)")))
    place = data.index(b"PK\x01\x02") + 24
    data[place : place + 4] = struct.pack("<I", 10**9)
    with pytest.raises(ValueError, match="claims 1,000,000,000 bytes, more than its data can hold"):
        read(bytes(data))


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"PK\x03\x04" * 9, packed(a=[1])[:-30]])
def test_no_archive(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not an \.npz file, or a damaged one"):
        Archive(io.BytesIO(data))


def test_a_list_of_very_many_entries_is_refused_before_it_is_read() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as out:
        for i in range(30_000):
            out.writestr(f"{i:x}", b"")
    with pytest.raises(ValueError, match="its list of entries is too long"):
        Archive(stream)


def test_a_damaged_entry_is_one_line() -> None:
    data = bytearray(packed(a=np.arange(1000)))
    data[100] ^= 255
    with pytest.raises(ValueError, match=r"is damaged|cannot be read") as caught:
        read(bytes(data))
    assert "\n" not in str(caught.value)


def test_an_encrypted_entry() -> None:
    data = bytearray(packed(a=[1]))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    with pytest.raises(ValueError, match="is encrypted"):
        read(bytes(data))
