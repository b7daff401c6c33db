"""Figures: each function turns one of the tables into a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, groupby

from deepaa.report.accuracy_tables import AccuracyRow, DepthAccuracy
from deepaa.report.charts import SMALL, Curve, line_chart, padded, smoothed, ticks
from deepaa.report.comparison import LEVELS, Bar, Comparison, PolicyBars
from deepaa.report.policy_tables import LayerTable, MagnitudeTable, OperationRow
from deepaa.report.search_tables import DepthRow, DroppedLayer, StepCurve
from deepaa.report.svg import Drawing, Line, Mark, Rect, Text

Style = tuple[str, tuple[float, float] | None]
CELL, ROW = 38.0, 24.0
"""Of the figure of operations."""
LABELS = 96.0
"""Width of the names of operations."""
FULL = 0.25
"""A magnitude's share that fills the height of its row, unless one is larger."""
VISIBLE = 0.005
"""Smaller probabilities have no bar."""
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
BESIDE = 3
"""Policies side by side in the figure of a comparison; more go below."""
BAR, COLUMN, LINE = 150.0, 212.0, 17.0
"""Of that figure: length of the longest bar, width of a policy, height of an operation."""


# Operations and magnitudes


def plot_operations(operations: Sequence[OperationRow], unfinished: int | None = None) -> Drawing:
    """Rows are operations, columns layers; the length of a bar is the probability.

    Args:
        unfinished: The layer that is still being searched, which gets a star.
    """
    marks: list[Mark] = []
    y, depth = 22.0, len(operations[0].probabilities)
    for layer in range(1, depth + 1):
        label = f"{layer}*" if layer == unfinished else f"{layer}"
        marks.append(Text(_column(layer) + CELL / 2 - 3, 12, label, 11, "ink", "middle", bold=True))
    marks.append(Text(0, 12, "layer", 11))
    for family, rows in groupby(operations, key=lambda row: row.family):
        if family != "nothing":
            y += 8
        for row in rows:
            marks.append(Text(0, y + 15, row.name, 12, "ink"))
            for layer, p in enumerate(row.probabilities, start=1):
                marks += _cell(_column(layer), y, p, family, f"layer {layer}: {row.name}")
            y += ROW
    description = f"Probability of each operation in each of {depth} layers."
    return Drawing("operations", description, _column(depth + 1), y + 4, tuple(marks))


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


def plot_steps(curves: Sequence[StepCurve]) -> tuple[Drawing, ...]:
    """The cosine per step: a small chart for each layer, all on one scale."""
    values = [v for curve in curves for v in curve.similarity]
    y_range = padded(values) if values else (0.0, 1.0)
    return tuple(_step_chart(c, "similarity", c.similarity, y_range) for c in curves)


def plot_identity_steps(curves: Sequence[StepCurve]) -> tuple[Drawing, ...]:
    """The probability of identity per step: a small chart for each layer."""
    return tuple(_step_chart(c, "identity", c.identity, (0.0, 1.0)) for c in curves)


