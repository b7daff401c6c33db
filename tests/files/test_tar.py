"""Tar archives: files and their places, and every kind of archive that is refused."""

import gzip
import io
import os
import tarfile

import pytest
from packed import write_tar

from deepaa.files import tar as reading
from deepaa.files.tar import open_tar, tar_members

CONTENT = {"a/1.png": b"one", "a/1.cls": b"2" * 700, "b.txt": b""}


def members(path):
    with open_tar(path) as file:
        return list(tar_members(file))


def contents(path):
    with path.open("rb") as file:
        return {m.name: (file.seek(m.offset), file.read(m.size))[1] for m in members(path)}


def special(path, **attributes):
    """An archive of one member with these attributes."""
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("x.png")
        for name, value in attributes.items():
            setattr(member, name, value)
        tar.addfile(member)
    return path


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_files_lie_where_python_finds_them(tmp_path, kind):
    names = {**CONTENT, "ü 图.png": b"x" * 512}
    if kind != tarfile.USTAR_FORMAT:
        names["y" * 300 + "/" + "z" * 200 + ".png"] = b"long"
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=kind) as tar:
        tar.addfile(special_folder("folder"))
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1.5
            tar.addfile(member, io.BytesIO(content))
    assert contents(path) == names
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isreg()]
    assert [tuple(member) for member in members(path)] == expected


def special_folder(name):
    folder = tarfile.TarInfo(name)
    folder.type = tarfile.DIRTYPE
    return folder


def test_joined_archives_are_read_on(tmp_path):
    first = write_tar(tmp_path / "1.tar", {"1.png": b"a"})
    second = write_tar(tmp_path / "2.tar", {"2.png": b"b"})
    both = tmp_path / "both.tar"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    assert contents(both) == {"1.png": b"a", "2.png": b"b"}


def test_empty_blocks_do_not_go_on_for_ever(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"1.png": b"a"})
    with path.open("ab") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    assert list(contents(path)) == ["1.png"]


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "x.png is a link"),
        ({"type": tarfile.LNKTYPE, "linkname": "y.png"}, "x.png is a link"),
        ({"type": tarfile.FIFOTYPE}, "x.png is no regular file"),
        ({"type": tarfile.CHRTYPE}, "x.png is no regular file"),
        ({"name": "../x.png"}, r"\.\./x.png leads out of the archive"),
        ({"name": "a/../../x.png"}, "leads out of the archive"),
        ({"name": "/etc/x.png"}, "/etc/x.png leads out of the archive"),
        ({"name": "n" * 1100 + ".png"}, "a name of 1,104 characters"),
        ({"pax_headers": {"comment": "c" * 70_000}}, "a header of 70,0.. bytes"),
        ({"pax_headers": {"GNU.sparse.major": "1"}}, "sparse"),
    ],
)
def test_what_is_no_plain_file_is_refused(tmp_path, attributes, why):
    with pytest.raises(ValueError, match=why):
        members(special(tmp_path / "a.tar", **attributes))


def test_an_archive_that_is_cut_short_is_refused_wherever_it_is_cut(tmp_path):
    whole = write_tar(tmp_path / "a.tar", CONTENT).read_bytes()
    end = 512 * (1 + 1 + 1 + 2 + 1)  # the last header
    for length in (*range(1, end, 97), 512, 1024, end):
        path = tmp_path / "cut.tar"
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="cut short"):
            members(path)


def test_a_damaged_header_is_no_end(tmp_path):
    data = bytearray(write_tar(tmp_path / "a.tar", CONTENT).read_bytes())
    data[1024 + 3] ^= 1  # of the second header
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(ValueError, match="damaged: no header at byte 1,024"):
        members(tmp_path / "a.tar")


def test_other_files_are_no_archives(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"text, and no archive" * 50)
    with pytest.raises(ValueError, match="not a tar archive"):
        members(tmp_path / "a.tar")
    packed = write_tar(tmp_path / "b.tar", CONTENT)
    packed.write_bytes(gzip.compress(os.urandom(2000)))
    with pytest.raises(ValueError, match="packed with gzip; unpack it"):
        members(packed)
    os.mkfifo(tmp_path / "c.tar")
    with pytest.raises(OSError, match="a pipe, expected a regular file"):
        members(tmp_path / "c.tar")


def test_the_limit_of_empty_blocks_is_what_ends_a_long_archive(tmp_path, monkeypatch):
    first = write_tar(tmp_path / "1.tar", {"1.png": b"a"})
    first.write_bytes(2 * first.read_bytes())
    assert len(members(first)) == 2
    monkeypatch.setattr(reading, "MOST_EMPTY", 1)
    assert len(members(first)) == 1
