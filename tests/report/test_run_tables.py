"""Searches and trainings as tables, by equality with numbers computed by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deepaa.report.policy_tables import LayerTable
from deepaa.report.run_tables import (
    AccuracyRow,
    accuracy_by_depth,
    accuracy_row,
    accuracy_rows,
    cost_table,
    depth_table,
    dropped_layer,
    peak_memory,
    step_table,
    stop_text,
)
from deepaa.report.subject import Subject
from deepaa.train.results import SeedResult, t_quantile

# The history of a search


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
    again = step(2, 1, similarity=0.7)
    assert step_table((*RECORDS, again)) == {1: [step(1, 1), step(1, 2)], 2: [again]}
    assert step_table([EPOCH]) == {}


def test_depth() -> None:
    assert depth_table((*RECORDS, layer(1, deepta_mean=0.7))) == [layer(1, deepta_mean=0.7)]


def test_the_layer_that_ended_the_search() -> None:
    assert dropped_layer(RECORDS) is None
    assert dropped_layer([]) is None
    end = layer(2, kept=False, identity=0.95, perplexity=2.0)
    assert dropped_layer((*RECORDS, end)) == LayerTable(2, 1.0, 2.0, 0.95, (), 0, 0.0)
    assert dropped_layer((*RECORDS, layer(2, kept=False))) is None  # nobody measured it


def test_peak_memory() -> None:
    assert peak_memory(RECORDS) is None
    assert peak_memory([layer(1, memory=1.5), layer(2, memory=2.5), layer(3, memory=None)]) == 2.5


def test_costs() -> None:
    assert cost_table(RECORDS) == [
        ("pre-training", 1, 1000, 4.0),
        ("layer 1", 2, 150, 3.0),
        ("layer 2", 1, 51, 0.5),
        ("all", 0, 1201, 7.5),
    ]
    assert cost_table([]) == []


def test_class_protection_is_a_part_of_the_cost() -> None:
    protection = {"kind": "protection", "changed": [], "untestable": [], "classes": 2}
    protection |= {"seconds": 30.0, "passes": 900}  # forward; a pass of the others is also back
    table = cost_table((EPOCH, protection, step(1, 1), layer(1)))
    assert table[1] == ("class protection", 0, 300, 30.0)
    assert table[-1] == ("all", 0, 1000 + 300 + 150, 4.0 + 30.0 + 2.5)
    trial = {"kind": "trial", "index": 1, "of": 1, "unit": "trial", "best": 0.5, "summary": ""}
    trial |= {"passes": 600, "seconds": 9.0}
    assert cost_table((protection, trial))[0] == ("class protection", 0, 900, 30.0)


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
    ((record,),) = step_table(records).values()
    assert (record["step"], record["similarity"], record["identity"]) == (1, 0.5, 0.9)
    (row,) = depth_table(records)
    assert (row["layer"], row["kept"], row["reason"]) == (1, True, "asked for")
    names = ("improvement_mean", "improvement_std", "deepta_mean", "deepta_std")
    assert [row[name] for name in names] == [0.1, 0.2, 0.3, 0.4]
    assert cost_table(records)[-1] == ("all", 0, 20, pytest.approx(0.3))


# Trainings


def result(seed: int, accuracy: float) -> SeedResult:
    return SeedResult(seed, accuracy, 0.5, 10, 60.0, 1e4, 1, "cpu", "2.15.0")


def facts(name: str | None, layers: int, **more: Any) -> dict[str, Any]:
    policy = {"name": name, "layers": layers, "defaults": None, "first_layers": None, **more}
    return {"policy": policy, "model": "small", "images": {"data": "cifar10"}}


def test_a_training() -> None:
    seeds = [result(0, 0.9), result(1, 0.92)]
    half = t_quantile(0.95, 1) * 0.01  # the deviation of two values 0.02 apart, over root 2
    row = AccuracyRow(
        "run/policy.json", 5, "cifar10", "small", 10, 2, pytest.approx(0.91), pytest.approx(half)
    )
    assert accuracy_row(seeds, facts("/home/me/run/policy.json", 5)) == row
    assert accuracy_row(seeds[:1], facts(None, 0)).half_width is None


@pytest.mark.parametrize(
    ("policy", "method"),
    [
        ({"name": None}, "none"),
        ({"name": "deepta:4"}, "deepta:4"),
        ({"name": "/a/b/found.json", "first_layers": 2}, "b/found.json, first 2"),
        ({"name": "/a/b/mine.json", "first_layers": 2}, "mine.json, first 2"),
        ({"name": "randaugment:n=3,m=5", "defaults": False}, "randaugment:n=3,m=5, defaults off"),
    ],
)
def test_names_of_methods(policy: dict[str, Any], method: str) -> None:
    assert accuracy_row([result(0, 0.5)], {"policy": policy}).method == method


def test_accuracy_by_depth_needs_two_depths_in_one_setting() -> None:
    one, two = [result(0, 0.8)], [result(0, 0.9)]
    other = {**facts("autoaugment", 2), "model": "large"}
    found = accuracy_by_depth(
        [
            (two, facts("run/policy.json", 2, first_layers=2)),
            (one, facts("run/policy.json", 1, first_layers=1)),
            (one, facts("deepta:1", 1)),
            (one, facts("deepta:3", 3)),
            (one, facts("autoaugment", 1)),
            (one, other),
        ]
    )
    assert [(method, [row.layers for row in points]) for method, points in found] == [
        ("run/policy.json", [1, 2]),
        ("deepta", [1, 3]),
    ]


def test_depths_of_different_policies_are_not_joined() -> None:
    one, two = [result(0, 0.8)], [result(0, 0.9), result(1, 0.9)]
    alone = [
        (one, facts("randaugment:n=2,m=9", 5)),
        (one, facts("randaugment:n=3,m=5", 6)),
        (one, facts("run/policy.json", 4)),
        (one, facts("run/policy.json", 6, defaults=True)),
    ]
    assert accuracy_by_depth(alone) == []
    shallow = [
        (one, facts("run/policy.json", 5, defaults=True, first_layers=2)),
        (one, facts("run/policy.json", 4, defaults=True, first_layers=1)),
        (two, facts("run/policy.json", 4, defaults=True, first_layers=1)),
    ]
    ((method, points),) = accuracy_by_depth([*alone, *shallow])
    assert method == "run/policy.json, defaults on"
    assert [(row.layers, row.seeds) for row in points] == [(1, 2), (2, 1)]


def test_trainings_that_look_alike_say_how_they_differ() -> None:
    """Two recipes of one network, say, or the same images at another size."""
    one = [result(0, 0.8)]
    usual = {**facts("deepta", 6), "train": {"weight_decay": 5e-4, "lr": 0.1, "compile": True}}
    other = {**usual, "train": {"weight_decay": 1e-3, "lr": 0.1, "compile": False}}
    larger = {**usual, "images": {"data": "cifar10", "fingerprint": "0123456789"}}
    assert [row.differs for row in accuracy_rows([(one, usual), (one, usual)])] == ["", ""]
    rows = accuracy_rows([(one, usual), (one, other)])
    assert [row.differs for row in rows] == ["weight_decay 0.0005", "weight_decay 0.001"]
    assert rows[0].setting != rows[1].setting
    rows = accuracy_rows([(one, usual), (one, larger)])
    assert [row.differs for row in rows] == ["fingerprint ?", "fingerprint 01234567"]
    assert accuracy_rows([]) == ()


def test_methods_of_several_settings_say_which() -> None:
    one = [result(0, 0.8)]
    rows = [(one, {**facts("deepta", n), "model": model}) for n in (1, 2) for model in ("a", "b")]
    assert [method for method, _ in accuracy_by_depth(rows)] == [
        "deepta, cifar10, a",
        "deepta, cifar10, b",
    ]
