"""The batches of a training: order, copies, augmentation, and the share of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from deepaa import distributed
from deepaa.keys import hash_int, sample_keys
from deepaa.ops import apply_batch
from deepaa.policy import Policy
from deepaa.train_config import TrainConfig

AHEAD_BYTES = 256 << 20
"""So many bytes of images are augmented in one call, in whole batches, and then sliced."""
COPY_SHIFT = 40
"""Copy c of image i has the key of image i + c * 2^40: no two images or copies share one."""
INDEX = (1 << COPY_SHIFT) - 1
"""The bits of a row that are the image's index."""

Batch = tuple[Tensor, Tensor]


class Batches(Protocol):
    """What a training trains on."""

    sizes: list[int]
    """Images of each step of an epoch, over all processes, not counting copies."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The augmented images (N, C, H, W) and labels (N,) of each step, on the device."""


def batch_sizes(count: int, batch: int) -> list[int]:
    """The sizes of an epoch's batches: whole ones, and a last one of at least half a batch.

    Batch norm over a few images would only add noise; fewer images than a batch are one batch.
    """
    whole, rest = divmod(count, batch)
    return [batch] * whole + [rest] * (rest >= batch / 2 or whole == 0)


def epoch_order(count: int, batch: int, seed: int, epoch: int) -> Tensor:
    """The images of an epoch in the order in which they are trained on, wherever they lie."""
    generator = torch.Generator().manual_seed(hash_int(seed, epoch))
    return torch.randperm(count, generator=generator)[: sum(batch_sizes(count, batch))]


def place_among(shared: bool) -> tuple[int, int]:
    """This process and the number of those that share a batch."""
    return (distributed.rank(), distributed.world_size()) if shared else (0, 1)


def check_shares(sizes: Sequence[int], copies: int, world: int) -> None:
    """Refuse batches of which a process would get nothing."""
    if min(sizes) * copies < world:
        raise ValueError(f"{min(sizes)} images in a batch are too few for {world} processes")


def batch_rows(images: Tensor, copies: int, rank: int = 0, world: int = 1) -> Tensor:
    """Index and copy of each row as one number; all images of a copy, then those of the next.

    Processes take neighbouring rows, so as many processes as copies see every image once each.

    Args:
        images: Indices of the images of a batch.
        rank: The process whose share it is.
        world: Processes in all.
    """
    numbers = torch.arange(copies).repeat_interleave(len(images))
    rows = images.repeat(copies) + (numbers << COPY_SHIFT)
    own = distributed.share(len(rows), rank, world)
    return rows[own.start : own.stop]


class ImageBatches:
    """Batches of images in memory; all randomness is a function of seed, epoch, image and copy."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        policy: Policy | None,
        config: TrainConfig,
        device: torch.device,
        *,
        shared: bool = False,
        workers: int = 0,
    ) -> None:
        """Move the images to the device, unless worker processes augment them.

        Args:
            shared: Give this process's share of every batch.
            workers: Processes that augment on the CPU; 0 augments on the device.
        """
        place = torch.device("cpu") if workers else device
        self.images, self.labels = images.to(place), labels.to(place)
        self.policy, self.config, self.device = policy, config, device
        self.workers, self.shared = workers, shared
        self.sizes = batch_sizes(len(images), config.batch)
        check_shares(self.sizes, config.copies, place_among(shared)[1])

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch, every image once, in an order of its own."""
        config = self.config
        order = epoch_order(len(self.images), config.batch, config.seed, number)
        place = place_among(self.shared)
        parts = torch.split(order, config.batch)
        batches = [batch_rows(some, config.copies, *place) for some in parts]
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
