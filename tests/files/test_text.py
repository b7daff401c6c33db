"""Numbers with their nouns, and lines that fit into a terminal, as messages have them."""

from __future__ import annotations

import pytest

from deepaa.files import in_columns, plural


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "image", "0 images"),
        (1, "image", "1 image"),
        (2, "layer", "2 layers"),
        (1, "class", "1 class"),
        (4000, "class", "4,000 classes"),
    ],
)
def test_a_number_has_its_noun(count: int, noun: str, text: str) -> None:
    assert plural(count, noun) == text


def test_lines_that_stay_end_between_words() -> None:
    text = "layer 1 kept (a gain): 12 % over no augmentation, DeepTA +0.0898 in a/very-long-place"
    lines = in_columns(text, 30, "  ").split("\n")
    assert " ".join(line.strip() for line in lines) == text
    assert max(map(len, lines)) <= 30
    assert all(line.startswith("  ") for line in lines[1:])
    assert in_columns("short", 30) == "short"
    assert in_columns("a/path-that-is-longer-than-all-columns", 20).count("\n") == 0
