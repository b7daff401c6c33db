"""geometry.py: places go where Pillow takes the pixels, for every operation that moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from deepaa.ops.geometry import (
    MOVING,
    Layer,
    hidden_box,
    move_boxes,
    move_points,
    moving_layers,
    source_index,
    track,
)
from deepaa.ops.kernels_pil import KERNELS
from deepaa.ops.resized_crop import resized_crop_box
from deepaa.ops.space import BUILTIN, CIFAR, IMAGENET, Operation, Table

LARGEST = 1 - 2**-24
NUMBERS = st.floats(0, LARGEST, width=32)
SIDES = st.integers(1, 40)
LIMITS = {"shear_x": 1.0, "shear_y": 1.0, "translate_x": 1.0, "translate_y": 1.0, "rotate": 360.0}
Step = tuple[Operation, float | None, list[float]]


@st.composite
def steps(draw: st.DrawFn, names: Sequence[str] = sorted(MOVING)) -> Step:
    """An operation with a fill of 0, its magnitude and its random numbers."""
    name = draw(st.sampled_from(names))
    options: dict[str, Any] = {} if name in ("flip", "resized_crop") else {"fill": 0}
    if name == "crop":
        options["pad"] = draw(st.integers(0, 9))
    if name == "cutout":
        options["size"] = draw(st.integers(1, 20))
    limit = LIMITS.get(name)
    m = None
    if limit is not None:
        m = draw(st.floats(-limit, limit) | st.sampled_from([0.0, limit, -limit, limit / 4]))
    operation = Operation(name, None if m is None else -limit, limit, options=options)
    count = operation.uniforms
    return operation, m, draw(st.lists(NUMBERS, min_size=count, max_size=count))


def layers_of(chosen: Sequence[Step], height: int, width: int) -> list[Layer]:
    table = Table([(operation, m) for operation, m, _ in chosen])
    return moving_layers([(i, u) for i, (_, _, u) in enumerate(chosen)], table, height, width)


def by_pillow(image: Image.Image, chosen: Sequence[Step], hide: bool = True) -> Image.Image:
    """The kernels that define the operations; a resized crop takes nearest neighbours."""
    for operation, m, u in chosen:
        if operation.name == "resized_crop":
            box = resized_crop_box(u, image.height, image.width, **operation.options)
            x, y, w, h = box
            image = image.crop((x, y, x + w, y + h)).resize(image.size, Image.Resampling.NEAREST)
        elif hide or operation.name != "cutout":
            image = KERNELS[operation.name](image, m, u, **operation.options)
    return image


def painted_index(chosen: Sequence[Step], height: int, width: int, hide: bool) -> Any:
    """The source of each pixel, read off images of which each shows 6 bits of the place."""
    place = np.arange(height * width).reshape(height, width)
    index = np.zeros((height, width), np.int64)
    for shift in (0, 6):
        bits = (place >> shift & 63) + 1  # 0 is the fill
        image = Image.fromarray(bits.astype(np.uint8))
        out = np.asarray(by_pillow(image, chosen, hide)).astype(np.int64)
        index = np.where(out == 0, -1, index + (out - 1 << shift))
    return index


def test_all_operations_that_take_places_are_known() -> None:
    colour = {"identity", "auto_contrast", "invert", "equalize", "solarize", "posterize"}
    assert BUILTIN.keys() - colour - {"contrast", "color", "brightness", "sharpness"} == MOVING


@given(st.lists(steps(), min_size=1, max_size=3), SIDES, SIDES, st.booleans())
@settings(max_examples=300, deadline=None)
def test_each_pixel_is_copied_from_where_pillow_copies_it(
    chosen: list[Step], height: int, width: int, hide: bool
) -> None:
    index = source_index(layers_of(chosen, height, width), height, width, hide=hide)
    assert np.array_equal(index, painted_index(chosen, height, width, hide))


@pytest.mark.parametrize("space", [CIFAR, IMAGENET])
@pytest.mark.parametrize("size", [(28, 28), (130, 97)])
def test_each_transformation_of_the_paper_on_an_image_with_a_fill(
    space: Any, size: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size, np.uint8)
    for row, (operation, m) in enumerate(space.table.rows):
        if operation.name not in MOVING:
            assert moving_layers([(row, [])], space.table, *size) == []
            continue
        options = {**operation.options, **({"fill": 7} if "fill" in operation.options else {})}
        other = Operation(operation.name, operation.low, operation.high, options=options)
        u = rng.random(operation.uniforms).tolist()
        layers = moving_layers([(row, u)], space.table, *size)
        index = source_index(layers, *size, hide=True)
        moved = np.where(index < 0, 7, pixels.flatten()[index])
        want = by_pillow(Image.fromarray(pixels), [(other, m, u)])
        assert np.array_equal(moved, np.asarray(want)), (operation.name, m)


@given(steps(sorted(MOVING - {"cutout"})), SIDES, SIDES)
@settings(max_examples=300, deadline=None)
def test_points_go_where_the_pixels_go(step: Step, height: int, width: int) -> None:
    """The centre of each pixel comes from within the pixel that it was copied from."""
    index = painted_index([step], height, width, hide=False)
    (layer,) = layers_of([step], height, width)
    origin, right, down = move_points(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), layer)
    forward = np.stack((right - origin, down - origin), 1)
    y, x = np.nonzero(index >= 0)
    centres = np.stack((x + 0.5, y + 0.5), 1)
    sources = np.linalg.solve(forward, (centres - origin).T).T
    want = np.stack((index[y, x] % width + 0.5, index[y, x] // width + 0.5), 1)
    # half a pixel, and the 16 bits of Pillow's steps
    limit = 0.01 if step[0].name in ("flip", "crop", "translate_x", "translate_y") else 0.502
    assert np.abs(sources - want).max(initial=0) <= limit


@given(st.lists(steps(), min_size=1, max_size=3), st.integers(8, 40), st.integers(8, 40), st.data())
@settings(max_examples=300, deadline=None)
def test_a_painted_rectangle_stays_in_its_box(
    chosen: list[Step], height: int, width: int, data: st.DataObject
) -> None:
    x = sorted(data.draw(st.lists(st.integers(0, width), min_size=2, max_size=2, unique=True)))
    y = sorted(data.draw(st.lists(st.integers(0, height), min_size=2, max_size=2, unique=True)))
    out = painted(chosen, height, width, (x[0], y[0], x[1], y[1]), 0)
    layers = layers_of(chosen, height, width)
    ((left, top, right, bottom),) = move_boxes(
        np.array([[x[0], y[0], x[1], y[1]]], float), layers, height, width, hide=False
    )
    assert 0 <= left <= right <= width
    assert 0 <= top <= bottom <= height
    rows, columns = np.nonzero(out)
    slack = len(chosen)  # nearest neighbours are up to a pixel off, in each layer
    if left == right:
        assert not painted(chosen, height, width, (x[0], y[0], x[1], y[1]), -slack).any()
    elif len(rows):
        scale = float(np.prod([scale_of(layer) for layer in layers]))
        assert left - slack * scale <= columns.min()
        assert columns.max() + 1 <= right + slack * scale
        assert top - slack * scale <= rows.min()
        assert rows.max() + 1 <= bottom + slack * scale


def painted(chosen: Sequence[Step], height: int, width: int, box: Sequence[int], more: int) -> Any:
    """Where Pillow takes a painted rectangle, which is larger by `more` pixels on each side."""
    pixels = np.zeros((height, width), np.uint8)
    left, top, right, bottom = box
    rows, columns = (
        slice(max(0, a - more), max(0, b + more)) for a, b in ((top, bottom), (left, right))
    )
    pixels[rows, columns] = 255
    return np.asarray(by_pillow(Image.fromarray(pixels), chosen, hide=False))


def random_step(rng: np.random.Generator) -> Step:
    """Any operation that moves pixels, and half of the time a shift far to one side."""
    name = str(rng.choice([*sorted(MOVING - {"cutout"}), "translate_x", "translate_y"]))
    m = rng.uniform(-1, 1) * LIMITS[name] if name in LIMITS else None
    options: dict[str, Any] = {"pad": int(rng.integers(10))} if name == "crop" else {}
    chosen = step(name, m, **options)
    return *chosen[:2], rng.random(chosen[0].uniforms).tolist()


def test_a_box_of_which_no_pixel_is_left_is_gone() -> None:
    """Also where it left in one layer, and later ones move the border of the image into view."""
    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(2000):
        height, width = map(int, rng.integers(8, 60, 2))
        layers = layers_of([random_step(rng) for _ in range(rng.integers(2, 4))], height, width)
        (left, right), (top, bottom) = (
            sorted((0 if rng.random() < 0.3 else int(n)) for n in rng.choice(side, 2, False) + 1)
            for side in (width, height)
        )
        if left == right or top == bottom:
            continue
        box = np.array([[left, top, right, bottom]], float)
        (moved,) = move_boxes(box, layers, height, width, hide=False)
        index = source_index(layers, height, width, hide=False)
        near = np.zeros((height, width), np.bool_)
        more = len(layers)  # nearest neighbours are up to a pixel off, in each layer
        near[max(0, top - more) : bottom + more, max(0, left - more) : right + more] = True
        sides = moved[2:] - moved[:2]
        assert (sides > 0).all() or not sides.any()
        if not (near.flatten()[index.clip(0)] & (index >= 0)).any():
            lost += 1
            # no more than a splinter between the centres of pixels
            assert sides.min() <= np.prod([scale_of(layer) for layer in layers]), (layers, box)
    assert lost > 100


@given(
    st.lists(steps(sorted(MOVING - {"cutout"})), min_size=1, max_size=3),
    st.integers(8, 60),
    st.integers(8, 60),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_a_box_lies_around_its_points_that_are_left(
    chosen: list[Step], height: int, width: int, data: st.DataObject
) -> None:
    """A grid of points in the box, of which each goes its own way, tells the same."""
    x, y = (
        sorted(
            data.draw(st.lists(st.integers(-8, 4 * side + 8), min_size=2, max_size=2, unique=True))
        )
        for side in (width, height)
    )
    layers = layers_of(chosen, height, width)
    box = np.array([[x[0], y[0], x[1], y[1]]]) / 4
    (moved,) = move_boxes(box, layers, height, width, hide=False)
    grid = np.stack(np.meshgrid(np.linspace(*x, 40), np.linspace(*y, 40)), -1).reshape(-1, 2) / 4
    points, lost = track(grid, layers, height, width, hide=False)
    kept = points[~lost]
    if moved[2] > moved[0]:
        assert (kept >= moved[:2] - 1e-6).all()
        assert (kept <= moved[2:] + 1e-6).all()
    elif len(kept) > 2:  # a line of points on the border
        assert np.linalg.svd(kept - kept.mean(0), compute_uv=False)[1] < 1e-4


def scale_of(layer: Layer) -> float:
    """The most by which a layer makes distances longer."""
    ends = move_points(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), layer)
    return max(1.0, float(np.linalg.norm(ends[1:] - ends[0], 2)))


@given(st.sampled_from(["flip", "crop", "translate_x", "translate_y"]), st.data())
@settings(max_examples=200, deadline=None)
def test_a_box_that_moves_by_whole_pixels_is_the_painted_one(
    name: str, data: st.DataObject
) -> None:
    chosen = [data.draw(steps([name])), data.draw(steps([name]))]
    height, width = data.draw(st.integers(3, 30)), data.draw(st.integers(3, 30))
    pixels = np.zeros((height, width), np.uint8)
    pixels[1 : height - 1, 1 : width - 1] = 255
    out = np.asarray(by_pillow(Image.fromarray(pixels), chosen))
    box = np.array([[1.0, 1.0, width - 1, height - 1]])
    (moved,) = move_boxes(box, layers_of(chosen, height, width), height, width, hide=False)
    rows, columns = np.nonzero(out)
    if not len(rows):
        assert (moved[2:] == moved[:2]).all()
    else:
        found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert moved.tolist() == found


def step(name: str, m: float | None = None, u: Sequence[float] = (), **options: Any) -> Step:
    limit = LIMITS.get(name)
    low = None if limit is None else -limit
    return Operation(name, low, limit, options=options), m, list(u)


def test_by_hand() -> None:
    box = np.array([[2.0, 3.0, 6.0, 5.0]])
    points = np.array([[2.0, 3.0]])

    def moved(one: Step) -> tuple[list[float], list[float]]:
        layers = layers_of([one], 10, 20)
        boxes = move_boxes(box, layers, 10, 20, hide=False)
        return boxes[0].tolist(), track(points, layers, 10, 20, hide=False)[0][0].tolist()

    assert moved(step("flip", u=[0.7])) == ([14, 3, 18, 5], [18, 3])
    assert moved(step("flip", u=[0.2])) == ([2, 3, 6, 5], [2, 3])
    assert moved(step("translate_x", 0.15)) == ([0, 3, 3, 5], [-1, 3])
    assert moved(step("translate_y", -0.2)) == ([2, 5, 6, 7], [2, 5])
    assert moved(step("shear_x", -1.0)) == ([5, 3, 11, 5], [5, 3])
    assert moved(step("shear_y", 0.5)) == ([2, 0, 6, 4], [2, 2])
    assert moved(step("rotate", 180.0)) == ([14, 5, 18, 7], [18, 7])
    assert moved(step("crop", u=[0, 0.99], pad=1)) == ([3, 2, 7, 4], [3, 2])


def test_what_left_the_image_does_not_come_back() -> None:
    back = [step("translate_x", 0.5), step("translate_x", -0.5)]
    layers = layers_of(back, 8, 8)
    boxes = np.array([[0.0, 0, 3, 8], [2, 1, 6, 7], [5, 0, 8, 8]])
    want = [[0, 0, 0, 0], [4, 1, 6, 7], [5, 0, 8, 8]]
    assert move_boxes(boxes, layers, 8, 8, hide=False).tolist() == want
    points, lost = track(np.array([[1.0, 1], [6, 6]]), layers, 8, 8, hide=False)
    assert points.tolist() == [[1, 1], [6, 6]]
    assert lost.tolist() == [True, False]


def test_a_layer_that_moves_the_border_into_view_brings_no_box_back() -> None:
    """The image's edges turn too, and the upright boxes around them reach beyond the image."""
    layers = layers_of([step("translate_y", 0.45), step("rotate", 30.0)], 64, 45)
    boxes = np.array([[21.0, 21, 26, 27], [21, 25, 26, 31]])
    gone, moved = move_boxes(boxes, layers, 64, 45, hide=False)
    assert (gone[2:] == gone[:2]).all()
    cos, sin = np.cos(np.pi / 6), np.sin(np.pi / 6)
    corners = np.array([[21, 0], [26, 0], [26, 2], [21, 2]]) - (22.5, 32)  # 29 pixels up, then cut
    want = corners @ [[cos, -sin], [sin, cos]] + (22.5, 32)
    assert moved == pytest.approx([*want.min(0).clip(0), *want.max(0)])


