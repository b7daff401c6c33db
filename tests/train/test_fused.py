"""Wide residual networks in fused kernels: torch's numbers, on a CPU and on CUDA."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated_kernels import EmulatedKernels, compiler
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa.models import build_model
from deepaa.models.networks import WideResNet
from deepaa.train.config import TrainConfig
from deepaa.train.fused.check import is_right
from deepaa.train.fused.kernels import (
    LARGEST,
    TILES,
    Convolution,
    Kernels,
    Layer,
    WeightGradient,
    kernels_of,
    library_source,
)
from deepaa.train.fused.network import FusedNetwork, Passes, serves
from deepaa.train.step import Step, make_step

FAST = TrainConfig(channels_last=True, precision="bfloat16", graph=False)
LAST = torch.channels_last
LAYERS = list(TILES)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def emulated(folder: Path, *layers: Layer, early: bool = False) -> EmulatedKernels:
    source = "".join(kernel.source for kernel in kernels_of(layers))
    return EmulatedKernels(library_source() + source, folder, early=early)


@pytest.fixture(scope="module")
def every_kernel(tmp_path_factory: pytest.TempPathFactory) -> EmulatedKernels:
    return emulated(tmp_path_factory.mktemp("kernels"), *LAYERS)


@pytest.fixture(scope="module")
def impatient_kernels(tmp_path_factory: pytest.TempPathFactory) -> EmulatedKernels:
    """What they fetch arrives at once, also over what is still to be read."""
    return emulated(tmp_path_factory.mktemp("impatient"), *LAYERS, early=True)


def half(tensor: Tensor) -> Tensor:
    made = tensor.to(torch.bfloat16)
    return made.contiguous(memory_format=LAST) if tensor.ndim == 4 else made


def distance(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm())


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each block of threads make several tiles of a few images, as it does of many."""
    for layer, (forward, backward, weights) in TILES.items():
        fewer = forward._replace(blocks=3), backward._replace(blocks=1), weights._replace(parts=3)
        monkeypatch.setitem(TILES, layer, fewer)


