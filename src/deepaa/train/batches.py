"""The batches of a training: order, copies, augmentation, and the share of one process.

Images come from memory (`ImageBatches`) or are decoded from files in every epoch
(`StreamedBatches`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from deepaa import distributed
from deepaa.data import INDEX, StreamedImages, batch_rows, batch_sizes, epoch_order
from deepaa.ops import apply_batch, sample_keys
from deepaa.policy import Policy
from deepaa.train.config import TrainConfig
from deepaa.train.evaluation import check_data
from deepaa.train.stream_policy import crop_rows, device_part, fitted

AHEAD_BYTES = 256 << 20
"""So many bytes of images are augmented in one call, in whole batches, and then sliced."""
Batch = tuple[Tensor, Tensor]


class Batches(Protocol):
    """What a `Training` trains on."""

    device: torch.device
    """Where the batches are, and the network with them."""
    shared: bool
    """Whether other processes train the rest of every batch."""
    sizes: list[int]
    """Images of each step of an epoch, over all processes, not counting copies."""
    image_shape: tuple[int, ...]
    """(C, H, W), as the network sees them."""
    labels: Tensor
    """(N,) of all images."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The augmented images (N, C, H, W) and labels (N,) of each step, on the device."""


class ImageBatches:
    """Batches of images in memory; all randomness is a function of seed, epoch, image and copy."""

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
        self.device = torch.device(device)
        place = torch.device("cpu") if workers else self.device
        self.images, self.labels = images.to(place), labels.to(place)
        self.image_shape = tuple(images.shape[1:])
        self.policy, self.config, self.workers = policy, config, workers
        self.rank, self.world = (distributed.rank(), distributed.world_size()) if shared else (0, 1)
        self.shared = self.world > 1
        self.sizes = batch_sizes(len(images), config.batch, config.copies, self.world)

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
        loader = DataLoader(
            _Numbered(self, batches, epoch),
            batch_size=None,
            num_workers=self.workers,
            generator=torch.Generator(),  # it seeds workers, which need none; the global one stays
        )
        for images, labels in loader:
            yield images.to(self.device), labels.to(self.device)


class _Numbered(Dataset[Batch]):
    """The batches of one epoch by their number, for a DataLoader."""

    def __init__(self, source: ImageBatches, batches: list[Tensor], epoch: int) -> None:
        self.source, self.batches, self.epoch = source, batches, epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Batch:
        return self.source.load(self.batches[number], self.epoch)


class StreamedBatches:
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
        self.images, self.config = images, config
        self.device, self.labels = images.device, images.labels
        self.image_shape: tuple[int, ...] = (3, images.size, images.size)
        self.rank, self.world = (distributed.rank(), distributed.world_size()) if shared else (0, 1)
        self.shared = self.world > 1
        self.policy = device_part(policy, images.crop)
        """What the device does."""
        self._crops: Tensor | None = None
        if self.policy is not None and images.side != images.size:
            self._crops = crop_rows(self.policy.table, images.device)
        self.sizes = batch_sizes(len(images), config.batch, config.copies, self.world)

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
