"""Which images a batch of an epoch has: order, copies, and the share of each process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepaa import distributed
from deepaa.ops import hash_int

COPY_SHIFT = 40
"""Copy c of image i has the key of image i + c * 2^40: no two images or copies share one."""
INDEX = (1 << COPY_SHIFT) - 1
"""The bits of a row that are the image's index."""


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
