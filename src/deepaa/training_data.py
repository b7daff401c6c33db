"""What a training run needs of its images, whether they are in memory or read from disk."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.models import build_model, channel_statistics
from deepaa.own_model import is_own, load_model
from deepaa.policy import Policy
from deepaa.sources import LabelledImages
from deepaa.streaming import StreamedBatches, StreamedImages, evaluate_streamed
from deepaa.test_sets import TrainTest, absent_classes
from deepaa.train import Metrics, Training, check_model, evaluate
from deepaa.train_config import TrainConfig

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of the channels."""
SAMPLE = 512
"""Images from which the levels of images on disk are taken."""
FEW = 4
"""Images that are enough for batch norm, and few enough for any network."""
LONG_ENOUGH = 0.5
"""Seconds of a step that say how fast the next ones are."""

_log = logging.getLogger(__name__)


class Material(Protocol):
    """Images to train on and to test on."""

    def facts(self) -> dict[str, Any]:
        """What identifies the images, for the record."""

    def sample(self) -> LabelledImages:
        """Some training images, or all."""

    def training(
        self, model: nn.Module, policy: Policy | None, config: TrainConfig, device: torch.device
    ) -> Training:
        """A training on all training images, on a share of every batch if there are others."""

    def test(self, model: nn.Module) -> Metrics:
        """How the model does on the test images."""


def new_model(
    spec: str, material: Material, seed: int, levels: Normalisation | None = None
) -> nn.Module:
    """A fresh network with as many outputs as there are classes, which can take the images.

    Args:
        levels: Mean and deviation of the channels; None takes those of the training images.
    """
    some = material.sample()
    if levels is None or is_own(spec):
        model = load_model(spec, some, seed)
    else:
        mean, std = levels
        model = build_model(spec, len(some.class_names), mean=mean, std=std, seed=seed)
    outputs = check_model(model, some.images[:1], some.labels)
    if outputs != len(some.class_names):
        raise ValueError(
            f"model {spec!r} has {outputs} outputs, but {some.name} has {len(some.class_names)} "
            "classes"
        )
    return model


class InMemory:
    """Images in memory, augmented on the device or in worker processes."""

    def __init__(self, data: TrainTest, *, workers: int = 0) -> None:
        """See `train_and_test`."""
        self.data, self.workers = data, workers
        self._placed: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def facts(self) -> dict[str, Any]:
        """Names, numbers and checksums."""
        train, test, how = self.data
        return {
            "data": train.name,
            "classes": len(train.class_names),
            "shape": list(train.images.shape[1:]),
            "train_images": len(train.labels),
            "fingerprint": train.fingerprint,
            "test": how,
            "test_images": len(test.labels),
            "test_fingerprint": test.fingerprint,
        }

    def sample(self) -> LabelledImages:
        """All training images."""
        return self.data.train

    def training(
        self, model: nn.Module, policy: Policy | None, config: TrainConfig, device: torch.device
    ) -> Training:
        """See `Training`."""
        images, labels = self.placed(torch.device("cpu") if self.workers else device)
        return Training(
            model, images, labels, policy, config, device, shared=True, workers=self.workers
        )

    def placed(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Training images and labels on a device, one copy for all trainings there."""
        if device not in self._placed:
            train = self.data.train
            self._placed[device] = train.images.to(device), train.labels.to(device)
        return self._placed[device]

    def test(self, model: nn.Module) -> Metrics:
        """On all test images."""
        return evaluate(model, self.data.test.images, self.data.test.labels)


class FromDisk:
    """Images that are decoded anew in every epoch, augmented on the device."""

    def __init__(self, train: StreamedImages, test: StreamedImages, name: str) -> None:
        """Two parts of one folder, on the device of the training."""
        if train.class_names != test.class_names:
            raise ValueError(f"{name}: the test images have other classes than the training images")
        absent = absent_classes(test.class_names, test.labels)
        if absent is not None and distributed.is_main():
            _log.warning("%s: %s", name, absent)
        self.train, self.test_part, self.name = train, test, name
        self._sample: LabelledImages | None = None

    def facts(self) -> dict[str, Any]:
        """Names, numbers and checksums; those of files, not of pixels."""
        size = self.train.size
        return {
            "data": self.name,
            "classes": len(self.train.class_names),
            "shape": [3, size, size],
            "train_images": len(self.train),
            "fingerprint": self.train.fingerprint,
            "test": "the test part of the data set",
            "test_images": len(self.test_part),
            "test_fingerprint": self.test_part.fingerprint,
            "crop": self.train.crop,
        }

    def sample(self) -> LabelledImages:
        """Some images as a test sees them, whatever the policy."""
        if self._sample is None:
            images, labels = self.train.sample(SAMPLE)
            names = self.train.class_names
            self._sample = LabelledImages(images, labels, names, self.name, "")
        return self._sample

    def levels(self) -> Normalisation:
        """Mean and deviation of the channels over the sample, to the digits it can vouch for."""
        mean, std = channel_statistics(self.sample().images)
        return tuple(round(m, 4) for m in mean), tuple(round(s, 4) for s in std)

    def scanned(self) -> dict[str, Any]:
        """What the scans of both parts found, to spare a later run."""
        return {"train": self.train.scanned(), "test": self.test_part.scanned()}

    def training(
        self, model: nn.Module, policy: Policy | None, config: TrainConfig, device: torch.device
    ) -> Training:
        """See `Training.over`."""
        batches = StreamedBatches(self.train, policy, config, shared=True)
        return Training.over(model, batches, config, device, shared=True)

    def test(self, model: nn.Module) -> Metrics:
        """On all test images."""
        return evaluate_streamed(model, self.test_part)


def measured_rate(
    material: InMemory, model: nn.Module, policy: Policy, config: TrainConfig, device: torch.device
) -> float:
    """Images a second of a short training now, not compiled: a long one on CUDA is faster.

    On a CPU a batch of a large network may take minutes, and more memory than there is: a few
    images are tried first, and more of them while they take no time.
    """
    images, labels = material.data.train.images, material.data.train.labels
    short = replace(config, epochs=2, warmup_epochs=0.0, compile=False, lr=0.0)
    steps, whole = 20, config.batch
    if device.type != "cuda":
        steps, whole = 1, min(config.batch, len(labels))
        short = replace(short, batch=min(FEW, whole), copies=1)
    while True:
        count = steps * short.batch
        training = Training(model, images[:count], labels[:count], policy, short, device)
        _, record = training  # the first epoch starts things up
        if short.batch >= whole or record.seconds > LONG_ENOUGH:
            return record.images / record.seconds
        short = replace(short, batch=min(whole, 4 * short.batch))
