"""The policies that Deep AutoAugment is compared with, made from the numbers of their authors.

All of them are rows and probabilities for the same kernels. A translation that its authors give in
pixels becomes the fraction that is those pixels at the side of the data set it was made for.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import torch

from deepaa.ops import CIFAR, IMAGENET, PIXEL, Operation, Row, Space, Table
from deepaa.policy.policy import Policy
from deepaa.policy.stages import IDENTITY, Chain

SpaceName = Literal["cifar", "imagenet"]
SPACES: Mapping[str, Space] = {"cifar": CIFAR, "imagenet": IMAGENET}
SIDES: Mapping[str, int] = {"cifar": 32, "imagenet": 224}
"""The image side at which translations are whole pixels, as in the originals."""
TOP_LEVEL = 30
"""RandAugment and TrivialAugment count strength from 0 to 30."""
TORCHVISION_SHIFT = 150 / 331
"""torchvision's largest translation, as a fraction of the side."""
AUTOAUGMENT_LEVELS = 10
UNIFORM_LEVELS = 128
"""Steps a range is cut into for UniformAugment's continuous values.

At 32 pixels a step moves no pixel by more than a quarter of one (translate 0.23, rotate 0.2 at the
corners, shear 0.15), and a factor changes a value by less than 4 of 255; twice as many would pass
2,000 rows.
"""

_ENHANCE = ("color", "contrast", "brightness", "sharpness")


class Levels(NamedTuple):
    """An operation and its magnitudes, all equally likely."""

    operation: Operation
    magnitudes: Sequence[float | None] = (None,)


# The default augmentation


def default_policy(space: SpaceName = "cifar", *, cutout: bool = True) -> Policy:
    """What the compared methods run behind their policy.

    CIFAR: black pad-4 crop, flip and the original Cutout: 16 x 16, about a pixel drawn uniformly,
    cut at the border, filled with the mean. ImageNet: resized crop and flip.
    """
    flip = Operation("flip")
    if space == "imagenet":
        return Policy.always(Operation("resized_crop"), flip)
    crop = Operation("crop", options={"fill": 0})
    square = Operation("cutout", options={"central": PIXEL})
    return Policy.always(crop, flip, square) if cutout else Policy.always(crop, flip)


# One of fourteen operations: RandAugment and TrivialAugment


_KINDS = {
    "shear": ("shear_x", "shear_y"),
    "translate": ("translate_x", "translate_y"),
    "rotate": ("rotate",),
    "solarize": ("solarize",),
    "posterize": ("posterize",),
    "enhance": _ENHANCE,
}
Range = tuple[float, float, float, Sequence[float]]
"""The lowest, highest and neutral magnitude of operations, and those that are drawn."""


def _signed(values: Iterable[float]) -> list[float]:
    return [signed for value in values for signed in (value, -value)]


def _both(most: float, values: Iterable[float]) -> Range:
    return (-most, most, 0.0, _signed(values))


def _fourteen(ranges: Mapping[str, Range]) -> list[Levels]:
    """RandAugment's operations, which TrivialAugment shares, with a range for each kind."""
    plain = [Levels(Operation(name)) for name in ("identity", "auto_contrast", "equalize")]
    return plain + [
        Levels(Operation(name, low, high, neutral=neutral), values)
        for kind, (low, high, neutral, values) in ranges.items()
        for name in _KINDS[kind]
    ]


def _mixture(parts: Sequence[Levels]) -> dict[Row, float]:
    """An operation uniformly, then one of its magnitudes uniformly; equal rows are added up."""
    rows: dict[Row, float] = {}
    for operation, magnitudes in parts:
        for magnitude in magnitudes:
            row = Row(operation, magnitude)
            rows[row] = rows.get(row, 0.0) + 1 / (len(parts) * len(magnitudes))
    return rows


def _layers(rows: Mapping[Row, float], count: int) -> Policy:
    return Policy.repeated(Table(rows), list(rows.values()), count)


