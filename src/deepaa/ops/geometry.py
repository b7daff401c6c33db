"""Where the operations take places: for masks, boxes and points that go with an image.

Coordinates are continuous: the pixel in row i and column j covers [j, j + 1) x [i, i + 1). A mask
follows the very pixels that the kernels read (`source_index`); points follow the same maps, the
other way round (`track`). Operations of colour move nothing and are left out from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from deepaa.ops.parallelograms import (
    Bools,
    Floats,
    Point,
    Remains,
    cut_parallelograms,
    cut_polygon,
)
from deepaa.ops.plan import GEOMETRY, Longs
from deepaa.ops.resized_crop import resized_crop_box
from deepaa.ops.rng import cutout_box
from deepaa.ops.space import Table

Matrix = tuple[float, float, float, float, float, float]
MOVING = {*GEOMETRY, "flip", "crop", "resized_crop", "cutout"}
"""Operations after which a place is elsewhere, or hidden."""


class Layer(NamedTuple):
    """One drawn operation of a policy on an image of (height, width)."""

    name: str
    magnitude: float | None
    uniforms: Sequence[float]
    options: dict[str, Any]
    height: int
    width: int


def moving_layers(
    steps: Sequence[tuple[int, Sequence[float]]], table: Table, height: int, width: int
) -> list[Layer]:
    """The layers of a draw, as `Policy.draw_one` gives it, that move or hide places."""
    layers = []
    for index, uniforms in steps:
        operation, magnitude = table.rows[index]
        if operation.is_custom:
            raise TypeError(f"nobody knows where the own operation {operation.name!r} takes places")
        if operation.name in MOVING:
            options = dict[str, Any](operation.options)
            layers.append(Layer(operation.name, magnitude, uniforms, options, height, width))
    return layers


def hidden_box(layer: Layer) -> tuple[int, int, int, int] | None:
    """(left, top, right, bottom) that cutout paints over, far edges excluded; None without it."""
    if layer.name != "cutout":
        return None
    options = {key: value for key, value in layer.options.items() if key != "fill"}
    box = cutout_box(layer.uniforms, layer.height, layer.width, layer.magnitude, **options)
    if box is None:
        return None
    left, top, right, bottom = box
    right, bottom = min(right + 1, layer.width), min(bottom + 1, layer.height)
    # a square about a pixel beyond the border may cover nothing
    return (left, top, right, bottom) if left < right and top < bottom else None


# Pixels


def _resized(first: int, length: int, target: int) -> Longs:
    """Pillow's nearest neighbours: a place that advances by the step, in float64."""
    step = length / target
    places = np.cumsum(np.concatenate(([step * 0.5], np.full(target - 1, step))))
    inside: Longs = np.minimum(np.floor(places).astype(np.int64), length - 1)
    return inside + first


def _sources(layer: Layer) -> tuple[Longs, Longs]:
    """The source column and the source row of each pixel, each (H, W) or of one line of it."""
    name, m, u, options, height, width = layer
    if name in GEOMETRY:
        columns, rows = (
            (terms[None, :width].astype(np.int64) + terms[width:, None]) >> 16
            for terms in GEOMETRY[name](m or 0.0, height, width)
        )
        return columns, rows
    x, y = np.arange(width)[None, :], np.arange(height)[:, None]
    if name == "flip":
        return (x[:, ::-1] if u[0] >= 0.5 else x), y
    if name == "crop":
        pad = options["pad"]
        return x + int(u[0] * (2 * pad + 1)) - pad, y + int(u[1] * (2 * pad + 1)) - pad
    if name == "resized_crop":
        left, top, w, h = resized_crop_box(u, height, width, **options)
        return _resized(left, w, width)[None, :], _resized(top, h, height)[:, None]
    return x, y


def source_index(layers: Sequence[Layer], height: int, width: int, *, hide: bool) -> Longs:
    """(H, W) of the pixel, row * W + column, that each pixel is copied from; -1 where none is.

    A resized crop takes the nearest pixel of its box. With `hide`, nothing is under a cutout.
    """
    index = np.arange(height * width).reshape(height, width)
    for layer in layers:
        if layer.name == "cutout":
            if hide and (box := hidden_box(layer)):
                index[box[1] : box[3], box[0] : box[2]] = -1
            continue
        x, y = np.broadcast_arrays(*_sources(layer))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        index = np.where(inside, index[y.clip(0, height - 1), x.clip(0, width - 1)], -1)
    return index


# Points


