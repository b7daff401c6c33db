"""Tables by equality with numbers computed by hand; the preview by its pixels."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from deepaa.data import load_embedded
from deepaa.keys import sample_key
from deepaa.ops.engine import run_pil
from deepaa.policy import Chains, Layers, Policy
from deepaa.report import layer_table, preview_grid, use_table
from deepaa.report.preview import augmented, grid_layout
from deepaa.report.tables import (
    LayerTable,
    MagnitudeShare,
    OperationShare,
    OperationUses,
    as_dict,
    policy_table,
)
from deepaa.report.terminal import magnitudes
from deepaa.space import CIFAR, Operation, Space, Table

IDENTITY, INVERT = Operation("identity"), Operation("invert")
ROTATE = Operation("rotate", -30.0, 30.0, neutral=0.0)
SMALL = Table([(IDENTITY, None), (INVERT, None), (ROTATE, -30.0), (ROTATE, 15.0)])
TWO_LAYERS = Policy(SMALL, Layers(torch.tensor([[0.0, 0.5, 0.125, 0.375], [1.0, 0.0, 0.0, 0.0]])))

# Tables


def test_layers_by_hand():
    # entropy of (1/2, 1/8, 3/8): 1/2 * 1 + 1/8 * 3 + 3/8 * (3 - log2 3)
    entropy = 0.5 + 0.375 + 0.375 * (3 - np.log2(3))
    first, second = layer_table(TWO_LAYERS)
    assert first == LayerTable(
        layer=1,
        entropy=pytest.approx(entropy, abs=1e-12),
        perplexity=pytest.approx(2**entropy, abs=1e-12),
        identity=0.0,
        operations=(
            OperationShare("invert", 0.5, ()),
            OperationShare(
                "rotate", 0.5, (MagnitudeShare(15.0, 0.75), MagnitudeShare(-30.0, 0.25))
            ),
        ),
        others=0,
        others_probability=0.0,
    )
    assert second == LayerTable(2, 0.0, 1.0, 1.0, (OperationShare("identity", 1.0, ()),), 0, 0.0)


def test_top_keeps_the_rest_as_one_number():
    first, second = layer_table(TWO_LAYERS, top=1)
    assert [op.name for op in first.operations] == ["invert"]
    assert (first.others, first.others_probability) == (1, 0.5)
    assert (second.others, second.others_probability) == (0, 0.0)
    with pytest.raises(ValueError, match="top should be at least 1, got 0"):
        layer_table(TWO_LAYERS, top=0)


def test_uniform_and_trivial_policies():
    (uniform,) = layer_table(Policy.uniform(CIFAR, 1), top=99)
    assert uniform.entropy == pytest.approx(np.log2(139), abs=1e-12)
    assert uniform.perplexity == pytest.approx(139, abs=1e-9)
    assert uniform.identity == pytest.approx(1 / 139)
    shares = {op.name: op for op in uniform.operations}
    assert shares["rotate"].probability == pytest.approx(12 / 139)
    assert shares["flip"].probability == pytest.approx(1 / 139)
    assert [item.magnitude for item in shares["rotate"].magnitudes] == [
        *(-30, -25, -20, -15, -10, -5, 5, 10, 15, 20, 25, 30)  # equal shares stay in order
    ]
    (trivial,) = layer_table(Policy.trivial(CIFAR, 1), top=99)
    assert {round(op.probability, 12) for op in trivial.operations} == {round(1 / 18, 12)}
    assert [op.name for op in trivial.operations] == [op.name for op in CIFAR.operations]


def test_closed_gates_count_as_identity():
    chains = Chains(
        torch.tensor([0.25, 0.75]), torch.tensor([[1, 2], [3, 1]]), torch.tensor([[1.0, 0.5]] * 2)
    )
    first, second = layer_table(Policy(SMALL, chains))
    assert [(op.name, op.probability) for op in first.operations] == [
        ("rotate", 0.75),
        ("invert", 0.25),
    ]
    assert second.identity == 0.5
    assert use_table(Policy(SMALL, chains)) == (
        OperationUses("rotate", 0.875),
        OperationUses("invert", 0.625),
        OperationUses("identity", 0.5),
    )


def test_uses_add_up_over_layers_and_leave_out_the_unused():
    assert use_table(TWO_LAYERS) == (
        OperationUses("identity", 1.0),
        OperationUses("invert", 0.5),
        OperationUses("rotate", 0.5),
    )
    assert [use.name for use in use_table(Policy.identity(CIFAR))] == ["identity"]


def test_a_schedule_is_shown_at_an_epoch():
    invert = Layers(torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    still = Layers(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    policy = Policy(SMALL, schedule=[(0, [still]), (5, [invert, invert])])
    assert [layer.identity for layer in layer_table(policy, epoch=4)] == [1.0]
    assert [layer.identity for layer in layer_table(policy, epoch=5)] == [0.0, 0.0]
    table = policy_table(policy, "mine", epoch=7)
    assert table.epochs == (0, 5)
    assert len(table.layers) == 2
    assert table.uses == (OperationUses("invert", 2.0),)


def test_tables_are_json():
    table = policy_table(TWO_LAYERS, "mine", top=1)
    found = json.loads(json.dumps(as_dict(table), allow_nan=False))
    assert found["name"] == "mine"
    assert (found["transformations"], found["operations"]) == (4, 3)
    assert found["layers"][0]["operations"] == [
        {"name": "invert", "probability": 0.5, "magnitudes": []}
    ]
    assert found["uses"][0] == {"name": "identity", "uses": 1.0}


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ((), ""),
        (((4.0, 1.0),), "4"),
        (((-3.0, 0.5), (3.0, 0.5)), "-3 to 3, 2 levels evenly"),
        (((0.45, 0.49), (-0.45, 0.38), (0.3, 0.13)), "0.45 (49%), -0.45 (38%), 0.3 (13%)"),
        (((1.0, 0.4), (2.0, 0.3), (3.0, 0.2), (4.0, 0.1)), "1 (40%), 2 (30%), 3 (20%) ..."),
    ],
)
def test_magnitudes_in_words(shares, text):
    found = tuple(MagnitudeShare(*share) for share in shares)
    assert magnitudes(OperationShare("x", 1.0, found)) == text


# Preview


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
    sheet = preview_grid(load_embedded().train_images[:2], TWO_LAYERS, rows=1)
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
        preview_grid(images, TWO_LAYERS, rows)


def test_a_policy_of_a_space_without_identity_has_tables_and_a_preview():
    policy = Policy.uniform(Space((INVERT, ROTATE)), 2)
    assert layer_table(policy)[0].identity == 0.0
    preview_grid(load_embedded().train_images[:2], policy)
