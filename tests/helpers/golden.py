"""Checksums of what must never change by accident: draws, pixels and policy files.

`python tests/helpers/golden.py` writes `tests/golden/golden.json` anew. Only the public interface
is used, so that the same script runs on every version. Everything in it is integer or float64
arithmetic that does not depend on the machine.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import deepaa
from deepaa import CIFAR, IMAGENET, DeepAutoAugment, load_policy

GOLDEN = Path(__file__).parents[1] / "golden" / "golden.json"
NAMES = (
    "cifar10",
    "cifar100",
    "deepta",
    "deepta:4",
    "none",
    "autoaugment",
    "trivialaugment",
    "trivialaugment-wide",
    "randaugment:n=3,m=5",
    "uniformaugment",
    "crop-flip",
    "crop-flip-cutout",
)


def images(count: int, height: int, width: int) -> Tensor:
    """Pictures with edges, ramps and noise, the same everywhere."""
    y = torch.arange(height).view(1, 1, -1, 1)
    x = torch.arange(width).view(1, 1, 1, -1)
    n = torch.arange(count).view(-1, 1, 1, 1)
    c = torch.arange(3).view(1, -1, 1, 1)
    ramp = 7 * x * (c + 1) + 5 * y * (n + 1) + 31 * n
    noise = (x * 2654435761 + y * 40503 + n * 97 + c * 7919) // 64 % 61
    squares = ((x // 8 + y // 8 + n) % 2) * 60
    return ((ramp + noise + squares) % 256).to(torch.uint8)


def digest(*tensors: Tensor) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return total.hexdigest()


def sums() -> Iterator[tuple[str, str]]:
    for name in NAMES:
        policy = load_policy(name)
        keys = torch.arange(64) * 1_000_003 + 17
        draw = policy.draw(keys)
        yield f"draw {name}", digest(draw.choice, draw.uniform)
        pictures = images(64, 32, 32)
        yield f"pixels {name}", digest(deepaa.apply_batch(pictures, draw, policy.table))
        augment = DeepAutoAugment(policy, seed=3)
        augment.set_epoch(2)
        yield f"transform {name}", digest(augment(pictures, index=torch.arange(64)))
        with tempfile.TemporaryDirectory() as folder:
            policy.save(Path(folder) / "policy.json")
            text = (Path(folder) / "policy.json").read_bytes()
        yield f"file {name}", hashlib.sha256(text).hexdigest()
    for label, space, size in (("CIFAR", CIFAR, (33, 32)), ("IMAGENET", IMAGENET, (140, 131))):
        count = len(space)
        pictures = images(count, *size)
        uniform = (torch.arange(count * 64).view(count, 1, 64) * 40503 % 65536).float() / 65536
        policy = deepaa.Policy.identity(space)
        slots = policy.draw(torch.arange(count)).uniform.shape[-1]
        draw = deepaa.Draw(torch.arange(count).view(-1, 1), uniform[..., :slots])
        yield f"rows {label}", digest(deepaa.apply_batch(pictures, draw, space.table))


def main() -> None:
    GOLDEN.write_text(json.dumps(dict(sums()), indent=1) + "\n")


if __name__ == "__main__":
    main()
