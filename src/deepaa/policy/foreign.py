"""Readers for policies that others published.

They are the DeepAA authors' `.npz`, lists of sub-policies, and the schedules of PBA.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deepaa.files import Archive, Header, listed as listed_names
from deepaa.ops import BUILTIN, CIFAR, CIFAR_MEAN, IMAGENET, PIXEL, Operation, Row, Space, Table
from deepaa.policy.policy import MAX_DEPTH, Policy
from deepaa.policy.stages import IDENTITY, Chain, Layers
from deepaa.policy.strict_json import (
    MAX_CHAINS,
    MAX_PARTS,
    MAX_PHASES,
    MAX_ROWS,
    PolicyFileError,
    Value,
    parse,
    shown,
)

Array = npt.NDArray[Any]


def _plain(name: str) -> str:
    """`ShearX`, `shear_x` and `shear-x` as one spelling."""
    return "".join(c for c in name.lower() if c.isalnum())


_BY_PLAIN_NAME = {_plain(name): name for name in BUILTIN}


# The authors' archives

MAX_ARRAY_BYTES = 8 << 20
"""Unpacked size of an array; a small archive may hold more."""
MAX_LEVELS = 10_000
MAX_NAMES = 100
ZIP = b"PK\x03\x04"  # how an archive begins
FLOAT32_SUM = 1e-5
"""How far from 1 a layer stored in float32 may sum."""
_ARRAYS = {
    "policy_probs": ("f", "fractions", MAX_PARTS),
    "ops": ("iu", "integers", MAX_ROWS),
    "mags": ("iu", "integers", MAX_ROWS),
    "l_mags": ("iu", "integers", MAX_ROWS),
    "op_names": ("U", "text", MAX_NAMES),
}
"""The arrays of an archive: the kinds of numbers that they hold, in words, and how many."""
# The authors' names where ours differ by more than spelling; their search and files vary a little.
_AUTHORS_NAMES: Mapping[str, str] = {
    "RandFlip": "flip",
    "RandCutout": "cutout",
    "RandCutout60": "cutout",
    "RandCrop": "crop",
    "RandResizeCrop": "resized_crop",
    "RandResizeCrop_imagenet": "resized_crop",
}


def read_npz(data: bytes, source: str) -> Policy:
    """The policy in an `.npz` file of the DeepAA authors, over `CIFAR` or `IMAGENET`.

    The archive's `RandCutout` is 16 pixels for CIFAR and 60 for ImageNet, which is recognised by
    its resized crop. Layers were stored in float32; here they sum to 1 in float64.
    """
    about = {key: Value(None, source, (f"array {key!r}",)) for key in _ARRAYS}
    arrays = _arrays(data, source, about)
    with about["op_names"].checks():
        if arrays["op_names"].ndim != 1:
            raise ValueError(f"has shape {arrays['op_names'].shape}, expected a list of names")
        names = [str(name) for name in arrays["op_names"]]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{shown(twice)} appears twice")
        space = IMAGENET if any("RandResizeCrop" in name for name in names) else CIFAR
        operations = [_authors_operation(name, space) for name in names]
    levels = int(arrays["l_mags"].flat[0]) if arrays["l_mags"].size == 1 else 0
    if not 2 <= levels <= MAX_LEVELS:
        raise about["l_mags"].error(
            f"expected one number of levels, 2 to {MAX_LEVELS}, got "
            f"{np.array2string(arrays['l_mags'], threshold=5)}"
        )
    rows = arrays["ops"].size
    for key, most in (("ops", len(names)), ("mags", levels)):
        if (shape := arrays[key].shape) not in ((rows,), (rows, 1)):
            raise about[key].error(f"has shape {shape}, expected (rows, 1), as many in both")
        if rows and not 0 <= int(arrays[key].min()) <= int(arrays[key].max()) < most:
            raise about[key].error(f"entries should be from 0 to {most - 1}")
    grids = [
        (None,) * levels if op.low is None else replace(op, neutral=None).magnitudes(levels)
        for op in operations
    ]
    pairs = zip(arrays["ops"].flat, arrays["mags"].flat, strict=True)
    with about["ops"].checks():
        table = Table(Row(operations[op], grids[op][mag]) for op, mag in pairs)
    with about["policy_probs"].checks():
        layers = _authors_layers(arrays["policy_probs"], len(table))
    return Policy(table, layers, info={"imported from": "an .npz file of the DeepAA authors"})


def _arrays(data: bytes, source: str, about: Mapping[str, Value]) -> dict[str, Array]:
    """The arrays of an archive; `about` gives the errors of each."""
    found = {}
    try:
        archive = Archive(io.BytesIO(data))
    except ValueError as error:
        raise PolicyFileError(f"{source}: {error}") from None
    for key in _ARRAYS:
        if key not in archive.files:
            has = listed_names(archive.files) or "none"
            raise PolicyFileError(f"{source}: array {key!r} is missing; the file has {has}")
        with about[key].checks():
            found[key] = archive.read(key, partial(_check_array, key))
    return found


def _check_array(key: str, header: Header) -> None:
    """Refuse an array of another kind, or a larger one than any policy has."""
    kinds, words, most = _ARRAYS[key]
    if header.dtype.kind not in kinds:
        raise ValueError(f"has type {str(header.dtype)[:60]}, expected {words}")
    if header.bytes > MAX_ARRAY_BYTES:
        raise ValueError(f"{header.bytes:,} bytes; at most {MAX_ARRAY_BYTES:,} are read")
    if (count := math.prod(header.shape)) > most:
        raise ValueError(f"{count:,} entries; at most {most:,} are read")


def _authors_operation(text: str, space: Space) -> Operation:
    """The operation of `'ShearX:(-0.3,,0.3)'`; a range, where given, must be the space's."""
    name, _, limits = text.partition(":")
    ours = _AUTHORS_NAMES.get(name) or _BY_PLAIN_NAME.get(_plain(name))
    operations = {operation.name: operation for operation in space.operations}
    if ours not in operations:
        raise ValueError(f"unknown operation {shown(text)}; known are {', '.join(operations)}")
    operation = operations[ours]
    if operation.low is not None and limits:
        found = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", limits)]
        if found != [operation.low, operation.high]:
            raise ValueError(
                f"{shown(text)} has a range other than {operation.low:g} to {operation.high:g}, "
                "that of the authors' code"
            )
    return operation


