"""The page: everything known about a policy and its search in one HTML file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from deepaa.policy import Policy
from deepaa.report import figures as draw
from deepaa.report import page_tables as show
from deepaa.report import run_tables as tables
from deepaa.report.accuracy_tables import (
    AccuracyRow,
    Results,
    accuracy_by_depth,
    accuracy_rows,
)
from deepaa.report.chains import likely_chains, top_transformations
from deepaa.report.examples import (
    LayerRow,
    Originals,
    TransformationRow,
    find_originals,
    layer_rows,
    transformation_rows,
)
from deepaa.report.subject import Subject
from deepaa.report.svg import Drawing, inline_svg
from deepaa.report.tables import LayerTable, layer_table
from deepaa.results import ENOUGH

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


class Figures(NamedTuple):
    """All drawings of a report, by the place where they stand."""

    operations: tuple[Drawing, ...] = ()
    magnitudes: tuple[Drawing, ...] = ()
    uncertainty: tuple[Drawing, ...] = ()
    depth: tuple[Drawing, ...] = ()
    steps: tuple[Drawing, ...] = ()
    identity_steps: tuple[Drawing, ...] = ()
    accuracy: tuple[Drawing, ...] = ()

    @property
    def all(self) -> list[Drawing]:
        """Every drawing once."""
        return [drawing for part in self for drawing in part]


class Examples(NamedTuple):
    """Pictures, and where the originals come from."""

    origin: str
    layers: tuple[LayerRow, ...]
    transformations: tuple[TransformationRow, ...]


def make_figures(subject: Subject, results: Results = (), epoch: int = 0) -> Figures:
    """The drawings that the subject has data for."""
    curves, depth = tables.step_curves(subject.records), tables.depth_table(subject.records)
    found = Figures(
        steps=draw.plot_steps(curves),
        identity_steps=draw.plot_identity_steps(curves),
        depth=(draw.plot_depth_mean(depth), draw.plot_depth_deviation(depth)) if depth else (),
        accuracy=_accuracy_figures(results),
    )
    if series := accuracy_by_depth(results):
        found = found._replace(depth=(*found.depth, draw.plot_accuracy_by_depth(series)))
    policy = _shown(subject, epoch)
    if policy is None:
        return found
    return found._replace(
        operations=(draw.plot_operations(_operations(subject, policy, epoch)),),
        magnitudes=tuple(map(draw.plot_magnitudes, tables.magnitude_tables(policy, epoch))),
        uncertainty=draw.plot_uncertainty(
            layer_table(policy, epoch), tables.dropped_layer(subject.records)
        ),
    )


def _operations(subject: Subject, policy: Policy, epoch: int) -> tables.OperationTable:
    return tables.operation_table(policy, subject.in_work, epoch)


def _shown(subject: Subject, epoch: int) -> Policy | None:
    """The layers to draw; None when there are none."""
    policy = subject.policy
    if policy is None or not policy.phase(epoch).stages:
        return None
    depth = sum(stage.depth for stage in policy.phase(epoch).stages)
    return policy.first_layers(min(depth, MOST_LAYERS)) if depth else None


def _accuracy_figures(results: Results) -> tuple[Drawing, ...]:
    """Bars of what can be compared: one figure for each setting."""
    return tuple(
        draw.plot_accuracy(rows)._replace(name=f"accuracy-{i}")
        for i, (_, rows) in enumerate(settings_of(results), start=1)
    )


def settings_of(results: Results) -> list[tuple[str, list[AccuracyRow]]]:
    """Trainings on the same images with the same network for as long, together."""
    rows = sorted(accuracy_rows(results), key=lambda row: row.setting)
    found = []
    for (data, model, epochs, differs), group in groupby(rows, key=lambda row: row.setting):
        time = "1 epoch" if epochs == 1 else f"{epochs} epochs"
        found.append((", ".join(filter(None, (data, model, time, differs))), list(group)))
    return found


def originals_of(subject: Subject, options: Options) -> Originals:
    """The images that the page shows."""
    place = subject.provenance.get("place")
    return find_originals(subject.config, options.images, options.data, options.size, place=place)


def make_examples(
    subject: Subject, options: Options, originals: Originals, count: int
) -> Examples | None:
    """Pictures of the policy at work; None without a policy that does something."""
    policy = _shown(subject, options.epoch)
    if policy is None or count < 1:
        return None
    images, origin = originals.images[:count], originals.origin
    layers = layer_rows(images, policy, options.seed, options.epoch)
    uses = top_transformations(policy, epoch=options.epoch)
    single = transformation_rows(images[:4], policy, uses, options.seed)
    return Examples(origin, layers, single)


def make_page(
    subject: Subject,
    results: Results = (),
    options: Options = DEFAULT,
    originals: Originals | None = None,
    *,
    now: str = "",
) -> str:
    """The whole page; fewer example images where it would grow too large.

    Args:
        originals: What `originals_of` gives, for who makes the page again and again.
        now: When the page is made, in words; by default the present.
    """
    now = now or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    fixed = _context(subject, results, options)
    if originals is None and _shown(subject, options.epoch) is not None:
        originals = originals_of(subject, options)
    for count in (options.images, options.images // 3, 0):
        examples = make_examples(subject, options, originals, count) if originals else None
        page = _render({**fixed, "examples": examples, "now": now})
        if len(page.encode()) < MAX_BYTES:
            return page
    raise ValueError(f"{subject.name}: the page would be larger than {MAX_BYTES:,} bytes")


def _render(context: Mapping[str, Any]) -> str:
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:  # torch brings it, but not for ever
        raise ValueError("the page needs jinja2: pip install 'deepaa[report]'") from None

    def read(name: str) -> str:
        return files("deepaa").joinpath("report", "templates", name).read_text("utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = lambda drawing: Markup(inline_svg(drawing))
    shared = {"style": Markup(read("style.css")), "script": Markup(read("script.js"))}
    return environment.get_template("page.html").render(**shared, **context)


def _context(subject: Subject, results: Results, options: Options) -> dict[str, Any]:
    """What the template needs, but for the pictures."""
    figures = make_figures(subject, results, options.epoch)
    depth = tables.depth_table(subject.records)
    return {
        "subject": subject,
        "title": title_of(subject),
        "status": _STATUS[subject.status],
        "reload": RELOAD_SECONDS if options.live else 0,
        "generator": GENERATOR,
        "figures": figures,
        "has_accuracy_by_depth": any(d.name == "depth-accuracy" for d in figures.depth),
        "depth_table": show.depth(depth) if depth else None,
        "stop": tables.stop_text(subject) if subject.status != "policy" else "",
        "costs": show.costs(tables.cost_table(subject.records)),
        "hardware": _hardware(subject.provenance),
        "has_dropped": tables.dropped_layer(subject.records) is not None,
        "memory": tables.peak_memory(subject.records),
        "accuracy": [
            {"setting": setting, "figure": figure, "table": show.accuracy(rows)}
            for (setting, rows), figure in zip(settings_of(results), figures.accuracy, strict=True)
        ],
        "few_seeds": any(len(seeds) < ENOUGH for seeds, _ in results),
        "verify": show.verify(subject.verify),
        "code": _code(subject),
        "facts": list(_facts(subject)),
        "settings": json.dumps(subject.config, indent=1) if subject.config else "",
        **_policy_context(subject, options.epoch),
    }


_STATUS = {
    "policy": "policy without a run",
    "finished": "search finished",
    "running": "search running",
    "stopped": "search not finished",
}


def _policy_context(subject: Subject, epoch: int) -> dict[str, Any]:
    """What the policy alone says; its parts are None where there is no layer."""
    policy = _shown(subject, epoch)
    if policy is None:
        names = ("sentences", "families", "summary", "layer_table", "use_table", "chain_table")
        return {**dict.fromkeys(names), "note": _nothing(subject)}
    layers = layer_table(policy, epoch, top=len(policy.table.operations))
    operations = _operations(subject, policy, epoch)
    return {
        "sentences": tables.sentences(policy, subject.in_work, epoch),
        "families": list(dict.fromkeys(row.family for row in operations.rows)),
        "summary": _summary(layers),
        "layer_table": show.layers(layers),
        "use_table": show.uses(operations),
        "chain_table": show.chains(likely_chains(policy, 10, epoch)),
        "note": _note(subject, policy, epoch),
    }


def _nothing(subject: Subject) -> str:
    if subject.problem:
        return f"The policy cannot be shown: {subject.problem}"
    if subject.policy is None:
        return "No layer is found yet: the network is still being trained."
    return "The policy has no layers: images stay as they are."


def _note(subject: Subject, policy: Policy, epoch: int) -> str:
    whole = subject.policy
    assert whole is not None
    notes = []
    if subject.in_work is not None:
        notes.append(f"Layer {subject.in_work} is still in work, as of the last checkpoint.")
    if len(whole.phases) > 1:
        starts = ", ".join(str(phase.epoch) for phase in whole.phases)
        notes.append(f"The policy changes over time; this is epoch {epoch} (phases: {starts}).")
    if whole.depth > policy.depth:
        notes.append(f"The first {policy.depth} of {whole.depth} layers.")
    return " ".join(notes)


def _summary(layers: Sequence[LayerTable]) -> list[tuple[str, str]]:
    """A few numbers that describe the whole."""
    changes = sum(1 - layer.identity for layer in layers)
    untouched = 1.0
    for layer in layers:
        untouched *= layer.identity
    return [
        (f"{len(layers)}", "layer" if len(layers) == 1 else "layers"),
        (f"{changes:.1f}", "operations on an image, on average"),
        (show.percent(untouched), "of images stay as they are"),
    ]


def title_of(subject: Subject) -> str:
    """The name to show: of the folder or file, without the way to it."""
    name = Path(subject.name).resolve().name if subject.folder else Path(subject.name).name
    data = subject.provenance.get("data")
    return f"{name}, found on {data}" if data else name


def _hardware(provenance: Mapping[str, Any]) -> str:
    starts = provenance.get("starts") or [{}]
    last = starts[-1]
    device, names = str(provenance.get("device", "")), list(last.get("devices", []))
    used = [n for n in names if n.startswith(device)] or names
    return ", ".join([*used, *([last["processor"]] if last.get("processor") else [])])


def _code(subject: Subject) -> str:
    name = f"{subject.folder}/policy.json" if subject.folder else subject.name
    own = subject.config.get("source", {}).get("operations")
    imports = "from deepaa.own_operations import import_operations\n" if own else ""
    given = f", operations=import_operations({own!r})" if own else ""
    return (
        f"from deepaa import DeepAutoAugment\n{imports}\n"
        f"augment = DeepAutoAugment({name!r}{given})\n"
        "images = augment(images)  # PIL, numpy, or uint8 (N, C, H, W) on CPU or CUDA\n"
    )


def _facts(subject: Subject) -> Iterable[tuple[str, str]]:
    """Where the policy comes from, line by line."""
    if subject.policy is not None:
        yield from sorted(subject.policy.info.items())
    known = subject.provenance
    for key in ("data", "fingerprint"):
        if key in known:
            yield ("images" if key == "data" else "checksum of the images"), str(known[key])
    starts = known.get("starts") or []
    yield from map(partial(_start, count=len(starts)), range(1, len(starts) + 1), starts)
    if starts:
        versions = (f"{n} {v}" for n, v in starts[-1].get("versions", {}).items() if v)
        yield "versions", ", ".join(versions)
        yield "system", str(starts[-1].get("system", ""))
        code = starts[-1].get("code")
        if code:
            changed = ", with changes" if code.get("changed") else ""
            yield "code", f"commit {code.get('commit')}{changed}"


def _start(number: int, start: Mapping[str, Any], count: int) -> tuple[str, str]:
    name = "started" if count == 1 else f"start {number} of {count}"
    command = " ".join(map(str, start.get("command", [])[1:]))
    return name, f"{start.get('started', '?')}: deepaa {command}"
