"""What becomes of one image file: modes, EXIF, damage, and sizes that are refused."""

import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from deepaa.data.image_file import Reading, read_image
from deepaa.data.load import load_images


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path, **options)


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


# Modes


def one(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_images(path, 1)[0].permute(1, 2, 0).numpy()


def test_sixteen_bit_grey_keeps_its_levels(tmp_path):
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    pixels = one(tmp_path / "a.png")
    assert len(np.unique(pixels)) == 256
    assert np.array_equal(pixels[..., 0], np.round(ramp / 257))
    assert (pixels[..., 0] == pixels[..., 2]).all()


@pytest.mark.parametrize("suffix", ["tif", "pgm"])
def test_sixteen_bit_grey_in_other_files(tmp_path, suffix):
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(ramp).save(tmp_path / f"a.{suffix}")
    assert len(np.unique(one(tmp_path / f"a.{suffix}"))) >= 250


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_without_a_range_are_refused(tmp_path, dtype):
    Image.fromarray(np.ones((3, 3), dtype)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=r"a\.tif .*no fixed range"):
        load_images(tmp_path / "a.tif")


def test_transparency_is_laid_on_white(tmp_path):
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0] = (10, 20, 30, 255)
    rgba[1] = (0, 0, 0, 51)  # a fifth of black
    save(tmp_path / "rgba.png", rgba)
    pixels = one(tmp_path / "rgba.png")
    assert pixels[0, 0].tolist() == [10, 20, 30]
    assert pixels[1, 0].tolist() == [204, 204, 204]
    Image.fromarray(rgba).convert("LA").save(tmp_path / "la.png")
    assert one(tmp_path / "la.png")[1, 0].tolist() == [204, 204, 204]


def test_palettes_with_transparency(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 0, 0, 0, 100, 0])
    image.putdata([0, 1])
    image.save(tmp_path / "bytes.png", transparency=bytes([255, 0]))
    image.save(tmp_path / "index.gif", transparency=1)
    image.save(tmp_path / "none.png")
    assert one(tmp_path / "bytes.png")[0].tolist() == [[200, 0, 0], [255, 255, 255]]
    assert one(tmp_path / "index.gif")[0].tolist() == [[200, 0, 0], [255, 255, 255]]
    assert one(tmp_path / "none.png")[0].tolist() == [[200, 0, 0], [0, 100, 0]]


def test_cmyk_one_bit_and_grey(tmp_path):
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / "a.tif")
    assert one(tmp_path / "a.tif")[0, 0].tolist() == [255, 0, 0]
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "b.png")
    assert one(tmp_path / "b.png")[0].tolist() == [[0, 0, 0], [255, 255, 255]]
    save(tmp_path / "c.png", np.array([[7, 9]]))
    assert one(tmp_path / "c.png")[0].tolist() == [[7, 7, 7], [9, 9, 9]]


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (3, 3), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert one(tmp_path / "a.gif")[0, 0].tolist() == [255, 0, 0]


