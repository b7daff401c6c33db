"""What the choice of a contest costs, beside choices that need no contest.

Usage: python benchmarks/contest_regret.py --data cifar10.npz --images 1000 --out regret.json

Each seed takes other images, searches, and holds a contest, as `deepaa search` does. Then every
candidate is trained once more, in full length: `--target-epochs`, from new weights. The regret of
a choice is the accuracy of the best candidate there minus that of the chosen one. With `--images`
these networks train on all of those images, and up to 10,000 others tell, so that few images are
judged by many; otherwise the judge's half that chose nothing does. The best of many is a little
too good by chance; `noise` is how much of that there would be if all candidates were alike. Seeds
that the file has are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from full_length import add_data_options, rows_and_images, shuffled, trained
from torch import Tensor

from deepaa.data import LabelledImages
from deepaa.search import ContestConfig, SearchRequest, SettingsRequest, open_search
from deepaa.search.contest import JudgedImages

FULL_SEED = 2000
"""Of the trainings in full length: no rung and no proof uses it."""
ALWAYS = ("none", "crop-flip", "trivialaugment-wide", "found")
"""Choices that need no contest; the last is what a bare search gives."""
MOST_JUDGES, RESAMPLES = 10_000, 500


def images_of(whole: LabelledImages, given: argparse.Namespace) -> int:
    """Images that a seed takes."""
    return min(given.images or len(whole.labels), len(whole.labels))


def luck_of_the_best(correct: Tensor) -> float:
    """How far the best of equal candidates would be above its true accuracy, by images alone.

    `correct` (K, N) holds the answers of K networks on the same N images: the mean over resampled
    images of the largest deviation. What other seeds of the networks would change is not in it.
    """
    images = correct.shape[1]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(images, (RESAMPLES, images), generator=generator)
    counts = torch.zeros(RESAMPLES, images, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(counts))
    deviations = (correct - correct.mean(1, keepdim=True)) @ counts.T / images
    return float(deviations.amax(0).mean())


def regret(
    whole: LabelledImages, seed: int, given: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """What one search and contest chose, and how all candidates do in full length."""
    began, count = time.perf_counter(), images_of(whole, given)
    order = shuffled(whole.labels, seed)
    data = whole if count == len(order) else whole.part(order[:count])
    contest = ContestConfig(given.contest_passes, given.target_epochs)
    settings = SettingsRequest(
        preset=given.preset, fields={"seed": seed}, model=given.model, changes=given.set
    )
    request = SearchRequest(settings, data, contest=contest)
    with open_search(request, None, device=device) as proved:
        for _ in proved:
            pass
        assert proved.contest is not None
        result, searched = proved.contest.result, time.perf_counter() - began
        plan, images = proved.contest.contest.plan, proved.images
        if count < len(order):
            judge = torch.arange(count, min(count + MOST_JUDGES, len(order)))
            images = JudgedImages.of(whole.part(order[: count + len(judge)]), judge)
        candidates = list(proved.contest.contest.candidates.values())
        made = trained(candidates, images, proved.network, plan.target, FULL_SEED)
        entries = [entry for _, entry in made]
        proves = ~images.chooses if count == len(order) else torch.ones_like(images.chooses)
        correct = {e.candidate: e.correct[proves].double() for e in entries}
        accuracy = {name: float(answers.mean()) for name, answers in correct.items()}
        chosen = {"contest": result.winner.name, **{name: name for name in ALWAYS}}
        best = max(accuracy.values())
        return {
            "data": data.name,
            "images": count,
            "seed": seed,
            "network": proved.network.name,
            "lr": proved.network.config.lr,
            "target_epochs": plan.target,
            "proving_images": int(proves.sum()),
            "chosen": result.winner.name,
            "sentence": result.sentence,
            "accuracy": accuracy,
            "noise": luck_of_the_best(torch.stack(list(correct.values()))),
            "regret": {
                who: best - accuracy[name] for who, name in chosen.items() if name in accuracy
            },
            "search_seconds": searched,
            "full_length_seconds": time.perf_counter() - began - searched,
            "contest": plan.to_json(proved.contest.contest.table),
        }


def main() -> None:
    """Run the seeds that the file does not have, and print their mean and worst regret."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_data_options(parser)
    parser.add_argument("--images", type=int, help="training images to take; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model")
    parser.add_argument("--preset")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--target-epochs", type=int)
    parser.add_argument("--contest-passes", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    rows, whole = rows_and_images(given)
    for seed in range(given.seeds):
        count = images_of(whole, given)
        if any((row["images"], row["seed"]) == (count, seed) for row in rows):
            continue
        print(f"{whole.name}, {count:,} images, seed {seed}", flush=True)
        rows.append(regret(whole, seed, given, torch.device(given.device)))
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"  chosen: {rows[-1]['chosen']}", flush=True)
    for who in ("contest", *ALWAYS):
        known = [100 * row["regret"][who] for row in rows if who in row["regret"]]
        if known:
            mean = sum(known) / len(known)
            print(f"{who}: mean regret {mean:.2f}, worst {max(known):.2f} of {len(known)}")


if __name__ == "__main__":
    main()
