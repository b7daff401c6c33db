"""The history of a search as tables of numbers and short texts. Nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from deepaa.report.load import Subject


class StepCurve(NamedTuple):
    """A layer's steps."""

    layer: int
    steps: tuple[int, ...]
    similarity: tuple[float, ...]
    """Mean cosine between the gradients of augmented images and of others of their class."""
    identity: tuple[float, ...]


def step_curves(records: Iterable[Mapping[str, Any]]) -> tuple[StepCurve, ...]:
    """The course of each layer; a step that was repeated counts as it was last."""
    layers: dict[int, dict[int, Mapping[str, Any]]] = {}
    for record in records:
        if record.get("kind") == "step":
            layers.setdefault(record["layer"], {})[record["step"]] = record
    curves = []
    for layer, steps in sorted(layers.items()):
        rows = [steps[step] for step in sorted(steps)]
        columns = [tuple(r[name] for r in rows) for name in ("step", "similarity", "identity")]
        curves.append(StepCurve(layer, *columns))
    return tuple(curves)


class DepthRow(NamedTuple):
    """A finished layer, measured on held-out images, with all layers before it."""

    layer: int
    kept: bool
    reason: str
    mean: float
    """Of the improvement of the cosine over images that are not augmented."""
    deviation: float
    """Over images."""
    deepta_mean: float
    deepta_deviation: float


def depth_table(records: Iterable[Mapping[str, Any]]) -> tuple[DepthRow, ...]:
    """The finished layers, the found policy beside DeepTA of the same depth."""
    names = [*DepthRow._fields[:3], "improvement_mean", "improvement_std"]
    names += ["deepta_mean", "deepta_std"]
    rows = {r["layer"]: r for r in records if r.get("kind") == "layer"}
    return tuple(DepthRow(*(rows[layer][n] for n in names)) for layer in sorted(rows))


class DroppedLayer(NamedTuple):
    """How a layer ended that is not part of the policy."""

    layer: int
    entropy: float
    """Of its transformations, in bits."""
    identity: float


def dropped_layer(records: Sequence[Mapping[str, Any]]) -> DroppedLayer | None:
    """The layer that ended the search, if it was dropped."""
    last = next((r for r in reversed(records) if r.get("kind") == "layer"), None)
    if last is None or last["kept"] or last.get("perplexity") is None:
        return None
    return DroppedLayer(last["layer"], math.log2(last["perplexity"]), last["identity"])


def stop_text(subject: Subject) -> str:
    """Where the search is, and why it ended if it did."""
    layers = depth_table(subject.records)
    steps = [r for r in subject.records if r.get("kind") == "step"]
    if subject.status == "finished" and layers:
        return _end_text(subject.config.get("search", {}), layers[-1])
    if subject.status == "finished":
        return "The search has ended; its history is missing, so the reason is not known."
    if steps:
        of = subject.config.get("search", {}).get("steps")
        last = steps[-1]
        place = f"layer {last['layer']}, step {last['step']} of at most {of}"
    else:
        epochs = sum(r.get("kind") == "epoch" for r in subject.records)
        place = f"pre-training, {epochs} {'epoch' if epochs == 1 else 'epochs'} done"
    if subject.status == "running":
        return f"The search is running: {place}."
    if subject.config.get("source", {}).get("from_python"):
        return f"The search was stopped at {place}. Go on by calling find_policy again."
    return f"The search was stopped at {place}. Go on with: deepaa search --resume {subject.name}"


def _end_text(search: Mapping[str, Any], last: DepthRow) -> str:
    if not last.kept:
        return f"The search stopped because layer {last.layer} was dropped: {last.reason}."
    if search.get("layers") is not None:
        layers = "one layer that was" if last.layer == 1 else f"{last.layer} layers that were"
        return f"The search stopped after the {layers} asked for."
    return (
        f"The search stopped at its limit of {last.layer} layers (max_layers), and the last one "
        f"still helped: {last.reason}."
    )


class CostRow(NamedTuple):
    """What a part of a search took."""

    part: str
    steps: int
    """Epochs for the pre-training."""
    passes: int
    """Images through the network."""
    seconds: float


def cost_table(records: Sequence[Mapping[str, Any]]) -> tuple[CostRow, ...]:
    """Pre-training, each layer, and all together at the end; empty without records."""
    epochs = [r for r in records if r.get("kind") == "epoch"]
    rows = []
    if epochs:
        images, seconds = sum(r["images"] for r in epochs), math.fsum(r["seconds"] for r in epochs)
        rows.append(CostRow("pre-training", len(epochs), images, seconds))
    searched = [r for r in records if r.get("kind") in ("step", "layer")]
    before = 0
    for layer, group in groupby(searched, key=lambda r: r["layer"]):
        part = list(group)
        steps = sum(r["kind"] == "step" for r in part)
        seconds = math.fsum(r["seconds"] for r in part)
        rows.append(CostRow(f"layer {layer}", steps, part[-1]["passes"] - before, seconds))
        before = part[-1]["passes"]
    if rows:
        total = math.fsum(row.seconds for row in rows)
        rows.append(CostRow("all", 0, sum(row.passes for row in rows), total))
    return tuple(rows)


def peak_memory(records: Iterable[Mapping[str, Any]]) -> float | None:
    """Most GB of the GPU that a search had in use; None where nobody looked."""
    found = [r["memory"] for r in records if r.get("memory") is not None]
    return max(found, default=None)
