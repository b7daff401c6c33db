"""Pages: everything known about a policy and its search, or a comparison, in one HTML file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from PIL.Image import Image

from deepaa.policy import Policy
from deepaa.report import figures as draw, pictures, policy_tables as policies, run_tables as runs
from deepaa.report.comparison import Comparison, plot_comparison
from deepaa.report.drawing import PALETTE, Drawing, inline_svg
from deepaa.report.pictures import Originals
from deepaa.report.run_tables import Results, Subject
from deepaa.train import ENOUGH

MAX_BYTES = 5_000_000
MOST_LAYERS = 40
"""Layers that are drawn; a policy may have a thousand."""
RELOAD_SECONDS = 5
GENERATOR = "deepaa report"


class Options(NamedTuple):
    """What the reader may choose."""

    data: Path | None = None
    """Images to show instead of the run's."""
    size: int | None = None
    images: int = 6
    seed: int = 0
    epoch: int = 0
    live: bool = False
    """Whether the page reloads itself."""


DEFAULT = Options()


def make_figures(subject: Subject, results: Results = (), epoch: int = 0) -> list[Drawing]:
    """The drawings that the subject has data for."""
    parts: dict[str, Sequence[Drawing]] = _tables(subject, results, epoch)["figures"]
    return [drawing for part in parts.values() for drawing in part]


def _tables(subject: Subject, results: Results, epoch: int) -> dict[str, Any]:
    """The tables that a report shows, and its figures by the part of the page where they stand."""
    records, policy = subject.records, _shown_layers(subject, epoch)
    depth, steps, dropped = (
        runs.depth_table(records),
        runs.step_table(records),
        runs.dropped_layer(records),
    )
    accuracy, series = runs.accuracy_by_setting(results), runs.accuracy_by_depth(results)
    tables: dict[str, Any] = {
        "policy": policy,
        "depth": depth,
        "dropped": dropped,
        "accuracy": accuracy,
    }
    figures: dict[str, Sequence[Drawing]] = {}
    if policy is not None:
        layers = policies.layer_table(policy, epoch, top=None)
        operations = policies.operation_table(policy, epoch)
        tables |= {"layers": layers, "operations": operations}
        figures["operations"] = [draw.plot_operations(operations, subject.unfinished)]
        figures["magnitudes"] = [draw.plot_magnitudes(row) for row in operations if row.is_spread]
        figures["uncertainty"] = draw.plot_uncertainty(layers, dropped)
    by_depth = [draw.plot_accuracy_by_depth(series)] if series else []
    figures["depth"] = [*(draw.plot_depth(depth) if depth else ()), *by_depth]
    figures["steps"] = draw.plot_steps(steps, "similarity")
    figures["identity_steps"] = draw.plot_steps(steps, "identity")
    figures["accuracy"] = [
        draw.plot_accuracy(rows)._replace(name=f"accuracy-{i}")
        for i, rows in enumerate(accuracy.values(), start=1)
    ]
    return tables | {"figures": figures}


def _shown_layers(subject: Subject, epoch: int) -> Policy | None:
    """The policy of the layers that are drawn; None when there are none."""
    if subject.policy is None:
        return None
    depth = subject.policy.phase(epoch).depth
    return subject.policy.first_layers(min(depth, MOST_LAYERS)) if depth else None


def originals_of(subject: Subject, options: Options) -> Originals:
    """The images that the page shows."""
    return pictures.find_originals(subject.config, options.images, options.data, options.size)


def make_page(
    subject: Subject,
    results: Results = (),
    options: Options = DEFAULT,
    originals: Originals | None = None,
    *,
    now: str = "",
) -> str:
    """The page of a report; fewer example images where it would grow too large.

    Args:
        originals: What `originals_of` gives, for callers that make the page again and again.
        now: When the page is made, in words; by default the present.
    """
    context = _context(subject, results, options)
    policy: Policy | None = context["policy"]
    if policy is not None and originals is None:
        originals = originals_of(subject, options)
    for count in (options.images, options.images // 3, 0):
        examples = None
        if policy is not None and originals is not None and count:
            images, how = originals.images[:count], (policy, options.seed, options.epoch)
            examples = {
                "origin": originals.origin,
                "layers": pictures.layer_rows(images, *how),
                "transformations": pictures.transformation_rows(images[:4], *how),
            }
        page = _render("report.html", {**context, "examples": examples}, now)
        if len(page.encode()) < MAX_BYTES:
            return page
    raise ValueError(f"{subject.name}: the page would be larger than {MAX_BYTES:,} bytes")


def comparison_page(found: Comparison, samples: Image | None = None) -> str:
    """The page of a comparison: figure, samples and tables."""
    picture = pictures.picture_url(samples) if samples is not None else ""
    context = {"found": found, "figure": plot_comparison(found), "samples": picture}
    return _render("comparison.html", context, "")


def _render(template: str, context: Mapping[str, Any], now: str) -> str:
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:  # torch brings it, but not for ever
        raise ValueError("the page needs jinja2: pip install 'deepaa[report]'") from None

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("deepaa.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = lambda drawing: Markup(inline_svg(drawing))
    environment.filters["json"] = lambda value: json.dumps(value, indent=1)
    environment.filters["percent"] = policies.percent
    now = now or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template(template).render(context, palette=PALETTE, now=now)


def _context(subject: Subject, results: Results, options: Options) -> dict[str, Any]:
    """What the template of a report needs, but for the pictures."""
    context = _tables(subject, results, options.epoch) | {
        "generator": GENERATOR,
        "subject": subject,
        "title": _title(subject),
        "reload": RELOAD_SECONDS if options.live else 0,
        "stop": runs.stop_text(subject) if subject.status != "policy" else "",
        "costs": runs.cost_table(subject.records),
        "hardware": _hardware(subject.provenance),
        "memory": runs.peak_memory(subject.records),
        "few_seeds": any(len(seeds) < ENOUGH for seeds, _ in results),
        "epoch": options.epoch,
    }
    if context["policy"] is not None:
        policy, layers = context["policy"], context["layers"]
        context["sentences"] = policies.layer_sentences(layers, subject.unfinished)
        context["sequences"] = policies.likely_sequences(policy, 10, options.epoch)
        context["untouched"] = math.prod(layer.identity for layer in layers)
    return context


def _title(subject: Subject) -> str:
    """The name of the folder or file, and what the policy was found on."""
    name = Path(subject.name).resolve().name if subject.folder else Path(subject.name).name
    data = subject.provenance.get("data")
    return f"{name}, found on {data}" if data else name


def _hardware(provenance: Mapping[str, Any]) -> str:
    last = (provenance.get("starts") or [{}])[-1]
    device, names = str(provenance.get("device", "")), list(last.get("devices", []))
    used = [name for name in names if name.startswith(device)] or names
    return ", ".join(filter(None, [*used, last.get("processor")]))
