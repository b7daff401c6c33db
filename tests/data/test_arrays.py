"""Images of any sizes become one array; too many for the memory are refused first."""

import numpy as np
import pytest

from deepaa.data.arrays import ImageStack, available_memory, check_memory
from deepaa.data.image_file import squared


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


@pytest.mark.parametrize("odd", [noise(41, 40), noise(513, 513), noise(1, 600)])
@pytest.mark.parametrize("place", [0, 1, 199, 299])
def test_one_odd_image_makes_all_squares_wherever_it_comes(odd, place):
    images = [noise(40, 40)] * 300
    images[place] = odd
    found = stacked(images)
    assert found.shape == (300, 3, 224, 224)
    for i in {0, 127, 128, place, 299}:
        assert np.array_equal(found[i].transpose(1, 2, 0), squared(images[i], 224))


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
