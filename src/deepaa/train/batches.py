"""The images of a training and its batches: order, copies, augmentation, the share of a process.

Images come from memory or are decoded from files in every epoch.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from deepaa import distributed
from deepaa.data import (
    INDEX,
    LabelledImages,
    StreamedImages,
    TrainTest,
    absent_classes,
    batch_rows,
    batch_sizes,
    check_shares,
    epoch_order,
    place_among,
)
from deepaa.models import channel_statistics
from deepaa.ops import apply_batch, check_images, sample_keys
from deepaa.policy import Policy
from deepaa.train.config import Normalisation, TrainConfig
from deepaa.train.stream_policy import crop_rows, device_part, fitted

AHEAD_BYTES = 256 << 20
"""So many bytes of images are augmented in one call, in whole batches, and then sliced."""
SAMPLE = 512
"""Images from which mean and deviation of images on disk are taken."""
Batch = tuple[Tensor, Tensor]

_LOGGER = logging.getLogger(__name__)


class Batches(ABC):
    """What a `Training` trains on; all randomness is a function of seed, epoch, image and copy."""

    def __init__(
        self,
        labels: Tensor,
        image_shape: Iterable[int],
        config: TrainConfig,
        device: torch.device,
        *,
        shared: bool,
    ) -> None:
        """Plan the steps of an epoch, and this process's share of each if they are `shared`."""
        self.device = device
        """Where the batches are, and the network with them."""
        self.labels, self.image_shape = labels, tuple(image_shape)
        """(N,) of all images; (C, H, W), as the network sees them."""
        self.config = config
        self.rank, self.world = place_among(shared)
        self.shared = self.world > 1
        """Whether other processes train the rest of every batch."""
        self.sizes = batch_sizes(len(labels), config.batch)
        """Images of each step of an epoch, over all processes, not counting copies."""
        check_shares(self.sizes, config.copies, self.world)

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """The augmented images (N, C, H, W) and labels (N,) of each step, on the device."""


