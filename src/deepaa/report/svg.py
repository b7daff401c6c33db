"""Drawings: marks in user units, and their SVG. Colours are roles, so that a page can be dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Literal, NamedTuple

COLOURS: Mapping[str, str] = {
    "paper": "#ffffff",
    "ink": "#1c2024",
    "faint": "#60646c",
    "grid": "#dcdfe3",
    "accent": "#0b62a4",
    "second": "#7a7f87",
    "nothing": "#8b9098",
    "geometry": "#0072b2",
    "colour": "#c65102",
    "erasing": "#00805d",
    "own": "#a8528b",
}
"""Roles and their colours on white; after Okabe and Ito's palette, darkened for thin marks."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MARGIN = 14.0
"""Around a drawing in a file of its own."""
Anchor = Literal["start", "middle", "end"]


class Rect(NamedTuple):
    """A filled box."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0
    title: str = ""
    """Shown under the pointer."""


class Line(NamedTuple):
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.5
    dash: tuple[float, float] | None = None
    opacity: float = 1.0


class Dot(NamedTuple):
    """A round or square point; hollow ones are filled with the colour of the paper."""

    x: float
    y: float
    radius: float
    colour: str
    shape: Literal["circle", "square"] = "circle"
    hollow: bool = False
    title: str = ""


class Text(NamedTuple):
    """A line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    size: float = 11.0
    colour: str = "faint"
    anchor: Anchor = "start"
    bold: bool = False


Mark = Rect | Line | Dot | Text


class Drawing(NamedTuple):
    """Marks on a canvas, with a name for files and a description for those who cannot see it."""

    name: str
    description: str
    width: float
    height: float
    marks: tuple[Mark, ...]


def inline_svg(drawing: Drawing) -> str:
    """SVG for an HTML page; its colours are the page's variables `--ink` and so on."""
    return _svg(drawing, {role: f"var(--{role})" for role in COLOURS}, "", 0.0)


def standalone_svg(drawing: Drawing) -> str:
    """SVG for a file of its own, on white."""
    place = f'x="{-MARGIN:g}" y="{-MARGIN:g}" width="100%" height="100%"'
    background = f'<rect {place} fill="{COLOURS["paper"]}"/>'
    content = _svg(drawing, COLOURS, background, MARGIN)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + content.replace("<svg ", f'<svg font-family="{FONT}" ', 1) + "\n"


def _svg(drawing: Drawing, colours: Mapping[str, str], background: str, margin: float) -> str:
    w, h = _number(drawing.width + 2 * margin), _number(drawing.height + 2 * margin)
    corner = _number(-margin)
    body = "".join(_mark(mark, colours) for mark in drawing.marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{corner} {corner} {w} {h}" '
        f'width="{w}" height="{h}" role="img" aria-label="{escape(drawing.description)}" '
        f'data-figure="{escape(drawing.name)}">{background}{body}</svg>'
    )


def _mark(mark: Mark, colours: Mapping[str, str]) -> str:
    # a style, not attributes: var() only works there
    colour = colours[mark.colour]
    if isinstance(mark, Rect):
        box = (mark.x, mark.y, mark.width, mark.height)
        x, y, w, h = map(_number, box)
        style = f"fill:{colour}" + _opacity(mark.opacity)
        return _titled(f'rect x="{x}" y="{y}" width="{w}" height="{h}" style="{style}"', mark.title)
    if isinstance(mark, Line):
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in mark.points)
        dash = f";stroke-dasharray:{mark.dash[0]} {mark.dash[1]}" if mark.dash else ""
        style = f"fill:none;stroke:{colour};stroke-width:{_number(mark.width)}{dash}"
        return f'<polyline points="{points}" style="{style}{_opacity(mark.opacity)}"/>'
    if isinstance(mark, Dot):
        return _dot(mark, colour, colours["paper"])
    weight = ";font-weight:600" if mark.bold else ""
    style = f"fill:{colour};font-size:{_number(mark.size)}px;text-anchor:{mark.anchor}{weight}"
    place = f'x="{_number(mark.x)}" y="{_number(mark.y)}"'
    return f'<text {place} style="{style}">{escape(mark.text)}</text>'


def _dot(mark: Dot, colour: str, paper: str) -> str:
    style = f"fill:{paper if mark.hollow else colour};stroke:{colour};stroke-width:1.5"
    x, y, r = mark.x, mark.y, mark.radius
    if mark.shape == "circle":
        shape = f'circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(r)}"'
    else:
        side = _number(2 * r)
        shape = f'rect x="{_number(x - r)}" y="{_number(y - r)}" width="{side}" height="{side}"'
    return _titled(f'{shape} style="{style}"', mark.title)


def _titled(tag: str, title: str) -> str:
    name = tag.split(" ", 1)[0]
    return f"<{tag}><title>{escape(title)}</title></{name}>" if title else f"<{tag}/>"


def _opacity(value: float) -> str:
    return "" if value == 1 else f";opacity:{_number(value)}"


def _number(value: float) -> str:
    return f"{value + 0.0:.2f}".rstrip("0").rstrip(".")


# Axes


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** _floor_log(rough)
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = -int(-low // step) if low % step else int(low / step)
    found, k = [], first
    while k * step <= high + 1e-9 * step:
        found.append(round(k * step, 12))
        k += 1
    return found


def _floor_log(value: float) -> int:
    exponent = 0
    while value < 1:
        value, exponent = value * 10, exponent - 1
    while value >= 10:
        value, exponent = value / 10, exponent + 1
    return exponent


def padded(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """A range that holds the values with some room; never empty."""
    low, high = min(values), max(values)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room
