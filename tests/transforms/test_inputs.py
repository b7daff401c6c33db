"""samples.py: images are found as torchvision finds them, and everything else passes."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import as_array, noise
from PIL import Image
from torch.utils._pytree import tree_flatten
from torchvision import tv_tensors
from torchvision.transforms import v2

from deepaa.ops.space import CIFAR, Operation
from deepaa.policy.policy import Policy
from deepaa.transforms.inputs import batch_size, image_places, whole_number
from deepaa.transforms.transform import DeepAutoAugment

POLICY = Policy.uniform(CIFAR, 3)
INVERT = Policy.always(Operation("invert"))


def test_structure_and_other_leaves_come_back_unchanged() -> None:
    transform = DeepAutoAugment(INVERT)
    image = noise(3, 6, 6)
    label, note, extra = torch.tensor(3), object(), torch.zeros(2, 5)
    Pair = namedtuple("Pair", "first second")

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
        got, want = (tree_flatten(f(sample)) for f in (ours, theirs))
        assert got[1] == want[1]
        for a, b in zip(got[0], want[0], strict=True):
            assert type(a) is type(b)
            assert np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ((), TypeError, "no image in this sample.*got nothing"),
        (torch.tensor(3), TypeError, r"no image.*Tensor torch.int64 \(\)"),
        (torch.zeros(10, 10), TypeError, r"Tensor torch.float32 \(10, 10\).*: image\[None\]$"),
        (torch.zeros(7, 4), TypeError, r"no image.*Tensor torch.float32 \(7, 4\)$"),  # boxes
        (
            np.zeros((3, 32, 32), np.uint8),
            TypeError,
            r"uint8 \(3, 32, 32\); .*transpose\(1, 2, 0\)",
        ),
        (np.zeros((9, 8, 3), np.int64), TypeError, r"\(9, 8, 3\); .*array.astype\(np.uint8\)$"),
        (
            np.zeros((2, 32, 32, 3), np.uint8),
            TypeError,
            r"no image.*: list\(batch\); .*Video \(T, C",
        ),
        ({"path": "cat.png", "label": 3}, TypeError, r"got str, int; .*PIL.Image.open\(path\)"),
        (Path("cat.png"), TypeError, r"got \w+Path; open the file first"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), TypeError, "uint8 or float.*torch.int64"),
        (torch.zeros(1, 2, 3, 8, 8), ValueError, r"or.*\(1, 2, 3, 8, 8\); .*tv_tensors.Video\(b"),
        (torch.zeros(3, 0, 8), ValueError, "no pixels"),
        (np.zeros((0, 8, 3), np.uint8), ValueError, "no pixels"),
        (torch.zeros(224, 200, 3), ValueError, r"like \(H, W, C\).*permute\(2, 0, 1\)"),
        (torch.zeros(8, 32, 32, 3), ValueError, r"like \(N, H, W, C\).*permute\(0, 3, 1, 2\)"),
        (torch.randn(3, 8, 8), ValueError, r"lie in \[0, 1\].*before you normalise"),
        (np.full((8, 8, 3), 255.0), ValueError, r"lie in \[0, 1\].*divide them by 255"),
        (np.zeros((8, 8, 3), np.uint16), TypeError, r"8: np.uint8\(np.asarray\(image\) // 257\)"),
        (torch.full((3, 8, 8), 999), TypeError, r"for 16 bits: \(images.int\(\) // 257\)"),
        (Image.new("I;16", (8, 8)), ValueError, r"mode 'I;16'.*convert\(\) would clip"),
        (Image.new("RGBA", (8, 8)), ValueError, r"'RGBA'.*convert\('RGB'\)"),
        (Image.new("P", (8, 8)), ValueError, r"'P'.*tv_tensors.Mask\(image\) if it is a mask"),
    ],
)
def test_bad_input_is_named(sample: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DeepAutoAugment(POLICY)(sample)


class Depth(tv_tensors.TVTensor):
    """What somebody made of torchvision's class."""


