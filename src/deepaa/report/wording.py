"""Numbers and layers in words, for pages and terminals alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from deepaa.report.policy_tables import LayerTable, OperationShare

SHOWN_MAGNITUDES = 3
SURE, LIKELY, NOTEWORTHY = 0.95, 0.5, 0.02
"""From these probabilities on: "almost always", "mostly", and worth a mention beside them."""


def percent(fraction: float, digits: int = 1) -> str:
    """`5.6 %`; `< 0.1 %` for what would be rounded to 0."""
    if 0 < fraction < 0.5 * 10 ** -(digits + 2):
        return f"< {10**-digits:g} %"
    return f"{100 * fraction:.{digits}f} %"


def plural(count: int, noun: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def magnitudes_text(share: OperationShare) -> str:
    """An operation's magnitudes: the commonest and their shares, or an even range."""
    found = share.magnitudes
    if len(found) < 2:
        return "".join(f"{item.magnitude:.4g}" for item in found)
    shares = [item.share for item in found]  # falling
    values = [item.magnitude for item in found]
    span = f"{min(values):.4g} to {max(values):.4g}, {len(values)}"
    if shares[0] - shares[-1] < 1e-6:
        return f"{span} levels evenly"
    if sum(shares[:SHOWN_MAGNITUDES]) < 0.25:
        return f"{span} levels"
    shown = [f"{item.magnitude:.3g} ({item.share:.0%})" for item in found[:SHOWN_MAGNITUDES]]
    return ", ".join(shown) + (" ..." if len(found) > SHOWN_MAGNITUDES else "")


class LayerSentence(NamedTuple):
    """A layer, or several alike, in one sentence."""

    layers: str
    """`Layer 2` or `Layers 1 to 6`."""
    text: str


def layer_sentences(
    layers: Sequence[LayerTable], unfinished: int | None = None
) -> list[LayerSentence]:
    """One sentence for each layer, one for several in a row that are alike.

    Args:
        layers: With all their operations.
        unfinished: The layer that is still being searched.
    """
    found = []
    for alike in alike_layers(layers):
        first, last = alike[0].layer, alike[-1].layer
        name = f"Layer {first}" if first == last else f"Layers {first} to {last}"
        is_unfinished = unfinished is not None and last == unfinished
        text = layer_sentence(alike[0]) + (" (not finished)" if is_unfinished else "")
        found.append(LayerSentence(name, text))
    return found


def alike_layers(layers: Sequence[LayerTable]) -> list[list[LayerTable]]:
    """The layers in order, with neighbours that do the same in one group."""
    groups = groupby(layers, key=lambda layer: layer._replace(layer=0))
    return [list(group) for _, group in groups]


def layer_sentence(layer: LayerTable) -> str:
    """What a layer does, in a few words; needs all operations of the layer."""
    shares = [share for share in layer.operations if share.probability > 0]
    if not shares:
        return "nothing"
    top, rest = shares[0], [share for share in shares[1:] if share.probability >= NOTEWORTHY]
    p = top.probability
    action = "leaves the image as it is" if top.name == "identity" else top.name
    if len(shares) == 1:
        return action if top.name == "identity" else f"always {action}"
    if len(shares) > 2 and p - shares[-1].probability < 1e-6:
        return f"any of {len(shares)} operations, all equally often ({_rounded(p)})"
    others = [f"{share.name} ({_rounded(share.probability)})" for share in rest[:2]]
    if p >= LIKELY:
        often = "almost always" if p >= SURE else "mostly"
        return f"{often} {action} ({_rounded(p)})" + (f", else {' or '.join(others)}" * bool(rest))
    shown = [f"{top.name} ({_rounded(p)})", *others]
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"a mix; most often {listed}"


def _rounded(fraction: float) -> str:
    return "> 99 %" if 0.995 <= fraction < 1 else f"{100 * fraction:.0f} %"
