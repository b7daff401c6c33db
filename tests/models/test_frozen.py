"""The frozen copies whose gradients a search compares."""

import copy

import pytest
import torch
from networks import lived_in, needs, pictures
from torch import nn
from torch.func import functional_call, jvp
from torch.nn import functional as F

from deepaa.models.factory import build_model
from deepaa.models.frozen import ScaleShift, copy_model, frozen_copy, unwrap_compiled


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