# the corner (top, left) at which the stored top-left pixel must appear, and the size
ORIENTATIONS = {
    1: ((0, 0), (2, 3)),
    2: ((0, -1), (2, 3)),
    3: ((-1, -1), (2, 3)),
    4: ((-1, 0), (2, 3)),
    5: ((0, 0), (3, 2)),
    6: ((0, -1), (3, 2)),
    7: ((-1, -1), (3, 2)),
    8: ((-1, 0), (3, 2)),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_exif_orientation(tmp_path, orientation, suffix):
    pixels = np.full((2, 3, 3), 255, np.uint8)
    pixels[0, 0] = 0
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(tmp_path / f"a.{suffix}", pixels, exif=exif)
    found = one(tmp_path / f"a.{suffix}")
    corner, size = ORIENTATIONS[orientation]
    assert found.shape[:2] == size
    assert found[corner][0] == 0
    assert (found == 0).all(2).sum() == 1


def test_exif_orientation_of_grey_16_bit(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.array([[0, 65535]], np.uint16)).save(tmp_path / "a.png", exif=exif)
    assert one(tmp_path / "a.png")[:, 0, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    "exif", [b"Exif\x00\x00garbage", b"Exif\x00\x00II*\x00\xff\xff\xff\xff", b"x"]
)
def test_damaged_exif_turns_nothing(tmp_path, exif):
    save(tmp_path / "a.jpg", np.zeros((4, 6, 3)), exif=exif)
    assert one(tmp_path / "a.jpg").shape == (4, 6, 3)


# Damage


def test_unreadable_files_are_named_in_one_error(tmp_path):
    save(tmp_path / "good.png", noise(8, 8, 3))
    save(tmp_path / "cut.jpg", noise(64, 64, 3))
    save(tmp_path / "cut.png", noise(64, 64, 3))
    for name in ("cut.jpg", "cut.png"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "page.jpg").write_text("<!doctype html><title>404</title>")
    with pytest.raises(ValueError, match="4 of 5 files are bad") as caught:
        load_images(tmp_path, 8)
    message = str(caught.value)
    assert "\n" not in message
    assert "good.png" not in message
    assert "empty.png (empty file)" in message
    assert "page.jpg (not an image)" in message
    assert "cut.jpg (" in message
    assert "cut.png (" in message


def test_many_unreadable_files_are_counted(tmp_path):
    for i in range(14):
        (tmp_path / f"{i}.png").write_bytes(b"?")
    with pytest.raises(ValueError, match=r"14 of 14 files are bad .*; and 4 more"):
        load_images(tmp_path, 20)


def chunk(kind, content):
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png_header(path, side):
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [9000, 10_000, 20_000])
def test_a_bomb_is_refused_before_it_is_decoded(tmp_path, side):
    png_header(tmp_path / "bomb.png", side)
    before = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # the pixels are missing, so decoding would complain of those
        with pytest.raises(ValueError, match=r"bomb\.png \(.*(limit|exceeds)"):
            load_images(tmp_path / "bomb.png")
    assert before == Image.MAX_IMAGE_PIXELS


# Decoding at a smaller size


def photo(width: int, height: int) -> Image.Image:
    """Soft shapes, with which decoders of any scale should agree."""
    coarse = np.random.default_rng(3).integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize(
    ("spare", "side"), [(1.0, 640), (3.9, 640), (4.0, 320), (8.0, 160), (15.9, 160), (99.0, 80)]
)
def test_a_jpeg_is_reduced_while_twice_the_pixels_are_left(tmp_path, spare, side):
    photo(640, 480).save(tmp_path / "a.jpg")
    asked = []
    found = read_image(
        tmp_path / "a.jpg", Reading(reduce=True), lambda w, h: asked.append((w, h)) or spare
    )
    assert found.image.size == (side, side * 3 // 4)
    assert found.size == (640, 480)
    assert asked == [(640, 480)]
    whole = read_image(tmp_path / "a.jpg", Reading()).image.resize(found.image.size)
    difference = np.asarray(found.image).astype(int) - np.asarray(whole)
    assert abs(difference).mean() < 2  # of 255: nearly, but not quite the same pixels


def test_only_jpegs_are_reduced_and_only_when_asked(tmp_path):
    photo(640, 480).save(tmp_path / "a.png")
    photo(640, 480).save(tmp_path / "a.jpg")
    for name, reading in (("a.png", Reading(reduce=True)), ("a.jpg", Reading())):
        found = read_image(tmp_path / name, reading, lambda w, h: 99.0)
        assert found.image.size == found.size == (640, 480)


def test_turned_cmyk_and_grey_jpegs_are_reduced_as_they_are_read(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    asked = []
    for mode in ("RGB", "L", "CMYK"):
        photo(640, 480).convert(mode).save(tmp_path / "a.jpg", exif=exif)
        reduced = read_image(
            tmp_path / "a.jpg", Reading(reduce=True), lambda w, h: asked.append((w, h)) or 8.0
        )
        whole = read_image(tmp_path / "a.jpg", Reading())
        assert asked.pop() == (480, 640)  # upright
        assert (reduced.image.size, reduced.size) == ((120, 160), (480, 640))
        assert reduced.image.mode == "RGB"
        difference = np.asarray(reduced.image).astype(int) - whole.image.resize((120, 160))
        assert abs(difference).mean() < 2
