from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_search import main, measure_search, search_tables

from deepaa.cli.bench import print_tables
from deepaa.search import PRESETS

TINY = {"images": 2, "validation": 4, "heldout": 4, "prefixes": 1, "chains": 8}


def test_both_layers_are_timed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "search.json"
    report = measure_search(presets=["demo"], device="cpu", steps=2, settings=TINY, out=path)
    assert [(t["preset"], t["layer"], t["network"]) for t in report["steps"]] == [
        ("demo", 1, "small"),
        ("demo", 2, "small"),
    ]
    assert [t["passes"] for t in report["steps"]] == [2 * (4 + 2 * 139), 2 * (4 + 139 + 8)]
    for t in report["steps"]:
        assert 0 < t["fastest"] <= t["seconds"] <= t["slowest"]
        assert t["first"] > 0
        assert t["rate"] == pytest.approx(t["passes"] / t["seconds"])
    written = json.loads(path.read_text())
    assert written["format"] == "deepaa-bench-search"
    assert written == report
    print_tables(search_tables(report), path)
    out = capsys.readouterr().out
    assert "passes/s" in out
    assert "memory" not in out


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="no preset 'slow'; there are fast"):
        measure_search(presets=["slow"])
    with pytest.raises(ValueError, match="steps should be at least 1"):
        measure_search(presets=list(PRESETS), steps=0)


@pytest.mark.slow  # a step at the size of a preset
def test_the_script_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo"], device="cpu", steps=1)
    assert "passes/s" in capsys.readouterr().out
