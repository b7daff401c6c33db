"""transforms.py: every kind of input gives the same pixels, and every stream can be repeated."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import warnings
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import tv_tensors
from torchvision.transforms import v2

from deepaa.keys import sample_keys
from deepaa.ops import apply_batch
from deepaa.policy import Policy
from deepaa.space import CIFAR, IMAGENET, Operation, Space
from deepaa.stages import Layers
from deepaa.transforms import AugmentedDataset, DeepAutoAugment

POLICY = Policy.uniform(CIFAR, 3)
INVERT = Policy.always(Operation("invert"))
IDENTITY = Policy.identity()
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def as_array(image: Tensor) -> np.ndarray[Any, Any]:
    """(C, H, W) as numpy (H, W, C)."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def stamp_kernel(image: Image.Image, magnitude: None, uniforms: list[float]) -> Image.Image:
    """An image that shows 64 bits of its draw, so that equal images mean equal draws."""
    out = image.copy()
    for x, u in enumerate(uniforms):
        out.putpixel((x, 0), int(u * 256))
    return out


STAMP = Operation("stamp", pil=stamp_kernel, uniforms=8)
STAMPS = Policy.always(STAMP)
BLANK = torch.zeros(1, 1, 8, dtype=torch.uint8)


def stamps(out: Tensor) -> list[bytes]:
    """What `STAMPS` wrote on (N, 1, 1, 8)."""
    return [image.numpy().tobytes() for image in out]


