"""Drawings are marks in user units, and become SVG here. Colours are roles, for dark pages."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Literal, NamedTuple

PALETTE: Mapping[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181b"),
    "raised": ("#f6f7f8", "#1d2125"),
    "ink": ("#1c2024", "#e9ebee"),
    "faint": ("#60646c", "#a0a6ae"),
    "grid": ("#dcdfe3", "#363b41"),
    "accent": ("#0b62a4", "#6cb6f0"),
    "second": ("#7a7f87", "#969ca5"),
    "nothing": ("#8b9098", "#8f959d"),
    "geometry": ("#0072b2", "#56b4e9"),
    "colour": ("#c65102", "#f09a4f"),
    "erasing": ("#00805d", "#3cc49c"),
    "own": ("#a8528b", "#d992c0"),
    "level-0": ("#7f3b08", "#ffb35c"),
    "level-1": ("#b35806", "#e8974a"),
    "level-2": ("#e08214", "#c97f3c"),
    "level-3": ("#fdb863", "#a0682f"),
    "level-4": ("#fee0b6", "#765331"),
    "level-5": ("#f7f7f7", "#4b4f55"),
    "level-6": ("#d8daeb", "#595480"),
    "level-7": ("#b2abd2", "#6f64a3"),
    "level-8": ("#8073ac", "#8a7bc9"),
    "level-9": ("#542788", "#a796e8"),
    "level-10": ("#2d004b", "#c9bcff"),
}
"""Roles and their colours on light and on dark paper.

Families of operations are after Okabe and Ito's palette, darkened for thin marks. Levels go from
the lowest magnitude to the highest; colour-blind people can tell the two ends apart.
"""
COLOURS: Mapping[str, str] = {role: light for role, (light, _) in PALETTE.items()}
"""Those of files, which are on white."""
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


def css_variables() -> str:
    """The style rules that define the colours of a page, in light and in dark."""
    light, dark = (
        " ".join(f"--{role}: {pair[i]};" for role, pair in PALETTE.items()) for i in (0, 1)
    )
    dark += " color-scheme: dark;"
    return (
        f":root {{ {light} }}\n"
        f':root[data-theme="dark"] {{ {dark} }}\n'
        "@media (prefers-color-scheme: dark) "
        f'{{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
    )


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
