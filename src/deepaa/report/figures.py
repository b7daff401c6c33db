"""Tables become drawings. What the numbers mean is said by the tables, how it looks here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, groupby
from typing import NamedTuple

from deepaa.report.accuracy_tables import AccuracyRow, DepthAccuracy
from deepaa.report.run_tables import (
    DepthRow,
    DroppedLayer,
    MagnitudeTable,
    OperationTable,
    StepCurve,
)
from deepaa.report.svg import Dot, Drawing, Line, Mark, Rect, Text, padded, ticks
from deepaa.report.tables import LayerTable

Style = tuple[str, tuple[float, float] | None]
CELL, ROW = 38.0, 24.0
"""Of the figure of operations."""
LABELS = 96.0
FULL = 0.25
"""A magnitude's share that fills the height of its row, unless one is larger."""
VISIBLE = 0.005
"""Smaller probabilities have no bar."""
PANEL = (340.0, 220.0)
SMALL = (170.0, 130.0)
LEGEND_LINE = 16.0
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


def plot_operations(table: OperationTable) -> Drawing:
    """Rows are operations, columns layers; the length of a bar is the probability."""
    marks: list[Mark] = []
    y = 22.0
    for layer in range(1, table.layers + 1):
        label = f"{layer}*" if layer == table.in_work else f"{layer}"
        marks.append(Text(_column(layer) + CELL / 2 - 3, 12, label, 11, "ink", "middle", bold=True))
    marks.append(Text(0, 12, "layer", 11))
    for family, rows in groupby(table.rows, key=lambda row: row.family):
        if family != "nothing":
            y += 8
        for row in rows:
            marks.append(Text(0, y + 15, row.name, 12, "ink"))
            for layer, p in enumerate(row.probabilities, start=1):
                marks += _cell(_column(layer), y, p, family, f"layer {layer}: {row.name}")
            y += ROW
    description = f"Probability of each operation in each of {table.layers} layers."
    return Drawing("operations", description, _column(table.layers + 1), y + 4, tuple(marks))


def _column(layer: int) -> float:
    return LABELS + (layer - 1) * (CELL + 3)


def _cell(x: float, y: float, p: float, colour: str, title: str) -> list[Mark]:
    marks: list[Mark] = [Line(((x, y + 20), (x + CELL, y + 20)), "grid", 1)]
    if p >= VISIBLE:
        width = CELL * p
        marks.append(Rect(x, y + 2, width, 18, colour, 0.3, f"{title} {p:.2%}"))
        marks.append(Rect(x, y + 17, width, 3, colour))  # length alone tells it, without colour
    is_strong = p >= 0.1
    text = Text(x + CELL - 2, y + 14, share_text(p), 11, "ink" if is_strong else "faint", "end")
    return [*marks, text]


def share_text(p: float) -> str:
    """A probability in percent, short; a dot for next to nothing."""
    percent = 100 * p
    if percent < 0.05:
        return "·"
    return f"{percent:.1f}" if percent < 9.95 else f"{percent:.0f}"


def plot_magnitudes(table: MagnitudeTable) -> Drawing:
    """One operation: a row of bars for each layer, over its magnitudes."""
    width, left, right, height = 190.0, 16.0, 38.0, 24.0
    room = width - left - right
    step = room / len(table.magnitudes)
    most = max([FULL, *(max(row) for row in table.shares if row)])
    marks: list[Mark] = [Text(0, 12, table.name, 12, "ink", bold=True)]
    marks.append(Text(width, 12, "% of layer", 10, anchor="end"))
    y = 22.0
    for layer, (p, shares) in enumerate(zip(table.probabilities, table.shares, strict=True), 1):
        base = y + height - 4
        marks.append(Text(0, base, f"{layer}", 10))
        marks.append(Line(((left, base), (left + room, base)), "grid", 1))
        for i, share in enumerate(shares):
            tall = (height - 6) * share / most
            title = f"layer {layer}: {table.name} {table.magnitudes[i]:.4g} in {share:.0%} of uses"
            box = (left + i * step + 0.75, base - tall, step - 1.5, tall)
            if tall > 0:
                marks.append(Rect(*box, table.family, title=title))
        marks.append(Text(width, base, share_text(p), 10, "ink" if shares else "faint", "end"))
        y += height
    first, last = table.magnitudes[0], table.magnitudes[-1]
    marks.append(Text(left, y + 10, f"{first:.4g}", 10))
    marks.append(Text(left + room, y + 10, f"{last:.4g}", 10, anchor="end"))
    description = f"Magnitudes of {table.name} in each layer, from {first:.4g} to {last:.4g}."
    return Drawing(f"magnitudes-{table.name}", description, width, y + 16, tuple(marks))


