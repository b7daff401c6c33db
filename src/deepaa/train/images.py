"""The images of an experiment: in memory, or decoded from their files in every epoch."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.data import LabelledImages, StreamedImages, TrainTest, absent_classes
from deepaa.models import build_model, channel_statistics, is_custom, load_model
from deepaa.policy import Policy
from deepaa.train.batches import Batches, ImageBatches, StreamedBatches
from deepaa.train.config import TrainConfig
from deepaa.train.evaluation import Metrics, check_model, evaluate, evaluate_streamed
from deepaa.train.recipes import Normalisation

SAMPLE = 512
"""Images from which mean and deviation of images on disk are taken."""
NAMES = ("data", "test")
"""Facts that only say what images are called."""

_log = logging.getLogger(__name__)


class ExperimentImages(Protocol):
    """Images to train on and to test on."""

    def facts(self) -> dict[str, Any]:
        """Names, numbers and checksums of the images, for the record."""

    def sample(self) -> LabelledImages:
        """Some training images, or all."""

    def batches(self, policy: Policy | None, config: TrainConfig, device: torch.device) -> Batches:
        """All training images in batches; of each a share, where several processes train."""

    def test(self, model: nn.Module) -> Metrics:
        """Loss and accuracy of a model on the test images."""


class ImagesInMemory:
    """Images in memory, augmented on the device or in worker processes."""

    def __init__(self, data: TrainTest, *, workers: int = 0) -> None:
        """See `DataSpec.load_train_and_test`, and `ImageBatches` for the workers."""
        self.data, self.workers = data, workers
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def facts(self) -> dict[str, Any]:
        """Names, numbers and checksums of the images, for the record."""
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

    def batches(
        self, policy: Policy | None, config: TrainConfig, device: torch.device
    ) -> ImageBatches:
        """All training images in batches; trainings on one device share one copy of them."""
        place = torch.device("cpu") if self.workers else device
        if place not in self._copies:
            train = self.data.train
            self._copies[place] = train.images.to(place), train.labels.to(place)
        return ImageBatches(
            *self._copies[place], policy, config, device, shared=True, workers=self.workers
        )

    def test(self, model: nn.Module) -> Metrics:
        """Loss and accuracy of a model on the test images."""
        return evaluate(model, self.data.test.images, self.data.test.labels)


class ImagesOnDisk:
    """Images that are decoded from their files in every epoch and augmented on the device."""

    def __init__(self, train: StreamedImages, test: StreamedImages, name: str) -> None:
        """Take two parts of one folder, on the device of the training."""
        if train.class_names != test.class_names:
            raise ValueError(f"{name}: the test images have other classes than the training images")
        absent = absent_classes(test.class_names, test.labels)
        if absent is not None and distributed.is_main():
            _log.warning("%s: %s", name, absent)
        self.train_part, self.test_part, self.name = train, test, name
        self._sample: LabelledImages | None = None

    def facts(self) -> dict[str, Any]:
        """Names, numbers and checksums of the files, for the record."""
        size = self.train_part.size
        return {
            "data": self.name,
            "classes": len(self.train_part.class_names),
            "shape": [3, size, size],
            "train_images": len(self.train_part),
            "fingerprint": self.train_part.fingerprint,
            "test": "the test part of the data set",
            "test_images": len(self.test_part),
            "test_fingerprint": self.test_part.fingerprint,
            "crop": self.train_part.crop,
        }

    def sample(self) -> LabelledImages:
        """Some training images as a test sees them, whatever the policy."""
        if self._sample is None:
            images, labels = self.train_part.sample(SAMPLE)
            names = self.train_part.class_names
            self._sample = LabelledImages(images, labels, names, self.name, "")
        return self._sample

    def normalisation(self) -> Normalisation:
        """Mean and deviation of the channels of the sample, rounded to what it can tell."""
        mean, std = channel_statistics(self.sample().images)
        return tuple(round(m, 4) for m in mean), tuple(round(s, 4) for s in std)

    def scan_record(self) -> dict[str, Any]:
        """What the scans of both parts found, so that a later call need not repeat them."""
        return {"train": self.train_part.scanned(), "test": self.test_part.scanned()}

    def batches(
        self, policy: Policy | None, config: TrainConfig, device: torch.device
    ) -> StreamedBatches:
        """All training images in batches, on the device that they were made for."""
        return StreamedBatches(self.train_part, policy, config, shared=True)

    def test(self, model: nn.Module) -> Metrics:
        """Loss and accuracy of a model on the test images."""
        return evaluate_streamed(model, self.test_part)


def new_model(
    spec: str, images: ExperimentImages, seed: int, normalisation: Normalisation | None = None
) -> nn.Module:
    """A fresh network with as many outputs as there are classes, which can take the images.

    Args:
        normalisation: Mean and deviation of the channels; None takes those of the training images.
    """
    some = images.sample()
    if normalisation is None or is_custom(spec):
        model = load_model(spec, some.images, len(some.class_names), seed)
    else:
        mean, std = normalisation
        model = build_model(spec, len(some.class_names), mean=mean, std=std, seed=seed)
    outputs = check_model(model, some.images[:1], some.labels)
    if outputs != len(some.class_names):
        raise ValueError(
            f"model {spec!r} has {outputs} outputs, but {some.name} has {len(some.class_names)} "
            "classes"
        )
    return model
