"""What a search method is: what it needs and costs, its records, its state and its policy."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from deepaa.ops import Row, Space, Table, hash_int
from deepaa.policy import DEFAULTS, IDENTITY, Policy
from deepaa.train import TrainConfig

T = TypeVar("T")
MOST_EPOCHS = 100_000
"""Of a training, and of a schedule."""
TRAINING_COST = 3
"""A pass forward and back, or one with a slope, costs as much as so many passes forward."""


class Passes(NamedTuple):
    """Images through a network, by kind."""

    training: int = 0
    """Forward and back."""
    forward: int = 0
    """Forward alone."""
    slopes: int = 0
    """Forward with a directional derivative."""

    @property
    def cost(self) -> int:
        """All of them, in passes forward: what a budget counts."""
        return TRAINING_COST * (self.training + self.slopes) + self.forward

    def plus(self, training: int = 0, forward: int = 0, slopes: int = 0) -> Passes:
        """These and some more."""
        return Passes(self.training + training, self.forward + forward, self.slopes + slopes)


class Part(NamedTuple):
    """Labelled images that a method may use."""

    images: Tensor
    """uint8 (N, C, H, W), on the CPU."""
    labels: Tensor
    """int64 (N,)."""
    groups: Tensor | None = None
    """(N,) images of one group stay together where a method divides them."""

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many images there are."""
        return len(self.labels)


class World(NamedTuple):
    """What every method gets, the same for all: images, space, network and seed.

    The images that judge in the end are not here: no method sees them.
    """

    pretrain: Part
    """For networks to train on."""
    search: Part
    """To be augmented by gradient matching; others leave it alone."""
    validation: Part
    """To measure what was trained on others."""
    classes: int
    space: Space
    """What the user allows; a method with ranges of its own takes the names from here."""
    excludes: Callable[[Row], bool]
    """Whether a transformation turns one class into another and may not be used."""
    defaults: Policy
    """Crop, flip and cutout, as far as they are allowed; a setting says where they run."""
    make_model: Callable[[int], nn.Module]
    """A network with fresh weights for a seed, on the device."""
    train: TrainConfig
    """How networks are trained; a method sets the epochs and the seed."""
    device: torch.device
    seed: int
    pause: Callable[[], None]
    """Called before each piece of work; what it raises leaves the piece, which is then lost."""


class Needs(NamedTuple):
    """What a method takes of the world."""

    parts: tuple[str, ...]
    """The parts whose images it uses, by their names in `World`."""
    networks: int = 0
    """How many networks it trains, side by side or one after the other."""
    most: int | None = None
    """The most images of its last part that it looks at; None for all."""

    def images(self, world: World) -> int:
        """Labelled images that the method uses."""
        counts = [int(getattr(world, name).count) for name in self.parts]
        if self.most is not None:
            counts[-1] = min(counts[-1], self.most)
        return sum(counts)


class Forecast(NamedTuple):
    """What a search costs, known before it begins."""

    passes: Passes
    units: int
    """Records that the search gives, at most."""


class TrialRecord(NamedTuple):
    """A unit of work is done, after which the search can go on from its state."""

    unit: str
    """What was done: an epoch, a trial, a generation or a step."""
    index: int  # type: ignore[assignment]
    """Units done so far, of all kinds."""
    of: int
    """Units in all, as `Forecast.units` says."""
    score: float | None
    """How well this one did, larger is better; None where nothing was measured, or it failed."""
    best: float | None
    """The best score so far."""
    score_error: float | None
    """The standard error of the score, as far as it is known."""
    summary: str
    """What was done, in a few words."""
    passes: int
    """The cost so far, in passes forward."""
    seconds: float


def default_place(config: Any) -> str:
    """Where a method's settings have the default augmentation; behind what is found if nowhere."""
    return str(getattr(config, "defaults", DEFAULTS[0]))


def seed_for(seed: int, *place: int | str) -> int:
    """A seed for one purpose: the method, the phase and the number of what it is for."""
    for each in place:
        number = each
        if isinstance(each, str):
            number = int.from_bytes(hashlib.sha256(each.encode()).digest()[:8], "big")
        seed = hash_int(seed, int(number))
    return seed


def check_counts(config: Any, **limits: tuple[int, int]) -> None:
    """Refuse settings outside of their limits, the least and the most, by name.

    Settings are also read from run folders, which anybody may have written: what would fill the
    memory before the first unit of work is refused here.
    """
    for name, (least, most) in limits.items():
        value = getattr(config, name)
        if value < least:
            raise ValueError(f"{name} should be at least {least}, got {value}")
        if value > most:
            raise ValueError(f"{name} should be at most {most:,}, got {value:,}")


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """What all methods have a setting for."""

    defaults: str = "after"
    """Where crop, flip and cutout run: after what is found, before it, or none at all."""

    def __post_init__(self) -> None:
        """Refuse a place that there is not."""
        if self.defaults not in DEFAULTS:
            raise ValueError(f"defaults should be {' or '.join(DEFAULTS)}, got {self.defaults!r}")


class Searcher(ABC):
    """A search method: iterate for its records; `policy` is valid at any time.

    All random numbers are functions of the seed and of what they are for, never a generator's
    state; so a search that goes on from `state()`, taken after any record, ends with the same
    policy, bit for bit on a CPU.
    """

    method: ClassVar[str]
    """The name, as in `--method`."""
    result: ClassVar[str]
    """What it finds: layers, chains or schedule. The control draws the same at random."""
    Config: ClassVar[type]
    """Its settings: a frozen dataclass that refuses bad values, a `MethodConfig` at best."""
    presets: ClassVar[Mapping[str, Any]]
    """Settings by name: paper, fast and demo at least."""

    shares_work: ClassVar[bool] = False
    """Whether processes of torchrun divide its networks among them. Each of them then iterates,
    gives the same records, and has in its `state()` the networks that are its own."""

    def __init__(self, world: World, config: Any) -> None:
        """Nothing is trained before the iteration begins."""
        self.place = default_place(config)
        """Where the default augmentation runs."""
        if self.place == "none":
            world = world._replace(defaults=Policy(Table([IDENTITY])))
        self.world, self.config = world, config
        self.passes = Passes()
        """What went through networks so far."""

    @classmethod
    @abstractmethod
    def needs(cls, config: Any) -> Needs:
        """What the method takes of the world."""

    @classmethod
    @abstractmethod
    def forecast(cls, config: Any, world: World) -> Forecast:
        """What a search with these settings costs, exactly where it does not end early."""

    @classmethod
    @abstractmethod
    def scaled(cls, config: Any, world: World, budget: int) -> Any:
        """The largest form of these settings whose forecast costs at most `budget`.

        ValueError names the least that the method can do anything with.
        """

    def in_order(self, found: Sequence[T], defaults: Sequence[T]) -> tuple[T, ...]:
        """What is found and the default augmentation, in the order in which an image meets them."""
        return (*defaults, *found) if self.place == "before" else (*found, *defaults)

    def whole(self, found: Policy) -> Policy:
        """What is found with the default augmentation in its place, as networks train with it."""
        first, second = self.in_order([found], [self.world.defaults])
        return first.then(second)

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether no unit is left."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The best found so far, `whole`; the method's prior at the start."""

    @property
    def info(self) -> dict[str, str]:
        """What the policy's file says of how this method found it, beside what all say."""
        return {}

    @abstractmethod
    def __iter__(self) -> Iterator[TrialRecord]:
        """Do the units that are left; stop and go on at any time."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything that the search needs to go on, after any record."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; ValueError or LookupError if it is none of this search."""
