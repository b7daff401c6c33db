"""A comparison of policies as a figure, and their samples side by side as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image
from PIL.Image import Image as PilImage

from deepaa.compare import LEVELS, STRONGEST, Comparison, Entry, PolicyBars
from deepaa.report.preview import BACKGROUND, MAX_PIXELS, preview_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

FORMATS = ("png", "svg", "pdf")
COLUMNS = 3
"""Policies side by side in the samples picture; more go below."""
COLOURS = "PuOr"
"""Two ends that colour-blind people tell apart, with a pale middle."""
PLAIN, DEFAULT, LINE = "#8c959f", "#ffffff", "#57606a"


def compare_figure(found: Comparison) -> Figure:
    """One panel per policy: a bar per operation, coloured by magnitude, after Appendix E."""
    figures = _matplotlib()
    height = 1.1 + 1.75 * len(found.policies)
    figure: Figure = figures.Figure(figsize=(9.5, height), layout="constrained")
    panels = figure.subplots(len(found.policies), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for panel, policy in zip(panels, found.policies, strict=True):
        _panel(panel, policy)
    most = max((bar.total for policy in found.policies for bar in policy.bars), default=1.0)
    panels[0].set_ylim(0, 1.06 * most)  # shared by all
    names = [bar.operation for bar in found.policies[0].bars]
    panels[-1].set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=9)
    figure.supylabel("cumulative probability", fontsize=10)
    _scale(figure, list(panels))
    figure.legend(handles=_handles(found), loc="outside upper right", ncols=2, frameon=False)
    return figure


def figure_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as one of `FORMATS`; the same figure gives the same bytes."""
    if kind not in FORMATS:
        raise ValueError(f"no figures of kind {kind!r}; choose from {', '.join(FORMATS)}")
    import matplotlib as mpl

    stamp = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "deepaa"}):
        figure.savefig(out, format=kind, dpi=150, metadata=stamp[kind])
    return out.getvalue()


def _matplotlib() -> Any:
    try:
        from matplotlib import figure
    except ImportError as error:
        raise ValueError(
            f"figures need matplotlib, which cannot be imported ({error}); "
            "pip install 'deepaa[report]', or leave --out away"
        ) from error
    return figure


def _colour(level: int) -> Any:
    from matplotlib import colormaps

    return colormaps[COLOURS]((level + STRONGEST) / (2 * STRONGEST))


def _panel(panel: Axes, policy: PolicyBars) -> None:
    then = f", then {', '.join(policy.defaults)}" if policy.defaults else ""
    layers = f"{policy.layers} layer{'s' * (policy.layers != 1)}"
    panel.set_title(f"{policy.label}  ({layers}{then})", loc="left", fontsize=10)
    places = range(len(policy.bars))
    base = [0.0] * len(policy.bars)
    parts: list[tuple[list[float], dict[str, Any]]] = [
        ([bar.levels[i] for bar in policy.bars], {"color": _colour(level)})
        for i, level in enumerate(LEVELS)
    ]
    parts.append(([bar.plain for bar in policy.bars], {"color": PLAIN}))
    parts.append(([bar.default for bar in policy.bars], {"color": DEFAULT, "hatch": "////"}))
    for heights, style in parts:
        panel.bar(places, heights, 0.72, base, edgecolor=LINE, linewidth=0.3, **style)
        base = [a + b for a, b in zip(base, heights, strict=True)]
    panel.margins(x=0.01)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#d0d7de", linewidth=0.5)
    panel.set_axisbelow(True)


def _scale(figure: Figure, panels: list[Axes]) -> None:
    """The colours of the magnitudes, beside the panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    edges = [value - 0.5 for value in (*LEVELS, STRONGEST + 1)]
    shades = ListedColormap([_colour(level) for level in LEVELS])
    mappable = ScalarMappable(BoundaryNorm(edges, len(LEVELS)), shades)
    bar = figure.colorbar(mappable, ax=panels, ticks=LEVELS, pad=0.01, aspect=30)
    bar.set_label("magnitude, each range on -5 to 5", fontsize=9)


def _handles(found: Comparison) -> list[Any]:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=PLAIN, edgecolor=LINE, label="without magnitude")]
    if any(policy.defaults for policy in found.policies):
        handles.append(
            Patch(facecolor=DEFAULT, edgecolor=LINE, hatch="////", label="default augmentation")
        )
    return handles


def samples_picture(
    images: Tensor, entries: Sequence[Entry], draws: int = 3, seed: int = 0
) -> PilImage:
    """The same images under each policy, side by side: originals on top, draws below.

    Args:
        images: uint8 (N, C, H, W) with 1 or 3 channels.
    """
    if not entries:
        raise ValueError("no policies to show")
    grids = [preview_grid(images, e.policy, draws, seed, title=e.label) for e in entries]
    width, height = grids[0].size
    columns = 2 if len(grids) == 4 else min(COLUMNS, len(grids))
    rows = -(-len(grids) // columns)
    if width * columns * height * rows > MAX_PIXELS:
        raise ValueError(
            f"the picture would have {width * columns} x {height * rows} pixels; "
            "show fewer or smaller images"
        )
    sheet = Image.new("RGB", (width * columns, height * rows), BACKGROUND)
    for i, grid in enumerate(grids):
        sheet.paste(grid, (i % columns * width, i // columns * height))
    return sheet
