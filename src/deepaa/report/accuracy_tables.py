"""Trainings as tables of numbers and short texts: who reached what, and at which depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deepaa.policy import PolicyRef, parse_policy_ref
from deepaa.train import SeedResult, summary


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


class DepthAccuracy(NamedTuple):
    """One method's accuracy by the number of its layers."""

    method: str
    points: tuple[AccuracyRow, ...]
    """By rising depth."""


Results = Sequence[tuple[Sequence[SeedResult], Mapping[str, Any]]]
"""The seeds of each results.json, and all that it says."""
HOW = ("epochs", "channels_last", "compile", "tune", "graph")
"""Settings of a training that say how it is computed, or that stand elsewhere."""


def accuracy_rows(results: Results) -> tuple[AccuracyRow, ...]:
    """A row for each training; those that look alike say in which settings they differ."""
    rows = [accuracy_row(*result) for result in results]
    settings = [_settings(facts) for _, facts in results]
    found = []
    for row, own in zip(rows, settings, strict=True):
        alike = [s for r, s in zip(rows, settings, strict=True) if r.setting == row.setting]
        names = dict.fromkeys(name for setting in alike for name in setting)
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
    first = policy.get("first_layers")
    return AccuracyRow(
        method=_ref(policy).label + (f", first {first}" if first else "") + _defaults(policy),
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


def _defaults(policy: Mapping[str, Any]) -> str:
    """What was said of the default augmentation; nothing leaves it to the policy."""
    return {True: ", defaults on", False: ", defaults off", None: ""}[policy.get("defaults")]


def accuracy_by_setting(results: Results) -> dict[str, list[AccuracyRow]]:
    """Trainings on the same images with the same network for as long, together; the best first."""
    found: dict[str, list[AccuracyRow]] = {}
    for row in sorted(accuracy_rows(results), key=lambda row: (row.setting, -row.mean)):
        time = "1 epoch" if row.epochs == 1 else f"{row.epochs} epochs"
        setting = ", ".join(filter(None, (row.data, row.model, time, row.differs)))
        found.setdefault(setting, []).append(row)
    return found


def accuracy_by_depth(results: Results) -> tuple[DepthAccuracy, ...]:
    """Methods that were trained with two depths or more, in one setting each.

    Depths are those of --first-layers, of deepta:N and of whole policies that run alone.
    """
    groups: dict[tuple[Any, ...], dict[int, AccuracyRow]] = {}
    for row, (_, facts) in zip(accuracy_rows(results), results, strict=True):
        policy = facts.get("policy", {})
        depth = _own_depth(policy)
        if depth is None:
            continue
        rows = groups.setdefault((_family(policy), *row.setting), {})
        if depth not in rows or row.seeds > rows[depth].seeds:
            rows[depth] = row._replace(layers=depth)
    several = {key: rows for key, rows in groups.items() if len(rows) > 1}
    is_one_setting = len({key[1:] for key in several}) == 1
    return tuple(
        DepthAccuracy(
            family if is_one_setting else ", ".join(filter(None, (family, data, model, differs))),
            tuple(rows[depth] for depth in sorted(rows)),
        )
        for (family, data, model, _, differs), rows in several.items()
    )


def _family(policy: Mapping[str, Any]) -> str:
    """What policies that differ in their depth alone have in common."""
    ref = _ref(policy)
    return (str(ref.name) if "layers" in ref.arguments else ref.label) + _defaults(policy)


def _own_depth(policy: Mapping[str, Any]) -> int | None:
    """Layers of the policy itself; None where the count may have the default augmentation in it."""
    if policy.get("first_layers"):
        return int(policy["first_layers"])
    if (layers := _ref(policy).arguments.get("layers")) is not None:
        return int(layers)
    return None if policy.get("defaults") else policy.get("layers", 0)
