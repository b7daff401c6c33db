"""The history of a search as tables, by equality with numbers computed by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deepaa.report.load import Subject
from deepaa.report.search_tables import (
    CostRow,
    DepthRow,
    DroppedLayer,
    StepCurve,
    cost_table,
    depth_table,
    dropped_layer,
    peak_memory,
    step_curves,
    stop_text,
)


def step(layer: int, number: int, **more: Any) -> dict[str, Any]:
    values = {"similarity": 0.1 * number, "identity": 0.5, "perplexity": 3.0, "top": []}
    cost = {"passes": 100 * layer + number, "skipped": 0, "seconds": 0.5}
    return {"kind": "step", "layer": layer, "step": number, **values, **cost, **more}


def layer(number: int, **more: Any) -> dict[str, Any]:
    means = {"improvement_mean": 0.1, "improvement_std": 0.2, "deepta_mean": 0.3, "deepta_std": 0.4}
    verdict = {"kept": True, "reason": "asked for", "gain": 0.05, "gain_error": 0.01}
    cost = {"passes": 100 * number + 50, "seconds": 2.0}
    return {"kind": "layer", "layer": number, **verdict, **means, **cost, **more}


EPOCH = {"kind": "epoch", "epoch": 0, "loss": 1.0, "accuracy": 0.5, "lr": 0.1}
EPOCH |= {"seconds": 4.0, "images": 1000}
RECORDS = (EPOCH, step(1, 1), step(1, 2), layer(1), step(2, 1))


def test_steps() -> None:
    repeated = (*RECORDS, step(2, 1, similarity=0.7))
    assert step_curves(repeated) == (
        StepCurve(1, (1, 2), (0.1, 0.2), (0.5, 0.5)),
        StepCurve(2, (1,), (0.7,), (0.5,)),
    )
    assert step_curves([EPOCH]) == ()


def test_depth() -> None:
    assert depth_table(RECORDS) == (DepthRow(1, True, "asked for", 0.1, 0.2, 0.3, 0.4),)


def test_the_layer_that_ended_the_search() -> None:
    assert dropped_layer(RECORDS) is None
    assert dropped_layer([]) is None
    end = layer(2, kept=False, identity=0.95, perplexity=2.0)
    assert dropped_layer((*RECORDS, end)) == DroppedLayer(2, 1.0, 0.95)
    assert dropped_layer((*RECORDS, layer(2, kept=False))) is None  # nobody measured it


def test_peak_memory() -> None:
    assert peak_memory(RECORDS) is None
    assert peak_memory([layer(1, memory=1.5), layer(2, memory=2.5), layer(3, memory=None)]) == 2.5


def test_costs() -> None:
    assert cost_table(RECORDS) == (
        CostRow("pre-training", 1, 1000, 4.0),
        CostRow("layer 1", 2, 150, 3.0),
        CostRow("layer 2", 1, 51, 0.5),
        CostRow("all", 0, 1201, 7.5),
    )
    assert cost_table([]) == ()


@pytest.mark.parametrize(
    ("status", "search", "records", "text"),
    [
        ("running", {"steps": 9}, RECORDS, "running: layer 2, step 1 of at most 9."),
        ("running", {}, (EPOCH,), "running: pre-training, 1 epoch done."),
        ("stopped", {"steps": 9}, RECORDS, "Go on with: deepaa search --resume here"),
        ("finished", {"layers": 1}, RECORDS, "after the one layer that was asked for."),
        (
            "finished",
            {"layers": None},
            (layer(1), layer(2, kept=False, reason="identity has 0.95 of the layer")),
            "because layer 2 was dropped: identity has 0.95 of the layer.",
        ),
        ("finished", {"layers": None}, (layer(6),), "its limit of 6 layers"),
        ("finished", {}, (), "its history is missing"),
    ],
)
def test_why_the_search_stopped(status: Any, search: Any, records: Any, text: str) -> None:
    config = {"search": search, "source": {"from_python": []}}
    subject = Subject("here", status, None, config=config, records=records)
    assert text in stop_text(subject)


def test_the_tables_read_what_a_search_writes() -> None:
    from deepaa.search import LayerRecord, StepRecord

    written = {"kind": "step", **StepRecord(1, 1, 0.5, 0.9, 2.0, [], 10, 0, 0.1)._asdict()}
    ended = LayerRecord(1, True, "asked for", 0.1, 0.01, 0.1, 0.2, 0.3, 0.4, 20, 0.2)
    records = [json.loads(json.dumps(r)) for r in (written, {"kind": "layer", **ended._asdict()})]
    assert step_curves(records) == (StepCurve(1, (1,), (0.5,), (0.9,)),)
    assert depth_table(records) == (DepthRow(1, True, "asked for", 0.1, 0.2, 0.3, 0.4),)
    assert cost_table(records)[-1] == CostRow("all", 0, 20, pytest.approx(0.3))