class Blank(Dataset[Any]):
    """(blank image, its index)."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return BLANK.clone(), index


class BlankAugmented(Blank):
    """(augmented blank image, its index), the transform called without an index."""

    def __init__(self, n: int, transform: DeepAutoAugment) -> None:
        super().__init__(n)
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index))


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


def test_structure_and_other_leaves_come_back_unchanged() -> None:
    transform = DeepAutoAugment(INVERT)
    image = noise(3, 6, 6)
    label, note, extra = torch.tensor(3), object(), torch.zeros(2, 5)
    Pair = namedtuple("Pair", "first second")  # noqa: PYI024

    assert torch.equal(transform(image), 255 - image)
    out = transform(image, label)
    assert type(out) is tuple
    assert torch.equal(out[0], 255 - image)
    assert out[1] is label
    out = transform({"label": label, "deep": [("x", image), None], "note": note, "extra": extra})
    assert list(out) == ["label", "deep", "note", "extra"]
    assert torch.equal(out["deep"][0][1], 255 - image)
    assert out["deep"][0][0] == "x"
    assert out["deep"][1] is None
    assert out["note"] is note
    assert out["extra"] is extra
    out = transform(Pair(image, 7))
    assert type(out) is Pair
    assert torch.equal(out.first, 255 - image)
    assert out.second == 7
    out = transform(OrderedDict(a=1, b=[image]))
    assert type(out) is OrderedDict
    assert torch.equal(out["b"][0], 255 - image)
    out = transform([image, 1])
    assert type(out) is list


def test_images_are_found_by_torchvisions_rule() -> None:
    transform = DeepAutoAugment(INVERT)
    tensor, array = noise(3, 6, 6), as_array(noise(3, 6, 6, seed=1))
    pil = Image.fromarray(array)
    # with an explicit image, plain tensors and arrays pass
    out = transform(tensor, pil, array, tv_tensors.Image(tensor))
    assert out[0] is tensor
    assert np.array_equal(np.array(out[1]), 255 - array)
    assert out[2] is array
    assert torch.equal(out[3], 255 - tensor)
    # without one, only the first counts
    second = noise(3, 6, 6, seed=2)
    out = transform(torch.zeros(6), tensor, second, array)
    assert torch.equal(out[1], 255 - tensor)
    assert out[2] is second
    assert out[3] is array
    out = transform(array, tensor)
    assert np.array_equal(out[0], 255 - array)
    assert out[1] is tensor
    # soft labels, masks and float maps are no images
    soft, mask, depth = torch.rand(6, 10), np.zeros((6, 6), np.int64), np.zeros((6, 6))
    out = transform(soft, mask, depth, tensor)
    assert out[0] is soft
    assert out[1] is mask
    assert out[2] is depth
    assert torch.equal(out[3], 255 - tensor)


def test_agrees_with_torchvision_on_what_is_transformed() -> None:
    ours, theirs = DeepAutoAugment(INVERT), v2.RandomInvert(p=1.0)
    tensor, pil = noise(3, 6, 6), Image.fromarray(as_array(noise(3, 6, 6, seed=1)))
    samples: list[Any] = [
        tensor,
        (tensor, torch.tensor(1)),
        {"a": tensor, "b": tensor.clone()},
        (tensor, pil),
        [pil, {"x": (pil, 3)}],
        (tv_tensors.Image(tensor), tensor),
    ]
    for sample in samples:
        got, want = (torch.utils._pytree.tree_flatten(f(sample)) for f in (ours, theirs))
        assert got[1] == want[1]
        for a, b in zip(got[0], want[0], strict=True):
            assert type(a) is type(b)
            assert np.array_equal(np.asarray(a), np.asarray(b))


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
        assert np.array_equal(after, was)


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


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ((), TypeError, "no image in this sample.*got nothing"),
        (torch.tensor(3), TypeError, r"no image.*Tensor torch.int64 \(\)"),
        (torch.zeros(10, 10), TypeError, r"no image.*Tensor torch.float32 \(10, 10\)"),
        (np.zeros((3, 32, 32), np.uint8), TypeError, r"no image.*ndarray uint8 \(3, 32, 32\)"),
        (np.zeros((2, 32, 32, 3), np.uint8), TypeError, "no image"),
        ({"path": "cat.png", "label": 3}, TypeError, "got str, int"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), TypeError, "uint8 or float.*torch.int64"),
        (torch.zeros(1, 2, 3, 8, 8), ValueError, r"\(C, H, W\) or.*\(1, 2, 3, 8, 8\)"),
        (torch.zeros(3, 0, 8), ValueError, "no pixels"),
        (np.zeros((0, 8, 3), np.uint8), ValueError, "no pixels"),
        (torch.zeros(224, 200, 3), ValueError, r"like \(H, W, C\).*permute\(2, 0, 1\)"),
        (torch.zeros(8, 32, 32, 3), ValueError, r"like \(N, H, W, C\).*permute\(0, 3, 1, 2\)"),
        (torch.randn(3, 8, 8), ValueError, r"lie in \[0, 1\].*before you normalise"),
        (np.full((8, 8, 3), 255.0), ValueError, r"lie in \[0, 1\]"),
        (Image.new("RGBA", (8, 8)), ValueError, r"'RGBA'.*convert\('RGB'\)"),
        (Image.new("P", (8, 8)), ValueError, "'P'"),
    ],
)
def test_bad_input_is_named(sample: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DeepAutoAugment(POLICY)(sample)


@pytest.mark.parametrize(
    "other",
    [
        tv_tensors.Mask(torch.zeros(8, 8)),
        tv_tensors.BoundingBoxes([[0, 0, 2, 2]], format="XYXY", canvas_size=(8, 8)),
        tv_tensors.KeyPoints([[1, 1]], canvas_size=(8, 8)),
        tv_tensors.Video(noise(2, 3, 8, 8)),
    ],
)
def test_what_geometry_would_leave_behind_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match=f"this sample holds {type(other).__name__}: shear"):
        DeepAutoAugment(POLICY)({"image": tv_tensors.Image(noise(3, 8, 8)), "other": other})


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="a Policy, a name or a path, got Space"):
        DeepAutoAugment(CIFAR)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="operations are for policies loaded"):
        DeepAutoAugment(POLICY, operations=[STAMP])
    with pytest.raises(TypeError, match=r"seed should be a whole number, got 1\.5"):
        DeepAutoAugment(POLICY, seed=1.5)  # type: ignore[arg-type]
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
    for seed in (0, 1, -1, 2**63, 2**70):
        transform = DeepAutoAugment(STAMPS, seed=seed)
        for epoch in (0, 1, 50):
            transform.set_epoch(epoch)
            assert transform.epoch == epoch
            seen |= {*stamps(transform(BLANK.expand(20, 1, 1, 8), index=range(20)))}
    assert len(seen) == 5 * 3 * 20 - 0


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


# Data loaders


def loaded(loader: DataLoader[Any], epochs: int = 1, dataset: Any = None) -> list[dict[int, bytes]]:
    """What each sample showed, by its index, for every epoch."""
    out = []
    for epoch in range(epochs):
        if dataset is not None:
            dataset.set_epoch(epoch)
        seen: dict[int, bytes] = {}
        for images, index in loader:
            seen.update(zip(index.tolist(), stamps(images), strict=True))
        out.append(seen)
    return out


def test_augmented_dataset_gives_one_stream_for_any_number_of_workers() -> None:
    def dataset() -> AugmentedDataset:
        return AugmentedDataset(Blank(24), DeepAutoAugment(STAMPS, seed=6))

    data = dataset()
    want = loaded(DataLoader(data, batch_size=5), 3, data)
    assert len({show for epoch in want for show in epoch.values()}) == 72
    for workers, persistent in ((1, False), (2, False), (2, True)):
        data = dataset()
        loader = DataLoader(
            data,
            batch_size=4,
            num_workers=workers,
            persistent_workers=persistent,
            sampler=RandomSampler(data),
            multiprocessing_context="fork",
        )
        assert loaded(loader, 3, data) == want
    # a restart in the last epoch, and one sample by hand
    data = dataset()
    data.set_epoch(2)
    assert loaded(DataLoader(data, batch_size=24)) == want[2:]
    assert data[7][0].numpy().tobytes() == data[7 - 24][0].numpy().tobytes() == want[2][7]


@pytest.mark.slow
def test_spawned_workers_give_the_same_stream() -> None:
    data = AugmentedDataset(Blank(8), DeepAutoAugment(STAMPS, seed=6))
    want = loaded(DataLoader(data, batch_size=4), 2, data)
    loader = DataLoader(
        data,
        batch_size=2,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    assert loaded(loader, 2, data) == want  # set_epoch reaches workers that run already


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1])
def test_spawned_workers_never_repeat_a_draw(seed: int | None) -> None:
    data = BlankAugmented(8, DeepAutoAugment(STAMPS, seed=seed))
    loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="spawn")
    shown = [show for epoch in loaded(loader, 2) for show in epoch.values()]
    assert len(set(shown)) == 16


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_no_two_workers_or_epochs_repeat_a_draw(
    seed: int | None, workers: int, persistent: bool
) -> None:
    def run() -> list[dict[int, bytes]]:
        torch.manual_seed(8)
        data = BlankAugmented(12, DeepAutoAugment(STAMPS, seed=seed))
        loader = DataLoader(
            data,
            batch_size=3,
            num_workers=workers,
            persistent_workers=persistent,
            multiprocessing_context="fork" if workers else None,
        )
        return loaded(loader, 3)

    first = run()
    shown = [show for epoch in first for show in epoch.values()]
    assert len(set(shown)) == 36
    assert run() == first  # torch's seed repeats the run


def test_unseeded_dataset_draws_afresh() -> None:
    data = AugmentedDataset(Blank(4), DeepAutoAugment(STAMPS))
    assert len(data) == 4
    assert len({data[0][0].numpy().tobytes() for _ in range(20)}) == 20


def test_dataset_of_pil_images_with_a_pipeline_behind() -> None:
    pixels = [noise(3, 8, 8, seed=i) for i in range(4)]
    source = [(Image.fromarray(as_array(image)), i) for i, image in enumerate(pixels)]
    then = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    data = AugmentedDataset(source, DeepAutoAugment(INVERT, seed=0), then=then)
    images, labels = next(iter(DataLoader(data, batch_size=4)))
    assert torch.allclose(images, 1 - torch.stack(pixels) / 255)
    assert labels.tolist() == [0, 1, 2, 3]


def test_dataset_warns_when_the_epoch_stands_still() -> None:
    data = AugmentedDataset(Blank(5), DeepAutoAugment(STAMPS, seed=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(DataLoader(data, batch_size=5), 4, data)  # the epoch moves
        loaded(DataLoader(data, batch_size=5))
    with pytest.warns(UserWarning, match=r"from a dataset of 5: call set_epoch") as caught:
        loaded(DataLoader(data, batch_size=5), 4)
    assert len(caught) == 1


def test_dataset_refuses_what_cannot_be_indexed() -> None:
    with pytest.raises(TypeError, match="needs __getitem__ and __len__, which generator lacks"):
        AugmentedDataset((i for i in range(3)), DeepAutoAugment(POLICY))
    data = AugmentedDataset(Blank(3), DeepAutoAugment(STAMPS, seed=0))
    with pytest.raises(IndexError):
        data[3]
    with pytest.raises(IndexError):
        data[-4]
    with pytest.raises(TypeError, match="index of a sample should be a whole number, got 'a'"):
        data["a"]  # type: ignore[index]


# Loading, importing


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


def test_importing_is_light() -> None:
    code = """
