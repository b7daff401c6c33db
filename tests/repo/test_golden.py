"""Draws, pixels and policy files are those of every earlier version."""

from __future__ import annotations

import json

from golden import GOLDEN, sums


def test_draws_pixels_and_files_are_bit_for_bit_what_they_were() -> None:
    assert dict(sums()) == json.loads(GOLDEN.read_text())
