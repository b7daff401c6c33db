"""Slow, obvious versions of what the product does fast."""

from __future__ import annotations

import torch
from torch import Tensor

from deepaa.ops.apply import Draw, apply_pil
from deepaa.ops.conversions import pil_to_tensor, tensor_to_pil
from deepaa.ops.space import Space, Table


def pil_batch(images: Tensor, draw: Draw, table: Table | Space) -> Tensor:
    """Each image by itself through Pillow."""
    done = [
        pil_to_tensor(apply_pil(tensor_to_pil(image), draw[i : i + 1], table))
        for i, image in enumerate(images.cpu())
    ]
    return torch.stack(done) if done else images.cpu().clone()


def random_uniform(*shape: int) -> Tensor:
    """Numbers as a policy draws them: multiples of 2^-24 in [0, 1), the two ends among them."""
    words = torch.randint(0, 2**24, shape)
    ends = torch.rand(shape)
    words[ends < 0.05] = 0
    words[ends > 0.95] = 2**24 - 1
    return words.float() * 2.0**-24


def every_row(space: Space | Table, repeats: int = 1) -> Draw:
    """A draw whose image i takes row i: one batch covers every transformation."""
    table = space.table if isinstance(space, Space) else space
    choice = torch.arange(len(table)).repeat(repeats)[:, None]
    return Draw(choice, random_uniform(len(choice), 1, table.uniforms))