def _step_chart(
    curve: StepCurve, name: str, values: Sequence[float], y_range: tuple[float, float]
) -> Drawing:
    every = -(-len(values) // MOST_POINTS)
    places = sorted({*range(0, len(values), every), len(values) - 1})
    x, y = [curve.steps[i] for i in places], [values[i] for i in places]
    shown = [Curve("", x, y, is_marked=False)]
    if name == "similarity":  # jumps, since steps see different images
        shown = [shown[0]._replace(opacity=0.35), shown[0]._replace(y=smoothed(y))]
    title = f"layer {curve.layer}"
    ends = sorted({x[0], x[-1]})
    return line_chart(f"{name}-layer-{curve.layer}", title, shown, "step", y_range, ends, SMALL)


def plot_depth(rows: Sequence[DepthRow]) -> tuple[Drawing, Drawing]:
    """Mean and standard deviation of the improvement by depth, beside DeepTA's."""
    layers = [row.layer for row in rows]
    dropped = frozenset(i for i, row in enumerate(rows) if not row.kept)

    def chart(name: str, title: str, found: list[float], deepta: list[float]) -> Drawing:
        low, high = padded(found + deepta)
        curves = [
            Curve("found policy", layers, found, hollow=dropped),
            Curve("DeepTA", layers, deepta, *DEEPTA),
        ]
        return line_chart(f"depth-{name}", title, curves, "layers", (min(0.0, low), high), layers)

    means = [row.mean for row in rows], [row.deepta_mean for row in rows]
    deviations = [row.deviation for row in rows], [row.deepta_deviation for row in rows]
    return (
        chart("mean", "Mean improvement of the cosine", *means),
        chart("deviation", "Its standard deviation over images", *deviations),
    )


def plot_accuracy_by_depth(series: Sequence[DepthAccuracy]) -> Drawing:
    """Accuracy by depth, with 95 % intervals."""
    styles = cycle(STYLES)
    curves = [
        Curve(
            one.method,
            [row.layers for row in one.points],
            [100 * row.mean for row in one.points],
            *(DEEPTA if one.method.startswith("deepta") else next(styles)),
            error=[None if r.half_width is None else 100 * r.half_width for r in one.points],
        )
        for one in series
    ]
    depths = sorted({row.layers for one in series for row in one.points})
    low, high = padded([end for one in series for row in one.points for end in _interval(row)])
    y_range = (max(0.0, low), min(100.0, high))
    return line_chart("depth-accuracy", "Accuracy, %", curves, "layers", y_range, depths)


def plot_uncertainty(
    layers: Sequence[LayerTable], dropped: DroppedLayer | None = None
) -> tuple[Drawing, Drawing]:
    """Entropy and probability of identity by layer; hollow for the one that was dropped."""
    ends: list[LayerTable | DroppedLayer] = [*layers, *([dropped] if dropped else [])]
    numbers = [layer.layer for layer in ends]
    entropy = [layer.entropy for layer in ends]
    top = max(1.0, max(entropy, default=0.0) * 1.08)
    hollow = frozenset({len(layers)} if dropped else ())
    first = Curve("", numbers, entropy, hollow=hollow)
    second = first._replace(y=[100 * layer.identity for layer in ends])
    return (
        line_chart("entropy", "Entropy, bits", [first], "layer", (0.0, top), numbers),
        line_chart("identity", "Identity, % of draws", [second], "layer", (0.0, 100.0), numbers),
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


# Policies compared


def plot_comparison(found: Comparison) -> Drawing:
    """A bar per operation and policy, coloured by magnitude (Appendix E of the paper)."""
    operations = len(found.policies[0].bars)
    most = max((bar.total for policy in found.policies for bar in policy.bars), default=1.0)
    scale = BAR / (most or 1.0)
    columns = min(BESIDE, len(found.policies))
    width = LABELS + columns * COLUMN
    marks: list[Mark] = _key(found)
    tall = operations * LINE + 66
    for i, policy in enumerate(found.policies):
        x, y = LABELS + i % columns * COLUMN, 38 + i // columns * tall
        if not i % columns:
            rows = enumerate(policy.bars)
            marks += [Text(0, y + 46 + j * LINE, bar.operation, 12, "ink") for j, bar in rows]
            marks.append(Text(0, y + 48 + operations * LINE, "uses per image", 10))
        marks += _policy_bars(policy, x, y, scale, most)
    names = ", ".join(policy.label for policy in found.policies)
    description = f"Cumulative probability of each operation for {names}."
    height = 38 + -(-len(found.policies) // columns) * tall
    return Drawing("comparison", description, width, height, tuple(marks))


def _key(found: Comparison) -> list[Mark]:
    """What the colours mean: magnitudes from lowest to highest, none, default augmentation."""
    marks: list[Mark] = [Text(0, 12, "magnitude", 11)]
    x = LABELS
    for i, level in enumerate(LEVELS):
        marks += [Rect(x, 2, 16, 12, f"level-{i}"), _outline(x, 2, 16, 12)]
        if level % 5 == 0:
            marks.append(Text(x + 8, 26, f"{level}", 10, anchor="middle"))
        x += 16
    marks += [Rect(x + 24, 2, 16, 12, "nothing"), Text(x + 45, 12, "no magnitude", 11)]
    if any(policy.defaults for policy in found.policies):
        marks += [*_hatched(x + 140, 2, 16, 12), Text(x + 161, 12, "default augmentation", 11)]
    return marks


def _policy_bars(
    policy: PolicyBars, x: float, y: float, scale: float, most: float
) -> Iterable[Mark]:
    """The column of a policy: its name, an axis, and a bar with a number for each operation."""
    label = policy.label if len(policy.label) <= 28 else f"...{policy.label[-25:]}"
    yield Text(x, y + 12, label, 12, "ink", bold=True)
    yield Text(x, y + 27, policy.size, 10)
    top, bottom = y + 34, y + 36 + len(policy.bars) * LINE
    for value in ticks(0, most, 3):
        yield Line(((x + value * scale, top), (x + value * scale, bottom)), "grid", 1)
        yield Text(x + value * scale, bottom + 12, f"{value:g}", 10, anchor="middle")
    for i, bar in enumerate(policy.bars):
        yield from _stacked(bar, x, top + 3 + i * LINE, scale)
        number = f"{bar.total:.2f}" if bar.total >= 0.005 else "·"
        colour = "ink" if bar.total >= 0.1 else "faint"
        yield Text(x + BAR + 34, top + 12 + i * LINE, number, 10, colour, "end")


def _stacked(bar: Bar, x: float, y: float, scale: float) -> Iterable[Mark]:
    parts = [
        (p, f"level-{i}", f"{bar.operation}, magnitude {level} of -5 to 5: {p:.3f}")
        for i, (level, p) in enumerate(zip(LEVELS, bar.levels, strict=True))
    ]
    parts.append((bar.plain, "nothing", f"{bar.operation}: {bar.plain:.3f}"))
    start = x
    for p, colour, title in parts:
        if p > 0:
            yield Rect(x, y, p * scale, LINE - 6, colour, 1.0, title)
            x += p * scale
    if bar.default:
        yield from _hatched(x, y, bar.default * scale, LINE - 6)
        x += bar.default * scale
    if x > start:
        yield _outline(start, y, x - start, LINE - 6)


def _outline(x: float, y: float, width: float, height: float) -> Line:
    right, low = x + width, y + height
    return Line(((x, y), (right, y), (right, low), (x, low), (x, y)), "faint", 0.5)


def _hatched(x: float, y: float, width: float, height: float) -> Iterable[Mark]:
    """A box with slanted lines across, for what is not the policy's own."""
    yield _outline(x, y, width, height)
    yield from (
        Line(((left, y + height), (left + height / 2, y)), "faint", 0.75)
        for left in (x + 5.0 * i for i in range(int((width - height / 2) / 5) + 1))
    )
