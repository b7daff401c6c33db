"""Trainings of the literature under a name: network, data, settings, cost, expected accuracy.

Sources: the paper (Deep AutoAugment, ICLR 2022), and the configuration files of the authors, of
Fast AutoAugment (kakaobrain/fast-autoaugment) and of TrivialAugment (automl/trivialaugment). Where
they differ, docs/train.md says which one is followed and why.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from deepaa.train_batches import batch_sizes
from deepaa.train_config import TrainConfig

__all__ = ["RECIPES", "Expected", "Recipe", "find_recipe"]


class DataSet(NamedTuple):
    """What a recipe has to know of its images."""

    images: int
    """To train on."""
    classes: int
    size: int
    """Side in pixels, as the network sees it."""
    space: str
    """Ranges and default augmentation of compared policies: "cifar" or "imagenet"."""
    levels: tuple[tuple[float, ...], tuple[float, ...]] | None
    """Mean and deviation of the channels; None takes those of all training pixels."""


_IMAGENET_LEVELS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DATA: Mapping[str, DataSet] = {
    "cifar10": DataSet(50_000, 10, 32, "cifar", None),
    "cifar100": DataSet(50_000, 100, 32, "cifar", None),
    "imagenet": DataSet(1_281_167, 1000, 224, "imagenet", _IMAGENET_LEVELS),
}


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
    data: str
    """One of `DATA`."""
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
        return f"{self.name}-{self.data}"

    @property
    def size(self) -> int:
        """Side of the images."""
        return DATA[self.data].size

    @property
    def space(self) -> str:
        """Ranges and defaults of compared policies: "cifar" or "imagenet"."""
        return DATA[self.data].space

    @property
    def levels(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation of the channels; None takes those of all training pixels."""
        return DATA[self.data].levels

    @property
    def stream(self) -> bool:
        """Whether the images are decoded anew in every epoch, being too many for memory."""
        return self.data == "imagenet"

    @property
    def image_passes(self) -> int:
        """Images forward and backward through the network in one training, copies included."""
        sizes = batch_sizes(DATA[self.data].images, self.train.batch)
        return self.train.epochs * sum(sizes) * self.train.copies

    def command(self, policy: str | None = None, *, seeds: int = 4, out: str = "RUN") -> str:
        """The command line that trains it."""
        start = "deepaa"
        if self.processes > 1:
            start = f"torchrun --nproc-per-node {self.processes} -m deepaa"
        data = "FOLDER" if self.data == "imagenet" else self.data
        return (
            f"{start} train --recipe {self.name} --data {data} "
            f"--policy {policy or self.policy} --seeds {seeds} --out {out}"
        )


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
    asked = known[0].data if data is None else _plain(data)
    for recipe in known:
        if recipe.data == asked:
            return recipe
    if any(recipe.train != known[0].train for recipe in known):
        names = " or ".join(recipe.full_name for recipe in known)
        raise ValueError(f"recipe {name!r} has other settings for each data set: say {names}")
    return known[0]


def _plain(data: str | Path) -> str:
    """cifar10 for torchvision:CIFAR10, some/cifar-10.npz and the like."""
    stem = Path(str(data).removeprefix("torchvision:")).stem
    return stem.lower().replace("-", "").replace("_", "")


def _unknown(name: str) -> ValueError:
    names = list(dict.fromkeys(recipe.name for recipe in RECIPES.values()))
    close = difflib.get_close_matches(name.lower(), [*names, *RECIPES], 3)
    hint = f"did you mean {' or '.join(map(repr, close))}? There" if close else "there"
    return ValueError(f"no recipe {name!r}; {hint} are {', '.join(names)}")


# The settings

_CIFAR = TrainConfig(
    epochs=200,
    batch=128,
    lr=0.1,
    warmup_epochs=5,
    clip=5.0,
    precision="bfloat16",  # how it is computed on a GPU; the originals used float32
    channels_last=True,
    compile=True,
)
_WRN_40_2 = replace(_CIFAR, weight_decay=2e-4)
_WRN_28_10 = replace(_CIFAR, weight_decay=5e-4)
_SHAKE = replace(_CIFAR, epochs=1800, lr=0.01, weight_decay=1e-3)
_COPIES = replace(_WRN_28_10, copies=8)  # 128 x 8 rows
_IMAGENET = replace(
    _CIFAR,
    epochs=270,
    schedule="step",
    milestones=(90.0, 180.0, 240.0),
    weight_decay=1e-4,
    clip=0.0,
)

_CIFAR_TABLE = "paper, section 4.1"
_IMAGENET_TABLE = "paper, section 4.2"
_COPIES_TABLE = "paper, section 4.3"
_FIVE_RUNS = "five runs of others, issue 7 of the authors' repository"
_ADVICE = "paper, section 4.1; issue 7 of the authors' repository has the settings"
_FAA_README = "README of Fast AutoAugment"
_WIDE, _DEEPAA = "trivialaugment-wide", "DeepAA"

