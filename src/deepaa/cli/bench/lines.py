"""Tables of benchmarks for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deepaa.report import Renderable

if TYPE_CHECKING:
    from deepaa.cli.bench.tables import TextTable

LESS_IMPORTANT = (
    "cores",
    "slowest..fastest",
    "fastest..slowest",
    "precision",
    "operations",
    "extra memory",
    "draws per",
)
"""Columns of the benchmark that a narrow terminal does without, in this order."""


def print_tables(console: Console, tables: Sequence[TextTable], out: Path | None) -> None:
    """Print the tables, and where the numbers were written."""
    for line in bench_lines(tables, console.width):
        console.print(line)
    if out is not None:
        console.print(f"\nwrote {out}", soft_wrap=True)


def bench_lines(tables: Sequence[TextTable], width: int) -> Iterator[Renderable]:
    """The tables of a benchmark, without their least important columns where it is narrow."""
    for table in tables:
        cells = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
        notes = cells.pop("note", [])
        cells = {name: column for name, column in cells.items() if any(column)}
        for name in LESS_IMPORTANT:
            if _width(cells) > width:
                cells.pop(name, None)
        grid = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        for name, column in cells.items():
            is_text = any(text[:1].isalpha() for text in column)
            grid.add_column(name, justify="left" if is_text else "right", no_wrap=True)
        for line in zip(*cells.values(), strict=True):
            grid.add_row(*line)
        yield Text()
        yield Text(table.title, style="bold")
        yield grid
        for who, note in zip(cells.get("who", ()) if notes else (), notes, strict=True):
            if note:
                yield Text(f"{who}: {note}", style="dim")


def _width(cells: dict[str, list[str]]) -> int:
    return sum(max(map(len, [name, *column])) + 1 for name, column in cells.items())
