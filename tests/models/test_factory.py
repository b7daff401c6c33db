"""Networks by name, normalisation inside them, and the frozen copies that a search compares."""

import copy
import subprocess
import sys

import pytest
import torch
from networks import lived_in, needs, pictures
from torch import nn
from torch.func import functional_call, jvp
from torch.nn import functional as F

from deepaa.data import load_embedded
from deepaa.models.factory import (
    Normalize,
    ScaleShift,
    build_model,
    channel_statistics,
    copy_model,
    frozen_copy,
    unwrap_compiled,
)


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [
        ("wrn-40-2", 10, 2_243_546),
        ("wrn-40-2", 100, 2_255_156),
        ("wrn-28-10", 10, 36_479_194),
        ("wrn-28-10", 100, 36_536_884),
        ("resnet18", 1000, 11_689_512),
        ("torchvision:resnet50", 1000, 25_557_032),
        ("shake-shake-26-2x96d", 10, 26_192_922),
        ("shake-shake-26-2x96d", 100, 26_227_572),
        ("timm:resnet200", 1000, 64_673_832),
    ],
)
def test_parameter_counts_are_those_of_the_literature(name, classes, count):
    needs(name)
    model = build_model(name, classes)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("name", ["small", "wrn-40-2", "shake-shake-26-2x96d", "resnet18"])
@pytest.mark.parametrize("size", [28, 32])
def test_bytes_in_logits_out(name, size):
    model = build_model(name, 7).eval()
    out = model(pictures(3, size))
    assert out.shape == (3, 7)
    assert out.isfinite().all()


def test_wide_resnet_is_what_its_paper_says():
    network = build_model("wrn-40-2", 10).network
    assert (
        sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in network.modules()) == 37
    )
    assert [tuple(m.stride) for m in network.modules() if isinstance(m, nn.Conv2d)].count(
        (2, 2)
    ) == 4  # a convolution and a shortcut in the second and in the third group
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, m.momentum) for m in norms} == {(1e-5, 0.1)}
    assert network.blocks[5](torch.zeros(1, 32, 32, 32)).shape == (1, 32, 32, 32)
    assert network.blocks[:](torch.zeros(1, 16, 32, 32)).shape == (1, 128, 8, 8)


@pytest.mark.parametrize("place", [0, 1])
def test_wide_block_is_preactivated_and_shares_it_with_a_changing_shortcut(place):
    block = lived_in(build_model("wrn-40-2", 10).network.blocks[place]).eval()
    x = torch.randn(2, 16 if place == 0 else 32, 8, 8)
    active = block.norm1(x).clamp(min=0)
    inner = block.conv2(block.norm2(block.conv1(active)).clamp(min=0))
    short = F.conv2d(active, block.shortcut.weight) if place == 0 else x
    torch.testing.assert_close(block(x), short + inner)


def test_wide_resnet_starts_with_steady_activations():
    model = build_model("wrn-28-10", 10).train()
    with torch.no_grad():
        logits = model(pictures(8))
    assert 0.01 < float(logits.std()) < 10


