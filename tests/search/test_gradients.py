"""Gradients against explicit per-image gradients, the explicit Jacobian and autograd."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from deepaa.search.gradient_matching.gradients import (
    Derivatives,
    Params,
    check_forward_mode,
    check_model,
    check_untrained,
    checked_trace,
    trainable,
)
from deepaa.search.gradient_matching.rewards import cosine_and_direction

N, CLASSES = 12, 5


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            OrderedDict(
                conv1=nn.Conv2d(3, 6, 3, stride=2, padding=1),
                norm=nn.BatchNorm2d(6),
                relu=nn.ReLU(),
                conv2=nn.Conv2d(6, 8, 3, padding=1),
                act=nn.GELU(),
                pool=nn.AdaptiveAvgPool2d(1),
                flat=nn.Flatten(),
                head=nn.Linear(8, CLASSES),
            )
        )


@pytest.fixture
def model() -> nn.Module:
    net = Net().double()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2)
    return net.eval()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(N, 3, 9, 9, dtype=torch.float64), torch.arange(N) % CLASSES


def per_image(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """(D, N): each image's gradient by itself, the slow way."""
    columns = []
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(image[None]), label[None]).backward()
        columns.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    model.zero_grad()
    return torch.stack(columns, 1)


def flat(params: Params) -> Tensor:
    return torch.cat([p.flatten() for p in params.values()])


def test_mean_gradient_is_the_weighted_sum(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    weights = torch.rand(N, dtype=torch.float64)
    expected = per_image(model, *batch) @ weights
    found = flat(Derivatives(model).mean_gradient(*batch, weights))
    assert (found - expected).abs().max() < 1e-10
    assert all(p.grad is None for p in model.parameters())


def test_products_are_the_jacobian_times_the_direction(
    model: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    direction = {name: torch.randn_like(p) for name, p in trainable(model).items()}
    expected = per_image(model, *batch).T @ flat(direction)
    assert (Derivatives(model).loss_jvp(*batch, direction) - expected).abs().max() < 1e-10


def test_rewards_equal_autograd_through_the_cosine(
    model: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    """d cos(v, G p) / d p by autograd equals G^T u (Eq. 4 and 5)."""
    jacobian = per_image(model, *batch)
    p = torch.rand(N, dtype=torch.float64)
    p = (p / p.sum()).requires_grad_()
    other = torch.randn(4, 3, 9, 9, dtype=torch.float64), torch.arange(4)
    v = per_image(model, *other).mean(1)
    cosine = F.cosine_similarity(v, jacobian @ p, dim=0)
    (expected,) = torch.autograd.grad(cosine, p)

    target = Derivatives(model).mean_gradient(*other, torch.full((4,), 0.25, dtype=torch.float64))
    gradient = Derivatives(model).mean_gradient(*batch, p.detach())
    found, direction = cosine_and_direction(target, gradient)
    assert abs(found - cosine.detach()) < 1e-10
    assert (Derivatives(model).loss_jvp(*batch, direction) - expected).abs().max() < 1e-10

    _, paper = cosine_and_direction(target, gradient, normalise=False)
    assert (flat(paper) - flat(direction) * v.norm()).abs().max() < 1e-10


@pytest.mark.parametrize("chunk", [1, 5, 12, 100])
def test_chunks_change_nothing(model: nn.Module, chunk: int) -> None:
    model = model.float()
    images, labels = torch.randn(N, 3, 9, 9), torch.arange(N) % CLASSES
    weights, direction = (
        torch.rand(N),
        {n: torch.randn_like(p) for n, p in trainable(model).items()},
    )
    whole = Derivatives(model).mean_gradient(images, labels, weights)
    parts = Derivatives(model, chunk=chunk).mean_gradient(images, labels, weights)
    assert (flat(whole) - flat(parts)).abs().max() < 1e-6
    products = Derivatives(model).loss_jvp(images, labels, direction)
    assert (
        Derivatives(model, chunk=chunk).loss_jvp(images, labels, direction) - products
    ).abs().max() < 1e-5


def test_no_images() -> None:
    model = Net().eval()
    direction = {n: torch.ones_like(p) for n, p in trainable(model).items()}
    empty = torch.zeros(0, 3, 9, 9), torch.zeros(0, dtype=torch.int64)
    assert Derivatives(model).loss_jvp(*empty, direction).shape == (0,)
    assert flat(Derivatives(model).mean_gradient(*empty, torch.zeros(0))).abs().sum() == 0


@pytest.mark.parametrize("zero", ["target", "gradient"])
def test_a_zero_gradient_has_no_reward(zero: str) -> None:
    one, none = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.zeros(2)}
    pair = (none, one) if zero == "target" else (one, none)
    cosine, direction = cosine_and_direction(*pair)
    assert cosine == 0
    assert torch.equal(direction["a"], torch.zeros(2))


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_products_of_two_estimates_have_no_bias(spread: float) -> None:
    """A gradient along g has no reward; the noise of an estimate of g gives it one.

    Args:
        spread: How much the lengths of the draws differ.
    """
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    g = normal(400)
    target = normal(400) + g
    plain, halves, cosines = [], [], []
    for _ in range(300):
        draws = (g + 3 * normal(72, 400)) * (spread * normal(72, 1)).exp()
        a, b = draws[:36].mean(0), draws[36:].mean(0)
        _, direction = cosine_and_direction({"w": target}, {"w": (a + b) / 2})
        plain.append(float(direction["w"] @ g))
        cosine, direction = cosine_and_direction({"w": target}, {"w": a}, {"w": b})
        halves.append(float(direction["w"] @ g))
        cosines.append(float(cosine))
    exact = float(F.cosine_similarity(target, g, dim=0))
    assert abs(float(np.mean(plain))) > 0.05
    assert abs(float(np.mean(halves))) < 0.012
    assert abs(float(np.mean(cosines)) - exact) < 0.01


def test_equal_estimates_are_like_one() -> None:
    v, a = (torch.randn(9, dtype=torch.float64) for _ in range(2))
    cosine, direction = cosine_and_direction({"w": v}, {"w": a}, {"w": a.clone()})
    expected, way = cosine_and_direction({"w": v}, {"w": a})
    assert abs(cosine - expected) < 1e-12
    assert (direction["w"] - way["w"]).abs().max() < 1e-12


@pytest.mark.parametrize("agreement", [0.01, 1e-6, 0.0, -1e-6, -0.5, -1.0])
def test_estimates_at_odds_have_bounded_rewards(agreement: float) -> None:
    """a.b goes through zero, and neither the cosine nor the direction jumps or grows."""
    v, a = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0])
    b = torch.tensor([agreement, (1 - agreement**2) ** 0.5, 0.0])
    cosine, direction = cosine_and_direction({"w": v}, {"w": a}, {"w": b})
    mean = (a + b) / 2
    expected, way = cosine_and_direction({"w": v}, {"w": mean})
    assert abs(cosine) <= 1.4143 * abs(expected) + 1e-6
    assert direction["w"].norm() <= 4 * way["w"].norm() + 1e-6


