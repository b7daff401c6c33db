"""Drawings become files: SVG without any library, PNG and PDF with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepaa.report.svg import COLOURS, MARGIN, Dot, Drawing, Line, Mark, Rect, standalone_svg
from deepaa.runs import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DPI = 72.0
"""User units of a drawing are points."""
SHARPNESS = 3
"""Pixels of a PNG per unit."""
_ALIGNED = {"start": "left", "middle": "center", "end": "right"}


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
    for drawing in drawings:
        for kind in formats:
            path = folder / f"{drawing.name}.{kind}"
            write_file(path, figure_bytes(drawing, kind))
            written.append(path)
    return written


def figure_bytes(drawing: Drawing, kind: str) -> bytes:
    """The content of a png, svg or pdf file; equal drawings give equal bytes."""
    check_formats([kind])
    if kind == "svg":
        return standalone_svg(drawing).encode()
    stream = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else {}  # no date
    _figure(drawing).savefig(stream, format=kind, dpi=DPI * SHARPNESS, metadata=metadata)
    return stream.getvalue()


def _figure(drawing: Drawing) -> Figure:
    """The drawing as a matplotlib figure on white."""
    from matplotlib.figure import Figure

    size = ((drawing.width + 2 * MARGIN) / DPI, (drawing.height + 2 * MARGIN) / DPI)
    figure = Figure(figsize=size, dpi=DPI, facecolor=COLOURS["paper"])
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(-MARGIN, drawing.width + MARGIN)
    axes.set_ylim(drawing.height + MARGIN, -MARGIN)
    for order, mark in enumerate(drawing.marks):
        _add(axes, mark, order)
    return figure


def _add(axes: Axes, mark: Mark, order: int) -> None:
    from matplotlib.patches import Rectangle

    colour = COLOURS[mark.colour]
    if isinstance(mark, Rect):
        box = Rectangle((mark.x, mark.y), mark.width, mark.height, linewidth=0, facecolor=colour)
        box.set(alpha=mark.opacity, zorder=order)
        axes.add_patch(box)
    elif isinstance(mark, Line):
        style: Any = (0, mark.dash) if mark.dash else "solid"
        xs, ys = [x for x, _ in mark.points], [y for _, y in mark.points]
        (line,) = axes.plot(xs, ys, color=colour, linewidth=mark.width, linestyle=style)
        line.set(alpha=mark.opacity, zorder=order, clip_on=False)
    elif isinstance(mark, Dot):
        shape = "o" if mark.shape == "circle" else "s"
        face = COLOURS["paper"] if mark.hollow else colour
        (dot,) = axes.plot([mark.x], [mark.y], shape, color=colour, markersize=2 * mark.radius)
        dot.set(markerfacecolor=face, zorder=order, clip_on=False)
    else:
        weight = "bold" if mark.bold else "normal"
        # a font of this library is wider than those of browsers
        text = axes.text(mark.x, mark.y, mark.text, fontsize=0.88 * mark.size, color=colour)
        text.set(horizontalalignment=_ALIGNED[mark.anchor], fontweight=weight, zorder=order)
