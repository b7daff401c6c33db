"""What is left of parallelograms that an image cuts: boxes of any kind on their way through layers.

Coordinates are those of `deepaa.ops.geometry`. A layer moves a parallelogram as a whole, and what
is cut from it after one layer is cut by a line that later layers move too. So all cuts are made at
the end: what is left is what the parallelogram shares with what is left of the image itself.

Places are (2, P, N): x and y of P points for each of N parallelograms. Numpy is several times
faster where the axis of the many comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Point = tuple[float, float]

NO_AREA = 1e-6
"""Square pixels below which what is left of a parallelogram is an error of rounding."""
ROUNDING = 1e-9
"""The share of a side by which a point may be outside by errors of rounding."""
DECIMALS = 9
"""To which places of cuts are rounded, so that those at a border are at the border."""


class Remains(NamedTuple):
    """What is left of N parallelograms, as points around it."""

    corners: Floats
    """(2, 4, N) where the corners would be without cuts."""
    cut: Bools
    """Which n of them lost a part, or everything."""
    points: Floats
    """(2, P, n) points on the border of what is left of these, its corners among them."""
    gone: Bools
    """Of which of the N nothing is left."""

    def spans(self, axes: Floats | None = None) -> tuple[Floats, Floats]:
        """The lowest and highest coordinates (2, N), along the columns of `axes` (2, 2, N)."""
        corners, points = self.corners, self.points
        if axes is not None:
            corners, points = _along(corners, axes), _along(points, axes[..., self.cut])
        low, high = corners.min(1), corners.max(1)
        if points.size:
            low[:, self.cut], high[:, self.cut] = points.min(1), points.max(1)
        return low, high

    def within(self, parallelogram: Floats) -> Bools:
        """Which of them lie in a parallelogram (2, 4, 1) as a whole."""
        inside = _are_within(self.corners, parallelogram)
        inside[self.cut] = _are_within(self.points, parallelogram)
        return inside


def cut_parallelograms(
    stages: Sequence[Floats], image: Sequence[Point], height: int, width: int
) -> Remains:
    """What is left of parallelograms that the image cuts at each of several stages.

    Args:
        stages: Their corners (2, 4, N) before the first layer and after each one.
        image: The corners of what is left of the image itself at the last stage.
        height: The height of the image.
        width: Its width.
    """
    far = np.array((width, height), np.float64)[:, None, None]
    corners, depths = stages[-1], np.concatenate([d for at in stages for d in (at, far - at)])
    cut: Bools = depths.min((0, 1)) < 0
    gone: Bools = np.abs(_areas(corners)) <= NO_AREA
    gone |= _polygon_area(image) <= NO_AREA
    if not cut.any():
        return Remains(corners, cut, np.zeros((2, 4, 0)), gone)
    some = corners[..., cut]
    around = np.repeat(np.array(image, np.float64).reshape(-1, 2).T[..., None], some.shape[2], 2)
    shares = _shares(around, some)
    points, there = _ends(
        (some, _inner(depths[..., cut])), (around, _inner(np.concatenate((shares, 1 - shares))))
    )
    shares = _shares(points, some)
    area = np.prod(shares.max(1) - shares.min(1), 0) * np.abs(_areas(some))
    # what has no area is a corner or on a side, and has no extent along the other side
    gone[cut] |= ~there | (area <= NO_AREA)
    return Remains(corners, cut, points.round(DECIMALS), gone)


def cut_polygon(polygon: Sequence[Point], height: int, width: int) -> list[Point]:
    """What is within the image of one convex polygon; it has no corners if nothing is."""
    left = list(polygon)
    for axis, sign, limit in ((0, 1, 0), (0, -1, width), (1, 1, 0), (1, -1, height)):
        before, left = left, []
        for i, end in enumerate(before):
            start = before[i - 1]
            here, there = sign * (start[axis] - limit), sign * (end[axis] - limit)
            if (here >= 0) != (there >= 0):
                other = 1 - axis
                place = start[other] + here / (here - there) * (end[other] - start[other])
                left.append((place, limit) if axis else (limit, place))
            if there >= 0:
                left.append(end)
    return left


def _inner(depths: Floats) -> tuple[Floats, Floats]:
    """From where to where sides are within all lines, as shares (S, N) of their lengths.

    Depths (K, S, N) say how far within each of K lines the corner is in which a side begins; it
    ends in the next one. Where nothing is within, the end comes before the beginning.
    """
    step = np.roll(depths, -1, 1) - depths
    share = np.divide(-depths, step, out=np.zeros_like(step), where=step != 0)
    first = np.where(step > 0, share, 0).max(0)
    last = np.where(step < 0, share, 1).min(0)
    beside = ((step == 0) & (depths < 0)).any(0)
    return first.clip(min=0), np.where(beside, -1, last.clip(max=1))


def _ends(*parts: tuple[Floats, tuple[Floats, Floats]]) -> tuple[Floats, Bools]:
    """The ends (2, P, N) of the inner parts of all sides, and of which of the N there are any.

    In place of an end that does not exist there is one of the others.
    """
    points, kept = [], []
    for corners, (first, last) in parts:
        sides = np.roll(corners, -1, 1) - corners
        points += [corners + share * sides for share in (first, last)]
        kept += [first <= last] * 2
    ends, real = np.concatenate(points, 1), np.concatenate(kept)
    instead = ends[:, real.argmax(0), np.arange(ends.shape[2])]
    there: Bools = np.asarray(real.any(0))
    return np.where(real, ends, instead[:, None]), there


def _shares(points: Floats, parallelograms: Floats) -> Floats:
    """Points (2, P, N) as shares of the sides of parallelograms that meet in the first corner.

    They are in 0..1 within a parallelogram. One without area gives 0.
    """
    (a, b), (c, d) = (parallelograms[:, i] - parallelograms[:, 0] for i in (1, 3))
    area = _areas(parallelograms)
    scale = np.divide(1, area, out=np.zeros_like(area), where=np.abs(area) > NO_AREA)
    x, y = points - parallelograms[:, :1]
    return np.stack(((x * d - y * c) * scale, (y * a - x * b) * scale))


def _are_within(points: Floats, parallelogram: Floats) -> Bools:
    shares = _shares(points, parallelogram)
    return np.asarray((np.abs(shares - 0.5) <= 0.5 + ROUNDING).all((0, 1)))


def _areas(parallelograms: Floats) -> Floats:
    """The (N,) areas of parallelograms (2, 4, N), negative where they are mirrored."""
    (a, b), (c, d) = (parallelograms[:, i] - parallelograms[:, 0] for i in (1, 3))
    area: Floats = a * d - b * c
    return area


def _polygon_area(polygon: Sequence[Point]) -> float:
    """The area of one polygon, which has less than three corners where it has none."""
    sides = [(polygon[i - 1], end) for i, end in enumerate(polygon)]
    return abs(sum(x * v - y * u for (x, y), (u, v) in sides)) / 2


def _along(points: Floats, axes: Floats) -> Floats:
    """Points (2, P, N) in the coordinates along the columns of axes (2, 2, N)."""
    turned: Floats = points[0] * axes[0][:, None] + points[1] * axes[1][:, None]
    return turned