class ImageBatches(Batches):
    """Batches of images in memory."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        policy: Policy | None,
        config: TrainConfig,
        device: torch.device | str = "cpu",
        *,
        shared: bool = False,
        workers: int = 0,
    ) -> None:
        """Move the images to the device, unless worker processes augment them.

        Args:
            images: uint8 (N, C, H, W).
            labels: int64 (N,).
            policy: Draws an augmentation for each image and epoch; None for none.
            shared: Give this process's share of every batch.
            workers: Processes that augment on the CPU; 0 augments on the device.
        """
        check_data(images, labels)
        device = torch.device(device)
        place = torch.device("cpu") if workers else device
        super().__init__(labels.to(place), images.shape[1:], config, device, shared=shared)
        self.images, self.policy, self.workers = images.to(place), policy, workers

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch, every image once, in an order of its own."""
        config = self.config
        order = epoch_order(len(self.images), config.batch, config.seed, number)
        parts = torch.split(order, config.batch)
        batches = [batch_rows(some, config.copies, self.rank, self.world) for some in parts]
        if self.workers:
            return self._from_workers(batches, number)
        return self._ahead(batches, number)

    def load(self, rows: Tensor, epoch: int) -> Batch:
        """The augmented images and labels of `rows`, where the images are."""
        indices = rows & INDEX
        images, labels = self.images[indices], self.labels[indices]
        if self.policy is not None:
            draw = self.policy.draw(sample_keys(self.config.seed, epoch, rows), epoch)
            images = apply_batch(images, draw, self.policy.table)
        return images, labels

    def _ahead(self, batches: list[Tensor], epoch: int) -> Iterator[Batch]:
        """Several batches are augmented in one call."""
        bytes_of_one = self.config.batch * self.config.copies * self.images[0].numel()
        ahead = max(1, AHEAD_BYTES // bytes_of_one)
        for first in range(0, len(batches), ahead):
            some = batches[first : first + ahead]
            images, labels = self.load(torch.cat(some).to(self.images.device), epoch)
            at = 0
            for part in some:
                yield images[at : at + len(part)], labels[at : at + len(part)]
                at += len(part)

    def _from_workers(self, batches: list[Tensor], epoch: int) -> Iterator[Batch]:
        loader: DataLoader[Batch] = DataLoader(
            batches,  # type: ignore[arg-type] # any sequence will do
            batch_size=None,
            collate_fn=partial(self.load, epoch=epoch),
            num_workers=self.workers,
            generator=torch.Generator(),  # it seeds workers, which need none; the global one stays
        )
        for images, labels in loader:
            yield images.to(self.device), labels.to(self.device)


class StreamedBatches(Batches):
    """Batches of image files: decoded by workers in every epoch, augmented on the device."""

    def __init__(
        self,
        images: StreamedImages,
        policy: Policy | None,
        config: TrainConfig,
        *,
        shared: bool = False,
    ) -> None:
        """Plan the epochs; order and crops follow the seed of `config`.

        Args:
            images: Training images on the device of the training.
            policy: Its default crop of ImageNet is left out where the images were cut at random.
            shared: Give this process's share of every batch.
        """
        if not images.train:
            raise ValueError("these images are for evaluation; training needs train=True")
        shape = 3, images.size, images.size
        super().__init__(images.labels, shape, config, images.device, shared=shared)
        self.images, self.policy = images, device_part(policy, images.crop)
        self._crops: Tensor | None = None
        if self.policy is not None and images.side != images.size:
            self._crops = crop_rows(self.policy.table, images.device)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The augmented images and labels of each step."""
        config, policy, size = self.config, self.policy, self.images.size
        share = {"rank": self.rank, "world": self.world}
        for images, labels, rows in self.images.batches(
            number, config.batch, config.copies, seed=config.seed, **share
        ):
            if policy is None:
                yield fitted(images, size), labels
                continue
            draw = policy.draw(sample_keys(config.seed, number, rows), number)
            changed = apply_batch(images, draw, policy.table)
            boxes = None if self._crops is None else self._crops[draw.choice].any(1)
            yield fitted(changed, size, boxes), labels


def check_data(images: Tensor, labels: Tensor) -> None:
    """Refuse what are no images with labels."""
    check_images(images)
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels should be int64 ({len(images)},), got {labels.dtype} {tuple(labels.shape)}"
        )


# Images to train on and to test on


class ImagesInMemory:
    """Images in memory, augmented on the device or in worker processes."""

    def __init__(self, data: TrainTest, *, workers: int = 0) -> None:
        """See `DataSpec.load_train_and_test`, and `ImageBatches` for the workers."""
        self.data, self.workers = data, workers
        self.sample = data.train
        """Some training images: all."""
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def facts(self) -> dict[str, Any]:
        """Names, numbers and checksums of the images, for the record."""
        train, test, how = self.data
        return _facts(train.name, train.images.shape[1:], train, test, how)

    def scan_record(self) -> dict[str, Any]:
        """Nothing: these images are not decoded again."""
        return {}

    def batches(self, policy: Policy | None, config: TrainConfig, device: torch.device) -> Batches:
        """All training images in batches; trainings on one device share one copy of them."""
        place = torch.device("cpu") if self.workers else device
        if place not in self._copies:
            train = self.data.train
            self._copies[place] = train.images.to(place), train.labels.to(place)
        copy, workers = self._copies[place], self.workers
        return ImageBatches(*copy, policy, config, device, shared=True, workers=workers)


class ImagesOnDisk:
    """Images that are decoded from their files in every epoch and augmented on the device."""

    def __init__(self, train: StreamedImages, test: StreamedImages, name: str) -> None:
        """Take two parts of one folder, on the device of the training."""
        if train.class_names != test.class_names:
            raise ValueError(f"{name}: the test images have other classes than the training images")
        absent = absent_classes(test.class_names, test.labels)
        if absent is not None and distributed.is_main():
            _LOGGER.warning("%s: %s", name, absent)
        self.train_part, self.test_part, self.name = train, test, name

    def facts(self) -> dict[str, Any]:
        """Names, numbers and checksums of the files, for the record."""
        train, how = self.train_part, "the test part of the data set"
        shape = 3, train.size, train.size
        return {**_facts(self.name, shape, train, self.test_part, how), "crop": train.crop}

    @cached_property
    def sample(self) -> LabelledImages:
        """Some training images as a test sees them, whatever the policy."""
        names = self.train_part.class_names
        return LabelledImages(*self.train_part.sample(SAMPLE), names, self.name, "")

    def normalisation(self) -> Normalisation:
        """Mean and deviation of the channels of the sample, rounded to what it can tell."""
        mean, std = channel_statistics(self.sample.images)
        return tuple(round(m, 4) for m in mean), tuple(round(s, 4) for s in std)

    def scan_record(self) -> dict[str, Any]:
        """What the scans of both parts found, so that a later call need not repeat them."""
        return {"train": self.train_part.scanned(), "test": self.test_part.scanned()}

    def batches(self, policy: Policy | None, config: TrainConfig, device: torch.device) -> Batches:
        """All training images in batches, on the device that they were made for."""
        return StreamedBatches(self.train_part, policy, config, shared=True)


def _facts(
    name: str,
    shape: Iterable[int],
    train: LabelledImages | StreamedImages,
    test: LabelledImages | StreamedImages,
    how: str,
) -> dict[str, Any]:
    return {
        "data": name,
        "classes": len(train.class_names),
        "shape": list(shape),
        "train_images": len(train.labels),
        "fingerprint": train.fingerprint,
        "test": how,
        "test_images": len(test.labels),
        "test_fingerprint": test.fingerprint,
    }
