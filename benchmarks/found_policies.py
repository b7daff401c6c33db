"""How networks do that were trained with what searches find, by settings and number of images.

    python benchmarks/found_policies.py --data cifar10.npz --images 1000 --out found.json
    ... --preset demo --search plain --search defaults:augment=true --search pull:trivial_pull=0.01

Each `--search NAME:SETTING=VALUE,...` is a search with these changes of the preset; without one
there is one with none. For each seed, so many images are searched and trained on, and `--judge`
others, of the training part too, tell how the network does: with the found policy as it is,
spread, and at half strength, and with policies that need no search. All networks of a seed begin
with the same weights. Rows that the file has are not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from full_length import add_data_options, forms, rows_and_images, shuffled, trained

from deepaa import Policy
from deepaa.data import DataSpec, LabelledImages
from deepaa.search import SearchRequest, SettingsRequest, open_search
from deepaa.search.contest import (
    ContestRequest,
    JudgedImages,
    contest_network,
)
from deepaa.search.contest.candidates import named_candidates

NAMED = ("none", "crop-flip", "trivialaugment-wide")
Row = dict[str, Any]


def searched(
    data: LabelledImages, changes: Sequence[str], seed: int, given: argparse.Namespace
) -> Policy:
    """What a search finds on the images."""
    settings = SettingsRequest(
        preset=given.preset, fields={"seed": seed}, model=given.model, changes=changes
    )
    request = SearchRequest(settings, data, contest=None)
    with open_search(request, None, device=given.device) as search:
        for _ in search:
            pass
        return search.found


def of_seed(whole: LabelledImages, seed: int, given: argparse.Namespace) -> Row:
    """The searches of a seed, and the networks trained with all policies."""
    count, order = given.images, shuffled(whole.labels, seed)
    data, judge = whole.part(order[:count]), torch.arange(count, count + given.judge)
    images = JudgedImages.of(whole.part(order[: count + given.judge]), judge)
    candidates = [each for each in named_candidates("cifar") if each.name in NAMED]
    uses, seconds = {}, {}
    for text in given.search or ["found"]:
        name, _, changes = text.partition(":")
        began = time.perf_counter()
        found = searched(data, [each for each in changes.split(",") if each], seed, given)
        seconds[name] = round(time.perf_counter() - began, 1)
        uses[name] = {k: round(v, 3) for k, v in found.expected_uses().items() if v}
        print(f"  {name}: {found.depth} layers, {uses[name]}", flush=True)
        candidates += forms(name, found) if found.depth else []
    request = ContestRequest(DataSpec(given.data), changes=tuple(given.set))
    config = request.settings(given.device, given.epochs * count)
    network = contest_network(images, given.model, config, given.device)
    made = trained(candidates, images, network, given.epochs, seed)
    entries = [entry for _, entry in made]
    return {
        "data": whole.name,
        "images": count,
        "judge": given.judge,
        "seed": seed,
        "epochs": given.epochs,
        "network": network.name,
        "set": given.set,
        "preset": given.preset,
        "searches": given.search,
        "uses": uses,
        "search_seconds": seconds,
        "accuracy": {each.candidate: each.correct.double().mean().item() for each in entries},
        "train_loss": {each.candidate: each.train_loss for each in entries},
        "torch": torch.__version__,
        "device": str(given.device),
    }


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each policy: mean accuracy, and the paired difference to no augmentation."""
    lines = []
    for name in dict.fromkeys(name for row in rows for name in row["accuracy"]):
        known = [row["accuracy"] for row in rows if name in row["accuracy"]]
        gains = [100 * (each[name] - each["none"]) for each in known]
        mean = 100 * statistics.fmean(each[name] for each in known)
        spread = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
        gain = f"{statistics.fmean(gains):+.2f}, standard error {spread:.2f}, {len(gains)} seeds"
        lines.append(f"{name}: {mean:.2f} %, beside none {gain}")
    return lines


def main() -> None:
    """Make the rows that the file does not have, and print means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_data_options(parser)
    parser.add_argument("--images", type=int, required=True, help="searched and trained on")
    parser.add_argument("--judge", type=int, default=5000, help="images that judge")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100, help="of the networks that are judged")
    parser.add_argument("--model")
    parser.add_argument("--preset")
    parser.add_argument("--search", action="append", metavar="NAME:SETTING=VALUE,...")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--device", type=torch.device, default="cpu")
    given = parser.parse_args()
    rows, whole = rows_and_images(given)
    for seed in range(given.seeds):
        key = {"data": whole.name, "images": given.images, "epochs": given.epochs, "seed": seed}
        if any(key.items() <= row.items() for row in rows):
            continue
        print(f"{whole.name}, {given.images:,} images, seed {seed}", flush=True)
        rows.append(of_seed(whole, seed, given))
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    alike = {"data": whole.name, "images": given.images, "epochs": given.epochs}
    print("\n".join(summary([row for row in rows if alike.items() <= row.items()])))


if __name__ == "__main__":
    main()
