"""The doctor finds nothing wrong here, and finds what is made wrong."""

import platform

import pytest
import torch
from PIL import Image

from deepaa import doctor
from deepaa.ops import apply_batch
from deepaa.report.tables import as_dict
from deepaa.space import CIFAR, IMAGENET


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(doctor, "SHAPES", ((3, 12, 9), (1, 8, 8)))


@pytest.mark.parametrize("space", [CIFAR, IMAGENET], ids=["cifar", "imagenet"])
@pytest.mark.parametrize("apply", [apply_batch, doctor._apply_plain], ids=["default", "torch"])
def test_kernels_equal_pillow(space, apply):
    found = doctor.compare(space, "cpu", apply)
    assert found == doctor.Difference(0, found.values, (), 0)
    pixels = sum(channels * height * width for channels, height, width in doctor.SHAPES)
    assert found.values == 139 * 4 * pixels


@pytest.mark.gpu
@pytest.mark.parametrize("space", [CIFAR, IMAGENET], ids=["cifar", "imagenet"])
@pytest.mark.parametrize("apply", [apply_batch, doctor._apply_plain], ids=["default", "torch"])
def test_kernels_on_cuda_equal_pillow(space, apply):
    assert doctor.compare(space, "cuda", apply).differing == 0


def off_by(amount, name):
    """Kernels with a fault: one value of each image of one operation is wrong."""

    def apply(images, draw, table):
        out = apply_batch(images, draw, table)
        for i, row in enumerate(draw.choice[:, 0].tolist()):
            if table.rows[row].operation.name == name:
                value = int(out[i, 0, 0, 0])
                out[i, 0, 0, 0] = value - amount if value >= amount else value + amount
        return out

    return apply


def test_a_fault_is_found_counted_and_named(small):
    found = doctor.compare(CIFAR, "cpu", off_by(2, "rotate"))
    assert found.differing == 12 * 4 * len(doctor.SHAPES)
    assert found.operations == ("rotate",)
    assert found.largest == 2


@pytest.mark.parametrize(
    ("amount", "name", "fused", "status"),
    [
        (1, "color", False, "failed"),
        (1, "color", True, "note"),  # what a fused Pillow explains
        (2, "color", True, "failed"),
        (1, "rotate", True, "failed"),
    ],
)
def test_only_what_a_fused_pillow_explains_is_excused(small, amount, name, fused, status):
    found, detail = doctor._equality(CIFAR, "cpu", off_by(amount, name), fused=fused)
    assert found == status
    assert name in detail


def test_the_probe_tells_fused_from_rounded_arithmetic():
    unfused = torch.tensor(20.0) + torch.tensor(0.85) * torch.tensor(-20.0)
    exact = 20 + torch.tensor(0.85).double() * -20
    assert (int(unfused), int(exact)) == (3, 2)
    pillow = Image.blend(Image.new("L", (1, 1), 20), Image.new("L", (1, 1), 0), 0.85)
    status = "ok" if pillow.getpixel((0, 0)) == 3 else "note"
    assert doctor.probe_blend().status == status
    if platform.machine() == "x86_64":
        assert status == "ok"


def test_a_check_that_raises_is_a_failed_check():
    def broken():
        raise RuntimeError("no driver\nat all")

    check = doctor._guarded("cuda", broken)
    assert check == doctor.Check("cuda", "failed", "RuntimeError: no driver at all")


def test_the_report(small):
    report = doctor.examine()
    assert report.passed
    assert {check.status for check in report.checks} <= {"ok", "note"}
    assert set(report.versions) == {"python", *doctor.PACKAGES}
    assert report.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert report.devices[0].startswith("cpu: ")
    assert set(report.kernels) == {"cpu", "cuda"}
    names = " ".join(check.name for check in report.checks)
    assert all(word in names for word in ("CIFAR", "ImageNet", "CPU torch", "embedded", "policies"))
    assert as_dict(report)["checks"][0]["status"] in ("ok", "note")


def test_damaged_data_fail_the_report(small, monkeypatch):
    monkeypatch.setattr("deepaa.data._sheet", lambda part: torch.zeros(1, 1).numpy())
    check = doctor._guarded("embedded images", doctor._embedded)
    assert check.status == "failed"
    assert not doctor.Report({}, "", (), {}, (check,)).passed