def _authors_layers(shares: Array, rows: int) -> Layers:
    if shares.ndim != 2 or shares.shape[1] != rows:
        raise ValueError(f"has shape {shares.shape}, expected (layers, {rows}) as 'ops' has rows")
    if len(shares) > MAX_DEPTH:
        raise ValueError(f"{len(shares):,} layers; a policy has at most {MAX_DEPTH:,}")
    table = shares.astype(np.float64)
    for k, layer in enumerate(table, start=1):
        if not ((layer >= 0) & (layer <= 1 + FLOAT32_SUM)).all():  # NaN is neither
            raise ValueError(f"layer {k}: holds a value that is no probability")
        if abs((total := math.fsum(layer)) - 1) > FLOAT32_SUM:
            raise ValueError(f"layer {k}: sums to {total:.6f}, expected 1")
        layer /= total
    return Layers(torch.from_numpy(table))


# Lists of sub-policies

# Fast AutoAugment's ranges, which DADA shares, are those of the paper's space, but cutout has a
# magnitude: a fraction of the width.
_SUB_POLICY_OPERATIONS: Mapping[str, Operation] = {
    **{name: Operation(name) for name, spec in BUILTIN.items() if spec.magnitude == ""},
    **{operation.name: operation for operation in CIFAR.operations},
    "cutout": Operation("cutout", 0.0, 0.2),
}


