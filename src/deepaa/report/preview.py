"""A picture of what a policy does: originals in the first row, draws below."""

from __future__ import annotations

from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Image as PilImage
from PIL.Image import Resampling
from torch import Tensor

from deepaa.keys import sample_keys
from deepaa.ops import apply_batch
from deepaa.ops.convert import tensor_to_pil
from deepaa.policy import Policy

SHOWN_SIDE = 96
"""Smaller images are enlarged by a whole factor to about this many pixels."""
MAX_PIXELS = 200_000_000
"""Larger grids are refused: they would take gigabytes, and few programs show them."""
MARGIN = 16
TITLE_SIZE, LABEL_SIZE = 18, 14
BACKGROUND, INK, FAINT = (246, 248, 250), (31, 35, 40), (101, 109, 118)
OUTLINE = (208, 215, 222)
"""Around each picture, so that a white one has an edge."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


class Layout(NamedTuple):
    """Where the pictures of a grid lie, in pixels."""

    width: int
    """Of an enlarged picture."""
    height: int
    left: int
    """Of the first column."""
    top: int
    """Of the originals."""
    gap: int
    below_originals: int
    """Extra space between the originals and the first draw."""

    def box(self, row: int, column: int) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) of a picture; row 0 holds the originals, row r draw r."""
        x = self.left + column * (self.width + self.gap)
        y = self.top + row * (self.height + self.gap) + (self.below_originals if row else 0)
        return x, y, x + self.width, y + self.height


def grid_layout(height: int, width: int, rows: int, scale: int | None = None) -> Layout:
    """The layout of a grid of `rows` draws of (height, width) images."""
    scale = _scale(height, width) if scale is None else scale
    if scale < 1:
        raise ValueError(f"scale should be at least 1, got {scale}")
    labels = [_text_width(label, LABEL_SIZE) for label in _labels(rows)]
    return Layout(
        width=width * scale,
        height=height * scale,
        left=MARGIN + max(labels) + 12,
        top=MARGIN + TITLE_SIZE + 14,
        gap=4,
        below_originals=8,
    )


def preview_grid(
    images: Tensor,
    policy: Policy,
    rows: int = 4,
    seed: int = 0,
    scale: int | None = None,
    epoch: int = 0,
    *,
    title: str | None = None,
) -> PilImage:
    """The originals, and below them `rows` rows of augmented versions, as one RGB picture.

    Draw r uses the keys of `seed` in epoch `epoch + r - 1` for samples 0, 1, ...: a transform with
    that seed, given those sample indices, draws the same in that epoch.

    Args:
        images: uint8 (N, C, H, W) with 1 or 3 channels.
        scale: Whole factor by which images are enlarged; by default small ones to about 96 pixels.
        epoch: Which phase of a schedule to show.
        title: Text above the grid; by default the policy's size.
    """
    if rows < 1:
        raise ValueError(f"rows should be at least 1, got {rows}")
    if images.ndim != 4 or images.dtype != torch.uint8 or not len(images):
        shape = tuple(images.shape)
        raise ValueError(f"images should be uint8 (N, C, H, W), got {images.dtype} {shape}")
    layout = grid_layout(images.shape[2], images.shape[3], rows, scale)
    _, _, right, bottom = layout.box(rows, len(images) - 1)
    if right * bottom > MAX_PIXELS:
        raise ValueError(
            f"the picture would have {right} x {bottom} pixels; show fewer or smaller images"
        )
    sheet = Image.new("RGB", (right + MARGIN, bottom + MARGIN), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    _write_title(pen, title, policy, sheet.width - 2 * MARGIN)
    for row, label in enumerate(_labels(rows)):
        _, top, _, bottom = layout.box(row, 0)
        place = (layout.left - 12, (top + bottom) // 2)
        pen.text(place, label, FAINT if row else INK, _font(LABEL_SIZE), anchor="rm")
        shown = images if row == 0 else augmented(images, policy, row, seed, epoch)
        for column, image in enumerate(shown):
            box = layout.box(row, column)
            large = tensor_to_pil(image).resize((layout.width, layout.height), Resampling.NEAREST)
            sheet.paste(large.convert("RGB"), box)
            pen.rectangle((box[0] - 1, box[1] - 1, box[2], box[3]), outline=OUTLINE)
    return sheet


def _write_title(pen: ImageDraw.ImageDraw, title: str | None, policy: Policy, room: int) -> None:
    """The title and, after it, the policy's size, as far as they fit."""
    size = f"{policy.depth} layers over {len(policy.table)} transformations"
    heading = _shortened(title or size, TITLE_SIZE, room)
    line = MARGIN + TITLE_SIZE
    pen.text((MARGIN, line), heading, INK, _font(TITLE_SIZE), anchor="ls")
    left = _text_width(heading, TITLE_SIZE) + 14
    if title and left + _text_width(size, LABEL_SIZE) <= room:
        pen.text((MARGIN + left, line), size, FAINT, _font(LABEL_SIZE), anchor="ls")


def augmented(images: Tensor, policy: Policy, row: int, seed: int = 0, epoch: int = 0) -> Tensor:
    """The images of draw `row` (from 1) of a preview."""
    keys = sample_keys(seed, epoch + row - 1, torch.arange(len(images)))
    return apply_batch(images, policy.draw(keys, epoch), policy.table)


def _scale(height: int, width: int) -> int:
    return max(1, round(SHOWN_SIDE / max(height, width)))


def _labels(rows: int) -> list[str]:
    return ["original", *(f"draw {r}" for r in range(1, rows + 1))]


def _font(size: int) -> Font:
    try:
        return ImageFont.load_default(size)
    except ImportError:  # a Pillow built without FreeType has one bitmap font in one size
        return ImageFont.load_default()


def _text_width(text: str, size: int) -> int:
    return round(_font(size).getlength(text) + 0.5)


def _shortened(text: str, size: int, width: int) -> str:
    """The text, or its beginning and '...', so that it fits into `width` pixels."""
    if _text_width(text, size) <= width:
        return text
    while text and _text_width(f"{text}...", size) > width:
        text = text[:-1]
    return f"{text}..."
