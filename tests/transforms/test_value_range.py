"""Images of 16 bits and of declared ranges, and of more channels than three."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from deepaa import DeepAutoAugment
from deepaa.ops import Operation, Table
from deepaa.ops.space import CIFAR
from deepaa.policy import Policy, load_policy

BANDS = Policy.uniform(CIFAR.without("color", "contrast"), 2)
INVERT = [row for row in CIFAR.table.rows if row.operation.name == "invert"]
INVERTED = Policy(Table(INVERT), torch.ones(1, 1))
NOTHING = Policy.identity()
MOVES = Policy.uniform(CIFAR.only("rotate", "translate_x", "shear_y", "crop"), 2)
SIZE = (9, 20, 24)


def bands(dtype: str = "uint16", top: int = 65535) -> Any:
    """(C, H, W) numbers up to `top`, as an array."""
    return np.random.default_rng(0).integers(0, top, SIZE, endpoint=True).astype(dtype)


# 16 bits


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("form", ["array", "tensor"])
def test_an_untouched_image_keeps_every_value(dtype, form):
    low, high = (0, 65535) if dtype == "uint16" else (-1000, 3000)
    values = np.random.default_rng(0).integers(low, high, (20, 24, 5), endpoint=True).astype(dtype)
    image = values if form == "array" else torch.from_numpy(values.transpose(2, 0, 1).copy())
    out = DeepAutoAugment(NOTHING, value_range=(low, high))(image)
    assert (type(out), out.dtype, out.shape) == (type(image), image.dtype, image.shape)
    if dtype.startswith("float"):
        np.testing.assert_allclose(np.asarray(out), np.asarray(image), atol=2e-3)
    else:
        assert np.array_equal(np.asarray(out), np.asarray(image))


def test_changed_images_are_those_of_eight_bits_scaled():
    small = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)
    narrow, wide = (
        DeepAutoAugment(Policy.uniform(CIFAR, 2), seed=3, value_range=r) for r in (None, (0, 65535))
    )
    for index in range(40):
        expected = narrow(small, index=index)
        out = wide(small.astype(np.uint16) * 257, index=index)
        assert out.dtype == np.uint16
        assert np.array_equal(out, expected.astype(np.uint16) * 257)


def test_ranges_need_not_begin_at_nought():
    image = np.linspace(-50, 150, 20 * 24, dtype=np.float32).reshape(20, 24, 1)
    out = DeepAutoAugment(INVERTED, value_range=(-50, 150))(image)
    np.testing.assert_allclose(out, 100 - image, atol=200 / 255)
    assert len(np.unique(out)) <= 256


def test_grey_arrays_batches_lists_and_what_lies_beside_them():
    augment = DeepAutoAugment(INVERTED, seed=0, value_range=(0, 1000))
    grey = np.arange(480, dtype=np.uint16).reshape(20, 24)
    assert augment(grey).shape == (20, 24)
    assert int(augment(grey)[0, 0]) == 1000
    batch = torch.zeros(4, 5, 20, 24, dtype=torch.int32)
    assert augment(batch).eq(1000).all()
    assert [int(one[0, 0]) for one in augment([grey, grey], index=2)] == [1000, 1000]
    sample = {"image": torch.zeros(5, 20, 24), "label": torch.tensor(3), "weights": torch.ones(7)}
    done = augment(sample)
    assert float(done["image"].min()) == 1000
    assert (int(done["label"]), done["weights"].tolist()) == (3, [1] * 7)


@pytest.mark.filterwarnings("ignore:a plain Tensor")
def test_images_and_videos_of_torchvision_stay_what_they_are():
    tv = pytest.importorskip("torchvision.tv_tensors")
    augment = DeepAutoAugment(BANDS, seed=0, value_range=(0, 65535))
    image = tv.Image(torch.from_numpy(bands()))
    for index in range(4):
        plain = augment(image.as_subclass(torch.Tensor), index=index)
        left, right = augment((image, image), index=index)
        assert type(left) is type(right) is tv.Image
        assert torch.equal(left, plain)
        assert torch.equal(right, plain)
        found = augment({"depth": torch.full((1, 20, 24), 1e6), "image": image}, index=index)
        assert type(found["image"]) is tv.Image
        assert torch.equal(found["image"], plain)
        assert found["depth"].eq(1e6).all()
        video = augment(tv.Video(image[None].repeat(3, 1, 1, 1)), index=index)
        assert type(video) is tv.Video
        assert all(torch.equal(frame, plain) for frame in video.as_subclass(torch.Tensor))


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "float32", "float64"])
def test_bytes_may_be_in_either_order(dtype):
    """As files of another machine have them."""
    image = bands(top=30_000).astype(dtype).transpose(1, 2, 0)
    augment = DeepAutoAugment(BANDS, seed=0, value_range=(0, 30_000))
    swapped = augment(image.astype(image.dtype.newbyteorder(">")), index=1)
    assert np.array_equal(swapped, augment(image, index=1))
    if dtype.startswith("float"):
        plain = DeepAutoAugment(BANDS, seed=0)
        unit = image / 30_000
        assert np.array_equal(
            plain(unit.astype(f">{unit.dtype.str[1:]}"), index=1), plain(unit, index=1)
        )


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_masks_without_sign_take_every_fill(dtype: torch.dtype) -> None:
    """16-bit files of instances are such masks."""
    tv = pytest.importorskip("torchvision.tv_tensors")
    most = torch.iinfo(dtype).max if dtype != torch.uint64 else 2**63 - 1
    for fill in (0, 7, 40_000, most):
        transform = DeepAutoAugment(MOVES, seed=1, mask_fill=fill)
        values = torch.arange(108).reshape(12, 9) + 40_000
        image = torch.zeros(3, 12, 9, dtype=torch.uint8)
        for i in range(8):
            _, mask = transform(image, tv.Mask(values.to(dtype)), index=i)
            other = DeepAutoAugment(MOVES, seed=1, mask_fill=-1)
            _, want = other(image, tv.Mask(values), index=i)
            expected = want.as_subclass(torch.Tensor).clone()
            expected[expected == -1] = fill
            assert mask.dtype == dtype
            assert torch.equal(mask.as_subclass(torch.Tensor).to(torch.int64), expected)


def test_bytes_and_pil_images_are_taken_as_they_are():
    small = np.zeros((20, 24, 3), np.uint8)
    augment = DeepAutoAugment(INVERTED, value_range=(0, 65535))
    assert augment(small).min() == 255
    assert augment((small, 5))[1] == 5


@pytest.mark.parametrize("value", [-1.0, 1001.0, float("nan"), float("inf")])
def test_values_outside_of_the_range_are_refused(value):
    image = torch.zeros(3, 20, 24)
    image[1, 2, 3] = value
    with pytest.raises(ValueError, match=r"should lie in value_range \(0, 1000\), but these span"):
        DeepAutoAugment(INVERTED, value_range=(0, 1000))(image)


@pytest.mark.parametrize(
    "given", [5, (1,), (3, 3), (2, 1), (0, float("inf")), ("a", "b"), (1, 2, 3)]
)
def test_ranges_without_meaning_are_refused(given):
    with pytest.raises(ValueError, match=re.escape(f"got {given!r}")):
        DeepAutoAugment(INVERTED, value_range=given)


def test_without_a_range_the_error_names_it():
    with pytest.raises(TypeError, match=r"value_range=\(0, 65535\)"):
        DeepAutoAugment(INVERTED)(bands().transpose(1, 2, 0))


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
def test_pil_images_of_16_bits_are_what_their_arrays_are(mode, tmp_path):
    values = bands()[0]
    image = Image.frombytes(
        mode, values.shape[::-1], values.astype(">u2" if "B" in mode else "<u2")
    )
    image.info["dpi"] = (72, 72)
    assert np.array_equal(np.asarray(image), values)
    augment = DeepAutoAugment(Policy.uniform(CIFAR, 2), seed=3, value_range=(0, 65535))
    changed = 0
    for index in range(20):
        want, out = augment(values, index=index), augment(image, index=index)
        assert (out.mode, out.size, out.info) == (mode, image.size, image.info)
        assert np.array_equal(np.asarray(out), want)
        changed += not np.array_equal(want, values)
    assert changed > 10
    views = augment({"a": image, "b": (image, 3)}, index=1)  # share a draw
    several = augment([image, image], index=[1, 2])
    for found, index in ((views["a"], 1), (views["b"][0], 1), (several[0], 1), (several[1], 2)):
        assert np.array_equal(np.asarray(found), augment(values, index=index))
    image.save(tmp_path / "a.png") if mode == "I;16" else image.save(tmp_path / "a.tif")
    with Image.open(next(tmp_path.iterdir())) as opened:
        assert np.array_equal(np.asarray(augment(opened, index=1)), augment(values, index=1))


def test_boxes_go_with_pil_images_of_16_bits():
    image = Image.fromarray(bands()[0])
    flip = DeepAutoAugment(Policy.always(Operation("flip")), seed=0, value_range=(0, 65535))
    box = tv_tensors.BoundingBoxes([[1, 2, 5, 9]], format="XYXY", canvas_size=SIZE[1:])
    outs = [flip(image, box, index=i) for i in range(8)]
    values = np.int64(np.asarray(image))
    turned = [bool(np.abs(np.asarray(out) - values).max() > 257) for out, _ in outs]
    assert any(turned)
    assert not all(turned)
    assert [moved.tolist() == [[19, 2, 23, 9]] for _, moved in outs] == turned


def test_other_pil_images_are_told_what_to_do():
    augment = DeepAutoAugment(INVERTED, value_range=(0, 4095))
    with pytest.raises(ValueError, match=r"should lie in value_range \(0, 4095\), but these span"):
        augment(Image.fromarray(bands()[0]))
    for mode in ("I", "F"):
        with pytest.raises(ValueError, match=rf"mode '{mode}'.*np.asarray\(image\)") as error:
            augment(Image.new(mode, (8, 8)))
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"'I;16'.*DeepAutoAugment, value_range=\(0, 65535\), or"):
        DeepAutoAugment(INVERTED)(Image.new("I;16", (8, 8)))


def test_the_range_is_shown_and_travels():
    augment = DeepAutoAugment(INVERTED, seed=1, value_range=(0, 4095))
    assert "value_range=(0.0, 4095.0)" in repr(augment)
    again = pickle.loads(pickle.dumps(augment))
    image = bands(top=4095)
    assert torch.equal(again(torch.from_numpy(image)), augment(torch.from_numpy(image)))
    assert "value_range" not in repr(DeepAutoAugment(INVERTED))


def test_a_compiler_leaves_a_range_out_of_its_graphs():
    images, index = 9 * torch.rand(4, 3, 8, 8), torch.arange(4)
    augment = DeepAutoAugment(Policy.uniform(CIFAR, 2), seed=0, value_range=(0, 9))
    compiled = torch.compile(augment, backend="eager")
    assert torch.equal(compiled(images, index=index), augment(images, index=index))


# Channels


@pytest.mark.parametrize("channels", [2, 4, 5, 13])
def test_each_channel_is_what_it_would_be_alone(channels):
    image = torch.from_numpy(
        np.random.default_rng(1).integers(0, 256, (channels, 20, 24), np.uint8)
    )
    augment = DeepAutoAugment(BANDS, seed=7)
    for index in range(60):
        whole = augment(image, index=index)
        alone = torch.cat([augment(channel[None], index=index) for channel in image])
        assert torch.equal(whole, alone)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_arrays_and_tensors_of_many_channels_are_equal(dtype):
    image = np.random.default_rng(2).integers(0, 256, (20, 24, 13)).astype(dtype)
    image = image if dtype == "uint8" else image / np.float32(255)
    augment = DeepAutoAugment(BANDS, seed=7)
    for index in range(10):
        out = augment(image, index=index)
        tensor = augment(torch.from_numpy(image.transpose(2, 0, 1).copy()), index=index)
        assert np.array_equal(out, tensor.numpy().transpose(1, 2, 0))
        assert out.flags.c_contiguous
        assert np.array_equal(augment((image, 3), index=index)[0], out)


@pytest.mark.parametrize("shape", [(13, 20, 24), (20, 24, 65), (20, 5, 6)])
def test_arrays_that_may_be_something_else_are_none(shape):
    with pytest.raises(TypeError, match="at most 64 channels, fewer than pixels a side"):
        DeepAutoAugment(BANDS)(np.zeros(shape, np.uint8))


def test_colour_is_refused_by_name_with_what_to_do():
    image = torch.zeros(13, 20, 24, dtype=torch.uint8)
    policy = load_policy("trivialaugment")
    with pytest.raises(ValueError, match="color and contrast need grey or RGB") as caught:
        DeepAutoAugment(policy)(image)
    advice = re.search(r"take them out: policy\.(without\(.*?\)\)), or", str(caught.value))
    assert advice is not None
    without = eval("policy." + advice[1])  # what the line says is what works
    assert DeepAutoAugment(without)(image).shape == image.shape
