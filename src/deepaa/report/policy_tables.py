"""The layers and operations of a policy as numbers, in words, and as lines of a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Any, NamedTuple

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deepaa.files import plural, printable
from deepaa.policy import Policy

SHOWN_MAGNITUDES = 3
SURE, LIKELY, NOTEWORTHY = 0.95, 0.5, 0.02
"""From these probabilities on: "almost always", "mostly", and worth a mention beside them."""
Renderable = Table | Text | Padding
BAR = 10
"""Characters of a bar for probability 1."""
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
FAMILIES: Mapping[str, str] = {
    "nothing": "identity",
    "geometry": "shear_x shear_y translate_x translate_y rotate flip crop resized_crop",
    "colour": "auto_contrast invert equalize solarize posterize "
    "contrast color brightness sharpness",
    "erasing": "cutout",
}
"""The built-in operations; all others are of the family "own"."""
COINS: Mapping[str, str] = {"flip": "a coin toss: half of these images change"}
"""Operations that leave half of the images that meet them as they are, and what to say of it."""
RARE = 0.001
"""An operation below this share of a layer gets no table of its magnitudes there."""


# Layers


class MagnitudeShare(NamedTuple):
    """A magnitude of an operation and its share of the operation's probability in a layer."""

    magnitude: float
    share: float


class OperationShare(NamedTuple):
    """How often a layer applies an operation, and at which magnitudes."""

    name: str
    probability: float
    magnitudes: tuple[MagnitudeShare, ...]
    """Those that occur, the most frequent first; empty for an operation without magnitudes."""


class LayerTable(NamedTuple):
    """One layer (or one slot of a policy's chains) as numbers."""

    layer: int
    """Counted from 1."""
    entropy: float
    """Of the distribution over the table's rows, in bits."""
    perplexity: float
    """2 ** entropy: how many equally likely rows would be as uncertain."""
    identity: float
    """Probability that the layer changes nothing."""
    operations: tuple[OperationShare, ...]
    """The most frequent operations, the most frequent first."""
    others: int
    """How many operations occur beyond those."""
    others_probability: float


class OperationUses(NamedTuple):
    """How often an image meets an operation, on average over a draw."""

    name: str
    uses: float


def layer_table(policy: Policy, epoch: int = 0, top: int | None = 6) -> tuple[LayerTable, ...]:
    """The layers in force at `epoch`, each with its `top` most frequent operations, or with all.

    Rows of one operation name count together. A closed gate of a chain counts as identity.
    """
    if top is not None and top < 1:
        raise ValueError(f"top should be at least 1, got {top}")
    rows = policy.row_probabilities(epoch).tolist()
    return tuple(_layer(policy, k, row, top) for k, row in enumerate(rows, start=1))


def _layer(policy: Policy, layer: int, probabilities: list[float], top: int | None) -> LayerTable:
    used = [p for p in probabilities if p > 0]
    total = math.fsum(used)  # 1, but for the rounding of the file
    entropy = -math.fsum(p / total * math.log2(p / total) for p in used) + 0.0
    by_name: dict[str, dict[float | None, float]] = {}
    for row, p in zip(policy.table.rows, probabilities, strict=True):
        if p > 0:
            levels = by_name.setdefault(row.operation.name, {})
            levels[row.magnitude] = levels.get(row.magnitude, 0.0) + p
    shares = []
    for name, levels in by_name.items():
        uses = math.fsum(levels.values())
        magnitudes = [MagnitudeShare(m, p / uses) for m, p in levels.items() if m is not None]
        magnitudes.sort(key=lambda item: (-round(item.share, 12), item.magnitude))
        shares.append(OperationShare(name, uses, tuple(magnitudes)))
    # Equal probabilities may differ in their last digits by the order of summation.
    shares.sort(key=lambda share: -round(share.probability, 12))
    shown = shares[:top]
    rest = shares[len(shown) :]
    return LayerTable(
        layer=layer,
        entropy=entropy,
        perplexity=2.0**entropy,
        identity=next((share.probability for share in shares if share.name == "identity"), 0.0),
        operations=tuple(shown),
        others=len(rest),
        others_probability=math.fsum(share.probability for share in rest),
    )


class PolicyTable(NamedTuple):
    """All that `deepaa show` tells about a policy."""

    name: str
    epoch: int
    epochs: tuple[int, ...]
    """First epochs of the policy's phases; `(0,)` unless it changes over time."""
    transformations: int
    """Rows of the policy's table."""
    operations: int
    """Distinct operations among them."""
    info: dict[str, str]
    layers: tuple[LayerTable, ...]
    uses: tuple[OperationUses, ...]
    """The most frequent first, without those that do not occur."""


