"""The JSON format of policies (docs/policy-format.md), written, saved and strictly read.

Reading runs no code and unpickles nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from deepaa.ops import BUILTIN, Operation, Option, Row, Table
from deepaa.policy.policy import MAX_DEPTH, Policy
from deepaa.policy.stages import SUM_TOLERANCE, Chains, Layers, Slots, Stage, check_sum
from deepaa.policy.strict_json import (
    MAX_BYTES,
    MAX_CHAINS,
    MAX_CROPS,
    MAX_INT,
    MAX_OPERATIONS,
    MAX_PARTS,
    MAX_PHASES,
    MAX_ROWS,
    SURROGATE,
    PolicyFileError,
    Value,
    count_parts,
    shown,
)
from deepaa.runs import write_file

FORMAT, VERSION = "deepaa-policy", 1
MAX_LISTED = 256
"""Numbers in one option of an operation."""
MOST = 1 + SUM_TOLERANCE
"""A single probability may be that large, since sums are allowed to."""


# Writing


def save_policy(policy: Policy, path: str | Path) -> None:
    """Write `policy` to `path`: the whole new file appears there, or the old one stays."""
    text = dumps(policy)
    _check_size(policy, text, path)
    target = Path(path).resolve()  # a link stays a link, and its target is replaced
    if not target.parent.is_dir():
        raise PolicyFileError(f"{path}: the folder {target.parent} does not exist")
    if target.suffix == ".npz":
        raise PolicyFileError(f"{path}: policies are written as JSON; give it the ending .json")
    if target.is_dir():
        raise PolicyFileError(f"{path}: a folder, expected the path of a file")
    write_file(target, text.encode())


def _check_size(policy: Policy, text: str, path: str | Path) -> None:
    """Refuse a policy that could not be read again."""
    stages = [stage for phase in policy.phases for stage in phase.stages]
    operations = policy.table.operations
    for count, most, what in (
        (len(operations), MAX_OPERATIONS, "operations"),
        (sum(op.name == "resized_crop" for op in operations), MAX_CROPS, "resized crops"),
        (len(policy.table), MAX_ROWS, "rows"),
        (len(policy.phases), MAX_PHASES, "phases"),
        (sum(len(s.weights) for s in stages if isinstance(s, Chains)), MAX_CHAINS, "chains"),
        (count_parts(text), MAX_PARTS, "numbers, lists and objects"),
        (len(text.encode()), MAX_BYTES, "bytes"),
    ):
        if count > most:
            raise PolicyFileError(f"{path}: {count:,} {what}; a policy file has at most {most:,}")


def dumps(policy: Policy) -> str:
    """The policy as JSON text; equal policies with equal `info` give equal text."""
    operations = policy.table.operations
    index = {operation: i for i, operation in enumerate(operations)}
    kernels: dict[str, tuple[Any, ...]] = {}
    for op in operations:  # a file tells operations apart by name
        kernel = (op.pil, op.batched, op.uniforms)
        if kernels.setdefault(op.name, kernel) != kernel:
            raise ValueError(f"two operations named {op.name!r} have different kernels")
    rows = [
        ", ".join(_line((index[operation], _float(row.magnitude))) for row in group)
        for operation, group in groupby(policy.table.rows, key=lambda row: row.operation)
    ]
    info = [
        f"{_line(key, 'a key of info')}: {_line(policy.info[key], f'info[{key!r}]')}"
        for key in sorted(policy.info)
    ]
    phases = [
        f'{{"epoch": {int(phase.epoch)}, "stages": {_block(map(_stage, phase.stages), 6)}}}'
        for phase in policy.phases
    ]
    parts = [
        f'"format": "{FORMAT}"',
        f'"version": {VERSION}',
        f'"info": {_block(info, 4, "{}")}',
        f'"operations": {_block(map(_operation, operations), 4)}',
        f'"rows": {_block(rows, 4)}',
        f'"phases": {_block(phases, 4)}',
    ]
    return _block(parts, 2, "{}") + "\n"


def _block(lines: Iterable[str], indent: int, brackets: str = "[]") -> str:
    """A list or object with one item per line."""
    items = [f"\n{' ' * indent}{line}" for line in lines]
    if not items:
        return brackets
    return f"{brackets[0]}{','.join(items)}\n{' ' * (indent - 2)}{brackets[1]}"


def _line(value: Any, what: str = "a policy") -> str:
    """`value` as JSON; floats have the shortest text that reads back as the same float64."""
    text = json.dumps(value, ensure_ascii=False)
    if SURROGATE.search(text):
        raise ValueError(f"{what} should be text that UTF-8 can hold, got {value!r}")
    return text


def _operation(operation: Operation) -> str:
    options = dict(sorted(operation.options.items()))
    for key, value in options.items():
        what = f"{operation.name}: option {key}"
        _line([key, value], what)
        listed = value if isinstance(value, tuple) else ()
        whole = [v for v in (*listed, value) if isinstance(v, int)]
        if any(abs(v) > MAX_INT for v in whole) or bool in map(type, listed):
            raise ValueError(f"{what} holds {value!r}, which a policy file cannot")
    low, high, neutral = map(_float, (operation.low, operation.high, operation.neutral))
    limits = {"low": low, "high": high, "neutral": neutral}
    return _line({"name": operation.name, **limits, "options": options})


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _stage(stage: Stage) -> str:
    if isinstance(stage, Layers):
        return f'{{"layers": {_block(map(_line, stage.probabilities.tolist()), 8)}}}'
    chains = (_line({"weight": weight, "slots": slots}) for slots, weight in stage.pairs())
    return f'{{"chains": {_block(chains, 8)}}}'


# Reading


def read_document(document: Value, operations: Sequence[Operation] = ()) -> Policy:
    """The policy in a parsed document of this package's format.

    Args:
        operations: Your own operations that the document names.
    """
    if not isinstance(document.value, dict):
        raise document.wrong("a policy: an object {...} or a list of sub-policies")
    if document.value.get("format") != FORMAT:
        raise document.error(f'not a policy file: it has no "format": "{FORMAT}"')
    _check_version(document)
    _, _, info, listed, rows, phases = document.fields(
        "format", "version", "info", "operations", "rows", "phases"
    )
    notes = {key: value.text() for key, value in info.entries()}
    table = _table(_operations(listed, operations), rows)
    items = phases.items("phase", first=1, most=MAX_PHASES)
    if len(items) == 1:  # most policies have one phase, and then errors need not name it
        items = [replace(items[0], path=())]
    schedule = [_phase(item, table) for item in items]
    stages = [stage for _, parts in schedule for stage in parts]
    if (count := sum(len(s.weights) for s in stages if isinstance(s, Chains))) > MAX_CHAINS:
        raise phases.error(f"{count:,} chains; at most {MAX_CHAINS:,} are read")
    with phases.checks():
        return Policy(table, schedule=schedule, info=notes)


def _check_version(document: Value) -> None:
    """Before anything else, since a newer file may have keys we do not know."""
    if "version" not in document.value:
        raise document.error('key "version" is missing')
    version = document.at('key "version"', document.value["version"]).integer(1, MAX_INT)
    if version > VERSION:
        raise document.error(
            f"written by a newer deepaa (format version {version}); this one reads version "
            f"{VERSION}"
        )


def _operations(listed: Value, own: Sequence[Operation]) -> list[Operation]:
    kernels = {operation.name: operation for operation in own if operation.is_custom}
    if len(kernels) != sum(operation.is_custom for operation in own):
        raise ValueError("operations holds two operations of one name")
    found = []
    for item in listed.items("operation", most=MAX_OPERATIONS):
        name, low, high, neutral, options = item.fields("name", "low", "high", "neutral", "options")
        settings: dict[str, Any] = {
            "low": low.number_or_null(),
            "high": high.number_or_null(),
            "neutral": neutral.number_or_null(),
            "options": {key: _option(value) for key, value in options.entries()},
        }
        given = kernels.get(name.text())
        if given is None and name.value not in BUILTIN:
            raise item.error(
                f"unknown operation {shown(name.value)}; if it is your own, pass operations=[...] "
                f"with its kernel; built-in are {', '.join(BUILTIN)}"
            )
        with item.checks():
            found.append(replace(given, **settings) if given else Operation(name.value, **settings))
    if not found:
        raise listed.error("a policy needs at least one operation")
    crops = {operation for operation in found if operation.name == "resized_crop"}
    if len(crops) > MAX_CROPS:
        raise listed.error(f"{len(crops)} different resized crops; at most {MAX_CROPS} are read")
    return found


def _option(value: Value) -> Option:
    found: Any = value.value
    if isinstance(found, str):
        return value.text()
    if found is None or isinstance(found, bool):
        return found
    for item in value.items("item", most=MAX_LISTED) if isinstance(found, list) else (value,):
        item.number()
    return tuple(found) if isinstance(found, list) else found


def _table(operations: Sequence[Operation], rows: Value) -> Table:
    found = []
    for item in rows.items("row", most=MAX_ROWS):
        index, magnitude = item.parts("operation", "magnitude")
        operation = operations[index.integer(0, len(operations) - 1)]
        found.append(Row(operation, magnitude.number_or_null()))
    with rows.checks():
        return Table(found)


def _phase(phase: Value, table: Table) -> tuple[int, list[Stage]]:
    epoch, stages = phase.fields("epoch", "stages")
    items = stages.items("stage", first=1)
    if len(items) == 1:
        items = [replace(items[0], path=items[0].path[:-1])]
    found: list[Stage] = []
    depth = 0
    for item in items:
        keys = item.value if isinstance(item.value, dict) else {}
        if "chains" in keys:
            (chains,) = item.fields("chains")
            found.append(_chains(chains, depth, table))
        elif "layers" in keys:
            (layers,) = item.fields("layers")
            found.append(_layers(layers, depth, len(table)))
        else:
            raise item.wrong('{"layers": [...]} or {"chains": [...]}')
        depth += found[-1].depth
    return epoch.integer(0, MAX_INT), found


def _check_depth(stage: Value, before: int, parts: Value) -> None:
    """Refuse too deep a policy before there is an object for each part."""
    depth = before + len(parts.value) if isinstance(parts.value, list) else before
    if depth > MAX_DEPTH:
        raise stage.error(f"{depth:,} layers; a policy has at most {MAX_DEPTH:,}")


def _layers(layers: Value, before: int, width: int) -> Layers:
    _check_depth(layers, before, layers)
    found = []
    for line in layers.items("layer", first=1):
        if isinstance(line.value, list) and len(line.value) != width:
            raise line.error(
                f"holds {len(line.value)} probabilities, but the table has {width} rows"
            )
        found.append(_shares(line))
        with line.checks():
            check_sum(found[-1], "sums")
    return Layers(torch.tensor(found, dtype=torch.float64).view(len(found), width))


def _shares(line: Value) -> list[float]:
    """The probabilities of a layer."""
    listed = line.value
    # a policy may have thousands; what is wrong with one is said by the check of that one
    plain = isinstance(listed, list) and set(map(type, listed)) <= {int, float}
    if plain and all(0 <= share <= MOST for share in listed):
        return list(map(float, listed))
    return [share.number(0.0, MOST) for share in line.items("row")]


def _chains(chains: Value, before: int, table: Table) -> Chains:
    found: list[tuple[Slots, float]] = []
    gated = table.identity is not None
    for part in chains.items("chain", first=1, most=MAX_CHAINS):
        weight, slots = part.fields("weight", "slots")
        _check_depth(chains, before, slots)
        chain = _slots(slots, len(table), gated=gated)
        if not chain or len(chain) != len(found[0][0] if found else chain):
            expected = f"{len(found[0][0])} as in chain 1" if found else "at least one"
            raise part.error(f"has {len(chain)} slots, expected {expected}")
        found.append((chain, weight.number(0.0, MOST)))
    if not found:
        raise chains.error("a stage of chains needs at least one")
    with chains.checks():
        check_sum([weight for _, weight in found], "the weights sum")
    return Chains.of(found)


def _slots(slots: Value, rows: int, *, gated: bool) -> list[tuple[int, float]]:
    """The slots of a chain; `gated` says whether the table has what a closed gate applies."""
    found = []
    for slot in slots.items("slot", first=1):
        row, gate = slot.parts("row", "gate")
        found.append((row.integer(0, rows - 1), gate.number(0.0, 1.0)))
        if found[-1][1] < 1 and not gated:
            raise slot.error("a gate below 1 needs an identity row in the table")
    return found
