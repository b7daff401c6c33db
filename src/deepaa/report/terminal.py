"""Tables as rich renderables for the terminal. Nothing is printed here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from deepaa.bench.report import TextTable
    from deepaa.doctor import Check, Report
    from deepaa.report.tables import LayerTable, OperationShare, OperationUses, PolicyTable

Renderable = Table | Text | Padding
BAR = 10
"""Columns of a bar for probability 1."""
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
SHOWN_MAGNITUDES = 3
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


def policy_lines(table: PolicyTable, encoding: str = "utf-8") -> Iterator[Renderable]:
    """All that is known of a policy, in 80 columns or more.

    Args:
        encoding: The terminal's; bars are made of blocks where it has them.
    """
    ascii_only = not encoding.lower().startswith("utf")
    yield _title(table)
    for key, value in sorted(table.info.items()):
        yield Text(f"  {key}: {value}", style="dim")
    for _, group in groupby(table.layers, key=lambda layer: layer._replace(layer=0)):
        yield Text()
        yield from _layer_lines(list(group), ascii_only)
    if not table.layers:
        yield Text("  no layers: images stay as they are")
        return
    yield Text()
    yield Text("Expected uses per image", style="bold")
    yield Padding(_uses(table.uses), (0, 0, 0, 2))


def _title(table: PolicyTable) -> Text:
    layers = plural(len(table.layers), "layer")
    rows = plural(table.transformations, "transformation")
    operations = plural(table.operations, "operation")
    name = PurePath(table.name).name
    title = Text.assemble((name, "bold cyan"), f": {layers} over {rows} of {operations}")
    if len(table.epochs) > 1:
        starts = ", ".join(map(str, table.epochs))
        title.append(f"; epoch {table.epoch} of phases that start at {starts}")
    return title


def _layer_lines(alike: Sequence[LayerTable], ascii_only: bool) -> Iterator[Renderable]:
    layer = alike[0]
    first, last = layer.layer, alike[-1].layer
    name = f"Layer {first}" if first == last else f"Layers {first} to {last}, all alike"
    numbers = f"entropy {layer.entropy:.2f} bits, perplexity {layer.perplexity:.1f}"
    heading = Text.assemble((name, "bold"), f"   {numbers}, identity {percent(layer.identity)}")
    yield heading
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=14, no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(min_width=BAR, no_wrap=True)
    grid.add_column(style="dim")
    for share in layer.operations:
        bar = Text(_bar(share.probability, ascii_only), style="cyan")
        grid.add_row(share.name, percent(share.probability), bar, magnitudes(share))
    if layer.others:
        rest = Text(f"{plural(layer.others, 'other')}", style="dim")
        grid.add_row(rest, percent(layer.others_probability), "", "")
    yield Padding(grid, (0, 0, 0, 2))


def magnitudes(share: OperationShare) -> str:
    """An operation's magnitudes in words: the commonest and their shares, or an even range."""
    found = share.magnitudes
    if len(found) < 2:
        return "".join(f"{item.magnitude:.4g}" for item in found)
    shares = [item.share for item in found]  # falling
    values = [item.magnitude for item in found]
    span = f"{min(values):.4g} to {max(values):.4g}, {len(values)}"
    if shares[0] - shares[-1] < 1e-6:
        return f"{span} levels evenly"
    if sum(shares[:SHOWN_MAGNITUDES]) < 0.25:
        return f"{span} levels"
    shown = [f"{item.magnitude:.3g} ({item.share:.0%})" for item in found[:SHOWN_MAGNITUDES]]
    return ", ".join(shown) + (" ..." if len(found) > SHOWN_MAGNITUDES else "")


def _bar(fraction: float, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * round(fraction * BAR)
    full, rest = divmod(round(fraction * BAR * len(EIGHTHS)), len(EIGHTHS))
    return "█" * full + EIGHTHS[rest]


def _uses(uses: Sequence[OperationUses], columns: int = 3) -> Table:
    """Names and numbers in columns, to be read downwards."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        grid.add_column(min_width=14, no_wrap=True)
        grid.add_column(justify="right", min_width=8, no_wrap=True)
    height = -(-len(uses) // columns)
    parts = [uses[i * height : (i + 1) * height] for i in range(columns)]
    for line in zip_longest(*parts):
        cells = [(use.name, f"{use.uses:.3f}") if use else ("", "") for use in line]
        grid.add_row(*(text for cell in cells for text in cell))
    return grid


def doctor_lines(report: Report) -> Iterator[Renderable]:
    """Versions, devices and checks."""
    versions = (f"{name} {version or '(missing)'}" for name, version in report.versions.items())
    head = Table.grid(padding=(0, 2, 0, 0))
    head.add_column(style="bold", no_wrap=True)
    head.add_column()
    head.add_row("versions", ", ".join(versions))
    head.add_row("system", report.system)
    for device in report.devices:
        head.add_row("device", device)
    for device, name in report.kernels.items():
        head.add_row("kernels", f"{device}: {name}")
    yield head
    yield Text()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_column()
    for check in report.checks:
        grid.add_row(_status(check), check.name, check.detail)
    yield grid
    yield Text()
    failed = sum(check.status == "failed" for check in report.checks)
    outcome = f"{plural(failed, 'check')} failed" if failed else "all checks passed"
    yield Text(outcome, style="bold red" if failed else "bold green")


def _status(check: Check) -> Text:
    styles = {"ok": "green", "note": "yellow", "failed": "bold red"}
    return Text(check.status, style=styles[check.status])


def bench_lines(tables: Sequence[TextTable], width: int) -> Iterator[Renderable]:
    """The tables of `deepaa bench`, without their least important columns where it is narrow."""
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


def percent(fraction: float) -> str:
    """`5.6 %`."""
    return f"{100 * fraction:.1f} %"


def plural(count: int, noun: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
