"""The pictures of docs/gallery.md: complete, and what the operations do today."""

from __future__ import annotations

import re
from pathlib import Path

import make_gallery as gallery
import numpy as np
import pytest
from PIL import Image

from deepaa.ops.apply import run_pil
from deepaa.ops.conversions import tensor_to_pil
from deepaa.ops.space import CIFAR, IMAGENET, Table
from deepaa.policy import IDENTITY

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/gallery.md").read_text()


def test_every_transformation_of_the_search_is_shown() -> None:
    cells = [
        cell
        for names in gallery.SHEETS.values()
        for line in gallery.lines(names)
        for cell in line.cells
    ]
    shown = {cell.row for cell in cells}
    assert set(CIFAR.table.rows) <= shown
    assert set(CIFAR.operations) | set(IMAGENET.operations) >= {row.operation for row in shown}
    assert {op.name for op in (*CIFAR.operations, *IMAGENET.operations)} == {
        row.operation.name for row in shown
    }
    assert len({cell.uniform for cell in cells if cell.row.operation.name == "cutout"}) == 8


def test_the_page_tells_of_every_operation_and_its_range() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.M))
    operations = {op.name: op for op in (*IMAGENET.operations, *CIFAR.operations)}
    assert rows.keys() == operations.keys() - {"identity"}
    for name, text in rows.items():
        operation = operations[name]
        if operation.low is not None:
            assert f"{operation.low:g} to {operation.high:g}" in text
            assert text.endswith(f"| {operation.neutral:g}")
    assert re.findall(r"!\[.+\]\(images/(gallery-[\w.]+)\)\]", PAGE) == [
        f"gallery-{name}.webp" for name in gallery.SHEETS
    ]


@pytest.mark.parametrize("name", gallery.SHEETS)
def test_stored_pictures_are_what_pillow_makes(name: str) -> None:
    """Letters are left out: they change with the version of their library."""
    places, size = gallery.places(gallery.lines(gallery.SHEETS[name]))
    originals = [tensor_to_pil(image) for image in gallery.originals()]
    with Image.open(ROOT / f"docs/images/gallery-{name}.webp") as file:
        stored = file.convert("RGB")
    again = gallery.sheet(gallery.SHEETS[name])
    assert stored.size == again.size == size
    side = gallery.SIDE
    for place in places:
        box = (place.left, place.top, place.left + side, place.top + side)
        found = np.asarray(stored.crop(box))
        assert np.array_equal(found, np.asarray(again.crop(box))), place
        original = originals[place.original]
        step = side // original.width
        made = run_pil(original, [(0, list(place.cell.uniform))], Table([place.cell.row]))
        assert np.array_equal(found[::step, ::step], np.asarray(made)), place
        if place.cell.row == IDENTITY:
            assert np.array_equal(found[::step, ::step], np.asarray(original))
