"""Searches and trainings as tables of numbers and short texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from deepaa.files import plural
from deepaa.policy import PolicyRef, parse_policy_ref
from deepaa.report.contest import progress_text
from deepaa.report.policy_tables import LayerTable
from deepaa.report.subject import CONTEST_KIND, Subject
from deepaa.search import TRAINING_COST
from deepaa.train import SeedResult, summary

Record = Mapping[str, Any]
"""A line of a run's history."""
HOW = ("epochs", "channels_last", "compile", "tune", "graph")
"""Settings of a training that say how it is computed, or that stand elsewhere."""
BEST_TRIALS = 20
"""Trials of a search that a page lists."""
DEFAULTS = {True: ", defaults on", False: ", defaults off", None: ""}
"""What was said of the default augmentation; None leaves it to the policy."""


# The history of a search


def step_table(records: Iterable[Record]) -> dict[int, list[Record]]:
    """The steps of each layer; one that was repeated counts as it was last.

    `similarity` is the mean cosine between the gradients of augmented images and of others of their
    class, `identity` the probability of identity.
    """
    layers: dict[int, dict[int, Record]] = {}
    for record in records:
        if record.get("kind") == "step":
            layers.setdefault(record["layer"], {})[record["step"]] = record
    return {layer: [rows[i] for i in sorted(rows)] for layer, rows in sorted(layers.items())}


def depth_table(records: Iterable[Record]) -> list[Record]:
    """The finished layers, measured on held-out images together with all layers before them.

    `improvement_mean` is how much the cosine is above that of images that are not augmented,
    `improvement_std` its deviation over images; `deepta_mean` and `deepta_std` are those of DeepTA
    of the same depth.
    """
    rows = {record["layer"]: record for record in records if record.get("kind") == "layer"}
    return [rows[layer] for layer in sorted(rows)]


def method_name(subject: Subject) -> str | None:
    """The search method of a run; None for gradient matching, or where it is not told."""
    entry = subject.config.get("method")
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) else None


def trial_table(records: Iterable[Record]) -> list[Record]:
    """The units of another method; one that was repeated counts as it was last."""
    units = {record["index"]: record for record in records if record.get("kind") == "trial"}
    return [units[index] for index in sorted(units)]


def best_trials(records: Iterable[Record]) -> list[Record]:
    """Those of them with the highest scores, the best first."""
    scored = [record for record in trial_table(records) if record["score"] is not None]
    return sorted(scored, key=lambda record: -record["score"])[:BEST_TRIALS]


def dropped_layer(records: Sequence[Record]) -> LayerTable | None:
    """The layer that ended the search, without its operations, if it was dropped."""
    last = next((r for r in reversed(records) if r.get("kind") == "layer"), None)
    if last is None or last["kept"] or last.get("perplexity") is None:
        return None
    layer, perplexity = last["layer"], last["perplexity"]
    return LayerTable(layer, math.log2(perplexity), perplexity, last["identity"], (), 0, 0.0)


def stop_text(subject: Subject) -> str:
    """Where the run is, and why the search ended if it did."""
    layers, search = depth_table(subject.records), subject.config.get("search", {})
    contest = subject.contest
    method, trials = method_name(subject), trial_table(subject.records)
    ended = _end_text(search, layers[-1] if layers else None)
    if method is not None:
        ended = f"The search with the method {method} has ended."
    if is_bare_contest(subject):
        ended = "Nothing was searched: the contest is among policies that were there before."
    if subject.status == "finished":
        return ended
    if subject.status == "contest running":
        return f"{ended} The contest goes on{f': {progress_text(contest)}' if contest else '.'}"
    steps = [r for r in subject.records if r.get("kind") == "step"]
    epochs = sum(r.get("kind") == "epoch" for r in subject.records)
    place = f"pre-training, {plural(epochs, 'epoch')} done"
    if steps:
        last = steps[-1]
        place = f"layer {last['layer']}, step {last['step']} of at most {search.get('steps')}"
    elif method is not None:
        place = f"{method}, " + ("nothing done" if not trials else _trial_place(trials[-1]))
    if subject.status == "running":
        return f"The search is running: {place}."
    again = f"Go on {go_on_text(subject)}"
    if subject.status == "contest stopped":
        return f"{ended} The contest was stopped. {again}"
    return f"The search was stopped at {place}. {again}"


