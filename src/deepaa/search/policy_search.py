"""A whole search on images in memory: splits, a pre-trained network, layers, the files of a run.

A run can be stopped at any time and goes on from its newest checkpoint; on CPU it then ends with
the same policy, bit for bit. `forecast` says before what it would cost, `run_trial` compares the
policy afterwards with what people use otherwise, in short trainings.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.data import LabelledImages, Splits, TrainTest, checked, default_sizes, stratified_splits
from deepaa.models import copy_model, default_model, frozen_copy, is_large, load_model
from deepaa.ops import CIFAR, IMAGENET, Space
from deepaa.policy import DROPPED_IDENTITY, Policy
from deepaa.runs import (
    NEWEST,
    POLICY,
    Run,
    StopAskedError,
    checks_state,
    duration,
    part_of,
    stored,
)
from deepaa.search.gradient_matching.gradients import Derivatives, check_untrained, optimized_copy
from deepaa.search.gradient_matching.rewards import SearchData
from deepaa.search.gradient_matching.search import LayerRecord, Search, StepRecord
from deepaa.search.settings import ProxyConfig, SearchConfig
from deepaa.search.stored import stored_splits
from deepaa.train import EpochRecord, ImageBatches, Training, evaluate, precision_on

Record = EpochRecord | StepRecord | LayerRecord
DEFAULT_AUGMENTATION = ("crop", "resized_crop", "flip", "cutout")
SPLITS = "splits.json"
ENOUGH_SECONDS = 0.3
"""Seconds of work that show the speed of a network."""
LEAST_PASSES = 20 * 4000
"""Images through the network in each training of a comparison, at least."""


class PolicySearch:
    """A whole search on labelled images: iterate for its records, then take `policy`."""

    def __init__(
        self,
        data: LabelledImages,
        *,
        space: Space,
        search: SearchConfig,
        proxy: ProxyConfig,
        model: nn.Module | None = None,
        pretrain: bool = False,
        device: torch.device | str = "cpu",
        sizes: tuple[int, int, int] | None = None,
        run: Run | None = None,
        checkpoint_seconds: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Split the data, and go on from the run's newest checkpoint if it has one.

        Args:
            model: A classifier of uint8 batches, which is copied; None makes one as `proxy` says.
            pretrain: Train the given model first; one that is not given always is.
            sizes: Images for pre-training, search and validation.
            run: Where records, checkpoints and the policy go; None keeps nothing.
            stop: Called often; once it returns true, the iteration saves and ends as `stopped`.
        """
        self.data, self.space, self.device = data, space, torch.device(device)
        self.run = run if distributed.is_main() else None
        self.checkpoint_seconds = checkpoint_seconds
        self.pretrains = model is None or pretrain
        phase, state = "pretrain" if self.pretrains else "search", {}
        if self.run is not None and (saved := self.run.latest()) is not None:
            phase = stored(saved.position, "phase", str, self.run.folder / NEWEST.manifest)
            state = saved.tensors
        self._phase, self._state = distributed.broadcast((phase, state))
        classes = len(data.class_names)
        sizes = sizes or default_sizes(len(data.labels), classes, pretrains=self.pretrains)
        kept = distributed.from_main(self._kept_splits)
        self.splits = kept or stratified_splits(
            data.labels, sizes, search.seed, class_names=data.class_names
        )
        self.proxy = proxy.trained_on(len(self.splits.pretrain))
        most = max(1, len(self.splits.search) // 3)  # few images: most of them are for the steps
        self.config = dataclasses.replace(search, heldout=min(search.heldout, most))
        if model is None:
            name = self.proxy.model or default_model(data.images, self.device)
            images = data.images[self.splits.pretrain]
            self.model = load_model(name, images, classes, search.seed).to(self.device)
        else:
            self.model = copy_model(model).to(self.device)
        self.search: Search | None = None
        self.stopped, self._stop, self._saved = False, stop, time.monotonic()
        self._unsaved: tuple[str, dict[str, Tensor]] | None = None
        if self.run is not None:
            if kept is None:
                parts = {name: part.tolist() for name, part in self.splits._asdict().items()}
                self.run.write_json(SPLITS, parts)
            facts = {"data": data.name, "fingerprint": data.fingerprint}
            self.run.add_provenance({**facts, "device": str(self.device)})

    def _kept_splits(self) -> Splits | None:
        """The splits of a run that has a state: the default sizes may have changed since."""
        if self.run is None or not self._state or not (self.run.folder / SPLITS).exists():
            return None
        return stored_splits(self.run.folder / SPLITS, len(self.data.labels))

    @property
    def policy(self) -> Policy:
        """The layers found so far, with what they were found on."""
        if self.search is None:
            return Policy.identity(self.space, 0)
        found = self.search.policy
        layers = f"{found.depth} layer{'' if found.depth == 1 else 's'}"
        info = {
            "description": f"found by deepaa on {self.data.name}, {layers}",
            "data": f"{self.data.name}, sha256 {self.data.fingerprint[:16]}",
            "seed": str(self.config.seed),
            "settings": _differences(self.config),
        }
        if (share := self.search.dropped_identity) is not None:
            info[DROPPED_IDENTITY] = f"{share:.4f}"
        return Policy(found.table, found.phases[0].stages, info=info)

    def check_model(self) -> None:
        """Refuse a network that cannot be searched with, before it is trained for it."""
        frozen = frozen_copy(self.model).to(self.device)
        few = self.splits.search[:2]
        images, labels = (part[few].to(self.device) for part in self.data[:2])
        check_untrained(frozen, images, labels, largest=int(self.data.labels.max()))

    # Running

    def __iter__(self) -> Iterator[Record]:
        """Pre-train, search and write the policy; records as they come."""
        try:
            if self._phase == "pretrain":
                self.check_model()
                yield from self._pretrain()
                self._phase = "search"
            yield from self._search()
        except StopAskedError:
            self.save()
            self.stopped = True
            return
        if self.run is not None:
            self.policy.save(self.run.folder / POLICY)

    def _pretrain(self) -> Iterator[EpochRecord]:
        part = self.splits.pretrain
        policy = default_augmentation(self.space) if self.proxy.augment else None
        config = dataclasses.replace(
            self.proxy.train,
            seed=self.config.seed,
            precision=precision_on(self.device, self.config.precision),
            channels_last=self.proxy.train.channels_last or self.device.type == "cuda",
        )
        images, labels = self.data.images[part], self.data.labels[part]
        batches = ImageBatches(images, labels, policy, config, self.device)
        training = Training(self.model, batches, config)
        # every process trains all batches, so all ask at the same time
        training.before_step = self._check_stop
        if self._state:
            with checks_state(self.run):
                training.load_state(self._state)
            self._state = {}
        for record in training:
            is_last = training.epoch == config.epochs
            self._keep("epoch", record, training.state(), now=is_last)
            yield record
            self._check_stop()

    def _search(self) -> Iterator[StepRecord | LayerRecord]:
        weights = part_of(self._state, "model.") or self.model.state_dict()
        # every process trains alike, up to rounding; from here on they must be equal
        weights = distributed.broadcast({k: v.cpu() for k, v in weights.items()})
        with checks_state(self.run):
            self.model.load_state_dict(weights)
        both = ((self.data.images[part], self.data.labels[part]) for part in self.splits[1:])
        data = SearchData(*(part.to(self.device) for pair in both for part in pair))
        frozen = frozen_copy(self.model).to(self.device)
        self.search = Search(frozen, data, self.space, self.config)
        if distributed.world_size() == 1:  # processes that wait for each other stop after a step
            self.search.before_image = self._check_stop
        if self._state:
            with checks_state(self.run):
                self.search.load_state(part_of(self._state, "search."))
        self._state = {}
        fixed = {f"model.{name}": tensor for name, tensor in weights.items()}
        for record in self.search:
            is_layer = isinstance(record, LayerRecord)
            state = {f"search.{k}": v.clone() for k, v in self.search.state().items()}
            self._keep("layer" if is_layer else "step", record, fixed | state, now=is_layer)
            yield record
            self._check_stop()

    def _check_stop(self) -> None:
        if distributed.any_rank(self._stop()):
            raise StopAskedError

    # Saving

    def _keep(self, kind: str, record: Record, state: dict[str, Tensor], *, now: bool) -> None:
        """Log a record, hold the state that belongs to it, and save that when it is time."""
        if self.run is not None:
            self.run.log({"kind": kind, **record._asdict()})
        self._unsaved = (self._phase, state)
        if now or time.monotonic() - self._saved >= self.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Write the state after the newest record to disk; may be called at any time."""
        if self._unsaved is None:
            return
        phase, state = self._unsaved
        if self.run is not None:
            self.run.save(state, {"phase": phase})
        self._unsaved = None
        self._saved = time.monotonic()


def _differences(config: SearchConfig) -> str:
    """The settings that are not the defaults, as `--set` takes them; the seed stands elsewhere."""
    usual = SearchConfig(seed=config.seed)
    values = dataclasses.asdict(config).items()
    changed = {name: value for name, value in values if value != getattr(usual, name)}
    texts = (f"{name}={'auto' if value is None else value}" for name, value in changed.items())
    return ", ".join(texts) or "the defaults"


def default_augmentation(space: Space, names: tuple[str, ...] = DEFAULT_AUGMENTATION) -> Policy:
    """The policy of crop, flip and cutout, without those that the space leaves out."""
    have = {op.name: op for op in space.operations}
    wanted = [have[name] for name in names if name in have]
    return Policy.always(*wanted) if wanted else Policy.identity(space)


# What a search costs


def forecast(search: PolicySearch) -> dict[str, str]:
    """What a search would do and what it would cost, a text for each subject."""
    search.check_model()
    data, device, space = search.data, search.device, search.space
    images, labels = data.images[:256].to(device), data.labels[:256].to(device)
    frozen = optimized_copy(frozen_copy(search.model), images[:2], labels[:2])
    each = seconds_per_pass(frozen, images, labels)
    passes = search.config.passes_left(len(space))
    counts = {name: len(part) for name, part in search.splits._asdict().items()}
    training = counts["pretrain"] * search.proxy.train.epochs if search.pretrains else 0
    seconds = (passes + training) * each
    shape = " x ".join(map(str, data.images.shape[1:]))
    weights = sum(p.numel() for p in search.model.parameters())
    memory = memory_needed(search.config, frozen, images, len(space))
    lines = {
        "data": f"{data.name}: {len(data.labels):,} images of {shape}, "
        f"{len(data.class_names)} classes",
        "splits": ", ".join(f"{name} {count:,}" for name, count in counts.items())
        + f"; {search.config.heldout:,} of the search's are held out",
        "space": f"{len(space)} transformations of {len(space.operations)} operations",
        "network": f"{weights:,} weights on {device}",
        "memory": f"{data.images.nbytes / 1e6:,.0f} MB of images, about {memory / 1e6:,.0f} "
        "MB for the network",
        "passes": f"{passes:,} in the search at most, {training:,} in pre-training",
        "time": f"about {duration(seconds)}, at {1 / each:,.0f} passes a second measured now",
    }
    if seconds > 24 * 3600 and device.type == "cpu":
        lines["hint"] = "--preset demo --size 32 takes minutes on a CPU"
    return lines


def seconds_per_pass(frozen: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Seconds that one image takes through the network and back, measured now, in float32.

    A few images first, more while they are quick: a large network on a CPU takes seconds for each.
    """
    derivatives, count = Derivatives(frozen), 4
    while True:
        part, answers = images[:count], labels[:count]
        taken = []
        for _ in range(2):
            began = time.perf_counter()
            derivatives.mean_gradient(part, answers)
            if images.device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        if count >= len(images) or min(taken) > ENOUGH_SECONDS:
            return min(taken) / len(part)
        count *= 4


def memory_needed(config: SearchConfig, model: nn.Module, images: Tensor, rows: int) -> int:
    """Bytes of weights, images and activations that a pass takes at once, for `rows` rows."""
    counted = [0]

    def count(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not isinstance(module, nn.Identity):
            counted[0] += output.nbytes

    hooks = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    try:
        with torch.no_grad():
            model(images[:1])
    finally:
        for hook in hooks:
            hook.remove()
    weights = sum(p.nbytes for p in model.parameters())
    # values and their tangents, or their gradients; weights, v, two of g and the direction
    most = max(config.validation, config.chains, config.prefixes * rows)
    return 5 * weights + min(config.chunk, most) * (2 * counted[0] + images[0].nbytes)


# What the policy brings


class TrialResult(NamedTuple):
    """How well a network does after a training with one policy."""

    name: str
    accuracy: float
    """On images that took part in nothing else."""
    loss: float
    seconds: float


def compared_policies(search: PolicySearch) -> dict[str, Policy]:
    """The found policy, crop and flip, and TrivialAugment followed by crop and flip."""
    whole = IMAGENET if is_large(search.data.images) else CIFAR  # whatever the search chose from
    usual = default_augmentation(whole, ("crop", "resized_crop", "flip"))
    return {
        "found policy": search.policy,
        "crop and flip": usual,
        "TrivialAugment": Policy.trivial(whole, 1).then(usual),
    }


def trial_images(search: PolicySearch, test: LabelledImages | None) -> TrainTest:
    """All images of the search to train on, and the data set's own test images.

    Without such, the validation split is tested on, and the rest trains.
    """
    data, part = search.data, search.splits.validation
    if test is not None:
        return checked(TrainTest(data, test, "test images"))
    left = torch.ones(len(data.labels), dtype=torch.bool)
    left[part] = False
    train, test = (
        data._replace(images=data.images[chosen], labels=data.labels[chosen])
        for chosen in (left, part)
    )
    return TrainTest(train, test, "images of the validation split")


def trial_epochs(images: int) -> int:
    """20, or as many as a network needs to learn something of few images."""
    return max(20, math.ceil(LEAST_PASSES / images))


def run_trial(
    search: PolicySearch, trial: TrainTest, epochs: int, stop: Callable[[], bool]
) -> Iterator[TrialResult]:
    """Train the network of the search from new weights with each policy.

    Raises:
        StopAskedError: `stop` said yes, between two steps.
    """

    def check_stop() -> None:
        if stop():
            raise StopAskedError

    seed, (train, test, _) = search.config.seed, trial
    config = dataclasses.replace(search.proxy.train, epochs=epochs, seed=seed)
    images, classes = search.data.images, len(search.data.class_names)
    network = search.proxy.model or default_model(images, search.device)
    for name, policy in compared_policies(search).items():
        began = time.perf_counter()
        model = load_model(network, images, classes, seed)
        batches = ImageBatches(train.images, train.labels, policy, config, search.device)
        training = Training(model, batches, config)
        training.before_step = check_stop
        for _ in training:
            pass
        result = evaluate(training.model, test.images, test.labels)
        yield TrialResult(name, result.accuracy, result.loss, time.perf_counter() - began)
