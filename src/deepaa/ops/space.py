"""Operations, their magnitudes, and the spaces of transformations that they make up."""

from __future__ import annotations

import itertools
import math
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

PilKernel = Callable[..., "Image"]
"""`(image, magnitude, uniforms, **options) -> image` for one PIL image."""
BatchKernel = Callable[..., "Tensor"]
"""`(images, magnitudes, uniforms, **options) -> images` for uint8 (N, C, H, W)."""
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
# options that are whole numbers, and their limits
_WHOLE = {"pad": (0, 4096), "size": (0, 16384), "min_side": (0, 16384), "central": (1, 16384)}


def _as_option(name: str, key: str, value: object) -> Option:
    """An option as policy files can hold it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if all(isinstance(v, int | float) and math.isfinite(v) for v in value):
            return tuple(value)
    elif isinstance(value, str | bool | int | None) or (
        isinstance(value, float) and math.isfinite(value)
    ):
        return value
    raise ValueError(f"{name}: option {key} should be a number, text or numbers, got {value!r}")


def _check_options(name: str, options: Mapping[str, Option]) -> None:
    """Refuse values that a kernel could not use, so that a policy file cannot carry them either."""
    for key, (low, high) in _WHOLE.items():
        value = options.get(key, low)
        if key == "central" and value in (None, PIXEL):
            continue
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{name}: {key} should be in {low}..{high}, got {value!r}")
    fill = options.get("fill", 0)
    values = fill if isinstance(fill, tuple) else (fill,)
    if len(values) not in (1, 3) or not all(type(v) is int and 0 <= v <= 255 for v in values):
        raise ValueError(f"{name}: fill should be one or three values in 0..255, got {fill!r}")
    for key, most in (("scale", 1.0), ("ratio", 100.0)):
        pair = options.get(key, (most, most))
        if not isinstance(pair, tuple) or len(pair) != 2 or not 0 < pair[0] <= pair[1] <= most:
            raise ValueError(f"{name}: {key} should be 0 < low <= high <= {most}, got {pair!r}")


@dataclass(frozen=True)
class Operation:
    """An image operation: a name, a range of magnitudes, and options that stay fixed.

    A built-in operation needs only its name and range. One of your own brings a kernel: `batched`
    for uint8 (N, C, H, W) tensors, or `pil` for one PIL image, which batches call image by image.

    Args:
        neutral: The magnitude that changes nothing; a `Space` leaves it out of the grid.
        options: Keyword arguments of the kernel. They are stored in policy files.
        uniforms: How many random numbers in [0, 1) the kernel takes per image (own operations).
    """

    name: str
    low: float | None = None
    high: float | None = None
    neutral: float | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    uniforms: int = 0
    pil: PilKernel | None = field(default=None, repr=False)
    batched: BatchKernel | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the declaration and fill in the options of built-in operations."""
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z][\w.-]{0,63}", self.name):
            raise ValueError(
                f"operation name {self.name!r} should start with a letter and have at most 64 "
                "letters, digits, '_', '-' or '.'"
            )
        self._check_range()
        spec = Builtin(uniforms=self.uniforms) if self.is_custom else self._fitting_builtin()
        if self.is_custom:
            if self.name in BUILTIN:
                raise ValueError(f"{self.name!r} is a built-in operation; give yours another name")
            if not isinstance(self.uniforms, int) or not 0 <= self.uniforms <= MAX_UNIFORMS:
                raise ValueError(f"{self.name}: uniforms is {self.uniforms}, not 0..{MAX_UNIFORMS}")
        given = {**spec.options, **self.options}
        options = {key: _as_option(self.name, key, value) for key, value in given.items()}
        if not self.is_custom:
            _check_options(self.name, options)
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "uniforms", spec.uniforms)

    def _check_range(self) -> None:
        low, high = limits = (self.low, self.high)
        for value in (*limits, self.neutral):
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise TypeError(f"{self.name}: a magnitude should be a number, got {value!r}")
        if low is None and high is None:
            if self.neutral is not None:
                raise ValueError(f"{self.name}: neutral {self.neutral} needs a range")
        elif low is None or high is None:
            raise ValueError(f"{self.name}: give both low and high, or neither; got {limits}")
        elif not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"{self.name}: low should be below high, got {limits}")
        elif self.neutral is not None and not low <= self.neutral <= high:
            raise ValueError(f"{self.name}: neutral {self.neutral} lies outside {limits}")

    def _fitting_builtin(self) -> Builtin:
        """The built-in operation of this name, if the declaration fits it."""
        spec = BUILTIN.get(self.name)
        if spec is None:
            raise ValueError(
                f"unknown operation {self.name!r}: give it a kernel (pil=... or batched=...), or "
                f"choose from {', '.join(BUILTIN)}"
            )
        if unknown := sorted(set(self.options) - set(spec.options)):
            have = sorted(spec.options) or "none"
            raise ValueError(f"{self.name} has no option {unknown[0]!r}; it has {have}")
        limits = (self.low, self.high)
        if self.low is None or self.high is None:
            if spec.magnitude == "needed":
                raise ValueError(f"{self.name} needs a range of magnitudes (low, high)")
        elif spec.magnitude == "":
            raise ValueError(f"{self.name} takes no magnitude, got a range {limits}")
        elif not spec.limits[0] <= self.low < self.high <= spec.limits[1]:
            within = "{:g}..{:g}".format(*spec.limits)
            raise ValueError(f"{self.name}: the range should lie within {within}, got {limits}")
        if self.uniforms not in (0, spec.uniforms):
            raise ValueError(f"{self.name} takes {spec.uniforms} uniforms, got {self.uniforms}")
        return spec

    def __hash__(self) -> int:
        """With the options: operations of a file may differ in nothing else."""
        return hash((self.name, self.low, self.high, self.neutral, frozenset(self.options.items())))

    @property
    def is_custom(self) -> bool:
        """Whether the operation brings its own kernel."""
        return self.pil is not None or self.batched is not None

    @property
    def is_signed(self) -> bool:
        """Whether m and -m are mirror images: the range is symmetric about a neutral 0."""
        return self.neutral == 0 and self.low is not None and self.low == -(self.high or 0.0)

    def magnitudes(self, levels: int) -> tuple[float | None, ...]:
        """Evenly spaced magnitudes without the neutral one; `(None,)` if there is no range."""
        if self.low is None or self.high is None:
            return (None,)
        if levels < 2:
            raise ValueError(f"levels should be at least 2, got {levels}")
        span = self.high - self.low
        # rounded, so that a signed grid is exactly symmetric and 0.075 is not 0.07500000000000001
        grid = [round(k / (levels - 1) * span + self.low, 12) for k in range(levels)]
        neutral = math.inf if self.neutral is None else self.neutral
        return tuple(m for m in grid if abs(m - neutral) > 1e-9 * span)


