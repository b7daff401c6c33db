"""Convolutions of few channels by Triton: torch's numbers, forward and backward."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from deepaa.models import build_model
from deepaa.train.config import TrainConfig
from deepaa.train.step import Step

FAST = TrainConfig(compile=True, channels_last=True, precision="bfloat16")
ON_CPU = """
import torch
from torch.nn import functional as F
from deepaa.train.hopper_conv import Tile, convolve, weight_gradient
torch.manual_seed(0)
cases = [
    (16, 8, 8, Tile(4, 4, 2, 3)),
    (16, 4, 8, Tile(2, 4, 2, 1)),
    (32, 8, 8, Tile(2, 4, 2, 5)),
    (32, 16, 8, Tile(8, 4, 2, 2)),
]
for c, height, width, tile in cases:
    last = dict(memory_format=torch.channels_last)
    x, dy = (torch.randn(3, c, height, width).to(**last) for _ in range(2))
    w = torch.randn(c, c, 3, 3).to(**last)
    xd, wd = x.double().requires_grad_(), w.double().requires_grad_()
    y = F.conv2d(xd, wd, padding=1)
    y.backward(dy.double())
    mine = convolve(x, w, tile), convolve(dy, w, tile, back=True), weight_gradient(x, dy, tile)
    for found, wanted in zip(mine, (y.detach(), xd.grad, wd.grad), strict=True):
        assert found.shape == wanted.shape and found.is_contiguous(**last)
        assert (found - wanted).norm() < 1e-6 * wanted.norm(), (c, height, width, tile)
print("equal")
"""
FOR_HOPPER = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from deepaa.train import hopper_conv as n

def room(kernel, arguments, constants, tile):
    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options=options).metadata.shared

for c, (images, weights) in n.TILES.items():
    for width in {n.WIDTH, n.ROW // c}:
        size = dict(H=width, W=width, C=c)
        block = f"tensordesc<bf16[1, {images.rows}, {width}, {c}]>"
        taken = [
            room(
                n._conv_kernel,
                dict(x=block, w=f"tensordesc<bf16[{c}, {c}]>", y=block),
                dict(BH=images.rows, **size, BACK=back, STAGES=images.stages),
                images,
            )
            for back in (False, True)
        ]
        if weights is not None:
            block = f"tensordesc<bf16[1, {weights.rows}, {width}, {c}]>"
            arguments = dict(x=block, dy=block, part="*fp32", count="i32", each="i32")
            constants = dict(BH=weights.rows, **size, STAGES=weights.stages)
            taken.append(room(n._row_kernel, arguments, constants, weights))
        assert max(taken) <= 227 * 1024, (c, width, taken)
print("room")
"""


def output_of(program: str, **environment: str) -> str:
    pytest.importorskip("triton")
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    interpreted = environment.get("TRITON_INTERPRET") and done.returncode
    if interpreted and "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("the interpreter of this Triton does not go with this NumPy")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.slow
def test_kernels_in_tritons_interpreter() -> None:
    assert output_of(ON_CPU, TRITON_INTERPRET="1") == "equal"


@pytest.mark.slow
def test_they_compile_for_hopper_and_find_room(tmp_path: Path) -> None:
    """At both ends of what is served; no GPU is needed for this."""
    assert output_of(FOR_HOPPER, TRITON_CACHE_DIR=str(tmp_path)) == "room"


def others() -> nn.Module:
    class Own(nn.Conv2d):
        pass

    return nn.Sequential(
        nn.Conv2d(32, 32, 3, padding=1),  # a bias
        nn.Conv2d(32, 32, 3, padding=1, bias=False, stride=2),
        nn.Conv2d(32, 32, 3, padding=1, bias=False, groups=2),
        nn.Conv2d(32, 32, 3, padding=1, bias=False, padding_mode="reflect"),
        nn.Conv2d(32, 32, 3, padding=2, bias=False, dilation=2),
        nn.Conv2d(32, 32, 3, bias=False),
        nn.Conv2d(32, 32, 3, padding="same", bias=False),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.Conv2d(48, 48, 3, padding=1, bias=False),
        nn.Conv2d(32, 32, 5, padding=2, bias=False),
        Own(32, 32, 3, padding=1, bias=False),
    )


def test_which_convolutions_are_served_and_how_long() -> None:
    pytest.importorskip("triton")
    from deepaa.train.hopper_conv import NarrowConv2d, convolutions, narrowed

    model = build_model("wrn-40-2", 10)
    found = convolutions(model)
    assert len(found) == 33  # of 36, since three change the number of channels
    assert convolutions(others()) == []
    with narrowed(found):
        assert all(type(module) is NarrowConv2d for module in found)
    assert all(type(module) is nn.Conv2d for module in found)
    with pytest.raises(IndexError), narrowed(found):
        found[33]  # an error inside
    assert all(type(module) is nn.Conv2d for module in found)


