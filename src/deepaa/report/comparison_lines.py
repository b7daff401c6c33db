"""Policies compared, as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.padding import Padding
from rich.table import Table
from rich.text import Text as RichText

from deepaa.policy import SIDES
from deepaa.report.comparison import Comparison
from deepaa.report.policy_tables import COINS, Renderable, percent


def comparison_lines(found: Comparison) -> Iterator[Renderable]:
    """Numbered policies, how often an image meets each operation, and distances."""
    numbers = {policy.label: f"{i}" for i, policy in enumerate(found.policies, 1)}
    width = max([14, *(len(bar.operation) for bar in found.policies[0].bars)])

    def line(name: str, cells: Iterable[str], style: str = "") -> RichText:
        parts = [(f"{cell:>7}", "dim" if cell == "- " else style) for cell in cells]
        return RichText.assemble(f"  {name:<{width}}", *parts)

    head = line("", (f"{number} " for number in numbers.values()), "bold")
    for policy in found.policies:
        number = (f"{numbers[policy.label]}  ", "bold")
        yield RichText.assemble(number, (policy.label, "bold cyan"), f": {policy.size}")
    yield RichText("\nCumulative probability: how often an image meets an operation", style="bold")
    yield head
    for bars in zip(*(policy.bars for policy in found.policies), strict=True):
        totals = (f"{b.total:.3f}{'*' if b.default else ' '}" if b.total else "- " for b in bars)
        yield line(bars[0].operation, totals)
    if any(policy.defaults for policy in found.policies):
        kind = "ImageNet" if found.policies[0].side == SIDES["imagenet"] else "CIFAR"
        usual = "  * 1.00 of it by the default augmentation, that of "
        yield RichText(f"{usual}{kind} (--space)", style="dim")
    if any(bar.total for policy in found.policies for bar in policy.bars if bar.operation in COINS):
        yield RichText("  flip is a coin toss: half of the images that meet it change", style="dim")
    side = found.policies[0].side
    title = f"Hidden: cut out, or uncovered by geometry, of {side} x {side} pixels"
    yield RichText(f"\n{title}", style="bold")
    yield head
    yield line("on average", (f"{percent(policy.hidden, 0)} " for policy in found.policies))
    yield RichText("\nDistance: 0 alike, 1 no operation in common", style="bold")
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "by use", "by layer", ""):
        grid.add_column(name, no_wrap=bool(name))
    for pair in found.pairs:
        who = f"{numbers[pair.first]} and {numbers[pair.second]}"
        layers = RichText(" ".join(f"{value:.2f}" for value in pair.layers), style="dim")
        grid.add_row(who, f"{pair.uses:.3f}", f"{pair.distance:.3f}", layers)
    yield Padding(grid, (0, 0, 0, 2))
