"""JPEG files that the device decodes: the same squares as Pillow's, and the same errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from photos import all_of, picture, save_photos, streamed
from PIL import Image
from PIL.Image import Resampling

import deepaa.data.jpegs
from deepaa.data.image_file import DEFAULT_READING, Reading
from deepaa.data.jpegs import Jpeg, jpeg_of
from deepaa.data.scan import BadImagesError

ON_DEVICE = Reading(decoder="torchvision")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the photos are PNG files; some JPEG files are turned, grey, or in other colours."""
    root = save_photos(tmp_path_factory.mktemp("photos"))
    for orientation in range(1, 9):
        photo = picture(61, 44, orientation)
        exif = photo.getexif()
        exif[0x0112] = orientation
        photo.save(root / "train" / "cat" / f"turned{orientation}.jpg", exif=exif)
    picture(50, 40, 9).convert("L").save(root / "train" / "dog" / "grey.jpg")
    picture(50, 40, 10).convert("CMYK").save(root / "train" / "dog" / "cmyk.jpg")
    picture(90, 70, 11).save(root / "train" / "dog" / "progressive.jpg", progressive=True)
    picture(300, 20, 12).save(root / "train" / "dog" / "long.jpg", subsampling=0)
    return root


@pytest.fixture
def one_axis_at_a_time(monkeypatch):
    """Pillow resizes rows first: some versions begin with the columns where that is cheaper."""
    resize = Image.Image.resize

    def rows_first(self, size, resample=None, *args, **kwargs):
        if resample != Resampling.BICUBIC or args or kwargs:
            return resize(self, size, resample, *args, **kwargs)
        return resize(resize(self, (size[0], self.height), resample), size, resample)

    monkeypatch.setattr(Image.Image, "resize", rows_first)


@pytest.mark.parametrize("crop", ["random", "centre", "larger"])
@pytest.mark.parametrize("workers", [0, 2])
def test_on_a_cpu_the_squares_are_those_of_pillow(folder, crop, workers, one_axis_at_a_time):
    expected = all_of(streamed(folder, crop=crop), epoch=2)
    stream = streamed(folder, crop=crop, workers=workers, reading=ON_DEVICE)
    assert stream.decoder == "torchvision"
    for got, want in zip(all_of(stream, epoch=2), expected, strict=True):
        assert torch.equal(got, want)


def test_copies_are_cut_from_one_decoding(folder, one_axis_at_a_time, monkeypatch):
    from torchvision import io

    expected = list(streamed(folder).batches(0, 8, copies=3))
    stream, files = streamed(folder, reading=ON_DEVICE), []
    decode = io.decode_jpeg

    def counted(contents, *args, **kwargs):
        files.append(len(contents))
        return decode(contents, *args, **kwargs)

    monkeypatch.setattr(io, "decode_jpeg", counted)
    for got, want in zip(stream.batches(0, 8, copies=3), expected, strict=True):
        assert torch.equal(got.images, want.images)
    assert 20 <= sum(files) <= 36  # the JPEG files of 53, each once


def test_many_pixels_are_decoded_in_parts(folder, one_axis_at_a_time, monkeypatch):
    expected = all_of(streamed(folder, reading=ON_DEVICE))
    monkeypatch.setattr(deepaa.data.jpegs, "MOST_PIXELS", 5_000)  # about two files
    for got, want in zip(all_of(streamed(folder, reading=ON_DEVICE)), expected, strict=True):
        assert torch.equal(got, want)


