"""Search methods against random policies, where the right augmentation is known.

Usage: python benchmarks/planted_methods.py --out results.json [--seeds 5]

The class of an image is the side on which a blob lies and its colour; how high it lies tells
nothing. So moving images up and down helps a network that has few of them, and moving them
sideways, or changing their colours, spoils them. Beside every method random policies of its kind
are trained with, as many as cost what it cost. Networks trained with what each found tell the rest.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa import CIFAR, Policy
from deepaa.models import frozen_copy
from deepaa.policy import fitted_schedule
from deepaa.search import PRESETS, Search, SearchData
from deepaa.search.methods import TRAINING_COST, Part, World, open_method, seed_for
from deepaa.search.methods.trainings import Job, Trainings
from deepaa.train import TrainConfig

SIDE, EPOCHS, NETWORKS = 16, 40, 3
TRAIN, VALIDATION, TEST = 96, 400, 2000
VERTICAL = Policy.trivial(CIFAR.only("identity", "translate_y"), 1)
Row = dict[str, Any]
SETTINGS: dict[str, dict[str, Any]] = {
    "randaugment": {"epochs": EPOCHS, "repeats": 2},
    "fast-aa": {"epochs": EPOCHS, "trials": 200},
    "pba": {"epochs": EPOCHS, "population": 16},
    "dada": {"epochs": 5 * EPOCHS},
    "deepaa": {},
}
"""The methods, with lengths that cost about as much as each other on so few images."""


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """uint8 (count, 3, 16, 16) and labels 0..3: left or right, red or blue."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    across = torch.where(labels % 2 == 0, 6.0, 9.5) + 0.4 * torch.randn(count, generator=generator)
    down = 2.5 + 11 * torch.rand(count, generator=generator)
    distance = (x - across.view(-1, 1, 1)) ** 2 + (y - down.view(-1, 1, 1)) ** 2
    colour = torch.where(
        (labels < 2)[:, None], torch.tensor([[1.0, 0.5, 0.4]]), torch.tensor([[0.4, 0.5, 1.0]])
    )
    blob = torch.exp(-distance / 5)[:, None] * colour[:, :, None, None]
    noise = 45 * torch.randn(count, 3, SIDE, SIDE, generator=generator)
    return (90 + 90 * blob + noise).clamp(0, 255).to(torch.uint8), labels


class Net(nn.Module):
    """A small network that knows places: it does not pool over the whole image."""

    def __init__(self) -> None:
        """Fresh weights of torch's generator."""
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8 * (SIDE // 2) ** 2, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a uint8 batch."""
        x = (images.to(self.conv.weight.dtype) - 80) / 50
        return self.head(F.avg_pool2d(F.relu(self.conv(x)), 2).flatten(1))


def fresh(seed: int) -> nn.Module:
    """A network with weights by the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed % 2**63)
        return Net()


def landscape(seed: int) -> World:
    """The world of one seed."""
    parts = [Part(*images(count, 3 * seed + i)) for i, count in enumerate((TRAIN, VALIDATION))]
    return World(
        pretrain=parts[0],
        search=parts[1],
        validation=parts[1],
        classes=4,
        space=CIFAR,
        excludes=lambda row: False,
        defaults=Policy.identity(),
        make_model=fresh,
        train=TrainConfig(epochs=EPOCHS, batch=32, lr=0.02),
        device=torch.device("cpu"),
        seed=seed,
        pause=lambda: None,
    )


def accuracy(world: World, policy: Policy) -> float:
    """The mean accuracy on fresh images of networks that were trained with a policy."""
    test = Part(*images(TEST, 10**6 + world.seed))
    seeds = [seed_for(world.seed, "judge", i) for i in range(NETWORKS)]
    trainings = Trainings(world, [Job(world.pretrain, policy, EPOCHS, seed) for seed in seeds])
    while not trainings.done:
        trainings.train_epoch()
    found = [each for each in trainings.accuracies(test) if each is not None]
    return sum(found) / len(found)


def searched(world: World, name: str, changes: dict[str, Any], budget: int | None) -> Row:
    """What a method finds, and how networks do with it; `budget` bounds its passes."""
    method, _ = open_method(name)
    config = replace(method.config, **changes)
    if budget is not None:
        try:
            config = method.searcher.scaled(config, world, budget)
        except ValueError:  # not enough for a choice
            config = replace(config, trials=1)
    began, search = time.perf_counter(), method.searcher(world, config)
    for _ in search:
        pass
    policy = search.policy
    used = policy.expected_uses(policy.phases[-1].epoch)
    return {
        "method": name,
        "kind": changes.get("kind", method.searcher.result),
        "seed": world.seed,
        "passes": search.passes.cost,
        "seconds": round(time.perf_counter() - began, 1),
        "accuracy": accuracy(world, fitted_schedule(policy, EPOCHS)),
        "uses": {operation: round(count, 4) for operation, count in used.items() if count},
    }


def matched(world: World) -> list[Row]:
    """What gradient matching finds with the settings of the preset demo, and weaker forms."""
    began = time.perf_counter()
    trained = Trainings(world, [Job(world.pretrain, None, EPOCHS, seed_for(world.seed, "deepaa"))])
    while not trained.done:
        trained.train_epoch()
    images, labels, half = *world.validation[:2], VALIDATION // 2
    data = SearchData(images[:half], labels[:half], images[half:], labels[half:])
    config = replace(PRESETS["demo"].search, seed=world.seed).fitted_to(half)
    search = Search(frozen_copy(trained.each[0].model), data, world.space, config)
    for _ in search:
        pass
    found, seconds = search.policy, round(time.perf_counter() - began, 1)
    forms = {"": found, ", half strength": found.strength(0.5), ", spread": found.spread()}
    return [
        {
            "method": f"deepaa{form}",
            "kind": "layers",
            "seed": world.seed,
            "passes": TRAINING_COST * (EPOCHS * TRAIN + search.passes),
            "seconds": seconds,
            "accuracy": accuracy(world, policy),
            "uses": {k: round(v, 4) for k, v in policy.expected_uses().items() if v},
        }
        for form, policy in forms.items()
    ]


def of_seed(seed: int, methods: list[str]) -> Iterator[Row]:
    """Two policies that need no search; then every method, and random policies of its kind."""
    world = landscape(seed)
    known = {"none": Policy.identity(), "vertical": VERTICAL}
    for name, policy in known.items():
        yield {"method": name, "seed": seed, "accuracy": accuracy(world, policy)}
    for name in methods:
        own = name == "deepaa"
        forms = matched(world) if own else [searched(world, name, SETTINGS[name], None)]
        yield from forms
        control = {"kind": forms[0]["kind"], "epochs": EPOCHS, "schedule_epochs": EPOCHS}
        yield searched(world, "random", control, forms[0]["passes"]) | {"control_of": name}


def main() -> None:
    """Run every method and its control for every seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=10, help="the first seed; 0 and 1 calibrated")
    parser.add_argument("--methods", default=",".join(SETTINGS))
    given = parser.parse_args()
    rows: list[Row] = []
    for seed in range(given.first, given.first + given.seeds):
        for row in of_seed(seed, given.methods.split(",")):
            rows.append(row)
            of = f" beside {row['control_of']}" if "control_of" in row else ""
            print(f"seed {seed}  {row['method'] + of:28} {100 * row['accuracy']:.1f} %", flush=True)
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
