"""What people call a policy: a name with parameters, or the path of a file.

The grammar is `NAME`, `NAME:VALUE,KEY=VALUE`, `pba:FILE,over=EPOCHS`, `deepaa-simple:POLICY` or a
path. Only `parse_policy_ref` knows it; everybody else works with the `PolicyRef` it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deepaa.ops import CIFAR
from deepaa.policy.baselines import (
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
from deepaa.policy.policy import MAX_DEPTH, Policy
from deepaa.policy.strict_json import PolicyFileError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Argument = int | str


class Parameter(NamedTuple):
    """A parameter that a name takes behind its colon: a whole number, or one of `choices`."""

    name: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()

    def parse(self, text: str, source: str) -> Argument:
        """The value that `text` spells; errors begin with `source`."""
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


SIMPLE, PBA = "deepaa-simple", "pba"
FORMS = {
    f"{SIMPLE}:POLICY": "the first layer of another policy, a name or a file",
    f"{PBA}:FILE": "a schedule of PBA; FILE,over=160 for 160 epochs",
}
"""Names that need something behind the colon, as errors and help spell them, and what they are."""
_OVER = Parameter("over", 1, 9_999_999)
_SHIPPED: Traversable = files("deepaa.policy").joinpath("shipped")


def shipped_policies() -> dict[str, Traversable]:
    """The policy files that come with the package, by name."""
    return {
        entry.name.removesuffix(".json"): entry
        for entry in _SHIPPED.iterdir()
        if entry.name.endswith(".json")
    }


def policy_names() -> tuple[str, ...]:
    """The names `load_policy` knows: the policies shipped with the package, then simple ones."""
    return (*sorted(shipped_policies()), *GENERATED)


@dataclass(frozen=True)
class PolicyRef:
    """A policy as people refer to it, taken apart; nothing has been read yet."""

    text: str
    """As it was written."""
    name: str | None = None
    """A shipped policy, a key of `GENERATED`, or `PBA`; None for a path."""
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    path: Path | None = None
    """The file to read, if the name does not make the policy."""
    first_layer: bool = False
    """Whether only the first layer is meant: `deepaa-simple:`."""
    may_be_misspelt: bool = False
    """Whether the path was given as a text, which may have been meant as a name."""

    @property
    def is_name(self) -> bool:
        """Whether the text means a named policy, whatever files lie around."""
        return self.name is not None or self.first_layer

    @property
    def label(self) -> str:
        """The text without a path's folders, except the run that a `policy.json` lies in."""
        if self.path is None:
            return self.text
        kept = self.path.parts[-2:] if self.path.name == "policy.json" else self.path.parts[-1:]
        return self.text.replace(str(self.path), str(Path(*kept)))


def parse_policy_ref(source: str | Path) -> PolicyRef:
    """The parts of a policy's name, or of the path of its file.

    A text that is a name means the name, whatever files lie around; a `Path` is always a path.
    """
    if isinstance(source, Path):
        return PolicyRef(str(source), path=source)
    name, colon, rest = source.partition(":")
    if name in (SIMPLE, PBA) and not rest:
        form = next(form for form in FORMS if form.startswith(f"{name}:"))
        raise PolicyFileError(f"{source}: needs a policy behind it: {form}")
    if name == SIMPLE:
        inner = parse_policy_ref(rest)
        if inner.first_layer:
            raise PolicyFileError(f"{source}: {SIMPLE} is given twice")
        return replace(inner, text=source, first_layer=True)
    if name == PBA:
        path, comma, over = rest.rpartition(",over=")
        given = {"over": _OVER.parse(over, source)} if comma else {}
        return PolicyRef(source, PBA, given, Path(path if comma else rest))
    if name in GENERATED:
        values = rest.split(",") if colon else ()
        return PolicyRef(source, name, _arguments(source, name, values))
    if source in shipped_policies():
        return PolicyRef(source, source)
    return PolicyRef(source, path=Path(source), may_be_misspelt=True)


def make_policy(ref: PolicyRef, space: SpaceName | None = None) -> Policy:
    """The policy of a key of `GENERATED`, with the arguments of the reference.

    Args:
        space: Taken where the name depends on it and does not give it.
    """
    assert ref.name is not None
    entry, given = GENERATED[ref.name], dict(ref.arguments)
    if space is not None and _SPACE in entry.parameters:
        given.setdefault("space", space)
    return entry.make(**given)


def _arguments(source: str, name: str, values: Sequence[str]) -> dict[str, Argument]:
    """The values behind the colon: `key=value`, or values alone in order."""
    parameters = GENERATED[name].parameters
    by_name = {parameter.name: parameter for parameter in parameters}
    given: dict[str, Argument] = {}
    for i, part in enumerate(values):
        key, equals, text = part.strip().partition("=")
        if not equals:
            text, key = key, parameters[i].name if i < len(parameters) else key
        if key not in by_name:
            has = ", ".join(by_name) or "none"
            raise PolicyFileError(f"{source}: {name} has no parameter {key!r}; it has {has}")
        if key in given:
            raise PolicyFileError(f"{source}: {key} is given twice")
        given[key] = by_name[key].parse(text.strip(), source)
    return given
