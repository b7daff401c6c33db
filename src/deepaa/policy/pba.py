"""PBA's published schedules: a population's log as phases of chains.

Population Based Augmentation draws how many operations an image gets, shuffles its list of 30, and
applies each with its own probability until that many were applied. Which operations would be
applied does not depend on the order, so the chance of each first and second one is known exactly,
and a phase is a mixture of chains of two.
"""

from __future__ import annotations

import re
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deepaa.ops import CIFAR_MEAN, PIXEL, Operation, Row
from deepaa.policy.policy import Policy
from deepaa.policy.stages import IDENTITY, chains_over, chains_table
from deepaa.policy.strict_json import PolicyFileError, Value, parse

Floats = npt.NDArray[np.float64]

SEARCH_EPOCHS = 200
"""Epochs of the search on CIFAR-10; the log does not say."""
MAX_EPOCHS = 1_000_000
MAX_LINES = 10_000
TOP_LEVEL = 10
SIDE = 32
"""Translations are in pixels of a CIFAR image."""
COUNTS = (0.2, 0.3, 0.5)
"""How likely an image gets no, at most one and at most two operations."""
NAMES = (
    *("rotate", "translate_x", "translate_y", "brightness", "color", "invert", "sharpness"),
    *("posterize", "shear_x", "solarize", "shear_y", "equalize", "auto_contrast", "cutout"),
    "contrast",
)
"""The order of the log's numbers: a probability and a level each, and the whole list twice.

The search ran on Python 2, where a dict gave its keys by their hashes. PBA's code wrote this order
down later; a copy from before that, run on Python 3, takes the order in which the dict was filled.
"""

_FILL = {"fill": CIFAR_MEAN}
_SIGNED = {
    name: Operation(name, -most, most, neutral=0.0, options=_FILL)
    for name, most in (
        *(("shear_x", 0.3), ("shear_y", 0.3), ("rotate", 30.0)),
        *(("translate_x", 10 / SIDE), ("translate_y", 10 / SIDE)),
    )
}
_SOLARIZE = Operation("solarize", 0.0, 256.0, neutral=256.0)
_POSTERIZE = Operation("posterize", 0.0, 8.0, neutral=8.0)


class Update(NamedTuple):
    """A line of the log: `trial` became a copy of `clone` and went on with other numbers."""

    trial: str
    clone: str
    epoch: int
    """The epoch the copy had reached."""
    old: list[int]
    new: list[int]


def is_log(text: str) -> bool:
    """Whether the text begins like a log: a list that begins with text in single quotes."""
    return re.match(r"\s*\[\s*'", text) is not None


def read_log(text: str, source: str, over: int = SEARCH_EPOCHS) -> Policy:
    """The schedule of a log; `policy.stretched` fits it to the epochs of a training.

    Args:
        over: Epochs the search ran for.
    """
    updates = _one_line_of_descent(_updates(text, source))
    phases = {0: updates[0].old}
    for before, after in pairwise(updates):
        if after.epoch < before.epoch:
            raise PolicyFileError(f"{source}: epoch {after.epoch} follows epoch {before.epoch}")
    if updates[-1].epoch >= over:
        raise PolicyFileError(
            f"{source}: a change at epoch {updates[-1].epoch} of a search of {over} epochs"
        )
    phases |= {update.epoch: update.new for update in updates}
    listed = {epoch: _mixture(numbers) for epoch, numbers in phases.items()}
    table = chains_table(chain for chains in listed.values() for chain in chains)
    schedule = [
        (epoch, [chains_over(table, list(chains), list(chains.values()))])
        for epoch, chains in listed.items()
    ]
    return Policy(table, schedule=schedule, info={"imported from": "a schedule of PBA"})


def _updates(text: str, source: str) -> list[Update]:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > MAX_LINES:
        raise PolicyFileError(f"{source}: {len(lines):,} lines; at most {MAX_LINES:,} are read")
    # the lines are Python lists, which JSON can read once the quotes are its own
    return [
        _update(parse(line.replace("'", '"'), f"{source}: line {i}"))
        for i, line in enumerate(lines, start=1)
    ]


def _update(line: Value) -> Update:
    trial, clone, _, epoch, old, new = line.parts(
        "trial", "clone", "trial epoch", "clone epoch", "old numbers", "new numbers"
    )
    return Update(
        trial.text(), clone.text(), epoch.integer(0, MAX_EPOCHS), _numbers(old), _numbers(new)
    )


