"""transforms.py: every kind of input gives the same pixels, and every stream can be repeated."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import BLANK, STAMP, STAMPS, as_array, noise, stamps
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from deepaa.ops.apply import apply_batch
from deepaa.ops.rng import sample_keys
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Space
from deepaa.policy.policy import Policy
from deepaa.policy.stages import Layers
from deepaa.transforms.transform import DeepAutoAugment

POLICY = Policy.uniform(CIFAR, 3)
INVERT = Policy.always(Operation("invert"))
IDENTITY = Policy.identity()


# The same pixels for every kind of input


@pytest.mark.parametrize(
    ("space", "shape"), [(CIFAR, (3, 32, 32)), (CIFAR, (1, 28, 28)), (IMAGENET, (3, 33, 17))]
)
def test_every_kind_of_input_gives_the_same_pixels(space: Space, shape: tuple[int, ...]) -> None:
    policy = Policy.uniform(space, 3)
    transform = DeepAutoAugment(policy, seed=5)
    transform.set_epoch(2)
    images = noise(48, *shape)
    keys = sample_keys(5, 2, torch.arange(48))
    expected = apply_batch(images, policy.draw(keys), policy.table)
    assert not torch.equal(expected, images)

    batch = transform(images, index=torch.arange(48))
    assert batch.dtype == torch.uint8
    assert torch.equal(batch, expected)
    floats = transform(images.float() / 255, index=torch.arange(48))
    assert floats.dtype == torch.float32
    assert torch.equal((floats * 255).round().byte(), expected)
    for i, (image, want) in enumerate(zip(images, expected, strict=True)):
        array = as_array(image)
        grey = shape[0] == 1
        pil = transform(Image.fromarray(array[:, :, 0] if grey else array), index=i)
        assert isinstance(pil, Image.Image)
        assert pil.mode == ("L" if grey else "RGB")
        assert np.array_equal(np.array(pil).reshape(array.shape), as_array(want))

        out = transform(array, index=i)
        assert type(out) is np.ndarray
        assert out.dtype == np.uint8
        assert np.array_equal(out, as_array(want))
        if grey:
            assert np.array_equal(transform(array[:, :, 0], index=i), as_array(want)[:, :, 0])
        out = transform(array.astype(np.float64) / 255, index=i)
        assert out.dtype == np.float64
        assert np.array_equal((out * 255).round(), as_array(want))

        assert torch.equal(transform(image, index=i), want)
        assert torch.equal((transform(image / 255, index=i) * 255).round().byte(), want)
        wrapped = transform(tv_tensors.Image(image), index=i)
        assert type(wrapped) is tv_tensors.Image
        assert torch.equal(wrapped, want)


def test_tv_tensor_batches_stay_tv_tensors() -> None:
    transform = DeepAutoAugment(POLICY, seed=0)
    images = noise(4, 3, 16, 16)
    out = transform(tv_tensors.Image(images), index=range(4))
    assert type(out) is tv_tensors.Image
    assert torch.equal(out, transform(images, index=range(4)))


@pytest.mark.parametrize("channels", [2, 4, 7])
def test_other_channel_counts_work_where_the_policy_has_no_colour(channels: int) -> None:
    policy = Policy.uniform(CIFAR.without("contrast", "color"), 2)
    transform = DeepAutoAugment(policy, seed=1)
    image = noise(channels, 12, 20)
    want = transform(image[None], index=[3])[0]
    assert torch.equal(transform(image, index=3), want)
    if channels <= 4:
        assert np.array_equal(transform(as_array(image), index=3), as_array(want))
    with pytest.raises(ValueError, match=f"{channels} channels"):
        DeepAutoAugment(POLICY)(image)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_images_keep_their_dtype(dtype: torch.dtype) -> None:
    image = (noise(2, 3, 8, 8) / 255).to(dtype)
    out = DeepAutoAugment(INVERT)(image)
    assert out.dtype == dtype
    assert torch.allclose(out, 1 - image, atol=0.01)
    untouched = DeepAutoAugment(IDENTITY)(image)
    assert torch.equal(untouched, image)
    assert untouched.data_ptr() != image.data_ptr()


# Samples


def test_several_images_of_a_sample_share_one_draw() -> None:
    transform = DeepAutoAugment(POLICY)
    pil = Image.fromarray(as_array(noise(3, 32, 32)))
    for _ in range(10):
        a, b = transform(pil, pil.copy())
        assert np.array_equal(np.array(a), np.array(b))
    images = tv_tensors.Image(noise(4, 3, 32, 32))
    a, b = transform(images, images.clone())
    assert torch.equal(a, b)
    with pytest.raises(ValueError, match=r"share one draw.*\(4, 3, 32, 32\)"):
        transform(images, tv_tensors.Image(noise(3, 3, 32, 32)))


def test_each_image_of_a_batch_has_its_own_draw() -> None:
    out = DeepAutoAugment(STAMPS)(BLANK.expand(500, 1, 1, 8))
    assert len(set(stamps(out))) == 500


def test_works_in_a_v2_pipeline() -> None:
    pipeline = v2.Compose(
        [
            v2.RandomHorizontalFlip(p=0.0),
            DeepAutoAugment(INVERT),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    pixels = noise(3, 8, 8)
    image, label = pipeline(Image.fromarray(as_array(pixels)), 4)
    assert label == 4
    assert torch.allclose(image, (255 - pixels) / 127.5 - 1, atol=1e-6)
    image, label = v2.Compose([v2.ToImage(), DeepAutoAugment(INVERT)])((as_array(pixels), 4))
    assert torch.equal(image, 255 - pixels)


# Tensors


def test_input_is_never_written_to_or_returned() -> None:
    image = noise(3, 32, 32)
    batch = noise(16, 3, 32, 32)
    array = as_array(image)
    array.setflags(write=False)
    before = image.clone(), batch.clone(), array.copy()
    for policy in (POLICY, IDENTITY, Policy(CIFAR)):
        transform = DeepAutoAugment(policy)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for value in (image, batch, image / 255, batch / 255, array, array / np.float32(255)):
                out = transform(value)
                out[...] = 0  # nobody else's memory
    for after, was in zip((image, batch, array), before, strict=True):
        assert np.array_equal(np.asarray(after), np.asarray(was))


def test_layouts_and_strides() -> None:
    transform = DeepAutoAugment(POLICY, seed=0)
    images = noise(6, 3, 32, 32)
    want = transform(images, index=range(6))
    for layout in (
        images.contiguous(memory_format=torch.channels_last),
        images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        torch.stack([images, images], -1)[..., 0],
    ):
        for out in (
            transform(layout, index=range(6)),
            (transform(layout / 255, index=range(6)) * 255).round().byte(),
        ):
            assert torch.equal(out, want)
            assert out.is_contiguous()
    array = as_array(images[0])
    mirrored = array[::-1, ::-1]
    want_array = transform(np.ascontiguousarray(mirrored), index=0)
    assert np.array_equal(transform(mirrored, index=0), want_array)
    assert np.array_equal(
        (transform(mirrored / 255, index=0) * 255).round(), want_array.astype(np.float64)
    )


def test_no_gradient_flows_back() -> None:
    images = (noise(4, 3, 8, 8) / 255).requires_grad_()
    out = DeepAutoAugment(POLICY)(images)
    assert not out.requires_grad
    assert not DeepAutoAugment(IDENTITY)(images[0]).requires_grad
    assert torch.is_grad_enabled()


def test_inference_mode_leaves_nothing_behind() -> None:
    policy = Policy.uniform(CIFAR, 2)
    with torch.inference_mode():
        transform = DeepAutoAugment(policy, seed=0)
        inside = transform(noise(4, 3, 8, 8))
    transform.set_epoch(1)
    outside = transform(noise(4, 3, 8, 8))
    transform.set_epoch(0)
    assert torch.equal(transform(noise(4, 3, 8, 8)), inside)
    assert not outside.is_inference()


def test_empty_batches_and_policies() -> None:
    transform = DeepAutoAugment(POLICY, seed=0)
    assert transform(noise(0, 3, 8, 8)).shape == (0, 3, 8, 8)
    assert transform(noise(0, 3, 8, 8), index=torch.empty(0, dtype=torch.int64)).shape[0] == 0
    image = noise(3, 8, 8)
    assert torch.equal(DeepAutoAugment(Policy(CIFAR))(image), image)


def test_module_manners() -> None:
    transform = DeepAutoAugment(POLICY, seed=3)
    assert transform.state_dict() == {}
    assert list(transform.parameters()) == []
    assert repr(transform) == "DeepAutoAugment(Policy(3 layers over 139 rows), seed=3)"
    image = noise(3, 32, 32)
    want = transform(image, index=1)
    assert torch.equal(transform.eval()(image, index=1), want)  # as torchvision's transforms
    assert torch.equal(transform.to(torch.float64)(image, index=1), want)
    assert torch.equal(torch.nn.Sequential(DeepAutoAugment(INVERT))(image), 255 - image)


# What is refused


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="a Policy, a name or a path, got Space"):
        DeepAutoAugment(CIFAR)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="operations are for policies loaded"):
        DeepAutoAugment(POLICY, operations=[STAMP])
    with pytest.raises(TypeError, match=r"seed should be a whole number, got 1\.5"):
        DeepAutoAugment(POLICY, seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"seed should be .* got {2**64}"):
        DeepAutoAugment(POLICY, seed=2**64)
    seeded = DeepAutoAugment(POLICY, seed=0)
    with pytest.raises(TypeError, match="got no input"):
        seeded()
    for epoch, error in ((-1, ValueError), (0.5, TypeError)):
        with pytest.raises(error, match=f"epoch should be .* got {epoch}"):
            seeded.set_epoch(epoch)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"without a seed: use DeepAutoAugment\(policy, seed=0\)"):
        DeepAutoAugment(POLICY)(noise(3, 8, 8), index=0)
    for index in (1.0, "a", [1, 2], torch.tensor([1, 2])):
        with pytest.raises(TypeError, match="index of one image should be a whole number"):
            seeded(noise(3, 8, 8), index=index)
    for index in (3, [1], torch.zeros(2), torch.tensor([True, False]), torch.zeros(2, 1).long()):
        with pytest.raises(ValueError, match="index of a batch of 2 should be 2 whole numbers"):
            seeded(noise(2, 3, 8, 8), index=index)


# Randomness


def test_index_forms_agree() -> None:
    transform = DeepAutoAugment(STAMPS, seed=9)
    batch = BLANK.expand(3, 1, 1, 8)
    want = transform(batch, index=torch.tensor([7, -1, 2**40]))
    for index in ([7, -1, 2**40], np.array([7, -1, 2**40])):
        assert torch.equal(transform(batch, index=index), want)
    small = torch.tensor([7, -1, 5], dtype=torch.int16)
    assert torch.equal(transform(batch, index=small)[:2], want[:2])
    for one in (7, np.int32(7), torch.tensor(7)):
        assert torch.equal(transform(BLANK, index=one), want[0])
    assert len({*stamps(want)}) == 3


def test_seed_epoch_and_index_each_change_the_draw() -> None:
    seen = set()
    for seed in (0, 1, -1, -(2**63), 2**64 - 2):
        transform = DeepAutoAugment(STAMPS, seed=seed)
        for epoch in (0, 1, 50):
            transform.set_epoch(epoch)
            assert transform.epoch == epoch
            seen |= {*stamps(transform(BLANK.expand(20, 1, 1, 8), index=range(20)))}
    assert len(seen) == 5 * 3 * 20


def test_without_a_seed_torch_seeds_the_draws() -> None:
    transform = DeepAutoAugment(STAMPS)
    batch = BLANK.expand(4, 1, 1, 8)
    pil = Image.fromarray(BLANK[0].numpy())
    torch.manual_seed(3)
    first, second = transform(batch), transform(batch)
    assert len({*stamps(first), *stamps(second)}) == 8
    for same in (lambda: transform(BLANK), lambda: torch.from_numpy(np.array(transform(pil)))):
        torch.manual_seed(3)
        assert torch.equal(same().view(1, 8), first[0, 0])
    torch.manual_seed(3)
    assert torch.equal(transform(batch), first)


def test_a_seed_alone_numbers_the_calls_of_an_epoch() -> None:
    def run(epochs: range) -> list[bytes]:
        transform, out = DeepAutoAugment(STAMPS, seed=4), []
        for epoch in epochs:
            transform.set_epoch(epoch)
            out += stamps(transform(BLANK.expand(3, 1, 1, 8)))
            out += [transform(BLANK).numpy().tobytes() for _ in range(3)]
        return out

    whole = run(range(3))
    assert len(set(whole)) == 18
    torch.manual_seed(0)  # has no say
    assert run(range(3)) == whole
    assert run(range(2, 3)) == whole[12:]  # after a restart


def test_the_epoch_chooses_the_phase_of_a_schedule() -> None:
    table = INVERT.table.extended(IDENTITY.table.rows)
    change, keep = ([Layers(torch.tensor([p], dtype=torch.float64))] for p in ([1, 0], [0, 1]))
    transform = DeepAutoAugment(Policy(table, schedule=[(0, keep), (2, change)]))
    image = noise(3, 4, 4)
    for epoch, want in ((0, image), (1, image), (2, 255 - image), (9, 255 - image)):
        transform.set_epoch(epoch)
        assert torch.equal(transform(image), want)
        assert torch.equal(transform(image[None])[0], want)


def test_copies_are_equal_and_independent() -> None:
    transform = DeepAutoAugment(POLICY, seed=2)
    images = noise(4, 3, 32, 32)
    transform.set_epoch(3)
    transform(images)
    copies = [copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))]
    want = transform(images)
    for other in copies:
        assert other.epoch == 3
        assert torch.equal(other(images), want)  # the calls so far are copied too
        other.set_epoch(5)
        assert transform.epoch == 3


# Loading


def test_policies_are_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    POLICY.save(path)
    image = noise(3, 32, 32)
    want = DeepAutoAugment(POLICY, seed=1)(image, index=0)
    for source in (path, str(path)):
        assert torch.equal(DeepAutoAugment(source, seed=1)(image, index=0), want)
    STAMPS.save(path)
    with pytest.raises(ValueError, match="stamp"):
        DeepAutoAugment(path)
    own = DeepAutoAugment(path, seed=1, operations=[STAMP])
    assert torch.equal(own(BLANK, index=0), DeepAutoAugment(STAMPS, seed=1)(BLANK, index=0))
