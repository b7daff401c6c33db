"""Contests as `contest.json` has them: outcomes of each image are drawn, all else follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

REFERENCES = ("none", "crop-flip")


class Contestant(NamedTuple):
    """A candidate and how skilled the networks are that it trains, by length."""

    name: str
    title: str
    skills: tuple[float, ...]
    kind: str = "named"
    layers: int = 1


HELPS = (
    Contestant("none", "no augmentation", (0.25, 0.55), layers=0),
    Contestant("crop-flip", "crop + flip + cutout", (0.27, 0.72), layers=3),
    Contestant("trivialaugment", "TrivialAugment", (0.10, 0.80), layers=4),
    Contestant("trivialaugment-wide", "TrivialAugment Wide", (-0.30, 0.60), layers=4),
    Contestant("rand-m9-mstd0.5-inc1", "timm rand-m9-mstd0.5-inc1", (0.02, 0.70), layers=5),
    Contestant("found", "found", (0.05, 0.85), "found", 3),
    Contestant("found-spread", "found, spread", (0.20, 1.10), "found", 3),
    Contestant("found-half", "found, strength 0.5", (0.25, 0.90), "found", 3),
    Contestant("found-2", "found, 2 of 3 layers", (0.12, 0.84), "found", 2),
    Contestant("mine", "my/own/policy.json", (-0.9, -0.5), "given", 2),
)
"""Strong candidates are behind after a short training and ahead after a long one."""
HARMS = tuple(
    each._replace(skills=(0.9, 1.4) if each.name == "none" else tuple(s / 2 for s in each.skills))
    for each in HELPS
)
"""Nothing helps: every augmentation costs much."""
FLIP = {"operation": "flip", "from": "turn left", "to": "turn right", "share": 0.91}
FLIP |= {"before": 0.01, "images": 60, "magnitude": None}
PROTECTED = (FLIP, FLIP | {"from": "turn right", "to": "turn left", "share": 0.87})


class Difference(NamedTuple):
    mean: float
    error: float


def difference(first: Sequence[Tensor], second: Sequence[Tensor], images: Tensor) -> Difference:
    """Accuracy of the first minus that of the second on some images, paired by image."""
    a, b = (torch.stack(list(each)).double().mean(0)[images] for each in (first, second))
    gaps = a - b
    return Difference(float(gaps.mean()), float(gaps.std() / math.sqrt(len(gaps))))


def outcomes(skill: float, difficulty: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Loss and correctness of each image for one network; hard images are hard for all of them."""
    luck = 0.02 * torch.randn((), generator=generator)
    noise = 0.5 * torch.randn(len(difficulty), generator=generator)
    margin = skill + luck - difficulty + noise
    return torch.nn.functional.softplus(-2 * margin).double(), margin > 0


