"""Convolutions of few channels by Triton: torch's numbers, forward and backward."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from deepaa.models import build_model

ON_CPU = """
import torch
from torch.nn import functional as F
from deepaa.narrow_conv import Tile, convolve, weight_gradient
torch.manual_seed(0)
cases = [
    (16, 8, Tile(1, 4, 16, 4, 2, 3)),
    (16, 4, Tile(2, 4, 16, 4, 2, 3)),
    (32, 8, Tile(1, 2, 16, 4, 2, 5)),
    (32, 8, Tile(1, 8, 16, 4, 2, 2)),
    (16, 4, Tile(4, 2, 16, 4, 2, 1)),
]
for c, side, tile in cases:
    last = dict(memory_format=torch.channels_last)
    x, dy = (torch.randn(4, c, side, side).to(**last) for _ in range(2))
    w = torch.randn(c, c, 3, 3).to(**last)
    xd, wd = x.double().requires_grad_(), w.double().requires_grad_()
    y = F.conv2d(xd, wd, padding=1)
    y.backward(dy.double())
    mine = convolve(x, w, tile), convolve(dy, w, tile, back=True), weight_gradient(x, dy, tile)
    for found, wanted in zip(mine, (y.detach(), xd.grad, wd.grad), strict=True):
        assert found.shape == wanted.shape and found.is_contiguous(**last)
        assert (found - wanted).norm() < 1e-6 * wanted.norm(), (c, side, tile)
print("equal")
"""


@pytest.mark.slow
def test_kernels_in_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ON_CPU], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


def test_what_is_turned_and_what_stays() -> None:
    narrow_conv = pytest.importorskip("deepaa.narrow_conv")
    model = build_model("wrn-40-2", 10).eval()
    before, images = copy.deepcopy(model), torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert narrow_conv.narrow(model) == 33  # of 36, since three change the number of channels
    assert narrow_conv.narrow(model) == 0
    assert model.state_dict().keys() == before.state_dict().keys()
    assert torch.equal(model(images), before(images))  # torch's way outside of trainings
    others = nn.Sequential(
        nn.Conv2d(32, 32, 3, padding=1),  # a bias
        nn.Conv2d(32, 32, 3, padding=1, bias=False, stride=2),
        nn.Conv2d(32, 32, 3, padding=1, bias=False, groups=2),
        nn.Conv2d(32, 32, 3, padding=1, bias=False, padding_mode="reflect"),
        nn.Conv2d(48, 48, 3, padding=1, bias=False),
        nn.Conv2d(32, 32, 5, padding=2, bias=False),
    )
    assert narrow_conv.narrow(others) == 0


@pytest.mark.parametrize(
    ("channels", "height", "width", "fit"),
    [
        (32, 32, 32, True),
        (64, 16, 16, True),
        (128, 8, 8, True),
        (64, 8, 8, True),
        (128, 16, 16, False),  # more than a program has room for
        (64, 56, 56, False),
        (32, 24, 24, False),  # not a power of two
        (128, 4, 4, False),  # not enough rows
    ],
)
def test_which_images_are_served(channels: int, height: int, width: int, fit: bool) -> None:
    narrow_conv = pytest.importorskip("deepaa.narrow_conv")
    assert narrow_conv.fits(torch.empty(2, channels, height, width)) == fit


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "side"), [(32, 32), (64, 16), (128, 8)])
def test_they_give_torchs_numbers_on_the_device(channels: int, side: int) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    narrow_conv = pytest.importorskip("deepaa.narrow_conv")
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).cuda()
    assert narrow_conv.narrow(conv) == 1
    last = torch.channels_last
    conv = conv.to(memory_format=last)
    shape = (128, channels, side, side)
    x = torch.randn(shape, device="cuda").bfloat16().to(memory_format=last).requires_grad_()
    assert narrow_conv.fits(x)
    dy = torch.randn(shape, device="cuda").bfloat16().to(memory_format=last)
    y = conv(x)
    y.backward(dy)
    exact = conv.weight.detach().bfloat16().double().requires_grad_()
    xd = x.detach().double().requires_grad_()
    wanted = nn.functional.conv2d(xd, exact, padding=1)
    wanted.backward(dy.double())
    assert y.dtype == x.grad.dtype == torch.bfloat16
    assert conv.weight.grad.dtype == torch.float32
    rounded = 2.0**-8
    own = narrow_conv.TILES[channels].weights is not None  # then never rounded to bfloat16
    for found, right, limit in (
        (y, wanted, rounded),
        (x.grad, xd.grad, rounded),
        (conv.weight.grad, exact.grad, 1e-4 if own else rounded),
    ):
        assert (found.double() - right).norm() < limit * right.norm()
    again = conv.weight.grad.clone()
    conv.weight.grad = None
    conv(x).backward(dy)
    assert torch.equal(conv.weight.grad, again)