@pytest.mark.parametrize("name", ["small", "wrn-40-2", "timm:resnet10t", "resnet18"])
def test_weights_are_a_function_of_the_seed_alone(name):
    needs(name)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_model(name, 10, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = build_model(name, 10, seed=5).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    other = build_model(name, 10, seed=6).state_dict()
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_channels_and_libraries():
    needs("timm")
    grey = pictures(2, 32, 1)
    for name in ("small", "wrn-40-2", "timm:resnet10t"):
        assert build_model(name, 4, channels=1).eval()(grey).shape == (2, 4)
    with pytest.raises(ValueError, match="takes 3 channels, got 1"):
        build_model("resnet18", 4, channels=1)
    # torchvision has no such network, so the bare name means timm's
    assert build_model("resnet10t", 4).eval()(pictures(2)).shape == (2, 4)


@pytest.mark.parametrize("name", ["googlenet", "torchvision:mobilenet_v3_small"])
def test_networks_of_torchvision_return_one_output_in_train_mode(name):
    assert build_model(name, 5).train()(pictures(2, 96)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrn-40-3", "did you mean.*'wrn-40-2'"),
        ("shake-shake", "did you mean 'shake-shake-26-2x96d'"),
        ("resnet81", "did you mean.*'resnet18'"),
        ("torchvision:resnet19", "no model 'torchvision:resnet19'.*'resnet18'"),
        ("timm:resnet10x", "no model 'timm:resnet10x'.*'resnet10t'"),
        ("keras:vgg", "no model library 'keras'; there are torchvision and timm"),
        ("fasterrcnn_resnet50_fpn", "no model"),
    ],
)
def test_unknown_names_are_refused_with_close_ones(name, message):
    needs(name)
    with pytest.raises(ValueError, match=message):
        build_model(name, 10)


def test_a_name_that_two_libraries_have_is_named_once():
    needs("timm")
    with pytest.raises(ValueError, match="did you mean") as caught:
        build_model("resnet19", 10)
    assert str(caught.value).count("'resnet18'") == 1


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # importing it now fails
    with pytest.raises(ValueError, match=r"no model 'resnet200'.*\(timm not installed\)"):
        build_model("resnet200", 10)
    with pytest.raises(ValueError, match="timm is not installed: pip install timm"):
        build_model("timm:resnet200", 10)


def test_no_classes_are_refused():
    with pytest.raises(ValueError, match="0 classes"):
        build_model("small", 0)


def test_libraries_are_imported_when_asked_for():
    code = (
        "import sys; from deepaa.models import build_model; build_model('wrn-40-2', 10);"
        "print(*{'torchvision', 'timm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Normalisation


def test_normalize_takes_bytes_and_fractions():
    layer = Normalize((0.5, 0.25, 0.0), (0.5, 0.25, 1.0))
    images = pictures()
    out = layer(images)
    assert out.dtype == torch.float32
    expected = (images.double() / 255 - torch.tensor([0.5, 0.25, 0]).double()[:, None, None]) / (
        torch.tensor([0.5, 0.25, 1]).double()[:, None, None]
    )
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(layer(images / 255), out, rtol=0, atol=1e-5)


def test_normalize_reads_levels_of_either_unit():
    small, large = Normalize((0.2, 0.4, 0.6), 0.25), Normalize((51, 102, 153), 63.75)
    torch.testing.assert_close(small.mean, large.mean)
    torch.testing.assert_close(small.std, large.std)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_normalize_follows_the_type_of_the_model(dtype):
    images = pictures()
    model = build_model("small", 10, mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    exact = model.normalize(images)
    model.to(dtype)
    out = model.normalize(images)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)
    if dtype != torch.float16:  # not for convolutions on every CPU
        assert model(images).dtype == dtype


def test_normalize_keeps_channels_innermost():
    images = pictures().contiguous(memory_format=torch.channels_last)
    out = Normalize(0.5, 0.25)(images)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, Normalize(0.5, 0.25)(images.contiguous()))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5, 0.5), 0.25, "1 or 3 numbers"),
        (0.5, (0.25, 0.0, 0.25), "above 0"),
        (float("nan"), 0.25, "finite"),
        (-1.0, 0.25, "0 or more"),
    ],
)
def test_normalize_refuses_levels_without_meaning(mean, std, message):
    with pytest.raises(ValueError, match=message):
        Normalize(mean, std)


def test_normalize_refuses_other_images():
    with pytest.raises(TypeError, match="int64"):
        Normalize(0.5, 0.25)(pictures().long())
    with pytest.raises(ValueError, match="3 channels"):
        Normalize(0.5, 0.25)(pictures(channels=1))