import sys, torch
before = set(sys.modules)
import deepaa.transforms
new = {name.partition(".")[0] for name in set(sys.modules) - before}
assert not new & {"torchvision", "matplotlib", "typer", "rich", "PIL", "jinja2"}, new
from deepaa.transforms import DeepAutoAugment
from deepaa.policy import Policy
from deepaa.space import CIFAR
out = DeepAutoAugment(Policy.uniform(CIFAR, 2))(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), 1)
assert out[1] == 1 and "torchvision" not in sys.modules and "PIL" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Compiled


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    torch._dynamo.reset()
    transform = DeepAutoAugment(POLICY, seed=7)
    fast = torch.compile(transform, fullgraph=True)
    images, index = noise(8, 3, 32, 32), torch.arange(8)
    want = transform(images, index=index)
    assert torch.equal(fast(images, index=index), want)
    out, labels = fast((images, index), index=index)
    assert torch.equal(out, want)
    assert torch.equal(labels, index)
    layout = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(fast(layout, index=index), want)
    floats = (images / 255).requires_grad_()
    assert torch.equal(fast(floats, index=index), transform(floats, index=index))
    for i in range(3):
        assert torch.equal(fast(images[i], index=i), want[i])
    transform.set_epoch(1)
    later = fast(images, index=index)
    assert not torch.equal(later, want)
    assert torch.equal(later, transform(images, index=index))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 7])
