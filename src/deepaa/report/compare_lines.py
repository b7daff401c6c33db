"""A comparison of policies as rich renderables for the terminal. Nothing is printed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deepaa.report.terminal import plural

if TYPE_CHECKING:
    from deepaa.compare import Bar, Comparison, PolicyBars
    from deepaa.report.terminal import Renderable


def compare_lines(found: Comparison) -> Iterator[Renderable]:
    """Numbered policies, their cumulative probabilities, distances, and the gate's checks."""
    for i, policy in enumerate(found.policies, 1):
        yield Text.assemble((f"{i}  ", "bold"), (policy.label, "bold cyan"), f": {size(policy)}")
    yield Text()
    yield Text("Cumulative probability: how often an image meets an operation", style="bold")
    yield Padding(_bars(found), (0, 0, 0, 2))
    if any(policy.defaults for policy in found.policies):
        yield Text("  * 1.00 of it by the default augmentation", style="dim")
    yield Text()
    side = found.policies[0].side
    title = f"Hidden: cut out, or uncovered by geometry, of {side} x {side} pixels"
    yield Text(title, style="bold")
    yield Padding(_hidden(found), (0, 0, 0, 2))
    yield Text()
    yield Text("Distance: 0 alike, 1 no operation in common", style="bold")
    yield Padding(_distances(found), (0, 0, 0, 2))
    if found.gates:
        yield Text()
        yield Text("Marks of the published CIFAR policies", style="bold")
        yield Padding(_marks(found), (0, 0, 0, 2))
        yield from _missing(found)


def size(policy: PolicyBars) -> str:
    """`2 layers, then crop, flip, cutout`."""
    then = f", then {', '.join(policy.defaults)}" if policy.defaults else ""
    return f"{plural(policy.layers, 'layer')}{then}"


def hidden(policy: PolicyBars) -> str:
    """`48 %`."""
    return f"{100 * policy.hidden:.0f} %"


def _grid(found: Comparison) -> Table:
    """A name in each line, and a column for each policy."""
    grid = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    grid.add_column("", no_wrap=True, min_width=13)
    for i in range(len(found.policies)):
        grid.add_column(f"{i + 1} ", justify="right", no_wrap=True, min_width=6)
    return grid


def _hidden(found: Comparison) -> Table:
    grid = _grid(found)
    grid.add_row("on average", *(f"{hidden(policy)} " for policy in found.policies))
    return grid


def _bars(found: Comparison) -> Table:
    grid = _grid(found)
    for bars in zip(*(policy.bars for policy in found.policies), strict=True):
        grid.add_row(bars[0].operation, *map(_cell, bars))
    return grid


def _cell(bar: Bar) -> Text:
    if not bar.total:
        return Text("- ", style="dim")
    return Text(f"{bar.total:.3f}{'*' if bar.default else ' '}")


def _distances(found: Comparison) -> Table:
    """One line per pair: by use, then layer by layer."""
    number = _numbers(found)
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "by use", "by layer", ""):
        grid.add_column(name, no_wrap=bool(name))
    for pair in found.pairs:
        who = f"{number[pair.first]} and {number[pair.second]}"
        layers = Text(" ".join(f"{value:.2f}" for value in pair.layers), style="dim")
        grid.add_row(who, f"{pair.uses:.3f}", f"{pair.distance:.3f}", layers)
    return grid


def _marks(found: Comparison) -> Table:
    number = _numbers(found)
    grid = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    grid.add_column("", no_wrap=True)
    for gate in found.gates:
        grid.add_column(number[gate.label], justify="right", no_wrap=True)
    for checks in zip(*(gate.checks for gate in found.gates), strict=True):
        cells = [
            Text("yes", style="green") if check.passed else Text("no", style="yellow")
            for check in checks
        ]
        grid.add_row(checks[0].name, *cells)
    return grid


def _missing(found: Comparison) -> Iterator[Text]:
    """What was found instead, for each mark that is missing."""
    number = _numbers(found)
    for gate in found.gates:
        for check in gate.checks:
            if not check.passed:
                text = f"  {number[gate.label]}: {check.name}: {check.found}"
                yield Text(text, style="dim")


def _numbers(found: Comparison) -> dict[str, str]:
    return {policy.label: str(i) for i, policy in enumerate(found.policies, 1)}
