"""Rectangles at any angle, which go with an image as rotated boxes do.

Coordinates are those of `deepaa.ops.geometry`. A rectangle (5,) is centre x and y, width, height,
and degrees anticlockwise as one sees them; its corners, at 0 degrees, are the top left, top right,
bottom right and bottom left one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepaa.ops.geometry import Layer, move_parallelograms, move_points
from deepaa.ops.parallelograms import Bools, Floats


def rectangle_corners(rectangles: Floats) -> Floats:
    """(N, 4, 2) corners of rectangles (N, 5): centre x and y, width, height, degrees anticlockwise.

    At 0 degrees they are the top left, top right, bottom right and bottom left one.
    """
    across, down = _axes(rectangles[:, 4])
    across, down = across * rectangles[:, 2:3] / 2, down * rectangles[:, 3:4] / 2
    return rectangles[:, None, :2] + np.stack(
        (-across - down, across - down, across + down, down - across), 1
    )


def fit_rectangles(corners: Floats) -> Floats:
    """The rectangles (N, 5) near to four corners (N, 4, 2), which may be off by rounding."""
    first, second, third, fourth = np.moveaxis(corners, 1, 0)
    width, height = (second + third - first - fourth) / 2, (third + fourth - first - second) / 2
    along = width * _lengths(width) + _turned(height) * _lengths(height)
    degrees = _degrees(along)
    across, down = _axes(degrees)
    sides = np.stack(((width * across).sum(-1), (height * down).sum(-1)), -1)
    return np.concatenate((corners.mean(1), sides.clip(min=0), degrees[:, None]), -1)


def move_rectangles(
    rectangles: Floats, layers: Sequence[Layer], height: int, width: int, *, hide: bool
) -> Floats:
    """Rectangles (N, 5), as `rectangle_corners` takes them, after the layers, in the same order.

    A rectangle becomes a parallelogram. Of the rectangles around it the smallest has the direction
    of its longer side; that direction is kept, and the rectangle is drawn around what is left in
    the image after every layer, as `move_parallelograms` says. A flip negates the angle, so that an
    upright one stays upright. One that is gone has no width and no height.
    """
    left = move_parallelograms(rectangle_corners(rectangles), layers, height, width, hide=hide)
    unit = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    for layer in layers:
        unit = move_points(unit, layer)
    turned = _directions(rectangles, unit[1:] - unit[0])
    axes = np.stack(_axes(turned), 2)  # (N, 2, 2): a column for each axis
    low, high = (ends.transpose() for ends in left.spans(axes.transpose(1, 2, 0)))
    centre = ((low + high)[:, None] / 2 @ axes.transpose(0, 2, 1))[:, 0]
    rest, gone = left.corners.mean(1).transpose().clip(0, (width, height)), left.gone[:, None]
    centre, size = (np.where(gone, a, b) for a, b in ((rest, centre), (0.0, high - low)))
    return np.concatenate((centre, size, turned[:, None]), -1)


def are_outside(rectangles: Floats, height: int, width: int, beyond: float) -> Bools:
    """Which of rectangles (N, 5) lie beside an image that is larger by `beyond` on each side."""
    corners = rectangle_corners(rectangles)
    low, high = corners.min(1), corners.max(1)
    outside: Bools = ((high < -beyond) | (low > np.array((width, height)) + beyond)).any(-1)
    # a line between them is along a side of the one or of the other
    x, y = width + beyond, height + beyond
    image = np.array([(-beyond, -beyond), (x, -beyond), (x, y), (-beyond, y)])
    around = (image - rectangles[:, None, :2]) @ np.stack(_axes(rectangles[:, 4]), 2)
    half = rectangles[:, 2:4] / 2
    outside |= ((around.min(1) > half) | (around.max(1) < -half)).any(-1)
    return outside


def _axes(degrees: Floats) -> tuple[Floats, Floats]:
    """The unit vectors along the width and along the height of rectangles, each (N, 2)."""
    radians = np.radians(degrees)
    cos, sin = np.cos(radians), np.sin(radians)
    return np.stack((cos, -sin), -1), np.stack((sin, cos), -1)


def _degrees(across: Floats) -> Floats:
    """The angles, anticlockwise as one sees them, of vectors (N, 2) along the width."""
    degrees: Floats = np.degrees(np.arctan2(-across[:, 1], across[:, 0]))
    return degrees


def _turned(down: Floats) -> Floats:
    """The directions of the width that belong to those of the height, (N, 2)."""
    return np.stack((down[:, 1], -down[:, 0]), -1)


def _lengths(vectors: Floats) -> Floats:
    """(N, 1) lengths of vectors (N, 2)."""
    return np.hypot(vectors[:, :1], vectors[:, 1:])


def _directions(rectangles: Floats, linear: Floats) -> Floats:
    """The degrees of rectangles after a linear map, given as the images of the two unit vectors."""
    (a, b), (c, d) = linear
    mirror = 1 if a * d >= b * c else -1
    across, down = (axis @ linear for axis in _axes(rectangles[:, 4]))
    width, height = (_lengths(across) * rectangles[:, 2:3], _lengths(down) * rectangles[:, 3:4])
    wide = width * (1 + 1e-9) >= height  # equal sides differ by errors of rounding
    degrees = _degrees(np.where(wide, mirror * across, _turned(down)))
    start = mirror * rectangles[:, 4]
    nearest: Floats = degrees + 360 * np.round((start - degrees) / 360)
    return nearest
