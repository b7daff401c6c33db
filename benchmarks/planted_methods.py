"""Search methods against random policies, where the right augmentation is known.

Usage: python benchmarks/planted_methods.py --out results.json [--seeds 5] [--budget 600000]

The class of an image is the side on which a blob lies and its colour; how high it lies tells
nothing. So moving images up and down helps a network that has few of them, and moving them
sideways, or changing their colours, spoils them. Every method gets the same budget, and so does
the random search for policies of its kind. Networks trained with what each found tell the rest.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa import CIFAR, Policy
from deepaa.search.methods import Part, World, open_method, seed_for
from deepaa.search.methods.trainings import Job, Trainings
from deepaa.train import TrainConfig

SIDE, EPOCHS, NETWORKS = 16, 40, 3
TRAIN, VALIDATION, TEST = 96, 400, 2000
SETTINGS: dict[str, dict[str, Any]] = {
    "randaugment": {"epochs": EPOCHS},
    "fast-aa": {"epochs": EPOCHS},
    "pba": {"epochs": EPOCHS},
    "dada": {},
}
"""The methods, and what of their settings belongs to this landscape."""


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """uint8 (count, 3, 16, 16) and labels 0..3: left or right, red or blue."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    across = torch.where(labels % 2 == 0, 5.0, 10.0) + 0.7 * torch.randn(count, generator=generator)
    down = 2.5 + 11 * torch.rand(count, generator=generator)
    distance = (x - across.view(-1, 1, 1)) ** 2 + (y - down.view(-1, 1, 1)) ** 2
    colour = torch.where(
        (labels < 2)[:, None], torch.tensor([[1.0, 0.5, 0.4]]), torch.tensor([[0.4, 0.5, 1.0]])
    )
    blob = torch.exp(-distance / 5)[:, None] * colour[:, :, None, None]
    noise = 55 * torch.randn(count, 3, SIDE, SIDE, generator=generator)
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


def searched(world: World, name: str, budget: int, changes: dict[str, Any]) -> dict[str, Any]:
    """What a method finds for a budget, and how networks do with it."""
    method, _ = open_method(name)
    config = replace(method.config, **changes)
    config = method.searcher.scaled(config, world, budget)
    began, search = time.perf_counter(), method.searcher(world, config)
    for _ in search:
        pass
    policy = search.policy
    last = policy.phases[-1].epoch
    used = policy.expected_uses(last)
    return {
        "method": name,
        "kind": changes.get("kind", method.searcher.result),
        "seed": world.seed,
        "passes": search.passes.cost,
        "seconds": time.perf_counter() - began,
        "accuracy": accuracy(world, policy),
        "uses": {operation: round(count, 4) for operation, count in used.items() if count},
    }


def main() -> None:
    """Run every method and its control for every seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=600_000)
    parser.add_argument("--methods", default=",".join(SETTINGS))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        world = landscape(seed)
        for name, policy in (
            ("none", Policy.identity()),
            ("vertical", Policy.trivial(CIFAR.only("identity", "translate_y"), 1)),
        ):
            rows.append({"method": name, "seed": seed, "accuracy": accuracy(world, policy)})
        kinds = {open_method(name)[0].searcher.result for name in given.methods.split(",")}
        for kind in sorted(kinds):
            rows.append(searched(world, "random", given.budget, {"kind": kind, "epochs": EPOCHS}))
        for name in given.methods.split(","):
            rows.append(searched(world, name, given.budget, SETTINGS[name]))
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
        for row in rows[-2 - len(kinds) - len(given.methods.split(",")) :]:
            label = row["method"] + (f" ({row['kind']})" if row["method"] == "random" else "")
            print(f"seed {seed}  {label:20} {100 * row['accuracy']:.1f} %", flush=True)


if __name__ == "__main__":
    main()
