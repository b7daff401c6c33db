"""Pictures of policies at work, by their pixels."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from deepaa.data.embedded import load_embedded
from deepaa.ops.apply import run_pil
from deepaa.ops.rng import sample_key
from deepaa.ops.space import CIFAR, Operation, Space, Table
from deepaa.policy.policy import Policy
from deepaa.report.pictures import augmented, grid_layout, preview_grid, top_transformations
from deepaa.report.policy_tables import layer_table


def crop(sheet, box):
    return np.asarray(sheet.crop(box))


def enlarged(image, layout):
    pixels = image.permute(1, 2, 0).numpy()
    down, across = layout.height // pixels.shape[0], layout.width // pixels.shape[1]
    return pixels.repeat(down, 0).repeat(across, 1)


def test_every_picture_of_the_grid():
    images = load_embedded().train_images[:5]
    policy = Policy.trivial(CIFAR, 3)
    sheet = preview_grid(images, policy, rows=2, seed=4, title="three layers")
    layout = grid_layout(32, 32, 2)
    assert layout.width >= 90
    for row in range(3):
        want = images if row == 0 else augmented(images, policy, row, seed=4)
        for column in range(5):
            found = crop(sheet, layout.box(row, column))
            assert np.array_equal(found, enlarged(want[column], layout))
    x, y = layout.box(2, 4)[2:]
    assert x < sheet.width
    assert y < sheet.height


def test_draws_are_those_of_the_seed_the_epoch_and_the_place():
    images = load_embedded().train_images[:4]
    policy = Policy.trivial(CIFAR, 4)
    for row in (1, 3):
        for i, image in enumerate(augmented(images, policy, row, seed=9, epoch=2)):
            steps = policy.draw_one(sample_key(9, 2 + row - 1, i), 2)
            original = Image.fromarray(images[i].permute(1, 2, 0).numpy())
            want = np.asarray(run_pil(original, steps, policy.table))
            assert np.array_equal(image.permute(1, 2, 0).numpy(), want)


def test_the_transform_draws_what_the_preview_shows():
    transforms = pytest.importorskip("deepaa.transforms")
    images = load_embedded().train_images[:6]
    policy = Policy.trivial(CIFAR, 3)
    transform = transforms.DeepAutoAugment(policy, seed=5)
    transform.set_epoch(1)
    assert torch.equal(
        transform(images, index=torch.arange(6)), augmented(images, policy, 2, seed=5)
    )


def test_seeds_and_rows_differ_and_repeat():
    images = load_embedded().train_images[:8]
    policy = Policy.trivial(CIFAR, 4)
    first = augmented(images, policy, 1)
    assert torch.equal(first, augmented(images, policy, 1))
    assert not torch.equal(first, augmented(images, policy, 2))
    assert not torch.equal(first, augmented(images, policy, 1, seed=1))


def test_grey_and_odd_shapes():
    images = torch.randint(0, 256, (3, 1, 9, 20), dtype=torch.uint8)
    sheet = preview_grid(images, Policy.trivial(CIFAR, 2), rows=1)
    layout = grid_layout(9, 20, 1)
    assert sheet.mode == "RGB"
    assert np.array_equal(crop(sheet, layout.box(0, 1))[..., :1], enlarged(images[1], layout))


def test_scale_and_one_tiny_image_with_a_long_title():
    images = torch.zeros(1, 3, 1, 1, dtype=torch.uint8)
    policy = Policy.identity()
    sheet = preview_grid(images, policy, rows=1, scale=2, title="a long name " * 20)
    assert sheet.width < 200
    layout = grid_layout(1, 1, 1, scale=2)
    assert layout.box(0, 0)[2] - layout.box(0, 0)[0] == 2
    with pytest.raises(ValueError, match="scale should be at least 1"):
        grid_layout(4, 4, 1, scale=0)


def test_a_large_image_is_not_enlarged():
    assert grid_layout(224, 224, 1).width == 224


def test_the_picture_can_be_written():
    sheet = preview_grid(load_embedded().train_images[:2], Policy.trivial(CIFAR, 2), rows=1)
    for kind in ("PNG", "JPEG", "WEBP"):
        sheet.save(io.BytesIO(), kind)


@pytest.mark.parametrize(
    ("images", "rows", "message"),
    [
        (torch.zeros(2, 3, 4, 4), 1, "uint8"),
        (torch.zeros(3, 4, 4, dtype=torch.uint8), 1, r"\(3, 4, 4\)"),
        (torch.zeros(0, 3, 4, 4, dtype=torch.uint8), 1, "uint8"),
        (torch.zeros(1, 5, 4, 4, dtype=torch.uint8), 1, "1 or 3 channels"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), 0, "rows should be at least 1"),
        (torch.zeros(9, 1, 900, 900, dtype=torch.uint8), 99, "fewer or smaller images"),
    ],
)
def test_what_a_preview_refuses(images, rows, message):
    with pytest.raises(ValueError, match=message):
        preview_grid(images, Policy.trivial(CIFAR, 2), rows)


def test_a_policy_of_a_space_without_identity_has_tables_and_a_preview():
    policy = Policy.uniform(
        Space((Operation("invert"), Operation("rotate", -30.0, 30.0, neutral=0.0))), 2
    )
    assert layer_table(policy)[0].identity == 0.0
    preview_grid(load_embedded().train_images[:2], policy)


def test_top_transformations_are_the_commonest_of_each_operation() -> None:
    identity, invert = Operation("identity"), Operation("invert")
    rotate = Operation("rotate", -30.0, 30.0, neutral=0.0)
    rows = Table([(invert, None), (rotate, 15.0), (rotate, -30.0), (identity, None)])
    policy = Policy(rows, torch.tensor([[0.5, 0.375, 0.125, 0.0], [0.0, 0.0, 0.25, 0.75]]))
    assert top_transformations(policy) == [
        (1, 0.375),
        (0, 0.5),
    ]  # rotate 15, as often as -30, first
