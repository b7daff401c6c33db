"""Mutants of data archives and image folders: each is read, or refused in one line."""

from __future__ import annotations

import io
import logging
import os
import random
import shutil
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import EVIL, flipped, run_round
from PIL import Image
from policy_mutants import other_array_file

from deepaa.data import DataSpec, load_images, splits

ARCHIVES, FOLDERS = 2_000, 400


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What is left out of a folder is said in warnings."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


# Archives


def arrays(random_: random.Random) -> dict[str, Any]:
    """The arrays of a data set, in one of the layouts and types that are known."""
    images, classes = random_.choice((4, 9, 12)), random_.choice((2, 3, 4))
    shape = random_.choice(
        ((images, 5, 6), (images, 5, 6, 3), (images, 3, 5, 6), (images, 5, 5, 1))
    )
    pixels = np.random.default_rng(random_.randrange(99)).integers(0, 256, shape).astype(np.uint8)
    labels = (np.arange(images) % classes).astype(random_.choice((np.int8, np.int64, np.uint64)))
    labels = labels[:, None] if random_.random() < 0.3 else labels
    x, y = random_.choice((("x", "y"), ("images", "labels"), ("x_train", "y_train")))
    found = {x: pixels, y: labels}
    if x == "x_train":
        found |= {"x_test": pixels, "y_test": labels}
    if random_.random() < 0.3:
        found["class_names"] = np.array([f"class {i}" for i in range(classes)])
    return found


def other(random_: random.Random, array: Any) -> Any:
    """Another array in its place."""
    return random_.choice(
        (
            lambda: array.astype(object),
            lambda: array.astype(np.float32) if array.dtype.kind != "U" else np.zeros(3),
            lambda: array[:0],
            lambda: array.reshape(-1),
            lambda: array.reshape(1, 1, *array.shape),
            lambda: np.array(random_.choice((0, -1, 10**12, np.nan))),
            lambda: np.array([0, 1, random_.choice((10**6, 10**12, 2**63 - 1, -1))]),
            lambda: np.array([EVIL, "b", "c", "d"]),
            lambda: np.repeat(array, 3, axis=0) if array.ndim else array,
            lambda: np.zeros(array.shape, ">i2"),
            lambda: np.zeros(array.shape, [("a", "i4"), (EVIL, "f4")]),
        )
    )()


def archive(random_: random.Random) -> bytes:
    found, fate = arrays(random_), random_.random()
    if fate < 0.4:
        key = random_.choice(list(found))
        found[key] = other(random_, found[key])
        if random_.random() < 0.2:
            del found[key]
    if fate < 0.05:
        found[f"x{EVIL}"] = np.zeros(1)
    stream = io.BytesIO()
    save: Any = random_.choice((np.savez, np.savez_compressed))
    save(stream, **found)
    data = stream.getvalue()
    if fate > 0.95:
        return flipped(random_, data)
    if fate > 0.9:
        return other_array_file(random_, data)
    if fate > 0.88:
        return random_.choice((b"", b"PK", b"\x93NUMPY", b"\x80\x04N.", os.urandom(50)))
    return data


@pytest.mark.slow
def test_every_archive_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"

    def read(seed: int) -> str:
        random_ = random.Random(seed)
        path.write_bytes(archive(random_))
        size = random_.choice((None, 8))
        if random_.random() < 0.2:
            load_images(path, 3, size)
            return "shown"
        data = DataSpec(data=str(path), size=size).load(split=random_.choice(("train", "test")))
        assert data.images.shape[:2] == (len(data.labels), 3)
        assert int(data.labels.max()) < len(data.class_names)
        return "read"

    counts, failures = run_round(range(ARCHIVES), read)
    assert failures == []
    assert counts["read"] + counts["shown"] > 0.35 * ARCHIVES, counts


def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit, a label of a trillion takes all memory; two million show it already."""
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((3, 4, 4), np.uint8), y=np.array([0, 1, 2_000_000]))

    def peak() -> int:
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match="classes"):
                DataSpec(data=str(path)).load()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak() < 2**23
    monkeypatch.setattr(splits, "MAX_CLASSES", 2**40)
    assert peak() > 2**26


# Folders of images


def picture(random_: random.Random, path: Path) -> None:
    """An image file of any mode, format and size, or something that is none."""
    mode = random_.choice((*("RGB",) * 9, "L", "RGBA", "P", "1", "CMYK", "I;16", "F", "LA"))
    size = random_.choice((*((8, 8),) * 9, (1, 9), (30, 2)))
    kinds = {".png": "PNG", ".jpg": "JPEG", ".gif": "GIF", ".tif": "TIFF", ".bmp": "BMP"}
    stream = io.BytesIO()
    try:
        Image.new(mode, size).save(stream, kinds[path.suffix])
    except (OSError, KeyError):  # not every format has every mode
        Image.new("RGB", size).save(stream, kinds[path.suffix])
    data = stream.getvalue()
    fate = random_.random()
    if fate < 0.02:
        data = flipped(random_, data)
    elif fate < 0.03:
        data = data[: len(data) // 2]
    elif fate < 0.04:
        data = random_.choice((b"", b"<html>", data * 3))
    path.write_bytes(data)


def folder(random_: random.Random, root: Path) -> None:
    """A tree of class folders, with what people and strangers leave in such trees."""
    parts = random_.choice((("",), ("",), ("train",), ("train", "test"), ("train", "val")))
    odd = random_.choice(["a b", "é", f"x{EVIL[:5]}", ".hidden", "new\nline", "bird"])
    names = ["cat", "dog", odd]
    for part in parts:
        for name in names[: random_.choice((2, 2, 2, 3, 1))]:
            place = root / part / name
            place.mkdir(parents=True)
            for i in range(random_.choice((1, 3, 3, 3, 3, 4, 4, 0))):
                suffix = random_.choice((".png", ".png", ".jpg", ".gif", ".tif", ".bmp"))
                picture(random_, place / f"{i}{suffix}")
            _odd_entry(random_, place, root)


def _odd_entry(random_: random.Random, place: Path, root: Path) -> None:
    kind, path = random_.randrange(60), place / "odd.png"
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to(root)
    elif kind == 2:
        path.symlink_to("/etc/hostname")
    elif kind == 3:
        path.symlink_to(path)
    elif kind == 4:
        path.mkdir()
    elif kind == 5:
        path.symlink_to("missing.png")


@pytest.mark.slow
def test_every_folder_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    def read(seed: int) -> str:
        random_, root = random.Random(seed), tmp_path / "images"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        folder(random_, root)
        spec = DataSpec(
            data=str(root),
            on_bad_image=random_.choice(("stop", "skip")),
            outside_links=random_.random() < 0.2,
        )
        with warnings.catch_warnings(action="ignore"):
            data = spec.load(split=random_.choice(("train", "train", "test")))
        assert len(data.images) == len(data.labels)
        return "read"

    counts, failures = run_round(range(FOLDERS), read)
    assert failures == []
    assert counts["read"] > 0.2 * FOLDERS, counts
