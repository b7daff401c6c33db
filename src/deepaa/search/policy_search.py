"""A whole search on images in memory: splits, a pre-trained network, layers, the files of a run.

A run can be stopped at any time and goes on from its newest checkpoint; on CPU it then ends with
the same policy, bit for bit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.data import LabelledImages, Splits, read_splits, search_splits
from deepaa.files import plural
from deepaa.models import channel_statistics, copy_model, default_model, frozen_copy, load_model
from deepaa.ops import Space
from deepaa.policy import Policy, load_policy
from deepaa.runs import FOUND, NEWEST, Run, StopAskedError, checks_state, part_of, stored
from deepaa.search.found import described
from deepaa.search.gradient_matching.gradients import check_untrained
from deepaa.search.gradient_matching.rewards import SearchData
from deepaa.search.gradient_matching.search import LayerRecord, Search, StepRecord
from deepaa.search.methods import Forecast, Method, Searcher, TrialRecord, World
from deepaa.search.plain_network import LOOKING, ProtectionRecord, protection_of
from deepaa.search.protection import Protection
from deepaa.search.settings import ProxyConfig, SearchConfig
from deepaa.search.world import Parts, default_augmentation, parts_of, world_of
from deepaa.train import (
    EpochRecord,
    ImageBatches,
    TrainConfig,
    Training,
    evaluate,
    precision_on,
)

Record = EpochRecord | ProtectionRecord | StepRecord | LayerRecord | TrialRecord
SPLITS = "splits.json"
HELDOUT_IMAGES = 512
"""The most validation images on which a network is measured after each epoch of pre-training."""


class PolicySearch:
    """A whole search on labelled images: iterate for its records, then take `policy`."""

    show: Callable[[str], None] = staticmethod(lambda text: None)
    """Is told what begins, in words for a person who waits for the next record."""

    def __init__(
        self,
        data: LabelledImages,
        *,
        space: Space,
        search: SearchConfig,
        proxy: ProxyConfig,
        method: Method | None = None,
        model: nn.Module | None = None,
        pretrain: bool = False,
        weights: str | Path | None = None,
        has_new_head: bool = False,
        device: torch.device | str = "cpu",
        sizes: tuple[int, int, int] | None = None,
        splits: Splits | None = None,
        run: Run | None = None,
        checkpoint_seconds: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
        protection: ProtectionRecord | None = None,
    ) -> None:
        """Split the data, and go on from the run's newest checkpoint if it has one.

        Args:
            method: What finds the policy; None for gradient matching, which `search` is about.
            model: A classifier of uint8 batches, which is copied; None makes one as `proxy` says.
            pretrain: Train the given model first; one that is not given always is.
            weights: The file that the model was read from: where trainings of methods begin, too.
            has_new_head: Whether the last layer of that file is for other classes.
            sizes: Images for pre-training, search and validation, of those that the judge leaves.
            splits: The parts themselves, of a run that is only looked at.
            run: Where records, checkpoints and the policy go; None keeps nothing.
            stop: Called often; once it returns true, the iteration saves and ends as `stopped`.
            protection: What turns one class into another, if that has been looked for before.
        """
        self.data, self.space, self.device = data, space, torch.device(device)
        self.whole_space = space
        """All that was asked for, also what class protection then takes out of `space`."""
        self.run = run if distributed.is_main() else None
        self.checkpoint_seconds = checkpoint_seconds
        self.method = method
        self.pretrains = method is None and (model is None or pretrain)
        phase, state = "pretrain" if self.pretrains else "search", {}
        if self.run is not None and (saved := self.run.latest()) is not None:
            phase = stored(saved.position, "phase", str, self.run.folder / NEWEST.manifest)
            state = saved.tensors
        self._phase, self._state = distributed.broadcast((phase, state))
        self.later_state: dict[str, Tensor] = {}
        """The state of a contest that has begun behind the search."""
        if self._phase not in ("pretrain", "search"):
            self.later_state, self._state = self._state, {}
        classes = len(data.class_names)
        kept = splits or distributed.from_main(self._kept_splits)
        self.splits = kept or search_splits(
            data, sizes, search.seed, pretrains=self.pretrains or method is not None
        )
        self.proxy = proxy.trained_on(len(self.splits.pretrain))
        self.config = search.fitted_to(len(self.splits.search))
        if model is None:
            images = data.images[self.splits.pretrain]
            self.model = load_model(self.network_name, images, classes, search.seed).to(self.device)
        else:
            self.model = copy_model(model).to(self.device)
        self.given = None if weights is not None else model
        """The user's own network, of which others are made with new weights."""
        self.weights, self.has_new_head = weights, has_new_head
        self.search: Search | Searcher | None = None
        self.known_protection = protection
        """What turns one class into another, if that has been looked for before."""
        self.protection = Protection()
        """What turns one class into another: from its record on it is not in `space` any more."""
        self.protection_state: dict[str, Tensor] = {}
        """The same, as a state keeps it."""
        if "protection" in self.later_state:
            self._take_protection(self.later_state.pop("protection"))
        self.stopped, self.stop, self._saved = False, stop, time.monotonic()
        self._unsaved: tuple[str, dict[str, Tensor]] | None = None
        self._in_parts = False
        if self.run is not None:
            if kept is None:
                parts = {name: part.tolist() for name, part in self.splits._asdict().items()}
                self.run.write_json(SPLITS, parts)
            facts = {"data": data.name, "fingerprint": data.fingerprint}
            self.run.add_provenance({**facts, "device": str(self.device)})

    def _kept_splits(self) -> Splits | None:
        """The splits of a run that has a state: the default sizes may have changed since."""
        if self.run is None or not (self._state or self.later_state):
            return None
        return read_splits(self.run.folder / SPLITS, len(self.data.labels))

    @property
    def policy(self) -> Policy:
        """The layers found so far, with what they were found on."""
        if self.search is None and self.later_state and self.run is not None:
            own = [op for op in self.space.operations if op.is_custom]
            return load_policy(self.run.folder / FOUND, own)
        if self.search is None:
            return Policy.identity(self.space, 0)
        return described(self, self.search)

    @property
    def is_protected(self) -> bool:
        """Whether it is known already what turns one class into another."""
        return bool(self.known_protection or self.protection_state or "protection" in self._state)

    @property
    def network_name(self) -> str:
        """The network that is trained where none is given."""
        return self.proxy.model or default_model(self.data.images, self.device)

    @property
    def training_passes(self) -> int:
        """Images through the network in pre-training."""
        return len(self.splits.pretrain) * self.proxy.train.epochs if self.pretrains else 0

    @property
    def training_note(self) -> str | None:
        """What a person should know of the file of weights that the network is from."""
        if not self.has_new_head or not self.pretrains:
            return None
        return f"{self.weights}: its last layer is for other classes; a new one is trained first"

    def check_model(self) -> None:
        """Refuse a network that cannot be searched with, before it is trained for it."""
        frozen = frozen_copy(self.model).to(self.device)
        few = self.splits.search[:2]
        images, labels = (part[few].to(self.device) for part in self.data[:2])
        check_untrained(frozen, images, labels, largest=int(self.data.labels.max()))

    # Running

    def __iter__(self) -> Iterator[Record]:
        """Pre-train, search and write the policy; records as they come."""
        if self.later_state:
            return
        try:
            if self._phase == "pretrain":
                self.check_model()
                yield from self._pretrain()
                self._phase = "search"
            if self.config.protect and "protection" not in self._state:  # which takes a training
                self.check_method()
            yield from self._search()
        except StopAskedError:
            self._gather()
            self.save()
            self.stopped = True
            return
        if self.run is not None:
            self.policy.save(self.run.folder / FOUND)

    def train_config(self, images: int) -> TrainConfig:
        """How a network is trained on so many images for this search."""
        train = self.proxy.trained_on(images).train
        return dataclasses.replace(
            train,
            seed=self.config.seed,
            precision=precision_on(self.device, self.config.precision),
            channels_last=train.channels_last or self.device.type == "cuda",
        )

    def _pretrain(self) -> Iterator[EpochRecord]:
        part = self.splits.pretrain
        policy = default_augmentation(self.space) if self.proxy.augment else None
        config = self.train_config(len(part))
        images, labels = self.data.images[part], self.data.labels[part]
        batches = ImageBatches(images, labels, policy, config, self.device)
        training = Training(self.model, batches, config)
        # every process trains all batches, so all ask at the same time
        training.before_step = self.check_stop
        if self._state:
            with checks_state(self.run):
                training.load_state(self._state)
            self._state = {}
        epochs = plural(config.epochs, "epoch")
        self.show(f"pre-training a network on {len(part):,} images for {epochs}")
        # of the images that give the gradients to match, never the judge's
        held = self.splits.validation[:HELDOUT_IMAGES]
        for record in training:
            found = evaluate(
                self.model, self.data.images[held], self.data.labels[held], batch=config.batch
            )
            record = record._replace(heldout_accuracy=found.accuracy)
            is_last = training.epoch == config.epochs
            self._keep("epoch", record, training.state(), now=is_last)
            yield record
            self.check_stop()

    def _protect(
        self, weights: dict[str, Tensor], *, is_trained: bool = True
    ) -> Generator[Record, None, dict[str, Tensor]]:
        """Leave out of the space what turns one class into another; the state with that."""
        saved = self._state.get("protection")
        if saved is None and self.config.protect:
            record = self.known_protection or self._looked_for(weights, is_trained=is_trained)
            saved = record.to_tensor()
            self._keep("protection", record, {**weights, "protection": saved}, now=True)
            if self.known_protection is None:  # else somebody has told of it
                yield record
                self.check_stop()
        if saved is None:
            return weights
        self._take_protection(saved)
        return {**weights, "protection": saved}

    def _looked_for(self, weights: dict[str, Tensor], *, is_trained: bool) -> ProtectionRecord:
        """What turns one class into another, by all processes alike; a stop costs one epoch."""
        looking = protection_of(self, self.check_stop, is_trained=is_trained)
        if state := part_of(self._state, "protecting."):
            looking.load_state(state, self.run)
        looking.show = self.show
        looking.keep = lambda: self._hold(
            {**weights, **{f"protecting.{k}": v for k, v in looking.state().items()}}
        )
        self.show(LOOKING)
        return distributed.broadcast(looking.find())

    def _take_protection(self, saved: Tensor) -> None:
        with checks_state(self.run):
            self.protection = ProtectionRecord.from_tensor(saved).protection
            self.space = self.protection.space(self.space)
        self.protection_state = {"protection": saved}

    def protect_alone(self) -> Iterator[Record]:
        """Protect classes where nothing is searched: with a network that is trained for it."""
        self._phase = "search"
        try:
            if not self.protection_state:
                yield from self._protect({}, is_trained=False)
        except StopAskedError:
            self.save()
            self.stopped = True

    def _search(self) -> Iterator[Record]:
        weights = part_of(self._state, "model.") or self.model.state_dict()
        # every process trains alike, up to rounding; from here on they must be equal
        weights = distributed.broadcast({k: v.cpu() for k, v in weights.items()})
        with checks_state(self.run):
            self.model.load_state_dict(weights)
        fixed = {f"model.{name}": tensor for name, tensor in weights.items()}
        fixed = yield from self._protect({} if self.method is not None else fixed)
        self.search = self._gradient_matching() if self.method is None else self._other_method()
        if state := part_of(self._state, "search."):
            distributed.run_on_all(partial(self._load, self.search, state))
        self._state = {}
        for record in self.search:
            is_layer = isinstance(record, LayerRecord)
            kind = "layer" if is_layer else "step" if isinstance(record, StepRecord) else "trial"
            state = {f"search.{k}": v.clone() for k, v in self.search.state().items()}
            is_end = is_layer or (isinstance(self.search, Searcher) and self.search.done)
            self._in_parts = isinstance(self.search, Searcher) and distributed.world_size() > 1
            self._keep(kind, record, fixed | state, now=is_end)
            yield record
            self.check_stop()

    def _load(self, search: Search | Searcher, state: dict[str, Tensor]) -> None:
        with checks_state(self.run):
            search.load_state(state)

    def _gradient_matching(self) -> Search:
        """The search of the paper, with the network that was trained for it."""
        both = ((self.data.images[part], self.data.labels[part]) for part in self.splits[1:3])
        data = SearchData(*(part.to(self.device) for pair in both for part in pair))
        if self.data.groups is not None:
            data = data._replace(groups=self.data.groups[self.splits.search])
        frozen = frozen_copy(self.model).to(self.device)
        search = Search(frozen, data, self.space, self.config)
        search.show = self.show
        if distributed.world_size() == 1:  # processes that wait for each other stop after a step
            search.before_image = self.check_stop
        return search

    # Other methods

    def check_method(self) -> None:
        """Refuse a method that has nothing to choose from here, before anything is trained."""
        if self.method is not None:
            self._other_method()

    def _other_method(self) -> Searcher:
        """The search of another method, which trains its own networks."""
        assert self.method is not None
        if distributed.world_size() > 1 and not self.method.searcher.shares_work:
            raise ValueError(f"--method {self.method.name} runs in one process, not under torchrun")
        return self.method.searcher(self.world, self.method.config)

    @property
    def method_forecast(self) -> Forecast:
        """What another method costs."""
        assert self.method is not None
        return self.method.searcher.forecast(self.method.config, self.world)

    @property
    def world(self) -> World:
        """What every method gets: all images but the judge, a network, and what may be used."""
        return world_of(self, self._parts)

    @cached_property
    def _parts(self) -> Parts:
        return parts_of(self.data, self.splits)

    @cached_property
    def levels(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of the channels, by which all networks of a method normalise."""
        return channel_statistics(self.data.images[self.splits.pretrain])

    def check_stop(self) -> None:
        """Raise StopAskedError once the search was asked to stop."""
        if distributed.any_rank(self.stop()):
            raise StopAskedError

    # Saving

    def _keep(self, kind: str, record: Record, state: dict[str, Tensor], *, now: bool) -> None:
        """Log a record, hold the state that belongs to it, and save that when it is time."""
        if self.run is not None:
            self.run.log({"kind": kind, **record._asdict()})
        self._hold(state, now=now)

    def _hold(self, state: dict[str, Tensor], *, now: bool = False) -> None:
        """Hold a state of the work, and save it when it is time."""
        self._unsaved = (self._phase, state)
        is_time = now or time.monotonic() - self._saved >= self.checkpoint_seconds
        if self._in_parts:  # all have to agree, since each has a part of the state
            is_time = distributed.any_rank(is_time)
        if is_time:
            self._gather()
            self.save()

    def _gather(self) -> None:
        """Put together the parts of the state that the processes have; all ask for it at once."""
        if self._in_parts and self._unsaved is not None:
            phase, state = self._unsaved
            whole = distributed.all_parts(lambda: {k: v.cpu() for k, v in state.items()})
            self._unsaved, self._in_parts = (phase, whole), False

    def save(self) -> None:
        """Write the state after the newest record to disk; may be called at any time."""
        if self._unsaved is None or self._in_parts:  # this process alone has no whole state
            return
        phase, state = self._unsaved
        if self.run is not None:
            self.run.save(state, {"phase": phase})
        self._unsaved = None
        self._saved = time.monotonic()
