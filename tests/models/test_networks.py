"""Shake-Shake: the mixture of the two branches, its own backward pass, and the whole network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F

from deepaa.models import build_model, frozen_copy
from deepaa.models.networks import ShakeShake, shake


def narrow(classes: int = 5, width: int = 8, depth: int = 8) -> ShakeShake:
    """A network of three blocks, with batch norm that is not at its start."""
    network = ShakeShake(depth, width, classes)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    return network


def shares(n: int) -> Tensor:
    return torch.rand(n, 1, 1, 1, dtype=torch.float64)


# The mixture


def test_forward_mixes_with_alpha_and_backward_with_beta():
    a = torch.randn(4, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    alpha, beta = shares(4), shares(4)
    mixed = shake(a, b, alpha, beta)
    gradient = torch.randn_like(mixed)
    mixed.backward(gradient)
    for image in range(4):
        share, back = float(alpha[image]), float(beta[image])
        torch.testing.assert_close(mixed[image], share * a[image] + (1 - share) * b[image])
        torch.testing.assert_close(a.grad[image], back * gradient[image])
        torch.testing.assert_close(b.grad[image], (1 - back) * gradient[image])


def test_gradient_of_weights_is_that_of_the_detached_formula():
    """What autograd says of b + beta (a - b) plus a constant that makes the value right."""
    torch.set_default_dtype(torch.float64)
    try:
        block = narrow().blocks[0]
        x = torch.randn(3, 16, 6, 6)
        alpha, beta = shares(3), shares(3)

        def mixed_by_formula() -> Tensor:
            active = x.relu()
            a, b = block.first(active), block.second(active)
            share = beta * a + (1 - beta) * b
            value = alpha * a + (1 - alpha) * b
            return share + (value - share).detach()

        def gradients(out: Tensor) -> list[Tensor]:
            loss = (out * out).sum()
            weights = [*block.first.parameters(), *block.second.parameters()]
            return list(torch.autograd.grad(loss, weights))

        active = x.relu()
        ours = shake(block.first(active), block.second(active), alpha, beta)
        expected = mixed_by_formula()
        torch.testing.assert_close(ours, expected)
        for got, want in zip(gradients(ours), gradients(expected), strict=True):
            torch.testing.assert_close(got, want)
    finally:
        torch.set_default_dtype(torch.float32)


def test_mixture_keeps_type_and_channels_innermost():
    a, b = (torch.randn(2, 4, 6, 6, dtype=torch.bfloat16) for _ in range(2))
    a, b = (t.contiguous(memory_format=torch.channels_last).requires_grad_() for t in (a, b))
    mixed = shake(a, b, torch.rand(2, 1, 1, 1), torch.rand(2, 1, 1, 1))
    assert mixed.dtype == torch.bfloat16
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    mixed.backward(torch.ones_like(mixed))
    assert a.grad.dtype == torch.bfloat16
    torch.testing.assert_close((a.grad + b.grad).float(), torch.ones(2, 4, 6, 6), rtol=0, atol=0.01)


# A block in training


def seen_shares(block: nn.Module, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The shares that a block uses: its branches are made to give 1 and 0 everywhere."""
    for branch, value in ((block.first, 1.0), (block.second, 0.0)):
        nn.init.zeros_(branch.norm2.weight)
        nn.init.constant_(branch.norm2.bias, value)
    torch.manual_seed(seed)
    x = torch.zeros(n, 16, 4, 4)
    block.first.norm2.bias.grad = None
    got: list[Tensor] = []
    handle = block.first.norm2.register_full_backward_hook(lambda m, i, o: got.append(o[0]))
    out = block(x)
    out.sum().backward()
    handle.remove()
    assert block.shortcut is None
    return out[:, 0, 0, 0].detach(), got[0][:, 0, 0, 0]


def test_every_image_has_shares_of_its_own_from_the_generator_of_torch():
    block = ShakeShake(14, 16, 5).blocks[1].train()  # 16 channels in and out: no shortcut weights
    alpha, beta = seen_shares(block, 4000, seed=1)
    again = seen_shares(block, 4000, seed=1)
    torch.testing.assert_close(alpha, again[0])
    torch.testing.assert_close(beta, again[1])
    assert not torch.equal(alpha, seen_shares(block, 4000, seed=2)[0])
    for drawn in (alpha, beta):
        assert 0 <= float(drawn.min()) < 0.01
        assert 0.99 < float(drawn.max()) <= 1
        # U(0, 1): mean 1/2 with standard error .2887 / sqrt(4000), variance 1/12
        assert abs(float(drawn.mean()) - 0.5) < 5 * 0.2887 / 4000**0.5
        assert abs(float(drawn.var()) - 1 / 12) < 0.006
    correlation = torch.corrcoef(torch.stack((alpha, beta)))[0, 1]
    assert abs(float(correlation)) < 5 / 4000**0.5


def test_training_draws_anew_and_evaluation_takes_halves():
    network = narrow()
    x = torch.randn(4, 3, 8, 8)
    network.train()
    with torch.no_grad():
        assert not torch.equal(network(x), network(x))
    network.eval()
    with torch.no_grad():
        assert torch.equal(network(x), network(x))
        block = network.blocks[0]
        inner = torch.randn(4, 16, 8, 8)
        active = inner.relu()
        branches = 0.5 * block.first(active) + 0.5 * block.second(active)
        torch.testing.assert_close(block(inner), block.shortcut(active) + branches)