# Curves


class Curve(NamedTuple):
    """Points of one method in a panel."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "accent"
    dash: tuple[float, float] | None = None
    is_marked: bool = True
    """With dots, for few points."""
    hollow: frozenset[int] = frozenset()
    """Places of points that stand for something given up."""
    error: Sequence[float | None] = ()
    """Half the length of a whisker at each point."""
    opacity: float = 1.0


class Frame(NamedTuple):
    """Where data lie in a panel."""

    size: tuple[float, float]
    x: tuple[float, float]
    y: tuple[float, float]
    left: float = 46.0
    top: float = 26.0
    right: float = 10.0
    bottom: float = 30.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the data is drawn."""
        width = self.size[0] - self.left - self.right
        height = self.size[1] - self.top - self.bottom
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        return self.left + across * width, self.top + (1 - up) * height


def panel(
    name: str,
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str,
    y_range: tuple[float, float],
    x_ticks: Sequence[float] | None = None,
    size: tuple[float, float] = PANEL,
    y_text: Callable[[float], str] = lambda value: f"{value:.4g}",
) -> Drawing:
    """Curves over one axis, with a legend of those that have a name."""
    xs = [x for curve in curves for x in curve.x]
    x_range = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)
    named = [curve for curve in curves if curve.label]
    legend = _legend(named, size[0])
    lines = len({mark.y for mark in legend if isinstance(mark, Text)})
    frame = Frame(size, x_range, y_range, top=26.0 + LEGEND_LINE * lines)
    marks: list[Mark] = [Text(0, 12, title, 12, "ink", bold=True)]
    marks += _axes(frame, x_ticks or ticks(*x_range, 3), x_label, y_text)
    marks += legend
    for curve in curves:
        marks += _curve(frame, curve)
    labels = ", ".join(curve.label for curve in named)
    description = f"{title} by {x_label}" + (f": {labels}." if labels else ".")
    return Drawing(name, description, *size, tuple(marks))


def _axes(
    frame: Frame, x_ticks: Sequence[float], x_label: str, y_text: Callable[[float], str]
) -> list[Mark]:
    marks: list[Mark] = []
    for value in ticks(*frame.y, 3 if frame.size[1] < 150 else 4):
        start, end = frame.at(frame.x[0], value), frame.at(frame.x[1], value)
        is_zero = value == 0 and frame.y[0] < 0
        marks.append(Line((start, end), "faint" if is_zero else "grid", 1))
        marks.append(Text(start[0] - 6, start[1] + 3.5, y_text(value), 10, anchor="end"))
    bottom = frame.size[1] - frame.bottom
    for value in x_ticks:
        x, _ = frame.at(value, frame.y[0])
        marks.append(Text(x, bottom + 14, f"{value:.4g}", 10, anchor="middle"))
    marks.append(Text(frame.size[0] - frame.right, bottom + 27, x_label, 10, anchor="end"))
    return marks


def _legend(curves: Sequence[Curve], width: float) -> list[Mark]:
    marks: list[Mark] = []
    left, y = 46.0, 26.0
    x = left
    for curve in curves:
        room = 34 + 6.5 * len(curve.label)
        if x > left and x + room > width:
            x, y = left, y + LEGEND_LINE
        marks.append(Line(((x, y), (x + 22, y)), curve.colour, 2, curve.dash))
        marks.append(_dot(x + 11, y, curve))
        marks.append(Text(x + 28, y + 4, curve.label, 11, "ink"))
        x += room + 12
    return marks


