"""Pictures for a report: images layer by layer, and what single transformations do."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL.Image import Resampling
from torch import Tensor

from deepaa.data import load_images
from deepaa.keys import sample_keys
from deepaa.ops import Draw, apply_batch
from deepaa.ops.convert import tensor_to_pil
from deepaa.policy import Policy
from deepaa.report.chains import TransformationUse
from deepaa.sources import EMBEDDED, file_choices, load_dataset, needed_again

SIDE = 128
"""Larger pictures are made smaller for the page."""
EXACT_SIDE = 64
"""Pictures up to this side are kept pixel by pixel."""
QUALITY = 85
"""Of the JPEG of larger ones."""
MOST_LAYERS = 12
"""Layers that are shown one by one."""


class Originals(NamedTuple):
    """Images to augment, and where they come from."""

    images: Tensor
    """uint8 (N, 3, H, W)."""
    origin: str
    """A sentence for the reader."""


class Cell(NamedTuple):
    """A picture in the page."""

    source: str
    """A data address."""
    caption: str


class LayerRow(NamedTuple):
    """All images after a layer."""

    name: str
    cells: tuple[Cell, ...]


class TransformationRow(NamedTuple):
    """Some images after one transformation."""

    name: str
    uses: float
    cells: tuple[Cell, ...]


def find_originals(
    config: Mapping[str, Any],
    count: int,
    data: Path | None = None,
    size: int | None = None,
    *,
    place: str | None = None,
) -> Originals:
    """Images of the run, of `data` if given, or embedded ones with the reason.

    Args:
        config: A run's settings; empty for a policy without a run.
        place: Where its images lay, of a run whose settings do not say so.
    """
    if data is not None:
        return Originals(load_images(data, count, size), f"Images of {data}.")
    if not config:
        return _embedded(count, "Images of CIFAR-10 that come with the package.")
    source = dict(config.get("source", {}))
    place = source["data"] = place or source.get("data")
    if place in (None, EMBEDDED):
        return _embedded(count, "The search used the CIFAR-10 images of the package; some of them.")
    try:
        images = _of_run(source, count, size, config.get("search", {}).get("seed", 0))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        reason = " ".join(str(error).split())
        return _embedded(
            count,
            "The images of the search cannot be found again, so these are CIFAR-10 images of the "
            f"package; give yours with --data. ({reason})",
        )
    name = Path(str(place)).name
    part = f"Images of {name}, of which the search used a part."
    return Originals(images, part if "reads" in source else f"Images of the search: {name}.")


def _embedded(count: int, origin: str) -> Originals:
    return Originals(load_images(None, count), origin)


def _of_run(source: Mapping[str, Any], count: int, size: int | None, seed: int) -> Tensor:
    place, side = source["data"], size or source.get("size")
    if Path(place).is_absolute():  # names of data sets are not: the run keeps whole paths
        try:
            return load_images(place, count, side)
        except ValueError:
            if not (
                source.get("on_bad_image") == "skip" or {"outside_links", "read"} & set(source)
            ):
                raise
    needed, choices = needed_again(source, seed), file_choices(source)
    found = load_dataset(place, root=source.get("root"), size=side, needed=needed, **choices)
    n = len(found.images)
    return found.images[[i * n // count for i in range(min(n, count))]]


def layer_rows(
    images: Tensor, policy: Policy, seed: int = 0, epoch: int = 0
) -> tuple[LayerRow, ...]:
    """The originals, then the images after each of the first layers, of one draw."""
    draw = policy.draw(sample_keys(seed, epoch, torch.arange(len(images))), epoch)
    rows = [LayerRow("original", tuple(Cell(address(image), "") for image in images))]
    for layer in range(1, min(draw.choice.shape[1], MOST_LAYERS) + 1):
        part = Draw(draw.choice[:, :layer], draw.uniform[:, :layer])
        after = apply_batch(images, part, policy.table)
        chosen = [policy.table.rows[row] for row in draw.choice[:, layer - 1].tolist()]
        cells = (
            Cell(address(image), str(row.transformation))
            for image, row in zip(after, chosen, strict=True)
        )
        rows.append(LayerRow(f"layer {layer}", tuple(cells)))
    return tuple(rows)


def transformation_rows(
    images: Tensor, policy: Policy, uses: Sequence[TransformationUse], seed: int = 0
) -> tuple[TransformationRow, ...]:
    """What each transformation makes of the images."""
    keys = sample_keys(seed, 0, torch.arange(len(images)))
    uniform = Policy.uniform(policy.table, 1).draw(keys).uniform
    rows = []
    for use in uses:
        choice = torch.full((len(images), 1), use.row)
        after = apply_batch(images, Draw(choice, uniform), policy.table)
        cells = tuple(Cell(address(image), "") for image in after)
        rows.append(TransformationRow(str(use.transformation), use.uses, cells))
    return tuple(rows)


def address(image: Tensor) -> str:
    """A picture as text that a page can hold: exact if it is small."""
    picture = tensor_to_pil(image)
    stream = io.BytesIO()
    if max(picture.size) <= EXACT_SIDE:
        picture.save(stream, "PNG", optimize=True)
        kind = "png"
    else:
        picture.thumbnail((SIDE, SIDE), Resampling.LANCZOS)
        picture.convert("RGB").save(stream, "JPEG", quality=QUALITY)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
