"""Records in TensorBoard's files, read back with TensorBoard itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deepaa.runs.tensorboard import TensorBoardLog, scalars
from deepaa.search import LayerRecord, StepRecord
from deepaa.search.methods import TrialRecord
from deepaa.train.loop import EpochRecord
from deepaa.train.results import SeedFailure, SeedResult
from deepaa.train.training_run import SeedEpoch

EPOCH = EpochRecord(0, 2.5, 0.25, 0.1, 2.0, 100)
STEP = StepRecord(2, 7, 0.5, 0.75, 3.0, [("flip", 0.1)], 900, 0, 0.1)
LAYER = LayerRecord(2, True, "asked for", 0.01, 0.001, 0.02, 0.03, 0.04, 0.05, 950, 1.0)
TRIAL = TrialRecord("trial", 2, 9, 0.5, 0.75, 0.1, "what was tried", 900, 1.0)
SEED = SeedResult(3, 0.9, 0.4, 10, 60.0, 1e4, 1, "cpu", "2.15.0")


def test_numbers_of_each_record() -> None:
    assert scalars(EPOCH) == [
        ("pre-training/loss", 2.5, 1),
        ("pre-training/accuracy", 0.25, 1),
        ("pre-training/lr", 0.1, 1),
        ("pre-training/images per second", 50.0, 1),
    ]
    assert scalars(SeedEpoch(3, EPOCH))[0] == ("train/seed 3/loss", 2.5, 1)
    assert scalars(STEP) == [
        ("layer 2/similarity", 0.5, 7),
        ("layer 2/identity", 0.75, 7),
        ("layer 2/perplexity", 3.0, 7),
        ("layer 2/passes", 900.0, 7),
    ]
    assert ("by depth/deepta_std", 0.05, 2) in scalars(LAYER)
    assert scalars(SEED) == [("test/accuracy", 0.9, 3), ("test/loss", 0.4, 3)]
    assert scalars(TRIAL) == [
        ("search/score", 0.5, 2),
        ("search/best", 0.75, 2),
        ("search/passes", 900.0, 2),
    ]
    assert scalars(TRIAL._replace(score=None, best=None)) == [("search/passes", 900.0, 2)]
    assert scalars(SeedFailure(3, 1, "loss is nan")) == []


def test_files_can_be_read_back(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    records = [EPOCH, STEP, STEP._replace(step=8, similarity=0.625), LAYER]
    log = TensorBoardLog(tmp_path / "new" / "folder")
    for record in records:
        log.add(record)
    log.close()
    found = reading.EventAccumulator(str(tmp_path / "new" / "folder"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("layer 2/similarity")] == [
        (7, 0.5),
        (8, 0.625),
    ]
    assert len(found.Tags()["scalars"]) == 4 + 4 + 5


def test_a_missing_package_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'deepaa\[tensorboard\]'"):
        TensorBoardLog(tmp_path)