def read_sub_policies(document: Value) -> Policy:
    """Chains of equal weight from `[[[operation, probability, level], ...], ...]`.

    The document is the list, or an object with the list under "sub_policies" and texts that become
    `info`. Levels run from 0 to 1 over Fast AutoAugment's ranges.
    """
    listed, info = document, {}
    if isinstance(document.value, dict):
        fields = dict(document.entries())
        listed = fields.pop("sub_policies")
        info = {key: value.text() for key, value in fields.items()}
    chains = [_chain(policy) for policy in listed.items("sub-policy", first=1, most=MAX_CHAINS)]
    if not chains:
        raise listed.error("no sub-policies")
    depth = max(map(len, chains))
    if not depth:
        raise listed.error("every sub-policy is empty")
    if (slots := depth * len(chains)) > MAX_PARTS:  # the shorter ones are filled up
        raise listed.error(f"{slots:,} operations with those of the longest, at most {MAX_PARTS:,}")
    if (rows := len({row for chain in chains for row, _ in chain})) >= MAX_ROWS:
        raise listed.error(f"{rows:,} different rows; at most {MAX_ROWS:,} are read")
    padded = [chain + [(IDENTITY, 0.0)] * (depth - len(chain)) for chain in chains]
    return Policy.of_chains({0: [(chain, 1 / len(chains)) for chain in padded]}, info)


def _chain(policy: Value) -> list[tuple[Row, float]]:
    steps = policy.items("operation", first=1)
    if len(steps) > MAX_DEPTH:
        raise policy.error(f"{len(steps):,} operations; a policy has at most {MAX_DEPTH:,}")
    return [_step(step) for step in steps]


def _step(step: Value) -> tuple[Row, float]:
    name, probability, level = step.parts("operation", "probability", "level")
    ours = _BY_PLAIN_NAME.get(_plain(name.text()))
    if ours is None:
        raise step.error(f"unknown operation {shown(name.value)}; known are {', '.join(BUILTIN)}")
    operation = _SUB_POLICY_OPERATIONS[ours]
    gate = probability.number(0.0, 1.0)
    if operation.low is None or operation.high is None:
        if level.value is not None:  # written by habit, without a meaning
            level.number(0.0, 1.0)
        return Row(operation, None), gate
    magnitude = level.number(0.0, 1.0) * (operation.high - operation.low) + operation.low
    return Row(operation, min(max(magnitude, operation.low), operation.high)), gate


# PBA's schedules: a population's log as phases of chains
#
# Population Based Augmentation draws how many operations an image gets, shuffles its list of 30,
# and applies each with its own probability until that many were applied. Which operations would be
# applied does not depend on the order, so the chance of each first and second one is known exactly,
# and a phase is a mixture of chains of two.

SEARCH_EPOCHS = 200
"""Epochs of the search on CIFAR-10; the log does not say."""
MAX_LINES = 2_000
TOP_LEVEL = 10
SIDE = 32
"""Translations are in pixels of a CIFAR image."""
COUNTS = (0.2, 0.3, 0.5)
"""How likely an image gets no, at most one and at most two operations."""
PBA_NAMES = (
    *("rotate", "translate_x", "translate_y", "brightness", "color", "invert", "sharpness"),
    *("posterize", "shear_x", "solarize", "shear_y", "equalize", "auto_contrast", "cutout"),
    "contrast",
)
"""The order of the log's numbers: a probability and a level each, and the whole list twice.

The search ran on Python 2, where a dict gave its keys by their hashes. PBA's code wrote this order
down later; a copy from before that, run on Python 3, takes the order in which the dict was filled.
"""
_MOST = {"shear_x": 0.3, "shear_y": 0.3, "rotate": 30.0}
_MOST |= {"translate_x": 10 / SIDE, "translate_y": 10 / SIDE}
"""The magnitude at the highest level of operations that take either sign."""


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
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > MAX_LINES:
        raise PolicyFileError(f"{source}: {len(lines):,} lines; at most {MAX_LINES:,} are read")
    # the lines are Python lists, which JSON can read once the quotes are its own
    updates = [
        _update(parse(line.replace("'", '"'), f"{source}: line {i}"))
        for i, line in enumerate(lines, start=1)
    ]
    # one line of descent: each update copies the trial that the one before it made
    breaks = [i for i, (a, b) in enumerate(pairwise(updates), start=1) if a.trial != b.clone]
    updates = updates[max(breaks, default=0) :]
    for before, after in pairwise(updates):
        if after.epoch < before.epoch:
            raise PolicyFileError(f"{source}: epoch {after.epoch} follows epoch {before.epoch}")
    if updates[-1].epoch >= over:
        raise PolicyFileError(
            f"{source}: a change at epoch {updates[-1].epoch} of a search of {over} epochs"
        )
    phases = {0: updates[0].old} | {update.epoch: update.new for update in updates}
    if len(phases) > MAX_PHASES:
        raise PolicyFileError(f"{source}: {len(phases):,} phases; at most {MAX_PHASES:,} are read")
    schedule, count = {}, 0
    for epoch, numbers in phases.items():
        listed = zip([*PBA_NAMES, *PBA_NAMES], numbers[::2], numbers[1::2], strict=True)
        schedule[epoch] = pba_mixture([(pba_rows(name, level), p) for name, p, level in listed])
        if (count := count + len(schedule[epoch])) > MAX_CHAINS:
            raise PolicyFileError(f"{source}: more than {MAX_CHAINS:,} chains over all phases")
    return Policy.of_chains(schedule, {"imported from": "a schedule of PBA"})