def policy_table(policy: Policy, name: str, epoch: int = 0, top: int = 6) -> PolicyTable:
    """A policy's size, notes, layers and expected uses."""
    if epoch < 0:
        raise ValueError(f"epoch should be at least 0, got {epoch}")
    uses = [OperationUses(*item) for item in policy.expected_uses(epoch).items() if item[1] > 0]
    return PolicyTable(
        name=name,
        epoch=epoch,
        epochs=tuple(phase.epoch for phase in policy.phases),
        transformations=len(policy.table),
        operations=len(policy.table.operations),
        info=dict(policy.info),
        layers=layer_table(policy, epoch, top),
        uses=tuple(sorted(uses, key=lambda item: -round(item.uses, 12))),
    )


def as_dict(table: Any) -> Any:
    """A table as dicts, lists, numbers and text, ready for `json.dumps`."""
    if hasattr(table, "_asdict"):
        table = table._asdict()
    if isinstance(table, dict):
        return {key: as_dict(value) for key, value in table.items()}
    return [as_dict(item) for item in table] if isinstance(table, tuple | list) else table


class OperationRow(NamedTuple):
    """An operation's probability in every layer, and how its magnitudes are distributed there."""

    name: str
    family: str
    probabilities: tuple[float, ...]
    magnitudes: tuple[float, ...]
    """Rising; empty for an operation without magnitudes."""
    shares: tuple[tuple[float, ...], ...]
    """Per layer and magnitude, summing to 1; empty where the layer hardly uses the operation."""

    @property
    def uses(self) -> float:
        """How often an image meets the operation."""
        return round(sum(self.probabilities), 12)

    @property
    def peak(self) -> int:
        """The layer, counted from 1, that uses it most; 0 if none does."""
        most = max(self.probabilities, default=0.0)
        return 1 + self.probabilities.index(most) if most else 0

    @property
    def is_spread(self) -> bool:
        """Whether it has several magnitudes, and some layer uses it."""
        return len(self.magnitudes) > 1 and max(self.probabilities, default=0.0) >= RARE


def operation_table(policy: Policy, epoch: int = 0) -> tuple[OperationRow, ...]:
    """The distribution of operations at each layer (the paper's Figure 3, Appendices B and C).

    Operations come family by family, within one in the order of the policy's table.
    """
    layers = [
        {share.name: share for share in layer.operations}
        for layer in layer_table(policy, epoch, top=None)
    ]
    found = []
    for name in dict.fromkeys(op.name for op in policy.table.operations):
        own = [layer.get(name, OperationShare(name, 0.0, ())) for layer in layers]
        levels = {r.magnitude for r in policy.table.rows if r.operation.name == name}
        magnitudes = tuple(sorted(m for m in levels if m is not None))
        known = [dict(share.magnitudes) if share.probability >= RARE else None for share in own]
        shares = (() if k is None else tuple(k.get(m, 0.0) for m in magnitudes) for k in known)
        family = next((key for key, names in FAMILIES.items() if name in names.split()), "own")
        probabilities = tuple(share.probability for share in own)
        found.append(OperationRow(name, family, probabilities, magnitudes, tuple(shares)))
    order = [*FAMILIES, "own"]
    return tuple(sorted(found, key=lambda row: order.index(row.family)))


# Words


def percent(fraction: float, digits: int = 1) -> str:
    """`5.6 %`; `< 0.1 %` for what would be rounded to 0."""
    if 0 < fraction < 0.5 * 10 ** -(digits + 2):
        return f"< {10**-digits:g} %"
    return f"{100 * fraction:.{digits}f} %"


def magnitudes_text(share: OperationShare) -> str:
    """An operation's magnitudes: the commonest and their shares, or an even range; or its coin."""
    found = share.magnitudes
    if len(found) < 2:
        return COINS.get(share.name, "".join(f"{item.magnitude:.4g}" for item in found))
    shares = [item.share for item in found]  # falling
    values = [item.magnitude for item in found]
    span = f"{min(values):.4g} to {max(values):.4g}, {len(values)}"
    if shares[0] - shares[-1] < 1e-6:
        return f"{span} levels evenly"
    if sum(shares[:SHOWN_MAGNITUDES]) < 0.25:
        return f"{span} levels"
    shown = [f"{item.magnitude:.3g} ({item.share:.0%})" for item in found[:SHOWN_MAGNITUDES]]
    return ", ".join(shown) + (" ..." if len(found) > SHOWN_MAGNITUDES else "")


def alike_layers(layers: Sequence[LayerTable]) -> Iterator[tuple[str, LayerTable]]:
    """`Layer 2` or `Layers 1 to 6` for neighbours that do the same, and the last of them."""
    for _, group in groupby(layers, key=lambda layer: layer._replace(layer=0)):
        first, *rest = group
        last = rest[-1] if rest else first
        yield (f"Layers {first.layer} to {last.layer}" if rest else f"Layer {last.layer}"), last


