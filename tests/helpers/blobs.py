"""A data set whose best augmentation is known: place and colour of blobs tell the class."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepaa import CIFAR
from deepaa.ops.apply import Draw, apply_batch
from deepaa.search import SearchData

SIDE = 16
CENTRES = torch.tensor([[4, 5], [4, 11], [11, 5], [11, 10]])
COLOURS = torch.tensor([[1, 0.6, 0.3], [0.4, 1, 0.5], [0.3, 0.5, 1], [0.9, 0.9, 0.2]])


def blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """uint8 (n, 3, 16, 16) and labels 0..3."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    labels = torch.arange(n) % 4
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    centre = (CENTRES[labels] + 0.4 * normal(n, 2))[:, :, None, None]
    distance = (y - centre[:, 0]) ** 2 + 0.35 * (x - centre[:, 1]) ** 2
    height = 150 + 15 * normal(n, 1, 1)
    blob = (height * torch.exp(-distance / 4))[:, None] * COLOURS[labels][:, :, None, None]
    return (30 + blob + 6 * normal(n, 3, SIDE, SIDE)).clamp(0, 255).to(torch.uint8), labels


class Net(nn.Module):
    """A small net that knows places: no global pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6 * SIDE * SIDE // 4, 4)

    def forward(self, images: Tensor) -> Tensor:
        weight = self.conv.weight
        x = ((images.float() - 60) / 50).to(weight.dtype)
        return self.head(F.avg_pool2d(F.relu(self.conv(x)), 2).flatten(1))


@cache
def trained() -> nn.Module:
    """The net after a few epochs on plain blobs: right more often than not, and not yet sure."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net()
        optimiser = torch.optim.Adam(net.parameters(), 1e-3)
        images, labels = blobs(400, 1)
        for _ in range(3):
            for part in torch.randperm(400).split(50):
                loss = F.cross_entropy(net(images[part]), labels[part])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return net.eval()


def row_of(name: str, magnitude: float | None = None) -> int:
    found = [
        i
        for i, t in enumerate(CIFAR.transformations)
        if t.op == name and (magnitude is None or abs((t.magnitude or 0) - magnitude) < 1e-9)
    ]
    return found[0]


def under(images: Tensor, row: int) -> Tensor:
    """Every image under one transformation."""
    n = len(images)
    return apply_batch(images, Draw(torch.full((n, 1), row), torch.full((n, 1, 2), 0.7)), CIFAR)


@cache
def planted(name: str = "rotate", magnitude: float | None = 30.0) -> SearchData:
    """Validation images are like the others, but under one transformation."""
    validation, answers = blobs(300, 3)
    return SearchData(*blobs(300, 2), under(validation, row_of(name, magnitude)), answers)
