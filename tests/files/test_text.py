"""Numbers with their nouns, as messages have them."""

from __future__ import annotations

import pytest

from deepaa.files import plural


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