def _numbers(listed: Value) -> list[int]:
    items = listed.items("number")
    if len(items) != 4 * len(NAMES):
        raise listed.error(f"{len(items)} numbers, expected {4 * len(NAMES)}")
    return [item.integer(0, TOP_LEVEL) for item in items]


def _one_line_of_descent(updates: list[Update]) -> list[Update]:
    """The updates after the last break: each copies the trial that the one before it made."""
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(updates)) if a.trial != b.clone]
    return updates[max(breaks, default=0) :]


# What a phase does


def _rows(name: str, level: int) -> list[Row]:
    """The one or two rows of an operation at a level, with AutoAugment's ranges for CIFAR."""
    if name in _SIGNED:
        operation = _SIGNED[name]
        assert operation.high is not None
        value = level * operation.high / TOP_LEVEL
        if name.startswith("translate"):
            value = int(level * 10 / TOP_LEVEL) / SIDE
        elif name == "rotate":
            value = float(int(value))
        return [Row(operation, value), Row(operation, -value)] if value else [IDENTITY]
    if name == "posterize":
        return [Row(_POSTERIZE, 4.0 - int(level * 4 / TOP_LEVEL))]
    if name == "solarize":
        return [Row(_SOLARIZE, 256.0 - int(level * 256 / TOP_LEVEL))]
    if name == "cutout":
        size = int(level * 20 / TOP_LEVEL)
        if not size:
            return [IDENTITY]
        return [Row(Operation(name, options={"size": size, "central": PIXEL}), None)]
    if name in ("auto_contrast", "equalize", "invert"):
        return [Row(Operation(name), None)]
    operation = Operation(name, 0.1, 1.9, neutral=1.0)
    return [Row(operation, min(1.9, level * 1.8 / TOP_LEVEL + 0.1))]


def _mixture(numbers: list[int]) -> dict[tuple[tuple[Row, float], ...], float]:
    """The chains of a phase and their weights."""
    listed = list(zip([*NAMES, *NAMES], numbers[::2], numbers[1::2], strict=True))
    used = [(_rows(name, level), p / 10) for name, p, level in listed if p]
    none, single, pair = chances(np.array([p for _, p in used]))
    chains: dict[tuple[tuple[Row, float], ...], float] = {((IDENTITY, 1.0), (IDENTITY, 1.0)): none}

    def add(first: list[Row], second: list[Row], weight: float) -> None:
        ways = [((a, 1.0), (b, 1.0)) for a, b in product(first, second)]
        for way in ways:
            chains[way] = chains.get(way, 0.0) + weight / len(ways)

    for i, (first, _) in enumerate(used):
        add(first, [IDENTITY], float(single[i]))
        for j, (second, _) in enumerate(used):
            if i != j:
                add(first, second, float(pair[i, j]))
    return chains


def chances(p: Floats) -> tuple[float, Floats, Floats]:
    """The chances that nothing, i alone (n,), and first i then j (n, n) are applied.

    Each i succeeds with p_i. Of the set S of successes the shuffle makes each equally likely to
    come first, so i does with E[1(i in S) / |S|], and (i, j) with E[1(i, j in S) / |S| (|S| - 1)].
    With the others' successes k, 1 / (k + 1) is the integral of t^k over [0, 1], and
    1 / (k + 1) (k + 2) that of (1 - t) t^k: their means are integrals of products of
    1 - p + p t, polynomials, which Gauss's rule integrates exactly.
    """
    nodes, rule = np.polynomial.legendre.leggauss(len(p) // 2 + 2)
    t, rule = (nodes + 1) / 2, rule / 2
    factors = 1 - p + p * t[:, None]  # (nodes, n), positive inside (0, 1)
    others = p * factors.prod(1)[:, None] / factors
    first = rule @ others
    pair = (others * ((rule * (1 - t)) / factors.prod(1))[:, None]).T @ others
    np.fill_diagonal(pair, 0.0)
    alone = np.array([p[i] * np.delete(1 - p, i).prod() for i in range(len(p))])
    zero, one, two = COUNTS
    none = zero + (one + two) * float((1 - p).prod())
    return none, one * first + two * alone, two * pair