def _dot(x: float, y: float, curve: Curve, *, hollow: bool = False, title: str = "") -> Dot:
    shape = "square" if curve.dash else "circle"
    return Dot(x, y, 3, curve.colour, shape, hollow, title)  # type: ignore[arg-type]


def _curve(frame: Frame, curve: Curve) -> list[Mark]:
    points = [frame.at(x, y) for x, y in zip(curve.x, curve.y, strict=True)]
    line = Line(tuple(points), curve.colour, 2 if curve.is_marked else 1.5, curve.dash)
    marks: list[Mark] = [line._replace(opacity=curve.opacity)]
    for i, error in enumerate(curve.error):
        if error is not None:
            ends = (max(frame.y[0], curve.y[i] - error), min(frame.y[1], curve.y[i] + error))
            low, high = (frame.at(curve.x[i], end) for end in ends)
            marks.append(Line((low, high), curve.colour, 1.5))
    if curve.is_marked:
        for i, (x, y) in enumerate(points):
            title = f"{curve.label or 'layer'} {curve.x[i]:g}: {curve.y[i]:.4f}"
            marks.append(_dot(x, y, curve, hollow=i in curve.hollow, title=title))
    return marks


def plot_steps(curves: Sequence[StepCurve]) -> tuple[Drawing, ...]:
    """The cosine per step: a small panel for each layer, all on one scale."""
    values = [v for curve in curves for v in curve.similarity]
    y_range = padded(values) if values else (0.0, 1.0)
    return tuple(_step_panel(c, "similarity", c.similarity, y_range) for c in curves)


def plot_identity_steps(curves: Sequence[StepCurve]) -> tuple[Drawing, ...]:
    """The probability of identity per step: a small panel for each layer."""
    return tuple(_step_panel(c, "identity", c.identity, (0.0, 1.0)) for c in curves)


def _step_panel(
    curve: StepCurve, name: str, values: Sequence[float], y_range: tuple[float, float]
) -> Drawing:
    every = -(-len(values) // MOST_POINTS)
    places = sorted({*range(0, len(values), every), len(values) - 1})
    x, y = [curve.steps[i] for i in places], [values[i] for i in places]
    shown = [Curve("", x, y, is_marked=False, opacity=0.35)]
    shown.append(Curve("", x, smoothed(y), is_marked=False))
    return panel(
        f"{name}-layer-{curve.layer}",
        f"layer {curve.layer}",
        shown if name == "similarity" else [Curve("", x, y, is_marked=False)],
        x_label="step",
        x_ticks=sorted({x[0], x[-1]}),
        y_range=y_range,
        size=SMALL,
    )


def smoothed(values: Sequence[float], window: int = 9) -> list[float]:
    """Means over up to `window` neighbours, fewer at the ends."""
    half = window // 2
    parts = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]


def plot_depth_mean(rows: Sequence[DepthRow]) -> Drawing:
    """Mean improvement of the similarity by depth, beside DeepTA."""
    found, deepta = [r.mean for r in rows], [r.deepta_mean for r in rows]
    return _depth_panel("depth-mean", "Mean improvement of the cosine", rows, found, deepta)


def plot_depth_deviation(rows: Sequence[DepthRow]) -> Drawing:
    """Standard deviation of the improvement over images by depth, beside DeepTA."""
    found, deepta = [r.deviation for r in rows], [r.deepta_deviation for r in rows]
    return _depth_panel(
        "depth-deviation", "Its standard deviation over images", rows, found, deepta
    )


def _depth_panel(
    name: str, title: str, rows: Sequence[DepthRow], found: list[float], deepta: list[float]
) -> Drawing:
    layers = [row.layer for row in rows]
    dropped = frozenset(i for i, row in enumerate(rows) if not row.kept)
    curves = [
        Curve("found policy", layers, found, hollow=dropped),
        Curve("DeepTA", layers, deepta, "second", (5, 3)),
    ]
    y_range = (min(0.0, padded(found + deepta)[0]), padded(found + deepta)[1])
    return panel(name, title, curves, x_label="layers", y_range=y_range, x_ticks=layers)