def check(layer: Layer, passes: Passes, images: int = 4) -> None:
    """Forward, backward, weights, and all sums of a layer, against torch in float64."""
    torch.manual_seed(sum(layer))
    edge = layer.edge
    x = half(torch.randn(images, layer.inputs, layer.side, layer.side) + 0.3)
    w = half(torch.randn(layer.outputs, layer.inputs, edge, edge) / (layer.inputs * edge) ** 0.5)
    add = half(torch.randn(images, layer.outputs, layer.out_side, layer.out_side))
    dy, before = torch.randn_like(add), half(torch.randn(x.shape))
    norm = nn.BatchNorm2d(layer.inputs).train()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-0.3, 0.3)
    exact = copy.deepcopy(norm).double()
    pixels = images * layer.side**2
    sums = torch.stack([x.float().sum((0, 2, 3)), x.float().square().sum((0, 2, 3))])[None]
    stats = passes.normalise(sums.contiguous(), norm, pixels)

    xd, wd = x.double().requires_grad_(), w.double().requires_grad_()
    normal = exact(xd)
    normal.retain_grad()
    active = normal.relu()
    active.retain_grad()
    rounded = active + (half(active.detach()).double() - active.detach())  # as the kernels have it
    wanted = F.conv2d(rounded, wd, None, layer.stride, edge // 2)
    y, out_sums = passes.forward(layer, x, w, stats, add)
    assert distance(y, half(wanted) + add.double()) < 2.0**-8
    told = torch.stack([y.double().sum((0, 2, 3)), y.double().square().sum((0, 2, 3))])
    assert distance(out_sums.sum(0), told) < 1e-6
    for name in ("running_mean", "running_var"):
        assert distance(getattr(norm, name), getattr(exact, name)) < 1e-6, name

    # what comes from a shortcut is added behind the activation
    (wanted * dy.double()).sum().backward(retain_graph=layer.taps == 9)
    assert active.grad is not None
    assert wd.grad is not None
    dw = passes.weight_gradient(layer, dy, x, stats)
    assert dw.dtype == torch.float32
    assert dw.shape == w.shape
    assert distance(dw, wd.grad) < 3e-4  # a pixel of x may round the other way
    if layer.taps == 1:
        g, nothing = passes.backward(layer, dy, w, x, stats)
        assert not len(nothing)
        assert distance(g, active.grad) < 2.0**-8
        return
    for tensor in (xd, active, normal, *exact.parameters()):
        tensor.grad = None
    ((wanted * dy.double()).sum() + (active * before.double()).sum()).backward()
    g, g_sums = passes.backward(layer, dy, w, x, stats, before)
    assert normal.grad is not None
    assert distance(g, normal.grad) < 2.0**-7
    other = torch.randn_like(x)
    dx, dgamma, dbeta = passes.normalise_backward(g, g_sums, x, stats, norm.weight, other)
    assert xd.grad is not None
    assert exact.weight.grad is not None
    assert exact.bias.grad is not None
    assert distance(dx, xd.grad + other.double()) < 2.0**-7
    assert distance(dgamma, exact.weight.grad) < 2.0**-7
    assert distance(dbeta, exact.bias.grad) < 2.0**-7


@needs_compiler
def test_a_layer_gives_torchs_numbers(tmp_path: Path) -> None:
    layer = Layer(16, 32, 32)
    check(layer, Passes(emulated(tmp_path, layer), [layer]), images=2)


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_every_layer_gives_torchs_numbers(layer: Layer, every_kernel: EmulatedKernels) -> None:
    check(layer, Passes(every_kernel, [layer]))
    assert is_right(layer, every_kernel, CPU, images=2)


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_what_is_fetched_early_disturbs_nothing(
    layer: Layer, impatient_kernels: EmulatedKernels
) -> None:
    assert is_right(layer, impatient_kernels, CPU, images=4)


@needs_compiler
def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    """As in torch, so that a training that has gone wrong is seen."""
    layer = Layer(16, 32, 32, 1, 1)
    passes, norm = Passes(emulated(tmp_path, layer), [layer]), nn.BatchNorm2d(16)
    w = half(torch.randn(32, 16, 1, 1))
    for bad in (float("nan"), float("inf")):
        x = half(torch.randn(2, 16, 32, 32))
        x[1, 3, 7, 9] = bad
        stats = passes.normalise(passes.measure(x), norm, 2 * 32 * 32)
        assert stats[:, 3].isnan().any()
        assert norm.running_var is not None
        assert norm.running_var[3].isnan()
        y, sums = passes.forward(layer, x, w, stats)
        assert y.isnan().any()
        assert sums.isnan().any()


@needs_compiler
@pytest.mark.slow
def test_a_wrong_kernel_is_found(tmp_path: Path) -> None:
    """The test that a device has to pass before its kernels are used."""
    layer = LAYERS[0]
    source = library_source().replace("inside = on && row >= 0", "inside = on && row >= 1")
    assert source != library_source()
    wrong = EmulatedKernels(source + "".join(k.source for k in kernels_of([layer])), tmp_path)
    assert not is_right(layer, wrong, CPU, images=2)


def network(depth: int = 10) -> nn.Sequential:
    """As `build_model` makes one, but not as deep, and with batch norms that do something."""
    torch.manual_seed(0)
    model = build_model("wrn-40-2", 10)
    assert isinstance(model, nn.Sequential)
    if depth != 40:
        model[1] = WideResNet(depth, 2, 10)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.3, 0.3)
    return model.to(memory_format=LAST).train()


def gradients(
    call: Callable[[Tensor], Tensor], model: nn.Module, images: Tensor, *, autocast: bool
) -> tuple[float, dict[str, Tensor]]:
    """The loss of a batch, and all gradients and running statistics, in float64."""
    labels = torch.arange(len(images), device=images.device) % 10
    with torch.autocast(images.device.type, torch.bfloat16, enabled=autocast, cache_enabled=False):
        logits = call(images)
    loss = F.cross_entropy(logits.float() if autocast else logits, labels)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()} | dict(model.named_buffers())
    assert all(value is not None for value in found.values())
    return loss.item(), {name: value.double() for name, value in found.items() if value is not None}