def rand_augment(n: int = 2, m: int = 9, space: SpaceName = "cifar") -> Policy:
    """RandAugment as torchvision runs it: n of 14 operations with replacement, at strength m."""
    side = SIDES[space]
    shift = TORCHVISION_SHIFT * side

    def at(start: float, end: float) -> float:
        """In float32, as torchvision has it: the last bit of a factor or threshold shows."""
        return float(torch.linspace(start, end, TOP_LEVEL + 1, dtype=torch.float32)[m])

    ranges = {
        "shear": _both(0.3, [min(0.3, at(0.0, 0.3))]),
        "translate": _both(shift / side, [int(at(0.0, shift)) / side]),
        "rotate": _both(30.0, [at(0.0, 30.0)]),
        "solarize": (0.0, 256.0, 256.0, [at(255.0, 0.0)]),
        "posterize": (4.0, 8.0, 8.0, [8.0 - round(4 * m / TOP_LEVEL)]),
        "enhance": (0.1, 1.9, 1.0, [1 + at(0.0, 0.9), 1 - at(0.0, 0.9)]),
    }
    return _layers(_mixture(_fourteen(ranges)), n)


def timm_rand_augment() -> Policy:
    """RandAugment as timm's recipes run it, `rand-m9-mstd0.5-inc1`, at the same fractions anywhere.

    Two times one of its operations with probability 1/2, at a normal level about 9 of 10, here one
    of nine equally likely ones. Its solarize_add is no operation of this package, so it is one of
    fourteen instead of fifteen.
    """
    normal, count = NormalDist(9.0, 0.5), 9
    shares = [min(normal.inv_cdf((k + 0.5) / count), 10.0) / 10 for k in range(count)]
    plain = ("auto_contrast", "equalize", "invert")
    ranges = {
        "shear": _both(0.3, [0.3 * share for share in shares]),
        "translate": _both(0.45, [0.45 * share for share in shares]),
        "rotate": _both(30.0, [30.0 * share for share in shares]),
        "solarize": (0.0, 256.0, 256.0, [256.0 - int(256 * share) for share in shares]),
        "posterize": (1.0, 8.0, 8.0, [4.0 - int(4 * share) for share in shares]),
        "enhance": (0.1, 1.9, 1.0, [1 + sign * 0.9 * s for s in shares for sign in (1, -1)]),
    }
    graded = [part for part in _fourteen(ranges) if part.magnitudes != (None,)]
    rows = _mixture([*(Levels(Operation(name)) for name in plain), *graded])
    return _layers({IDENTITY: 0.5} | {row: share / 2 for row, share in rows.items()}, 2)


def trivial_augment(space: SpaceName = "cifar") -> Policy:
    """TrivialAugment in RandAugment's space: one operation, its strength uniform in 0..30."""
    return _trivial(SIDES[space], 0.3, {"cifar": 10, "imagenet": 70}[space], 30.0, 4, (0.1, 1.9))


def trivial_augment_wide(space: SpaceName = "cifar") -> Policy:
    """TrivialAugment in its wide space, with the ranges and the rounding of its authors."""
    return _trivial(SIDES[space], 0.99, 32, 135.0, 2, (0.01, 2.0))


def _trivial(
    side: int, shear: float, pixels: int, rotate: float, bits: int, enhance: tuple[float, float]
) -> Policy:
    """One of the 14 operations, up to these ends, at one of 31 levels."""
    low, high = enhance
    levels = range(TOP_LEVEL + 1)
    # the order of the products is that of the authors' code, since int() looks at the last bit
    left = [8.0 - int(level * (8 - bits) / TOP_LEVEL) for level in levels]
    factors = [min(high, level * (high - low) / TOP_LEVEL + low) for level in levels]
    ranges = {
        "shear": _both(shear, [level * shear / TOP_LEVEL for level in levels]),
        "translate": _both(pixels / side, [int(k * pixels / TOP_LEVEL) / side for k in levels]),
        "rotate": _both(rotate, [float(int(level * rotate / TOP_LEVEL)) for level in levels]),
        "solarize": (0.0, 256.0, 256.0, [256.0 - int(k * 256 / TOP_LEVEL) for k in levels]),
        "posterize": (float(bits), 8.0, 8.0, left),
        "enhance": (low, high, 1.0, factors),
    }
    return _layers(_mixture(_fourteen(ranges)), 1)


