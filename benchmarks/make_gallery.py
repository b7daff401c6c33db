"""How the pictures of docs/gallery.md are made: every operation at every magnitude of the search.

    python benchmarks/make_gallery.py [OUT]

Each cell shows a photograph of the embedded images, 32 pixels a side and enlarged, and a drawing of
64 pixels that is made here. A test compares the stored pictures with what the operations do.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Image as PilImage, Resampling
from torch import Tensor

from deepaa.data import load_images
from deepaa.ops import (
    CIFAR,
    IMAGENET,
    Draw,
    Operation,
    Row,
    Table,
    apply_batch,
    hash_keys,
    tensor_to_pil,
)
from deepaa.policy import IDENTITY

SIDE = 64
"""Of a picture, in pixels."""
DRAWS = 8
"""Of operations that draw a place or a coin."""
PHOTO = 7
"""The embedded image that is shown."""
WIDE = 800
"""Pages show wider sheets smaller than they are, so that these have larger letters."""
SHEETS = {
    "shape": "shear_x shear_y translate_x translate_y rotate",
    "colour": "brightness contrast color sharpness solarize posterize",
    "plain": "auto_contrast equalize invert flip crop cutout resized_crop",
}
"""Operations, by the file that shows them."""
LEFT, GAP, MARGIN, CAPTION = 112, 4, 12, 18
INK, FAINT, PAPER = (31, 35, 40), (101, 109, 118), (255, 255, 255)


class Cell(NamedTuple):
    """One row of a table, shown on both pictures."""

    row: Row
    uniform: tuple[float, ...]
    """The numbers that a random operation consumes."""
    caption: str


class Line(NamedTuple):
    """The cells of one operation, or of several that have one cell each."""

    label: str
    cells: tuple[Cell, ...]


class Place(NamedTuple):
    """Where a picture lies on a sheet."""

    cell: Cell
    original: int
    """0 for the photograph, 1 for the drawing."""
    left: int
    top: int


def originals() -> tuple[Tensor, Tensor]:
    """The photograph (3, 32, 32) and the drawing (3, 64, 64)."""
    return load_images(None, PHOTO + 1)[PHOTO], drawing()


def drawing() -> Tensor:
    """A house under a sun, and a letter that shows which way it faces; uint8 (3, 64, 64)."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    picture = torch.stack([90 + y, 150 + y, torch.full_like(y, 235)])

    def paint(where: Tensor, *colour: int) -> None:
        picture[:, where] = torch.tensor(colour)[:, None]

    paint((x - 50) ** 2 + (y - 13) ** 2 < 64, 255, 220, 60)
    paint(y >= 50, 70, 140, 60)
    paint((y >= 50) & ((x + 2 * y) % 7 == 0), 50, 105, 45)
    paint((x >= 8) & (x < 42) & (y >= 28) & (y < 54), 190, 75, 60)
    paint((y >= 14) & (y < 28) & ((x - 25).abs() <= (y - 13) * 1.4), 80, 50, 45)
    paint((x >= 13) & (x < 17) & (y >= 33) & (y < 54), 245, 245, 240)  # an F
    paint((x >= 13) & (x < 27) & (y >= 33) & (y < 37), 245, 245, 240)
    paint((x >= 13) & (x < 24) & (y >= 41) & (y < 45), 245, 245, 240)
    paint((x >= 31) & (x < 38) & (y >= 38) & (y < 54), 60, 45, 40)
    return picture.to(torch.uint8)


def lines(names: str) -> tuple[Line, ...]:
    """The lines of a sheet: magnitudes from low to high, draws, or plain operations together."""
    operations = {op.name: op for op in (*IMAGENET.operations, *CIFAR.operations)}
    found, plain = [], []
    for operation in map(operations.__getitem__, names.split()):
        if operation.uniforms:
            found.append(Line(operation.name, _draws(operation)))
        elif operation.low is None:
            plain.append(Cell(Row(operation, None), (), operation.name))
        else:
            found.append(Line(operation.name, _magnitudes(operation)))
    together = Line("", (Cell(IDENTITY, (), "original"), *plain))
    return (together, *found) if plain else tuple(found)


def _magnitudes(operation: Operation) -> tuple[Cell, ...]:
    """The magnitudes of the paper's space, and the original where it changes nothing."""
    values = [row.magnitude for row in CIFAR.table.rows if row.operation == operation]
    values = sorted({*values, operation.neutral})
    return tuple(
        Cell(IDENTITY, (), "original")
        if value == operation.neutral
        else Cell(Row(operation, value), (), f"{value:.4g}")
        for value in values
    )


def _draws(operation: Operation) -> tuple[Cell, ...]:
    words = hash_keys(torch.arange(DRAWS)[:, None], torch.arange(operation.uniforms))
    numbers = ((words >> 40) & (2**24 - 1)).float() * 2.0**-24
    cells = [
        Cell(Row(operation, None), tuple(some), f"draw {i}")
        for i, some in enumerate(numbers.tolist(), start=1)
    ]
    return (Cell(IDENTITY, (), "original"), *cells)


def shown(cell: Cell, original: Tensor) -> PilImage:
    """What the cell's operation makes of an image, enlarged to `SIDE` by a whole factor."""
    table = Table([cell.row])
    uniform = torch.zeros(1, 1, table.uniforms)
    uniform[0, 0, : len(cell.uniform)] = torch.tensor(cell.uniform)
    after = apply_batch(original[None], Draw(torch.zeros(1, 1, dtype=torch.int64), uniform), table)
    return tensor_to_pil(after[0]).resize((SIDE, SIDE), Resampling.NEAREST)


def places(found: Sequence[Line]) -> tuple[list[Place], tuple[int, int]]:
    """Where every picture of a sheet lies, and the size of the sheet."""
    high = 2 * (SIDE + GAP) + CAPTION + MARGIN
    wide = LEFT + max(len(line.cells) for line in found) * (SIDE + GAP) + MARGIN
    pictures = [
        Place(cell, which, LEFT + c * (SIDE + GAP), MARGIN + r * high + which * (SIDE + GAP))
        for r, line in enumerate(found)
        for c, cell in enumerate(line.cells)
        for which in (0, 1)
    ]
    return pictures, (wide, MARGIN + len(found) * high)


def sheet(names: str) -> PilImage:
    """All operations of a sheet, with labels."""
    found, images = lines(names), originals()
    pictures, size = places(found)
    page = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(page)
    large, small = map(ImageFont.load_default, (18, 14) if size[0] > WIDE else (15, 11))
    for place in pictures:
        page.paste(shown(place.cell, images[place.original]), (place.left, place.top))
        if place.original:
            below = (place.left + SIDE // 2, place.top + SIDE + 3)
            pen.text(below, place.cell.caption, FAINT, small, anchor="mt")
    tops = sorted({place.top for place in pictures if not place.original})
    for line, top in zip(found, tops, strict=True):
        pen.text((LEFT - 10, top + SIDE + GAP // 2), line.label, INK, large, anchor="rm")
    return page


def main() -> None:
    """Write a picture for each of `SHEETS`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("docs/images"))
    out = parser.parse_args().out
    for name, names in SHEETS.items():
        path = out / f"gallery-{name}.webp"
        sheet(names).save(path, lossless=True, quality=100, method=6, exact=True)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