def test_what_is_left_outside_of_a_cutout_may_leave() -> None:
    """Half of the box is under the cutout, and the other half leaves the image."""
    hidden, away = step("cutout", u=[0.5, 0.5], size=6), step("translate_x", -0.5)
    layers = layers_of([hidden, away, step("rotate", 20.0)], 16, 16)  # 5 to 12 are covered
    boxes = np.array([[1.0, 6, 14, 10], [7, 6, 14, 10], [6, 6, 7, 7]])
    moved = move_boxes(boxes, layers, 16, 16, hide=True)
    assert [bool((box[2:] > box[:2]).all()) for box in moved] == [True, False, False]
    assert (move_boxes(boxes, layers, 16, 16, hide=False)[2, 2:] > 0).all()


def test_cutout_hides_what_is_wholly_under_it() -> None:
    layers = layers_of([step("cutout", u=[0.5, 0.5], size=6), step("flip", u=[0.9])], 16, 16)
    assert hidden_box(layers[0]) == (5, 5, 12, 12)  # Pillow's rectangle includes its far edge
    boxes = np.array([[6.0, 6, 10, 10], [6, 6, 13, 10]])
    assert move_boxes(boxes, layers, 16, 16, hide=True).tolist() == [[6, 6, 6, 6], [3, 6, 10, 10]]
    assert move_boxes(boxes, layers, 16, 16, hide=False)[0].tolist() == [6, 6, 10, 10]
    points = np.array([[5.0, 5], [12, 11]])
    assert track(points, layers, 16, 16, hide=True)[1].tolist() == [True, False]
    assert not track(points, layers, 16, 16, hide=False)[1].any()


def test_an_own_operation_has_no_geometry() -> None:
    own = Operation("mine", pil=lambda image, m, u: image)
    with pytest.raises(TypeError, match="the own operation 'mine'"):
        moving_layers([(0, [])], Table([(own, None)]), 8, 8)