def _trial_place(last: Record) -> str:
    return f"{last['index']:,} of {last['of']:,} units done"


def is_bare_contest(subject: Subject) -> bool:
    """Whether a run compares policies without a search before that."""
    found = subject.contest and any(each.kind == "found" for each in subject.contest.candidates)
    has_layers = any(record.get("kind") in ("layer", "trial") for record in subject.records)
    return subject.config.get("kind") == CONTEST_KIND or (
        subject.contest is not None and not found and not has_layers
    )


def go_on_text(subject: Subject) -> str:
    """How a run that was stopped goes on, after the words "Go on"."""
    if subject.config.get("source", {}).get("from_python"):
        is_own = subject.config.get("kind") == CONTEST_KIND
        return f"by calling {'hold_contest' if is_own else 'find_policy'} again."
    if subject.config.get("kind") == "contest":
        return "with the command that began it"
    return f"with: deepaa search --resume {subject.name}"


def _end_text(search: Mapping[str, Any], last: Record | None) -> str:
    if last is None:
        return "The search has ended; its history is missing, so the reason is not known."
    layer, reason = last["layer"], last["reason"]
    if not last["kept"]:
        return f"The search stopped because layer {layer} was dropped: {reason}."
    if search.get("layers") is not None:
        layers = "one layer that was" if layer == 1 else f"{layer} layers that were"
        return f"The search stopped after the {layers} asked for."
    return (
        f"The search stopped at its limit of {plural(layer, 'layer')} (max_layers), and the last "
        f"one still helped: {reason}."
    )


def cost_table(records: Sequence[Record]) -> list[tuple[str, int, int, float]]:
    """Parts of the search, and all at the end: name, steps or epochs, passes, seconds.

    A pass is one image through the network; those of another method, and those of class protection
    there, are passes forward, or what costs as much. Empty without records.
    """
    epochs = [r for r in records if r.get("kind") == "epoch"]
    rows, before = [], 0
    if epochs:
        images, seconds = sum(r["images"] for r in epochs), math.fsum(r["seconds"] for r in epochs)
        rows.append(("pre-training", len(epochs), images, seconds))
    if protections := [r for r in records if r.get("kind") == "protection"]:
        is_other = any(r.get("kind") == "trial" for r in records)
        forward = protections[-1].get("passes", 0)
        passes = forward if is_other else round(forward / TRAINING_COST)
        rows.append(("class protection", 0, passes, protections[-1]["seconds"]))
    searched = (r for r in records if r.get("kind") in ("step", "layer"))
    for layer, group in groupby(searched, key=lambda r: r["layer"]):
        part = list(group)
        steps = sum(r["kind"] == "step" for r in part)
        passes, before = part[-1]["passes"] - before, part[-1]["passes"]
        rows.append((f"layer {layer}", steps, passes, math.fsum(r["seconds"] for r in part)))
    if trials := trial_table(records):
        seconds = math.fsum(record["seconds"] for record in trials)
        rows.append(("search", len(trials), trials[-1]["passes"], seconds))
    if rows:
        passes = sum(row[2] for row in rows)
        rows.append(("all", 0, passes, math.fsum(row[3] for row in rows)))
    return rows


def peak_memory(records: Iterable[Record]) -> float | None:
    """Most GB of the GPU that a search had in use; None where nobody looked."""
    layers = (r for r in records if r.get("kind") == "layer")
    return max((r["memory"] for r in layers if r.get("memory") is not None), default=None)


# Trainings


class AccuracyRow(NamedTuple):
    """What several seeds of one training reached."""

    method: str
    layers: int
    data: str
    model: str
    epochs: int
    seeds: int
    mean: float
    half_width: float | None
    """Of the 95 % confidence interval of the mean; None for one seed."""
    differs: str = ""
    """Settings in which trainings that look alike differ: `weight_decay 0.001`."""

    @property
    def setting(self) -> tuple[str, str, int, str]:
        """Only rows with equal settings can be compared."""
        return (self.data, self.model, self.epochs, self.differs)


