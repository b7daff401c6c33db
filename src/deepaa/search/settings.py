"""The settings of a search: what there is to set, presets, changes to them, and both as JSON.

`SearchConfig` are the settings of gradient matching, `ProxyConfig` those of the network that it
takes gradients of. The command and `find_policy` say what they want in a `SettingsRequest`; what it
resolves to is kept in the run folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from deepaa.ops import CIFAR, IMAGENET, Operation, Space
from deepaa.runs import apply_changes, from_plain, parse_changes, short, stored, to_record
from deepaa.train import MOST_EPOCHS, TrainConfig

LEAST_ROWS = 16
"""Halving the transformations of a layer stops at this number."""
LEAST_PAIRS = 16
"""No layer is kept by what fewer pairs say, unless the number of layers is given."""
OF_OPERATION = ("name", "low", "high", "neutral", "options")
"""What config.json keeps of an operation."""
MOST_OPERATIONS, MOST_LEVELS = 1_000, 1_000
"""Of a space in config.json, which may come from anybody."""
MOST = 1_000_000
Entries = tuple[dict[str, Any], ...]
PRECISIONS = ("auto", "float32", "bfloat16")
NOT_CHANGED = ("model", "train.seed")
"""Settings that have an option of their own, or follow from another."""

_VALID: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "layers max_layers steps images validation prefixes deviation_draws heldout chunk",
        lambda value: value >= 1,
        "at least 1",
    ),
    (
        "layers max_layers steps images validation prefixes deviation_draws heldout chunk",
        lambda value: value <= MOST,
        f"at most {MOST:,}",
    ),
    (
        "halvings converged penalty penalty_first_layer trivial_pull identity_logit epsilon "
        "keep_errors repeat_errors",
        lambda value: 0 <= value < math.inf,
        "0 or more",
    ),
    ("deviation_memory", lambda value: 0 <= value < 1, "at least 0 and below 1"),
    ("learning_rate", lambda value: value > 0, "positive"),
    ("precision", PRECISIONS.__contains__, f"one of {', '.join(PRECISIONS)}"),
)
"""Settings, what is valid for each of them (None always is), and the words for it."""


@dataclass(frozen=True)
class SearchConfig:
    """All settings that change what a search finds on given data, with a given model and space.

    docs/search.md has the reasons for each.
    """

    layers: int | None = None
    """Layers to find; None adds layers until one brings nothing (see `max_layers`)."""
    max_layers: int = 6
    """Most layers when their number is not given."""
    steps: int = 312
    """Steps per layer; times the learning rate no less than `identity_logit`, which an operation
    has to rise by to overtake identity."""
    learning_rate: float = 0.1
    """Of Adam, on the logits."""
    images: int = 16
    """Images per step; Eq. 10 takes its mean and standard deviation over them."""
    validation: int = 64
    """Original images in the batch whose gradient is matched."""
    prefixes: int = 4
    """Draws of the earlier layers, each followed by every transformation (Eq. 7)."""
    chains: int = 140
    """Draws of all layers for the mean gradient (Eq. 8); 0 takes the images of the prefixes."""
    halves: bool = True
    """Take two mean gradients, of half of the chains each, so that their noise cancels in Eq. 9."""
    halvings: int = 3
    """How often the less likely half of the transformations is dropped in a layer after the first,
    up to its middle; the others are then rewarded under more draws."""
    converged: float = 0.97
    """An operation with more than this share ends a layer after the first early, after a quarter
    of its steps at least (identity later still); 1 lets every layer take all its steps."""
    stratified: bool = True
    """Spread the chains' last rows evenly over the layer's distribution."""
    deviation_draws: int | None = 16
    """Draws of the earlier layers that Eq. 10's standard deviation refers to, 16 by the authors;
    None takes the larger deviation of `prefixes` draws."""
    deviation_memory: float = 0.9
    """How much of Eq. 10's variance is carried from step to step, as in Adam's averages."""
    penalty: float = 1.0
    """c of Eq. 10."""
    penalty_first_layer: float = 0.0
    """c of Eq. 10 in the first layer; the authors' code has none there."""
    trivial_pull: float = 0.0
    """tau: how strongly a layer is drawn to DeepTA's, an operation uniformly and then a level.
    Rewards are diminished by tau log(p / p0), so that sum p r - tau KL(p || p0) is maximised."""
    same_class: bool = True
    """Match the gradient of validation images of the image's own class, as the authors do."""
    normalise_target: bool = True
    """Divide rewards by |v| too: the exact derivative of the cosine."""
    identity_logit: float = 8.0
    """How far identity starts above the others."""
    tie_signs: bool = True
    """Give m and -m one reward, since the policy is made symmetric in the end."""
    symmetric: bool = True
    """Make the found policy symmetric in its signs, as the authors' evaluation does."""
    epsilon: float = 2e-6
    """Of Adam. A gain that never varies takes a layer over if it is above about
    epsilon e^identity_logit / (steps learning_rate - identity_logit); smaller ones are left."""
    protect: bool = True
    """Leave out what turns one class into another, as a network trained without it says."""
    heldout: int = 256
    """Pairs behind each decision on a layer: images that no step augments and no other decision
    sees, each with a batch of originals. All of them are at most a third of those to augment."""
    keep_errors: float = 2.0
    """A layer is kept if its gain is above so many of its standard errors."""
    repeat_errors: float = 2.0
    """An operation that holds more than a third of an earlier layer holds as much of another if
    that gains more than so many standard errors over the layer without it; 0 asks for nothing."""
    precision: str = "auto"
    """Of the network, in pre-training too: float32, bfloat16, or auto: bfloat16 on GPUs with it."""
    compile: bool | None = None
    """Compile the passes through the network; None does so on CUDA."""
    chunk: int = 1112
    """Images through the network at a time; halved when memory runs out."""
    seed: int = 0
    """Of everything random in the search."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for names, is_valid, valid in _VALID:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not is_valid(value):
                    raise ValueError(f"{name} should be {valid}, got {value!r}")
        if self.halves and self.chains % 2:
            raise ValueError(f"chains should be even, or halves=false; got {self.chains}")
        if self.stratified and not 0 <= self.chains <= 1000:
            raise ValueError(f"chains should be in 0..1000 when stratified, got {self.chains}")

    @property
    def decisions(self) -> int:
        """The most decisions on layers: whether each is kept, and what a later one may repeat."""
        last = self.layers or self.max_layers
        return last + (last - 1 if self.repeat_errors else 0)

    def fitted_to(self, images: int) -> SearchConfig:
        """The same for so few images to augment, of which at most a third is held out.

        Fewer layers come before decisions on fewer than `LEAST_PAIRS` pairs.
        """
        most = images // 3
        fewer = [self]
        if self.layers is None:
            fewer = [replace(self, max_layers=n) for n in range(self.max_layers, 0, -1)]
        least = min(self.heldout, LEAST_PAIRS)
        found = next((c for c in fewer if c.decisions * least <= most), fewer[-1])
        return replace(found, heldout=min(self.heldout, max(1, most // found.decisions)))

    def rows_left(self, rows: int, layer: int, step: int) -> int:
        """The number of `rows` transformations that are still rewarded when `step` begins."""
        if layer == 1:
            return rows
        points = (k * self.steps / (2 * self.halvings) for k in range(1, self.halvings + 1))
        done = sum(step >= max(1, point) for point in points)
        return min(rows, max(LEAST_ROWS, rows >> done))

    def prefix_draws(self, rows: int, left: int) -> int:
        """Draws of the earlier layers for each image while `left` of `rows` are rewarded."""
        return int(self.prefixes * math.sqrt(rows / left))

    def passes_per_step(self, rows: int, *, layer: int, step: int = 0) -> int:
        """The number of images that go through the network in one step."""
        if layer == 1:
            return self.images * (self.validation + 2 * rows)
        left = self.rows_left(rows, layer, step)
        candidates = left * self.prefix_draws(rows, left)
        chains = self.chains or (candidates if left == rows else rows)
        return self.images * (self.validation + candidates + chains)

    def passes_left(self, rows: int, layer: int = 1, step: int = 0) -> int:
        """The number that go through it after `step` steps of `layer`, if no layer is dropped."""

        def steps(layer: int, done: int) -> int:
            left = range(done, self.steps)
            return sum(self.passes_per_step(rows, layer=layer, step=step) for step in left)

        last = self.layers or self.max_layers
        later = (last - layer) * steps(2, 0) if last > layer else 0
        # under the layers, DeepTA and nothing; after the first also under the layers before it, and
        # twice if an operation is repeated
        more = (1 + 2 * bool(self.repeat_errors)) * (last - max(layer, 2) + 1)
        measured = self.heldout * (3 * (last - layer + 1) + more)
        return steps(layer, step) + later + measured * (self.validation + (self.chains or rows))


@dataclass(frozen=True)
class ProxyConfig:
    """The network whose gradients guide the search, and how it is trained."""

    model: str | None = None
    """A name for `build_model`; None takes one that fits the images and the device."""
    augment: bool = False
    """Pre-train with crop, flip and cutout, as the authors do; the network has then learnt that
    they are harmless before the search asks."""
    least_passes: int = 0
    """Pre-train for more epochs, up to 600, where so few images would go through the network."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How it is trained."""

    def trained_on(self, images: int) -> ProxyConfig:
        """The same with the epochs that so many images take."""
        if not images or self.train.schedule == "step":  # whose milestones are epochs
            return self
        more = min(math.ceil(self.least_passes / images), MOST_EPOCHS)
        epochs = max(self.train.epochs, more)
        return replace(self, train=replace(self.train, epochs=epochs))


