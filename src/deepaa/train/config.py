"""The settings of a training, the learning rate they mean, and the trainings of the literature.

The latter are written down in recipes.toml beside this file, with their sources.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, SupportsIndex

import torch

from deepaa.data import batch_sizes
from deepaa.runs import ADDED, from_plain, parse_changes

EPOCHS = 200
"""Epochs of a training without a recipe."""
MOST_EPOCHS = 600
"""Few images are trained on for more epochs, but not for more than these unless they are asked for:
a network then knows each image by heart."""
WORTH_COMPILING = 2_000_000
"""Images through the network from which on compiling it pays."""


def precision_on(device: torch.device, precision: str = "auto") -> str:
    """float32 or bfloat16: auto takes the latter where CUDA computes it in hardware."""
    if precision != "auto":
        return precision
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if fast else "float32"


@dataclass(frozen=True)
class TrainConfig:
    """How a network is trained; the defaults are those of the search's pre-training."""

    epochs: int = 45
    """Passes over the images."""
    batch: int = 128
    """Images per step; a last batch of less than half of it is left out of the epoch."""
    copies: int = 1
    """Draws of each image in a batch (batch augmentation): a step sees batch x copies rows."""
    lr: float = 0.1
    """Highest learning rate."""
    schedule: str = "cosine"
    """cosine takes the learning rate down to 0; step multiplies it by gamma at the milestones."""
    milestones: tuple[float, ...] = ()
    """Epochs after which the step schedule lowers the learning rate, counted from the start; none
    keeps it as it is."""
    gamma: float = 0.1
    """Factor of the learning rate at each milestone."""
    warmup_epochs: float = 0.0
    """Epochs in which the learning rate rises in a line, before the schedule."""
    warmup_from: float = 0.0
    """Share of lr at which the rise begins: .125 of .8 is a warm-up from .1, multiplied by 8."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Nesterov's form of momentum."""
    weight_decay: float = 5e-4
    """Weight decay, added to the gradient."""
    decay_norm: bool = False
    """Whether normalisation weights and biases decay too."""
    clip: float = 5.0
    """Longest gradient, over all weights; 0 for no limit."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    seed: int = 0
    """Decides order, augmentation and dropout."""
    precision: str = "float32"
    """float32, or bfloat16 for the forward pass (autocast); weights stay as they are."""
    channels_last: bool = False
    """Whether images and weights keep channels innermost, which convolutions prefer."""
    compile: bool = False
    """Whether the network is compiled, which takes a while and pays in long trainings."""
    tune: bool = False
    """Whether the compiler tries many ways for each kernel and joins small ones: a minute more
    before the first step, and steps up to a fifth faster. For compiled networks."""
    graph: bool | None = None
    """Whether a step is recorded once and replayed as a CUDA graph; null where that is possible."""
    fused: bool | None = field(default=None, metadata=ADDED)
    """Whether batch norm, ReLU and convolutions of a wide residual network run as one kernel; null
    where that is possible: in bfloat16, channels innermost, on a Hopper GPU or a newer one."""
    end_epochs: int = field(default=0, metadata=ADDED)
    """The last epochs, in which crop and flip are all that is left of the policy."""

    def __post_init__(self) -> None:
        """Refuse values without meaning."""
        object.__setattr__(self, "milestones", tuple(self.milestones))  # JSON gives a list
        for name in ("epochs", "batch", "copies", "seed", "end_epochs"):
            value = getattr(self, name)
            if not isinstance(value, SupportsIndex):  # 128.0 would fail much later
                raise ValueError(f"{name} should be a whole number, got {value!r}")
        limits: dict[str, tuple[float, float]] = {"warmup_epochs": (0, self.epochs)}
        limits |= dict.fromkeys(("batch", "copies"), (1, math.inf))
        limits |= dict.fromkeys(("momentum", "label_smoothing", "warmup_from"), (0, 1))
        limits |= dict.fromkeys(("epochs", "lr", "weight_decay", "clip", "gamma"), (0, math.inf))
        limits["end_epochs"] = (0, max(0, self.epochs - 1))
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not (low <= value <= high and math.isfinite(value)):
                raise ValueError(f"{name} should be in {low}..{high}, got {value}")
        if self.warmup_epochs and self.warmup_epochs == self.epochs:
            raise ValueError(f"warmup_epochs leaves nothing of the {self.epochs} epochs")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        choices = {"precision": ("float32", "bfloat16"), "schedule": ("cosine", "step")}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} should be {' or '.join(known)}, got {value!r}")
        times = list(self.milestones)
        if times and self.schedule != "step":
            raise ValueError(
                f"milestones {times} belong to the step schedule, not to {self.schedule!r}"
            )
        if times != sorted({*times}) or any(not 0 < m < math.inf for m in times):
            raise ValueError(f"milestones should rise and be above 0, got {times}")

    def stretched(self, epochs: int) -> TrainConfig:
        """The same schedule in another number of epochs: all its times scale with it."""
        scale = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            warmup_epochs=self.warmup_epochs * scale,
            milestones=tuple(time * scale for time in self.milestones),
            end_epochs=min(round(self.end_epochs * scale), epochs - 1),
        )


def learning_rate(config: TrainConfig, progress: float) -> float:
    """The learning rate after `progress` epochs: up in a line, then down as the schedule says."""
    if progress < config.warmup_epochs:
        start = config.warmup_from
        return config.lr * (start + (1 - start) * progress / config.warmup_epochs)
    if config.schedule == "step":
        return config.lr * config.gamma ** sum(progress >= m for m in config.milestones)
    share = (progress - config.warmup_epochs) / (config.epochs - config.warmup_epochs)
    return config.lr * 0.5 * (1 + math.cos(math.pi * share))


# Recipes

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of the channels."""


