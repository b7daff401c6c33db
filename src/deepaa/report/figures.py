"""Figures: each function turns one of the tables into a drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, groupby
from typing import Literal, NamedTuple

from deepaa.files import plural
from deepaa.report.drawing import Dot, Drawing, Line, Mark, Rect, Text
from deepaa.report.policy_tables import LayerTable, OperationRow
from deepaa.report.run_tables import AccuracyRow, Record

Style = tuple[str, tuple[float, float] | None]
Range = tuple[float, float]
CELL, ROW = 38.0, 24.0
"""Of the figure of operations."""
LABELS = 96.0
"""Width of the names of operations."""
FULL = 0.25
"""A magnitude's share that fills the height of its row, unless one is larger."""
LARGE, SMALL = (340.0, 220.0), (170.0, 130.0)
"""Width and height of line charts."""
LEFT, RIGHT, BOTTOM, LEGEND_LINE = 46.0, 10.0, 30.0, 16.0
"""Of line charts: margins, and the height of a line of the legend."""
DEEPTA: Style = ("second", (5, 3))
STYLES: tuple[Style, ...] = (
    ("accent", None),
    ("colour", (2, 2)),
    ("erasing", (8, 3)),
    ("own", (1, 2)),
)
"""Of other methods in turn; dashes tell them apart without colour."""
MOST_POINTS = 300
"""Points of a curve; longer ones are thinned."""


# Operations and magnitudes


def plot_operations(operations: Sequence[OperationRow], unfinished: int | None = None) -> Drawing:
    """Rows are operations, columns layers; the length of a bar is the probability.

    Args:
        unfinished: The layer that is still being searched, which gets a star.
    """
    y, depth = 22.0, len(operations[0].probabilities)
    columns = [LABELS + layer * (CELL + 3) for layer in range(depth + 1)]
    marks: list[Mark] = []
    for layer, x in enumerate(columns[:-1], start=1):
        label = f"{layer}*" if layer == unfinished else f"{layer}"
        marks.append(Text(x + CELL / 2 - 3, 12, label, 11, "ink", "middle", bold=True))
    marks.append(Text(0, 12, "layer", 11))
    for family, rows in groupby(operations, key=lambda row: row.family):
        if family != "nothing":
            y += 8
        for row in rows:
            marks.append(Text(0, y + 15, row.name, 12, "ink"))
            for layer, (x, p) in enumerate(zip(columns, row.probabilities, strict=False), 1):
                marks += _cell(x, y, p, family, f"layer {layer}: {row.name}")
            y += ROW
    description = f"Probability of each operation, layer by layer ({plural(depth, 'layer')})."
    return Drawing("operations", description, columns[-1], y + 4, tuple(marks))


def _cell(x: float, y: float, p: float, colour: str, title: str) -> Iterable[Mark]:
    yield Line(((x, y + 20), (x + CELL, y + 20)), "grid", 1)
    if p >= 0.005:  # smaller ones have no bar
        yield Rect(x, y + 2, CELL * p, 18, colour, 0.3, f"{title} {p:.2%}")
        yield Rect(x, y + 17, CELL * p, 3, colour)  # length alone tells it, without colour
    yield Text(x + CELL - 2, y + 14, share_text(p), 11, "ink" if p >= 0.1 else "faint", "end")


def share_text(p: float) -> str:
    """A probability in percent, short; a dot for next to nothing."""
    percent = 100 * p
    if percent < 0.05:
        return "·"
    return f"{percent:.1f}" if percent < 9.95 else f"{percent:.0f}"


def plot_magnitudes(row: OperationRow) -> Drawing:
    """One operation: a row of bars for each layer, over its magnitudes."""
    width, left, right, height = 190.0, 16.0, 38.0, 24.0
    room = width - left - right
    step = room / len(row.magnitudes)
    most = max([FULL, *(max(shares) for shares in row.shares if shares)])
    marks: list[Mark] = [Text(0, 12, row.name, 12, "ink", bold=True)]
    marks.append(Text(width, 12, "% of layer", 10, anchor="end"))
    y = 22.0
    for layer, (p, shares) in enumerate(zip(row.probabilities, row.shares, strict=True), 1):
        base = y + height - 4
        marks.append(Text(0, base, f"{layer}", 10))
        marks.append(Line(((left, base), (left + room, base)), "grid", 1))
        for i, share in enumerate(shares):
            tall = (height - 6) * share / most
            title = f"layer {layer}: {row.name} {row.magnitudes[i]:.4g} in {share:.0%} of uses"
            box = (left + i * step + 0.75, base - tall, step - 1.5, tall)
            if tall > 0:
                marks.append(Rect(*box, row.family, title=title))
        marks.append(Text(width, base, share_text(p), 10, "ink" if shares else "faint", "end"))
        y += height
    first, last = row.magnitudes[0], row.magnitudes[-1]
    marks.append(Text(left, y + 10, f"{first:.4g}", 10))
    marks.append(Text(left + room, y + 10, f"{last:.4g}", 10, anchor="end"))
    description = f"Magnitudes of {row.name} in each layer, from {first:.4g} to {last:.4g}."
    return Drawing(f"magnitudes-{row.name}", description, width, y + 16, tuple(marks))


