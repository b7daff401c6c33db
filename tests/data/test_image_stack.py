"""Images of any sizes become one array; too many for the memory are refused first."""

import logging

import numpy as np
import pytest

from deepaa.data import image_stack
from deepaa.data.image_file import squared
from deepaa.data.image_stack import ImageStack, available_memory, check_memory


def noise(h, w):
    return np.random.default_rng(h * 1000 + w).integers(0, 256, (h, w, 3), np.uint8)


def stacked(images, size=None):
    found = ImageStack(len(images), size, "here")
    for image in images:
        found.add(image)
    return found.images()


@pytest.mark.parametrize(("h", "w"), [(1, 1), (1, 9), (7, 5), (33, 31), (512, 2)])
def test_equal_sizes_are_kept(h, w):
    found = stacked([noise(h, w)] * 3)
    assert found.shape == (3, 3, h, w)
    assert found.dtype == np.uint8
    assert np.array_equal(found[2].transpose(1, 2, 0), noise(h, w))


@pytest.mark.parametrize(("h", "w"), [(1, 1), (1, 900), (7, 5), (300, 31)])
def test_a_size_gives_squares(h, w):
    found = stacked([noise(h, w)], 20)
    assert np.array_equal(found[0].transpose(1, 2, 0), squared(noise(h, w), 20))


@pytest.mark.parametrize("odd", [noise(41, 40), noise(513, 513), noise(60, 612)])
@pytest.mark.parametrize("place", [0, 1, 199, 299])
def test_one_odd_image_makes_all_squares_wherever_it_comes(odd, place):
    images = [noise(40, 40)] * 300
    images[place] = odd
    found = stacked(images)
    assert found.shape == (300, 3, 40, 40)
    for i in {0, 127, 128, 299} - {place}:
        assert np.array_equal(found[i].transpose(1, 2, 0), images[i])
    reduced = squared(odd, min(*odd.shape[:2], 224)) if max(odd.shape) > 512 else odd
    assert np.array_equal(found[place].transpose(1, 2, 0), squared(reduced, 40))


def test_small_images_of_many_sizes_are_not_made_large(caplog):
    """Nobody enlarged pictures of 28 to 60 pixels to 224 by hand."""
    rng = np.random.default_rng(0)
    images = [noise(*rng.integers(28, 61, 2)) for _ in range(200)]
    side = int(np.median([min(image.shape[:2]) for image in images])) // 4 * 4
    with caplog.at_level(logging.WARNING):
        found = image_stack.stacked(images, None, "pictures")
    assert found.shape == (200, 3, side, side)
    assert 28 <= side <= 44
    for image, one in zip(images, found, strict=True):  # as --size would have it
        assert np.array_equal(one.transpose(1, 2, 0), squared(image, side))
    assert f"each is resized to {side} x {side}" in caplog.text
    assert "--size N takes another side" in caplog.text
    backwards = image_stack.stacked(images[::-1], None, "pictures")
    assert np.array_equal(backwards[::-1], found)


@pytest.mark.parametrize(
    ("sides", "side"),
    [([28, 60], 28), ([31, 33, 35], 32), ([224, 3000], 224), ([300, 400], 224), ([1, 2, 3], 8)],
)
def test_the_common_side_is_the_median_of_those_that_there_are(sides, side):
    assert image_stack.common_side(sides) == side
    assert stacked([noise(side, side + 1) for side in sides]).shape[2:] == (side, side)


def test_photographs_become_squares_of_224(caplog):
    with caplog.at_level(logging.WARNING):
        found = image_stack.stacked([noise(300, 400), noise(480, 320)] * 70, None, "photos")
    assert found.shape == (140, 3, 224, 224)
    assert np.array_equal(found[139].transpose(1, 2, 0), squared(noise(480, 320), 224))
    assert "have 224 or more pixels; each is resized to 224 x 224" in caplog.text


def test_test_images_of_different_sizes_get_the_side_of_the_training_images():
    found = ImageStack(2, None, "test", side=32)
    for image in (noise(60, 60), noise(80, 700)):
        found.add(image)
    assert found.images().shape == (2, 3, 32, 32)
    same = ImageStack(2, None, "test", side=32)
    same.add(noise(60, 60))
    assert same.images().shape == (1, 3, 60, 60), "images of one size are kept"


def test_downscaling_is_antialiased():
    stripes = np.zeros((100, 100, 3), np.uint8)
    stripes[:, ::2] = 255
    middle = stacked([stripes], 10)[0, :, 2:-2, 2:-2].astype(int)
    assert abs(middle - 128).max() < 20  # every tenth pixel would be all black


def test_fewer_than_announced_and_none():
    found = ImageStack(5, None, "here")
    with pytest.raises(ValueError, match="here: no images"):
        found.images()
    found.add(noise(3, 3))
    assert len(found.images()) == 1
    with pytest.raises(ValueError, match="size should be"):
        ImageStack(1, 0, "here")


def test_too_much_memory_is_refused_with_an_estimate():
    free = available_memory()
    assert free is not None
    found = ImageStack(free // 1000, None, "folder")
    found.add(noise(40, 40))
    with pytest.raises(MemoryError, match=r"folder: [\d,]+ images of 40 x 40 pixels need .* GB"):
        found.images()
    check_memory(free // 2, "half")
    with pytest.raises(MemoryError, match="two thirds need"):
        check_memory(free * 2 // 3, "two thirds")
