"""Pictures of a policy at work: cells of a page, and grids of originals and draws."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Image as PilImage, Resampling
from torch import Tensor

from deepaa.data import EMBEDDED, DataSpec, load_images, load_training_images
from deepaa.files import plural
from deepaa.ops import Draw, apply_batch, check_images, sample_keys, tensor_to_pil
from deepaa.policy import Policy, weaker_draw
from deepaa.report.subject import CONTEST_KIND

INSTEAD = "these are CIFAR-10 images of the package; give yours with --data"
SHOWN_SIDE = 96
"""Smaller images are enlarged by a whole factor to about this many pixels."""
EXACT_SIDE = 64
"""Up to so many pixels, a page shows them all."""
MARGIN, GAP = 16, 4
TITLE_SIZE, LABEL_SIZE = 18, 14
BACKGROUND, INK, FAINT = (246, 248, 250), (31, 35, 40), (101, 109, 118)
OUTLINE = (208, 215, 222)
"""Around each picture, so that a white one has an edge."""


def png_bytes(picture: PilImage) -> bytes:
    """The content of a PNG file, to be written whole or not at all."""
    stream = io.BytesIO()
    picture.save(stream, "png")
    return stream.getvalue()


# For a page


class Originals(NamedTuple):
    """Images to augment, and where they come from."""

    images: Tensor
    """uint8 (N, 3, H, W)."""
    origin: str
    """A sentence for the reader."""


class PictureRow(NamedTuple):
    """The images after a layer, or after one transformation."""

    name: str
    pictures: tuple[tuple[str, str], ...]
    """Data addresses, and captions or nothing."""
    uses: float | None = None
    """How often an image meets the transformation."""


def find_originals(
    config: Mapping[str, Any],
    count: int,
    data: Path | None = None,
    size: int | None = None,
    columns: str | None = None,
) -> Originals:
    """Images of `data` if given, else of the run, else embedded ones with the reason.

    Args:
        config: A run's settings; empty for a policy without a run.
        columns: As `DataSpec.columns`, of `data`.
    """
    if data is not None:
        return Originals(load_images(data, count, size, columns=columns), f"Images of {data}.")
    entry, what = config.get("source", {}).get("data"), work_of(config)
    spec = DataSpec.from_json(entry) if entry is not None else None
    if not config:
        origin = "Images of CIFAR-10 that come with the package."
    elif spec is None:
        origin = f"The images of the {what} were given by Python code, so {INSTEAD}."
    elif spec.data in (None, EMBEDDED):
        origin = f"The {what} used the CIFAR-10 images of the package; some of them."
    else:
        name = Path(str(spec.data)).name
        part = f"Images of {name}, of which the {what} used a part."
        origin = part if spec.subset_sizes else f"Images of the {what}: {name}."
        try:
            subset = spec.subset(config.get("search", {}).get("seed", 0))
            wanted = replace(spec, size=size or spec.size)
            return Originals(load_training_images(wanted, count, subset), origin)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            reason = " ".join(str(error).split())
            origin = f"The images of the {what} cannot be found again, so {INSTEAD}. ({reason})"
    return Originals(load_images(None, count), origin)


def work_of(config: Mapping[str, Any]) -> str:
    """What a run is called: a search, or a contest without one."""
    return CONTEST_KIND if config.get("kind") == CONTEST_KIND else "search"


def named_images(config: Mapping[str, Any]) -> str | None:
    """The folder or file of images that a run names, which may lie anywhere; None for others."""
    entry = config.get("source", {}).get("data") or {}
    place = str(entry.get("data", ""))
    return place if Path(place).is_absolute() else None


def layer_rows(
    images: Tensor, policy: Policy, seed: int = 0, epoch: int = 0
) -> tuple[PictureRow, ...]:
    """The originals, then the images after each of the first twelve layers, of one draw."""
    draw = policy.draw(sample_keys(seed, epoch, torch.arange(len(images))), epoch)
    rows = [_picture_row("original", images)]
    for layer in range(1, min(draw.choice.shape[1], 12) + 1):
        part = Draw(draw.choice[:, :layer], draw.uniform[:, :layer])
        after = apply_batch(images, part, policy.table)
        chosen = [policy.table.rows[row] for row in draw.choice[:, layer - 1].tolist()]
        captions = [str(row.transformation) for row in chosen]
        rows.append(_picture_row(f"layer {layer}", after, captions))
    return tuple(rows)


def top_transformations(policy: Policy, epoch: int = 0) -> list[tuple[int, float]]:
    """The most used transformation of each of the eight most used operations, without identity.

    Pairs of its row in the policy's table, and how often an image meets it.
    """
    uses = policy.row_probabilities(epoch).sum(0).tolist()
    by_name: dict[str, list[tuple[int, float]]] = {}
    for i, (row, use) in enumerate(zip(policy.table.rows, uses, strict=True)):
        if use > 0 and row.operation.name != "identity":
            by_name.setdefault(row.operation.name, []).append((i, use))
    ranked = sorted(by_name.values(), key=lambda rows: -round(sum(use for _, use in rows), 12))
    return [max(rows, key=lambda row: round(row[1], 12)) for rows in ranked[:8]]


def transformation_rows(
    images: Tensor, policy: Policy, seed: int = 0, epoch: int = 0
) -> tuple[PictureRow, ...]:
    """What the most used transformations make of the images."""
    keys = sample_keys(seed, 0, torch.arange(len(images)))
    uniform = Policy.uniform(policy.table, 1).draw(keys).uniform
    found = []
    for row, uses in top_transformations(policy, epoch):
        after = apply_batch(images, Draw(torch.full((len(images), 1), row), uniform), policy.table)
        name = str(policy.table.rows[row].transformation)
        found.append(_picture_row(name, after)._replace(uses=uses))
    return tuple(found)


def _picture_row(name: str, images: Tensor, captions: Sequence[str] = ()) -> PictureRow:
    texts = captions or [""] * len(images)
    return PictureRow(name, tuple(zip(map(data_url, images), texts, strict=True)))


def data_url(image: Tensor) -> str:
    """A picture as text that a page can hold: exact up to 64 pixels a side, else at most 128."""
    picture = tensor_to_pil(image)
    if is_exact(image):
        return picture_url(picture)
    picture.thumbnail((128, 128), Resampling.LANCZOS)
    return picture_url(picture.convert("RGB"), "jpeg")


def is_exact(images: Tensor) -> bool:
    """Whether a page shows the pixels of (N, C, H, W) images as they are: small ones."""
    return max(images.shape[-2:]) <= EXACT_SIDE


def small_url(image: Tensor) -> str:
    """As `data_url`, in two thirds of its bytes, for pictures that come by the hundred."""
    picture = tensor_to_pil(image).convert("RGB")
    stream = io.BytesIO()
    if is_exact(image):
        picture.save(stream, "webp", lossless=True, method=0)
    else:
        picture.thumbnail((128, 128), Resampling.LANCZOS)
        picture.save(stream, "webp", quality=80, method=2)
    return f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode()}"


def picture_url(picture: PilImage, kind: Literal["png", "jpeg"] = "png") -> str:
    """A picture as text that a page can hold: exact as PNG, small as JPEG."""
    stream = io.BytesIO()
    picture.save(stream, kind, quality=85, optimize=kind == "png")
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


# Grids


class Layout(NamedTuple):
    """Where the pictures of a grid lie, in pixels."""

    width: int
    """Of an enlarged picture."""
    height: int
    left: int
    """Of the first column."""
    top: int
    """Of the originals."""
    together: int = 1
    """Rows below the originals that stand close together."""

    def box(self, row: int, column: int) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) of a picture; row 0 holds the originals, row r draw r."""
        x = self.left + column * (self.width + GAP)
        apart = 1 if row else 0  # from the originals
        if self.together > 1:
            apart += max(0, row - 1) // self.together
        y = self.top + row * (self.height + GAP) + 2 * GAP * apart
        return x, y, x + self.width, y + self.height