def test_what_geometry_would_leave_behind_is_refused() -> None:
    other = torch.zeros(8, 8).as_subclass(Depth)
    with pytest.raises(TypeError, match="this sample holds Depth, which it would leave behind"):
        DeepAutoAugment(POLICY)({"image": tv_tensors.Image(noise(3, 8, 8)), "other": other})


def test_places_and_sizes_by_hand() -> None:
    pil = Image.new("L", (4, 4))
    batch, label = torch.zeros(5, 1, 4, 4), torch.zeros(5)
    assert image_places([label, 3, batch, batch]) == [2]
    assert image_places([batch, pil, "x", pil]) == [1, 3]
    assert image_places([np.zeros((4, 4), np.uint8), batch]) == [0]
    assert batch_size([batch, batch]) == 5
    assert batch_size([pil, batch[0], np.zeros((4, 4, 3))]) is None
    with pytest.raises(ValueError, match="share one draw"):
        batch_size([batch, batch[0]])


def test_whole_numbers_only() -> None:
    for good in (3, np.uint8(3), torch.tensor(3)):
        assert whole_number(good, "it") == 3
    for bad in (3.0, "3", None, torch.tensor(3.0)):
        with pytest.raises(TypeError, match="it should be a whole number, got"):
            whole_number(bad, "it")
    with pytest.raises(ValueError, match=r"it should be in 0\.\.5, got 6"):
        whole_number(6, "it", 0, 5)


# Who has a draw of its own


def pictures(n: int) -> list[Image.Image]:
    return [Image.fromarray(as_array(noise(3, 24, 24)))] * n


def distinct(images: Any) -> int:
    return len({np.asarray(image).tobytes() for image in images})


@pytest.mark.parametrize("seed", [None, 3])
def test_each_image_of_a_list_has_a_draw_of_its_own(seed: int | None) -> None:
    transform = DeepAutoAugment(POLICY, seed=seed)
    (pil,), tensor = pictures(1), noise(3, 24, 24)
    assert distinct(transform({"image": [pil] * 8, "label": list(range(8))})["image"]) == 8
    assert distinct(transform([pil] * 8)) == 8
    assert distinct(transform([tensor] * 8)) == 8
    assert distinct(transform([as_array(tensor)] * 8)) == 8
    assert distinct(transform([tv_tensors.Image(tensor)] * 8)) == 8
    samples = transform([{"image": pil, "label": i} for i in range(8)])
    assert distinct(sample["image"] for sample in samples) == 8
    assert [sample["label"] for sample in samples] == list(range(8))
    samples = transform([{"image": tensor, "label": i} for i in range(8)])
    assert distinct(sample["image"] for sample in samples) == 8
    samples = transform([(pil, i) for i in range(8)], "note")
    assert distinct(image for image, _ in samples[0]) == 8
    assert samples[1] == "note"
    assert distinct(one for part in transform([[pil] * 4, [pil] * 4]) for one in part) == 8
    batches = transform([{"image": tensor.expand(4, 3, 24, 24)}] * 2)
    assert distinct(image for batch in batches for image in batch["image"]) == 8


def test_a_list_gives_the_pixels_of_a_batch() -> None:
    images = noise(8, 3, 24, 24)
    pil = [Image.fromarray(as_array(image)) for image in images]
    for index in (None, [5, 3, 2, 9, 1, 0, 7, 6]):
        given: dict[str, Any] = {} if index is None else {"index": index}
        want = DeepAutoAugment(POLICY, seed=3)(images, **given)
        for several in (list(images), pil, [{"image": one} for one in pil]):
            out = tree_flatten(DeepAutoAugment(POLICY, seed=3)(several, **given))[0]
            for one, expected in zip(out, want, strict=True):
                got = one if isinstance(one, torch.Tensor) else as_tensor(one)
                assert torch.equal(got, expected)
    torch.manual_seed(0)
    want = DeepAutoAugment(POLICY)(images)
    torch.manual_seed(0)
    assert torch.equal(torch.stack(DeepAutoAugment(POLICY)(list(images))), want)


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_views_of_one_image_share_a_draw() -> None:
    transform = DeepAutoAugment(POLICY, seed=3)
    (pil,), tensor = pictures(1), noise(3, 24, 24)
    for _ in range(4):
        assert distinct(transform((pil, pil))) == 1
        assert distinct(transform(pil, pil)) == 1
        assert distinct(transform({"left": pil, "right": pil}).values()) == 1
        # the images at one place of several lists belong together, and so do those of one sample
        rows = transform({"left": [pil] * 8, "right": [pil] * 8})
        assert all(distinct(row) == 1 for row in zip(rows["left"], rows["right"], strict=True))
        assert distinct(rows["left"]) == 8
        pairs = transform([(pil, pil)] * 8)
        assert all(distinct(pair) == 1 for pair in pairs)
        assert distinct(first for first, _ in pairs) == 8
    # arrays and tensors beside the first are no images, in a list of samples too
    out = transform({"image": [tensor] * 2, "mask": [tensor[:1]] * 2})
    assert distinct(out["image"]) == 2
    assert all(mask is not None and torch.equal(mask, tensor[:1]) for mask in out["mask"])


