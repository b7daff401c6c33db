"""What the protection of classes leaves out on data whose answer is known, over several seeds.

Usage: python benchmarks/class_protection.py --data my_images/ --size 32 --seeds 4 --out found.json

Photographs have nothing that an operation turns into another class: what is left out is a false
alarm. Digits have: a mirrored 3 is near to a 5. The network is that of the preset demo.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from deepaa import CIFAR, SearchConfig
from deepaa.data import DataSpec
from deepaa.search import PRESETS, PolicySearch, ProtectionRecord
from deepaa.train import EpochRecord


def protected(spec: DataSpec, seed: int) -> dict[str, Any]:
    """What a search with this seed leaves out, and how well its network knew the classes."""
    began, data = time.perf_counter(), spec.load()
    search = PolicySearch(
        data, space=CIFAR, search=SearchConfig(seed=seed), proxy=PRESETS["demo"].proxy
    )
    accuracy = None
    for record in search:
        if isinstance(record, EpochRecord):
            accuracy = record.accuracy
        if isinstance(record, ProtectionRecord):
            break
    return {
        "data": data.name,
        "images": len(data.labels),
        "seed": seed,
        "train_accuracy": accuracy,
        "left_out": [each.text for each in record.protection.changed],
        "untestable_classes": len(record.protection.untestable),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Ask for every seed, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--size", type=int)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    spec = DataSpec.from_options(given.data, size=given.size)
    rows = []
    for seed in range(given.seeds):
        rows.append(protected(spec, seed))
        print(json.dumps(rows[-1]), flush=True)
    given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