def layer_sentences(
    layers: Sequence[LayerTable], unfinished: int | None = None
) -> list[tuple[str, str]]:
    """The name and what it does of each layer, or of several in a row that are alike.

    Args:
        layers: With all their operations.
        unfinished: The layer that is still being searched.
    """
    return [
        (name, _sentence(layer) + (" (not finished)" if layer.layer == unfinished else ""))
        for name, layer in alike_layers(layers)
    ]


def _sentence(layer: LayerTable) -> str:
    shares = layer.operations
    top, rest = shares[0], [share for share in shares[1:] if share.probability >= NOTEWORTHY]
    p = top.probability
    action = "leaves the image as it is" if top.name == "identity" else top.name
    if len(shares) == 1:
        coin = ", a coin toss that changes half of the images" if top.name in COINS else ""
        return action if top.name == "identity" else f"always {action}{coin}"
    if len(shares) > 2 and p - shares[-1].probability < 1e-6:
        return f"any of {len(shares)} operations, all equally often ({_rounded(p)})"
    others = [_with_share(share, share.name) for share in rest[:2]]
    if p >= LIKELY:
        often = "almost always" if p >= SURE else "mostly"
        return f"{often} {_with_share(top, action)}" + (
            f", else {' or '.join(others)}" * bool(rest)
        )
    shown = [_with_share(top, top.name), *others]
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"a mix; most often {listed}"


def _with_share(share: OperationShare, action: str) -> str:
    """`rotate (12 %)`, `flip (12 %, a coin toss)`."""
    return f"{action} ({_rounded(share.probability)}{', a coin toss' * (share.name in COINS)})"


def _rounded(fraction: float) -> str:
    return "> 99 %" if 0.995 <= fraction < 1 else f"{100 * fraction:.0f} %"


# Lines of a terminal


def policy_lines(
    table: PolicyTable, encoding: str = "utf-8", about: str = ""
) -> Iterator[Renderable]:
    """All that is known of a policy: its layers, and how often an image meets each operation.

    Args:
        about: What the policy is, where its run says that.
        encoding: The terminal's; bars are made of blocks where it has them.
    """
    ascii_only = not encoding.lower().startswith("utf")
    layers = plural(len(table.layers), "layer")
    rows = plural(table.transformations, "transformation")
    size = f": {layers} over {rows} of {plural(table.operations, 'operation')}"
    if len(table.epochs) > 1:
        size += f"; epoch {table.epoch} of phases that start at {', '.join(map(str, table.epochs))}"
    yield Text.assemble((PurePath(table.name).name, "bold cyan"), size)
    if about:
        yield Padding(Text(printable(about), style="bold"), (0, 0, 0, 2))
    for key, value in sorted(table.info.items()):
        text = printable(f"{key}: {value}"[:2000], keep="\n")
        yield Padding(Text(text, style="dim"), (0, 0, 0, 2))
    for name, layer in alike_layers(table.layers):
        yield from _layer_lines(name, layer, ascii_only)
    if not table.layers:
        yield Text("  no layers: images stay as they are")
        return
    yield Text("\nExpected uses per image", style="bold")
    height, width = -(-len(table.uses) // 3), max([14, *(len(use.name) for use in table.uses)])
    for i in range(height):  # three columns of a terminal with 80, to be read downwards
        line = [f"{use.name:<{width}}  {use.uses:8.3f}" for use in table.uses[i::height]]
        yield Text("  " + "  ".join(line))


def _layer_lines(name: str, layer: LayerTable, ascii_only: bool) -> Iterator[Renderable]:
    title = f"\n{name}, all alike" if name.startswith("Layers") else f"\n{name}"
    numbers = f"entropy {layer.entropy:.2f} bits, perplexity {layer.perplexity:.1f}"
    yield Text.assemble((title, "bold"), f"   {numbers}, identity {percent(layer.identity)}")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=14, no_wrap=True)
    grid.add_column(min_width=len("100.0 %"), justify="right", no_wrap=True)  # in every layer
    grid.add_column(min_width=BAR, no_wrap=True)
    grid.add_column(style="dim")
    for share in layer.operations:
        bar = Text(_bar(share.probability, ascii_only), style="cyan")
        grid.add_row(share.name, percent(share.probability), bar, magnitudes_text(share))
    if layer.others:
        rest = Text(plural(layer.others, "other"), style="dim")
        grid.add_row(rest, percent(layer.others_probability), "", "")
    yield Padding(grid, (0, 0, 0, 2))


def _bar(fraction: float, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * round(fraction * BAR)
    full, rest = divmod(round(fraction * BAR * len(EIGHTHS)), len(EIGHTHS))
    return "█" * full + EIGHTHS[rest]
