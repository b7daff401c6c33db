"""Trainings as tables, by equality with numbers computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from deepaa.report.accuracy_tables import (
    AccuracyRow,
    DepthAccuracy,
    accuracy_by_depth,
    accuracy_row,
    accuracy_rows,
)
from deepaa.train.results import SeedResult, t_quantile


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
        ({"name": "/a/b/found.json", "first_layers": 2}, "found.json, first 2"),
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
    assert [(series.method, [row.layers for row in series.points]) for series in found] == [
        ("run/policy.json", [1, 2]),
        ("deepta", [1, 3]),
    ]
    assert isinstance(found[0], DepthAccuracy)


def test_depths_of_different_policies_are_not_joined() -> None:
    one, two = [result(0, 0.8)], [result(0, 0.9), result(1, 0.9)]
    alone = [
        (one, facts("randaugment:n=2,m=9", 5)),
        (one, facts("randaugment:n=3,m=5", 6)),
        (one, facts("run/policy.json", 4)),
        (one, facts("run/policy.json", 6, defaults=True)),
    ]
    assert accuracy_by_depth(alone) == ()
    shallow = [
        (one, facts("run/policy.json", 5, defaults=True, first_layers=2)),
        (one, facts("run/policy.json", 4, defaults=True, first_layers=1)),
        (two, facts("run/policy.json", 4, defaults=True, first_layers=1)),
    ]
    (found,) = accuracy_by_depth([*alone, *shallow])
    assert found.method == "run/policy.json, defaults on"
    assert [(row.layers, row.seeds) for row in found.points] == [(1, 2), (2, 1)]


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
    assert [s.method for s in accuracy_by_depth(rows)] == [
        "deepta, cifar10, a",
        "deepta, cifar10, b",
    ]
