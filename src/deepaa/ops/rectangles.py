"""Rectangles at any angle, which go with an image as rotated boxes do.

Coordinates are those of `deepaa.ops.geometry`. A rectangle (5,) is centre x and y, width, height,
and degrees anticlockwise as one sees them; its corners, at 0 degrees, are the top left, top right,
bottom right and bottom left one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepaa.ops.geometry import Floats, Layer, hidden_box, move_points

NO_AREA = 1e-6
"""Square pixels below which what is left of a turned rectangle is an error of rounding."""


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
    the image after every layer. A flip negates the angle, so that an upright one stays upright. One
    of which nothing is left, or which, with `hide`, came under a cutout as a whole, has no width
    and no height.
    """
    corners = rectangle_corners(rectangles)
    left, gone = cut_polygons(corners, height, width), np.zeros(len(corners), np.bool_)
    unit = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    for layer in layers:
        box = hidden_box(layer) if hide else None
        if box is not None:
            gone |= ((left >= box[:2]) & (left <= box[2:])).all((1, 2))
        corners, left, unit = (move_points(points, layer) for points in (corners, left, unit))
        left = cut_polygons(left, height, width)
    gone |= ~(_areas(left) > NO_AREA)
    turned = _directions(rectangles, unit[1:] - unit[0])
    axes = np.stack(_axes(turned), 2)  # (N, 2, 2): a column for each axis
    left = left @ axes
    low, high = left.min(1), left.max(1)
    centre = ((low + high)[:, None] / 2 @ axes.transpose(0, 2, 1))[:, 0]
    rest = corners.mean(1).clip(0, (width, height))
    centre, size = (np.where(gone[:, None], a, b) for a, b in ((rest, centre), (0.0, high - low)))
    return np.concatenate((centre, size, turned[:, None]), -1)


def cut_polygons(polygons: Floats, height: int, width: int, beyond: float = 0.0) -> Floats:
    """What is within the image of convex polygons (N, M, 2), as polygons with no fewer corners.

    Corners may repeat; one of which nothing is left has NaN. The image is larger by `beyond` pixels
    on each side.
    """
    for axis, sign, limit in ((0, 1, 0), (0, -1, width), (1, 1, 0), (1, -1, height)):
        depth = sign * (polygons[..., axis] - limit) + beyond  # inside of this edge
        inside = depth >= 0
        if inside.all():
            continue
        crosses = inside != np.roll(inside, -1, 1)
        share = depth / np.where(crosses, depth - np.roll(depth, -1, 1), 1)
        crossings = polygons + share[..., None] * (np.roll(polygons, -1, 1) - polygons)
        crossings[..., axis] = limit - sign * beyond  # without errors of rounding
        points = np.stack((polygons, crossings), 2).reshape(len(polygons), -1, 2)
        kept = np.stack((inside, crosses), 2).reshape(len(polygons), -1)
        # in their order, and an edge adds one at most
        order = np.argsort(~kept, 1, kind="stable")[:, : polygons.shape[1] + 1]
        points = np.take_along_axis(points, order[..., None], 1)
        kept = np.take_along_axis(kept, order, 1)
        polygons = np.where(kept[..., None], points, points[:, :1])
        polygons[~kept[:, 0]] = np.nan
    return polygons


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


def _areas(polygons: Floats) -> Floats:
    """The areas of polygons (N, M, 2)."""
    x, y = np.moveaxis(polygons - polygons[:, :1], -1, 0)
    area: Floats = np.abs((x * np.roll(y, -1, 1) - y * np.roll(x, -1, 1)).sum(1)) / 2
    return area
