"""Drawings are marks in user units; they become SVG here, and PNG and PDF with matplotlib.

Colours are named by their role, so that a page can show them on light and on dark paper.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from deepaa.runs import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
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
"""The colours of files, which are on white."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MARGIN = 14.0
"""Around a drawing in a file of its own."""
RADIUS = 3.0
"""Of dots."""


# Marks


class Rect(NamedTuple):
    """A filled box; its title is shown under the pointer."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0
    title: str = ""


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
    anchor: Literal["start", "middle", "end"] = "start"
    bold: bool = False


Mark = Rect | Line | Dot | Text


class Drawing(NamedTuple):
    """Marks on a canvas, with a name for files and a description for those who cannot see it."""

    name: str
    description: str
    width: float
    height: float
    marks: tuple[Mark, ...]


# SVG


def inline_svg(drawing: Drawing) -> str:
    """SVG for an HTML page; its colours are the page's variables `--ink` and so on."""
    return _svg(drawing, {role: f"var(--{role})" for role in COLOURS}, 0.0)


def standalone_svg(drawing: Drawing) -> str:
    """SVG for a file of its own, on white."""
    width, height = drawing.width + 2 * MARGIN, drawing.height + 2 * MARGIN
    paper = Rect(-MARGIN, -MARGIN, width, height, "paper")
    content = _svg(drawing._replace(marks=(paper, *drawing.marks)), COLOURS, MARGIN)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + content.replace("<svg ", f'<svg font-family="{FONT}" ', 1) + "\n"


def _svg(drawing: Drawing, colours: Mapping[str, str], margin: float) -> str:
    w, h = _number(drawing.width + 2 * margin), _number(drawing.height + 2 * margin)
    corner = _number(-margin)
    body = "".join(_mark(mark, colours) for mark in drawing.marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{corner} {corner} {w} {h}" '
        f'width="{w}" height="{h}" role="img" aria-label="{escape(drawing.description)}" '
        f'data-figure="{escape(drawing.name)}">{body}</svg>'
    )


def _mark(mark: Mark, colours: Mapping[str, str]) -> str:
    colour = colours[mark.colour]
    if isinstance(mark, Rect):
        style = f"fill:{colour}{_opacity(mark.opacity)}"
        return _box(mark.x, mark.y, mark.width, mark.height, style, mark.title)
    if isinstance(mark, Line):
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in mark.points)
        dash = f";stroke-dasharray:{mark.dash[0]} {mark.dash[1]}" if mark.dash else ""
        style = f"fill:none;stroke:{colour};stroke-width:{_number(mark.width)}{dash}"
        return _tag("polyline", f'points="{points}"', style + _opacity(mark.opacity))
    if isinstance(mark, Dot):
        fill = colours["paper"] if mark.hollow else colour
        style = f"fill:{fill};stroke:{colour};stroke-width:1.5"
        if mark.shape == "square":
            side = 2 * RADIUS
            return _box(mark.x - RADIUS, mark.y - RADIUS, side, side, style, mark.title)
        place = f'cx="{_number(mark.x)}" cy="{_number(mark.y)}" r="{_number(RADIUS)}"'
        return _tag("circle", place, style, mark.title)
    weight = ";font-weight:600" if mark.bold else ""
    style = f"fill:{colour};font-size:{_number(mark.size)}px;text-anchor:{mark.anchor}{weight}"
    return _tag("text", f'x="{_number(mark.x)}" y="{_number(mark.y)}"', style, text=mark.text)


def _box(x: float, y: float, width: float, height: float, style: str, title: str) -> str:
    size = f'width="{_number(width)}" height="{_number(height)}"'
    return _tag("rect", f'x="{_number(x)}" y="{_number(y)}" {size}', style, title)


def _tag(name: str, place: str, style: str, title: str = "", text: str = "") -> str:
    """An element; colours are in a style, since var() does not work in attributes."""
    inner = f"<title>{escape(title)}</title>" if title else escape(text)
    start = f'<{name} {place} style="{style}"'
    return f"{start}>{inner}</{name}>" if inner else f"{start}/>"


def _opacity(value: float) -> str:
    return "" if value == 1 else f";opacity:{_number(value)}"


def _number(value: float) -> str:
    return f"{value + 0.0:.2f}".rstrip("0").rstrip(".")


# Files


def parse_formats(text: str) -> tuple[str, ...]:
    """The formats in a text like `png,svg`."""
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if not names or set(names) - set(FORMATS):
        raise ValueError(f"--format takes {', '.join(FORMATS)} with commas between, got {text!r}")
    return names


def check_formats(formats: Sequence[str]) -> None:
    """Raise ValueError unless files of these formats can be written here."""
    for kind in formats:
        if kind not in FORMATS:
            raise ValueError(f"no figures of kind {kind!r}; choose from {', '.join(FORMATS)}")
    if set(formats) == {"svg"}:
        return
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError(
            "PNG and PDF figures need matplotlib: pip install 'deepaa[report]', or write SVG"
        ) from None


def save_figures(
    drawings: Iterable[Drawing], folder: Path, formats: Sequence[str] = ("png",)
) -> list[Path]:
    """Write each drawing in each format and return the paths."""
    check_formats(formats)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for drawing, kind in product(drawings, formats):
        written.append(folder / f"{drawing.name}.{kind}")
        write_file(written[-1], figure_bytes(drawing, kind))
    return written


def figure_bytes(drawing: Drawing, kind: str) -> bytes:
    """The content of a png, svg or pdf file; equal drawings give equal bytes."""
    check_formats([kind])
    if kind == "svg":
        return standalone_svg(drawing).encode()
    from matplotlib.figure import Figure

    dpi = 72.0  # user units of a drawing are points
    size = ((drawing.width + 2 * MARGIN) / dpi, (drawing.height + 2 * MARGIN) / dpi)
    figure = Figure(figsize=size, dpi=dpi, facecolor=COLOURS["paper"])
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(-MARGIN, drawing.width + MARGIN)
    axes.set_ylim(drawing.height + MARGIN, -MARGIN)
    for order, mark in enumerate(drawing.marks):
        _add(axes, mark, zorder=order)
    stream = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else {}  # no date
    figure.savefig(stream, format=kind, dpi=3 * dpi, metadata=metadata)
    return stream.getvalue()


def _add(axes: Axes, mark: Mark, zorder: int) -> None:
    from matplotlib.patches import Rectangle

    how: dict[str, Any] = {"color": COLOURS[mark.colour], "zorder": zorder}
    if isinstance(mark, Rect):
        how |= {"facecolor": how.pop("color"), "linewidth": 0, "alpha": mark.opacity}
        axes.add_patch(Rectangle((mark.x, mark.y), mark.width, mark.height, **how))
    elif isinstance(mark, Line):
        style: Any = (0, mark.dash) if mark.dash else "solid"
        how |= {"linewidth": mark.width, "linestyle": style, "alpha": mark.opacity}
        axes.plot(*zip(*mark.points, strict=True), clip_on=False, **how)
    elif isinstance(mark, Dot):
        shape = "o" if mark.shape == "circle" else "s"
        how["markerfacecolor"] = COLOURS["paper"] if mark.hollow else how["color"]
        axes.plot([mark.x], [mark.y], shape, markersize=2 * RADIUS, clip_on=False, **how)
    else:
        aligned = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
        how |= {"ha": aligned, "fontweight": "bold" if mark.bold else "normal"}
        # a font of this library is wider than those of browsers
        axes.text(mark.x, mark.y, mark.text, fontsize=0.88 * mark.size, **how)
