"""Dual numbers against torch's forward mode, and the replayed graph against direct calls."""

from __future__ import annotations

import pytest
import torch
from blobs import blobs
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa.models import build_model, frozen_copy
from deepaa.ops.space import CIFAR
from deepaa.policy.policy import Policy
from deepaa.search.gradient_matching import forward_mode
from deepaa.search.gradient_matching.check_model import check_model, checked_trace
from deepaa.search.gradient_matching.config import SearchConfig
from deepaa.search.gradient_matching.gradients import Derivatives, trainable
from deepaa.search.gradient_matching.graphs import GradientMatcher
from deepaa.search.gradient_matching.minibatch import Minibatch
from deepaa.search.gradient_matching.rewards import layer_inputs


class Odd(nn.Module):
    """Weights outside of layers, a list of tensors, in-place work, a shape, a grouped layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.norm = nn.GroupNorm(2, 16)
        self.gain = nn.Parameter(torch.full((16, 1, 1), 0.7))
        self.frozen = nn.Conv2d(16, 6, 1).requires_grad_(False)
        self.out = nn.Linear(6, 4)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.first(x.to(self.gain.dtype) / 255), inplace=True)
        both = torch.cat([x, self.grouped(x)], 1)
        a, b = (self.norm(both) * self.gain).chunk(2, 1)
        a += b
        x = self.pool(self.frozen(torch.cat([a, b], 1)))
        return self.out(x.view(x.shape[0], 6, -1).mean(2))


def products_both_ways(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    params = trainable(model)
    generator = torch.Generator().manual_seed(1)
    direction = {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype) * 0.1
        for name, p in params.items()
    }
    nodes = forward_mode.trace(model)
    assert nodes is not None
    return (
        Derivatives(model).loss_jvp(images, labels, direction),
        Derivatives(model, nodes=nodes).loss_jvp(images, labels, direction),
    )


@pytest.mark.parametrize("name", ["small", "wrn-40-2", "odd", "resnet18", "timm:densenet121"])
def test_dual_numbers_give_the_products_of_forward_mode(name: str) -> None:
    if name == "odd":
        model: nn.Module = Odd().eval().double()
    else:
        library = "timm" if name.startswith("timm") else "torchvision"
        if name in ("resnet18", "timm:densenet121"):
            pytest.importorskip(library)
        model = frozen_copy(build_model(name, 4, seed=2)).double()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    expected, found = products_both_ways(model, images, torch.tensor([0, 3, 1]))
    assert expected.norm() > 0
    assert (found - expected).norm() < 1e-10 * expected.norm()


def test_a_network_that_cannot_be_traced_keeps_torchs_forward_mode() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))

        def forward(self, x: Tensor) -> Tensor:
            x = x.float()
            return self.inner(x) if x.sum() > 0 else -self.inner(x)

    images, labels = torch.ones(2, 3, 4, 4), torch.tensor([0, 1])
    model = Branches().eval()
    assert checked_trace(model, images, labels) is None
    check_model(model, images, labels)
    assert checked_trace(frozen_copy(build_model("small", 2)), images, labels) is not None


@pytest.mark.slow
def test_compiled_dual_numbers() -> None:
    """Compiled once for any number of images."""
    model = nn.Sequential(
        build_model("small", 4, seed=2)[0],
        nn.Conv2d(3, 8, 3, 2),
        nn.MaxPool2d(3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()
    params = trainable(model)
    direction = {name: torch.full_like(p, 0.01) for name, p in params.items()}
    compiled = Derivatives(model, nodes=forward_mode.trace(model), compiled=True)
    torch._dynamo.reset()
    graphs = []
    for n in (17, 40, 139):
        images, labels = blobs(n, 1)
        expected = Derivatives(model).loss_jvp(images, labels, direction)
        found = compiled.loss_jvp(images, labels, direction)
        assert (found - expected).norm() < 1e-4 * expected.norm()
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] == graphs[2] > 0


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize("prefixes", [0, 2])
def test_the_captured_graph_gives_what_direct_calls_give(prefixes: int) -> None:
    model = frozen_copy(build_model("small", 4, seed=2)).cuda()
    images, labels = (part.cuda() for part in blobs(12, 1))
    config = SearchConfig(prefixes=2, chains=24)
    nodes = checked_trace(model, images[:4], labels[:4])
    assert nodes is not None
    fast = Derivatives(model, compiled=True, nodes=nodes, chunk=512)
    captured = GradientMatcher(fast, normalise=True)
    plain = GradientMatcher(Derivatives(model, chunk=512), normalise=True)
    prefix, p = Policy.uniform(CIFAR, prefixes), torch.rand(139, dtype=torch.float64).softmax(0)
    for turn in range(3):
        part = slice(6 * (turn % 2), 6 * (turn % 2) + 6)
        originals = images[None].repeat(6, 1, 1, 1, 1), labels[None].repeat(6, 1)
        minibatch = Minibatch(images[part], labels[part], *originals)
        inputs = layer_inputs(minibatch, prefix, p, config, list(range(turn, turn + 6)))
        cosines, products = captured(inputs)
        expected_cosines, expected = plain(inputs)
        assert (cosines - expected_cosines).abs().max() < 1e-3
        assert (products - expected).norm() < 1e-2 * expected.norm()