def contest(
    contestants: Sequence[Contestant] = HELPS,
    lengths: Sequence[int] = (4, 16),
    images: int = 800,
    seed: int = 0,
    *,
    done: int | None = None,
    protected: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """A contest of `images` judge images; `done` trainings are over while it runs."""
    generator = torch.Generator().manual_seed(seed)
    difficulty = torch.randn(images, generator=generator)
    chooses = torch.zeros(images, dtype=torch.bool)
    chooses[torch.randperm(images, generator=generator)[: images // 2]] = True
    entries: list[dict[str, Any]] = []
    results: dict[tuple[str, int], list[Tensor]] = {}

    def train(each: Contestant, length: int, seed: int) -> None:
        skill = each.skills[lengths.index(length)]
        losses, correct = outcomes(skill, difficulty, generator)
        results.setdefault((each.name, length), []).append(correct)
        entries.append(
            {"candidate": each.name, "length": length, "seed": seed, "train_loss": 1.5 - skill / 2}
            | {"losses": losses.tolist(), "correct": _bits(correct)}
        )

    left: dict[str, int] = {}
    for length in lengths:
        for each in contestants:
            if each.name not in left and (done is None or len(entries) < done):
                train(each, length, 0)
        for each in contestants:
            held = results.get((each.name, length))
            rivals = [results.get((name, length)) for name in REFERENCES]
            if held and all(rivals) and each.name not in REFERENCES and length != lengths[-1]:
                gaps = [difference(held, rival, chooses) for rival in rivals if rival]
                if any(gap.mean < -4 * gap.error for gap in gaps):
                    left.setdefault(each.name, length)
    last = max((length for _, length in results), default=lengths[0])
    known = [name for name in REFERENCES if (name, last) in results]
    best = max(known, key=lambda name: _accuracy(results[name, last], chooses), default=None)
    finished = done is None
    pick = proof = None
    sentence = ""
    if best is not None:
        pick = _pick(contestants, results, best, last, chooses)
    if finished and pick is not None:
        proof, sentence = _ending(contestants, pick, lengths[-1], results, chooses, train)
    return {
        "format": 1,
        "status": "finished" if finished else "running",
        "data": {"name": "road-signs", "images": 5 * images, "judge": _judge(images, chooses)},
        "network": "small",
        "device": "cpu",
        "target_epochs": 200,
        "plan": {"lengths": list(lengths), "passes": 640_000, "fresh_seeds": 2},
        "protected": list(protected),
        "candidates": [_candidate(c, left, results, lengths, pick, chooses) for c in contestants],
        "pick": pick,
        "proof": proof,
        "sentence": sentence,
        "table": {"chooses": _bits(chooses), "clusters": None, "entries": entries},
    }


def _bits(flags: Tensor) -> str:
    return "".join("1" if flag else "0" for flag in flags.tolist())


def _accuracy(seeds: Sequence[Tensor], images: Tensor) -> float:
    return float(torch.stack(list(seeds)).double().mean(0)[images].mean())


def _judge(images: int, chooses: Tensor) -> dict[str, Any]:
    few = images < 400
    how = {"how": "folds", "folds": 5} if few else {"how": "part", "folds": None}
    return {**how, "images": images, "chooses": int(chooses.sum()), "groups": None}


def _pick(
    contestants: Sequence[Contestant],
    results: dict[tuple[str, int], list[Tensor]],
    best: str,
    last: int,
    chooses: Tensor,
) -> dict[str, Any]:
    """The candidate that is furthest ahead by two standard errors, else the reference."""
    there = [each.name for each in contestants if (each.name, last) in results]
    gaps = {n: difference(results[n, last], results[best, last], chooses) for n in there}
    ahead = {n: gap.mean for n, gap in gaps.items() if n != best and gap.mean > 2 * gap.error}
    winner = max(ahead, key=lambda name: ahead[name], default=best)
    reason = "ahead" if ahead else "reference"
    return {"winner": winner, "reference": best, "reason": reason, "extrapolated": False}


def _ending(
    contestants: Sequence[Contestant],
    pick: dict[str, Any],
    length: int,
    results: dict[tuple[str, int], list[Tensor]],
    chooses: Tensor,
    train: Any,
) -> tuple[dict[str, Any] | None, str]:
    """The proof from fresh seeds and the images that did not choose, and the sentence."""
    winner, reference = pick["winner"], pick["reference"]
    titles = {each.name: each for each in contestants}
    if winner == reference:
        return (
            None,
            f"On your data nothing was better than {titles[winner].title}: train with that.",
        )
    for each in (winner, reference):
        for seed in (101, 102):
            train(titles[each], length, seed)
    fresh = [results[name, length][-2:] for name in (winner, reference)]
    for name in (winner, reference):
        results[name, length] = results[name, length][:-2]
    gap = difference(fresh[0], fresh[1], ~chooses)
    low, high = gap.mean - 1.96 * gap.error, gap.mean + 1.96 * gap.error
    proof = {"winner": winner, "reference": reference, "mean": gap.mean, "low": low, "high": high}
    sentence = (
        f"On your data {titles[winner].title} is {100 * gap.mean:.1f} points better than "
        f"{titles[reference].title} (95 %: {100 * low:.1f} to {100 * high:.1f})."
    )
    return {**proof, "images": int((~chooses).sum()), "seeds": 2}, sentence


def _candidate(
    each: Contestant,
    left: dict[str, int],
    results: dict[tuple[str, int], list[Tensor]],
    lengths: Sequence[int],
    pick: dict[str, Any] | None,
    chooses: Tensor,
) -> dict[str, Any]:
    rungs = []
    for length in lengths:
        held = results.get((each.name, length))
        if held is None:
            continue
        rung = {"length": length, "seeds": list(range(len(held))), "loss": 1.1, "train_loss": 1.4}
        rung["accuracy"] = _accuracy(held, chooses)
        rung |= {"difference": None, "error": None}
        other = results.get((pick["reference"], length)) if pick else None
        if other is not None:
            gap = difference(held, other, chooses)
            rung |= {"difference": gap.mean, "error": gap.error}
        rungs.append(rung)
    about = {"name": each.name, "title": each.title, "kind": each.kind, "layers": each.layers}
    fate = {"reference": each.name in REFERENCES, "left_after": left.get(each.name)}
    return {**about, **fate, "policy_sha256": "0" * 64, "rungs": rungs}
