"""The JSON format of policies (docs/policy-format.md), written and strictly read.

Reading runs no code and unpickles nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import torch

from deepaa.ops import BUILTIN, Operation, Option, Row, Table
from deepaa.policy.policy import MAX_DEPTH, Policy
from deepaa.policy.stages import SUM_TOLERANCE, Chains, Layers, Stage
from deepaa.policy.strict_json import MAX_INT, Value, is_text, shown

FORMAT, VERSION = "deepaa-policy", 1
MOST = 1 + SUM_TOLERANCE
"""A single probability may be that large, since sums are allowed to."""


# Writing


def dumps(policy: Policy) -> str:
    """The policy as JSON text; equal policies with equal `info` give equal text."""
    operations = policy.table.operations
    _check_kernels(operations)
    index = {operation: i for i, operation in enumerate(operations)}
    rows = [(index[row.operation], row.magnitude) for row in policy.table.rows]
    grouped = groupby(rows, key=lambda row: row[0])
    row_lines = [
        ", ".join(f"[{i}, {_number(magnitude)}]" for i, magnitude in group) for _, group in grouped
    ]
    phases = [
        f'{{"epoch": {int(phase.epoch)}, "stages": '
        + _block((_stage_text(stage) for stage in phase.stages), 6)
        + "}"
        for phase in policy.phases
    ]
    parts = [
        f'"format": "{FORMAT}"',
        f'"version": {VERSION}',
        f'"info": {_info_text(policy.info)}',
        f'"operations": {_block(map(_operation_text, operations), 4)}',
        f'"rows": {_block(row_lines, 4)}',
        f'"phases": {_block(phases, 4)}',
    ]
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def _check_kernels(operations: Iterable[Operation]) -> None:
    """Refuse two kernels of one name, since a file tells operations apart by name."""
    kernels: dict[str, tuple[Any, ...]] = {}
    for op in operations:
        kernel = (op.pil, op.batched, op.uniforms)
        if kernels.setdefault(op.name, kernel) != kernel:
            raise ValueError(f"two operations named {op.name!r} have different kernels")


def _block(lines: Iterable[str], indent: int, brackets: str = "[]") -> str:
    """A list or object with one item per line."""
    items = [f"\n{' ' * indent}{line}" for line in lines]
    if not items:
        return brackets
    return f"{brackets[0]}{','.join(items)}\n{' ' * (indent - 2)}{brackets[1]}"


def _number(value: float | None) -> str:
    """The shortest text that reads back as the same float64."""
    return "null" if value is None else repr(float(value))


def _text(value: object, what: str) -> str:
    if not is_text(value):
        raise ValueError(f"{what} should be text that UTF-8 can hold, got {value!r}")
    return json.dumps(value, ensure_ascii=False)


def _info_text(info: Mapping[str, str]) -> str:
    keys = {key: _text(key, "a key of info") for key in info}
    return _block((f"{keys[k]}: {_text(info[k], f'info[{k!r}]')}" for k in sorted(info)), 4, "{}")


def _operation_text(operation: Operation) -> str:
    options = ", ".join(
        f"{_text(key, f'{operation.name}: an option')}: {_option_text(operation, key)}"
        for key in sorted(operation.options)
    )
    return (
        f'{{"name": "{operation.name}", "low": {_number(operation.low)}, '
        f'"high": {_number(operation.high)}, "neutral": {_number(operation.neutral)}, '
        f'"options": {{{options}}}}}'
    )


def _option_text(operation: Operation, key: str) -> str:
    value = operation.options[key]
    what = f"{operation.name}: option {key}"
    if isinstance(value, str):
        return _text(value, what)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    values = value if isinstance(value, tuple) else (value,)
    if any(isinstance(v, bool) or (isinstance(v, int) and abs(v) > MAX_INT) for v in values):
        raise ValueError(f"{what} holds {value!r}, which a policy file cannot")
    texts = [str(int(v)) if isinstance(v, int) else _number(v) for v in values]
    return f"[{', '.join(texts)}]" if isinstance(value, tuple) else texts[0]


def _stage_text(stage: Stage) -> str:
    if isinstance(stage, Layers):
        layers = (f"[{', '.join(map(_number, layer))}]" for layer in stage.probabilities.tolist())
        return f'{{"layers": {_block(layers, 8)}}}'
    if not stage.depth:
        raise ValueError("chains without slots cannot be saved")
    chains = zip(stage.weights.tolist(), stage.rows.tolist(), stage.gates.tolist(), strict=True)
    texts = []
    for weight, rows, gates in chains:
        slots = ", ".join(
            f"[{row}, {_number(gate)}]" for row, gate in zip(rows, gates, strict=True)
        )
        texts.append(f'{{"weight": {_number(weight)}, "slots": [{slots}]}}')
    return f'{{"chains": {_block(texts, 8)}}}'


# Reading


def read_document(document: Value, operations: Sequence[Operation] = ()) -> Policy:
    """The policy in a parsed document of this package's format.

    Args:
        operations: Your own operations that the document names.
    """
    found = document.value
    if not isinstance(found, dict):
        raise document.wrong("a policy: an object {...} or a list of sub-policies")
    if found.get("format") != FORMAT:
        raise document.error(f'not a policy file: it has no "format": "{FORMAT}"')
    _check_version(document)
    _, _, info, listed, rows, phases = document.fields(
        "format", "version", "info", "operations", "rows", "phases"
    )
    notes = {key: value.text() for key, value in info.entries()}
    table = _table(_operations(listed, operations), rows)
    schedule = _schedule(phases, table)
    try:
        return Policy(table, schedule=schedule, info=notes)
    except ValueError as error:  # what the checks above should have found
        raise document.error(str(error)) from error


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
    for item in listed.items("operation"):
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
        try:
            found.append(replace(given, **settings) if given else Operation(name.value, **settings))
        except ValueError as error:
            raise item.error(str(error)) from error
    if not found:
        raise listed.error("a policy needs at least one operation")
    return found


def _option(value: Value) -> Option:
    if isinstance(value.value, list):
        return tuple(_option_number(item) for item in value.items("item"))
    if value.value is None or isinstance(value.value, bool):
        return value.value
    return value.text() if isinstance(value.value, str) else _option_number(value)


def _option_number(value: Value) -> int | float:
    number = value.number()
    return int(number) if type(value.value) is int else number


def _table(operations: Sequence[Operation], rows: Value) -> Table:
    found = []
    for item in rows.items("row"):
        index, magnitude = item.parts("operation", "magnitude")
        operation = operations[index.integer(0, len(operations) - 1)]
        found.append(Row(operation, magnitude.number_or_null()))
    try:
        return Table(found)
    except ValueError as error:
        raise rows.error(str(error)) from error


def _schedule(phases: Value, table: Table) -> list[tuple[int, list[Stage]]]:
    items = phases.items("phase", first=1)
    if not items:
        raise phases.error("a policy needs at least one phase")
    if len(items) == 1:  # most policies have one phase, and then errors need not name it
        items = [replace(items[0], path=())]
    schedule = []
    for item in items:
        epoch, stages = item.fields("epoch", "stages")
        schedule.append((epoch.integer(0, MAX_INT), _stages(stages, table)))
    epochs = [epoch for epoch, _ in schedule]
    if epochs[0] != 0 or any(b <= a for a, b in pairwise(epochs)):
        raise phases.error(f"phases start at epoch 0 and their epochs rise, got {epochs[:10]}")
    return schedule


def _stages(stages: Value, table: Table) -> list[Stage]:
    items = stages.items("stage", first=1)
    if len(items) == 1:
        items = [replace(items[0], path=items[0].path[:-1])]
    found: list[Stage] = []
    depth = 0
    for item in items:
        keys = item.value if isinstance(item.value, dict) else {}
        if "chains" in keys:
            (chains,) = item.fields("chains")
            parts = chains.items("chain", first=1)
            first = parts[0].value if parts and isinstance(parts[0].value, dict) else {}
            depth += _check_depth(chains, depth, _length(first.get("slots")))
            found.append(_chains(chains, parts, table))
        elif "layers" in keys:
            (layers,) = item.fields("layers")
            depth += _check_depth(layers, depth, _length(layers.value))
            found.append(_layers(layers.items("layer", first=1), len(table)))
        else:
            raise item.wrong('{"layers": [...]} or {"chains": [...]}')
    return found


def _length(value: Any) -> int:
    """How many items a list has; 0 for what is none, which is reported later."""
    return len(value) if isinstance(value, list) else 0


def _check_depth(value: Value, before: int, more: int) -> int:
    if before + more > MAX_DEPTH:
        raise value.error(f"{before + more:,} layers; a policy has at most {MAX_DEPTH:,}")
    return more


def _layers(lines: Sequence[Value], width: int) -> Layers:
    found = []
    for line in lines:
        if isinstance(line.value, list) and len(line.value) != width:
            raise line.error(
                f"holds {len(line.value)} probabilities, but the table has {width} rows"
            )
        values = line.numbers("row", 0.0, MOST)
        _check_sum(line, values, "sums")
        found.append(values)
    return Layers(torch.tensor(found, dtype=torch.float64).view(len(found), width))


def _chains(chains: Value, parts: Sequence[Value], table: Table) -> Chains:
    if not parts:
        raise chains.error("a stage of chains needs at least one")
    closable = table.identity is not None
    weights: list[float] = []
    rows: list[list[int]] = []
    gates: list[list[float]] = []
    for part in parts:
        weight, slots = part.fields("weight", "slots")
        weights.append(weight.number(0.0, MOST))
        pairs = slots.items("slot", first=1)
        if not pairs or len(pairs) != len(rows[0] if rows else pairs):
            expected = f"{len(rows[0])} as in chain 1" if rows else "at least one"
            raise part.error(f"has {len(pairs)} slots, expected {expected}")
        rows.append([])
        gates.append([])
        for pair in pairs:
            row, gate = pair.parts("row", "gate")
            rows[-1].append(row.integer(0, len(table) - 1))
            gates[-1].append(gate.number(0.0, 1.0))
            if not closable and gates[-1][-1] < 1:
                raise pair.error("a gate below 1 needs an identity row in the table")
    _check_sum(chains, weights, "the weights sum")
    return Chains(
        torch.tensor(weights, dtype=torch.float64),
        torch.tensor(rows),
        torch.tensor(gates, dtype=torch.float64),
    )


def _check_sum(value: Value, numbers: Sequence[float], what: str) -> None:
    total = math.fsum(numbers)
    if abs(total - 1) > SUM_TOLERANCE:
        raise value.error(f"{what} to {total:.6f}, expected 1")
