"""The benchmark of regrets: how lucky the best is, and one run of it on few images."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from contest_regret import ALWAYS, luck_of_the_best

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "contest_regret.py"


def test_the_best_of_equal_candidates_is_lucky_by_about_what_theory_says() -> None:
    generator = torch.Generator().manual_seed(1)
    correct = (torch.rand(4, 2000, generator=generator) < 0.7).double()
    spread = (0.7 * 0.3 / 2000) ** 0.5
    expected = 1.029 * spread  # the mean of the largest of four standard normal numbers
    assert luck_of_the_best(correct) == pytest.approx(expected, rel=0.15)
    assert luck_of_the_best(correct[:1].expand(4, -1)) < 0.2 * expected, "alike in every image"


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
