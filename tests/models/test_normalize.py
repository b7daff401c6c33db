"""Normalisation inside the network, and the statistics of images."""

import pytest
import torch
from networks import pictures

from deepaa.data import load_embedded
from deepaa.models.factory import build_model
from deepaa.models.normalize import Normalize, channel_statistics


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