def test_channel_statistics_are_those_of_all_pixels():
    images = load_embedded().train_images[:500]
    mean, std = channel_statistics(images)
    pixels = images.double().transpose(0, 1).flatten(1) / 255
    torch.testing.assert_close(torch.tensor(mean).double(), pixels.mean(1), rtol=0, atol=1e-7)
    torch.testing.assert_close(
        torch.tensor(std).double(), pixels.std(1, correction=0), rtol=0, atol=1e-7
    )
    out = Normalize(mean, std)(images).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out.mean(1), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(out.std(1), torch.ones(3), rtol=0, atol=1e-4)


def test_channel_statistics_of_constant_and_bad_images():
    mean, std = channel_statistics(torch.full((2, 1, 4, 4), 51, dtype=torch.uint8))
    assert mean == pytest.approx((0.2,))
    assert std == (1 / 255,)
    for bad in (torch.zeros(0, 3, 4, 4, dtype=torch.uint8), torch.zeros(2, 3, 4, 4)):
        with pytest.raises(ValueError, match="uint8"):
            channel_statistics(bad)


# Frozen copies


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("small", 32),
        ("wrn-40-2", 32),
        ("shake-shake-26-2x96d", 32),
        ("resnet18", 64),
        ("torchvision:mobilenet_v3_small", 64),  # stochastic depth, dropout
        ("torchvision:vit_b_16", 224),
        ("timm:efficientnet_b0", 64),  # batch norm with an activation of its own
        ("timm:densenet121", 64),
    ],
)
def test_frozen_copy_computes_what_eval_mode_does(name, size):
    needs(name)
    model = lived_in(build_model(name, 10)).eval()
    images = pictures(2, size)
    with torch.no_grad():
        expected, out = model(images), frozen_copy(model)(images)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    if name in ("small", "wrn-40-2"):
        with torch.no_grad():
            expected, out = model.double()(images), frozen_copy(model)(images)
        assert out.dtype == torch.float64
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


def test_frozen_copy_leaves_the_model_alone():
    model = lived_in(build_model("small", 10)).train()
    before = copy.deepcopy(model.state_dict())
    frozen = frozen_copy(model)
    with torch.no_grad():
        for parameter in frozen.parameters():
            parameter.zero_()
    assert model.training
    assert all(module.training for module in model.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["small", "wrn-40-2", "resnet18"])
def test_gradient_of_a_frozen_copy_excludes_batch_norm(name):
    model = lived_in(build_model(name, 10)).eval()
    norms = {
        f"{prefix}.{part}"
        for prefix, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for part in ("weight", "bias")
    }
    frozen = frozen_copy(model)
    names = {key for key, _ in frozen.named_parameters()}
    assert norms
    assert names == {key for key, _ in model.named_parameters()} - norms
    labels = torch.arange(4)
    images = pictures(4)
    F.cross_entropy(frozen(images), labels).backward()
    F.cross_entropy(model(images), labels).backward()
    for key in names:  # and the rest of the gradient is the model's own
        expected = model.get_parameter(key).grad
        torch.testing.assert_close(
            frozen.get_parameter(key).grad, expected, rtol=1e-3, atol=1e-4 * float(expected.norm())
        )


def test_frozen_copy_has_forward_mode_derivatives():
    frozen = frozen_copy(lived_in(build_model("small", 10)).double())
    weights = {key: value.detach() for key, value in frozen.named_parameters()}
    direction = {key: torch.randn_like(value) for key, value in weights.items()}
    images = pictures(3)

    def losses(parameters):
        out = functional_call(frozen, parameters, (images,))
        return F.cross_entropy(out, torch.arange(3), reduction="none")

    _, slopes = jvp(losses, (weights,), (direction,))
    step = 1e-6
    ahead = losses({key: value + step * direction[key] for key, value in weights.items()})
    behind = losses({key: value - step * direction[key] for key, value in weights.items()})
    torch.testing.assert_close(slopes, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6)