def _source_matrix(layer: Layer) -> Matrix:
    """(a, b, c, d, e, f) with which the pixel at (x, y) is read at (ax + by + c, dx + ey + f)."""
    name, magnitude, u, options, height, width = layer
    m = magnitude or 0.0
    if name == "shear_x":
        return (1, m, 0, 0, 1, 0)
    if name == "shear_y":
        return (1, 0, 0, m, 1, 0)
    if name == "translate_x":  # pixels move as a whole
        return (1, 0, math.floor(m * width + 0.5), 0, 1, 0)
    if name == "translate_y":
        return (1, 0, 0, 0, 1, math.floor(m * height + 0.5))
    if name == "rotate":
        angle, x, y = -math.radians(m % 360.0), width / 2, height / 2
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        return (cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y)
    if name == "flip":
        return (-1, 0, width, 0, 1, 0) if u[0] >= 0.5 else (1, 0, 0, 0, 1, 0)
    if name == "crop":
        pad = options["pad"]
        x, y = (int(number * (2 * pad + 1)) - pad for number in u[:2])
        return (1, 0, x, 0, 1, y)
    if name == "resized_crop":
        left, top, w, h = resized_crop_box(u, height, width, **options)
        return (w / width, 0, left, 0, h / height, top)
    return (1, 0, 0, 0, 1, 0)


def move_points(points: Floats, layer: Layer) -> Floats:
    """Where a layer takes points (..., 2) of x and y; they may end outside of the image."""
    x, y = _moved((points[..., 0], points[..., 1]), _source_matrix(layer))
    return np.stack((x, y), -1)


def _moved(place: Any, source: Matrix) -> tuple[Any, Any]:
    """Where a place of x and y goes, which a layer with this source matrix moves."""
    a, b, c, d, e, f = source
    x, y, area = place[0] - c, place[1] - f, a * e - b * d
    return (e * x - b * y) / area, (a * y - d * x) / area


def _inside(points: Floats, height: int, width: int) -> Bools:
    return np.asarray(((points >= 0) & (points <= (width, height))).all(-1))


def track(
    points: Floats, layers: Sequence[Layer], height: int, width: int, *, hide: bool
) -> tuple[Floats, Bools]:
    """Where points (..., 2) end, and which of them lost their pixel on the way.

    That is a point which left the image in one layer, whether or not a later one brought it back,
    or, with `hide`, which came under a cutout.
    """
    lost = ~_inside(points, height, width)
    for layer in layers:
        box = hidden_box(layer) if hide else None
        if box is not None:
            lost |= ((points >= box[:2]) & (points < box[2:])).all(-1)
        points = move_points(points, layer)
        lost |= ~_inside(points, height, width)
    return points, lost


# Areas


def move_parallelograms(
    corners: Floats, layers: Sequence[Layer], height: int, width: int, *, hide: bool
) -> Remains:
    """What is left of parallelograms (N, 4, 2) after the layers.

    The image cuts them before and after each layer, so that what left it in one layer stays away.
    One is gone if it has no area, or if, with `hide`, a cutout covers all that is left of it.
    """
    image: list[Point] = [(0, 0), (width, 0), (width, height), (0, height)]
    stages, shadows = [np.ascontiguousarray(corners.transpose())], []
    for layer in layers:
        if layer.name == "cutout":
            if hide and (box := hidden_box(layer)):
                shadows.append(_corners(np.array([box], np.float64)).transpose())
            continue
        matrix = _source_matrix(layer)
        stages.append(np.stack(_moved(stages[-1], matrix)))
        shadows = [np.stack(_moved(shadow, matrix)) for shadow in shadows]
        image = cut_polygon([_moved(point, matrix) for point in image], height, width)
    left = cut_parallelograms(stages, image, height, width)
    for shadow in shadows:
        left.gone[left.within(shadow)] = True
    return left


def move_boxes(
    boxes: Floats, layers: Sequence[Layer], height: int, width: int, *, hide: bool
) -> Floats:
    """Boxes (N, 4) of left, top, right, bottom after the layers, in the same order.

    Each is the hull of what is left of it, as `move_parallelograms` says. One that is gone has no
    width and no height.
    """
    left = move_parallelograms(_corners(boxes), layers, height, width, hide=hide)
    low, high = left.spans()
    if left.gone.any():
        start = left.corners[..., left.gone].min(1)
        low[:, left.gone] = high[:, left.gone] = start.clip(0, [[width], [height]])
    return np.concatenate((low, high)).transpose()


def _corners(boxes: Floats) -> Floats:
    """(N, 4, 2) corners of boxes (N, 4)."""
    return boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
