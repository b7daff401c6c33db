"""What the choice of a contest costs, beside choices that need no contest.

Usage: python benchmarks/contest_regret.py --data cifar10.npz --images 1000 --out regret.json

Each seed takes other images, searches, and holds a contest, as `deepaa search` does. Then every
candidate is trained once more, in full length: `--target-epochs`, from new weights. The regret of
a choice is the accuracy of the best candidate there minus that of the chosen one, on judge images
that chose nothing. Seeds that the file has are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from full_length import FullLength, shuffled

from deepaa.data import DataSpec, LabelledImages
from deepaa.search import ContestConfig, SearchRequest, SettingsRequest, open_search
from deepaa.search.contest import Contest, ContestEntry

FULL_SEED = 2000
"""Of the trainings in full length: no rung and no proof uses it."""
ALWAYS = ("none", "crop-flip", "trivialaugment-wide", "found")
"""Choices that need no contest; the last is what a bare search gives."""


def subset(data: LabelledImages, images: int | None, seed: int) -> LabelledImages:
    """So many of the images, as many of each class as there are alike in all, by seed."""
    if images is None or images >= len(data.labels):
        return data
    return data.part(shuffled(data.labels, seed)[:images].sort().values)


def regret(
    data: LabelledImages, seed: int, given: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """What one search and contest chose, and how all candidates do in full length."""
    began = time.perf_counter()
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
        plan = proved.contest.contest.plan
        full = FullLength(plan.names, plan.target, 0, FULL_SEED)
        candidates = list(proved.contest.contest.candidates.values())
        trainings = Contest(candidates, proved.images, proved.network, full)
        for record in trainings:
            if isinstance(record, ContestEntry):
                print(f"  {record.candidate}: {100 * record.accuracy:.2f} %", flush=True)
        table = trainings.table
        proves = ~table.chooses
        accuracy = {e.candidate: float(e.correct[proves].double().mean()) for e in table.entries}
        chosen = {"contest": result.winner.name, **{name: name for name in ALWAYS}}
        best = max(accuracy.values())
        return {
            "data": data.name,
            "images": len(data.labels),
            "seed": seed,
            "network": proved.network.name,
            "lr": proved.network.config.lr,
            "target_epochs": plan.target,
            "proving_images": int(proves.sum()),
            "chosen": result.winner.name,
            "sentence": result.sentence,
            "accuracy": accuracy,
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
    parser.add_argument("--data")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--size", type=int)
    parser.add_argument("--images", type=int, help="training images to take; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model")
    parser.add_argument("--preset")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--target-epochs", type=int)
    parser.add_argument("--contest-passes", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    whole = DataSpec.from_options(given.data, size=given.size, root=given.root).load()
    for seed in range(given.seeds):
        data = subset(whole, given.images, seed)
        if any((row["images"], row["seed"]) == (len(data.labels), seed) for row in rows):
            continue
        print(f"{data.name}, {len(data.labels):,} images, seed {seed}", flush=True)
        rows.append(regret(data, seed, given, torch.device(given.device)))
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"  chosen: {rows[-1]['chosen']}", flush=True)
    for who in ("contest", *ALWAYS):
        known = [100 * row["regret"][who] for row in rows if who in row["regret"]]
        if known:
            mean = sum(known) / len(known)
            print(f"{who}: mean regret {mean:.2f}, worst {max(known):.2f} of {len(known)}")


if __name__ == "__main__":
    main()