# Line charts


class Curve(NamedTuple):
    """The points of one method in a chart."""

    label: str
    """Its text in the legend; none if empty."""
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "accent"
    dash: tuple[float, float] | None = None
    is_marked: bool = True
    """With dots, for few points."""
    hollow: frozenset[int] = frozenset()
    """Indices of points whose dots are hollow."""
    error: Sequence[float | None] = ()
    """Half the length of an error bar at each point."""
    opacity: float = 1.0

    def dot(self, x: float, y: float, *, hollow: bool = False, title: str = "") -> Dot:
        """A dot of this curve."""
        return Dot(x, y, self.colour, "square" if self.dash else "circle", hollow, title)


def line_chart(
    name: str,
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    y_range: Range,
    x_ticks: Sequence[float],
    size: tuple[float, float] = LARGE,
) -> Drawing:
    """Curves over one axis, with a legend of those that have a label."""
    xs = [x for curve in curves for x in curve.x]
    left, right = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)
    legend = _legend([curve for curve in curves if curve.label], size[0])
    top = 26.0 + LEGEND_LINE * len({mark.y for mark in legend if isinstance(mark, Text)})
    width, height, bottom = size[0] - LEFT - RIGHT, size[1] - top - BOTTOM, size[1] - BOTTOM
    low, high = y_range

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = (x - left) / (right - left), (y - low) / ((high - low) or 1.0)
        return LEFT + across * width, top + (1 - up) * height

    marks: list[Mark] = [Text(0, 12, title, 12, "ink", bold=True)]
    for value in ticks(low, high, 3 if size[1] < 150 else 4):
        start, end = at(left, value), at(right, value)
        marks.append(Line((start, end), "faint" if value == 0 and low < 0 else "grid", 1))
        marks.append(Text(start[0] - 6, start[1] + 3.5, f"{value:.4g}", 10, anchor="end"))
    marks += [Text(at(x, low)[0], bottom + 14, f"{x:.4g}", 10, anchor="middle") for x in x_ticks]
    marks += [Text(size[0] - RIGHT, bottom + 27, x_label, 10, anchor="end"), *legend]
    for curve in curves:
        marks += _curve(curve, at, y_range)
    labels = ", ".join(curve.label for curve in curves if curve.label)
    description = f"{title} by {x_label}" + (f": {labels}." if labels else ".")
    return Drawing(name, description, *size, tuple(marks))


def _legend(curves: Sequence[Curve], width: float) -> list[Mark]:
    marks: list[Mark] = []
    x, y = LEFT, 26.0
    for curve in curves:
        room = 34 + 6.5 * len(curve.label)
        if x > LEFT and x + room > width:
            x, y = LEFT, y + LEGEND_LINE
        marks.append(Line(((x, y), (x + 22, y)), curve.colour, 2, curve.dash))
        marks += [curve.dot(x + 11, y), Text(x + 28, y + 4, curve.label, 11, "ink")]
        x += room + 12
    return marks


def _curve(
    curve: Curve, at: Callable[[float, float], tuple[float, float]], y_range: Range
) -> Iterable[Mark]:
    points = [at(x, y) for x, y in zip(curve.x, curve.y, strict=True)]
    width = 2 if curve.is_marked else 1.5
    yield Line(tuple(points), curve.colour, width, curve.dash, curve.opacity)
    for x, y, error in zip(curve.x, curve.y, curve.error, strict=False):
        if error is not None:
            ends = (max(y_range[0], y - error), min(y_range[1], y + error))
            yield Line((at(x, ends[0]), at(x, ends[1])), curve.colour, 1.5)
    for i, (x, y) in enumerate(points if curve.is_marked else ()):
        title = f"{curve.label or 'layer'} {curve.x[i]:g}: {curve.y[i]:.4f}"
        yield curve.dot(x, y, hollow=i in curve.hollow, title=title)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough) + 1e-9)
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def padded(values: Sequence[float], share: float = 0.08) -> Range:
    """A range that holds the values with some room; never empty."""
    low, high = min(values), max(values)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room


