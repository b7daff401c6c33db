"""`deepaa bench ops`: the command, and the tables that benchmarks print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from deepaa.cli.options import SpaceChoice, check_place, plain_console

LESS_IMPORTANT = (
    "cores",
    "slowest..fastest",
    "fastest..slowest",
    "precision",
    "operations",
    "extra memory",
    "draws per",
)
"""Columns that a narrow terminal does without, in this order."""
RATES = {
    "who": "{name}",
    "takes": "{takes}",
    "draws per": "{draws}",
    "operations/s": "{operation_rate:,.0f}",
    "images/s": "{rate:,.0f}",
    "x peer": "{ratio:.2f}",
    "slowest..fastest": "{slowest:,.0f}..{fastest:,.0f}",
    "operations": "{operations:d}",
    "cores": "{cores:.2f}",
    "extra memory": "{memory:.2f} x",
}
TIMES = {"operation": "{operation}", "batch": "{batch_us:.3f}", "PIL": "{pil_us:.3f}"}


def ops(
    sizes: Annotated[
        list[int], typer.Option("--size", min=1, help="Side of the images. May be repeated.")
    ] = [32, 224],  # noqa: B006 - typer reads it, nobody writes to it
    batch: Annotated[
        int | None, typer.Option(min=1, help="Images in a batch. Default: see docs/benchmarks.md.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of our policy. Default: 2 on CPU, 6 on CUDA.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto for what there is.")] = "auto",
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Least time spent on each contestant.")
    ] = 2.0,
    peers: Annotated[
        str, typer.Option(help="Libraries to compare with, with commas between; all or none.")
    ] = "all",
    space: Annotated[SpaceChoice, typer.Option(help="The search space.")] = SpaceChoice.cifar,
    breakdown: Annotated[
        bool, typer.Option("--breakdown", help="Also time each operation alone.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A JSON file for all numbers.")] = None,
) -> None:
    """Measure how fast images are augmented, beside other libraries, on one thread.

    Rates are per applied operation, so that methods that apply one and methods that apply several
    can be compared. Other libraries come with pip install 'deepaa[bench]'; one that is missing or
    fails is listed with the reason.
    """
    from deepaa.cli.bench_measure import measure_ops, settings_for
    from deepaa.cli.bench_peers import chosen_libraries
    from deepaa.distributed import check_device
    from deepaa.runs import write_json

    check_device(device)
    check_place(out, "ops.json")
    settings = settings_for(device, sizes, batch, layers)
    libraries = chosen_libraries(peers)
    report = measure_ops(settings, libraries, space=space, seconds=seconds, breakdown=breakdown)
    if out is not None:
        write_json(out, report)
    print_tables(ops_tables(report), out)


class TextTable(NamedTuple):
    """A table to print: each column formats values of the rows."""

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]


def ops_tables(report: Mapping[str, Any]) -> list[TextTable]:
    """The report as text: a table per setting, then the operations one by one."""
    found = []
    for part, columns in (("results", RATES), ("breakdown", TIMES)):
        for name in dict.fromkeys(map(title, report[part])):
            more, rows = "", [row for row in report[part] if title(row) == name]
            if part == "breakdown":
                more = ": microseconds per image"
            elif ratios := [row for row in report["comparisons"] if title(row) == name]:
                more = f"; x peer: times {ratios[0]['peer']}"
                of = {(row["name"], row["takes"]): row["ratio"] for row in ratios}
                rows = [{**row, "ratio": of.get((row["name"], row["takes"]))} for row in rows]
            found.append(TextTable(name + more, columns, rows))
    return found


def title(setting: Mapping[str, Any]) -> str:
    """`CPU, 32 x 32, batch 4,096, 2 layers`."""
    from deepaa.files import plural  # loads numpy

    layers = plural(setting["layers"], "layer")
    text = "{}, {size} x {size}, batch {batch:,}, {}"
    return text.format(setting["device"].upper(), layers, **setting)


def print_tables(tables: Sequence[TextTable], out: Path | None) -> None:
    """Print the tables, and where the numbers were written.

    A value that is missing is a dash, and a column without any value is left out. A narrow terminal
    does without the least important columns. Notes stand below their table.
    """
    from rich.table import Table
    from rich.text import Text

    console = plain_console()
    for table in tables:
        columns = {
            name: [_cell(text, row) for row in table.rows] for name, text in table.columns.items()
        }
        columns = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
        for name in LESS_IMPORTANT:
            widths = (max(map(len, [name, *cells])) + 1 for name, cells in columns.items())
            if sum(widths) > console.width:
                columns.pop(name, None)
        grid = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        for name, cells in columns.items():
            is_text = any(text[:1].isalpha() for text in cells)
            grid.add_column(name, justify="left" if is_text else "right", no_wrap=True)
        for line in zip(*columns.values(), strict=True):
            grid.add_row(*line)
        console.print("", Text(table.title, "bold"), sep="\n")
        console.print(grid)
        for row in table.rows:
            if row.get("note"):
                console.print(Text(f"{row['name']}: {row['note']}", "dim"))
    if out is not None:
        console.print(f"\nwrote {out}", soft_wrap=True)


def _cell(text: str, row: Mapping[str, Any]) -> str:
    try:
        return text.format(**row)
    except (KeyError, TypeError):  # None has no digits
        return "-"