def test_what_the_device_decodes(folder, tmp_path):
    """Only whole JPEG files of three usual colours; Pillow has a word for all others."""
    dog = folder / "train" / "dog"
    left = {path.name for path in dog.iterdir() if jpeg_of(path, DEFAULT_READING) is not None}
    assert {"progressive.jpg", "long.jpg"} <= left
    assert not {"grey.jpg", "cmyk.jpg"} & left
    assert all(name.endswith(".jpg") for name in left)
    content = (dog / "long.jpg").read_bytes()
    for name, changed in (("cut.jpg", content[:-30]), ("empty.jpg", b""), ("text.jpg", b"hello")):
        (tmp_path / name).write_bytes(changed)
        assert jpeg_of(tmp_path / name, DEFAULT_READING) is None
    assert jpeg_of(tmp_path / "none.jpg", DEFAULT_READING) is None
    assert jpeg_of(dog / "long.jpg", Reading(max_pixels=5_999)) is None
    assert jpeg_of(dog / "long.jpg", Reading(max_pixels=6_000)) == Jpeg(content, 300, 20, 1)


def test_turned_photos_are_as_stored_where_exif_does_not_count(folder):
    turned = folder / "train" / "cat" / "turned6.jpg"
    assert jpeg_of(turned, DEFAULT_READING).upright == (44, 61)
    assert jpeg_of(turned, Reading(apply_exif=False)).upright == (61, 44)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_does_not_decode_is_named(tmp_path, workers):
    """Its header and its end are whole; without a scan it is met in the epoch."""
    root = save_photos(tmp_path)
    bad = root / "train" / "cat" / "bad.jpg"
    picture(64, 48, 0).save(bad)
    content = bytearray(bad.read_bytes())
    table = content.index(b"\xff\xc4")  # Huffman codes, of which there are too many now
    content[table + 5 : table + 21] = b"\xff" * 16
    bad.write_bytes(content)
    assert jpeg_of(bad, DEFAULT_READING) is not None
    stream = streamed(root, scan=False, reading=ON_DEVICE, workers=workers)
    with pytest.raises(BadImagesError, match=r"bad\.jpg"):
        all_of(stream)


def test_who_decodes(folder):
    assert streamed(folder).decoder == "pillow"  # auto, on a CPU
    assert streamed(folder, train=False, reading=ON_DEVICE).decoder == "pillow"
    with pytest.raises(ValueError, match="auto or pillow or torchvision, got 'fastest'"):
        Reading(decoder="fastest")
    with pytest.raises(ValueError, match="reduce"):
        Reading(decoder="torchvision", reduce=True)


def test_the_rate_counts_all_images(folder):
    stream = streamed(folder, reading=ON_DEVICE)
    images = len(all_of(stream)[0])
    rate = stream.decoding_rate()
    assert rate.images == images
    assert 0 < rate.per_second < 1e6


@pytest.mark.gpu
@pytest.mark.parametrize("crop", ["random", "larger"])
def test_cuda_shows_the_same_parts(folder, crop):
    """Its own rounding, and other colours between pixels: up to 4 levels in these small photos.

    Another part, or a picture that is turned otherwise, is 30 levels and more away.
    """
    expected = all_of(streamed(folder, crop=crop))
    stream = streamed(folder, crop=crop, device="cuda", workers=2)
    assert stream.decoder == "torchvision"
    images, labels, rows = all_of(stream)
    assert torch.equal(labels.cpu(), expected[1])
    assert torch.equal(rows.cpu(), expected[2])
    apart = (images.cpu().int() - expected[0].int()).abs().float().mean((1, 2, 3))
    assert apart.max() < 8
    assert apart.mean() < 2


@pytest.mark.gpu
def test_a_file_that_cuda_does_not_decode_is_named(tmp_path):
    test_a_file_that_does_not_decode_is_named(tmp_path, 2)


def test_a_folder_of_nothing_but_jpeg_files(tmp_path, one_axis_at_a_time):
    for number in range(6):
        place = tmp_path / "train" / ("cat" if number % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        picture(40 + number, 50, number).save(place / f"{number}.jpg")
    expected = all_of(streamed(tmp_path), batch=3)
    for got, want in zip(
        all_of(streamed(tmp_path, reading=ON_DEVICE), batch=3), expected, strict=True
    ):
        assert torch.equal(got, want)