def plot_accuracy_by_depth(series: Sequence[DepthAccuracy]) -> Drawing:
    """Accuracy by depth, with 95 % intervals."""
    curves = []
    styles = cycle(STYLES)
    for one in series:
        style = DEEPTA if one.method.startswith("deepta") else next(styles)
        curves.append(
            Curve(
                one.method,
                [row.layers for row in one.points],
                [100 * row.mean for row in one.points],
                *style,
                error=[_percent_or_none(row.half_width) for row in one.points],
            )
        )
    depths = sorted({row.layers for one in series for row in one.points})
    low, high = padded([end for one in series for row in one.points for end in _interval(row)])
    how = {"x_label": "layers", "x_ticks": depths, "y_range": (max(0.0, low), min(100.0, high))}
    return panel("depth-accuracy", "Accuracy, %", curves, **how)  # type: ignore[arg-type]


def _percent_or_none(value: float | None) -> float | None:
    return None if value is None else 100 * value


def plot_uncertainty(
    layers: Sequence[LayerTable], dropped: DroppedLayer | None = None
) -> tuple[Drawing, Drawing]:
    """Entropy and probability of identity by layer; hollow for the one that was dropped."""
    ends: list[LayerTable | DroppedLayer] = [*layers, *([dropped] if dropped else [])]
    numbers = [layer.layer for layer in ends]
    entropy = [layer.entropy for layer in ends]
    top = max(1.0, max(entropy, default=0.0) * 1.08)
    identity = [100 * layer.identity for layer in ends]
    hollow = frozenset({len(layers)} if dropped else ())
    first = [Curve("", numbers, entropy, hollow=hollow)]
    second = [Curve("", numbers, identity, hollow=hollow)]
    how = {"x_label": "layer", "x_ticks": numbers}
    return (
        panel("entropy", "Entropy, bits", first, y_range=(0.0, top), **how),  # type: ignore[arg-type]
        panel("identity", "Identity, % of draws", second, y_range=(0.0, 100.0), **how),  # type: ignore[arg-type]
    )


# Accuracy


def plot_accuracy(rows: Sequence[AccuracyRow]) -> Drawing:
    """A bar for each method with its 95 % interval, the best on top; the axis starts above 0."""
    ranked = sorted(rows, key=lambda row: -row.mean)
    ends = [end for row in ranked for end in _interval(row)]
    low, high = min(ends), max(ends)
    low = max(0.0, low - 0.5 * max(high - low, 0.5))
    width, right = 340.0, 58.0
    scale = (width - right) / ((high - low) or 1.0)
    marks: list[Mark] = []
    y = 0.0
    for row in ranked:
        marks.append(Text(0, y + 13, row.method, 12, "ink"))
        marks.append(Text(width, y + 13, f"{100 * row.mean:.2f}", 12, "ink", "end"))
        marks += _bar(row, y + 18, low, scale)
        y += 40
    # the last ticks would meet the name of the axis
    for value in ticks(low, high - 0.08 * (high - low), 4):
        x = (value - low) * scale
        marks.append(Line(((x, y - 4), (x, y)), "faint", 1))
        marks.append(Text(x, y + 12, f"{value:.4g}", 10, anchor="middle" if x > 8 else "start"))
    marks.append(Text(width, y + 12, "accuracy, %", 10, anchor="end"))
    return Drawing("accuracy", "Accuracy of each method.", width, y + 18, tuple(marks))


def _interval(row: AccuracyRow) -> tuple[float, float]:
    """The ends of the 95 % interval in percent, as far as there can be such accuracies."""
    half = row.half_width or 0.0
    return max(0.0, 100 * (row.mean - half)), min(100.0, 100 * (row.mean + half))


def _bar(row: AccuracyRow, y: float, low: float, scale: float) -> list[Mark]:
    tall = 10.0
    marks: list[Mark] = [Rect(0, y, (100 * row.mean - low) * scale, tall, "accent", 0.75)]
    if row.half_width is None:
        return marks
    middle = y + tall / 2
    start, end = ((value - low) * scale for value in _interval(row))
    marks.append(Line(((start, middle), (end, middle)), "ink", 1.5))
    for x in (start, end):
        marks.append(Line(((x, middle - 4), (x, middle + 4)), "ink", 1.5))
    return marks
