"""A comparison of policies as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from deepaa.report.compare_figure import compare_figure, figure_bytes
from deepaa.report.compare_lines import hidden, size

if TYPE_CHECKING:
    from PIL.Image import Image

    from deepaa.compare import Comparison

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --faint: #656d76; --line: #d0d7de;
  --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --faint: #8d96a0; --line: #30363d;
  --paper: #0d1117; } }
body { margin: 2rem auto; padding: 0 1rem; max-width: 62rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p { color: var(--faint); }
.wide { overflow-x: auto; }
figure { margin: 0; } figure svg, figure img { width: 100%; height: auto; background: #fff;
  border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; } .text th, .text td { text-align: left; }
"""


def compare_page(found: Comparison, samples: Image | None = None) -> str:
    """Figure, samples and tables; no scripts and no links."""
    numbers = [str(i) for i in range(1, len(found.policies) + 1)]
    listed = [
        (i, p.label, size(p), hidden(p)) for i, p in zip(numbers, found.policies, strict=True)
    ]
    side = found.policies[0].side
    parts = [
        "<h1>Policies compared</h1>",
        _table(["", "policy", "size", f"hides, of {side} x {side} pixels"], listed, text=True),
        "<h2>Cumulative probability of each operation</h2>",
        "<p>How often an image meets an operation, summed over all layers, so it may be above 1. "
        "Each operation's magnitudes are shown on a scale of -5 to 5 that all policies share.</p>",
        f"<figure>{_svg(found)}</figure>",
        _table(["operation", *numbers], _totals(found)),
    ]
    if samples is not None:
        parts.append("<h2>The same images under each policy</h2>")
        parts.append(f'<figure><img alt="samples" src="{_data_url(samples)}"></figure>')
    parts += [
        "<h2>Distances</h2>",
        "<p>0: alike; 1: no operation in common. By use: how often an image meets each operation "
        "in all. By layer: the mean over the layers, without the default augmentation.</p>",
        _table(["policies", "by use", "by layer", "each layer"], _distances(found)),
    ]
    for gate in found.gates:
        title = f"{gate.label}: marks of the published CIFAR policies"
        parts.append(f"<h2>{escape(title)}</h2>")
        rows = [(c.name, "yes" if c.passed else "no", c.found) for c in gate.checks]
        parts.append(_table(["mark", "there", "found"], rows, text=True))
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Policies compared</title><style>{STYLE}</style></head>"
    )
    return f"{head}<body>\n" + "\n".join(parts) + "\n</body></html>\n"


def _svg(found: Comparison) -> str:
    """The figure without what only a file of its own needs."""
    text = figure_bytes(compare_figure(found), "svg").decode()
    return text[text.index("<svg") :]


def _data_url(picture: Image) -> str:
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _totals(found: Comparison) -> Iterable[Sequence[str]]:
    for bars in zip(*(policy.bars for policy in found.policies), strict=True):
        yield (bars[0].operation, *(f"{bar.total:.3f}" if bar.total else "-" for bar in bars))


def _distances(found: Comparison) -> Iterable[Sequence[str]]:
    for pair in found.pairs:
        layers = " ".join(f"{value:.2f}" for value in pair.layers)
        who = f"{pair.first} and {pair.second}"
        yield who, f"{pair.uses:.3f}", f"{pair.distance:.3f}", layers


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, text: bool = False) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = ' class="text"' if text else ""
    return f'<div class="wide"><table{kind}><tr>{top}</tr>{body}</table></div>'