# Presets


class Settings(NamedTuple):
    """Everything that changes what a search finds, but the images and a given network."""

    search: SearchConfig
    proxy: ProxyConfig
    space: Space

    def to_json(self) -> dict[str, Any]:
        """The settings as they stand in config.json."""
        each = self.space.operations
        operations = [{name: getattr(op, name) for name in OF_OPERATION} for op in each]
        space = {"operations": operations, "levels": self.space.levels}
        return {"search": to_record(self.search), "proxy": to_record(self.proxy), "space": space}

    @classmethod
    def from_json(cls, config: Mapping[str, Any], operations: Sequence[Operation] = ()) -> Settings:
        """The settings that `to_json` gave.

        Args:
            operations: The user's own operations of the space: JSON does not carry their kernels.
        """
        own = {operation.name: operation for operation in operations}
        get = partial(stored, config, place="space")
        try:
            listed, levels = get("space.operations", Entries), get("space.levels", int)
            if len(listed) > MOST_OPERATIONS or not 2 <= levels <= MOST_LEVELS:
                raise ValueError(
                    f"{len(listed)} operations of {levels} levels; at most {MOST_OPERATIONS} of "
                    f"{MOST_LEVELS} are read"
                )
            return cls(
                from_plain(SearchConfig, get("search", dict), prefix="search."),
                from_plain(ProxyConfig, get("proxy", dict), prefix="proxy."),
                Space(tuple(_operation(entry, own) for entry in listed), levels),
            )
        except (TypeError, ValueError) as error:
            reason = str(error)[:300]
            raise ValueError(
                f"config.json does not fit this version of deepaa: {reason}"
            ) from error


