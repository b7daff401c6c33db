"""The images of a training and its batches: order, copies, augmentation, the share of a process.

Images come from memory or are decoded from files in every epoch.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from deepaa import distributed
from deepaa.data import (
    HOLDOUT,
    INDEX,
    Crop,
    DataSpec,
    DecodingRate,
    LabelledImages,
    NoTestPartError,
    StreamedImages,
    TrainTest,
    absent_classes,
    batch_rows,
    batch_sizes,
    epoch_order,
    source_name,
)
from deepaa.distributed import run_on_main
from deepaa.models import SMALL_SIDE
from deepaa.ops import apply_batch, check_images, sample_keys
from deepaa.policy import Policy, SpaceName, default_policy
from deepaa.train.config import TrainConfig
from deepaa.train.stream_policy import crop_rows, device_part, fitted

AHEAD_BYTES = 256 << 20
"""So many bytes of images are augmented in one call, in whole batches, and then sliced."""
SAMPLE = 512
"""Images from which mean and deviation of images on disk are taken."""
Batch = tuple[Tensor, Tensor]

_LOGGER = logging.getLogger(__name__)


def space_of(shape: Sequence[int]) -> SpaceName:
    """Whose ranges and defaults images of this shape (C, H, W) get."""
    return "imagenet" if max(shape[1:]) > SMALL_SIDE else "cifar"


def ended_policy(policy: Policy | None, config: TrainConfig, shape: Sequence[int]) -> Policy | None:
    """The policy that a training with these settings draws from; None stays no augmentation.

    In the last `end_epochs` images get the crop and the flip of the default augmentation for their
    shape (C, H, W), without its cutout; of the two only what the policy has as well. It may have no
    flip because that makes another class of an image, and then the ending has none.
    """
    if policy is None or not config.end_epochs:
        return policy
    uses = [policy.expected_uses(phase.epoch) for phase in policy.phases]
    names = {name for found in uses for name, count in found.items() if count > 0}
    weak = default_policy(space_of(shape), cutout=False)
    weak = weak.without(lambda row: row.operation.name not in names)
    return policy.ending(weak, config.epochs - config.end_epochs)


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
        """Labels (N,) of all images, and the shape (C, H, W) in which the network sees them."""
        self.config = config
        self.rank, self.world = (distributed.rank(), distributed.world_size()) if shared else (0, 1)
        self.shared = self.world > 1
        """Whether other processes train the rest of every batch."""
        self.sizes = batch_sizes(len(labels), config.batch, config.copies, self.world)
        """Images of each step of an epoch, over all processes, not counting copies."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """The augmented images (N, C, H, W) and labels (N,) of each step, on the device."""

    def decoding_rate(self) -> DecodingRate | None:
        """How fast files are decoded in this epoch, by all processes; None for images in memory."""
        return None


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
        self.images, self.workers = images.to(place), workers
        self.policy = ended_policy(policy, config, self.image_shape)

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
            sizes = [len(rows) for rows in some]
            images, labels = self.load(torch.cat(some).to(self.images.device), epoch)
            yield from zip(torch.split(images, sizes), torch.split(labels, sizes), strict=True)

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
        self.images = images
        self.policy = device_part(ended_policy(policy, config, shape), images.crop)
        self._crops: Tensor | None = None
        if self.policy is not None and images.side != images.size:
            self._crops = crop_rows(self.policy.table, images.device)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The augmented images and labels of each step."""
        config, policy, boxes = self.config, self.policy, None
        share = {"seed": config.seed, "rank": self.rank, "world": self.world}
        for images, labels, rows in self.images.batches(
            number, config.batch, config.copies, **share
        ):
            if policy is not None:
                draw = policy.draw(sample_keys(config.seed, number, rows), number)
                images = apply_batch(images, draw, policy.table)
                boxes = None if self._crops is None else self._crops[draw.choice].any(1)
            yield fitted(images, self.images.size, boxes), labels

    def decoding_rate(self) -> DecodingRate | None:
        """Of this process, times the number of processes, which have equal shares."""
        rate = self.images.decoding_rate()
        return rate and rate._replace(
            images=rate.images * self.world, per_second=rate.per_second * self.world
        )


def check_data(images: Tensor, labels: Tensor) -> None:
    """Refuse what are no images with labels."""
    check_images(images)
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels should be int64 ({len(images)},), got {labels.dtype} {tuple(labels.shape)}"
        )


