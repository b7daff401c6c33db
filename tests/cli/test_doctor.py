"""The report of `deepaa doctor`: all is well here, and what is made wrong is said."""

import pytest
import torch

from deepaa.cli import doctor
from deepaa.ops import CIFAR
from deepaa.ops.selfcheck import PixelDifference
from deepaa.report.policy_tables import as_dict
from deepaa.runs import versions


@pytest.mark.parametrize(
    ("amount", "name", "fused", "status"),
    [
        (0, "", False, "ok"),
        (1, "color", False, "failed"),
        (1, "color", True, "note"),  # what a fused Pillow explains
        (2, "color", True, "failed"),
        (1, "rotate", True, "failed"),
    ],
)
def test_only_what_a_fused_pillow_explains_is_excused(monkeypatch, amount, name, fused, status):
    difference = PixelDifference(3 * amount, 100, (name,), amount)
    monkeypatch.setattr("deepaa.ops.compare_with_pillow", lambda *_: difference)
    found, detail = doctor._equality(CIFAR, [], "cpu", lambda *_: None, fused=fused)
    assert found == status
    assert name in detail


def test_a_check_that_raises_is_a_failed_check():
    def broken():
        raise RuntimeError("no driver\nat all")

    check = doctor._guarded("cuda", broken)
    assert check == doctor.Check("cuda", "failed", "RuntimeError: no driver at all")


def test_the_report(monkeypatch):
    monkeypatch.setattr(doctor, "SHAPES", ((3, 12, 9), (1, 8, 8)))
    report = doctor.examine()
    assert report["passed"]
    assert {check.status for check in report["checks"]} <= {"ok", "note"}
    assert report["versions"] == versions()
    assert report["devices"][0].startswith("cpu: ")
    assert set(report["kernels"]) == {"cpu", "cuda"}
    names = " ".join(check.name for check in report["checks"])
    assert all(word in names for word in ("CIFAR", "ImageNet", "CPU torch", "embedded", "policies"))
    assert as_dict(report)["checks"][0]["status"] in ("ok", "note")


def test_damaged_data_fail_the_report(monkeypatch):
    monkeypatch.setattr(
        "deepaa.data.embedded.embedded_sheet", lambda part: torch.zeros(1, 1).numpy()
    )
    check = doctor._guarded("embedded images", doctor._embedded)
    assert check.status == "failed"
    monkeypatch.setattr(doctor, "_checks", lambda: [check])
    assert not doctor.examine()["passed"]
