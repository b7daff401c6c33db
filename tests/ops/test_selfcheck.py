"""The self-check finds no difference from Pillow here, and finds what is made wrong."""

import platform

import pytest
import torch
from PIL import Image

from deepaa.ops import kernels_c, selfcheck
from deepaa.ops.apply import apply_batch, apply_torch, triton_problem
from deepaa.ops.conversions import pillow_rounds_blends
from deepaa.ops.selfcheck import (
    PixelDifference,
    _apply_one_by_one,
    compare_with_pillow,
    cpu_kernels,
    cuda_kernels,
)
from deepaa.ops.space import CIFAR, IMAGENET


def noise(*shape):
    return torch.randint(
        0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


SAMPLES = [noise(2, 3, 12, 9), noise(1, 1, 8, 8)]


@pytest.mark.parametrize("space", [CIFAR, IMAGENET], ids=["cifar", "imagenet"])
@pytest.mark.parametrize(
    "apply", [apply_batch, apply_torch, _apply_one_by_one], ids=["default", "torch", "single"]
)
def test_kernels_equal_pillow(space, apply):
    values = 139 * sum(sample.numel() for sample in SAMPLES)
    assert compare_with_pillow(space, SAMPLES, "cpu", apply) == PixelDifference(0, values, (), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("space", [CIFAR, IMAGENET], ids=["cifar", "imagenet"])
@pytest.mark.parametrize("apply", [apply_batch, apply_torch], ids=["default", "torch"])
def test_kernels_on_cuda_equal_pillow(space, apply):
    assert compare_with_pillow(space, SAMPLES, "cuda", apply).differing == 0


def test_a_fault_is_found_counted_and_named():
    def wrong(images, draw, table):
        out = apply_batch(images, draw, table)
        for i, row in enumerate(draw.choice[:, 0].tolist()):
            if table.rows[row].operation.name == "rotate":
                value = int(out[i, 0, 0, 0])
                out[i, 0, 0, 0] = value - 2 if value >= 2 else value + 2
        return out

    found = compare_with_pillow(CIFAR, SAMPLES, "cpu", wrong)
    assert found.differing == 12 * (2 + 1)
    assert found.operations == ("rotate",)
    assert found.largest == 2


def test_the_probe_tells_fused_from_rounded_arithmetic():
    unfused = torch.tensor(20.0) + torch.tensor(0.85) * torch.tensor(-20.0)
    exact = 20 + torch.tensor(0.85).double() * -20
    assert (int(unfused), int(exact)) == (3, 2)
    pillow = Image.blend(Image.new("L", (1, 1), 20), Image.new("L", (1, 1), 0), 0.85)
    assert pillow_rounds_blends() == (pillow.getpixel((0, 0)) == 3)
    if platform.machine() == "x86_64":
        assert pillow_rounds_blends()


def test_which_kernels_serve_and_why(monkeypatch):
    if kernels_c.available():
        assert cpu_kernels() == f"C, for {kernels_c.level()}"
    monkeypatch.setenv("DEEPAA_NATIVE", "0")
    assert cpu_kernels() == (
        "torch (slower; no C kernels: the variable DEEPAA_NATIVE is 0; unset it)"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert cuda_kernels() == "none: torch finds no CUDA device"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert cuda_kernels() == f"none: this torch, {torch.__version__}, is made for CPUs"


def test_why_triton_does_not_serve(monkeypatch, caplog):
    if not torch.cuda.is_available():
        assert triton_problem.__wrapped__(torch.device("cuda")).startswith("Triton ")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    missing = triton_problem.__wrapped__(torch.device("cuda"))
    assert missing == "Triton is not installed"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(selfcheck, "triton_problem", lambda device: missing)
    assert cuda_kernels() == "torch (slower; Triton is not installed)"
