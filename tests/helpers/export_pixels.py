"""How far exported operations are from Pillow; `python tests/helpers/export_pixels.py` tells."""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepaa.data.embedded import load_embedded
from deepaa.export import albumentations as to_albumentations
from deepaa.ops.conversions import tensor_to_pil
from deepaa.ops.kernels_pil import KERNELS
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Row

COUNT = 32
"""Images of the sample: the first of the embedded ones, 32 x 32."""
CROPS = 8
"""Boxes of a resized crop per image."""
Pixels = np.ndarray[Any, Any]
OPERATIONS = (*CIFAR.operations, IMAGENET.operations[-1])
WAYS = (
    "albumentations",
    "albumentations, size not given",
    "kornia",
    "torchvision",
    "torchvision, PIL images",
)


def sample() -> Tensor:
    return load_embedded().train_images[:COUNT]


def measure(way: str) -> dict[str, tuple[float, float]]:
    """Per operation the share of differing values and the mean difference, over its magnitudes."""
    found = {}
    for operation in OPERATIONS:
        if operation.name == "resized_crop" and way.endswith("not given"):
            continue
        pairs = list(_pairs(way, operation))
        gaps = [np.abs(ours.astype(int) - theirs.astype(int)) for ours, theirs in pairs]
        share, mean = np.mean([(gap > 0).mean() for gap in gaps]), np.mean([g.mean() for g in gaps])
        found[operation.name] = (round(float(share), 5), round(float(mean), 4))
    return found


def _pairs(way: str, operation: Operation) -> Iterator[tuple[Pixels, Pixels]]:
    rng = random.Random(operation.name)
    for m in operation.magnitudes(13):
        theirs = _ways(way, Row(operation, m))
        for image in sample():
            for _ in range(CROPS if operation.name == "resized_crop" else 1):
                yield theirs(image, [rng.random() for _ in range(22)])


def _pillow(row: Row, image: Tensor, u: list[float]) -> Pixels:
    options = row.operation.options
    return np.asarray(
        KERNELS[row.operation.name](tensor_to_pil(image), row.magnitude, u, **options)
    )


def _cut_out(image: Tensor, box: tuple[int, ...]) -> Pixels:
    from PIL.Image import Resampling

    left, top, width, height = (int(v) for v in box)
    picture = tensor_to_pil(image)
    part = picture.crop((left, top, left + width, top + height))
    return np.asarray(part.resize(picture.size, Resampling.BICUBIC))


def _ways(way: str, row: Row) -> Callable[[Tensor, list[float]], tuple[Pixels, Pixels]]:
    if way.startswith("albumentations"):
        return _albumentations(row, None if way.endswith("not given") else 32)
    code = importlib.import_module(f"deepaa.export.{way.partition(',')[0]}")
    kernel, name = code.KERNELS[row.operation.name], row.operation.name
    options: dict[str, Any] = dict(row.operation.options)

    def kornia(image: Tensor, u: list[float]) -> tuple[Pixels, Pixels]:
        m = torch.tensor([math.nan if row.magnitude is None else row.magnitude])
        out = kernel(image[None] / 255, m, torch.tensor([u]), **options)
        levels = (out[0] * 255).round().permute(1, 2, 0).numpy()
        if name == "resized_crop":
            (box,) = code.crop_boxes(torch.tensor([u]), 32, 32, **options).tolist()
            return _cut_out(image, box), levels
        return _pillow(row, image, u), levels

    def torchvision(image: Tensor, u: list[float]) -> tuple[Pixels, Pixels]:
        given = tensor_to_pil(image) if way.endswith("PIL images") else image
        out = kernel(given, row.magnitude, u, **options)
        levels = out.permute(1, 2, 0).numpy() if isinstance(out, Tensor) else np.asarray(out)
        if name == "resized_crop":
            return _cut_out(image, code.crop_box(u, 32, 32, **options)), levels
        return _pillow(row, image, u), levels

    return kornia if way == "kornia" else torchvision


def _albumentations(
    row: Row, size: int | None
) -> Callable[[Tensor, list[float]], tuple[Pixels, Pixels]]:
    """Random operations are compared with the nearest thing that Pillow can give."""
    import albumentations as A

    made = to_albumentations.built(to_albumentations.call(row, size).weighted(1.0), A)
    run = A.Compose([made], save_applied_params=True, seed=0)

    def apply(image: Tensor, u: list[float]) -> tuple[Pixels, Pixels]:
        found = run(image=image.permute(1, 2, 0).numpy().copy())
        out = found["image"]
        if row.operation.name == "resized_crop":
            x, y, right, bottom = found["applied_transforms"][-1][1]["crop_coords"]
            return _cut_out(image, (x, y, right - x, bottom - y)), out
        tries = [_pillow(row, image, numbers) for numbers in _numbers(row.operation.name, u)]
        return min(tries, key=lambda one: int((one != out).sum())), out

    return apply


def _numbers(name: str, u: list[float]) -> list[list[float]]:
    """Random numbers that together make Pillow give all it can."""
    if name == "flip":
        return [[0.25], [0.75]]
    steps = {"crop": 9, "cutout": 32}.get(name)
    if steps is None:
        return [u]
    return [[(x + 0.5) / steps, (y + 0.5) / steps] for x in range(steps) for y in range(steps)]


if __name__ == "__main__":  # lines of src/deepaa/export/measured.toml
    for way in WAYS:
        print(f'[measured."{way}"]')  # noqa: T201
        for name, (share, mean) in measure(way).items():
            print(f"{name} = [{share}, {mean}]")  # noqa: T201
