"""Networks by name: sizes, weights by seed, libraries, errors, and normalisation inside them."""

import subprocess
import sys

import pytest
import torch
from networks import lived_in, needs, pictures
from torch import nn
from torch.nn import functional as F

from deepaa.data import load_embedded
from deepaa.models.factory import Normalize, build_model, channel_statistics


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
    with pytest.raises(ValueError, match="timm is not installed"):
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
