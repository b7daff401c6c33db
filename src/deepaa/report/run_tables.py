"""A run or a policy as tables of numbers and short texts. Nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from deepaa.policy import Policy
from deepaa.report.subject import Subject
from deepaa.report.tables import LayerTable, layer_table
from deepaa.run_settings import is_from_python

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "nothing": ("identity",),
    "geometry": (
        *("shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
        *("flip", "crop", "resized_crop"),
    ),
    "colour": (
        *("auto_contrast", "invert", "equalize", "solarize", "posterize"),
        *("contrast", "color", "brightness", "sharpness"),
    ),
    "erasing": ("cutout",),
}
OWN = "own"
"""Family of operations that are not built in."""
RARE = 0.001
"""An operation below this share of a layer has no magnitudes worth a look."""


class OperationRow(NamedTuple):
    """An operation's probability in every layer."""

    name: str
    family: str
    probabilities: tuple[float, ...]


class OperationTable(NamedTuple):
    """The distribution of operations at each layer (the paper's Figure 3)."""

    rows: tuple[OperationRow, ...]
    """Family by family, within one in the order of the policy's table."""
    layers: int
    in_work: int | None = None


def operation_table(policy: Policy, in_work: int | None = None, epoch: int = 0) -> OperationTable:
    """Probabilities of all operations of the policy's table, summed over magnitudes."""
    names = list(dict.fromkeys(op.name for op in policy.table.operations))
    shares = [_shares(layer) for layer in layer_table(policy, epoch, top=len(names))]
    order = [*FAMILIES, OWN]
    rows = [
        OperationRow(name, family_of(name), tuple(share.get(name, 0.0) for share in shares))
        for name in names
    ]
    rows.sort(key=lambda row: order.index(row.family))
    return OperationTable(tuple(rows), len(shares), in_work)


def family_of(name: str) -> str:
    """The family of an operation."""
    return next((family for family, names in FAMILIES.items() if name in names), OWN)


def _shares(layer: LayerTable) -> dict[str, float]:
    return {share.name: share.probability for share in layer.operations}


class MagnitudeTable(NamedTuple):
    """How an operation's magnitudes are distributed in each layer (Appendices B and C)."""

    name: str
    family: str
    magnitudes: tuple[float, ...]
    """Rising."""
    neutral: float | None
    probabilities: tuple[float, ...]
    """Of the operation, per layer."""
    shares: tuple[tuple[float, ...], ...]
    """Per layer and magnitude, summing to 1; empty where the layer hardly uses the operation."""


def magnitude_tables(policy: Policy, epoch: int = 0) -> tuple[MagnitudeTable, ...]:
    """A table for each operation with several magnitudes that some layer uses."""
    layers = layer_table(policy, epoch, top=len(policy.table.operations))
    found = []
    for row in operation_table(policy, epoch=epoch).rows:
        rows = [r for r in policy.table.rows if r.operation.name == row.name]
        levels = sorted({r.magnitude for r in rows if r.magnitude is not None})
        if len(levels) < 2 or max(row.probabilities, default=0.0) < RARE:
            continue
        shares = tuple(_levels(layer, row.name, levels) for layer in layers)
        neutral = rows[0].operation.neutral
        found.append(
            MagnitudeTable(row.name, row.family, tuple(levels), neutral, row.probabilities, shares)
        )
    return tuple(found)


def _levels(layer: LayerTable, name: str, levels: Sequence[float]) -> tuple[float, ...]:
    for share in layer.operations:
        if share.name == name and share.probability >= RARE:
            known = {item.magnitude: item.share for item in share.magnitudes}
            return tuple(known.get(level, 0.0) for level in levels)
    return ()


# Layers in words


class LayerSentence(NamedTuple):
    """A layer, or several alike, in one sentence."""

    layers: str
    """`Layer 2` or `Layers 1 to 6`."""
    text: str


def sentences(policy: Policy, in_work: int | None = None, epoch: int = 0) -> list[LayerSentence]:
    """One sentence for each layer, one for several in a row that are alike."""
    layers = layer_table(policy, epoch, top=len(policy.table.operations))
    found = []
    for _, group in groupby(layers, key=lambda layer: layer._replace(layer=0)):
        alike = list(group)
        first, last = alike[0].layer, alike[-1].layer
        name = f"Layer {first}" if first == last else f"Layers {first} to {last}"
        text = sentence(alike[0])
        if in_work is not None and last == in_work:
            text += " (still in work)"
        found.append(LayerSentence(name, text))
    return found


def sentence(layer: LayerTable) -> str:
    """What a layer does, in a few words; needs all operations of the layer."""
    shares = [share for share in layer.operations if share.probability > 0]
    if not shares:
        return "nothing"
    top, rest = shares[0], [share for share in shares[1:] if share.probability >= 0.02]
    if len(shares) == 1:
        return "leaves the image as it is" if top.name == "identity" else f"always {top.name}"
    if len(shares) > 2 and shares[0].probability - shares[-1].probability < 1e-6:
        return f"any of {len(shares)} operations, all equally often ({_percent(top.probability)})"
    if top.name == "identity" and top.probability >= 0.5:
        nearly = "almost always" if top.probability >= 0.95 else "mostly"
        return f"{nearly} leaves the image as it is ({_percent(top.probability)}){_else(rest)}"
    if top.probability >= 0.95:
        return f"almost always {top.name} ({_percent(top.probability)})"
    if top.probability >= 0.5:
        return f"mostly {top.name} ({_percent(top.probability)}){_else(rest)}"
    shown = [f"{share.name} ({_percent(share.probability)})" for share in (top, *rest[:2])]
    return f"a mix; most often {_listed(shown)}"


def _else(rest: Sequence[Any]) -> str:
    shown = [f"{share.name} ({_percent(share.probability)})" for share in rest[:2]]
    return f", else {' or '.join(shown)}" if shown else ""


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _percent(fraction: float) -> str:
    if 0.995 <= fraction < 1:
        return "> 99 %"
    return f"{100 * fraction:.0f} %"


# The search


class StepCurve(NamedTuple):
    """A layer's steps."""

    layer: int
    steps: tuple[int, ...]
    similarity: tuple[float, ...]
    """Mean cosine between the gradients of augmented images and of others of their class."""
    identity: tuple[float, ...]
    perplexity: tuple[float, ...]


def step_curves(records: Iterable[Mapping[str, Any]]) -> tuple[StepCurve, ...]:
    """The course of each layer; a step that was repeated counts as it was last."""
    layers: dict[int, dict[int, Mapping[str, Any]]] = {}
    for record in records:
        if record.get("kind") == "step":
            layers.setdefault(record["layer"], {})[record["step"]] = record
    curves = []
    for layer, steps in sorted(layers.items()):
        rows = [steps[step] for step in sorted(steps)]
        columns = [
            tuple(row[name] for row in rows)
            for name in ("step", "similarity", "identity", "perplexity")
        ]
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
    layers, curves = depth_table(records), step_curves(records)
    if not layers or layers[-1].kept:
        return None
    end = next(r for r in reversed(records) if r.get("kind") == "layer")
    if end.get("perplexity") is not None:
        return DroppedLayer(end["layer"], math.log2(end["perplexity"]), end["identity"])
    if not curves or curves[-1].layer != layers[-1].layer:  # of a run before records had these
        return None
    last = curves[-1]
    return DroppedLayer(last.layer, math.log2(last.perplexity[-1]), last.identity[-1])


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
    if is_from_python(subject.config):
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
