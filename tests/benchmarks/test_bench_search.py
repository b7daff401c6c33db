from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_search import main, measure_search, search_tables

from deepaa.search import PRESETS

TINY = {"images": 2, "validation": 4, "heldout": 4, "prefixes": 1, "chains": 8}


def test_both_layers_are_timed_and_written(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    report = measure_search(presets=["demo"], device="cpu", steps=2, settings=TINY, out=path)
    assert [(t.preset, t.layer, t.network) for t in report.steps] == [
        ("demo", 1, "small"),
        ("demo", 2, "small"),
    ]
    assert [t.passes for t in report.steps] == [2 * (4 + 2 * 139), 2 * (4 + 139 + 8)]
    assert all(0 < t.fastest <= t.seconds <= t.slowest and t.first > 0 for t in report.steps)
    written = json.loads(path.read_text())
    assert written["format"] == "deepaa-bench-search"
    assert [step["passes"] for step in written["steps"]] == [t.passes for t in report.steps]
    (table,) = search_tables(report)
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="no preset 'slow'; there are fast"):
        measure_search(presets=["slow"])
    with pytest.raises(ValueError, match="steps should be at least 1"):
        measure_search(presets=list(PRESETS), steps=0)


@pytest.mark.slow  # a step at the size of a preset
def test_the_script_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo"], device="cpu", steps=1)
    assert "passes/s" in capsys.readouterr().out