def test_frozen_images_do_not_mix_and_keep_channels_innermost():
    frozen = frozen_copy(lived_in(build_model("small", 10)))
    images = pictures(5)
    one_by_one = torch.cat([frozen(image[None]) for image in images])
    torch.testing.assert_close(frozen(images), one_by_one, rtol=1e-4, atol=1e-4)
    layer = next(module for module in frozen.modules() if isinstance(module, ScaleShift))
    x = torch.randn(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


def test_frozen_batch_norm_of_other_shapes():
    model = nn.Sequential(
        nn.BatchNorm1d(3, affine=False), nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Flatten()
    )
    head = nn.Sequential(nn.Linear(24, 5), nn.Dropout(0.5), nn.BatchNorm1d(5))
    whole = lived_in(nn.Sequential(model, head)).eval()
    x = torch.randn(4, 3, 8)
    frozen = frozen_copy(whole)
    torch.testing.assert_close(frozen(x), whole(x), rtol=1e-5, atol=1e-5)
    assert not any(isinstance(module, nn.Dropout) for module in frozen.modules())
    alone = lived_in(nn.BatchNorm2d(3)).eval()
    y = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(frozen_copy(alone)(y), alone(y), rtol=1e-5, atol=1e-5)


def test_a_batch_norm_used_twice_is_frozen_in_both_places():
    norm = lived_in(nn.BatchNorm2d(3))
    model = nn.Sequential(norm, nn.Conv2d(3, 3, 1), norm).eval()
    frozen = frozen_copy(model)
    assert frozen[0] is frozen[2]
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-5, atol=1e-5)


def test_wrappers_of_compile_are_taken_off():
    model = lived_in(build_model("small", 10)).eval()
    compiled = torch.compile(model)
    assert unwrap_compiled(compiled) is model
    nested = nn.Sequential(torch.compile(model), nn.Identity())
    images = pictures(2)
    for wrapped in (compiled, nested):
        frozen = frozen_copy(wrapped)
        assert not any(hasattr(module, "_orig_mod") for module in frozen.modules())
        torch.testing.assert_close(frozen(images), model(images), rtol=1e-4, atol=1e-4)


class _Stubborn(nn.Module):
    """Noise that eval mode does not switch off."""

    def train(self, mode: bool = True) -> "_Stubborn":
        self.training = True
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, training=self.training)


class _OwnNorm(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x.mean()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm2d(3, track_running_stats=False), "'inner.1' .BatchNorm2d. .*mixes images"),
        (_OwnNorm(3), "'inner.1' ._OwnNorm. .*forward of its own"),
        (_Stubborn(), "'inner.1' ._Stubborn. stays in train mode"),
    ],
)
def test_layers_that_cannot_be_frozen_are_named(layer, message):
    model = nn.Module()
    model.inner = nn.Sequential(nn.Conv2d(3, 3, 1), layer)
    with pytest.raises(ValueError, match=message):
        frozen_copy(model)


def test_scripts_are_refused():
    script = torch.jit.script(nn.Sequential(nn.BatchNorm2d(3)))
    with pytest.raises(ValueError, match="script"):
        frozen_copy(nn.Sequential(script))


def test_normalisation_within_an_image_stays():
    model = nn.Sequential(nn.GroupNorm(1, 3), nn.InstanceNorm2d(3, affine=True), nn.Flatten())
    assert len(list(frozen_copy(model).parameters())) == 4


def test_a_model_that_keeps_its_activations_is_copied():
    class Keeps(nn.Sequential):
        def forward(self, x):
            self.seen = super().forward(x)
            return self.seen

    model = Keeps(build_model("small", 4))
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    model(images)
    assert not model.seen.is_leaf
    frozen = frozen_copy(model)
    with torch.no_grad():
        torch.testing.assert_close(frozen(images), model.eval()(images))
    assert torch.equal(copy_model(model).seen, model.seen)