Results = Sequence[tuple[Sequence[SeedResult], Mapping[str, Any]]]
"""The seeds of each results.json, and all that it says."""


def accuracy_rows(results: Results) -> tuple[AccuracyRow, ...]:
    """A row for each training; those that look alike say in which settings they differ."""
    trainings = [(accuracy_row(*result), _settings(result[1])) for result in results]
    found = []
    for row, own in trainings:
        alike = [settings for other, settings in trainings if other.setting == row.setting]
        names = dict.fromkeys(name for settings in alike for name in settings)
        differs = [n for n in names if any(s.get(n) != own.get(n) for s in alike)]
        found.append(row._replace(differs=", ".join(f"{n} {own.get(n, '?')}" for n in differs)))
    return tuple(found)


def _settings(facts: Mapping[str, Any]) -> dict[str, str]:
    """What a training was done with, but for its policy, as short texts."""
    found = {n: str(v) for n, v in facts.get("train", {}).items() if n not in HOW}
    images = facts.get("images", {})
    found |= {n: str(v) for n, v in images.items() if n not in ("data", "classes")}
    return {n: v[:8] if n.endswith("fingerprint") else v for n, v in found.items()}


def accuracy_row(seeds: Sequence[SeedResult], facts: Mapping[str, Any]) -> AccuracyRow:
    """The row of one results.json."""
    policy = facts.get("policy", {})
    found = summary([result.accuracy for result in seeds])
    label, first = _ref(policy).label, policy.get("first_layers")
    return AccuracyRow(
        method=label + (f", first {first}" if first else "") + DEFAULTS[policy.get("defaults")],
        layers=policy.get("layers", 0),
        data=facts.get("images", {}).get("data", "?"),
        model=facts.get("model", "?"),
        epochs=seeds[0].epochs,
        seeds=found.seeds,
        mean=found.mean,
        half_width=found.half_width,
    )


def _ref(policy: Mapping[str, Any]) -> PolicyRef:
    return parse_policy_ref(str(policy.get("name") or "none"))


def accuracy_by_setting(results: Results) -> dict[str, list[AccuracyRow]]:
    """Trainings on the same images with the same network for as long, together; the best first."""
    found: dict[str, list[AccuracyRow]] = {}
    for row in sorted(accuracy_rows(results), key=lambda row: (row.setting, -row.mean)):
        parts = (row.data, row.model, plural(row.epochs, "epoch"), row.differs)
        found.setdefault(", ".join(filter(None, parts)), []).append(row)
    return found


def accuracy_by_depth(results: Results) -> list[tuple[str, list[AccuracyRow]]]:
    """Methods that were trained with two depths or more, in one setting each, by rising depth.

    Depths are those of --first-layers, of deepta:N and of whole policies that run alone.
    """
    groups: dict[tuple[Any, ...], dict[int, AccuracyRow]] = {}
    for row, (_, facts) in zip(accuracy_rows(results), results, strict=True):
        family, depth = _family_and_depth(facts.get("policy", {}))
        if depth is not None:
            rows = groups.setdefault((family, *row.setting), {})
            if depth not in rows or row.seeds > rows[depth].seeds:
                rows[depth] = row._replace(layers=depth)
    several = {key: rows for key, rows in groups.items() if len(rows) > 1}
    is_one_setting = len({key[1:] for key in several}) == 1
    return [
        (
            family if is_one_setting else ", ".join(filter(None, (family, data, model, differs))),
            [rows[depth] for depth in sorted(rows)],
        )
        for (family, data, model, _, differs), rows in several.items()
    ]


def _family_and_depth(policy: Mapping[str, Any]) -> tuple[str, int | None]:
    """What policies that differ in their depth alone have in common, and the layers of this one.

    None where the number of layers may have the default augmentation in it.
    """
    ref = _ref(policy)
    layers = ref.arguments.get("layers")
    family = (ref.label if layers is None else str(ref.name)) + DEFAULTS[policy.get("defaults")]
    given = policy.get("first_layers") or layers
    if given is not None:
        return family, int(given)
    return family, None if policy.get("defaults") else policy.get("layers", 0)
