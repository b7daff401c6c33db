"""Policies that a line of code makes, by name: `deepta`, `deepta:4`, `randaugment:n=3,m=5`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from deepaa.baselines import (
    SPACES,
    TOP_LEVEL,
    SpaceName,
    auto_augment,
    default_policy,
    rand_augment,
    trivial_augment,
    trivial_augment_wide,
    uniform_augment,
)
from deepaa.policy import MAX_DEPTH, Policy
from deepaa.space import CIFAR
from deepaa.strict_json import PolicyFileError

Argument = int | str


class Parameter(NamedTuple):
    """What may stand behind the colon of a name: a whole number, or one of `choices`."""

    name: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()

    def value(self, text: str, source: str) -> Argument:
        """The value that `text` spells."""
        if self.choices:
            if text in self.choices:
                return text
            expected = f"one of {', '.join(self.choices)}"
        else:
            short = text.isascii() and text.isdecimal() and len(text) < 10
            if short and self.low <= int(text) <= self.high:
                return int(text)
            expected = f"a whole number from {self.low} to {self.high}"
        raise PolicyFileError(f"{source}: {self.name} should be {expected}, got {text!r}")


class Generated(NamedTuple):
    """A policy that is simple enough to be made by a line of code."""

    description: str
    make: Callable[..., Policy]
    parameters: tuple[Parameter, ...] = ()
    """In the order in which values without a name are taken."""
    defaults: bool = False
    """Whether a training adds the default crop, flip and, on CIFAR, cutout behind it."""


def _deepta(layers: int | None = None, space: SpaceName = "cifar") -> Policy:
    usual = {"cifar": 6, "imagenet": 5}[space]
    return Policy.trivial(SPACES[space], usual if layers is None else layers)


def _auto_augment(space: SpaceName = "cifar") -> Policy:
    return auto_augment("imagenet" if space == "imagenet" else "cifar10")


_SPACE = Parameter("space", choices=tuple(SPACES))
_LAYERS = Parameter("layers", 1, MAX_DEPTH)
_COUNT, _STRENGTH = Parameter("n", 1, MAX_DEPTH - 3), Parameter("m", 0, TOP_LEVEL)
GENERATED: Mapping[str, Generated] = {
    "identity": Generated("changes nothing", Policy.identity),
    "none": Generated("no augmentation, the same as identity", Policy.identity),
    "uniform": Generated(
        "2 layers, each CIFAR transformation equally likely", lambda: Policy.uniform(CIFAR, 2)
    ),
    "deepta": Generated(
        "6 CIFAR layers, or deepta:4: an operation, then a level",
        _deepta,
        (_LAYERS, _SPACE),
    ),
    "deepta-imagenet": Generated(
        "5 ImageNet layers: an operation, then a level",
        partial(_deepta, space="imagenet"),
        (_LAYERS,),
    ),
    "crop-flip": Generated(
        "pad-4 crop (ImageNet: resized crop) and flip",
        partial(default_policy, cutout=False),
        (_SPACE,),
    ),
    "crop-flip-cutout": Generated(
        "pad-4 crop, flip and the original 16-pixel Cutout", default_policy
    ),
    "autoaugment": Generated(
        "autoaugment-cifar10; on ImageNet autoaugment-imagenet",
        _auto_augment,
        (_SPACE,),
        defaults=True,
    ),
    **{
        f"autoaugment-{table}": Generated(
            f"AutoAugment's sub-policies for {title}, from torchvision",
            partial(auto_augment, table),
            defaults=True,
        )
        for table, title in (("cifar10", "CIFAR-10"), ("imagenet", "ImageNet"), ("svhn", "SVHN"))
    },
    "randaugment": Generated(
        "2 of 14 operations at strength 9 of 30; or :n=3,m=5",
        rand_augment,
        (_COUNT, _STRENGTH, _SPACE),
        defaults=True,
    ),
    "uniformaugment": Generated(
        "2 of 15 operations, each half the time, any strength",
        uniform_augment,
        (_COUNT,),
        defaults=True,
    ),
    "trivialaugment": Generated(
        "1 of 14 operations, any strength, RandAugment's ranges",
        trivial_augment,
        (_SPACE,),
        defaults=True,
    ),
    "trivialaugment-wide": Generated(
        "1 of 14 operations, any strength, wide ranges",
        trivial_augment_wide,
        (_SPACE,),
        defaults=True,
    ),
}


def named(source: str) -> Generated | None:
    """The entry of a name, with or without parameters behind a colon."""
    return GENERATED.get(source.partition(":")[0])


def make_policy(source: str, space: SpaceName | None = None) -> Policy:
    """The policy of a name, with its parameters.

    Args:
        space: Taken where the name depends on it and does not give it.
    """
    entry = GENERATED[source.partition(":")[0]]
    given = _arguments(source, entry.parameters)
    if space is not None and _SPACE in entry.parameters:
        given.setdefault("space", space)
    return entry.make(**given)


def _arguments(source: str, parameters: Sequence[Parameter]) -> dict[str, Argument]:
    """The values behind the colon: `key=value`, or values alone in order, commas between."""
    name, colon, rest = source.partition(":")
    by_name = {parameter.name: parameter for parameter in parameters}
    has = f"it has {', '.join(by_name)}" if by_name else "it has none"
    given: dict[str, Argument] = {}
    for i, part in enumerate(rest.split(",") if colon else ()):
        key, equals, text = part.strip().partition("=")
        if not equals:
            text, key = key, parameters[i].name if i < len(parameters) else key
        if key not in by_name:
            raise PolicyFileError(f"{source}: {name} has no parameter {key!r}; {has}")
        if key in given:
            raise PolicyFileError(f"{source}: {key} is given twice")
        given[key] = by_name[key].value(text.strip(), source)
    return given
