"""What the rules for the end of a layer do to networks: searches with and without each, trained.

    python benchmarks/layer_rules.py --out rules.json [--seeds 4] [--epochs 20]

On the 4,000 images of CIFAR-10 that come with the package, less 800 that judge; the test part is
left alone. Searches of one seed share the network and the first layer, since the rules concern
later ones (`last-step` takes the last step of the first as well). Each policy trains `small` once,
with the seed of its search, and the same seed and judge images for all: differences are paired.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from deepaa import Policy
from deepaa.data import LabelledImages, load_dataset, stratified_splits
from deepaa.models import frozen_copy, load_model
from deepaa.policy import load_policy
from deepaa.search import PRESETS, LayerRecord, PolicySearch, Search, SearchData
from deepaa.train import ImageBatches, TrainConfig, Training

VARIANTS: dict[str, dict[str, float]] = {
    "all-rules": {},
    "no-simplify": {"simplify": 0.0},
    "no-simplify-no-converged": {"simplify": 0.0, "converged": 1.0},
    "last-step": {"simplify": 0.0, "converged": 1.0, "average": 0.0},
}
REFERENCES = {"none": "none", "crop-flip": "crop-flip"}
JUDGED = 800


def main() -> None:
    """Search and train, and write the file after every network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)  # cores are shared
    whole = load_dataset()
    train, judge, _ = stratified_splits(whole.labels, (len(whole.labels) - JUDGED, JUDGED, 0), 0)
    images, judged = (part_of_images(whole, part) for part in (train, judge))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = {
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "images": len(train),
        "judge": len(judge),
        "network": "small",
        "epochs": options.epochs,
        "networks": [],
    }
    for seed in range(options.seeds):
        policies = dict(searched(images, seed))
        policies |= {name: (load_policy(ref), {}) for name, ref in REFERENCES.items()}
        for name, (policy, facts) in policies.items():
            began = time.perf_counter()
            right = trained(images, judged, policy, seed, options.epochs)
            accuracy = right.double().mean().item()
            row = {"variant": name, "seed": seed, "accuracy": accuracy, **facts}
            row["correct"] = "".join("01"[int(bit)] for bit in right)
            found["networks"].append(row)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            print(seed, name, f"{accuracy:.4f}", f"{time.perf_counter() - began:.0f} s", flush=True)


def part_of_images(data: LabelledImages, part: torch.Tensor) -> LabelledImages:
    """Some of the images."""
    return data._replace(images=data.images[part], labels=data.labels[part])


def searched(images: LabelledImages, seed: int) -> Any:
    """The policy of each variant, with what it cost and consists of."""
    search, proxy, space = PRESETS["demo"]
    base = dataclasses.replace(search, layers=3, seed=seed)
    proxy = dataclasses.replace(proxy, augment=False)
    whole = PolicySearch(images, space=space, search=base, proxy=proxy)
    for _ in whole._pretrain():
        pass
    both = ((images.images[part], images.labels[part]) for part in whole.splits[1:])
    data = SearchData(*(part for pair in both for part in pair))
    frozen = frozen_copy(whole.model)
    first = Search(frozen, data, space, whole.config)
    while first.optimizer.step < base.steps:
        first._run_step()
    state = {name: value.clone() for name, value in first.state().items()}
    print(seed, "first layer", first.passes, f"{time.process_time():.0f} s of CPU", flush=True)
    for name, changes in VARIANTS.items():
        began = time.perf_counter()
        one = Search(frozen, data, space, dataclasses.replace(whole.config, **changes))
        one.load_state(state)
        if one.config.average == 0:
            one.optimizer.averaged_steps = 0
        layers = [record for record in one if isinstance(record, LayerRecord)]
        facts = {
            "passes": one.passes,
            "search_seconds": round(time.perf_counter() - began, 1),
            "gains": [[r.gain, r.gain_error, r.improvement_mean] for r in layers],
            "reasons": [r.reason for r in layers],
            "shares": [
                {n: round(p, 4) for n, p in zip(names(one), row, strict=True) if p > 0.02}
                for row in one.policy.operation_probabilities().tolist()
            ],
        }
        print(seed, name, facts["search_seconds"], facts["shares"][1:], flush=True)
        yield name, (one.policy, facts)


def names(search: Search) -> list[str]:
    """Of the operations."""
    return [operation.name for operation in search.table.operations]


def trained(
    images: LabelledImages, judged: LabelledImages, policy: Policy, seed: int, epochs: int
) -> torch.Tensor:
    """Whether a network trained with the policy calls each judge image by its class."""
    config = TrainConfig(epochs=epochs, seed=seed)
    model = load_model("small", images.images, len(images.class_names), seed)
    batches = ImageBatches(images.images, images.labels, policy, config, torch.device("cpu"))
    training = Training(model, batches, config)
    for _ in training:
        pass
    training.model.eval()
    with torch.no_grad():
        return training.model(judged.images).argmax(1) == judged.labels


if __name__ == "__main__":
    main()
