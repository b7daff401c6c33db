"""Pages: everything known about a policy and its search, or a comparison, in one HTML file."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from PIL.Image import Image

from deepaa.files import plural
from deepaa.policy import Policy, likely_sequences, own_advice
from deepaa.report import (
    classes as by_class,
    contest as contests,
    figures as draw,
    pictures,
    policy_tables as policies,
    run_tables as runs,
    strengths,
)
from deepaa.report.classes import FoundClasses
from deepaa.report.comparison import Comparison, plot_comparison
from deepaa.report.dots import accuracy_text, plot_accuracy, plot_contest
from deepaa.report.drawing import PALETTE, Drawing, inline_svg
from deepaa.report.pictures import Originals
from deepaa.report.run_tables import Results
from deepaa.report.subject import Subject
from deepaa.runs import POLICY
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
    classes: Sequence[str] = ()
    """Names of the classes to show, instead of some that are spread evenly."""
    columns: str | None = None
    """Which columns of the data hold what, as `DataSpec.columns`."""


DEFAULT = Options()


class PolicyPart(NamedTuple):
    """What the page tells about one policy, in a tab of its own."""

    id: str
    tab: str
    policy: Policy | None
    shown: Policy | None
    """The layers that are drawn; None when there are none."""
    layers: Sequence[policies.LayerTable] = ()
    operations: Sequence[policies.OperationRow] = ()
    sentences: Sequence[tuple[str, str]] = ()
    figures: Mapping[str, Sequence[Drawing]] = {}
    unfinished: int | None = None
    dropped: policies.LayerTable | None = None

    @property
    def untouched(self) -> float:
        """The share of images that stay as they are."""
        return math.prod(layer.identity for layer in self.layers)

    @property
    def is_idle(self) -> bool:
        """Whether the policy leaves every image as it is."""
        return self.policy is not None and self.untouched == 1


def make_figures(subject: Subject, results: Results = (), epoch: int = 0) -> list[Drawing]:
    """The drawings that the subject has data for."""
    tables = _tables(subject, results, epoch)
    parts = [tables["figures"], *(part.figures for part in tables["parts"])]
    return [drawing for part in parts for drawings in part.values() for drawing in drawings]


def _tables(subject: Subject, results: Results, epoch: int) -> dict[str, Any]:
    """The tables that a report shows, and its figures by the part of the page where they stand."""
    records = subject.records
    depth, steps = runs.depth_table(records), runs.step_table(records)
    accuracy, series = runs.accuracy_by_setting(results), runs.accuracy_by_depth(results)
    contest = plot_contest(subject.contest) if subject.contest else None
    by_depth = [draw.plot_accuracy_by_depth(series)] if series else []
    figures: dict[str, Sequence[Drawing]] = {
        "contest": [contest] if contest else [],
        "depth": [*(draw.plot_depth(depth) if depth else ()), *by_depth],
        "steps": draw.plot_steps(steps, "similarity"),
        "identity_steps": draw.plot_steps(steps, "identity"),
        "accuracy": [
            plot_accuracy(rows)._replace(name=f"accuracy-{i}")
            for i, rows in enumerate(accuracy.values(), start=1)
        ],
    }
    parts = _policy_parts(subject, epoch)
    return {"depth": depth, "accuracy": accuracy, "parts": parts, "figures": figures}


def _policy_parts(subject: Subject, epoch: int) -> list[PolicyPart]:
    """The run's policy, and behind it what the search found if that is another."""
    dropped = None if "found" in subject.lost else runs.dropped_layer(subject.records)
    if subject.found is None:
        first = PolicyPart("policy", "Policy", subject.policy, None)
        first = first._replace(unfinished=subject.unfinished, dropped=dropped)
        return [_won(_filled(first, epoch), subject)]
    found = _filled(PolicyPart("found", "Found", subject.found, None, dropped=dropped), epoch)
    names = {
        key: [each._replace(name=f"found-{each.name}") for each in drawings]
        for key, drawings in found.figures.items()
    }
    winner = _filled(PolicyPart("policy", "Winner", subject.policy, None), epoch)
    return [_won(winner, subject), found._replace(figures=names)]


