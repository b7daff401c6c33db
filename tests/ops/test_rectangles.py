"""rectangles.py: turned rectangles, against slow ways to say the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from deepaa.ops.geometry import (
    MOVING,
    Layer,
    move_boxes,
    move_points,
    moving_layers,
)
from deepaa.ops.rectangles import (
    are_outside,
    fit_rectangles,
    move_rectangles,
    rectangle_corners,
)
from deepaa.ops.space import Operation, Table

NUMBERS = st.floats(0, 1 - 2**-24, width=32)
SIDES = st.integers(8, 40)
LIMITS = {"shear_x": 1.0, "shear_y": 1.0, "translate_x": 1.0, "translate_y": 1.0, "rotate": 360.0}
STILL = {"flip", "crop", "translate_x", "translate_y", "resized_crop", "cutout"}
"""Operations that leave upright what is upright."""


@st.composite
def layers(draw: st.DrawFn, names: Sequence[str], height: int, width: int) -> list[Layer]:
    chosen = []
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
        limit = LIMITS.get(name)
        options: dict[str, Any] = {"pad": draw(st.integers(0, 9))} if name == "crop" else {}
        if name == "cutout":
            options["size"] = draw(st.integers(1, 30))
        operation = Operation(name, limit and -limit, limit, options=options)
        m = limit and draw(st.floats(-limit, limit))
        count = operation.uniforms
        chosen.append((operation, m, draw(st.lists(NUMBERS, min_size=count, max_size=count))))
    table = Table([(operation, m) for operation, m, _ in chosen])
    return moving_layers([(i, u) for i, (_, _, u) in enumerate(chosen)], table, height, width)


@st.composite
def rectangles(draw: st.DrawFn, height: int, width: int) -> Any:
    """One with its centre in the image; corners may be outside."""
    whole = st.integers(-4, 4).map(lambda n: 90.0 * n)
    centre = draw(st.floats(0.5, width - 0.5)), draw(st.floats(0.5, height - 0.5))
    sides = draw(st.floats(1, 30)), draw(st.floats(1, 30))
    return np.array([[*centre, *sides, draw(st.floats(-400, 400) | whole)]])


def moved_by(points: Any, chosen: Sequence[Layer]) -> Any:
    for layer in chosen:
        points = move_points(points, layer)
    return points


def axes(degrees: float) -> Any:
    """Rows: along the width, along the height; y points down and angles go the other way round."""
    radians = math.radians(degrees)
    return np.array(
        [[math.cos(radians), -math.sin(radians)], [math.sin(radians), math.cos(radians)]]
    )


def slow_corners(polygons: Sequence[Any]) -> Any:
    """The corners of what convex polygons share: crossings of any two edges, within all edges."""
    lines = []
    for polygon in polygons:
        for start, end in itertools.pairwise([*polygon, polygon[0]]):
            x, y = (end - start) / np.linalg.norm(end - start)
            normal = np.array([-y, x])
            if normal @ (polygon.mean(0) - start) < 0:
                normal = -normal
            lines.append((normal, normal @ start))
    found = []
    for (one, a), (other, b) in itertools.combinations(lines, 2):
        if abs(one[0] * other[1] - one[1] * other[0]) > 1e-9:
            point = np.linalg.solve([one, other], [a, b])
            if all(normal @ point >= limit - 1e-9 for normal, limit in lines):
                found.append(point)
    return np.array(found).reshape(-1, 2)


def test_corners_by_hand() -> None:
    upright, turned = rectangle_corners(np.array([[5.0, 4, 6, 2, 0], [5, 4, 6, 2, 90]]))
    assert upright.tolist() == [[2, 3], [8, 3], [8, 5], [2, 5]]
    assert turned.round(12).tolist() == [[4, 7], [4, 1], [6, 1], [6, 7]]  # anticlockwise


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_rectangle_is_found_from_its_corners_and_near_to_rounded_ones(
    data: st.DataObject,
) -> None:
    given_one = data.draw(rectangles(20, 30))
    corners = rectangle_corners(given_one)
    assert np.allclose(rectangle_corners(fit_rectangles(corners)), corners, atol=1e-9)
    rounded = np.round(corners)
    assert np.abs(rectangle_corners(fit_rectangles(rounded)) - rounded).max() < 1


@given(SIDES, SIDES, st.data())
@settings(max_examples=100, deadline=None)
def test_rectangles_stay_rectangles_where_nothing_is_sheared(
    height: int, width: int, data: st.DataObject
) -> None:
    names = sorted(MOVING - {"shear_x", "shear_y", "resized_crop", "cutout"})
    chosen = data.draw(layers(names, height, width))
    before = data.draw(rectangles(height, width))
    corners = moved_by(rectangle_corners(before), chosen)
    (after,) = move_rectangles(before, chosen, height, width, hide=False)
    angle = before[0, 4]
    for layer in chosen:
        if layer.name == "rotate":
            angle += layer.magnitude
        elif layer.name == "flip" and layer.uniforms[0] >= 0.5:
            angle = -angle
            corners = corners[:, [1, 0, 3, 2]]
    turns = (after[4] - angle) / 360
    assert turns == pytest.approx(round(turns), abs=1e-9)
    moved = move_rectangles(before, chosen, height, width, hide=False)
    if after[2:4] == pytest.approx(
        before[0, 2:4], abs=1e-8
    ):  # nothing was cut off: cuts are rounded to 1e-9
        assert np.allclose(rectangle_corners(moved), corners, atol=1e-6)
    else:
        assert (after[2:4] <= before[0, 2:4] + 1e-8).all()


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_the_smallest_rectangle_around_a_parallelogram(data: st.DataObject) -> None:
    """No angle in steps of a tenth of a degree gives a smaller one."""
    names = ["shear_x", "shear_y", "resized_crop", "rotate", "flip"]
    height, width = 90, 130
    sides = data.draw(st.floats(0.5, 3)), data.draw(st.floats(0.5, 3))
    before = np.array([[66.0, 44.0, *sides, data.draw(st.floats(-180, 180))]])
    chosen = data.draw(layers(names, height, width))
    corners = moved_by(rectangle_corners(before), chosen)[0]
    stages = [moved_by(rectangle_corners(before), chosen[: i + 1]) for i in range(len(chosen))]
    if any((stage < 0).any() or (stage > (width, height)).any() for stage in stages):
        return  # a part of it left
    after = move_rectangles(before, chosen, height, width, hide=False)
    area = after[0, 2] * after[0, 3]
    smallest = math.inf
    for degrees in np.arange(0, 90, 0.1):
        along = corners @ axes(degrees).T
        smallest = min(smallest, float(np.prod(along.max(0) - along.min(0))))
    assert area <= smallest * (1 + 1e-9)
    place = (corners - after[0, :2]) @ axes(after[0, 4]).T
    assert np.abs(place).max(0) == pytest.approx(after[0, 2:4] / 2, abs=1e-9), "it touches"


@pytest.mark.parametrize("name", ["shear_x", "shear_y", "rotate"])
@pytest.mark.parametrize("degrees", [0.0, 30, 45, 90, 135, 180, -180, 270, 359, -725])
def test_a_small_magnitude_moves_little(name: str, degrees: float) -> None:
    before = np.array([[20.0, 15, 8, 8, degrees], [20, 15, 3, 9, degrees], [20, 15, 9, 3, degrees]])
    limit = LIMITS[name]
    for m in (0.0, 1e-7, -1e-7):
        table = Table([(Operation(name, -limit, limit), m)])
        after = move_rectangles(before, moving_layers([(0, [])], table, 30, 40), 30, 40, hide=False)
        assert np.abs(after - before).max() < (1e-4 if m else 1e-12)


def slow_area(corners: Any) -> float:
    """The area of a convex polygon, as triangles about its middle."""
    x, y = (corners - corners.mean(0)).T
    x, y = np.stack((x, y))[:, np.argsort(np.arctan2(y, x))]
    return float(np.abs(x * np.roll(y, -1) - y * np.roll(x, -1)).sum() / 2)


@given(SIDES, SIDES, st.data())
@settings(max_examples=80, deadline=None)
def test_what_is_left_of_a_rectangle(height: int, width: int, data: st.DataObject) -> None:
    """It lies around what the rectangle and the image before and after each layer share."""
    chosen = data.draw(layers(sorted(MOVING - {"cutout"}), height, width))
    before = data.draw(rectangles(height, width))
    (after,) = move_rectangles(before, chosen, height, width, hide=False)
    image = np.array([[0.0, 0], [width, 0], [width, height], [0, height]])
    shapes = [moved_by(rectangle_corners(before)[0], chosen)]
    shapes += [moved_by(image, chosen[i:]) for i in range(len(chosen) + 1)]
    corners = slow_corners(shapes)
    if len(corners) < 3 or slow_area(corners) < 1e-3:
        assert after[2:4].min() < 0.1  # nothing, or a splinter
        return
    along = corners @ axes(after[4]).T
    low, high = along.min(0), along.max(0)
    assert after[2:4] == pytest.approx(high - low, abs=1e-4)
    assert axes(after[4]) @ after[:2] == pytest.approx((low + high) / 2, abs=1e-4)


@given(SIDES, SIDES, st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_an_upright_one_agrees_with_the_box(
    height: int, width: int, hide: bool, data: st.DataObject
) -> None:
    chosen = data.draw(layers(sorted(STILL), height, width))
    before = data.draw(rectangles(height, width))
    before[:, 4] = 0
    x, y, w, h, _ = before[0]
    box = np.array([[x - w / 2, y - h / 2, x + w / 2, y + h / 2]])
    (want,) = move_boxes(box, chosen, height, width, hide=hide)
    (found,) = move_rectangles(before, chosen, height, width, hide=hide)
    assert found[4] == 0
    if np.prod(want[2:] - want[:2]) < 1e-5:
        assert np.prod(found[2:4]) < 1e-5
    else:
        assert np.concatenate((found[:2] - found[2:4] / 2, found[:2] + found[2:4] / 2)) == (
            pytest.approx(want, abs=1e-8)
        )


def test_what_left_the_image_does_not_come_back() -> None:
    move = Operation("translate_x", -0.5, 0.5)
    there_and_back = moving_layers([(0, []), (1, [])], Table([(move, 0.5), (move, -0.5)]), 20, 20)
    before = np.array([[4.0, 10, 6, 4, 0], [10, 10, 8, 4, 90], [10, 10, 4, 8, 0]])
    after = move_rectangles(before, there_and_back, 20, 20, hide=False)
    want = [[10, 10, 0, 0, 0], [11, 10, 8, 2, 90], [11, 10, 2, 8, 0]]
    # the first lies where it would be, which is in the image
    want[0][0] = 4
    assert after.round(9).tolist() == want
    sheared = Operation("shear_x", -0.5, 0.5)
    table = Table([(sheared, 0.2), (sheared, -0.2)])
    inside = np.array([[10.0, 10, 6, 4, 25]])
    after = move_rectangles(
        inside, moving_layers([(0, []), (1, [])], table, 20, 20), 20, 20, hide=False
    )
    assert np.allclose(after, inside, atol=1e-8)


def test_cutout_hides_what_is_wholly_under_it() -> None:
    cut = Operation("cutout", options={"size": 6})
    (layer,) = moving_layers([(0, [0.5, 0.5])], Table([(cut, None)]), 16, 16)  # 5 to 12
    before = np.array([[8.5, 8.5, 4, 4, 45], [8.5, 8.5, 6, 6, 45], [8.5, 8.5, 6, 6, 0]])
    after = move_rectangles(before, [layer], 16, 16, hide=True)
    assert after.tolist() == [
        [8.5, 8.5, 0, 0, 45],
        pytest.approx(before[1].tolist()),
        [8.5, 8.5, 0, 0, 0],
    ]
    assert np.allclose(move_rectangles(before, [layer], 16, 16, hide=False), before)


@given(SIDES, SIDES, st.floats(0, 2), st.data())
@settings(max_examples=100, deadline=None)
def test_what_lies_outside(height: int, width: int, beyond: float, data: st.DataObject) -> None:
    """Shared corners, found slowly, say the same of two areas that do more than touch."""
    centre = data.draw(st.tuples(st.floats(-20, width + 20), st.floats(-20, height + 20)))
    sides = data.draw(st.tuples(st.floats(0.5, 30), st.floats(0.5, 30)))
    one = np.array([[*centre, *sides, data.draw(st.floats(-400, 400))]])
    x, y = width + beyond, height + beyond
    image = np.array([[-beyond, -beyond], [x, -beyond], [x, y], [-beyond, y]])
    corners = slow_corners([rectangle_corners(one)[0], image])
    if len(corners) > 2 and slow_area(corners) > 1e-6:
        assert not are_outside(one, height, width, beyond)[0]
    elif not len(corners):
        assert are_outside(one, height, width, beyond)[0]


def test_what_lies_outside_by_hand() -> None:
    """The hull of the first turned one is in the image; it passes by the corner."""
    near = [[22.0, 22, 30, 1, 45], [22, 22, 3, 3, 45], [19, 19, 0, 0, 10], [10, 25, 9, 9, 0]]
    assert are_outside(np.array(near), 20, 20, 0).tolist() == [True, True, False, True]
    assert are_outside(np.array(near), 20, 20, 1).tolist() == [True, False, False, False]
    assert are_outside(np.zeros((0, 5)), 20, 20, 0).shape == (0,)