# UniformAugment

FIFTEEN = (
    *(op for op in CIFAR.operations if op.name not in ("identity", "flip", "cutout", "crop")),
    Operation("cutout", 0.0, 0.2),
)
"""The operations and ranges that Fast AutoAugment, DADA and UniformAugment choose from."""


def uniform_augment(n: int = 2) -> Policy:
    """UniformAugment: n times one of 15 operations, at a uniform value, with probability 1/2.

    The probability is itself drawn uniformly for each use, which comes to 1/2.
    """
    parts = [continuous_levels(operation) for operation in FIFTEEN]
    rows = {IDENTITY: 0.5} | {row: share / 2 for row, share in _mixture(parts).items()}
    return _layers(rows, n)


def continuous_levels(operation: Operation) -> Levels:
    """A uniform value of the range, by the middles of even steps."""
    if operation.low is None or operation.high is None:
        return Levels(operation)
    if operation.name == "posterize":  # whole bits: 4 to 7
        return Levels(operation, [4.0, 5.0, 6.0, 7.0])
    if operation.name == "solarize":  # a threshold acts as the next whole one
        return Levels(operation, [float(value) for value in range(1, 257)])
    span = operation.high - operation.low
    # rounded, so that a signed grid is exactly symmetric
    grid = [
        round(operation.low + (i + 0.5) / UNIFORM_LEVELS * span, 12) for i in range(UNIFORM_LEVELS)
    ]
    return Levels(operation, grid)


# AutoAugment


def auto_augment(table: str) -> Policy:
    """AutoAugment's 25 sub-policies from the installed torchvision: cifar10, imagenet or svhn."""
    transform, side = _torchvision(table), SIDES["imagenet" if table == "imagenet" else "cifar"]
    strengths = transform._augmentation_space(AUTOAUGMENT_LEVELS, (side, side))
    chains: dict[Chain, float] = {}
    for sub_policy in transform.policies:
        slots = [
            [(row, probability) for row in _torchvision_rows(name, level, strengths[name], side)]
            for name, probability, level in sub_policy
        ]
        ways = list(product(*slots))
        for way in ways:
            chains[way] = chains.get(way, 0.0) + 1 / (len(ways) * len(transform.policies))
    return Policy.of_chains({0: list(chains.items())})


def _torchvision(table: str) -> Any:
    try:
        from torchvision.transforms import AutoAugment, AutoAugmentPolicy
    except ImportError as error:
        raise ValueError(
            f"autoaugment takes its tables from torchvision, which cannot be imported ({error})"
        ) from error
    return AutoAugment(AutoAugmentPolicy(table))


def _torchvision_rows(name: str, level: int | None, strength: Any, side: int) -> list[Row]:
    """The one or two rows of an operation at a level; those with a sign take either."""
    operation = _TORCHVISION_OPERATIONS[name]
    if operation.low is None or operation.high is None:
        return [Row(operation, None)]
    magnitudes, signed = strength
    value = float(magnitudes[level])
    if name.startswith("Translate"):  # torchvision cuts to whole pixels
        value = float(int(value)) / side
    offset = 1.0 if operation.name in _ENHANCE else 0.0
    values = [offset + v for v in (_signed([value]) if signed else [value])]
    # torchvision's float32 oversteps some ends by a few 1e-8
    inside = [min(max(v, operation.low), operation.high) for v in values]
    return list(dict.fromkeys(Row(operation, v) for v in inside))


_SHIFTS = {
    name: Operation(name, -TORCHVISION_SHIFT, TORCHVISION_SHIFT, neutral=0.0)
    for name in ("translate_x", "translate_y")
}
_TORCHVISION_OPERATIONS: Mapping[str, Operation] = {
    "".join(part.title() for part in op.name.split("_")): _SHIFTS.get(op.name, op)
    for op in CIFAR.operations
}
