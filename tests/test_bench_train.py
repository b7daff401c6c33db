from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from deepaa.bench.train import main_train, train_tables
from deepaa.cli import run

TINY = {"models": ["small"], "batches": [8], "policy": "crop-flip", "steps": 2, "epochs": 2}


def test_networks_are_timed_and_written(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    report = main_train(**TINY, parallel=[1, 3], device="cpu", out=path)
    found = [(t.network, t.batch, t.way, t.parallel, t.images) for t in report.times]
    assert found == [("small", 8, "plain", 1, 16), ("small", 8, "plain", 3, 48)]
    for t in report.times:
        assert 0 < t.fastest <= t.seconds <= t.slowest
        assert t.first > 0
        assert t.rate == pytest.approx(t.images / t.seconds)
        assert t.share > 0
    written = json.loads(path.read_text())
    assert written["format"] == "deepaa-bench-train"
    assert [t["rate"] for t in written["times"]] == [t.rate for t in report.times]
    (table,) = train_tables(report)
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="no way 'fast' of running a step; there are plain"):
        main_train(**TINY, ways=["fast"], device="cpu")
    with pytest.raises(ValueError, match="recorded needs CUDA, the device is cpu"):
        main_train(**TINY, ways=["recorded"], device="cpu")
    for change in ({"steps": 0}, {"epochs": 0}, {"parallel": [0]}, {"batches": [0]}):
        with pytest.raises(ValueError, match="at least 1"):
            main_train(**{**TINY, **change}, device="cpu")
    with pytest.raises(ValueError, match="no model 'smal'"):
        main_train(**{**TINY, "models": ["smal"]}, device="cpu")


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--model", "small", "--batch", "8", "--steps", "2", "--policy", "crop-flip"]
    assert run(["bench", "train", *small, "--device", "cpu", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert "images/s" in out
    assert "crop-flip (2 layers)" in out


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["plain", "recorded", "compiled"])
def test_every_way_runs_on_cuda(way: str) -> None:
    report = main_train(**TINY, ways=[way], parallel=[1, 2], device="cuda")
    assert [t.parallel for t in report.times] == [1, 2]
    assert all(t.memory is not None and t.memory > 0 for t in report.times)
    assert torch.cuda.is_available()
