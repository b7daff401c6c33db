"""targets.py: whole numbers that cannot hold where boxes and key points go."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pictures import noise
from torch import Tensor
from torchvision import tv_tensors

from deepaa.ops.space import Operation, Table
from deepaa.policy.policy import Policy
from deepaa.transforms import DeepAutoAugment


def always(name: str, magnitude: float, layers: int = 1) -> DeepAutoAugment:
    table = Table([(Operation(name, 0, magnitude), magnitude)])
    return DeepAutoAugment(Policy.uniform(table, layers))


def points(*rows: Any, dtype: torch.dtype, size: tuple[int, int]) -> Any:
    return tv_tensors.KeyPoints(torch.tensor(rows, dtype=dtype), canvas_size=size)


def boxes(*rows: Any, dtype: torch.dtype, size: tuple[int, int]) -> Any:
    values = torch.tensor(rows, dtype=dtype)
    return tv_tensors.BoundingBoxes(values, format="XYXY", canvas_size=size)


def moved(transform: DeepAutoAugment, leaf: Any) -> Any:
    return transform(noise(3, *leaf.canvas_size), leaf)[1].as_subclass(Tensor)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32])
def test_unsigned_points_are_refused(dtype: torch.dtype) -> None:
    """One that left, to 115 pixels beside its image, came back as one at 141, in the image."""
    left, size = always("translate_x", 0.5), (200, 250)
    found = moved(left, points([10, 100], dtype=torch.int16, size=size))
    assert found.tolist() == [[-115, 100]]
    told = f"KeyPoints of {dtype} cannot say which points left .*: give torch.int64 or torch.float"
    with pytest.raises(ValueError, match=told) as error:
        moved(left, points([10, 100], dtype=dtype, size=size))
    assert "\n" not in str(error.value)
    box = boxes([10, 20, 130, 100], dtype=dtype, size=size)  # stays within the image
    assert moved(left, box).tolist() == [[0, 20, 5, 100]]


@pytest.mark.parametrize("make", [points, boxes])
@pytest.mark.parametrize(("dtype", "width"), [(torch.int8, 128), (torch.uint8, 256)])
def test_types_that_are_too_small_for_the_image_are_refused(
    make: Any, dtype: torch.dtype, width: int
) -> None:
    flip = DeepAutoAugment(Policy.always(Operation("flip")), seed=0)
    row = [3, 4] if make is points else [3, 4, 9, 9]
    with pytest.raises(ValueError, match=f"of {dtype} cannot hold the places in .* 16 x {width}:"):
        moved(flip, make(row, dtype=dtype, size=(16, width)))
    if make is boxes or dtype == torch.int8:
        assert moved(flip, make(row, dtype=dtype, size=(16, width - 1))).dtype == dtype


def test_points_far_outside_stay_outside_in_small_types() -> None:
    far = points([5, 120], dtype=torch.int8, size=(127, 127))
    assert moved(always("shear_x", 1.0), far).tolist() == [[-115, 120]]
    assert moved(always("shear_x", 1.0, layers=2), far).tolist() == [[-128, 120]]
