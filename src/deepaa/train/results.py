"""Results of several seeds: what the history of their run says, and the file with their mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from deepaa.runs import HISTORY, read_json, record_of, stored
from deepaa.train.loop import EpochRecord

FORMAT, VERSION = "deepaa-results", 1
RESULTS = "results.json"
_SHOWN: Mapping[str, Any] = {
    **dict.fromkeys(("policy", "images", "train"), dict),
    "policy.defaults": bool | None,
    "policy.first_layers": int | None,
    "policy.layers": int,
    "images.data": str,
    "model": str,
}
"""What tables show of the facts, and their types."""
CONFIDENCE = 0.95
ENOUGH = 4
"""Seeds below which no method should be called better than another."""


class SeedResult(NamedTuple):
    """One network after its last epoch."""

    seed: int
    accuracy: float
    """Share of the test images classified right."""
    loss: float
    """Mean cross entropy on the test images."""
    epochs: int
    seconds: float
    """Seconds of training, added up over all calls that worked at it."""
    images_per_second: float
    """Images per second in the median epoch, which leaves out starting up."""
    parallel: int
    """Networks that were trained at once on the device."""
    device: str
    torch: str
    processes: int = 1
    """Processes that split each batch; batch norm sees the share of one."""
    other_processes: list[int] | None = None
    """Other numbers of them that did some of its epochs, before a stop; None for none."""
    class_accuracy: list[float | None] | None = None
    """`accuracy` of each class, in the order of labels; None for one without test images."""


class SeedFailure(NamedTuple):
    """A training without a result, because a loss was not a number."""

    seed: int
    epoch: int
    """The one it failed in, counted from 0; the number of all where the test failed."""
    reason: str


class SeedHistory:
    """What the history of a run says of its seeds."""

    def __init__(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Take in the records of `Run.history` in their order."""
        self.epochs: dict[int, list[EpochRecord]] = {}
        """The epochs of each seed; one that is trained again after a failure begins anew."""
        self.results: list[SeedResult] = []
        self.failures: list[SeedFailure] = []
        """The seeds that failed and were not asked for again."""
        for record in history:
            fields = {name: value for name, value in record.items() if name != "kind"}
            self.add(stored(record, "kind", str, HISTORY), fields)

    def add(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Take in one more record, which need not be one."""
        seed = stored(fields, "seed", int, HISTORY)
        if kind == "epoch":
            rest = {name: value for name, value in fields.items() if name != "seed"}
            self.epochs.setdefault(seed, []).append(record_of(EpochRecord, rest, HISTORY))
        elif kind == "seed":
            self.results.append(record_of(SeedResult, fields, HISTORY))
        elif kind == "failed":
            self.failures.append(record_of(SeedFailure, fields, HISTORY))
        elif kind == "again":  # it begins anew
            self.failures[:] = [failure for failure in self.failures if failure.seed != seed]
            self.epochs.pop(seed, None)

    @property
    def done(self) -> set[int]:
        """The seeds that are not trained any more."""
        return {r.seed for r in self.results} | {f.seed for f in self.failures}


class Summary(NamedTuple):
    """What several seeds say together."""

    seeds: int
    mean: float
    deviation: float | None
    """Standard deviation of a seed; None for one."""
    half_width: float | None
    """Half the 95 % confidence interval of the mean, by the t distribution; None for one seed."""


def summary(values: Sequence[float]) -> Summary:
    """Mean, deviation and confidence interval of at least one value."""
    n, mean = len(values), fmean(values)
    if n < 2:
        return Summary(n, mean, None, None)
    deviation = stdev(values)
    return Summary(n, mean, deviation, t_quantile(CONFIDENCE, n - 1) * deviation / math.sqrt(n))


def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = `confidence` for Student's T with `freedom` degrees of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(200):  # halving until nothing lies between
        middle = (low + high) / 2
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _within(angle: float, freedom: int) -> float:
    """P(|T| < sqrt(freedom) tan(angle)): Abramowitz and Stegun (1964), 26.7.3 and 26.7.4."""
    cosine = math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):  # terms in cos^power
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    part = math.sin(angle) * total
    return (angle + part) * 2 / math.pi if odd else part


def document(
    results: Iterable[SeedResult], facts: Mapping[str, Any], failures: Iterable[SeedFailure] = ()
) -> dict[str, Any]:
    """The content of results.json: the facts, every seed, and their summary.

    Seeds that failed are listed, and are no part of the summary.
    """
    seeds, failed = sorted(results), sorted(failures)
    found = summary([result.accuracy for result in seeds]) if seeds else None
    accuracy = None if found is None else {**found._asdict(), "confidence": CONFIDENCE}
    return {
        "format": FORMAT,
        "version": VERSION,
        **facts,
        "accuracy": accuracy,
        "seeds": [result._asdict() for result in seeds],
        "failed": [failure._asdict() for failure in failed],
    }


def read_results(path: str | Path) -> tuple[list[SeedResult], dict[str, Any]]:
    """The seeds of a results.json, or of the run folder that holds one, and all it says."""
    path = Path(path)
    path = path / RESULTS if path.is_dir() else path
    content = read_json(path)
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{path}: expected {FORMAT} of version {VERSION}")
    seeds = stored(content, "seeds", tuple[dict[str, Any], ...], path)
    for name, hint in _SHOWN.items():
        stored(content, name, hint, path, default=None)
    return [record_of(SeedResult, each, path) for each in seeds], content


def mean_in_percent(found: Summary) -> str:
    """The mean in percent, with its interval if there is one: 96.37 +- 0.12."""
    text = f"{100 * found.mean:.2f}"
    return text if found.half_width is None else f"{text} +- {100 * found.half_width:.2f}"
