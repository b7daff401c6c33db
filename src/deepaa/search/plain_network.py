"""The protection of classes in a search: the network that is asked, the images, and the record.

The network has to be one that was trained without any operation. That of the search serves where it
was pre-trained so; beside any other, one is trained for this alone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from deepaa.data import LabelledImages, Splits
from deepaa.models import copy_model, is_large, load_model
from deepaa.ops import Row
from deepaa.policy import Policy, SpaceName, compared_policy
from deepaa.runs import RunError, parsed, record_of, short
from deepaa.search.protection import LEAST_IMAGES, Protection, find_changed
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


class ProtectionRecord(NamedTuple):
    """What the protection of classes has found."""

    changed: list[dict[str, Any]]
    """As `Protection.to_json` gives it."""
    untestable: list[str]
    classes: int
    seconds: float

    @property
    def protection(self) -> Protection:
        """What is left out."""
        return Protection.from_json(self.changed, self.untestable)

    @property
    def lines(self) -> list[str]:
        """What a person is told: a line for each class that becomes another, and what is unsure."""
        found = [f"left out: {each.text}" for each in self.protection.changed]
        if not self.untestable:
            return found or ["no operation turns one class into another"]
        shown, more = self.untestable[:SHOWN_CLASSES], len(self.untestable) - SHOWN_CLASSES
        names = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        reason = f"fewer than {LEAST_IMAGES} held-out images, or the network knows too little"
        return [
            *found,
            f"{len(self.untestable)} of {self.classes} classes are not testable for operations "
            f"that turn them into another ({reason}): {names}",
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


def plain_network(
    images: Tensor,
    labels: Tensor,
    model_name: str,
    config: TrainConfig,
    device: torch.device,
    classes: int,
    seed: int,
    before_step: Callable[[], None] = lambda: None,
) -> nn.Module:
    """A network that was trained on images without augmentation."""
    model = load_model(model_name, images, classes, seed)
    return _trained(model, ImageBatches(images, labels, None, config, device), config, before_step)


def _trained(
    model: nn.Module, batches: ImageBatches, config: TrainConfig, before_step: Callable[[], None]
) -> nn.Module:
    training = Training(model, batches, config)
    training.before_step = before_step
    for _ in training:
        pass
    return training.model


def protect_classes(
    search: PolicySearch, before_step: Callable[[], None], *, is_trained: bool = True
) -> ProtectionRecord:
    """What may not take part in a search, nor in any policy that it is compared with.

    Args:
        before_step: Called before each step of a training; what it raises ends the work.
        is_trained: Whether the search has trained its network.
    """
    train, heldout = plain_parts(search.splits, len(search.data.class_names))
    has_plain = is_trained and search.pretrains and not search.proxy.augment
    config = search.train_config(len(train))
    return protected(
        search.data,
        (train, heldout),
        search.model if has_plain else search.network_name,
        config,
        search.device,
        rows_to_test(search.data, search.space.table.rows),
        before_step,
    )


def protected(
    data: LabelledImages,
    parts: tuple[Tensor, Tensor],
    model: nn.Module | str,
    config: TrainConfig,
    device: torch.device,
    rows: list[Row],
    before_step: Callable[[], None] = lambda: None,
) -> ProtectionRecord:
    """What may not take part, by a network that was trained without augmentation.

    Args:
        parts: Indices of the images that it was, or is, trained on, and of those it is asked about.
        model: The network, or the name of one that is trained for this.
        rows: Those that are tested.
        before_step: As for `protect_classes`.
    """
    began, classes, seed = time.perf_counter(), len(data.class_names), config.seed
    train, heldout = parts
    protection = Protection(untestable=data.class_names)
    if int((data.labels[heldout].bincount() >= LEAST_IMAGES).sum()) > 1:
        images, labels = data.images[train], data.labels[train]
        if isinstance(model, str):
            model = plain_network(images, labels, model, config, device, classes, seed, before_step)
        plain = model

        def retrain(policy: Policy) -> nn.Module:
            more = retraining_config(config, len(train), len(policy.table.operations) - 1)
            batches = ImageBatches(images, labels, policy, more, device)
            return _trained(copy_model(plain), batches, more, before_step)

        held = data.images[heldout].to(device), data.labels[heldout]
        protection = find_changed(plain, *held, data.class_names, rows, retrain, seed=seed)
    changed, untestable = protection.to_json(), list(protection.untestable)
    return ProtectionRecord(changed, untestable, classes, time.perf_counter() - began)


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
