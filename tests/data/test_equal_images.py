"""Images with the same pixels are found, however large, and said where they spoil a measurement."""

import logging
import time

import pytest
import torch

from deepaa.data.equal_images import Equals, equals_across, pixel_numbers, warn_of_equal_images
from deepaa.data.splits import LabelledImages


def data(images, labels, name="pets", files=()):
    return LabelledImages(images, torch.tensor(labels), ("cat", "dog"), name, "", files=files)


@pytest.mark.parametrize("side", [1, 3, 37, 80])  # 80: more bytes than are compared at first
def test_numbers_are_equal_where_all_pixels_are(side):
    generator = torch.Generator().manual_seed(side)
    few = torch.randint(256, (12, 3, side, side), dtype=torch.uint8, generator=generator)
    images = few[torch.randint(12, (60,), generator=generator)].clone()
    flat = images.reshape(60, -1)
    flat[7] = flat[9]
    flat[7, -2] += 1  # of a large image this byte is not among the first that are compared
    expected = [[bool((a == b).all()) for b in flat] for a in flat]
    for parts in ((images,), (images[:25], images[25:]), (images.transpose(2, 3),)):
        numbers = pixel_numbers(*parts)
        assert numbers.dtype == torch.int64
        assert (numbers[:, None] == numbers).tolist() == expected
    assert not expected[7][9]


def test_images_across_values_against_every_pair():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        n = int(torch.randint(1, 12, (1,), generator=generator))
        numbers = torch.randint(6, (n,), generator=generator)
        _, numbers = torch.unique(numbers, return_inverse=True)
        values = torch.randint(3, (n,), generator=generator)
        counted = torch.rand(n, generator=generator) < 0.7
        pairs = [
            (i, j)
            for i in range(n)
            for j in range(n)
            if counted[i] and numbers[i] == numbers[j] and values[i] != values[j]
        ]
        expected = Equals(len({i for i, _ in pairs}), pairs[0]) if pairs else None
        assert equals_across(numbers, values, counted) == expected


def test_equal_test_images_and_labels_that_contradict_are_said_with_an_example(caplog):
    images = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 4, 4)
    train = data(images, [0, 0, 1, 1, 1], files=("a.png", "b.png", "c.png", "d.png", "e.png"))
    test = data(images[[1, 3, 3]] + torch.tensor([0, 0, 90])[:, None, None, None], [0, 0, 1])
    test = test._replace(images=test.images.to(torch.uint8), files=("x.png", "y.png", "z.png"))
    with caplog.at_level(logging.WARNING):
        warn_of_equal_images(train, test)
    assert [record.getMessage() for record in caplog.records] == [
        "pets: 2 of 3 test images have the same pixels as training images, as x.png and b.png; "
        "such a measurement is too good: remove them from one of the two",
        "pets: 2 images have the same pixels as one of another class, so that labels are wrong: "
        "d.png (dog) and y.png (cat)",
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_equal_images(train, test, classes=False)
    assert len(caplog.records) == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_equal_images(train, test._replace(images=test.images + 100))
    assert not caplog.records


def test_folds_count_all_images(caplog):
    images = torch.tensor([1, 2, 1, 3], dtype=torch.uint8)[:, None, None, None]
    folds, every = torch.tensor([0, 1, 2, 0]), torch.ones(4, dtype=torch.bool)
    with caplog.at_level(logging.WARNING):
        warn_of_equal_images(
            data(images, [0, 1, 0, 1]),
            parts=folds,
            counted=every,
            measured="images",
            others="images of another fold",
        )
    assert (
        "2 of 4 images have the same pixels as images of another fold, as image 0 and image 2"
        in (caplog.text)
    )


def test_sixty_thousand_small_images_take_about_a_second():
    images = torch.randint(256, (60_000, 3, 32, 32), dtype=torch.uint8)
    began = time.process_time()
    pixel_numbers(images)
    assert time.process_time() - began < 4  # half a second on a quiet core
