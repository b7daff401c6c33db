"""The protection of classes in a search: the network that is asked, the images, and the record.

The network has to be one that was trained without any operation. That of the search serves where it
was pre-trained so; beside any other, one is trained for this alone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from deepaa.data import LabelledImages, Splits, batch_sizes
from deepaa.models import copy_model, is_large, load_model
from deepaa.ops import Row
from deepaa.policy import Policy, SpaceName, compared_policy
from deepaa.runs import Run, RunError, checks_state, parsed, part_of, record_of, short
from deepaa.search.methods import Passes
from deepaa.search.protection import (
    LEAST_IMAGES,
    Protection,
    class_sample,
    find_changed,
    first_rows,
)
from deepaa.train import MOST_EPOCHS, ImageBatches, TrainConfig, Training

if TYPE_CHECKING:
    from deepaa.search.policy_search import PolicySearch

MOST_TRAINED = 400
"""Images of a class, on average, that a network is trained on where the search trains none."""
RETRAINED = 0.25
"""Epochs of the training with suspected operations, as a share of those of the first training."""
LEAST_RETRAINED, LEAST_PER_OPERATION = 10_000, 4_000
"""Images that go through the network in it, at least: in all, and for each suspected operation."""
SHOWN_CLASSES = 5
LOOKING = "looking for operations that turn one class into another"


class ProtectionRecord(NamedTuple):
    """What the protection of classes has found."""

    changed: list[dict[str, Any]]
    """As `Protection.to_json` gives it."""
    untestable: list[str]
    classes: int
    seconds: float
    passes: int = 0
    """Passes forward that it took, or what costs as much; pre-training is not included."""

    @property
    def protection(self) -> Protection:
        """What is left out."""
        return Protection.from_json(self.changed, self.untestable)

    @property
    def lines(self) -> list[str]:
        """What a person is told of it."""
        return self.lines_about()

    def lines_about(self, rows: Iterable[Row] | None = None) -> list[str]:
        """What a person is told: a line for each side of an operation, and what is unsure.

        Args:
            rows: All that could take part, if that is less than all that was tested.
        """
        found = [f"left out: {text}" for text in self.protection.texts(rows)]
        if not self.untestable:
            return found or ["no operation that takes part was seen to turn one class into another"]
        shown, more = self.untestable[:SHOWN_CLASSES], len(self.untestable) - SHOWN_CLASSES
        names = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        reason = f"fewer than {LEAST_IMAGES} held-out images, or the network knows too little"
        if not self.passes:  # no network was asked
            reason = f"it takes {LEAST_IMAGES} held-out images of two classes or more"
        nothing = self.classes - len(self.untestable) < 2  # a class turns into another
        return [
            *found,
            f"{len(self.untestable)} of {self.classes} classes are not testable for operations "
            f"that turn them into another ({reason}): {names}"
            + ("; so no operation was tested" if nothing else ""),
        ]

    def to_tensor(self) -> Tensor:
        """The record as bytes, for a checkpoint."""
        return torch.tensor(list(json.dumps(self._asdict()).encode()), dtype=torch.uint8)

    @classmethod
    def from_json(cls, plain: Any, place: object) -> ProtectionRecord:
        """The record whose fields the file `place` has; RunError if they do not fit."""
        if not isinstance(plain, Mapping):
            raise RunError(f"{place}: damaged: expected an object, got {short(plain)}")
        found = record_of(cls, plain, place)
        Protection.from_json(found.changed, found.untestable, place)
        return found

    @classmethod
    def from_tensor(cls, saved: Tensor) -> ProtectionRecord:
        """The record that `to_tensor` gave."""
        return cls.from_json(parsed(bytes(saved.tolist())), "the protection in a state")


class ClassProtection:
    """Looks for operations that turn one class into another, with a network trained for this.

    It goes on from `state()`, taken after any epoch of its trainings, and then finds the same, bit
    for bit on a CPU, and counts the same passes.
    """

    keep: Callable[[], None] = staticmethod(lambda: None)
    """Called after each epoch, when there is a new state."""
    show: Callable[[str], None] = staticmethod(lambda text: None)
    """Is told what is done, in words for a person."""

    def __init__(
        self,
        data: LabelledImages,
        parts: tuple[Tensor, Tensor],
        model: nn.Module | str,
        config: TrainConfig,
        device: torch.device,
        rows: Sequence[Row],
        before_step: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is trained before `find`.

        Args:
            parts: Indices of the images that the network was, or is, trained on, without
                augmentation, and of those that it is asked about.
            model: The network, or the name of one that is trained for this.
            rows: Those that are tested.
            before_step: Called before each step of a training and each measurement; what it raises
                ends the work.
        """
        self.data, self.parts, self.model, self.config = data, parts, model, config
        self.device, self.rows, self.before_step = device, list(rows), before_step
        self.passes = Passes()
        """What went through networks; work that was repeated after a stop is counted once."""
        self._plain: nn.Module | None = None
        self._training: Training | None = None
        self._seconds, self._began = 0.0, time.perf_counter()
        self._loaded: dict[str, Tensor] = {}
        self._run: Run | None = None

    @property
    def is_testable(self) -> bool:
        """Whether there are held-out images enough of two classes: else nothing is trained."""
        held = self.data.labels[self.parts[1]]
        return int((held.bincount() >= LEAST_IMAGES).sum()) > 1

    @property
    def most_passes(self) -> int:
        """What it costs at most, in passes forward: if every operation were suspected."""
        if not self.is_testable:
            return 0
        train, held = self.parts
        names = {row.operation.name for row in self.rows}
        further = retraining_config(self.config, len(train), len(names))
        trained = epoch_rows(further, len(train)) * further.epochs
        if isinstance(self.model, str):
            trained += epoch_rows(self.config, len(train)) * self.config.epochs
        asked = len(class_sample(self.data.labels[held], len(self.data.class_names)))
        forward = asked * (len(first_rows(self.rows)) + 2 * len(self.rows) + 2)
        return Passes(training=trained, forward=forward).cost

    def finds_the_same(self, other: ClassProtection) -> bool:
        """Whether another that trains its network too finds what this one does."""
        ours, theirs = (
            (each.model, each.config, each.device, each.rows, each.data.fingerprint)
            for each in (self, other)
        )
        parts = zip(self.parts, other.parts, strict=True)
        return ours == theirs and all(torch.equal(a, b) for a, b in parts)

    def find(self) -> ProtectionRecord:
        """Train what is left to train, and say what may not take part."""
        self._began, names = time.perf_counter(), self.data.class_names
        protection = Protection(untestable=names)
        if self.is_testable:
            device, held = self.device, self.parts[1]
            images, labels = self.data.images[held].to(device), self.data.labels[held]
            plain, seed = self._plain_network(), self.config.seed
            self.show(LOOKING)
            protection = find_changed(
                plain, images, labels, names, self.rows, self._retrain, seed, self._before_row
            )
        changed, untestable = protection.to_json(), list(protection.untestable)
        return ProtectionRecord(
            changed, untestable, len(names), self._seconds_now, self.passes.cost
        )

    def _before_row(self, images: int) -> None:
        self.before_step()
        self.passes = self.passes.plus(forward=images)

    def _plain_network(self) -> nn.Module:
        """The network that knows no operation."""
        if not isinstance(self.model, str):
            return self.model
        images, classes = self._trained_on[0], len(self.data.class_names)
        self._plain = load_model(self.model, images, classes, self.config.seed).to(self.device)
        if kept := part_of(self._loaded, "plain."):
            with checks_state(self._run):
                self._plain.load_state_dict(kept)
            self._count(self.config)
        else:
            self._train(self._plain, None, self.config)
        return self._plain

    def _retrain(self, policy: Policy) -> nn.Module:
        """A copy of the network after some more training with suspected operations."""
        assert self._plain is not None or not isinstance(self.model, str)
        images, operations = len(self.parts[0]), len(policy.table.operations) - 1
        model = copy_model(self._plain or self.model)  # type: ignore[arg-type]  # one is a network
        return self._train(model, policy, retraining_config(self.config, images, operations))

    def _train(self, model: nn.Module, policy: Policy | None, config: TrainConfig) -> nn.Module:
        batches = ImageBatches(*self._trained_on, policy, config, self.device)
        training = self._training = Training(model, batches, config)
        training.before_step = self.before_step
        if kept := part_of(self._loaded, "training."):
            with checks_state(self._run):
                training.load_state(kept)
        self._loaded = {}
        for record in training:
            self.show(f"{LOOKING}: epoch {record.epoch + 1}/{config.epochs}")
            self.keep()
        self._count(config)
        self._training = None
        return training.model

    @property
    def _trained_on(self) -> tuple[Tensor, Tensor]:
        return self.data.images[self.parts[0]], self.data.labels[self.parts[0]]

    def _count(self, config: TrainConfig) -> None:
        rows = epoch_rows(config, len(self.parts[0]))
        self.passes = self.passes.plus(training=rows * config.epochs)

    # Saving

    @property
    def _seconds_now(self) -> float:
        return self._seconds + time.perf_counter() - self._began

    def state(self) -> dict[str, Tensor]:
        """What it goes on from, after an epoch: the training at work, and what came before it."""
        assert self._training is not None
        state = {f"training.{name}": tensor for name, tensor in self._training.state().items()}
        is_further = self._plain is not None and self._training.model is not self._plain
        if is_further:
            assert self._plain is not None
            state |= {f"plain.{name}": each for name, each in self._plain.state_dict().items()}
        return {**state, "seconds": torch.tensor(self._seconds_now, dtype=torch.float64)}

    def load_state(self, state: Mapping[str, Tensor], run: Run | None = None) -> None:
        """Go on from a state of `run` when `find` is called; RunError if it does not fit."""
        with checks_state(run):
            self._seconds = float(state["seconds"])
        self._loaded, self._run = dict(state), run


