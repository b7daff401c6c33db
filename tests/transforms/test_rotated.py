"""targets.py: rotated boxes of torchvision go with their image, in its three formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pictures import noise
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from deepaa.ops import rectangle_corners
from deepaa.ops.geometry import MOVING
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Space, Table
from deepaa.policy.policy import Policy
from deepaa.transforms import DeepAutoAugment

FORMATS = ("XYWHR", "CXCYWHR", "XYXYXYXY")
SIZE = (32, 48)
ROWS = torch.tensor(
    [
        [20.0, 15, 12, 6, 30],
        [10, 20, 5, 9, -75],
        [30, 12, 8, 8, 180],
        [40, 16, 6, 14, 270],
        [2, 3, 16, 6, 30],  # partly outside
        [24, 16, 4, 7, 0],
    ]
)
GEOMETRY = Space(tuple(op for op in IMAGENET.operations if op.name in MOVING))


def boxes(rows: Any = ROWS, kind: str = "CXCYWHR", size: tuple[int, int] = SIZE) -> Any:
    return tv_tensors.BoundingBoxes(torch.as_tensor(rows), format=kind, canvas_size=size)


def convert(given: Any, kind: str) -> Any:
    return F.convert_bounding_box_format(given, new_format=kind)


def plain(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Tensor)


def depths(box: Any, height: int, width: int) -> Any:
    """(H, W): how far the centre of each pixel is within a box (centre, size, angle)."""
    x, y, w, h, degrees = box
    radians = np.radians(degrees)
    right, down = np.arange(width)[None] + 0.5 - x, np.arange(height)[:, None] + 0.5 - y
    along = np.abs(right * np.cos(radians) - down * np.sin(radians))
    across = np.abs(right * np.sin(radians) + down * np.cos(radians))
    return np.minimum(w / 2 - along, h / 2 - across)


@pytest.mark.parametrize("size", [(40, 40), (36, 64), (61, 43)])
@pytest.mark.parametrize("space", [CIFAR, IMAGENET])
def test_a_painted_rectangle_and_its_box_stay_together(space: Space, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for operation, m in space.table.rows:
        if operation.name not in MOVING:
            continue
        transform = DeepAutoAugment(Policy.uniform(Table([(operation, m)]), 1), seed=0)
        for index in range(3):
            centre = np.array(size[::-1]) * rng.uniform(0.4, 0.6, 2)
            given = np.array([*centre, *rng.uniform(5, 15, 2), rng.uniform(-180, 180)])
            image = torch.from_numpy(255 * (depths(given, *size) > 0).astype(np.uint8))[None]
            out, box = transform(image, boxes(given[None], size=size), index=index)
            (after,) = box.tolist()
            depth, painted = depths(after, *size), out[0].numpy() > 127
            told = f"{operation.name} {m} of {given.tolist()}"
            if operation.name == "resized_crop":  # enlarges, and may cut all of it off
                larger = max(after[2:4]) / min(given[2:4])
                assert not painted.any() or depth[painted].min() > -max(1.0, larger), told
                continue
            assert depth[painted].min() > -1, told
            if operation.name not in ("shear_x", "shear_y", "cutout"):
                assert depth[~painted].max() < 1, told


def test_what_the_angle_and_the_first_corner_do() -> None:
    """A flip negates the angle and begins at the other end of the top edge; a rotation adds."""
    given = boxes([[10.0, 12, 8, 4, 20]])
    before = rectangle_corners(plain(given).double().numpy())[0]
    flip = DeepAutoAugment(Policy.always(Operation("flip")), seed=0)
    index = next(i for i in range(9) if flip(noise(3, *SIZE), given, index=i)[1][0, 0] > 20)
    assert plain(flip(noise(3, *SIZE), given, index=index)[1]).tolist() == [[38, 12, 8, 4, -20]]
    corners = plain(flip(noise(3, *SIZE), convert(given, "XYXYXYXY"), index=index)[1])
    want = before[[1, 0, 3, 2]] * (-1, 1) + (SIZE[1], 0)  # the top edge stays the first
    assert np.allclose(corners.reshape(4, 2), want, atol=1e-5)
    turn = Table([(Operation("rotate", -30, 30), 30.0)])
    _, box = DeepAutoAugment(Policy.uniform(turn, 1))(noise(3, *SIZE), given)
    assert box[0, 4] == pytest.approx(50, abs=1e-5)
    want = plain(F.rotate(given, 30.0))[0]
    assert torch.allclose(plain(box)[0], want, atol=1e-4)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_formats_tell_the_same_box(kind: str, dtype: torch.dtype) -> None:
    transform = DeepAutoAugment(Policy.uniform(GEOMETRY, 2), seed=4, cutout_targets="hide")
    given = boxes(ROWS.to(dtype))
    for index in range(30):
        _, want, found = transform(noise(3, *SIZE), given, convert(given, kind), index=index)
        assert (found.format.value, found.canvas_size, found.dtype) == (kind, SIZE, dtype)
        sizes = plain(convert(found, "CXCYWHR"))[:, 2:4]
        assert torch.allclose(sizes, plain(want)[:, 2:4], atol=1e-4)
        found, want = plain(convert(found, "XYXYXYXY")), plain(convert(want, "XYXYXYXY"))
        assert torch.allclose(found, want, atol=1e-4)


def test_colour_leaves_whole_boxes_alone() -> None:
    rows = ROWS[[0, 1, 2, 3, 5]]
    transform = DeepAutoAugment(Policy.always(Operation("invert")))
    for kind in ("XYWHR", "CXCYWHR", "XYXYXYXY"):
        given = convert(boxes(rows), kind)
        out = transform(noise(3, *SIZE), given)[1]
        assert type(out) is tv_tensors.BoundingBoxes
        assert torch.allclose(plain(out), plain(given), atol=1e-5, rtol=0)
    assert transform(noise(3, *SIZE), boxes(torch.zeros(0, 5)))[1].shape == (0, 5)
    # DOTA and others round corners to whole pixels
    rounded = convert(boxes(rows), "XYXYXYXY").round()
    out = transform(noise(3, *SIZE), tv_tensors.wrap(rounded, like=rounded))[1]
    assert (plain(out) - plain(rounded)).abs().max() < 1


def test_what_is_cut_off_is_what_torchvision_cuts_off() -> None:
    out = DeepAutoAugment(Policy.always(Operation("invert")))(noise(3, *SIZE), boxes())[1]
    want = plain(convert(F.clamp_bounding_boxes(boxes(), clamping_mode="soft"), "XYXYXYXY"))
    assert torch.allclose(plain(convert(out, "XYXYXYXY")), want, atol=1e-4)
    assert out[4, 2] < ROWS[4, 2]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_box_that_leaves_is_sanitized_with_its_label(kind: str) -> None:
    left = Table([(Operation("translate_x", 0, 0.5), 0.5)])
    sample = {
        "image": tv_tensors.Image(noise(3, *SIZE)),
        "boxes": convert(boxes([[12.0, 16, 8, 4, 30], [40, 16, 8, 4, 30]]), kind),
        "labels": torch.tensor([5, 6]),
    }
    out = DeepAutoAugment(Policy.uniform(left, 1))(sample)
    assert plain(convert(out["boxes"], "CXCYWHR"))[0].tolist()[:4] == [0, 16, 0, 0]
    clean = v2.SanitizeBoundingBoxes()(out)
    assert clean["labels"].tolist() == [6]
    found = plain(convert(clean["boxes"], "CXCYWHR"))
    assert torch.allclose(found, torch.tensor([[16.0, 16, 8, 4, 30]]), atol=1e-4)


def test_a_batch_equals_single_samples() -> None:
    transform = DeepAutoAugment(Policy.uniform(GEOMETRY, 2), seed=2, cutout_targets="hide")
    images = noise(4, 3, *SIZE)
    targets = [{"boxes": boxes(ROWS[i:]), "labels": ROWS[i:, 0]} for i in range(4)]
    _, batch = transform(images, targets, index=range(4))
    _, listed = transform(list(images), targets, index=range(4))
    for i in range(4):
        _, alone = transform(images[i], targets[i], index=i)
        assert torch.equal(plain(alone["boxes"]), plain(batch[i]["boxes"]))
        assert torch.equal(plain(alone["boxes"]), plain(listed[i]["boxes"]))


def test_policies_one_after_another_take_what_they_give() -> None:
    """What is left of boxes at the border, and nothing of them, is no error in the next one."""
    transform = DeepAutoAugment(Policy.uniform(GEOMETRY, 2), seed=3)
    for kind in FORMATS:
        found = convert(boxes(), kind)
        for index in range(40):
            _, found = transform(noise(3, *SIZE), found, index=index)
            found = found if index % 5 else convert(boxes(), kind)


def test_what_rounding_put_beside_the_image_has_vanished() -> None:
    given = boxes([[-4.5, 10, 8, 4, 0], [20, 38, 8, 8, 45]])  # half a pixel, a third of one
    out = DeepAutoAugment(Policy.always(Operation("invert")))(noise(3, *SIZE), given)[1]
    assert plain(out).tolist() == [[0, 10, 0, 0, 0], [20, 32, 0, 0, 45]]


NAN = float("nan")
SQUARE = [10.0, 10, 20, 10, 20, 20, 10, 20]


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (
            [[1.0, 2, 3, 4, 0], [5, 6, 7, NAN, 0]],
            "XYWHR",
            r"finite coordinates, got nan at \[1, 3\]",
        ),
        ([[5.0, 6, 7, 8, float("inf")]], "CXCYWHR", r"finite coordinates, got inf at \[0, 4\]"),
        (
            [[1.0, 2, 3, 4, 0], [5, 6, 7, -8, 9]],
            "XYWHR",
            r"box 1, \[5.0, 6.0, 7.0, -8.0, 9.0\] in XYWHR, has a negative width",
        ),
        ([[5.0, 6, -7, 8, 9]], "CXCYWHR", "box 0, .* in CXCYWHR, has a negative width or height"),
        ([[70.0, 6, 7, 8, 9]], "CXCYWHR", "box 0, .* lies outside of its image of 32 x 48"),
        # the upright box around it is partly inside
        ([[-5.0, -5, 30, 2, 45]], "CXCYWHR", "box 0, .* lies outside of its image of 32 x 48"),
        (
            [SQUARE, [10.0, 10, 20, 10, 25, 20, 10, 20]],
            "XYXYXYXY",
            "box 1, .* is no rectangle with",
        ),
        (
            [SQUARE[:2] + SQUARE[6:] + SQUARE[4:6] + SQUARE[2:4]],
            "XYXYXYXY",
            "box 0, .* top left, top right, bottom right",
        ),
        ([[1.0, 2, 3, 4]], "XYWHR", "a box in XYWHR has 5 numbers, got 4"),
        ([[1.0, 2, 3, 4, 5]], "XYXYXYXY", "a box in XYXYXYXY has 8 numbers, got 5"),
    ],
)
def test_bad_boxes_are_named(rows: Any, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        DeepAutoAugment(Policy.uniform(GEOMETRY, 2))(noise(3, *SIZE), boxes(rows, kind))
    assert "\n" not in str(error.value)


def test_whole_numbers_are_refused_as_torchvision_refuses_them() -> None:
    given = boxes().to(torch.int64)  # which it lets pass
    assert type(given) is tv_tensors.BoundingBoxes
    with pytest.raises(ValueError, match="boxes in CXCYWHR should be floating point, got whole"):
        DeepAutoAugment(Policy.uniform(GEOMETRY, 2))(noise(3, *SIZE), given)