class Transformation(NamedTuple):
    """An operation at one magnitude: a column of a layer's distribution."""

    op: str
    magnitude: float | None

    def __str__(self) -> str:
        """`rotate -15` or `invert`."""
        return self.op if self.magnitude is None else f"{self.op} {self.magnitude:.4g}"


class Row(NamedTuple):
    """A transformation together with the operation (and so the options) it belongs to."""

    operation: Operation
    magnitude: float | None

    @property
    def transformation(self) -> Transformation:
        """The row's name and magnitude."""
        return Transformation(self.operation.name, self.magnitude)

    @property
    def mirrored(self) -> Row:
        """The row with the opposite sign, if its operation is signed; else the row itself."""
        if self.magnitude is None or not self.operation.is_signed:
            return self
        return Row(self.operation, -self.magnitude)


_HANDLES = itertools.count(1)
TABLES: weakref.WeakValueDictionary[int, Table] = weakref.WeakValueDictionary()
"""The tables of this process by their handles."""


class Table:
    """The rows a policy chooses from. Two tables are equal when their rows are."""

    def __init__(self, rows: Iterable[tuple[Operation, float | None]]) -> None:
        """Check each magnitude against its operation."""
        self.rows: tuple[Row, ...] = tuple(Row(*row) for row in rows)
        if not self.rows:
            raise ValueError("a table needs at least one row")
        for i, (operation, magnitude) in enumerate(self.rows):
            name, low, high = operation.name, operation.low, operation.high
            if magnitude is None:
                if low is not None:
                    raise ValueError(f"row {i}: {name} needs a magnitude")
            elif low is None or high is None:
                raise ValueError(f"row {i}: {name} has no range, got {magnitude}")
            elif not low <= magnitude <= high:
                raise ValueError(
                    f"row {i}: {name} has magnitude {magnitude}, outside its range {low}..{high}"
                )
        self.handle = next(_HANDLES)  # for compiled graphs, which carry no Python objects
        TABLES[self.handle] = self
        self.cache: dict[Any, Any] = {}
        """What kernels computed from this table (constants per size and device); never saved."""
        self.sizes: Any = None  # of single images, see single.py; never saved either

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        """Equal rows in equal order."""
        return isinstance(other, Table) and self.rows == other.rows

    def __hash__(self) -> int:
        """Hash of the rows."""
        return hash(self.rows)

    def __repr__(self) -> str:
        """`Table(139 rows, 18 operations)`."""
        return f"Table({len(self)} rows, {len(self.operations)} operations)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the rows alone."""
        return (Table, (self.rows,))

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Distinct operations in order of appearance."""
        return tuple(dict.fromkeys(row.operation for row in self.rows))

    @cached_property
    def uniforms(self) -> int:
        """Random numbers a layer needs: the most any of its operations takes."""
        return max(row.operation.uniforms for row in self.rows)

    @cached_property
    def identity(self) -> int | None:
        """Index of the first identity row."""
        rows = (i for i, row in enumerate(self.rows) if row.operation.name == "identity")
        return next(rows, None)

    @property
    def twins(self) -> list[int]:
        """For each row the place of the one with the opposite sign, or its own without one."""
        index = {row: i for i, row in enumerate(self.rows)}
        return [index.get(row.mirrored, i) for i, row in enumerate(self.rows)]

    def extended(self, rows: Iterable[Row]) -> Table:
        """This table followed by those of `rows` it lacks."""
        return Table(dict.fromkeys((*self.rows, *rows)))


@dataclass(frozen=True)
class Space:
    """Operations and the number of levels each range is cut into."""

    operations: tuple[Operation, ...]
    levels: int = 13
    table: Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse an empty space and two operations of one name."""
        object.__setattr__(self, "operations", tuple(self.operations))
        names = [op.name for op in self.operations]
        if not names:
            raise ValueError("a space needs at least one operation")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"operation {twice[0]!r} appears twice in the space")
        rows = ((op, m) for op in self.operations for m in op.magnitudes(self.levels))
        object.__setattr__(self, "table", Table(rows))

    @property
    def transformations(self) -> tuple[Transformation, ...]:
        """Every operation at every level, in order: the columns of a layer."""
        return tuple(row.transformation for row in self.table.rows)

    def __len__(self) -> int:
        """Number of transformations."""
        return len(self.table)

    def only(self, *names: str) -> Space:
        """The space of the named operations, in this space's order."""
        self._check_names(names)
        return Space(tuple(op for op in self.operations if op.name in names), self.levels)

    def without(self, *names: str) -> Space:
        """The space without the named operations."""
        self._check_names(names)
        return Space(tuple(op for op in self.operations if op.name not in names), self.levels)

    def _check_names(self, names: Iterable[str]) -> None:
        have = [op.name for op in self.operations]
        for name in names:
            if name not in have:
                raise ValueError(f"no operation {name!r} in this space; it has {', '.join(have)}")

    def plus(self, *operations: Operation) -> Space:
        """The space with more operations at its end."""
        return Space((*self.operations, *operations), self.levels)


