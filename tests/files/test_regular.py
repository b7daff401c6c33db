from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from deepaa.files import listed, open_regular, printable, read_regular, shown

pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes; at most 4 are read"):
        read_regular(path, 4)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(OSError, match="1,099,511,627,776 bytes; at most 10 are read"):
        read_regular(path, 10)


def test_a_file_that_says_nothing_of_its_size_is_limited() -> None:
    path = Path("/proc/self/maps")
    if not path.exists():
        pytest.skip("needs /proc")
    assert path.stat().st_size == 0
    with pytest.raises(OSError, match="101 bytes; at most 100 are read"):
        read_regular(path, 100)


def test_a_link_is_followed_only_where_a_person_gave_it(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "nowhere").symlink_to("missing")
    assert read_regular(tmp_path / "link", 10, links=True) == b"x"
    for name in ("link", "nowhere"):
        with pytest.raises(OSError, match="a link, expected a regular file"):
            read_regular(tmp_path / name, 10)
        with pytest.raises(OSError, match="a link, expected a regular file"):
            open_regular(tmp_path / name, os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "missing").exists()
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nowhere", 10, links=True)


@pipes
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_pipes_sockets_folders_and_devices_are_not_waited_for(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))
        for path, kind in (
            (tmp_path / "pipe", "a pipe"),
            (tmp_path / "socket", "a socket"),
            (tmp_path, "a folder"),
            (Path("/dev/null"), "a device"),
        ):
            with pytest.raises(OSError, match=f"{kind}, expected a regular file") as caught:
                open_regular(path, flags)
            assert caught.value.filename == str(path)


def test_missing_files_and_names_that_cannot_be(tmp_path: Path) -> None:
    for name in ("no", "a\0b"):
        with pytest.raises(FileNotFoundError):
            read_regular(tmp_path / name, 10)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with pytest.raises(OSError, match="a folder"):
            open_regular(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Text


def test_nothing_that_a_terminal_obeys_is_shown() -> None:
    assert printable("Grüße, 世界 ½") == "Grüße, 世界 ½"
    assert printable("a\x1b]0;title\x07b\nc\u202ed\ud800") == r"a\x1b]0;title\x07b\nc\u202ed\ud800"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert shown("a b") == "a b"
    assert shown("a\nb") == r"'a\nb'"


def test_many_long_names_are_cut() -> None:
    assert listed([]) == ""
    assert listed(["a", "b\n"]) == r"a, 'b\n'"
    assert listed([str(i) for i in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    assert len(listed(["x" * 10**6] * 20)) < 2500