@pytest.mark.parametrize(
    ("training", "dtype", "shape", "own"),
    [
        (True, torch.bfloat16, (3, 32, 32, 32), True),
        (True, torch.bfloat16, (3, 32, 8, 16), True),
        (False, torch.bfloat16, (3, 32, 32, 32), False),
        (True, torch.float32, (3, 32, 32, 32), False),
        (True, torch.bfloat16, (32, 32, 32), False),  # one image
        (True, torch.bfloat16, (0, 32, 32, 32), False),
        (True, torch.bfloat16, (3, 32, 64, 64), False),  # more than a program has room for
        (True, torch.bfloat16, (3, 32, 24, 24), False),  # not a power of two
        (True, torch.bfloat16, (3, 32, 8, 4), False),  # too little for a matrix product
        (True, torch.bfloat16, (3, 32, 4, 8), False),  # not enough rows
    ],
)
def test_when_they_take_a_way_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
    training: bool,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    own: bool,
) -> None:
    pytest.importorskip("triton")
    from deepaa.train import hopper_conv as narrow_conv

    seen = []
    monkeypatch.setattr(narrow_conv, "_forward", lambda x, w, rounded: seen.append(x) or x)
    conv = nn.Conv2d(32, 32, 3, padding=1, bias=False, dtype=dtype).train(training)
    x = torch.randn(shape).to(dtype)
    expected = conv(x)
    with narrow_conv.narrowed([conv]):
        found = conv(x)
    assert bool(seen) == own
    assert own or torch.equal(found, expected)


@pytest.mark.parametrize(
    ("change", "major", "hip", "taken"),
    [
        ({}, 9, None, True),
        ({}, 8, None, False),
        ({}, 10, None, False),
        ({}, 9, "6.0", False),  # AMD's numbers have a nine too
        ({"compile": False}, 9, None, False),
        ({"precision": "float32"}, 9, None, False),
        ({"channels_last": False}, 9, None, False),
    ],
)
def test_which_trainings_take_it(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object], major: int, hip: str, taken: bool
) -> None:
    """The choice alone: what a device would be asked is answered here."""
    pytest.importorskip("triton")
    from deepaa.train import hopper_conv as narrow_conv, step as train_step

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(narrow_conv, "_is_right", lambda channels, device: True)
    model, device = build_model("wrn-40-2", 10), torch.device("cuda")
    narrow_conv.works.cache_clear()
    context = train_step._hopper_convolutions(model, replace(FAST, **change), device)
    narrow_conv.works.cache_clear()
    first = narrow_conv.convolutions(model)[0]
    with context():
        assert (type(first) is narrow_conv.NarrowConv2d) == taken
    assert type(first) is nn.Conv2d


@pytest.mark.parametrize("trouble", ["error", "other numbers"])
def test_kernels_that_fail_leave_the_work_to_cudnn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    pytest.importorskip("triton")
    from deepaa.train import hopper_conv as narrow_conv

    def fail(channels: int, device: torch.device) -> bool:
        if trouble == "error":
            raise MemoryError("out of resource: shared memory")
        return channels != 64

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(narrow_conv, "_is_right", fail)
    narrow_conv.works.cache_clear()
    assert not narrow_conv.works(torch.device("cuda"))
    narrow_conv.works.cache_clear()
    why = "out of resource: shared memory" if trouble == "error" else "those of [64] differ"
    assert caplog.messages == [f"cuDNN serves convolutions of few channels: {why}"]


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "side"), [(32, 32), (64, 16), (128, 8)])
@pytest.mark.parametrize("form", ["as measured", "other layout", "odd batch", "one gradient"])
def test_they_give_torchs_numbers_on_the_device(channels: int, side: int, form: str) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    from deepaa.train import hopper_conv as narrow_conv

    assert narrow_conv.works(torch.device("cuda"))
    layout = torch.contiguous_format if form == "other layout" else torch.channels_last
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).cuda()
    conv = conv.to(memory_format=layout)
    shape = (37 if form == "odd batch" else 128, channels, side, side)
    x = torch.randn(shape, device="cuda").bfloat16().to(memory_format=layout).requires_grad_()
    dy = torch.randn(shape, device="cuda").bfloat16().to(memory_format=layout)
    if form == "one gradient":
        dy = dy[:1, :1, :1, :1].expand(shape)
    with narrow_conv.narrowed([conv]):
        y = conv(x)
    assert "narrow_conv" in y.grad_fn.name().lower()
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
    if own:
        again = conv.weight.grad.clone()
        conv.weight.grad = None
        with narrow_conv.narrowed([conv]):
            conv(x).backward(dy)
        assert torch.equal(conv.weight.grad, again)


@pytest.mark.gpu
def test_a_training_takes_it_and_leaves_the_network_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    from deepaa.train import hopper_conv as narrow_conv

    seen = []
    whole = narrow_conv.convolve
    monkeypatch.setattr(
        narrow_conv, "convolve", lambda *a, **k: (seen.append(a[0].shape), whole(*a, **k))[1]
    )
    device = torch.device("cuda")
    model = build_model("wrn-40-2", 10).to(device, memory_format=torch.channels_last)
    step = Step(model, replace(FAST, fused=False), device)
    images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8, device=device)
    labels = torch.arange(128, device=device) % 10
    seen.clear()
    step(images, labels, 0.1, 128)
    assert len(seen) == 66  # forward and backward
    assert all(type(m) is not narrow_conv.NarrowConv2d for m in model.modules())
