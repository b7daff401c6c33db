"""The benchmark of regrets: its subsets, and one run of it on few images."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from contest_regret import ALWAYS, subset

from deepaa.data import LabelledImages

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "contest_regret.py"


def test_a_subset_has_as_many_of_each_class_and_is_another_for_another_seed() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 4)
    images = torch.arange(84, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    data = LabelledImages(images, labels, ("a", "b", "c"), "numbers", "")
    found, other = subset(data, 30, 0), subset(data, 30, 1)
    assert found.labels.bincount().tolist() == [13, 13, 4]
    own = found.images[:, 0, 0, 0].long()
    assert found.labels.equal(labels[own])
    assert len(own.unique()) == 30
    assert not other.images.equal(found.images)
    assert subset(data, None, 0) is data
    assert subset(data, 84, 0) is data


@pytest.mark.slow
def test_every_candidate_is_trained_in_full_length(tmp_path: Path) -> None:
    out = tmp_path / "regret.json"
    words = "--images 60 --seeds 1 --preset demo --target-epochs 2 --contest-passes 10000"
    command = [sys.executable, str(BENCHMARK), *words.split(), "--device", "cpu", "--out", str(out)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (row,) = json.loads(out.read_text())
    assert {"none", "crop-flip", "trivialaugment-wide"} <= {*row["accuracy"]}
    best = max(row["accuracy"].values())
    assert row["regret"]["contest"] == best - row["accuracy"][row["chosen"]]
    assert {*row["regret"]} == {"contest", *ALWAYS} - {"found"}  # too few images for a search
    assert min(row["regret"].values()) >= 0
    assert row["target_epochs"] == 2
    assert "contest: mean regret" in said
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "seed 0" not in again, "a seed that the file has is run again"