def test_a_list_of_different_things_is_one_sample() -> None:
    tensor, mask, target = noise(3, 24, 24), noise(1, 24, 24), {"other": noise(2, 24, 24)}
    transform = DeepAutoAugment(INVERT)
    image, same = transform([tensor, mask])
    assert torch.equal(image, 255 - tensor)
    assert same is mask
    images, masks = transform([noise(4, 3, 24, 24), noise(4, 3, 24, 24)])  # as a loader gives them
    assert torch.equal(images, 255 - noise(4, 3, 24, 24))
    assert torch.equal(masks, noise(4, 3, 24, 24))
    image, targets = transform(tensor, [target, target])
    assert torch.equal(image, 255 - tensor)
    assert all(torch.equal(one["other"], target["other"]) for one in targets)
    assert transform([tensor, 3])[1] == 3
    assert transform([tensor])[0].shape == tensor.shape


def test_one_index_gives_each_image_of_a_list_its_own_draw() -> None:
    """As `AugmentedDataset` does for a dataset whose items hold lists of views."""
    transform, (pil,) = DeepAutoAugment(POLICY, seed=3), pictures(1)
    views = transform([pil] * 8, index=5)
    assert distinct(views) == 8
    assert distinct([views[0], transform(pil, index=5), transform([pil], index=5)[0]]) == 1
    assert distinct([views[3], transform([pil] * 8, index=5)[3]]) == 1
    with pytest.raises(ValueError, match="index of a batch of 8 should be 8 whole numbers"):
        transform([pil] * 8, index=[1, 2])


def test_lists_that_do_not_fit_together_are_refused() -> None:
    transform, (pil,) = DeepAutoAugment(POLICY), pictures(1)
    with pytest.raises(ValueError, match=r"should have one length.*these have 8 and 4"):
        transform({"a": [pil] * 8, "b": [pil] * 4})
    with pytest.raises(ValueError, match=r"all be in lists.*or all be outside.*has both"):
        transform({"a": [pil] * 8, "b": pil})
    with pytest.raises(TypeError, match="no image in this sample"):
        transform([])


def test_lists_in_compiled_code() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(DeepAutoAugment(INVERT), backend="eager", fullgraph=True)
    images, _labels = compiled([noise(2, 3, 8, 8), torch.arange(2)])
    assert torch.equal(images, 255 - noise(2, 3, 8, 8))
    with pytest.raises(Exception, match="list of images cannot be compiled"):
        compiled([noise(3, 8, 8), noise(3, 8, 8)])


def test_targets_without_an_image_are_told_what_is_missing() -> None:
    boxes = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(16, 24))
    mask = tv_tensors.Mask(torch.zeros(16, 24))
    for sample, told in (
        (
            {"boxes": boxes, "masks": mask},
            r"; BoundingBoxes move with .*missing: augment\(image, b",
        ),
        ([mask, 3], r"; Mask move with their image, which is missing: augment\(image, mask\)"),
        ({"boxes": boxes, "image": "a.png"}, "; open the file first"),
    ):
        with pytest.raises(TypeError, match=told) as error:
            DeepAutoAugment("deepta")(sample)
        assert "looked into" not in str(error.value)