_ALL = (
    Recipe(
        "wrn-40-2",
        "cifar10",
        "wrn-40-2",
        _WRN_40_2,
        (
            Expected("crop-flip-cutout", 95.9, _FAA_README),
            Expected("autoaugment", 96.3, _FAA_README),
            Expected("Fast AutoAugment", 96.4, _FAA_README),
            Expected(_DEEPAA, 96.37, _FIVE_RUNS),
        ),
    ),
    Recipe(
        "wrn-40-2",
        "cifar100",
        "wrn-40-2",
        _WRN_40_2,
        (
            Expected("crop-flip-cutout", 74.8, _FAA_README),
            Expected("autoaugment", 79.3, _FAA_README),
            Expected("Fast AutoAugment", 79.3, _FAA_README),
            Expected(_DEEPAA, 79.30, _FIVE_RUNS),
        ),
    ),
    Recipe(
        "wrn-28-10",
        "cifar10",
        "wrn-28-10",
        _WRN_28_10,
        (
            Expected("crop-flip", 96.1, _CIFAR_TABLE),
            Expected("crop-flip-cutout", 96.9, _FAA_README),
            Expected(_WIDE, 97.46, _CIFAR_TABLE),
            Expected(_DEEPAA, 97.56, _CIFAR_TABLE, 0.14),
            Expected(_DEEPAA, 97.44, _FIVE_RUNS),
        ),
    ),
    Recipe(
        "wrn-28-10",
        "cifar100",
        "wrn-28-10",
        _WRN_28_10,
        (
            Expected("crop-flip", 81.2, _CIFAR_TABLE),
            Expected(_WIDE, 84.33, _CIFAR_TABLE),
            Expected(_DEEPAA, 84.02, _CIFAR_TABLE, 0.18),
            Expected(_DEEPAA, 83.64, _FIVE_RUNS),
        ),
    ),
    Recipe(
        "wrn-28-10-wd1e-3",
        "cifar10",
        "wrn-28-10",
        replace(_WRN_28_10, weight_decay=1e-3),
        (Expected(_DEEPAA, 97.56, _ADVICE, 0.14),),
    ),
    Recipe(
        "wrn-28-10-wd1e-3",
        "cifar100",
        "wrn-28-10",
        replace(_WRN_28_10, weight_decay=1e-3),
        (Expected(_DEEPAA, 84.02, _ADVICE, 0.18),),
    ),
    Recipe(
        "shake-shake",
        "cifar10",
        "shake-shake-26-2x96d",
        _SHAKE,
        (
            Expected("crop-flip", 97.1, _CIFAR_TABLE),
            Expected("crop-flip-cutout", 97.4, _FAA_README),
            Expected(_WIDE, 98.21, _CIFAR_TABLE),
            Expected(_DEEPAA, 98.11, _CIFAR_TABLE, 0.12),
        ),
    ),
    Recipe(
        "shake-shake",
        "cifar100",
        "shake-shake-26-2x96d",
        _SHAKE,
        (
            Expected("crop-flip", 82.9, _CIFAR_TABLE),
            Expected("crop-flip-cutout", 84.0, _FAA_README),
            Expected(_WIDE, 86.19, _CIFAR_TABLE),
            Expected(_DEEPAA, 85.19, _CIFAR_TABLE, 0.28),
        ),
    ),
    Recipe(
        "wrn-28-10-ba",
        "cifar10",
        "wrn-28-10",
        replace(_COPIES, epochs=100, lr=0.2, weight_decay=1e-3),
        (Expected(_DEEPAA, 98.21, _COPIES_TABLE, 0.14),),
    ),
    Recipe(
        "wrn-28-10-ba",
        "cifar100",
        "wrn-28-10",
        replace(_COPIES, epochs=35, lr=0.4),
        (Expected(_DEEPAA, 85.61, _COPIES_TABLE, 0.17),),
    ),
    Recipe(
        "wrn-28-10-ba-ta",
        "cifar10",
        "wrn-28-10",
        replace(_COPIES, epochs=100, lr=0.2),
        (Expected(_WIDE, 98.06, _COPIES_TABLE, 0.23),),
        policy=_WIDE,
    ),
    Recipe(
        "wrn-28-10-ba-ta",
        "cifar100",
        "wrn-28-10",
        replace(_COPIES, epochs=35, lr=0.4),
        (Expected(_WIDE, 85.40, _COPIES_TABLE, 0.15),),
        policy=_WIDE,
    ),
    Recipe(
        "resnet50",
        "imagenet",
        "torchvision:resnet50",
        replace(_IMAGENET, batch=2048, lr=0.8, warmup_from=0.125),
        (
            Expected("crop-flip", 76.3, _IMAGENET_TABLE),
            Expected(_WIDE, 77.97, "paper, section 4.2, note on 224 x 224"),
            Expected(_DEEPAA, 78.30, _IMAGENET_TABLE, 0.14),
        ),
        processes=8,
    ),
    Recipe(
        "resnet200",
        "imagenet",
        "timm:resnet200",
        replace(_IMAGENET, batch=512, lr=0.2),
        (
            Expected("crop-flip", 78.5, _IMAGENET_TABLE),
            Expected(_DEEPAA, 81.32, _IMAGENET_TABLE, 0.17),
        ),
        processes=8,
    ),
)

RECIPES: Mapping[str, Recipe] = MappingProxyType({each.full_name: each for each in _ALL})
"""By full name."""
