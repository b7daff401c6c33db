"""Tables of numbers as tables of a page: text to read, and values to sort by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from deepaa.report.accuracy_tables import AccuracyRow
from deepaa.report.chains import LikelyChain
from deepaa.report.run_tables import CostRow, DepthRow, OperationTable
from deepaa.report.tables import LayerTable


class Column(NamedTuple):
    """A column's heading."""

    name: str
    numeric: bool = True


class Value(NamedTuple):
    """What a cell shows, and what it is sorted by."""

    text: str
    value: float | str


class PageTable(NamedTuple):
    """A table that the reader can sort."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    total: tuple[Value, ...] = ()
    """A last line that stays last."""


def percent(fraction: float, digits: int = 1) -> str:
    """`5.6 %`."""
    if 0 < fraction < 0.5 * 10 ** -(digits + 2):
        return f"< {10**-digits:g} %"
    return f"{100 * fraction:.{digits}f} %"


def _number(value: float, text: str) -> Value:
    return Value(text, value)


def _text(value: str) -> Value:
    return Value(value, value)


def layers(rows: Sequence[LayerTable]) -> PageTable:
    """How sure each layer is."""
    columns = (
        Column("Layer"),
        Column("Most frequent", numeric=False),
        Column("Its share"),
        Column("Entropy, bits"),
        Column("Perplexity"),
        Column("Identity"),
    )
    return PageTable(
        "layers",
        columns,
        tuple(
            (
                _number(row.layer, str(row.layer)),
                _text(row.operations[0].name),
                _number(row.operations[0].probability, percent(row.operations[0].probability)),
                _number(row.entropy, f"{row.entropy:.2f}"),
                _number(row.perplexity, f"{row.perplexity:.1f}"),
                _number(row.identity, percent(row.identity)),
            )
            for row in rows
        ),
    )


def uses(table: OperationTable) -> PageTable:
    """How often an image meets each operation, and where."""
    columns = (
        Column("Operation", numeric=False),
        Column("Family", numeric=False),
        Column("Uses per image"),
        Column("Most in layer"),
    )
    rows = []
    for row in sorted(table.rows, key=lambda row: -round(sum(row.probabilities), 12)):
        total = sum(row.probabilities)
        where = 1 + row.probabilities.index(max(row.probabilities)) if total else 0
        rows.append(
            (
                _text(row.name),
                _text(row.family),
                _number(total, f"{total:.3f}"),
                _number(where, str(where) if where else "never"),
            )
        )
    return PageTable("uses", columns, tuple(rows))


def chains(rows: Sequence[LikelyChain]) -> PageTable:
    """The most likely sequences of operations."""
    columns = (Column("Operations in order", numeric=False), Column("Share of images"))
    return PageTable(
        "chains",
        columns,
        tuple(
            (
                _text(" → ".join(row.operations) or "the image as it is"),
                _number(row.probability, percent(row.probability, 2)),
            )
            for row in rows
        ),
    )


def depth(rows: Sequence[DepthRow]) -> PageTable:
    """The finished layers beside DeepTA."""
    columns = (
        Column("Layer"),
        Column("Kept", numeric=False),
        Column("Why", numeric=False),
        Column("Improvement"),
        Column("± sd"),
        Column("DeepTA"),
        Column("± sd"),
    )
    numbers = ("mean", "deviation", "deepta_mean", "deepta_deviation")
    return PageTable(
        "depth",
        columns,
        tuple(
            (
                _number(row.layer, str(row.layer)),
                _text("yes" if row.kept else "no"),
                _text(row.reason),
                *(_number(getattr(row, n), f"{getattr(row, n):.4f}") for n in numbers),
            )
            for row in rows
        ),
    )


def costs(rows: Sequence[CostRow]) -> PageTable | None:
    """What the search took; None where that is not known."""
    if not rows:
        return None
    columns = (
        Column("Part", numeric=False),
        Column("Steps or epochs"),
        Column("Passes"),
        Column("Seconds"),
    )

    def line(row: CostRow) -> tuple[Value, ...]:
        return (
            _text(row.part),
            _number(row.steps, f"{row.steps:,}" if row.steps else ""),
            _number(row.passes, f"{row.passes:,}"),
            _number(row.seconds, f"{row.seconds:,.1f}"),
        )

    return PageTable("costs", columns, tuple(map(line, rows[:-1])), line(rows[-1]))


def accuracy(rows: Iterable[AccuracyRow]) -> PageTable:
    """Methods, the best first."""
    columns = (
        Column("Method", numeric=False),
        Column("Accuracy, %"),
        Column("95 % interval"),
        Column("Seeds"),
        Column("Layers, defaults too"),
    )
    ranked = sorted(rows, key=lambda row: -row.mean)
    return PageTable("accuracy", columns, tuple(_accuracy_line(row) for row in ranked))


def _accuracy_line(row: AccuracyRow) -> tuple[Value, ...]:
    half = row.half_width
    interval = "one seed" if half is None else f"± {100 * half:.2f}"
    return (
        _text(row.method),
        _number(row.mean, f"{100 * row.mean:.2f}"),
        _number(-1.0 if half is None else half, interval),
        _number(row.seeds, str(row.seeds)),
        _number(row.layers, str(row.layers)),
    )


def verify(content: Mapping[str, Any]) -> PageTable | None:
    """The short trainings of `deepaa search --verify`; None without them."""
    try:
        rows = [(r["name"], r["accuracy"], r["loss"], r["seconds"]) for r in content["results"]]
    except (KeyError, TypeError):
        return None
    names = ("Accuracy", "Loss", "Seconds")
    columns = (Column("Trained with", numeric=False), *map(Column, names))
    return PageTable(
        "verify",
        columns,
        tuple(
            (
                _text(name),
                _number(accuracy, percent(accuracy)),
                _number(loss, f"{loss:.3f}"),
                _number(seconds, f"{seconds:.0f}"),
            )
            for name, accuracy, loss, seconds in rows
        ),
    )
