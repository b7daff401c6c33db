"""Line charts: curves over one axis, with ticks and a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from deepaa.report.svg import Dot, Drawing, Line, Mark, Text

LARGE = (340.0, 220.0)
SMALL = (170.0, 130.0)
LEGEND_LINE = 16.0


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


class Frame(NamedTuple):
    """The plotting area of a chart and the ranges of its axes."""

    size: tuple[float, float]
    x: tuple[float, float]
    y: tuple[float, float]
    top: float
    left: float = 46.0
    right: float = 10.0
    bottom: float = 30.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the data is drawn."""
        width = self.size[0] - self.left - self.right
        height = self.size[1] - self.top - self.bottom
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        return self.left + across * width, self.top + (1 - up) * height


def line_chart(
    name: str,
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    y_range: tuple[float, float],
    x_ticks: Sequence[float],
    size: tuple[float, float] = LARGE,
) -> Drawing:
    """Curves over one axis, with a legend of those that have a label."""
    xs = [x for curve in curves for x in curve.x]
    x_range = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)
    labels = [curve.label for curve in curves if curve.label]
    legend = _legend([curve for curve in curves if curve.label], size[0])
    lines = len({mark.y for mark in legend if isinstance(mark, Text)})
    frame = Frame(size, x_range, y_range, top=26.0 + LEGEND_LINE * lines)
    marks: list[Mark] = [Text(0, 12, title, 12, "ink", bold=True)]
    marks += [*_axes(frame, x_ticks, x_label), *legend]
    for curve in curves:
        marks += _curve(frame, curve)
    description = f"{title} by {x_label}" + (f": {', '.join(labels)}." if labels else ".")
    return Drawing(name, description, *size, tuple(marks))


def _axes(frame: Frame, x_ticks: Sequence[float], x_label: str) -> list[Mark]:
    marks: list[Mark] = []
    for value in ticks(*frame.y, 3 if frame.size[1] < 150 else 4):
        start, end = frame.at(frame.x[0], value), frame.at(frame.x[1], value)
        is_zero = value == 0 and frame.y[0] < 0
        marks.append(Line((start, end), "faint" if is_zero else "grid", 1))
        marks.append(Text(start[0] - 6, start[1] + 3.5, f"{value:.4g}", 10, anchor="end"))
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
    return Dot(x, y, 3, curve.colour, "square" if curve.dash else "circle", hollow, title)


def _curve(frame: Frame, curve: Curve) -> list[Mark]:
    points = [frame.at(x, y) for x, y in zip(curve.x, curve.y, strict=True)]
    width = 2 if curve.is_marked else 1.5
    marks: list[Mark] = [Line(tuple(points), curve.colour, width, curve.dash, curve.opacity)]
    for x, y, error in zip(curve.x, curve.y, curve.error, strict=False):
        if error is not None:
            ends = (max(frame.y[0], y - error), min(frame.y[1], y + error))
            marks.append(Line((frame.at(x, ends[0]), frame.at(x, ends[1])), curve.colour, 1.5))
    if curve.is_marked:
        for i, (x, y) in enumerate(points):
            title = f"{curve.label or 'layer'} {curve.x[i]:g}: {curve.y[i]:.4f}"
            marks.append(_dot(x, y, curve, hollow=i in curve.hollow, title=title))
    return marks


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough) + 1e-9)
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def padded(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """A range that holds the values with some room; never empty."""
    low, high = min(values), max(values)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room


def smoothed(values: Sequence[float], window: int = 9) -> list[float]:
    """Means over up to `window` neighbours, fewer at the ends."""
    half = window // 2
    parts = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]
