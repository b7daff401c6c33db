"""Means and intervals against tables, integration and simulation; the file of results."""

import json
import math
import random

import pytest

from deepaa.train.results import (
    SeedFailure,
    SeedResult,
    document,
    mean_in_percent,
    read_results,
    summary,
    t_quantile,
)

# two-sided 95 %, from printed tables of the t distribution
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042}
TABLE |= {60: 2.000, 120: 1.980}


def result(seed: int, accuracy: float) -> SeedResult:
    return SeedResult(seed, accuracy, 0.5, 3, 1.5, 100.0, 1, "cpu", "2.0")


@pytest.mark.parametrize(("freedom", "expected"), TABLE.items())
def test_quantiles_are_those_of_printed_tables(freedom, expected):
    assert t_quantile(0.95, freedom) == pytest.approx(expected, abs=6e-4)


def test_other_confidences():
    assert t_quantile(0.99, 4) == pytest.approx(4.604, abs=5e-4)
    assert t_quantile(0.5, 1) == pytest.approx(1.0)  # Cauchy's quartile
    assert t_quantile(0.0, 3) == pytest.approx(0.0, abs=1e-12)
    assert t_quantile(0.95, 100_001) == pytest.approx(1.95999, abs=1e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8, 29])
def test_quantiles_enclose_their_share_of_the_density(freedom):
    """The density, integrated by Simpson's rule between -t and t."""
    t = t_quantile(0.9, freedom)
    constant = math.gamma((freedom + 1) / 2) / (
        math.sqrt(freedom * math.pi) * math.gamma(freedom / 2)
    )
    n = 2000
    points = [-t + 2 * t * i / n for i in range(n + 1)]
    density = [constant * (1 + x * x / freedom) ** (-(freedom + 1) / 2) for x in points]
    weights = [1 if i in (0, n) else 4 if i % 2 else 2 for i in range(n + 1)]
    area = sum(w * d for w, d in zip(weights, density, strict=True)) * (2 * t / n) / 3
    assert area == pytest.approx(0.9, abs=1e-8)


def test_quantiles_equal_scipys():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 5, 10, 50, 333):
        for confidence in (0.5, 0.9, 0.95, 0.999):
            expected = stats.t.ppf((1 + confidence) / 2, freedom)
            assert t_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-9)


def test_intervals_hold_the_truth_as_often_as_they_say():
    chance = random.Random(1)
    hits, trials = 0, 4000
    for _ in range(trials):
        found = summary([chance.gauss(0.9, 0.02) for _ in range(3)])
        hits += abs(found.mean - 0.9) <= found.half_width
    assert abs(hits / trials - 0.95) < 5 * math.sqrt(0.95 * 0.05 / trials)


def test_summaries():
    assert summary([0.9]) == (1, 0.9, None, None)
    found = summary([0.9, 0.92])
    assert found.mean == pytest.approx(0.91)
    assert found.half_width == pytest.approx(12.7062 * 0.01, rel=1e-4)  # 0.01 = sd / sqrt(2)
    assert mean_in_percent(found) == "91.00 +- 12.71"
    assert mean_in_percent(summary([0.9637])) == "96.37"
    with pytest.raises(ValueError, match="at least one data point"):
        summary([])


def test_the_file_holds_every_seed_once_and_reads_back(tmp_path):
    seeds = [result(3, 0.9), result(1, 0.8)]
    content = document(seeds, {"model": "small"})
    assert [each["seed"] for each in content["seeds"]] == [1, 3]
    assert content["accuracy"]["mean"] == pytest.approx(0.85)
    assert content["accuracy"]["confidence"] == 0.95
    (tmp_path / "results.json").write_text(json.dumps(content))
    for place in (tmp_path, tmp_path / "results.json"):
        found, facts = read_results(place)
        assert found == sorted(seeds)
        assert facts["model"] == "small"
    assert document([], {})["accuracy"] is None
    broken = SeedFailure(7, 2, "loss nan")
    content = document(seeds, {}, [broken])
    assert content["failed"] == [{"seed": 7, "epoch": 2, "reason": "loss nan"}]
    assert content["accuracy"]["seeds"] == 2, "it is no part of the mean"


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "results.json"
    for text, message in (
        ("{}", "expected deepaa-results"),
        ('{"format": "deepaa-results", "version": 1}', "damaged"),
        ('{"format": "deepaa-results", "version": 1, "seeds": [{"seed": 1}]}', "damaged"),
        ("[", "not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_results(path)