def test_compiled_streams_equal_eager_without_recompiling(seed: int | None) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager, compiled = DeepAutoAugment(STAMPS, seed=seed), DeepAutoAugment(STAMPS, seed=seed)
    images = BLANK.expand(4, 1, 1, 8).clone()

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return compiled(x), compiled(x)  # must not become one call

    fast = torch.compile(twice, fullgraph=True)
    torch.manual_seed(1)
    want = [eager(images) for _ in range(8)]
    torch.manual_seed(1)
    got = [out for _ in range(4) for out in fast(images)]
    assert stamps(torch.cat(got)) == stamps(torch.cat(want))
    assert len(set(stamps(torch.cat(got)))) == 32
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_compiled_transforms_do_not_mix_or_stay_alive() -> None:
    torch._dynamo.reset()
    a, b = DeepAutoAugment(INVERT), DeepAutoAugment(IDENTITY)
    image = noise(2, 3, 8, 8)
    assert torch.equal(torch.compile(a, fullgraph=True)(image), 255 - image)
    assert torch.equal(torch.compile(b, fullgraph=True)(image), image)
    assert torch.equal(torch.compile(copy.deepcopy(a), fullgraph=True)(image), 255 - image)
    from deepaa import transforms

    handle = a._handle
    torch._dynamo.reset()
    del a
    gc.collect()
    assert handle not in transforms._TRANSFORMS