@dataclass(frozen=True, eq=False)
class ExperimentImages:
    """Images to train on and to test on: in memory, or decoded from their files in every epoch."""

    train: LabelledImages | StreamedImages
    test: LabelledImages | StreamedImages
    how: str
    """Where the test images come from, for the record."""
    name: str
    """What the images are called in records."""
    workers: int = 0
    """Processes that augment images in memory, see `ImageBatches`."""
    _copies: dict[torch.device, Batch] = field(default_factory=dict, init=False)

    @cached_property
    def sample(self) -> LabelledImages:
        """All training images in memory; of those on disk some, as a test sees them."""
        if isinstance(self.train, LabelledImages):
            return self.train
        return LabelledImages(*self.train.sample(SAMPLE), self.train.class_names, self.name, "")

    def facts(self) -> dict[str, Any]:
        """Names, numbers and checksums of the images, for the record."""
        return {
            "data": self.name,
            "classes": len(self.train.class_names),
            "shape": list(self.sample.images.shape[1:]),
            "train_images": len(self.train.labels),
            "fingerprint": self.train.fingerprint,
            "test": self.how,
            "test_images": len(self.test.labels),
            "test_fingerprint": self.test.fingerprint,
            **self._streamed_facts(),
        }

    def _streamed_facts(self) -> dict[str, str]:
        """How files become images, where that is done in every epoch."""
        if not isinstance(self.train, StreamedImages):
            return {}
        found: dict[str, str] = {"crop": self.train.crop}
        return found if self.train.decoder == "pillow" else {**found, "decoder": self.train.decoder}

    def scan_record(self) -> dict[str, Any]:
        """What the scans of files found, so that a later call need not repeat them."""
        parts = {"train": self.train, "test": self.test}
        return {k: part.scanned() for k, part in parts.items() if isinstance(part, StreamedImages)}

    def batches(self, policy: Policy | None, config: TrainConfig, device: torch.device) -> Batches:
        """All training images in batches; trainings on one device share one copy of them."""
        if isinstance(self.train, StreamedImages):
            return StreamedBatches(self.train, policy, config, shared=True)
        place = torch.device("cpu") if self.workers else device
        if place not in self._copies:
            self._copies[place] = self.train.images.to(place), self.train.labels.to(place)
        copy, workers = self._copies[place], self.workers
        return ImageBatches(*copy, policy, config, device, shared=True, workers=workers)


def images_in_memory(
    spec: DataSpec, test: str | None, holdout: float | None, *, download: bool, workers: int
) -> ExperimentImages:
    """All images, read; one process downloads them, the others find them."""

    def load() -> TrainTest:
        try:
            return spec.load_train_and_test(test=test, holdout=holdout, download=download)
        except MemoryError as error:
            raise MemoryError(f"{error}; or read them from disk with --stream") from error

    data = (run_on_main(load) if download else None) or load()
    return ExperimentImages(*data, data.train.name, workers)


def stream_images(
    spec: DataSpec, crop: Crop, known: Mapping[str, Any], **options: Any
) -> ExperimentImages:
    """The files of a source, which are decoded in every epoch.

    Args:
        spec: With the source and a size.
        known: What `ExperimentImages.scan_record` said of these files before.
        options: Device, workers and scan, see `StreamedImages`.
    """
    assert spec.data is not None
    assert spec.size is not None
    options |= {"on_bad_image": spec.on_bad_image, "outside_links": spec.outside_links}
    options |= {"columns": spec.columns}
    folder = partial(StreamedImages, spec.data, spec.size, reading=spec.reading, **options)
    try:  # before the training images, of which there may be a million to look at
        test, name = folder(train=False, known=known.get("test")), source_name(spec.data)
    except NoTestPartError as error:
        advice = f"without --stream, {HOLDOUT:g} of the training images are held out for it"
        raise NoTestPartError(f"{error}; --stream needs one: {advice}") from error
    train = folder(train=True, crop=crop, known=known.get("train"))
    if train.class_names != test.class_names:
        raise ValueError(f"{name}: the test images have other classes than the training images")
    absent = absent_classes(test.class_names, test.labels)
    if absent is not None and distributed.is_main():
        _LOGGER.warning("%s: %s", name, absent)
    return ExperimentImages(train, test, "the test part of the data set", name)
