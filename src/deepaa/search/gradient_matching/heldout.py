"""The images that decide about layers: none of them, nor of their groups, is in a step."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from deepaa.ops import hash_int


def set_aside(
    count: int, labels: Tensor, seed: int, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`count` random images, or fewer so that every class keeps one; and the rest in order.

    Of groups those are taken that fit whole, and what is not taken of them is not in the rest. If
    they are all the groups there are, images are taken as if there were none.
    """
    generator = torch.Generator().manual_seed(hash_int(seed, 1) % 2**63)
    order = torch.randperm(len(labels), generator=generator)
    if count >= len(order):
        raise ValueError(
            f"{count} held-out images leave none of {len(order)} for the search; "
            "lower heldout or give more images"
        )
    end = len(order)
    if groups is not None and not (fit := _fitting(groups[order].tolist(), count)).all():
        order, end = torch.cat([order[fit], order[~fit]]), int(fit.sum())
    lasts = {label: place for place, label in enumerate(labels[order].tolist())}
    free = torch.ones(len(order), dtype=torch.bool)
    free[list(lasts.values())] = len(lasts) == len(order)  # or each class has one image alone
    taken = free & (free.cumsum(0) <= count)
    taken[end:] = False
    left = ~taken
    if end < len(order):
        left[:end] &= ~free[:end]
    return order[taken], order[left].sort().values


def _fitting(groups: list[int], count: int) -> Tensor:
    """Whether each image is of a group that still fits into `count` images, as they come.

    If none does, the smallest is taken.
    """
    sizes = Counter(groups)
    chosen, room = set(), count
    for group, size in sizes.items():
        if size <= room:
            chosen.add(group)
            room -= size
    chosen = chosen or {min(sizes, key=sizes.__getitem__)}
    return torch.tensor([group in chosen for group in groups])