def compare(model: nn.Sequential, fused: FusedNetwork, images: Tensor) -> None:
    """The fused steps are as near to float64 as torch's own steps in bfloat16 are."""
    images = images.contiguous(memory_format=LAST)
    exact, usual = copy.deepcopy(model).double(), copy.deepcopy(model)
    loss, wanted = gradients(exact, exact, images, autocast=False)
    torchs, rounded = gradients(usual, usual, images, autocast=True)
    mine, found = gradients(fused, model, images, autocast=True)
    assert abs(mine - loss) < 2 * abs(torchs - loss) + 1e-3
    for name, value in wanted.items():
        assert found[name].shape == value.shape
        if "num_batches" in name:
            assert found[name] == value == 1
        elif "running" in name:
            assert distance(found[name], value) < 2 * distance(rounded[name], value) + 1e-4, name
    trained = [name for name, _ in model.named_parameters()]
    far, near = (
        sum(float((each[name] - wanted[name]).square().sum()) for name in trained)
        for each in (found, rounded)
    )
    assert far < 1.2 * near
    for name in trained:
        limit = 1.5 * distance(rounded[name], wanted[name]) + 0.02
        assert distance(found[name], wanted[name]) < limit, name


@needs_compiler
@pytest.mark.slow
def test_a_network_has_torchs_gradients(every_kernel: EmulatedKernels) -> None:
    model = network()
    compare(model, FusedNetwork(model, every_kernel), torch.randint(0, 256, (2, 3, 32, 32)).byte())


@needs_compiler
@pytest.mark.slow
def test_weights_may_be_others_later(every_kernel: EmulatedKernels) -> None:
    model, images = network(), torch.randint(0, 256, (2, 3, 32, 32)).byte()
    fused = FusedNetwork(model, every_kernel)
    other = network()
    for p in other.parameters():
        p.data.mul_(0.9)
    model.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    expected = gradients(FusedNetwork(other, every_kernel), other, images, autocast=True)
    found = gradients(fused, model, images, autocast=True)
    assert found[0] == expected[0]
    assert all(torch.equal(value, found[1][name]) for name, value in expected[1].items())


@needs_compiler
@pytest.mark.slow
def test_steps_have_the_same_bits_again(every_kernel: EmulatedKernels) -> None:
    images, found = torch.randint(0, 256, (2, 3, 32, 32)).byte(), []
    for _ in range(2):
        model = network()
        fused = FusedNetwork(model, every_kernel)
        found.append(gradients(fused, model, images, autocast=True))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(value, found[1][1][name]) for name, value in found[0][1].items())


def test_which_networks_are_served() -> None:
    assert serves(network(10))
    assert serves(build_model("wrn-40-2", 100))
    assert serves(build_model("wrn-40-2", 10, channels=1))
    assert not serves(build_model("wrn-28-10", 10))
    assert not serves(build_model("small", 10))
    assert not serves(network(10)[1])
    frozen = network()
    next(frozen.parameters()).requires_grad_(False)
    watched = network()
    watched[1].blocks[1].conv1.register_forward_hook(lambda *_: None)
    others = [network() for _ in range(7)]
    others[0][1].blocks[0].norm1.momentum = None
    others[1][1].norm = nn.Identity()
    others[2][1].blocks[0].norm1 = nn.GroupNorm(4, 16)
    others[3][1].blocks.insert(1, nn.Dropout(0.1))
    others[4][1].blocks[1].conv2.dilation = (2, 2)
    others[5] = nn.SyncBatchNorm.convert_sync_batchnorm(others[5])
    nn.utils.parametrizations.weight_norm(others[6][1].blocks[1].conv1)
    assert not any(serves(each) for each in (frozen, watched, network().double(), *others))


def test_which_images_are_taken() -> None:
    class Nothing:
        def launch(self, *_: object) -> None:
            raise AssertionError

    fused = FusedNetwork(network(), Nothing())
    assert fused.takes(torch.zeros(128, 3, 32, 32))
    assert not fused.takes(torch.zeros(127, 3, 32, 32))
    assert not fused.takes(torch.zeros(0, 3, 32, 32))
    assert not fused.takes(torch.zeros(1, 1, 1, 1).expand(2**16, 3, 32, 32))
    assert not fused.takes(torch.zeros(128, 3, 28, 28))


