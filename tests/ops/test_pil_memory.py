"""The memory of PIL images: it holds their pixels, however they were made, or is not shown."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deepaa.ops import pil_memory, single
from deepaa.ops.pil_memory import rgb_pixels
from deepaa.ops.single import single_pil
from deepaa.ops.space import CIFAR, Table

HEIGHT, WIDTH = 5, 7
PIXELS = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def from_file(kind: str) -> Callable[[Path], Image.Image]:
    def made(folder: Path) -> Image.Image:
        path = folder / f"image.{kind}"
        Image.fromarray(PIXELS).save(path)
        return Image.open(path)  # not yet decoded

    return made


def opened_in_memory(_: Path) -> Image.Image:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "png")
    return Image.open(file)


WAYS: dict[str, Callable[[Path], Image.Image]] = {
    "array": lambda _: Image.fromarray(PIXELS),
    "bytes": lambda _: Image.frombytes("RGB", (WIDTH, HEIGHT), PIXELS.tobytes()),
    "buffer": lambda _: Image.frombuffer(
        "RGB", (WIDTH, HEIGHT), PIXELS.tobytes(), "raw", "RGB", 0, 1
    ),
    "converted": lambda _: Image.fromarray(PIXELS).convert("RGBX").convert("RGB"),
    "cropped": lambda _: Image.fromarray(np.pad(PIXELS, ((1, 2), (3, 1), (0, 0)))).crop(
        (3, 1, 3 + WIDTH, 1 + HEIGHT)
    ),
    "merged": lambda _: Image.merge("RGB", Image.fromarray(PIXELS).split()),
    "copied": lambda _: Image.fromarray(PIXELS).copy(),
    "in memory": opened_in_memory,
    **{kind: from_file(kind) for kind in ("png", "bmp", "ppm", "tiff")},
}


def bytes_at(place: pil_memory.Pixels, count: int) -> Any:
    return np.frombuffer(ctypes.string_at(place.address, 4 * count), np.uint8).reshape(-1, 4)


@pytest.fixture(autouse=True)
def needs_arrow() -> None:
    if rgb_pixels(Image.new("RGB", (1, 1))) is None:
        pytest.skip("this Pillow does not export its memory")


@pytest.mark.parametrize("way", WAYS)
def test_memory_holds_the_pixels_however_the_image_was_made(way: str, tmp_path: Path) -> None:
    image = WAYS[way](tmp_path)
    place = rgb_pixels(image)
    assert place is not None
    found = bytes_at(place, HEIGHT * WIDTH)
    np.testing.assert_array_equal(found[:, :3].reshape(PIXELS.shape), PIXELS)
    del image  # the memory outlives the image
    np.testing.assert_array_equal(bytes_at(place, HEIGHT * WIDTH), found)


@pytest.mark.parametrize("way", WAYS)
def test_augmented_images_are_fresh_and_whole(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "SEEN", 1)
    image = WAYS[way](tmp_path)
    invert = next(i for i, row in enumerate(CIFAR.table.rows) if row.operation.name == "invert")
    made = single_pil(image, [(invert, [])], CIFAR.table)
    np.testing.assert_array_equal(np.asarray(made), 255 - PIXELS)
    np.testing.assert_array_equal(np.asarray(image), PIXELS)
    made.putpixel((0, 0), (1, 2, 3))  # it belongs to its owner
    made.paste((9, 9, 9), (2, 2, 4, 4))
    assert made.getpixel((0, 0)) == (1, 2, 3)
    np.testing.assert_array_equal(np.asarray(image), PIXELS)
    assert set(np.asarray(made.convert("RGBA"))[..., 3].flat) == {255}


def test_images_in_several_pieces_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "SEEN", 1)
    rows = [row for row in CIFAR.table.rows if row.operation.name in ("invert", "solarize")]
    table = Table(rows)
    pixels = np.random.default_rng(1).integers(0, 256, (2100, 2100, 3), np.uint8)  # over 16 MB
    image = Image.fromarray(pixels)
    assert rgb_pixels(image) is None
    invert = next(i for i, row in enumerate(rows) if row.operation.name == "invert")
    made = single_pil(image, [(invert, [])], table)
    np.testing.assert_array_equal(np.asarray(made), 255 - pixels)


def test_without_the_export_images_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "SEEN", 1)
    monkeypatch.setattr(pil_memory, "_pointer", None)
    image = Image.fromarray(PIXELS)
    assert rgb_pixels(image) is None
    invert = next(i for i, row in enumerate(CIFAR.table.rows) if row.operation.name == "invert")
    made = single_pil(image, [(invert, [])], CIFAR.table)
    np.testing.assert_array_equal(np.asarray(made), 255 - PIXELS)
