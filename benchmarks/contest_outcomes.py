"""Trains small contests on the embedded images and keeps what each network said of each image.

    python benchmarks/contest_outcomes.py --out tests/golden/contest_outcomes.json

From it the tests of the pick draw their contests (tests/helpers/contests.py), and
docs/decisions/how-the-contest-picks.md has its correlations. About half an hour on two quiet cores.
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import deepaa
from deepaa.data import LabelledImages, load_dataset
from deepaa.models import load_model
from deepaa.policy import Policy, compared_policy
from deepaa.train import ImageBatches, TrainConfig, Training

CANDIDATES = (
    "none",
    "crop-flip",
    "crop-flip-cutout",
    "trivialaugment",
    "trivialaugment-wide",
    "randaugment",
    "cifar10",
    "cifar10:4",
    "cifar10:1",
    "cifar100",
    "cifar100:1",
    "deepta:1",
    "deepta:2",
    "uniformaugment",
)
"""As many as a contest has; `cifar10:4` stands for the first four layers of `cifar10`."""
SEEDS = {5: 4, 20: 2, 80: 1}
"""Networks of each candidate by the epochs of their schedule."""
LONG = ("none", "crop-flip", "trivialaugment", "deepta:1")
"""Who is trained for the longest of them."""
KEPT = {5: 2, 20: 2}
"""Networks whose answers are kept image by image."""
JUDGED = 100
"""Images of each class that judge; the other 300 are trained on."""
STEPS = 16
"""A loss or margin is kept as a whole number of this part of a nat, in one byte."""
Outcome = dict[str, Any]
"""Candidate, length and seed of a network, its training loss, and losses and margins by image."""


def policy_of(name: str) -> Policy:
    """A candidate's policy as a training runs it."""
    source, _, layers = name.partition(":")
    if source.startswith("cifar"):
        return compared_policy(source, first_layers=int(layers) if layers else None)
    return compared_policy(name)


def judged(labels: Tensor) -> Tensor:
    """Which images judge: the first of each class, in the order of the data, (N,) bool."""
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        chosen[(labels == label).nonzero()[:JUDGED, 0]] = True
    return chosen


def outcomes(data: LabelledImages) -> Iterator[Outcome]:
    """Train every network; its answers for the judge images."""
    judge = judged(data.labels)
    images, labels = data.images[~judge], data.labels[~judge]
    for name in CANDIDATES:
        for length, seeds in SEEDS.items():
            for seed in range(seeds if length < max(SEEDS) or name in LONG else 0):
                config = TrainConfig(epochs=length, seed=seed)
                model = load_model("small", images, len(data.class_names), seed)
                *_, last = Training(
                    model, ImageBatches(images, labels, policy_of(name), config), config
                )
                model.eval()
                with torch.no_grad():
                    logits = model(data.images[judge]).double()
                truth = data.labels[judge][:, None]
                others = logits.scatter(1, truth, -torch.inf).amax(1)
                yield {
                    "candidate": name,
                    "length": length,
                    "seed": seed,
                    "train_loss": round(last.loss, 4),
                    "losses": F.cross_entropy(logits, truth[:, 0], reduction="none"),
                    "margins": logits.gather(1, truth)[:, 0] - others,
                }


# What they have in common


