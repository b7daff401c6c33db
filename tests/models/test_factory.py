"""Networks by name: sizes, weights by seed, libraries, and errors with close names."""

import subprocess
import sys

import pytest
import torch
from networks import lived_in, needs, pictures
from torch import nn
from torch.nn import functional as F

from deepaa.models.factory import build_model


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