def smoothed(values: Sequence[float], window: int = 9) -> list[float]:
    """Means over up to `window` neighbours, fewer at the ends."""
    half = window // 2
    parts = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]


# The course of a search


def plot_steps(
    layers: Mapping[int, Sequence[Record]], name: Literal["similarity", "identity"]
) -> list[Drawing]:
    """The cosine or the probability of identity per step: a small chart for each layer."""
    everything = [record[name] for records in layers.values() for record in records]
    y_range = (0.0, 1.0) if name == "identity" or not everything else padded(everything)
    drawings = []
    for layer, records in layers.items():
        every = -(-len(records) // MOST_POINTS)
        places = sorted({*range(0, len(records), every), len(records) - 1})
        x, y = [records[i]["step"] for i in places], [records[i][name] for i in places]
        shown, ends = [Curve("", x, y, is_marked=False)], sorted({x[0], x[-1]})
        if name == "similarity":  # jumps, since steps see different images
            shown = [shown[0]._replace(opacity=0.35), shown[0]._replace(y=smoothed(y))]
        where, title = f"{name}-layer-{layer}", f"layer {layer}"
        drawings.append(line_chart(where, title, shown, "step", y_range, ends, SMALL))
    return drawings


def plot_depth(rows: Sequence[Record]) -> list[Drawing]:
    """Mean and standard deviation of the improvement by depth, beside DeepTA's."""
    layers = [row["layer"] for row in rows]
    dropped = frozenset(i for i, row in enumerate(rows) if not row["kept"])
    drawings = []
    for name, key, title in (
        ("mean", "mean", "Mean improvement of the cosine"),
        ("deviation", "std", "Its standard deviation over images"),
    ):
        found, deepta = ([row[f"{who}_{key}"] for row in rows] for who in ("improvement", "deepta"))
        low, high = padded(found + deepta)
        first = Curve("found policy", layers, found, hollow=dropped)
        curves, y_range = [first, Curve("DeepTA", layers, deepta, *DEEPTA)], (min(0.0, low), high)
        drawings.append(line_chart(f"depth-{name}", title, curves, "layers", y_range, layers))
    return drawings


def plot_uncertainty(
    layers: Sequence[LayerTable], dropped: LayerTable | None = None
) -> tuple[Drawing, Drawing]:
    """Entropy and probability of identity by layer; hollow for the one that was dropped."""
    ends = [*layers, *([dropped] if dropped else [])]
    numbers = [layer.layer for layer in ends]
    entropy = [layer.entropy for layer in ends]
    top = max(1.0, max(entropy, default=0.0) * 1.08)
    first = Curve("", numbers, entropy, hollow=frozenset({len(layers)}))
    second = first._replace(y=[100 * layer.identity for layer in ends])
    return (
        line_chart("entropy", "Entropy, bits", [first], "layer", (0.0, top), numbers),
        line_chart("identity", "Identity, % of draws", [second], "layer", (0.0, 100.0), numbers),
    )


# Accuracy


def plot_accuracy_by_depth(series: Sequence[tuple[str, Sequence[AccuracyRow]]]) -> Drawing:
    """Accuracy by depth, with 95 % intervals."""
    styles = cycle(STYLES)
    curves = [
        Curve(
            method,
            [row.layers for row in rows],
            [100 * row.mean for row in rows],
            *(DEEPTA if method.startswith("deepta") else next(styles)),
            error=[None if row.half_width is None else 100 * row.half_width for row in rows],
        )
        for method, rows in series
    ]
    points = [row for _, rows in series for row in rows]
    low, high = padded([end for row in points for end in accuracy_interval(row)])
    y_range, depths = (max(0.0, low), min(100.0, high)), sorted({row.layers for row in points})
    return line_chart("depth-accuracy", "Accuracy, %", curves, "layers", y_range, depths)


def accuracy_interval(row: AccuracyRow) -> Range:
    """The ends of the 95 % interval in percent, as far as there can be such accuracies."""
    half = row.half_width or 0.0
    return max(0.0, 100 * (row.mean - half)), min(100.0, 100 * (row.mean + half))