def summary(entries: Sequence[Outcome], accuracies: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Mean correlations over images, and how much accuracies of seeds vary.

    Pairs of networks differ in the seed alone, in the length (and the seed) alone, or in the
    candidate (and the seed) alone.
    """
    found: dict[str, Any] = {}
    for kind in ("correct", "losses"):
        kinds: dict[str, list[float]] = {"seeds": [], "lengths": [], "candidates": []}
        for a, b in combinations(entries, 2):
            same = a["candidate"] == b["candidate"], a["length"] == b["length"]
            pair = {(True, True): "seeds", (True, False): "lengths", (False, True): "candidates"}
            if same in pair:
                values = torch.stack([_values(e, kind) for e in (a, b)])
                kinds[pair[same]].append(float(values.corrcoef()[0, 1]))
        found[kind] = {name: round(fmean(values), 3) for name, values in kinds.items()}
        found[kind] |= _differences(entries, kind)
    found["seed_variance"] = {
        str(length): _seed_variance(entries, accuracies, length) for length in KEPT
    }
    return found


def _values(entry: Outcome, kind: str) -> Tensor:
    return (entry["margins"] > 0).double() if kind == "correct" else entry["losses"]


def _differences(entries: Sequence[Outcome], kind: str) -> dict[str, float]:
    """Correlations of differences to no augmentation, of candidates and of lengths."""
    at = {(e["candidate"], e["length"], e["seed"]): _values(e, kind) for e in entries}
    first, last = list(KEPT)
    gaps = {
        (name, length): at[name, length, 0] - at["none", length, 0]
        for name in CANDIDATES[1:]
        for length in KEPT
    }
    together = torch.stack([gaps[name, last] for name in CANDIDATES[1:]]).corrcoef()
    above = together.triu(1).sum() / (together.triu(1) != 0).sum()
    over = [torch.stack([gaps[n, first], gaps[n, last]]).corrcoef()[0, 1] for n in CANDIDATES[1:]]
    return {
        "differences_of_candidates": round(float(above), 3),
        "differences_of_lengths": round(float(torch.stack(over).mean()), 3),
    }


def _seed_variance(
    entries: Sequence[Outcome], accuracies: Sequence[Sequence[Any]], length: int
) -> dict[str, float]:
    """The variance of accuracy over seeds, and what independent images would explain of it.

    Two networks that disagree on a share d of n images have accuracies of variance d / (2 n) if
    their images know nothing of each other.
    """
    by_name = [[a for n, el, _, a, _ in accuracies if (n, el) == (c, length)] for c in CANDIDATES]
    right = [
        [_values(e, "correct") for e in entries if e["candidate"] == c and e["length"] == length]
        for c in CANDIDATES
    ]
    differ = fmean(float((a != b).double().mean()) for a, b in right)
    return {
        "accuracies": round(fmean(variance(each) for each in by_name), 8),
        "images": round(differ / (2 * len(right[0][0])), 8),
        "disagreement": round(differ, 4),
        "freedom": sum(len(each) - 1 for each in by_name),
    }


def packed(values: Tensor, low: int) -> str:
    """Values from `low` nats on as bytes of base64."""
    steps = ((values - low) * STEPS).floor().clamp(0, 255)
    return base64.b64encode(bytes(steps.int().tolist())).decode()


def text_of(document: dict[str, Any]) -> str:
    """JSON with one line for each item of a list."""
    lines = []
    for name, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(json.dumps(each) for each in value) + "\n ]"
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Read the command line, train, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    out, data, began = parser.parse_args().out, load_dataset(), time.perf_counter()
    entries, accuracies = [], []
    for entry in outcomes(data):
        name, length, seed = entry["candidate"], entry["length"], entry["seed"]
        accuracy = float((entry["margins"] > 0).double().mean())
        accuracies.append([name, length, seed, round(accuracy, 4), entry["train_loss"]])
        print(f"{time.perf_counter() - began:6.0f} s", *accuracies[-1], flush=True)
        if seed < KEPT.get(length, 0):
            entries.append(entry)
    document = {
        "made_by": "python benchmarks/contest_outcomes.py --out tests/golden/contest_outcomes.json",
        "with": f"deepaa {deepaa.__version__}, torch {torch.__version__}, cpu",
        "data": f"embedded CIFAR-10: {JUDGED} images of each class judge, the others train",
        "network": "small",
        "correlations": summary(entries, accuracies),
        "accuracies": accuracies,
        "entries": [
            {**e, "losses": packed(e["losses"], 0), "margins": packed(e["margins"], -8)}
            for e in entries
        ],
    }
    out.write_text(text_of(document))


if __name__ == "__main__":
    main()
