"""Operations, their magnitudes, and the spaces of transformations that they make up."""

from __future__ import annotations

import itertools
import math
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from deepaa.ops.specs import BUILTIN, MAX_UNIFORMS, Builtin, Option, as_option, check_options

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

PilKernel = Callable[..., "Image"]
"""`(image, magnitude, uniforms, **options) -> image` for one PIL image."""
BatchKernel = Callable[..., "Tensor"]
"""`(images, magnitudes, uniforms, **options) -> images` for uint8 (N, C, H, W)."""


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
    options: Mapping[str, Option] = field(default_factory=dict, hash=False)
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
        if self.is_custom:
            if self.name in BUILTIN:
                raise ValueError(f"{self.name!r} is a built-in operation; give yours another name")
            if not isinstance(self.uniforms, int) or not 0 <= self.uniforms <= MAX_UNIFORMS:
                raise ValueError(f"{self.name}: uniforms is {self.uniforms}, not 0..{MAX_UNIFORMS}")
            options = {key: as_option(self.name, key, value) for key, value in self.options.items()}
            object.__setattr__(self, "options", options)
        else:
            self._complete_builtin()

    def _check_range(self) -> None:
        limits = (self.low, self.high)
        for value in (*limits, self.neutral):
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise TypeError(f"{self.name}: a magnitude should be a number, got {value!r}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.name}: give both low and high, or neither; got {limits}")
        if self.low is not None and self.high is not None:
            if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
                raise ValueError(f"{self.name}: low should be below high, got {limits}")
            if self.neutral is not None and not self.low <= self.neutral <= self.high:
                raise ValueError(f"{self.name}: neutral {self.neutral} lies outside {limits}")
        elif self.neutral is not None:
            raise ValueError(f"{self.name}: neutral {self.neutral} needs a range")

    def _complete_builtin(self) -> None:
        if self.name not in BUILTIN:
            raise ValueError(
                f"unknown operation {self.name!r}: give it a kernel (pil=... or batched=...), or "
                f"choose from {', '.join(BUILTIN)}"
            )
        spec = BUILTIN[self.name]
        if unknown := sorted(set(self.options) - set(spec.options)):
            raise ValueError(
                f"{self.name} has no option {unknown[0]!r}; it has {sorted(spec.options) or 'none'}"
            )
        if spec.magnitude == "" and self.low is not None:
            raise ValueError(f"{self.name} takes no magnitude, got a range {(self.low, self.high)}")
        if spec.magnitude == "needed" and self.low is None:
            raise ValueError(f"{self.name} needs a range of magnitudes (low, high)")
        low, high = spec.limits
        if (
            self.low is not None
            and self.high is not None
            and not low <= self.low < self.high <= high
        ):
            raise ValueError(
                f"{self.name}: the range should lie within {low:g}..{high:g}, "
                f"got {(self.low, self.high)}"
            )
        if self.uniforms not in (0, spec.uniforms):
            raise ValueError(f"{self.name} takes {spec.uniforms} uniforms, got {self.uniforms}")
        merged = {
            key: as_option(self.name, key, self.options.get(key, default))
            for key, default in spec.options.items()
        }
        check_options(self.name, merged)
        object.__setattr__(self, "options", merged)
        object.__setattr__(self, "uniforms", spec.uniforms)

    @property
    def is_custom(self) -> bool:
        """Whether the operation brings its own kernel."""
        return self.pil is not None or self.batched is not None

    @property
    def is_signed(self) -> bool:
        """Whether m and -m are mirror images: the range is symmetric about a neutral 0."""
        return self.neutral == 0 and self.low is not None and self.low == -(self.high or 0.0)

    def covers(self, magnitude: float) -> bool:
        """Whether a magnitude lies in the range."""
        if self.low is None or self.high is None:
            return False
        return self.low <= magnitude <= self.high

    def magnitudes(self, levels: int) -> tuple[float | None, ...]:
        """Evenly spaced magnitudes without the neutral one; `(None,)` if there is no range."""
        if self.low is None or self.high is None:
            return (None,)
        if levels < 2:
            raise ValueError(f"levels should be at least 2, got {levels}")
        span = self.high - self.low
        # rounded, so that a signed grid is exactly symmetric and 0.075 is not 0.07500000000000001
        grid = [round(k / (levels - 1) * span + self.low, 12) for k in range(levels)]
        tolerance = 1e-9 * span
        if self.neutral is None:
            return tuple(grid)
        return tuple(m for m in grid if abs(m - self.neutral) > tolerance)


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
_TABLES: weakref.WeakValueDictionary[int, Table] = weakref.WeakValueDictionary()


class Table:
    """The rows a policy chooses from. Two tables are equal when their rows are."""

    def __init__(self, rows: Iterable[tuple[Operation, float | None]]) -> None:
        """Check each magnitude against its operation."""
        self.rows: tuple[Row, ...] = tuple(Row(*row) for row in rows)
        if not self.rows:
            raise ValueError("a table needs at least one row")
        for i, (operation, magnitude) in enumerate(self.rows):
            spec = BUILTIN.get(operation.name, Builtin("optional"))
            if magnitude is None and (spec.magnitude == "needed" or operation.low is not None):
                raise ValueError(f"row {i}: {operation.name} needs a magnitude")
            if magnitude is not None and operation.low is None:
                raise ValueError(f"row {i}: {operation.name} has no range, got {magnitude}")
            if magnitude is not None and not operation.covers(magnitude):
                raise ValueError(
                    f"row {i}: {operation.name} has magnitude {magnitude}, outside its range "
                    f"{operation.low}..{operation.high}"
                )
        self.handle = next(_HANDLES)
        """A number that stands for the table in compiled graphs, which carry no Python objects."""
        _TABLES[self.handle] = self
        self.cache: dict[Any, Any] = {}
        """What kernels computed from this table (constants per size and device); never saved."""

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

    @staticmethod
    def of_handle(handle: int) -> Table:
        """The table of this process with that handle."""
        return _TABLES[handle]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Distinct operations in order of appearance."""
        return tuple(dict.fromkeys(row.operation for row in self.rows))

    @property
    def uniforms(self) -> int:
        """Random numbers a layer needs: the most any of its operations takes."""
        return max(row.operation.uniforms for row in self.rows)

    @property
    def identity(self) -> int | None:
        """Index of the first identity row."""
        names = [row.operation.name for row in self.rows]
        return names.index("identity") if "identity" in names else None

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

    def __post_init__(self) -> None:
        """Refuse an empty space and two operations of one name."""
        object.__setattr__(self, "operations", tuple(self.operations))
        names = [op.name for op in self.operations]
        if not names:
            raise ValueError("a space needs at least one operation")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"operation {twice[0]!r} appears twice in the space")
        object.__setattr__(
            self,
            "table",
            Table((op, m) for op in self.operations for m in op.magnitudes(self.levels)),
        )

    table: Table = field(init=False, repr=False, compare=False)

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

    def plus(self, *operations: Operation) -> Space:
        """The space with more operations at its end."""
        return Space((*self.operations, *operations), self.levels)

    def _check_names(self, names: Iterable[str]) -> None:
        have = [op.name for op in self.operations]
        for name in names:
            if name not in have:
                raise ValueError(f"no operation {name!r} in this space; it has {', '.join(have)}")


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
IMAGENET = Space(
    (
        *_COMMON,
        Operation("cutout", options={"size": 60, "central": 256, "min_side": 121}),
        Operation("resized_crop"),
    )
)
"""The paper's space for ImageNet: 139 transformations, 60-pixel cutout, resized crop."""
