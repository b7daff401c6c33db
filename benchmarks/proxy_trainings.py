"""Which small trainings tell what a long one on many images would: few epochs, or few images?

    python benchmarks/proxy_trainings.py --data cifar10.npz --images 4000 --epochs 96 --out p.json

Every policy trains a network on all `--images` for all `--epochs`, and at each `--share` of these
passes on all images for fewer epochs, on fewer images for all epochs, and in between. `--judge`
other images of the training part tell the accuracy of all of them. What a small training is worth
is what is lost by the policy that it puts first, and how many pairs of policies it orders as the
long one does, among those that are two standard errors apart there. The same is told of what the
contest's learning curve predicts from two of them. Networks that the file has are not trained
again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections import defaultdict
from typing import Any

import torch
from full_length import add_data_options, forms, rows_and_images, shuffled, trained
from torch import Tensor

from deepaa.data import DataSpec, LabelledImages
from deepaa.policy import compared_policy
from deepaa.search.contest import (
    Candidate,
    ContestRequest,
    ContestTable,
    Entry,
    JudgedImages,
    contest_network,
)
from deepaa.search.contest.candidates import named_candidates
from deepaa.search.contest.curve import learning_curve

Row = dict[str, Any]
Networks = dict[str, Row]
"""The networks of one shape and draw, by candidate."""
Shape = tuple[int, int]
"""Images and epochs."""
SEPARATED = 2.0
"""Standard errors, over images, from which two policies of the long training count as ordered."""


def candidates_of(given: argparse.Namespace) -> list[Candidate]:
    """What needs no search, and what is named: as it is, spread, and at half strength."""
    found = named_candidates("cifar")
    for name in given.policy:
        found += forms(name, compared_policy(name, space="cifar"))
    return found


def shapes(images: int, epochs: int, shares: list[int], fewest: int) -> list[Shape]:
    """The long training, then the small ones."""
    found = [(images, epochs)]
    for share in shares:
        halvings = int(math.log2(share))
        pairs = ((images >> k, epochs >> (halvings - k)) for k in range(halvings + 1))
        found += [pair for pair in pairs if pair[0] >= fewest and pair[1]]
    return found


def train(whole: LabelledImages, row: Row, given: argparse.Namespace) -> list[Row]:
    """The networks of all policies, trained with so many images and epochs."""
    count, epochs, seed = row["images"], row["epochs"], row["seed"]
    order = shuffled(whole.labels, row["draw"])
    chosen = torch.cat([order[:count], order[given.images : given.images + given.judge]])
    data = whole.part(chosen)
    images = JudgedImages.of(data, torch.arange(count, len(chosen)))
    candidates = candidates_of(given)
    request = ContestRequest(DataSpec(given.data), changes=tuple(given.set))
    network = contest_network(
        images, given.model, request.settings(given.device, epochs * count), given.device
    )
    return [
        row
        | {
            "candidate": record.candidate,
            "accuracy": record.accuracy,
            "train_loss": entry.train_loss,
            "seconds": round(record.seconds, 1),
            "correct": "".join("01"[int(each)] for each in entry.correct),
        }
        for record, entry in trained(candidates, images, network, epochs, seed)
    ]


def packed(rows: list[Row]) -> list[Row]:
    """The rows with the answers of the judge images as hexadecimal digits."""
    return [row | {"correct": f"{int(row['correct'], 2):x}"} for row in rows]


def bits(row: Row) -> Tensor:
    """What a network had right, image by image."""
    text = f"{int(row['correct'], 16):0{row['judge']}b}"
    return torch.tensor([each == "1" for each in text])


def predicted(small: Networks, larger: Networks, whole: Shape) -> dict[str, float]:
    """The accuracies of whole trainings that the learning curve foresees from two smaller ones."""
    sizes = {math.prod(whole): whole[0]}
    sizes |= {r["images"] * r["epochs"]: r["images"] for n in (small, larger) for r in n.values()}
    entries = [
        Entry(name, row["images"] * row["epochs"], 0, losses, right, row["train_loss"])
        for networks in (small, larger)
        for name, row in networks.items()
        for right in [bits(row)]
        for losses in [torch.zeros(len(right), dtype=torch.float64)]
    ]
    everybody = torch.ones_like(entries[0].correct)
    table = ContestTable(everybody, tuple(entries), images=sizes)
    curve, way = learning_curve(table), table.growth(table.lengths[-1], math.prod(whole))
    return {
        name: 1 - (1 - row["accuracy"]) * math.exp(-curve.fall(row["train_loss"], way))
        for name, row in larger.items()
    }


def worth(told: dict[str, float], long: Networks) -> tuple[float, float, str]:
    """Points that the policy lacks which is told to be best, pairs in the right order, its name."""
    answers = {name: bits(row).double() for name, row in long.items()}
    best = max(row["accuracy"] for row in long.values())
    first = max(told, key=lambda name: told[name])
    right = []
    for one, two in itertools.combinations(long, 2):
        gaps = answers[one] - answers[two]
        if abs(gaps.mean()) > SEPARATED * gaps.std() / len(gaps) ** 0.5:
            right.append(bool((told[one] > told[two]) == (gaps.mean() > 0)))
    share = statistics.fmean(right) if right else math.nan
    return 100 * (best - long[first]["accuracy"]), share, first


def summary(rows: list[Row], images: int, epochs: int) -> list[str]:
    """What small trainings are worth, and what predictions from two of them, over all draws."""
    networks: dict[Shape, dict[int, Networks]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        networks[row["images"], row["epochs"]][row["draw"]][row["candidate"]] = row
    whole = networks.pop((images, epochs), {})
    lines = []
    for shape, draws in sorted(networks.items(), reverse=True):
        found = [
            worth({name: row["accuracy"] for name, row in draws[draw].items()}, long)
            for draw, long in whole.items()
            if draws[draw].keys() == long.keys()
        ]
        lines += [f"{words(shape, images * epochs)}: {line}" for line in told(found)]
    for small, larger in itertools.permutations(sorted(networks), 2):
        if small[0] > larger[0] or small[1] > larger[1] or math.prod(small) >= math.prod(larger):
            continue
        found = [
            worth(predicted(networks[small][draw], networks[larger][draw], (images, epochs)), long)
            for draw, long in whole.items()
            if networks[small][draw].keys() == networks[larger][draw].keys() == long.keys()
        ]
        pair = f"predicted from {words(small)} and {words(larger, images * epochs)}"
        lines += [f"{pair}: {line}" for line in told(found)]
    return lines


def words(shape: Shape, passes: int | None = None) -> str:
    """`1,000 images, 48 epochs (8 times fewer passes)`."""
    fewer = "" if passes is None else f" ({passes / math.prod(shape):.3g} times fewer passes)"
    return f"{shape[0]:,} images, {shape[1]} epochs{fewer}"


def told(found: list[tuple[float, float, str]]) -> list[str]:
    """A line about all draws, if there is one."""
    if not found:
        return []
    lost, right, first = zip(*found, strict=True)
    return [
        f"lost {statistics.fmean(lost):.2f} points, {statistics.fmean(right):.0%} of pairs right, "
        f"{len(found)} draws; first {', '.join(first)}"
    ]


def main() -> None:
    """Train what the file does not have, and print what each small training is worth."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_data_options(parser)
    parser.add_argument("--images", type=int, required=True, help="of the long training")
    parser.add_argument("--epochs", type=int, required=True, help="of the long training")
    parser.add_argument(
        "--share", type=int, action="append", help="small trainings have 1/share of the passes"
    )
    parser.add_argument("--fewest", type=int, default=250, help="images of the smallest training")
    parser.add_argument("--judge", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=1, help="draws of images, each with own seeds")
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--model")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--device", type=torch.device, default="cpu")
    given = parser.parse_args()
    rows, whole = rows_and_images(given)
    for draw in range(given.draws):
        for count, epochs in shapes(given.images, given.epochs, given.share or [8], given.fewest):
            row = {
                "data": whole.name,
                "images": count,
                "epochs": epochs,
                "draw": draw,
                "seed": draw,
            }
            if any(row.items() <= known.items() for known in rows):
                continue
            print(f"{whole.name}, {count:,} images, {epochs} epochs, draw {draw}", flush=True)
            made = packed(train(whole, row | {"judge": given.judge}, given))
            rows = json.loads(given.out.read_text()) if given.out.exists() else []
            rows += made
            given.out.write_text(json.dumps(rows, indent=1) + "\n")
    alike = [row for row in rows if row["data"] == whole.name]
    print("\n".join(summary(alike, given.images, given.epochs)))


if __name__ == "__main__":
    main()