def grid_layout(
    height: int,
    width: int,
    rows: int,
    scale: int | None = None,
    strengths: Sequence[float] = (1.0,),
) -> Layout:
    """The layout of a grid of `rows` draws of (height, width) images, each in some strengths."""
    scale = max(1, round(SHOWN_SIDE / max(height, width))) if scale is None else scale
    if scale < 1:
        raise ValueError(f"scale should be at least 1, got {scale}")
    labels = _labels(rows, strengths)
    left = MARGIN + max(_text_width(label, LABEL_SIZE) for label in labels) + 12
    top = MARGIN + TITLE_SIZE + 14
    return Layout(width * scale, height * scale, left, top, len(strengths))


def preview_grid(
    images: Tensor,
    policy: Policy,
    rows: int = 4,
    seed: int = 0,
    scale: int | None = None,
    epoch: int = 0,
    *,
    title: str | None = None,
    strengths: Sequence[float] = (1.0,),
) -> PilImage:
    """The originals, and below them `rows` draws of augmented versions, as one RGB picture.

    Draw r uses the keys of `seed` in epoch `epoch + r - 1` for samples 0, 1, ...: a transform with
    that seed, given those sample indices, draws the same in that epoch.

    Args:
        images: uint8 (N, C, H, W) with 1 or 3 channels.
        scale: Whole factor by which images are enlarged; by default small ones to about 96 pixels.
        epoch: Which phase of a schedule to show.
        title: Text above the grid, and the policy's size after it where that fits; by default only
            the size.
        strengths: From 0 to 1; each draw has a row for each of them, in which the same operations
            with the same random numbers are weaker, see `weaker_draw`.
    """
    if rows < 1:
        raise ValueError(f"rows should be at least 1, got {rows}")
    if not strengths:
        raise ValueError("strengths should be one number from 0 to 1 or more, got none")
    check_images(images)
    layout = grid_layout(images.shape[2], images.shape[3], rows, scale, strengths)
    labels = _labels(rows, strengths)
    _, _, right, bottom = layout.box(len(labels) - 1, len(images) - 1)
    sheet = empty_sheet(right + MARGIN, bottom + MARGIN)
    pen, room = ImageDraw.Draw(sheet), sheet.width - 2 * MARGIN
    small, large = ImageFont.load_default(LABEL_SIZE), ImageFont.load_default(TITLE_SIZE)
    rows_of_table = plural(len(policy.table), "transformation")
    size = f"{plural(policy.depth, 'layer')} over {rows_of_table}"
    heading = _shortened(title or size, room)
    pen.text((MARGIN, MARGIN + TITLE_SIZE), heading, INK, large, anchor="ls")
    end = _text_width(heading, TITLE_SIZE) + 14
    if title and end + _text_width(size, LABEL_SIZE) <= room:
        pen.text((MARGIN + end, MARGIN + TITLE_SIZE), size, FAINT, small, anchor="ls")
    for row, label in enumerate(labels):
        _, top, _, bottom = layout.box(row, 0)
        place = (layout.left - 12, (top + bottom) // 2)
        pen.text(place, label, FAINT if row else INK, small, anchor="rm")
        draw, which = divmod(row - 1, len(strengths))
        how = (draw + 1, seed, epoch, strengths[which])
        shown = augmented(images, policy, *how) if row else images
        for column, image in enumerate(shown):
            box = layout.box(row, column)
            shape = (layout.width, layout.height)
            picture = tensor_to_pil(image).resize(shape, Resampling.NEAREST)
            sheet.paste(picture.convert("RGB"), box)
            pen.rectangle((box[0] - 1, box[1] - 1, box[2], box[3]), outline=OUTLINE)
    return sheet


def augmented(
    images: Tensor, policy: Policy, row: int, seed: int = 0, epoch: int = 0, strength: float = 1.0
) -> Tensor:
    """The images of draw `row` (from 1) of a preview."""
    keys = sample_keys(seed, epoch + row - 1, torch.arange(len(images)))
    return apply_batch(images, *weaker_draw(policy, keys, strength, epoch))


def _labels(rows: int, strengths: Sequence[float]) -> list[str]:
    """What stands beside the rows; a full strength alone need not be told."""
    how = [f" at {s:g}" for s in strengths] if tuple(strengths) != (1.0,) else [""]
    return ["original", *(f"draw {r}{text}" for r in range(1, rows + 1) for text in how)]


def _text_width(text: str, size: int) -> int:
    return round(ImageFont.load_default(size).getlength(text) + 0.5)


def _shortened(title: str, width: int) -> str:
    """The title, or its beginning and '...', so that it fits into `width` pixels."""
    beginnings = (title[:n] + "..." for n in range(len(title), 0, -1))
    shorter = (text for text in (title, *beginnings) if _text_width(text, TITLE_SIZE) <= width)
    return next(shorter, "...")


def empty_sheet(width: int, height: int) -> PilImage:
    """An empty picture, unless it would take gigabytes, which few programs show."""
    if width * height > 200_000_000:
        raise ValueError(
            f"the picture would have {width} x {height} pixels; show fewer or smaller images"
        )
    return Image.new("RGB", (width, height), BACKGROUND)