@dataclass(frozen=True)
class RecipeData:
    """What a recipe has to know of its images."""

    name: str
    images: int
    """Number of images to train on."""
    classes: int
    size: int
    """Side in pixels, as the network sees it."""
    normalisation: Normalisation | None = None
    """Mean and deviation of the channels; None takes those of all training pixels."""


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


def _read_recipes() -> Iterator[Recipe]:
    content = tomllib.loads(files("deepaa.train").joinpath("recipes.toml").read_text("utf-8"))
    for fields in content["recipe"]:
        images = {"name": fields["data"], **content["data"][fields["data"]]}
        common, change = content["settings"][fields.pop("base")], fields.pop("change")
        known = [
            {**each, "source": content["sources"][each["source"]]} for each in fields["expected"]
        ]
        fields["data"] = from_plain(RecipeData, images, defaults=True)
        fields["expected"] = tuple(Expected(**each) for each in known)
        yield Recipe(train=TrainConfig(**{**common, **change}), **fields)


RECIPES: Mapping[str, Recipe] = MappingProxyType({each.full_name: each for each in _read_recipes()})
"""All recipes by their full names."""


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
        names = list(dict.fromkeys(recipe.name for recipe in RECIPES.values()))
        close = difflib.get_close_matches(name.lower(), [*names, *RECIPES], 3)
        hint = f"did you mean {' or '.join(map(repr, close))}? There" if close else "there"
        raise ValueError(f"no recipe {name!r}; {hint} are {', '.join(names)}")
    # cifar10 is what some/cifar-10.npz and the like are called after
    stem = Path(str(data).removeprefix("torchvision:")).stem
    wanted = stem.lower().replace("-", "").replace("_", "")
    for recipe in known:
        if data is None or recipe.data.name == wanted:
            return recipe
    if any(recipe.train != known[0].train for recipe in known):
        full = " or ".join(recipe.full_name for recipe in known)
        raise ValueError(f"recipe {name!r} has other settings for each data set: say {full}")
    return known[0]


# From options to settings


def requested_settings(
    recipe: Recipe | None, given: Mapping[str, Any], changes: Sequence[str] = ()
) -> TrainConfig:
    """The settings that were asked for; some may still depend on the device.

    Args:
        given: Values by name.
        changes: NAME=VALUE each, for other names.
    """
    base = TrainConfig(epochs=EPOCHS) if recipe is None else recipe.train
    values = parse_changes(changes, TrainConfig, without=("seed",))
    if twice := sorted(values.keys() & given.keys()):
        raise ValueError(f"{twice[0]} is given twice: with its own option and with --set")
    values |= given
    # a schedule and its milestones only make sense together
    if values.get("schedule") == "cosine":
        values.setdefault("milestones", ())
    elif values.get("milestones"):
        values.setdefault("schedule", "step")
    epochs = values.get("epochs", base.epochs)
    if recipe is not None and "warmup_epochs" not in values and epochs <= base.warmup_epochs:
        raise ValueError(
            f"the recipe's warm-up of {base.warmup_epochs:g} epochs leaves nothing of {epochs}; "
            "add --warmup"
        )
    milestones = values.get("milestones", base.milestones)
    if late := [f"{m:g}" for m in milestones if m >= epochs]:
        whose = "milestones" if "milestones" in values else "the recipe's milestones"
        raise ValueError(
            f"{whose} {', '.join(late)} never come in {epochs} epochs; "
            "add --set milestones=[EPOCH,...] or --set schedule=cosine"
        )
    return replace(base, **values)


def device_settings(
    config: TrainConfig, named: Container[str], device: torch.device, passes: int, *, recipe: bool
) -> TrainConfig:
    """The settings with those that suit the device.

    Args:
        named: Those that were asked for by name, and stay.
        passes: Images through the network in all epochs.
        recipe: Whether they are those of a recipe, which has its own for CUDA.
    """
    cuda = device.type == "cuda"
    choices: dict[str, Any] = {"precision": precision_on(device)}
    if not (cuda and recipe):
        choices |= {"channels_last": True, "compile": cuda and passes >= WORTH_COMPILING}
    return replace(config, **{name: v for name, v in choices.items() if name not in named})
