"""The photos of a folder as a table, as shards and as rows, so that all can be compared."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from deepaa.data.folder import list_images


def photos_of(folder: Path) -> list[tuple[str, Path, str]]:
    """Part, file and class of every photo, in the order of the folder."""
    found = []
    for part in ("train", "test"):
        tree = list_images(folder, part)
        names = [tree.class_names[label] for label in tree.labels]
        found += [(part, file, name) for file, name in zip(tree.files, names, strict=True)]
    return found


def write_csv(path: Path, header: str, rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(rows)
    return path


def table_of(folder: Path, name: str = "table.csv") -> Path:
    """A table in the folder with the columns path, label and split."""
    rows = [(file.relative_to(folder), label, part) for part, file, label in photos_of(folder)]
    return write_csv(folder / name, "path,label,split", rows)


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def shards_of(folder: Path, out: Path, each: int = 20) -> Path:
    """Shards train-000.tar, ... and test-000.tar with .cls files that hold names."""
    photos = photos_of(folder)
    for part in ("train", "test"):
        some = [(file, label) for of, file, label in photos if of == part]
        for number in range(0, len(some), each):
            files = {}
            for i, (file, label) in enumerate(some[number : number + each], number):
                files[f"{i:05}{file.suffix}"] = file.read_bytes()
                files[f"{i:05}.cls"] = label.encode()
            write_tar(out / f"{part}-{number // each:03}.tar", files)
    return out


def png(shade: int = 0, side: int = 8) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (side, side), (shade, 2 * shade % 256, 90)).save(stream, "png")
    return stream.getvalue()
