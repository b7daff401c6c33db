"""Tables as rich renderables for the terminal, in 80 columns or more. Nothing is printed here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deepaa.report.wording import alike_layers, magnitudes_text, percent, plural

if TYPE_CHECKING:
    from deepaa.report.comparison import Bar, Comparison
    from deepaa.report.policy_tables import LayerTable, OperationUses, PolicyTable

Renderable = Table | Text | Padding
BAR = 10
"""Columns of a bar for probability 1."""
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def _indented(table: Table) -> Padding:
    return Padding(table, (0, 0, 0, 2))


# A policy


def policy_lines(table: PolicyTable, encoding: str = "utf-8") -> Iterator[Renderable]:
    """All that is known of a policy: its layers, and how often an image meets each operation.

    Args:
        encoding: The terminal's; bars are made of blocks where it has them.
    """
    ascii_only = not encoding.lower().startswith("utf")
    yield _title(table)
    for key, value in sorted(table.info.items()):
        yield Text(f"  {key}: {value}", style="dim")
    for alike in alike_layers(table.layers):
        yield Text()
        yield from _layer_lines(alike, ascii_only)
    if not table.layers:
        yield Text("  no layers: images stay as they are")
        return
    yield Text()
    yield Text("Expected uses per image", style="bold")
    yield _indented(_uses(table.uses))


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
    yield Text.assemble((name, "bold"), f"   {numbers}, identity {percent(layer.identity)}")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=14, no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(min_width=BAR, no_wrap=True)
    grid.add_column(style="dim")
    for share in layer.operations:
        bar = Text(_bar(share.probability, ascii_only), style="cyan")
        grid.add_row(share.name, percent(share.probability), bar, magnitudes_text(share))
    if layer.others:
        rest = Text(plural(layer.others, "other"), style="dim")
        grid.add_row(rest, percent(layer.others_probability), "", "")
    yield _indented(grid)


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


# Policies compared


def comparison_lines(found: Comparison) -> Iterator[Renderable]:
    """Numbered policies, how often an image meets each operation, and distances."""
    for i, policy in enumerate(found.policies, 1):
        yield Text.assemble((f"{i}  ", "bold"), (policy.label, "bold cyan"), f": {policy.size}")
    yield Text()
    yield Text("Cumulative probability: how often an image meets an operation", style="bold")
    grid = _column_per_policy(found)
    for bars in zip(*(policy.bars for policy in found.policies), strict=True):
        grid.add_row(bars[0].operation, *map(_total, bars))
    yield _indented(grid)
    if any(policy.defaults for policy in found.policies):
        yield Text("  * 1.00 of it by the default augmentation", style="dim")
    yield Text()
    side = found.policies[0].side
    title = f"Hidden: cut out, or uncovered by geometry, of {side} x {side} pixels"
    yield Text(title, style="bold")
    grid = _column_per_policy(found)
    grid.add_row("on average", *(f"{percent(policy.hidden, 0)} " for policy in found.policies))
    yield _indented(grid)
    yield Text()
    yield Text("Distance: 0 alike, 1 no operation in common", style="bold")
    yield _indented(_distances(found))


def _column_per_policy(found: Comparison) -> Table:
    grid = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    grid.add_column("", no_wrap=True, min_width=13)
    for i in range(len(found.policies)):
        grid.add_column(f"{i + 1} ", justify="right", no_wrap=True, min_width=6)
    return grid


def _total(bar: Bar) -> Text:
    if not bar.total:
        return Text("- ", style="dim")
    return Text(f"{bar.total:.3f}{'*' if bar.default else ' '}")


def _distances(found: Comparison) -> Table:
    """One line per pair: by use, by layer, and the distance in each layer."""
    number = {policy.label: str(i) for i, policy in enumerate(found.policies, 1)}
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "by use", "by layer", ""):
        grid.add_column(name, no_wrap=bool(name))
    for pair in found.pairs:
        who = f"{number[pair.first]} and {number[pair.second]}"
        layers = Text(" ".join(f"{value:.2f}" for value in pair.layers), style="dim")
        grid.add_row(who, f"{pair.uses:.3f}", f"{pair.distance:.3f}", layers)
    return grid
