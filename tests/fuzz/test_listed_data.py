"""Mutants of tables and shards: each is read, or refused in one line."""

from __future__ import annotations

import csv
import io
import logging
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing import EVIL, flipped, run_round
from packed import png

from deepaa.data import DataSpec, load_images
from deepaa.files import tar

TABLES, SHARDS = 1_500, 1_500


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


# Tables


def odd_cell(random_: random.Random, cell: str) -> str:
    return random_.choice(
        (
            *("", "  ", EVIL, "nan", "-1", "1e400", "9" * 5000, "x" * 300, "\0", "\x1b[2J", "é"),
            *("../../../etc/passwd", "/dev/zero", "/etc/passwd", "http://a/b.png", "a\\0.png"),
            *(f"./{cell}", cell.upper(), f"{cell},{cell}", f'"{cell}', "a\nb", "~", "con.png/"),
        )
    )


def table(random_: random.Random, folder: Path) -> bytes:
    """The text of a table with some of its cells, rows or bytes changed."""
    headers = "path,label", "file,class,split", "image,y,split,group", "image,y,split,group", "a,b"
    header = random_.choice(headers).split(",")
    rows = []
    for i in range(12):
        row = [f"{i}.png", "cat" if i % 2 else "dog", "test" if i > 7 else "train", f"s{i // 3}"]
        rows.append(row[: len(header)])
    fate = random_.random()
    if fate < 0.5:
        for _ in range(random_.choice((1, 1, 2))):
            row = random_.choice([header, *rows])
            i = random_.randrange(len(row))
            row[i] = odd_cell(random_, row[i])
    elif fate < 0.6:
        row = random_.choice([header, *rows])
        row += ["more"] if random_.random() < 0.5 else []
        del row[: random_.choice((0, 1, 5))]
    stream = io.StringIO(newline="")
    delimiter = random_.choice((",",) * 8 + (";", "\t"))
    csv.writer(stream, delimiter=delimiter, escapechar="\\").writerows([header, *rows])
    encoding = random_.choice(("utf-8",) * 8 + ("utf-8-sig", "utf-16"))
    data = stream.getvalue().encode(encoding, "replace")
    if fate > 0.95:
        return flipped(random_, data)
    return data[: len(data) // 2] if fate > 0.92 else data


@pytest.mark.slow
def test_every_table_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i}.png").write_bytes(png(30 * i))
    (tmp_path / "link.png").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe.png")

    def read(seed: int) -> str:
        random_ = random.Random(seed)
        path = tmp_path / random_.choice(("t.csv",) * 9 + ("t.tsv",))
        path.write_bytes(table(random_, tmp_path))
        skip: Any = random_.choice(("stop", "skip"))
        columns = random_.choice((*(None,) * 6, "label=class", f"image={EVIL}"))
        spec = DataSpec(str(path), on_bad_image=skip, columns=columns)
        if random_.random() < 0.1:
            load_images(path, 3, 8)
            return "shown"
        data = spec.load(split=random_.choice(("train", "train", "test")))
        assert len(data.images) == len(data.labels)
        return "read"

    counts, failures = run_round(range(TABLES), read)
    assert failures == []
    assert counts["read"] > 0.1 * TABLES, counts


# Shards


def member(random_: random.Random, name: str, content: bytes) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size = len(content)
    if random_.random() < 0.02:
        kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"S", b"Z")
        found.type, found.linkname = random_.choice(kinds), "/etc/passwd"
        found.size = 0
    if random_.random() < 0.01:
        found.pax_headers = {random_.choice(("comment", "path", "GNU.sparse.size")): EVIL}
    return found


def shard(random_: random.Random) -> bytes:
    """An archive of samples with names, contents, kinds or bytes changed."""
    stream = io.BytesIO()
    ending = random_.choice(("cls", "cls", "json", "txt"))
    kind = random_.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT))
    with tarfile.open(fileobj=stream, mode="w", format=kind, errors="replace") as archive:
        for i in range(8):
            label = b"%d" % (i % 2)
            if ending == "json":
                label = b'{"label": %d, "group": %d}' % (i % 2, i)
            files = {f"{i}.png": png(30 * i), f"{i}.{ending}": label}
            for name, content in files.items():
                if random_.random() < 0.02:
                    name = random_.choice((f"../{name}", f"/{name}", EVIL, "é.png", "a/.c", "b"))
                if random_.random() < 0.02:
                    odd = b"", b"{", b"[" * 9999, b"x" * 400, b'{"label": [1]}'
                    content = random_.choice(odd)
                if random_.random() > 0.02:
                    info = member(random_, name[:90], content)
                    archive.addfile(info, io.BytesIO(content) if info.size else None)
    data = stream.getvalue()
    fate = random_.random()
    if fate < 0.1:
        return flipped(random_, data)
    if fate < 0.2:
        return data[: random_.randrange(len(data))]
    if fate < 0.25:  # a header with another number in it, and a checksum that fits
        place = 512 * random_.randrange(len(data) // 512)
        block = bytearray(data[place : place + 512])
        block[124:136] = random_.choice((b"7" * 11 + b"\0", b"\x80" + b"\x7f" * 11, b"\xff" * 12))
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return data[:place] + bytes(block) + data[place + 512 :]
    return data


@pytest.mark.slow
def test_every_shard_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"

    def read(seed: int) -> str:
        random_ = random.Random(seed)
        path.write_bytes(shard(random_))
        columns = random_.choice((None, None, None, "label=txt", "label=json:group", "image=png"))
        skip: Any = random_.choice(("stop", "skip"))
        data = DataSpec(str(path), on_bad_image=skip, columns=columns).load()
        assert len(data.images) == len(data.labels)
        return "read"

    counts, failures = run_round(range(SHARDS), read)
    assert failures == []
    assert counts["read"] > 0.1 * SHARDS, counts


def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit, empty blocks are read to the end of a file that takes no room."""
    path, size, counters = tmp_path / "a.tar", 1 << 26, Path("/proc/self/io")
    if not counters.exists():
        pytest.skip("only Linux counts the bytes that a process reads")
    path.touch()
    os.truncate(path, size)

    def bytes_read() -> int:
        before = int(counters.read_text().split()[1])  # rchar
        with pytest.raises(ValueError, match=r"a\.tar"):
            DataSpec(str(path)).load()
        return int(counters.read_text().split()[1]) - before

    bytes_read()  # modules that are imported at first use are files too
    assert bytes_read() < size / 8
    monkeypatch.setattr(tar, "MOST_EMPTY", 1 << 40)
    assert bytes_read() >= size