# The paper's 16 common operations (Appendix, "standard augmentation space") in the order of the
# authors' released policies; flip, cutout and crop follow and differ between the two spaces.
_COMMON = (
    Operation("identity"),
    Operation("shear_x", -0.3, 0.3, neutral=0.0),
    Operation("shear_y", -0.3, 0.3, neutral=0.0),
    Operation("translate_x", -0.45, 0.45, neutral=0.0),  # a fraction of the width
    Operation("translate_y", -0.45, 0.45, neutral=0.0),
    Operation("rotate", -30.0, 30.0, neutral=0.0),  # degrees, counter-clockwise
    Operation("auto_contrast"),
    Operation("invert"),
    Operation("equalize"),
    Operation("solarize", 0.0, 256.0, neutral=256.0),
    Operation("posterize", 4.0, 8.0, neutral=8.0),  # bits kept; 12 levels give only 4, 5, 6 and 7
    Operation("contrast", 0.1, 1.9, neutral=1.0),
    Operation("color", 0.1, 1.9, neutral=1.0),
    Operation("brightness", 0.1, 1.9, neutral=1.0),
    Operation("sharpness", 0.1, 1.9, neutral=1.0),
    Operation("flip"),
)

CIFAR = Space((*_COMMON, Operation("cutout"), Operation("crop")))
"""The paper's space for CIFAR: 139 transformations, 16-pixel cutout, pad-4 crop."""

# The authors draw the centre of the large cutout from the central 256 x 256 pixels and leave images
# of up to 120 pixels alone, where it would cover a quarter or more.
_LARGE_CUTOUT = Operation("cutout", options={"size": 60, "central": 256, "min_side": 121})
IMAGENET = Space((*_COMMON, _LARGE_CUTOUT, Operation("resized_crop")))
"""The paper's space for ImageNet: 139 transformations, 60-pixel cutout, resized crop."""