# On the GPU


@pytest.mark.gpu
@needs_cuda
def test_cuda_equals_cpu_for_every_kind() -> None:
    for space, shape in ((CIFAR, (3, 32, 32)), (IMAGENET, (3, 64, 48)), (CIFAR, (1, 28, 28))):
        transform = DeepAutoAugment(Policy.uniform(space, 4), seed=3)
        images, index = noise(64, *shape), torch.arange(64)
        want = transform(images, index=index)
        gpu = images.cuda()
        for number in (index, index.cuda()):
            out = transform(gpu, index=number)
            assert out.device == gpu.device
            assert torch.equal(out.cpu(), want)
        assert torch.equal(transform(images, index=index.cuda()), want)
        assert torch.equal(
            transform(gpu / 255, index=index).cpu(), transform(images / 255, index=index)
        )
        assert torch.equal(transform(gpu[3], index=3).cpu(), want[3])
        wrapped = transform(tv_tensors.Image(gpu), index=index)
        assert type(wrapped) is tv_tensors.Image
        assert torch.equal(wrapped.cpu(), want)
        assert torch.equal(copy.deepcopy(transform)(gpu, index=index).cpu(), want)
        assert torch.equal(pickle.loads(pickle.dumps(transform))(gpu, index=index).cpu(), want)
        assert torch.equal(transform.cuda()(gpu, index=index).cpu(), want)


@pytest.mark.gpu
@needs_cuda
def test_cuda_streams_equal_cpu() -> None:
    images = noise(32, 3, 32, 32)
    for seed in (None, 5):
        for_cpu, for_gpu = DeepAutoAugment(POLICY, seed=seed), DeepAutoAugment(POLICY, seed=seed)
        torch.manual_seed(2)
        want = [for_cpu(images) for _ in range(3)]
        torch.manual_seed(2)
        for out in want:
            assert torch.equal(for_gpu(images.cuda()).cpu(), out)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("seed", [None, 5])
def test_cuda_batches_never_make_the_host_wait(seed: int | None) -> None:
    policy = Policy.uniform(CIFAR, 3)
    transform = DeepAutoAugment(policy, seed=seed).cuda()
    images = noise(64, 3, 32, 32).cuda()
    floats, labels = images / 255, torch.zeros(64, dtype=torch.int64, device="cuda")
    index, gpu_index = torch.arange(64), torch.arange(64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for epoch in range(3):
            transform.set_epoch(epoch)
            transform(images)
            transform({"image": floats, "label": labels})
            if seed is not None:
                transform(images, index=index)
                transform(images, labels, index=gpu_index)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.slow
@needs_cuda
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_cuda_compiled_equals_eager(mode: str) -> None:
    """CUDA graphs too: they must not replay the first draw for ever."""
    torch._dynamo.reset()
    images = noise(16, 3, 32, 32).cuda()
    for seed in (None, 5):
        eager, compiled = DeepAutoAugment(POLICY, seed=seed), DeepAutoAugment(POLICY, seed=seed)
        fast = torch.compile(lambda x, f=compiled: f(x).float().mul_(2), fullgraph=True, mode=mode)
        torch.manual_seed(1)
        want = [eager(images).float() * 2 for _ in range(6)]
        torch.manual_seed(1)
        for out in want:
            assert torch.equal(fast(images).clone(), out)