def _won(part: PolicyPart, subject: Subject) -> PolicyPart:
    """The part of a winner: figures of no augmentation would say nothing."""
    return part._replace(shown=None, figures={}) if subject.contest and part.is_idle else part


def _filled(part: PolicyPart, epoch: int) -> PolicyPart:
    """The part with its tables and figures, if its policy has layers."""
    depth = part.policy.phase(epoch).depth if part.policy is not None else 0
    if part.policy is None or not depth:
        return part
    shown = part.policy.first_layers(min(depth, MOST_LAYERS))
    layers = policies.layer_table(shown, epoch, top=None)
    operations = policies.operation_table(shown, epoch)
    figures: dict[str, Sequence[Drawing]] = {
        "operations": [draw.plot_operations(operations, part.unfinished)],
        "magnitudes": [draw.plot_magnitudes(row) for row in operations if row.is_spread],
        "uncertainty": draw.plot_uncertainty(layers, part.dropped),
    }
    sentences = policies.layer_sentences(layers, part.unfinished)
    return part._replace(
        shown=shown, layers=layers, operations=operations, sentences=sentences, figures=figures
    )


def originals_of(subject: Subject, options: Options) -> Originals:
    """The images that the page shows."""
    return pictures.find_originals(
        subject.config_of_images, options.images, options.data, options.size, options.columns
    )


def classes_of(subject: Subject, options: Options) -> FoundClasses:
    """The images that the page shows of each class."""
    return by_class.find_classes(
        subject.config_of_images, options.data, options.size, options.classes, options.columns
    )


def draws_images(subject: Subject, options: Options) -> bool:
    """Whether the page shows what a policy does to images: not for one that leaves all as is."""
    return any(part.shown is not None for part in _policy_parts(subject, options.epoch))