def _update(line: Value) -> Update:
    trial, clone, _, epoch, old, new = line.parts(
        "trial", "clone", "trial epoch", "clone epoch", "old numbers", "new numbers"
    )
    return Update(trial.text(), clone.text(), epoch.integer(0, 10**6), _numbers(old), _numbers(new))


def _numbers(listed: Value) -> list[int]:
    count = 4 * len(PBA_NAMES)
    if isinstance(listed.value, list) and len(listed.value) != count:
        raise listed.error(f"{len(listed.value)} numbers, expected {count}")
    items = listed.items("number")
    return [item.integer(0, TOP_LEVEL) for item in items]


def pba_rows(name: str, level: int, side: int = SIDE) -> list[Row]:
    """The one or two rows of an operation at a level, with AutoAugment's ranges for CIFAR.

    Cutout's pixels grow with the side of the images, as translations do.
    """
    if name in _MOST:
        most = _MOST[name]
        operation = Operation(name, -most, most, neutral=0.0, options={"fill": CIFAR_MEAN})
        value = level * most / TOP_LEVEL
        if name.startswith("translate"):
            value = int(level * 10 / TOP_LEVEL) / SIDE
        elif name == "rotate":
            value = float(int(value))
        return [Row(operation, value), Row(operation, -value)] if value else [IDENTITY]
    if name == "cutout":
        size = int(level * 20 / TOP_LEVEL * side / SIDE)
        square = Operation(name, options={"size": size, "central": PIXEL}) if size else None
        return [Row(square, None) if square else IDENTITY]
    if name in ("auto_contrast", "equalize", "invert"):
        return [Row(Operation(name), None)]
    low, high, neutral, value = {
        "posterize": (0.0, 8.0, 8.0, 4.0 - int(level * 4 / TOP_LEVEL)),
        "solarize": (0.0, 256.0, 256.0, 256.0 - int(level * 256 / TOP_LEVEL)),
    }.get(name, (0.1, 1.9, 1.0, min(1.9, level * 1.8 / TOP_LEVEL + 0.1)))
    return [Row(Operation(name, low, high, neutral=neutral), value)]


def pba_mixture(listed: Sequence[tuple[Sequence[Row], int]]) -> list[tuple[Chain, float]]:
    """The chains of a phase and their weights, from each operation's rows and gate of 0 to 10."""
    used = [(rows, gate / 10) for rows, gate in listed if gate]
    none, single, pair = chances(np.array([p for _, p in used]))
    chains: dict[Chain, float] = {((IDENTITY, 1.0), (IDENTITY, 1.0)): none}

    def add(first: Sequence[Row], second: Sequence[Row], weight: float) -> None:
        ways = [((a, 1.0), (b, 1.0)) for a, b in product(first, second)]
        for way in ways:
            chains[way] = chains.get(way, 0.0) + weight / len(ways)

    for i, (first, _) in enumerate(used):
        add(first, [IDENTITY], float(single[i]))
        for j, (second, _) in enumerate(used):
            if i != j:
                add(first, second, float(pair[i, j]))
    return list(chains.items())


def chances(p: npt.NDArray[np.float64]) -> tuple[float, Array, Array]:
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
