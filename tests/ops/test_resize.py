"""Boxes of pictures of any size and orientation become Pillow's squares, on every device."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.Image import Resampling, Transpose

from deepaa.ops.resize import Box, BoxTaps, box_taps, resize_boxes

TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}


class Case(NamedTuple):
    pictures: list[torch.Tensor]
    which: list[int]
    taps: BoxTaps
    expected: torch.Tensor


def cases(side: int, seed: int = 0, pictures: int = 24) -> Case:
    """Random pictures in all orientations, two boxes of each, and what Pillow makes of them."""
    rng = np.random.default_rng(seed)
    found: list[torch.Tensor] = []
    boxes, shapes, which, expected = [], [], [], []
    for number in range(pictures):
        width, height = rng.integers(3, 90, 2).tolist()
        stored = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        found.append(torch.from_numpy(stored.transpose(2, 0, 1).copy()))
        orientation = number % 8 + 1
        upright = Image.fromarray(stored)
        if orientation in TURNS:
            upright = upright.transpose(TURNS[orientation])
        for whole in (False, True):
            box = random_box(rng, upright, side, whole=whole)
            boxes.append(box)
            shapes.append((width, height, orientation))
            which.append(number)
            expected.append(by_pillow(upright, box, side))
    return Case(found, which, box_taps(boxes, side, shapes), torch.stack(expected))


def random_box(rng: np.random.Generator, picture: Image.Image, side: int, *, whole: bool) -> Box:
    """A part that fills the square, or all of the picture, of which a window is cut."""
    if whole:
        target_width, target_height = rng.integers(side, side + 20, 2).tolist()
        x = int(rng.integers(0, target_width - side + 1))
        y = int(rng.integers(0, target_height - side + 1))
        return Box(0, 0, *picture.size, target_width, target_height, x, y)
    width, height = (int(rng.integers(1, length + 1)) for length in picture.size)
    left = int(rng.integers(0, picture.width - width + 1))
    top = int(rng.integers(0, picture.height - height + 1))
    return Box(left, top, width, height, side, side)


def by_pillow(picture: Image.Image, box: Box, side: int) -> torch.Tensor:
    """Rows first: some versions begin with the columns where that is cheaper."""
    left, top, width, height, target_width, target_height, x, y = box
    part = picture.crop((left, top, left + width, top + height))
    part = part.resize((target_width, height), Resampling.BICUBIC)
    part = part.resize((target_width, target_height), Resampling.BICUBIC)
    square = part.crop((x, y, x + side, y + side))
    return torch.from_numpy(np.asarray(square).transpose(2, 0, 1).copy())


@pytest.mark.parametrize("side", [1, 7, 24, 70])
def test_squares_are_those_of_pillow(side):
    case = cases(side)
    made = resize_boxes(case.pictures, case.which, case.taps, triton=False)
    assert torch.equal(made, case.expected)


def test_a_box_as_large_as_its_square_keeps_its_pixels():
    picture = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    taps = box_taps([Box(5, 9, 24, 24, 24, 24)], 24, [(50, 40, 1)])
    made = resize_boxes([picture], [0], taps, triton=False)
    assert torch.equal(made[0], picture[:, 9:33, 5:29])


IN_THE_INTERPRETER = """
import torch
from test_resize import cases
from deepaa.ops.resize import resize_boxes
for side in (7, 70):
    case = cases(side, pictures=10)
    made = resize_boxes(case.pictures, case.which, case.taps, triton=True)
    assert torch.equal(made, case.expected), side
print("equal")
"""


@pytest.mark.slow
def test_the_kernels_in_tritons_interpreter():
    pytest.importorskip("triton")
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), *sys.path]))  # noqa: PTH120
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.parametrize("side", [1, 24, 224])
def test_the_kernels_on_cuda(side):
    case = cases(side, seed=1, pictures=64)
    pictures = [picture.cuda() for picture in case.pictures]
    made = resize_boxes(pictures, case.which, case.taps, triton=True)
    assert torch.equal(made.cpu(), case.expected)