def test_a_step_that_cannot_be_fused_says_so() -> None:
    with pytest.raises(ValueError, match="leave fused unset"):
        Step(network(), replace(FAST, fused=True), CPU)
    Step(network(), replace(FAST, fused=None), CPU)
    Step(network(), replace(FAST, fused=False), CPU)


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper_and_finds_room() -> None:
    """With the compiler that torch brings for CUDA; no GPU is needed for this."""
    if torch.version.cuda is None:
        pytest.skip("needs a torch for CUDA")
    from deepaa.train.fused.cuda import CudaError, compile_source

    library = library_source()
    for kernel in kernels_of(LAYERS):
        code = compile_source(f"#define NO_COMMON\n{library}{kernel.source}", "sm_90")
        assert code[:4] == b"\x7fELF"
        assert kernel.shared <= LARGEST
    with pytest.raises(CudaError, match="undeclared"):
        compile_source("__global__ void kernel() { undeclared = 1; }", "sm_90")


def test_layers_and_their_kernels_fit_together() -> None:
    for layer in LAYERS:
        forward, backward, weights = Kernels.of(layer)
        assert isinstance(forward, Convolution)
        assert isinstance(weights, WeightGradient)
        assert (forward.side, forward.channels) == (layer.out_side, layer.outputs)
        assert (backward.side, backward.channels) == (layer.side, layer.inputs)
        for images in (2, 80, 128):
            count, each, parts = weights.cut(images)
            assert (parts - 1) * each < count <= parts * each
            for kernel in (forward, backward):
                blocks, _ = kernel.grid(images)
                assert blocks == kernel.blocks(images) > 0


# On a device


def hopper() -> torch.device:
    if torch.cuda.get_device_properties(CUDA).shared_memory_per_block_optin < LARGEST:
        pytest.skip("needs a Hopper GPU or a newer one")
    return CUDA


@pytest.mark.gpu
@pytest.mark.parametrize("images", [258, 128, 80, 2])
def test_a_network_has_torchs_gradients_on_the_device(images: int) -> None:
    from deepaa.train.fused import fused_network

    device, model = hopper(), network(40 if images == 128 else 16)
    model.to(device)
    fused = fused_network(model, device)
    assert fused is not None
    pixels = torch.randint(0, 256, (images, 3, 32, 32), device=device).byte()
    compare(model, fused, pixels)
    first = [p.grad.clone() for p in model[1].blocks.parameters() if p.grad is not None]
    model.zero_grad()
    gradients(fused, model, pixels.contiguous(memory_format=LAST), autocast=True)
    again = [p.grad for p in model[1].blocks.parameters()]
    for a, b in zip(first, again, strict=True):  # of what torch does around them, cuDNN may differ
        assert b is not None
        assert distance(a, b) < 1e-3


@pytest.mark.gpu
def test_recorded_steps_are_the_plain_ones() -> None:
    device = hopper()
    images = torch.randint(0, 256, (128, 3, 32, 32), device=device).byte()
    labels, found = torch.arange(128, device=device) % 10, []
    for graph in (False, True):
        model = build_model("wrn-40-2", 10).to(device, memory_format=LAST).train()
        step = make_step(model, replace(FAST, graph=graph, fused=True), device)
        found.append([step(images, labels, 0.02, 128)[0].item() for _ in range(6)])
    assert found[1] == pytest.approx(found[0], rel=0.02)
    assert found[0][-1] < found[0][0]


@pytest.mark.gpu
def test_a_training_takes_the_fused_steps() -> None:
    device = hopper()
    labels = torch.arange(128, device=device) % 10
    for side, taken in ((32, True), (28, False)):
        model = build_model("wrn-40-2", 10).to(device, memory_format=LAST).train()
        step = Step(model, FAST, device)
        images = torch.randint(0, 256, (128, 3, side, side), device=device).byte()
        loss = step(images, labels, 0.1, 128)
        assert loss.isfinite().all()
        assert step._fastest is not None
        assert isinstance(step._fastest.network, FusedNetwork) == taken
        step(images[:65], labels[:65], 0.1, 65)  # an odd number of images takes torch's own steps
    plain = Step(build_model("wrn-40-2", 10).to(device), replace(FAST, fused=False), device)
    assert plain._fused is None