# The shortcut


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(6, 6), (7, 5)])
def test_shortcut_sees_every_pixel_and_its_neighbour(stride, size):
    block = ShakeShake(8, 8, 5).blocks[1 if stride == 2 else 0].eval()
    shortcut = block.shortcut
    assert shortcut.stride == stride
    inputs = shortcut.straight.in_channels
    x = torch.rand(2, inputs, *size)
    out = shortcut(x)
    rows, columns = range(0, size[0], stride), range(0, size[1], stride)
    assert out.shape == (2, shortcut.norm.num_features, len(rows), len(columns))
    weights = (shortcut.straight.weight[:, :, 0, 0], shortcut.shifted.weight[:, :, 0, 0])
    scale = (1 + shortcut.norm.eps) ** -0.5
    for i, y in enumerate(rows):
        for j, left in enumerate(columns):
            outside = y == 0 or left == 0
            beside = torch.zeros(2, inputs) if outside else x[:, :, y - 1, left - 1]
            expected = torch.cat([x[:, :, y, left] @ weights[0].T, beside @ weights[1].T], 1)
            torch.testing.assert_close(out[:, :, i, j], expected * scale)


# The network


def test_parameter_count_is_that_of_the_paper():
    """26.2 million for 26 2x96d (Gastaldi, 2017, table 1); and by hand, layer by layer."""

    def branch(inputs: int, outputs: int) -> int:
        return 9 * inputs * outputs + 9 * outputs * outputs + 4 * outputs

    count = 9 * 3 * 16 + 2 * 16
    for inputs, outputs in ((16, 96), (96, 192), (192, 384)):
        count += 2 * branch(inputs, outputs) + inputs * outputs + 2 * outputs
        count += 3 * 2 * branch(outputs, outputs)
    count += 384 * 10 + 10
    model = build_model("shake-shake-26-2x96d", 10)
    assert sum(p.numel() for p in model.parameters()) == count
    assert round(count / 1e6, 1) == 26.2
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) == 1 + 2 * 24  # 26 on each path


@pytest.mark.parametrize("size", [28, 32, 33])
def test_network_takes_images_of_any_size(size):
    assert narrow().eval()(torch.randn(2, 3, size, size)).shape == (2, 5)


def test_network_learns():
    torch.manual_seed(0)
    network = ShakeShake(8, 8, 2).train()
    x = torch.randn(64, 3, 8, 8)
    labels = (x[:, 0].mean((1, 2)) > 0).long()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(network(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) / 5 < 0.6 * losses[0]


def test_frozen_copy_has_no_randomness_and_forward_mode_derivatives():
    network = narrow().double().train()
    frozen = frozen_copy(network)
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    assert network.training
    torch.testing.assert_close(frozen(images), network.eval()(images))
    weights = {key: value.detach() for key, value in frozen.named_parameters()}
    direction = {key: torch.randn_like(value) for key, value in weights.items()}

    def losses(parameters: dict[str, Tensor]) -> Tensor:
        out = functional_call(frozen, parameters, (images,))
        return F.cross_entropy(out, torch.arange(3), reduction="none")

    _, slopes = jvp(losses, (weights,), (direction,))
    step = 1e-6
    ahead = losses({key: value + step * direction[key] for key, value in weights.items()})
    behind = losses({key: value - step * direction[key] for key, value in weights.items()})
    torch.testing.assert_close(slopes, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6)


# CUDA


def recorded(network: ShakeShake, x: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
    """A graph of a forward and backward pass; the output and the gradient of the last layer."""
    weight = network.classify.weight
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            network(x).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    network.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = network(x)
        out.sum().backward()
    return graph, out, weight.grad


@pytest.mark.gpu
def test_a_cuda_graph_draws_new_shares_at_every_replay_and_follows_the_seed():
    network = narrow().cuda().train()
    for module in network.modules():  # statistics that move would hide what the shares do
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    x = torch.randn(8, 3, 16, 16, device="cuda")  # the graph reads it at every replay
    graph, out, gradient = recorded(network, x)

    def replay() -> tuple[Tensor, Tensor]:
        gradient.zero_()
        graph.replay()
        return out.clone(), gradient.clone()

    torch.cuda.manual_seed(3)
    first, second = replay(), replay()
    assert not torch.equal(first[0], second[0])
    torch.cuda.manual_seed(3)
    again = replay()
    torch.testing.assert_close(again[0], first[0])
    torch.testing.assert_close(again[1], first[1])


@pytest.mark.gpu
def test_compiled_shake_has_the_gradients_of_the_plain_one():
    a, b = (torch.randn(8, 16, 8, 8, device="cuda", requires_grad=True) for _ in range(2))
    alpha, beta = (torch.rand(8, 1, 1, 1, device="cuda") for _ in range(2))
    gradient = torch.randn_like(a)
    compiled = torch.compile(shake, fullgraph=True)
    mixed = compiled(a, b, alpha, beta)
    mixed.backward(gradient)
    torch.testing.assert_close(mixed, alpha * a + (1 - alpha) * b)
    torch.testing.assert_close(a.grad, beta * gradient)
    torch.testing.assert_close(b.grad, (1 - beta) * gradient)


@pytest.mark.gpu
def test_compiled_network_trains_in_bfloat16():
    model = build_model("shake-shake-26-2x96d", 10).cuda().to(memory_format=torch.channels_last)
    compiled = torch.compile(model, dynamic=False)
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8, device="cuda")
    labels = torch.arange(16, device="cuda") % 10
    with torch.autocast("cuda", torch.bfloat16):
        logits = compiled(images)
    F.cross_entropy(logits.float(), labels).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