def epoch_rows(config: TrainConfig, images: int) -> int:
    """Images that go through a network in an epoch, each draw of one counted."""
    return sum(batch_sizes(images, config.batch, config.copies)) * config.copies


def protection_of(
    search: PolicySearch, before_step: Callable[[], None], *, is_trained: bool = True
) -> ClassProtection:
    """What looks for all that may not take part in a search, nor in what it is compared with.

    Args:
        before_step: As for `ClassProtection`.
        is_trained: Whether the search has trained its network.
    """
    parts = plain_parts(search.splits, len(search.data.class_names))
    # a file of weights may be of a training with any operation
    has_plain = is_trained and search.pretrains and not search.proxy.augment
    has_plain = has_plain and search.weights is None
    return ClassProtection(
        search.data,
        parts,
        search.model if has_plain else search.network_name,
        search.train_config(len(parts[0])),
        search.device,
        rows_to_test(search.data, search.space.table.rows),
        before_step,
    )


def plain_parts(splits: Splits, classes: int) -> tuple[Tensor, Tensor]:
    """The images that the network is trained on, and those that it is asked about."""
    if len(splits.pretrain):
        return splits.pretrain, torch.cat((splits.search, splits.validation))
    count = min(len(splits.search) // 2, MOST_TRAINED * classes)
    return splits.search[:count], torch.cat((splits.search[count:], splits.validation))


def retraining_config(config: TrainConfig, images: int, operations: int) -> TrainConfig:
    """How a network is trained further: for less long and at half the learning rate."""
    least = max(LEAST_RETRAINED, LEAST_PER_OPERATION * operations)
    epochs = max(RETRAINED * config.epochs, min(least / images, MOST_EPOCHS))
    return replace(
        config,
        epochs=math.ceil(epochs),
        lr=config.lr / 2,
        schedule="cosine",
        milestones=(),
        warmup_epochs=0.0,
        seed=config.seed + 1,
    )


def rows_to_test(data: LabelledImages, more: Sequence[Row] = ()) -> list[Row]:
    """These rows, and those of the policies that others are compared with."""
    rows = list(more)
    if data.images.shape[1] in (1, 3):  # others have no contrast and no colour
        space: SpaceName = "imagenet" if is_large(data.images) else "cifar"
        rows += compared_policy("trivialaugment-wide", space=space).table.rows
    return rows