@pytest.mark.parametrize("bad", ["target", "gradient", "other"])
def test_what_is_not_finite_stays_so(bad: str) -> None:
    parts = {name: {"w": torch.ones(3)} for name in ("target", "gradient", "other")}
    parts[bad]["w"][1] = float("nan")
    cosine, direction = cosine_and_direction(*parts.values())
    assert cosine.isnan()
    assert direction["w"].isnan().any()


def test_frozen_parameters_are_left_out(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    for p in model.norm.parameters():
        p.requires_grad_(False)
    gradient = Derivatives(model).mean_gradient(*batch, torch.ones(N, dtype=torch.float64))
    assert set(gradient) == {
        f"{m}.{p}" for m in ("conv1", "conv2", "head") for p in ("weight", "bias")
    }


def test_bfloat16_is_close(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    model = model.float()
    images, labels = batch[0].float(), batch[1]
    weights = torch.full((N,), 1 / N)
    exact = flat(Derivatives(model).mean_gradient(images, labels, weights))

    class Cast(nn.Module):  # what a model's first layer does: bring images to the weights' type
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.to(self.inner.conv1.weight.dtype))

    net = Cast(model)
    rough = flat(Derivatives(net, dtype=torch.bfloat16).mean_gradient(images, labels, weights))
    assert rough.dtype == torch.float32
    assert F.cosine_similarity(exact, rough, dim=0) > 0.995
    assert not torch.equal(exact, rough)


# Models that are refused.


class WrongSlope(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad * 2

    @staticmethod
    def jvp(ctx: object, tangent: Tensor) -> Tensor:
        return tangent * 7


class NoSlope(WrongSlope):
    jvp = torch.autograd.Function.jvp


class Rounded(WrongSlope):
    """Straight through: a step function with the gradient of a line."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return (x * 2).round()

    @staticmethod
    def jvp(ctx: object, tangent: Tensor) -> Tensor:
        return tangent * 2


class Custom(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function, self.net = function, Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(self.net(x))


def float_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(N, 3, 9, 9), torch.arange(N) % CLASSES


def test_a_good_model_passes() -> None:
    images, labels = float_batch()
    for model, batch in ((Net(), images), (Net().double(), images.double())):
        check_model(model.eval(), batch, labels)
        check_forward_mode(model, batch, labels)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Net().train(), r"layer 'norm' \(BatchNorm2d\) is in training mode and mixes images"),
        (nn.Sequential(Net().eval(), nn.Dropout(0.5).train()), r"'1' \(Dropout\).*random"),
        (nn.Sequential(Net().eval(), nn.Unflatten(1, (1, 5))), r"gives \(12, 1, 5\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(243, 3)).eval(), "model has 3 outputs"),
    ],
)
def test_models_that_would_give_wrong_rewards(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_model(model, *float_batch())


@pytest.mark.parametrize(
    ("function", "message", "followed"),
    [
        (WrongSlope, r"off by \d+ % from finite differences", True),
        (NoSlope, "no forward-mode derivative", True),
        (Rounded, r"off by \d+ % from finite differences", False),
    ],
)
def test_a_layer_with_a_derivative_of_its_own(
    function: type[torch.autograd.Function], message: str, followed: bool
) -> None:
    """Dual numbers see what it computes; its own rules matter where these are asked."""
    model = Custom(function).eval()
    check_model(model, *float_batch())
    assert (checked_trace(model, *float_batch()) is not None) == followed
    with pytest.raises(ValueError, match=message):
        check_forward_mode(model, *float_batch())
    check_untrained(model, *float_batch(), CLASSES - 1)


class Says(nn.Module):
    """A network that turns its images into float32 by itself, as most do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.to(torch.float32).float() / 255)


class Attention(nn.Module):
    """By torch's fused kernels, alone and in a layer of an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 3, 3)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x / 255).flatten(2).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(x, x, x)
        return self.head(self.layer(x).mean(1))


@pytest.mark.parametrize("net", [Says(Net()), Attention(), Says(Attention())])
def test_float32_and_attention_are_no_obstacle(net: nn.Module) -> None:
    net.eval()
    images, labels = torch.randint(0, 256, (N, 3, 9, 9), dtype=torch.uint8), torch.arange(N) % 5
    check_model(net, images, labels)
    check_untrained(net, images, labels, 4)
    check_forward_mode(net, images, labels)
    if not isinstance(net, Attention):
        assert (checked_trace(net, images, labels) is None) == isinstance(net.net, Attention)


def test_products_need_finer_steps_than_a_thousandth() -> None:
    """A deep network that takes float32 alone: in large steps many rectifiers turn."""

    class Insists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [(nn.Conv2d(c, 8, 3, padding=1), nn.ReLU()) for c in (3, *[8] * 12)]
            self.net = nn.Sequential(*(m for pair in layers for m in pair))
            self.out = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            assert self.out.weight.dtype == torch.float32
            return self.out(self.net(x / 255 - 0.5).mean((2, 3)))

    torch.manual_seed(0)
    images, labels = torch.randint(0, 256, (N, 3, 9, 9), dtype=torch.uint8), torch.arange(N) % 5
    check_forward_mode(Insists().eval(), images, labels)


def test_a_model_of_floats_is_told_how_to_take_images() -> None:
    images = torch.zeros(N, 3, 9, 9, dtype=torch.uint8)
    for check in (check_model, check_untrained):
        with pytest.raises(ValueError, match=r"uint8 images.*deepaa.models.Normalize\(mean, std\)"):
            check(Net().eval(), images, torch.arange(N) % CLASSES, 4)


def test_a_compiled_model_is_refused() -> None:
    with pytest.raises(ValueError, match="the model is compiled"):
        check_model(torch.compile(Net().eval()), *float_batch())


def test_a_model_without_gradient_is_refused() -> None:
    model = Net().eval()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([0.0, 0, 0, 0, 0]))
    for p in (model.head.weight, model.head.bias):
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="gradient is zero"):
        check_model(model, *float_batch())
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        check_model(model.requires_grad_(False), *float_batch())


def test_functional_call_leaves_the_model_alone(
    model: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    check_model(model, *batch)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert functional_call(model, trainable(model), (batch[0],)).shape == (N, CLASSES)


@pytest.mark.slow
def test_compiled_passes_equal_eager_ones(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    """In float64, so that rounding hides nothing; the tangent must survive compiling."""
    compiled = Derivatives(model, compiled=True)
    weights = torch.rand(N, dtype=torch.float64)
    direction = {name: torch.randn_like(p) for name, p in trainable(model).items()}
    one = flat(Derivatives(model).mean_gradient(*batch, weights))
    assert (flat(compiled.mean_gradient(*batch, weights)) - one).abs().max() < 1e-10
    products = Derivatives(model).loss_jvp(*batch, direction)
    assert products.abs().max() > 0
    assert (compiled.loss_jvp(*batch, direction) - products).abs().max() < 1e-10