def _operation(entry: Mapping[str, Any], own: Mapping[str, Operation]) -> Operation:
    """An operation of a space in config.json, without what only code can give."""
    if sorted(entry) != sorted(OF_OPERATION):
        raise ValueError(f"an operation has {', '.join(OF_OPERATION)}, got {short(sorted(entry))}")
    name = stored(entry, "name", str, "space.operations")
    options = stored(entry, "options", dict, "space.operations")
    return own.get(name) or Operation(**{**entry, "options": options})


def _preset(changes: str, space: Space = CIFAR) -> Settings:
    """The defaults with changes, written as `--set` takes them."""
    values = parse_changes(changes.split(), SearchConfig, ProxyConfig)
    search = apply_changes(SearchConfig(), values)
    return Settings(search, apply_changes(ProxyConfig(), values), space)


_USUAL = "least_passes=180000"  # 45 epochs of 4,000 images
_AUTHORS = (
    "steps=1024 learning_rate=0.025 prefixes=16 chains=556 stratified=false halves=false "
    "halvings=0 converged=1 tie_signs=false deviation_draws=auto "
    "deviation_memory=0 epsilon=1e-7 keep_errors=1 repeat_errors=0 protect=false"
)
PRESETS: Mapping[str, Settings] = {
    # the default: a quarter of the authors' samples, a third of their steps
    "fast": _preset(_USUAL),
    # what the authors' code does: 6 layers, 1,024 steps, 16 x 139 prefixes, 556 chains
    "official": _preset(f"{_USUAL} {_AUTHORS} layers=6 augment=true"),
    # what the paper says: 512 steps, the penalty in every layer, rewards not divided by |v|,
    # validation batches of all classes, no default augmentation anywhere
    "paper": _preset(
        f"{_USUAL} {_AUTHORS} steps=512 penalty_first_layer=1 normalise_target=false "
        "same_class=false symmetric=false epsilon=1e-8"
    ),
    # larger images: ResNet-18, the ImageNet space, at most 5 layers
    "imagenet": _preset(
        f"{_USUAL} max_layers=5 chunk=256 model=resnet18 train.epochs=30 train.batch=64 "
        "train.lr=0.05",
        IMAGENET,
    ),
    # minutes on two CPU cores: at most 3 layers, a small network, few samples; in few steps the
    # deviation of many draws would keep layers at identity
    "demo": _preset(
        "max_layers=3 steps=40 learning_rate=0.3 images=6 validation=24 prefixes=1 chains=48 "
        "deviation_draws=2 heldout=48 model=small least_passes=20000 train.epochs=10"
    ),
}


