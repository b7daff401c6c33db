"""counts.py: labels, masks and the like that are not as many as the boxes beside them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from pictures import noise
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from deepaa.ops import Operation
from deepaa.policy.policy import Policy
from deepaa.transforms import DeepAutoAugment

FLIP = DeepAutoAugment(Policy.always(Operation("flip")), seed=0)
PICTURE = Image.new("RGB", (24, 16))


def boxes(n: int) -> Any:
    rows = torch.tensor([1.0, 2, 8, 9]).repeat(n, 1)
    return tv_tensors.BoundingBoxes(rows, format="XYXY", canvas_size=(16, 24))


def points(*shape: int) -> Any:
    return tv_tensors.KeyPoints(torch.ones(*shape, 2), canvas_size=(16, 24))


def masks(*shape: int) -> Any:
    return tv_tensors.Mask(torch.zeros(*shape, 16, 24, dtype=torch.uint8))


TWO = boxes(2)
ONE = torch.tensor([3])


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ((PICTURE, {"boxes": TWO, "labels": ONE}), "in [1]: 'labels' has 1 and 'boxes' has 2, and"),
        ({"image": PICTURE, "boxes": TWO, "masks": masks(3)}, "'masks' has 3 and 'boxes' has 2, a"),
        ({"image": PICTURE, "boxes": TWO, "keypoints": points(3, 17)}, "'keypoints' has 3 and 'bo"),
        ((PICTURE, {"boxes": TWO, "keypoints": points(1, 5)}), "in [1]: 'keypoints' has 1 and 'bo"),
        ({"image": PICTURE, "bboxes": TWO, "area": torch.ones(3)}, "'area' has 3 and 'bboxes' has"),
        ({"image": PICTURE, "boxes": boxes(0), "labels": ONE}, "'labels' has 1 and 'boxes' has 0,"),
        ((PICTURE, {"boxes": TWO, "iscrowd": np.zeros(1, bool)}), "in [1]: 'iscrowd' has 1 and 'b"),
        (
            [{"image": PICTURE, "boxes": boxes(n), "labels": ONE} for n in (1, 2)],
            "in sample 1: 'labels' has 1 and 'boxes' has 2, and",
        ),
        (
            [(PICTURE, {"boxes": boxes(n), "class_labels": ONE}) for n in (1, 2)],
            "in sample 1, [1]: 'class_labels' has 1 and 'boxes' has 2, and",
        ),
        (
            (noise(2, 3, 16, 24), [{"boxes": boxes(n), "labels": ONE} for n in (1, 2)]),
            "in sample 1, [1][1]: 'labels' has 1 and 'boxes' has 2, and",
        ),
        (
            ([PICTURE, PICTURE], {"boxes": [boxes(1), TWO], "labels": [ONE, ONE]}),
            "in sample 1, [1]: 'labels' has 1 and 'boxes' has 2, and",
        ),
    ],
)
def test_other_numbers_than_boxes_are_named(sample: Any, told: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(told)) as error:
        FLIP(sample)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "more",
    [
        {"labels": torch.tensor([1, 2]), "area": torch.ones(2), "masks": masks(2)},
        {"labels": torch.rand(20)},  # of the image, as a network's loss takes them
        {"labels": torch.ones(20, dtype=torch.bool), "label": ONE, "image_id": ONE},
        {"labels": torch.tensor(3), "masks": masks(), "area": 7.0},
        {"labels": torch.zeros(1, 2, dtype=torch.int64), "masks": masks(1), "mask": masks(3)},
        {"keypoints": points(2, 17)},
        {"keypoints": points(17)},  # of the image
        {"labels": ["a"], "iscrowd": None, "masks": masks(4, 3)},
        {"proposals": boxes(9), "labels": torch.tensor([1, 2])},
    ],
)
def test_what_is_about_the_image_is_taken(more: dict[str, Any]) -> None:
    assert FLIP({"image": PICTURE, "boxes": TWO, **more}).keys() == {"image", "boxes", *more}


def test_what_has_no_boxes_of_one_kind_beside_it_is_taken() -> None:
    FLIP({"image": PICTURE, "found": TWO, "proposals": boxes(9), "labels": ONE})
    FLIP({"image": PICTURE, "labels": ONE, "target": {"boxes": TWO}})
    FLIP({"image": PICTURE, "labels": ONE, "masks": masks(3)})
    FLIP({"video": tv_tensors.Video(noise(5, 3, 16, 24)), "boxes": TWO, "masks": masks(5)})
    FLIP({"video": tv_tensors.Video(noise(5, 3, 16, 24)), "boxes": TWO, "keypoints": points(5, 4)})
    FLIP({"images": noise(4, 3, 16, 24), "boxes": [TWO] * 4, "labels": torch.arange(4)})


def test_torchvision_refuses_the_same_labels() -> None:
    sample = {"image": tv_tensors.Image(noise(3, 16, 24)), "boxes": TWO, "labels": ONE}
    with pytest.raises(ValueError, match="match the number of labels"):
        v2.SanitizeBoundingBoxes()(sample)
    with pytest.raises(ValueError, match="'labels' has 1 and 'boxes' has 2"):
        FLIP(sample)
