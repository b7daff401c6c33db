"""Dual numbers against torch's forward mode, replayed graphs, and networks laid out for speed."""

from __future__ import annotations

import pytest
import torch
from blobs import blobs
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa.models import ScaleShift, build_model, frozen_copy
from deepaa.ops.space import CIFAR
from deepaa.policy.policy import Policy
from deepaa.search.gradient_matching import forward_mode
from deepaa.search.gradient_matching.forward_mode import ScaledConv2d, folded
from deepaa.search.gradient_matching.gradients import (
    Derivatives,
    check_forward_mode,
    check_model,
    checked_trace,
    optimized_copy,
    trainable,
)
from deepaa.search.gradient_matching.rewards import GradientMatcher, Minibatch, layer_inputs
from deepaa.search.settings import SearchConfig


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
        seeds = list(range(turn, turn + 6))
        inputs = layer_inputs(minibatch, prefix, p, config, seeds, torch.arange(139))
        cosines, products = captured(inputs)
        expected_cosines, expected = plain(inputs)
        assert (cosines - expected_cosines).abs().max() < 1e-3
        assert (products - expected).norm() < 1e-2 * expected.norm()


# A frozen network laid out for its device: same outputs, same gradients, same products


class Branches(nn.Module):
    """Of six convolutions with batch norm behind, two can take it in: one plain, one grouped."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(3, 8, 3, 2, 1, bias=True)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, padding_mode="reflect")
        self.twice = nn.Conv2d(8, 8, 1)
        self.seen = nn.Conv2d(8, 8, 3, padding=1)
        self.watched = nn.Conv2d(8, 8, 3, padding=1)
        self.watched.register_forward_hook(lambda module, inputs, output: output * 2)
        self.transposed = nn.ConvTranspose2d(8, 8, 2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(7))
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.plain(x.to(self.out.weight.dtype) / 255)).relu()
        x = self.norms[1](self.grouped(x)).relu()
        x = self.norms[2](self.twice(x)) + self.norms[3](self.twice(x))
        seen = self.seen(x)
        x = self.norms[4](seen) + seen
        x = self.norms[5](self.watched(x)).relu()
        return self.out(self.norms[6](self.transposed(x)).mean((2, 3)))


class Twice(nn.Module):
    """Layers under two names, or in a list that is no module, and one tensor in two layers."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, 2, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.stem = nn.Sequential(self.first, self.norm, nn.ReLU())
        self.second, self.third = nn.Conv2d(6, 6, 3, bias=False), nn.Conv2d(6, 6, 3, bias=False)
        self.third.weight = self.second.weight
        self.fourth, self.behind = nn.Conv2d(6, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.listed = [(self.fourth, self.behind)] if listed else []
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.third(self.second(self.stem(x.float() / 255)).relu())
        for conv, norm in self.listed or ((self.fourth, self.behind),):
            x = norm(conv(x))
        return self.out(x.mean((2, 3)))


class Rows(nn.Module):
    """Pixels viewed as a row: a model that runs with channels first alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 4, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4 * 8 * 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x.to(self.out.weight.dtype) / 255))
        return self.out(x.view(-1, 4 * 8 * 8))


def frozen(model: nn.Module) -> nn.Module:
    """In float64, its batch norms neither blank nor alike."""
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data = 0.5 + torch.rand(tensor.shape, generator=generator)
    return frozen_copy(model).double()


def images_and_labels() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return images, torch.tensor([0, 3])


def made(name: str) -> nn.Module:
    if name == "branches":
        return Branches()
    if name == "rows":
        return Rows()
    if name == "resnet18":
        pytest.importorskip("torchvision")
    return build_model(name, 4, seed=2)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("small", 4, 0),
        ("resnet18", 20, 0),
        ("wrn-40-2", 19, 18),  # its blocks begin with a batch norm
        ("branches", 2, 5),
        ("rows", 1, 0),
    ],
)
def test_the_same_outputs_gradients_and_products(name: str, inside: int, outside: int) -> None:
    model = frozen(made(name))
    images, labels = images_and_labels()
    fast = optimized_copy(model, images, labels)
    kinds = [type(module) for module in fast.modules()]
    assert (kinds.count(ScaledConv2d), kinds.count(ScaleShift)) == (inside, outside)
    assert not any(isinstance(module, ScaledConv2d) for module in model.modules())
    with torch.no_grad():
        expected = model(images)
        assert (fast(images) - expected).norm() < 1e-12 * expected.norm()

    gradients = [Derivatives(each).mean_gradient(images, labels) for each in (model, fast)]
    assert len(gradients[0]) == len(gradients[1])
    for one, other in zip(*(each.values() for each in gradients), strict=True):
        assert (one - other).norm() < 1e-10 * one.norm()

    products = []
    generator = torch.Generator().manual_seed(5)
    steps = torch.stack([torch.randn(3, generator=generator) for _ in gradients[0]])
    for each in (model, fast):
        params = trainable(each)
        direction = {k: p * row.mean() for (k, p), row in zip(params.items(), steps, strict=True)}
        for nodes in (None, checked_trace(each, images, labels)):
            derivatives = Derivatives(each, nodes=nodes)
            products.append(derivatives.loss_jvp(images, labels, direction))
    for found in products[1:]:
        assert (found - products[0]).norm() < 1e-10 * products[0].norm()


@pytest.mark.parametrize("name", ["small", "resnet18", "rows"])
def test_dual_numbers_go_through_what_is_folded(name: str) -> None:
    images, labels = images_and_labels()
    fast = optimized_copy(frozen_copy(made(name)), images, labels)
    assert checked_trace(fast, images, labels) is not None


def test_pixels_stay_in_order_for_a_model_that_needs_it() -> None:
    images, labels = images_and_labels()
    rows = optimized_copy(frozen_copy(Rows()), images, labels)
    assert isinstance(rows, Rows)
    assert rows.conv.weight.is_contiguous()
    small = optimized_copy(frozen_copy(build_model("small", 4)), images, labels)
    convs = [m for m in small.modules() if isinstance(m, nn.Conv2d)]
    assert all(m.weight.is_contiguous(memory_format=torch.channels_last) for m in convs)


def test_a_model_that_cannot_be_followed_stays() -> None:
    class Chooses(Rows):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else super().forward(x) + 1

    images, _ = images_and_labels()
    model = frozen_copy(Chooses())
    kept = folded(model)
    assert isinstance(kept.get_submodule("norm"), ScaleShift)
    with torch.no_grad():
        assert torch.equal(kept(images), model(images))


@pytest.mark.parametrize("listed", [False, True])
def test_layers_of_two_names(listed: bool) -> None:
    """They are swapped once and put back; one that is called by another name keeps its norm."""
    images, labels = images_and_labels()
    model = frozen_copy(Twice(listed))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_model(model, images, labels)
    fast = optimized_copy(model, images, labels)
    assert (checked_trace(fast, images, labels) is None) == listed
    check_forward_mode(fast, images, labels)
    found = Derivatives(fast).mean_gradient(images, labels)
    own = dict(model.named_parameters())
    loss = nn.functional.cross_entropy(model(images), labels)
    slow = torch.autograd.grad(loss, list(own.values()))
    for one, other in zip(found.values(), slow, strict=True):
        assert (one - other).norm() < 1e-4 * other.norm()
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_parameter_of_five_dimensions() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv3d(1, 4, 3), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.conv(x[:, None] / 255).mean((2, 3, 4)))

    images, labels = images_and_labels()
    model = frozen_copy(Deep())
    with torch.no_grad():
        fast = optimized_copy(model, images, labels)
        assert (fast(images) - model(images)).norm() < 1e-4