def make_page(
    subject: Subject,
    results: Results = (),
    options: Options = DEFAULT,
    originals: Originals | None = None,
    *,
    classes: FoundClasses | None = None,
    now: str = "",
) -> str:
    """The page of a report; fewer example images where it would grow too large.

    Args:
        originals: What `originals_of` gives, for callers that make the page again and again.
        classes: The same of `classes_of`; with originals alone, no class is shown.
        now: When the page is made, in words; by default the present.
    """
    context = _context(subject, results, options)
    policy: Policy | None = context["exemplified"].shown
    by_classes = None
    if policy is not None and originals is None:
        originals = originals_of(subject, options)
        classes = classes or classes_of(subject, options)
    how = (options.seed, options.epoch)
    if policy is not None and classes is not None:
        by_classes = by_class.class_examples(classes, policy, *how)
        context["class_note"] = classes.note
    for count in (options.images, options.images // 3, 0):
        examples = None
        if policy is not None and originals is not None and count:
            images = originals.images[:count]
            examples = {
                "origin": originals.origin,
                "strengths": strengths.strength_examples(images, policy, *how),
                "layers": pictures.layer_rows(images, policy, *how),
                "transformations": pictures.transformation_rows(images[:4], policy, *how),
                "classes": by_classes,
            }
        page = _render("report.html", {**context, "examples": examples}, now)
        if len(page.encode()) < MAX_BYTES:
            return page
    raise ValueError(f"{subject.name}: the page would be larger than {MAX_BYTES:,} bytes")


def comparison_page(found: Comparison, samples: Image | None = None, origin: str = "") -> str:
    """The page of a comparison: figure, samples with where their images are from, and tables."""
    picture = pictures.picture_url(samples) if samples is not None else ""
    context = {
        "found": found,
        "figure": plot_comparison(found),
        "samples": picture,
        "origin": origin,
    }
    return _render("comparison.html", context, "")


def check_pages() -> None:
    """Raise ValueError unless pages can be written here."""
    try:
        import jinja2  # noqa: F401
    except ImportError:  # torch brings it, but not for ever
        raise ValueError("pages need jinja2: pip install 'deepaa[report]'") from None


def _render(template: str, context: Mapping[str, Any], now: str) -> str:
    check_pages()
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("deepaa.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = inline_svg
    environment.filters["json"] = lambda value: json.dumps(value, indent=1)
    environment.filters["percent"] = policies.percent
    environment.filters["plural"] = plural
    environment.filters["accuracy"] = accuracy_text
    environment.filters["points"] = contests.points_text
    environment.filters["interval"] = contests.interval_text
    environment.filters["whole"] = _unbroken
    now = now or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template(template).render(context, palette=PALETTE, now=now)


def _unbroken(text: str) -> str:
    """The text with spaces that do not break a line inside of short brackets and before %."""
    hold = re.compile(r"\([^()]{1,30}\)| %")
    return hold.sub(lambda found: found[0].replace(" ", "\u00a0"), text)


def _context(subject: Subject, results: Results, options: Options) -> dict[str, Any]:
    """What the template of a report needs, but for the pictures."""
    tables = _tables(subject, results, options.epoch)
    parts: list[PolicyPart] = tables["parts"]
    exemplified = next((part for part in parts if part.shown is not None), parts[0])
    context = tables | {
        "generator": GENERATOR,
        "own_advice": own_advice,
        "coins": policies.COINS,
        "tabs": _tabs(subject, parts),
        "headline": contest_headline(subject),
        "exemplified": exemplified,
        "subject": subject,
        "title": _title(subject),
        "reload": RELOAD_SECONDS if options.live else 0,
        "contest": subject.contest,
        "contest_command": _contest_command(subject),
        "go_on": runs.go_on_text(subject),
        "judged": contests.judge_text(subject.contest) if subject.contest else "",
        "absent": contests.absent_texts(subject.contest) if subject.contest else [],
        "protected": contests.protected_texts(subject.contest) if subject.contest else [],
        "untestable": contests.untestable_text(subject.contest) if subject.contest else "",
        "stop": runs.stop_text(subject) if subject.status != "policy" else "",
        "costs": runs.cost_table(subject.records),
        "method": runs.method_name(subject),
        "trials": runs.best_trials(subject.records),
        "hardware": _hardware(subject.provenance),
        "memory": runs.peak_memory(subject.records),
        "few_seeds": any(len(seeds) < ENOUGH for seeds, _ in results),
        "epoch": options.epoch,
        "class_note": "",
    }
    if exemplified.shown is not None:
        context["sequences"] = likely_sequences(exemplified.shown, 10, options.epoch)
    return context


def _tabs(subject: Subject, parts: Sequence[PolicyPart]) -> list[tuple[str, str]]:
    """Identifiers and names; a contest comes first, once the search before it has ended."""
    has_contest = subject.status not in ("policy", "running", "stopped")
    tabs = [("contest", "Contest")] if has_contest else []
    tabs += [(part.id, part.tab) for part in parts]
    tabs += [] if runs.is_bare_contest(subject) else [("search", "Search")]
    return [*tabs, ("examples", "Examples"), ("accuracy", "Accuracy"), ("use", "Use")]


def contest_headline(subject: Subject) -> str:
    """What a contest says, or how far it is."""
    contest = subject.contest
    if subject.status == "finished":
        return contest.sentence if contest else "Nothing was proved."
    stands = "was stopped" if subject.status == "contest stopped" else "goes on"
    return f"The contest {stands}{f': {contests.progress_text(contest)}' if contest else '.'}"


def _contest_command(subject: Subject) -> str:
    """What to type for a contest of the run's policy."""
    spec = subject.config.get("source", {}).get("data") or {"data": "DATA"}  # given by Python code
    data = f"--data {shlex.quote(str(spec['data']))} " if spec.get("data") else ""
    return f"deepaa contest {data}--policy {shlex.quote(f'{subject.folder}/{POLICY}')}"


def _title(subject: Subject) -> str:
    """The name of the folder or file, and what the policy was found on."""
    name = Path(subject.name).resolve().name if subject.folder else Path(subject.name).name
    data = subject.provenance.get("data")
    how = "chosen" if subject.contest and subject.status == "finished" else "found"
    return f"{name}, {how} on {data}" if data else name


def _hardware(provenance: Mapping[str, Any]) -> str:
    last = (provenance.get("starts") or [{}])[-1]
    device, names = str(provenance.get("device", "")), list(last.get("devices", []))
    used = [name for name in names if name.startswith(device)] or names
    return ", ".join(filter(None, [*used, last.get("processor")]))
