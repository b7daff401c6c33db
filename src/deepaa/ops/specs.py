"""The declarations of the built-in operations: magnitudes, options and random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Option = int | float | str | bool | None | tuple[float, ...]

CIFAR_MEAN = (125, 123, 114)
PIXEL = "pixel"
"""Cutout's `central`: a square of whole pixels about a whole pixel, cut at every border."""
MAX_UNIFORMS = 250
"""A layer's random numbers are numbered from 0 to 255, and the choice itself takes a few."""


class Builtin(NamedTuple):
    """The declaration of a built-in operation; its options are given with their defaults."""

    magnitude: str = ""  # "", "needed" or "optional"
    limits: tuple[float, float] = (-math.inf, math.inf)  # magnitudes the kernels are exact for
    options: Mapping[str, Option] = {}
    uniforms: int = 0


_FILL: Mapping[str, Option] = {"fill": 0}
_SHEAR = Builtin("needed", (-1.0, 1.0), _FILL)
_TRANSLATE = Builtin("needed", (-2.0, 2.0), _FILL)
_BLEND = Builtin("needed", (-100.0, 100.0))
BUILTIN: Mapping[str, Builtin] = {
    "identity": Builtin(),
    "shear_x": _SHEAR,
    "shear_y": _SHEAR,
    "translate_x": _TRANSLATE,
    "translate_y": _TRANSLATE,
    "rotate": Builtin("needed", (-360.0, 360.0), _FILL),
    "auto_contrast": Builtin(),
    "invert": Builtin(),
    "equalize": Builtin(),
    "solarize": Builtin("needed", (-1000.0, 1000.0)),
    "posterize": Builtin("needed", (0.0, 8.0)),
    "contrast": _BLEND,
    "color": _BLEND,
    "brightness": _BLEND,
    "sharpness": _BLEND,
    "flip": Builtin(uniforms=1),
    # `central`: side of the box the centre is drawn from, or "pixel" for the square of the original
    # Cutout; `min_side`: smaller images are left alone
    "cutout": Builtin(
        "optional",
        (-2.0, 2.0),
        {"size": 16, "fill": CIFAR_MEAN, "central": None, "min_side": 0},
        uniforms=2,
    ),
    "crop": Builtin(options={"pad": 4, "fill": CIFAR_MEAN}, uniforms=2),
    # ten candidate boxes (area and shape in one number each), then the place of the one taken
    "resized_crop": Builtin(options={"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}, uniforms=12),
}


def as_option(name: str, key: str, value: object) -> Option:
    """An option as policy files can hold it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if all(isinstance(v, int | float) and math.isfinite(v) for v in value):
            return tuple(value)
    elif isinstance(value, str | bool | int | None) or (
        isinstance(value, float) and math.isfinite(value)
    ):
        return value
    raise ValueError(f"{name}: option {key} should be a number, text or numbers, got {value!r}")


def check_options(name: str, options: Mapping[str, Option]) -> None:
    """Refuse values that a kernel could not use, so that a policy file cannot carry them either."""

    def number(key: str, low: float, high: float, kind: type = int) -> None:
        value = options[key]
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:  # type: ignore[operator]
            raise ValueError(f"{name}: {key} should be in {low}..{high}, got {value!r}")

    if "fill" in options:
        fill = options["fill"]
        values = fill if isinstance(fill, tuple) else (fill,)
        right_type = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
        if len(values) not in (1, 3) or not right_type or not all(0 <= v <= 255 for v in values):  # type: ignore[operator]
            raise ValueError(f"{name}: fill should be one or three values in 0..255, got {fill!r}")
    if "pad" in options:
        number("pad", 0, 4096)
    if "size" in options:
        number("size", 0, 16384)
        number("min_side", 0, 16384)
        if options["central"] not in (None, PIXEL):
            number("central", 1, 16384)
    for key, most in (("scale", 1.0), ("ratio", 100.0)):
        if key in options:
            pair = options[key]
            if not isinstance(pair, tuple) or len(pair) != 2 or not 0 < pair[0] <= pair[1] <= most:
                raise ValueError(f"{name}: {key} should be 0 < low <= high <= {most}, got {pair!r}")