# What a user asks for


@dataclass(frozen=True)
class SettingsRequest:
    """A preset, parts that replace its own, and changes to single settings."""

    preset: str | None = None
    """None takes fast for small images, and imagenet for large ones."""
    search: SearchConfig | None = None
    proxy: ProxyConfig | None = None
    space: Space | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SearchConfig` by name."""
    model: str | None = None
    epochs: int | None = None
    """Of pre-training."""
    operations: tuple[Operation, ...] = ()
    """The user's own, in addition to the space."""
    ops: str | Sequence[str] | None = None
    """Operations to keep, with commas between or as a list; identity always stays."""
    exclude: str | Sequence[str] | None = None
    """Operations to leave out."""
    changes: Sequence[str] = ()
    """NAME=VALUE each: heldout=64, augment=false, train.lr=0.05. Checked together, so that their
    order does not matter."""

    def __post_init__(self) -> None:
        """Refuse wrong settings at once, before images are read."""
        self.resolve()

    def resolve(self, *, large: bool = False) -> Settings:
        """The settings for small or for large images."""
        preset = self.preset or ("imagenet" if large else "fast")
        if preset not in PRESETS:
            raise ValueError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
        start = PRESETS[preset]
        changes = parse_changes(self.changes, SearchConfig, ProxyConfig, without=NOT_CHANGED)
        if self.epochs is not None:
            changes = {"train.epochs": self.epochs, **changes}
        if "train.epochs" in changes:  # so many, unless both are given
            changes = {"least_passes": 0, **changes}
        search = replace(self.search or start.search, **self.fields)
        proxy = self.proxy or start.proxy
        if self.model is not None:
            proxy = replace(proxy, model=self.model)
        space = self._chosen_space(self.space or start.space)
        return Settings(apply_changes(search, changes), apply_changes(proxy, changes), space)

    def _chosen_space(self, space: Space) -> Space:
        if self.operations:
            space = space.plus(*self.operations)
        if self.ops is not None:
            space = space.only("identity", *_names(self.ops))
        if self.exclude is not None:
            if "identity" in _names(self.exclude):
                raise ValueError("identity cannot be left out: every layer starts from it")
            space = space.without(*_names(self.exclude))
        return space


def _names(given: str | Sequence[str]) -> list[str]:
    listed = given.split(",") if isinstance(given, str) else given
    return [name.strip() for name in listed if name.strip()]
