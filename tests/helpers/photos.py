"""Photos of many shapes in a folder, and how they are streamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as vision

from deepaa.data.folder import list_images
from deepaa.data.image_file import DEFAULT_READING, Decoded, read_image
from deepaa.data.streaming import StreamedImages

SIZE = 24
BICUBIC = vision.InterpolationMode.BICUBIC


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Noise that is smooth enough to survive a JPEG."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def save_photos(root: Path) -> Path:
    """Two classes of photos of many shapes, 41 to train on and 10 to test."""
    for part, count in (("train", 41), ("val", 10)):
        for i in range(count):
            place = root / part / ("cat" if i % 3 else "dog")
            place.mkdir(parents=True, exist_ok=True)
            width, height = 30 + 7 * (i % 5), 26 + 11 * (i % 4)
            picture(width, height, 100 * count + i).save(place / f"{i:03}.{['png', 'jpg'][i % 2]}")
    return root


def streamed(folder: Path, **options: object) -> StreamedImages:
    settings: dict[str, object] = {"train": True, "workers": 0, **options}
    return StreamedImages(folder, SIZE, **settings)  # type: ignore[arg-type]


def all_of(
    stream: StreamedImages, epoch: int = 0, batch: int = 8, *, seed: int = 5
) -> list[Tensor]:
    """Images, labels and rows of an epoch, joined."""
    batches = list(stream.batches(epoch, batch, seed=seed))
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def decoded(folder: Path, part: str) -> list[Image.Image]:
    results = [read_image(f, DEFAULT_READING) for f in list_images(folder, part).files]
    return [result.image for result in results if isinstance(result, Decoded)]
