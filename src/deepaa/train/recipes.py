"""Trainings of the literature under a name: network, data, settings, cost, expected accuracy.

They are written down in recipes.toml beside this file, with their sources.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from deepaa.data import batch_sizes
from deepaa.train.config import TrainConfig

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of the channels."""


class RecipeData(NamedTuple):
    """What a recipe has to know of its images."""

    name: str
    images: int
    """To train on."""
    classes: int
    size: int
    """Side in pixels, as the network sees it."""
    space: str
    """Ranges and default augmentation of compared policies: "cifar" or "imagenet"."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def normalisation(self) -> Normalisation | None:
        """Mean and deviation of the channels; None takes those of all training pixels."""
        return None if self.mean is None or self.std is None else (self.mean, self.std)


class Expected(NamedTuple):
    """A published test accuracy."""

    policy: str
    """As `deepaa train --policy` takes it, or what the policy is called."""
    accuracy: float
    """In percent."""
    source: str
    interval: float | None = None
    """Half of the 95 % confidence interval, where one is given."""


@dataclass(frozen=True)
class Recipe:
    """A training that can be compared with published ones."""

    name: str
    """Without the data, such as "wrn-28-10"."""
    data: RecipeData
    model: str
    """A name for `build_model`."""
    train: TrainConfig
    expected: tuple[Expected, ...]
    policy: str = "POLICY"
    """The policy its settings were tuned for, if they were."""
    processes: int = 1
    """GPUs that the command spreads a batch over; batch norm sees the share of one."""

    @property
    def full_name(self) -> str:
        """The key in `RECIPES`, such as "wrn-28-10-cifar10"."""
        return f"{self.name}-{self.data.name}"

    @property
    def stream(self) -> bool:
        """Whether the images are decoded anew in every epoch, being too many for memory."""
        return self.data.name == "imagenet"

    @property
    def image_passes(self) -> int:
        """Images forward and backward through the network in one training, copies included."""
        sizes = batch_sizes(self.data.images, self.train.batch)
        return self.train.epochs * sum(sizes) * self.train.copies

    def command(self, policy: str | None = None, *, seeds: int = 4, out: str = "RUN") -> str:
        """The command line that trains it."""
        start = "deepaa"
        if self.processes > 1:
            start = f"torchrun --nproc-per-node {self.processes} -m deepaa"
        data = "FOLDER" if self.stream else self.data.name
        return (
            f"{start} train --recipe {self.name} --data {data} "
            f"--policy {policy or self.policy} --seeds {seeds} --out {out}"
        )


def read_recipes(text: str) -> dict[str, Recipe]:
    """The recipes of a TOML text by their full names."""
    content = tomllib.loads(text)
    data = {name: _data(name, fields) for name, fields in content["data"].items()}
    recipes = [_recipe(fields, content, data) for fields in content["recipe"]]
    return {recipe.full_name: recipe for recipe in recipes}


def _data(name: str, fields: Mapping[str, Any]) -> RecipeData:
    values: dict[str, Any] = dict(fields)
    for channels in values.keys() & {"mean", "std"}:
        values[channels] = tuple(values[channels])
    return RecipeData(name, **values)


def _recipe(
    fields: Mapping[str, Any], content: Mapping[str, Any], data: Mapping[str, RecipeData]
) -> Recipe:
    rest = dict(fields)
    common, change = content["settings"][rest.pop("base")], rest.pop("change")
    expected = tuple(
        Expected(**{**each, "source": content["sources"][each["source"]]})
        for each in rest.pop("expected")
    )
    train = TrainConfig(**{**common, **change})
    return Recipe(data=data[rest.pop("data")], train=train, expected=expected, **rest)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    read_recipes(files("deepaa.train").joinpath("recipes.toml").read_text(encoding="utf-8"))
)
"""By full name."""


def find_recipe(name: str, data: str | Path | None = None) -> Recipe:
    """The recipe of a name for some data.

    Args:
        name: A key of `RECIPES`, or one without its data.
        data: A data set or a file or folder of its name. Other data get the settings that all data
            sets of the recipe have in common; where they differ, the full name is asked for.
            None takes the first.
    """
    if name in RECIPES:
        return RECIPES[name]
    known = [recipe for recipe in RECIPES.values() if recipe.name == name]
    if not known:
        raise _unknown(name)
    wanted = known[0].data.name if data is None else _data_name(data)
    for recipe in known:
        if recipe.data.name == wanted:
            return recipe
    if any(recipe.train != known[0].train for recipe in known):
        names = " or ".join(recipe.full_name for recipe in known)
        raise ValueError(f"recipe {name!r} has other settings for each data set: say {names}")
    return known[0]


def _data_name(data: str | Path) -> str:
    """The data set that a source is called after: cifar10 for some/cifar-10.npz and the like."""
    stem = Path(str(data).removeprefix("torchvision:")).stem
    return stem.lower().replace("-", "").replace("_", "")


def _unknown(name: str) -> ValueError:
    names = list(dict.fromkeys(recipe.name for recipe in RECIPES.values()))
    close = difflib.get_close_matches(name.lower(), [*names, *RECIPES], 3)
    hint = f"did you mean {' or '.join(map(repr, close))}? There" if close else "there"
    return ValueError(f"no recipe {name!r}; {hint} are {', '.join(names)}")
