"""parallelograms.py: what an image leaves of them, all at once and one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from deepaa.ops.parallelograms import NO_AREA, cut_parallelograms, cut_polygon

SQUARE = [(0.0, 0.0), (6.0, 0.0), (6.0, 4.0), (0.0, 4.0)]
NUMBERS = st.floats(-8, 12)


def area_of(polygon: Any) -> float:
    if len(polygon) < 3:
        return 0
    x, y = np.array(polygon, float).T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def test_a_polygon_by_hand() -> None:
    cut = cut_polygon([(-2, 1), (2, 1), (2, 5)], 4, 6)
    assert set(cut) == {(0, 1), (2, 1), (2, 4), (1, 4), (0, 3)}
    assert cut_polygon([(9, 9), (10, 9), (9, 10)], 4, 6) == []
    assert cut_polygon(SQUARE, 4, 6) == SQUARE


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=3))
@settings(max_examples=200, deadline=None)
def test_parallelograms_of_one_stage(three: Any) -> None:
    """Each is cut alone, by four lines, and then all at once."""
    a, b, d = np.array(three)
    corners = np.array([a, b, b + d - a, d])
    many = np.stack((corners, corners[::-1] / 2, np.array(SQUARE) + 1, np.array(SQUARE) + 50))
    left = cut_parallelograms([many.transpose(2, 1, 0)], SQUARE, 4, 6)
    low, high = left.spans()
    for i, one in enumerate(many):
        want = cut_polygon([(float(x), float(y)) for x, y in one], 4, 6)
        if area_of(want) > 2 * NO_AREA:
            assert not left.gone[i]
            assert low[:, i] == pytest.approx(np.min(want, 0), abs=1e-6)
            assert high[:, i] == pytest.approx(np.max(want, 0), abs=1e-6)
        elif area_of(want) < NO_AREA / 2 and area_of(one) > 1:
            thin = np.prod(high[:, i] - low[:, i])
            assert left.gone[i] or thin < 0.1, "a splinter"
    assert left.gone[2:].tolist() == [False, True]


def test_none_and_those_without_area() -> None:
    none = cut_parallelograms([np.zeros((2, 4, 0))], SQUARE, 4, 6)
    assert none.gone.shape == (0,)
    assert none.spans()[0].shape == (2, 0)
    line = np.array([[[1.0], [3], [3], [1]], [[2.0], [2], [2], [2]]])
    assert cut_parallelograms([line], SQUARE, 4, 6).gone.tolist() == [True]
    wide = np.array([[[-1.0], [3], [3], [-1]], [[0.0], [0], [3], [3]]])
    for image in ([], [(0.0, 0.0), (6.0, 3.0)], [(0.0, 0.0), (6.0, 3.0), (2.0, 1.0)]):
        assert cut_parallelograms([wide], image, 4, 6).gone.tolist() == [True]
