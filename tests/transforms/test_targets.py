"""targets.py: boxes, masks, key points and videos go with their image, in all forms of samples."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from pictures import STAMPS, noise
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import convert_bounding_box_format

from deepaa.ops.space import Operation, Space, Table
from deepaa.policy.policy import Policy
from deepaa.transforms import AugmentedDataset, DeepAutoAugment

FILL = {"fill": 7}
GEOMETRY = Space(
    (
        Operation("identity"),
        Operation("invert"),
        Operation("shear_x", -0.3, 0.3, options=FILL),
        Operation("shear_y", -0.3, 0.3, options=FILL),
        Operation("translate_x", -0.45, 0.45, options=FILL),
        Operation("translate_y", -0.45, 0.45, options=FILL),
        Operation("rotate", -180, 180, options=FILL),
        Operation("flip"),
        Operation("crop", options=FILL),
        Operation("cutout", options={**FILL, "size": 5}),
    )
)
MOVES = Space(tuple(op for op in GEOMETRY.operations if op.name not in ("invert", "cutout")))
POLICY = Policy.uniform(GEOMETRY, 3)
HALF_LEFT = Table([(Operation("translate_x", 0, 0.5), 0.5)])


def boxes(*rows: Any, kind: str = "XYXY", size: tuple[int, int] = (16, 24)) -> Any:
    return tv_tensors.BoundingBoxes(torch.tensor(rows), format=kind, canvas_size=size)


def points(*rows: Any, size: tuple[int, int] = (16, 24)) -> Any:
    return tv_tensors.KeyPoints(torch.tensor(rows), canvas_size=size)


def plain(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Tensor)


def target(i: int, size: tuple[int, int] = (16, 24)) -> dict[str, Any]:
    return {
        "boxes": boxes([1.0 + i, 2.0, 9.0, 11.0], [3.0, 4.0, 20.0, 15.0], size=size),
        "masks": tv_tensors.Mask(noise(2, *size, seed=i)),
        "points": points([[1.5, 2.5], [7.0, 9.0]], size=size),
        "labels": torch.tensor([3, i]),
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    assert [type(value) for value in a.values()] == [type(value) for value in b.values()]
    return all(torch.equal(plain(a[key]), plain(b[key])) for key in a)


# Masks


@given(st.integers(0, 2**40), st.integers(1, 40), st.integers(1, 40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_mask_is_the_image_under_nearest_neighbours(
    index: int, height: int, width: int, hide: bool
) -> None:
    space = GEOMETRY.without("invert") if hide else MOVES
    transform = DeepAutoAugment(
        Policy.uniform(space, 3), 0, mask_fill=7, cutout_targets="hide" if hide else "keep"
    )
    image = noise(1, height, width)
    out, mask = transform(image, tv_tensors.Mask(image.clone()), index=index)
    assert type(mask) is tv_tensors.Mask
    assert torch.equal(plain(mask), out)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float32, torch.uint16, torch.uint64],
)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (0,), (2, 3)])
def test_masks_of_every_kind(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    transform = DeepAutoAugment(Policy.uniform(MOVES, 2), seed=1, mask_fill=1)
    values = noise(*shape, 12, 9).remainder(2).to(dtype)
    before = values.clone()
    for i in range(5):
        _, mask = transform(Image.new("RGB", (9, 12)), tv_tensors.Mask(values), index=i)
        assert mask.dtype == dtype
        assert mask.shape == values.shape
        flat = values.reshape(-1, 12, 9)
        for one, out in zip(flat, plain(mask).reshape(-1, 12, 9), strict=True):
            single = transform(Image.new("L", (9, 12)), tv_tensors.Mask(one), index=i)[1]
            assert torch.equal(plain(single), out)
    assert torch.equal(values, before)


def test_cutout_keeps_or_hides() -> None:
    policy = Policy.always(Operation("cutout", options={"size": 30, "fill": 0}))
    image = torch.full((3, 16, 24), 9, dtype=torch.uint8)
    sample = {**target(0), "image": tv_tensors.Image(image)}
    kept = DeepAutoAugment(policy, seed=0)(sample, index=1)
    assert (kept["image"] == 0).any()
    assert same({**kept, "image": sample["image"]}, sample)
    hidden = DeepAutoAugment(policy, seed=0, cutout_targets="hide", mask_fill=255)(sample, index=1)
    covered = plain(hidden["image"])[0] == 0
    want = plain(sample["masks"]).masked_fill(covered, 255)
    assert torch.equal(plain(hidden["masks"]), want)
    for before, after in zip(sample["points"][0], hidden["points"][0], strict=True):
        x, y = int(before[0]), int(before[1])
        assert plain(after).tolist() == ([-1, -1] if covered[y, x] else before.tolist())
    for before, after in zip(plain(sample["boxes"]), plain(hidden["boxes"]), strict=True):
        left, top, right, bottom = before.int().tolist()
        whole = bool(covered[top:bottom, left:right].all())
        assert (after[2:] == after[:2]).all() == whole


# Boxes and points


@given(st.integers(0, 2**40), st.integers(12, 40), st.integers(12, 40))
@settings(max_examples=150, deadline=None)
def test_a_painted_marker_and_its_point_stay_together(index: int, height: int, width: int) -> None:
    transform = DeepAutoAugment(Policy.uniform(MOVES, 1), seed=0)
    image = torch.full((1, height, width), 7, dtype=torch.uint8)
    y, x = height // 2, width // 3
    image[0, y - 1 : y + 2, x - 1 : x + 2] = 255
    size = (height, width)
    marker = boxes([x - 1.0, y - 1.0, x + 2.0, y + 2.0], size=size)
    spot, pixel = points([x + 0.5, y + 0.5], size=size), points([x, y], size=size)
    out, box, spot, pixel = transform(image, marker, spot, pixel, index=index)
    rows, columns = np.nonzero(out[0].numpy() == 255)
    (left, top, right, bottom), (px, py) = box[0].tolist(), spot[0].tolist()
    if not 2 < px < width - 2 or not 2 < py < height - 2:
        return  # a part of it may be outside
    assert abs(columns.mean() + 0.5 - px) < 1
    assert abs(rows.mean() + 0.5 - py) < 1
    for number, place in zip(pixel[0].tolist(), (px, py), strict=True):
        assert number == int(place) or abs(place % 1 - 0.5) > 0.499  # float32 rounded it to whole
    assert max(abs(left - columns.min()), abs(right - columns.max() - 1)) <= 1
    assert max(abs(top - rows.min()), abs(bottom - rows.max() - 1)) <= 1


@pytest.mark.parametrize("kind", ["XYWH", "CXCYWH"])
def test_formats_tell_the_same_box(kind: str) -> None:
    transform = DeepAutoAugment(POLICY, seed=4)
    given_boxes = boxes([1.0, 2.0, 9.0, 11.0], [0.5, 0.25, 24.0, 16.0], [20.0, 3.0, 23.0, 4.0])
    other = convert_bounding_box_format(given_boxes, new_format=kind)
    for i in range(30):
        _, want, found = transform(noise(3, 16, 24), given_boxes, other, index=i)
        assert found.format.value == kind
        assert found.canvas_size == (16, 24)
        back = convert_bounding_box_format(found, new_format="XYXY")
        assert torch.allclose(plain(back), plain(want), atol=1e-4)


def test_whole_boxes_stay_whole_and_around() -> None:
    transform = DeepAutoAugment(Policy.uniform(MOVES, 3), seed=4)
    rows = ([1, 2, 9, 11], [0, 0, 24, 16])
    for i in range(40):
        whole, exact = transform(
            noise(3, 16, 24), boxes(*rows), boxes(*rows).to(torch.float64), index=i
        )[1:]
        assert whole.dtype == torch.int64
        big, small = plain(whole), plain(exact)
        assert (big[:, :2] <= small[:, :2] + 1e-5).all()
        assert ((big - small).abs() < 1 + 1e-5).all()


def test_a_box_that_leaves_has_no_size_and_is_sanitized_with_its_label() -> None:
    transform = DeepAutoAugment(Policy.uniform(HALF_LEFT, 1))
    sample = {
        "image": tv_tensors.Image(noise(3, 16, 24)),
        "boxes": boxes([0.0, 0, 6, 6], [14, 0, 20, 8], [10, 2, 14, 4]),
        "labels": torch.tensor([5, 6, 7]),
    }
    out = transform(sample)
    assert plain(out["boxes"]).tolist() == [[0, 0, 0, 0], [2, 0, 8, 8], [0, 2, 2, 4]]
    assert out["labels"] is sample["labels"]
    clean = v2.SanitizeBoundingBoxes()(out)
    assert clean["labels"].tolist() == [6, 7]
    spots = transform(sample["image"], points([1.0, 1.0], [13.0, 2.0]))[1]
    assert plain(spots).tolist() == [[-11, 1], [1, 2]]
    assert plain(v2.SanitizeKeyPoints()({"points": spots})["points"]).tolist() == [[1, 2]]


def test_colour_leaves_targets_alone() -> None:
    out = DeepAutoAugment(Policy.always(Operation("invert")))(
        {"image": noise(3, 16, 24), **target(1)}
    )
    assert same({key: out[key] for key in target(1)}, target(1))
    empty = tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(16, 24))
    assert DeepAutoAugment(POLICY)(noise(3, 16, 24), empty)[1].shape == (0, 4)


def test_pixels_do_not_depend_on_targets() -> None:
    transform, image = DeepAutoAugment(POLICY, seed=3), noise(3, 16, 24)
    for i in range(5):
        alone = transform(image, index=i)
        assert torch.equal(transform({"image": image, **target(0)}, index=i)["image"], alone)


# Samples


def test_all_forms_of_several_samples_agree() -> None:
    transform = DeepAutoAugment(POLICY, seed=2, cutout_targets="hide")
    images, n = noise(4, 3, 16, 24), range(4)
    targets = [target(i) for i in n]
    want = [transform(images[i], targets[i], index=i) for i in n]
    assert not all(same(out, t) for (_, out), t in zip(want, targets, strict=True))
    forms: dict[str, list[tuple[Tensor, dict[str, Any]]]] = {
        "samples": transform([(images[i], targets[i]) for i in n], index=n),
        "dicts": [
            (out.pop("image"), out)
            for out in transform([{"image": images[i], **targets[i]} for i in n], index=n)
        ],
        "lists": list(zip(*transform(list(images), targets, index=n), strict=True)),
        "batch": list(zip(*transform(images, targets, index=n), strict=True)),
    }
    for name, found in forms.items():
        for (image, moved), (image_alone, alone) in zip(found, want, strict=True):
            assert torch.equal(image, image_alone), name
            assert same(moved, alone), name
    masks = tv_tensors.Mask(torch.stack([plain(t["masks"]) for t in targets]))
    for given_masks in (masks, [t["masks"] for t in targets]):
        found_masks = transform(tv_tensors.Image(images), given_masks, index=n)[1]
        assert type(found_masks) is type(given_masks)
        for mask, (_, alone) in zip(found_masks, want, strict=True):
            assert torch.equal(plain(mask), plain(alone["masks"]))


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_batches_on_cuda_move_targets_as_on_the_cpu(place: str) -> None:
    """Targets may lie beside their images or wait on the CPU; either way they stay there."""

    def placed(found: dict[str, Any], where: str = place) -> dict[str, Any]:
        # of the ways to move a tensor this one keeps its kind
        return {k: v.to(where) if isinstance(v, Tensor) else v for k, v in found.items()}

    transform = DeepAutoAugment(POLICY, seed=2, cutout_targets="hide")
    images, n = noise(64, 3, 16, 24), range(64)
    targets = [target(i % 5) for i in n]
    expected, want = transform(images, targets, index=n)
    found, moved = transform(images.to("cuda"), [placed(each) for each in targets], index=n)
    assert torch.equal(found.cpu(), expected)
    for got, alone in zip(moved, want, strict=True):
        kinds = {v.device.type for v in got.values() if isinstance(v, Tensor)}
        assert kinds == {place}
        assert same(placed(got, "cpu"), alone)
    video = tv_tensors.Video(noise(6, 3, 16, 24))
    frames, boxed = transform(video, target(1)["boxes"], index=3)
    on_device = transform(video.to("cuda"), target(1)["boxes"].to(place), index=3)
    assert torch.equal(plain(on_device[0]).cpu(), plain(frames))
    assert torch.equal(plain(on_device[1]).cpu(), plain(boxed))


@pytest.mark.parametrize("nothing", [{}, {"image_id": 7}])
def test_images_without_objects(nothing: dict[str, Any]) -> None:
    """torchvision's COCO has no boxes for them, not even an empty tensor."""
    transform = DeepAutoAugment(POLICY, seed=2)
    images, n = noise(4, 3, 16, 24), range(4)
    targets = [nothing if i in (0, 2) else target(i) for i in n]
    want = [transform(images[i], targets[i], index=i) for i in n]
    for several in (images, list(images)):
        found, moved = transform(several, targets, index=n)
        for i, (image, one) in enumerate(want):
            assert torch.equal(found[i], image)
            assert same(moved[i], one) if i in (1, 3) else moved[i] == nothing


def test_several_targets_of_one_image_share_its_draw() -> None:
    transform = DeepAutoAugment(POLICY, seed=2)
    image, one = Image.fromarray(noise(16, 24, 3).numpy()), target(0)
    for i in range(4):
        _, want = transform(image, one, index=i)
        _, many = transform(image, [one["masks"], one["masks"]], index=i)
        assert [torch.equal(plain(m), plain(want["masks"])) for m in many] == [True, True]
        out = transform({"view": image, "other": image, "deep": [[one], (one,)]}, index=i)
        assert same(out["deep"][0][0], want)
        assert same(out["deep"][1][0], want)


def test_a_dataset_of_detections() -> None:
    data = [(tv_tensors.Image(noise(3, 16, 24)), target(i)) for i in range(3)]
    augmented = AugmentedDataset(data, DeepAutoAugment(POLICY, seed=5))
    assert same(augmented[1][1], DeepAutoAugment(POLICY, seed=5)(data[1], index=1)[1])


def test_the_frames_of_a_video_share_one_draw() -> None:
    transform = DeepAutoAugment(POLICY, seed=2)
    frames = noise(5, 3, 16, 24)
    video, mask = tv_tensors.Video(frames), tv_tensors.Mask(noise(5, 16, 24))
    for i in range(6):
        out, moved = transform(video, mask, index=i)
        assert type(out) is tv_tensors.Video
        for frame, want in zip(plain(out), frames, strict=True):
            assert torch.equal(frame, transform(want, index=i))
        assert torch.equal(plain(moved), plain(transform(frames[0], mask, index=i)[1]))
    two = transform([video, video], index=[0, 3])
    assert torch.equal(two[1], transform(video, index=3))


@pytest.mark.parametrize("place", [pytest.param("cuda", marks=pytest.mark.gpu), "cpu"])
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32, torch.int16])
def test_a_batch_of_videos_has_a_draw_for_each(kind: torch.dtype, place: str) -> None:
    wide = (0, 255) if kind == torch.int16 else None
    transform = DeepAutoAugment(POLICY, seed=2, cutout_targets="hide", value_range=wide)
    pixels = noise(4, 5, 3, 16, 24).to(place, kind)
    videos = tv_tensors.Video(pixels / 255 if kind.is_floating_point else pixels)
    masks = tv_tensors.Mask(noise(4, 5, 16, 24))
    targets = [{"boxes": target(i)["boxes"]} for i in range(4)]
    out, moved, found = transform(videos, masks, targets, index=range(3, 7))
    assert (type(out), out.dtype, out.shape) == (tv_tensors.Video, kind, videos.shape)
    assert out.is_contiguous()
    for i, video in enumerate(plain(videos)):
        sample = (tv_tensors.Video(video), tv_tensors.Mask(plain(masks)[i]), targets[i])
        want, mask, boxed = transform(sample, index=3 + i)
        assert torch.equal(plain(out)[i], plain(want))
        assert torch.equal(plain(moved)[i], plain(mask))
        assert same(found[i], boxed)
        frame = tv_tensors.Image(video[2])  # each frame as the image with this key
        assert torch.equal(plain(out)[i, 2], plain(transform(frame, index=3 + i)))


def test_batches_of_videos_of_every_form() -> None:
    transform = DeepAutoAugment(POLICY, seed=2)
    video = noise(1, 3, 8, 8).expand(6, 4, 3, 8, 8)
    out = plain(transform(tv_tensors.Video(video)))
    assert (out == out[:, :1]).all()  # frames share a draw
    assert len({each.numpy().tobytes() for each in out}) > 3  # and videos have their own
    listed = transform([tv_tensors.Video(video)] * 2)
    assert [each.shape for each in listed] == [video.shape] * 2
    assert not torch.equal(*map(plain, listed))
    beside = transform({"clip": tv_tensors.Video(video), "thumb": tv_tensors.Image(video[:, 0])})
    assert torch.equal(plain(beside["clip"])[:, 1], plain(beside["thumb"]))
    for shape in ((0, 4, 3, 8, 8), (2, 0, 3, 8, 8)):
        empty = transform(tv_tensors.Video(torch.zeros(*shape, dtype=torch.uint8)))
        assert empty.shape == shape
    with pytest.raises(ValueError, match=r"like \(N, T, H, W, C\).*permute\(0, 1, 4, 2, 3\)"):
        transform(tv_tensors.Video(noise(2, 4, 8, 8, 3)))
    with pytest.raises(ValueError, match=r"one size; got Video .*, Image"):
        transform(tv_tensors.Video(video), tv_tensors.Image(video[:2, 0]))


def test_settings_are_copied() -> None:
    transform = DeepAutoAugment(POLICY, cutout_targets="hide", mask_fill=255)
    assert copy.deepcopy(transform).target_settings == ("hide", 255)


# Errors

IMAGE = noise(3, 16, 24)
BATCH = noise(2, 3, 16, 24)
NAN = float("nan")


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            (IMAGE, boxes([30.0, 1, 40, 2])),
            r"box 0, \[30.0, 1.0, 40.0, 2.0\] in XYXY, lies outside",
        ),
        ((IMAGE, boxes([1, 1, 2, 2], [5, 1, 4, 2])), r"box 1, .*ends before it begins"),
        ((IMAGE, boxes(*[[1, 1, 2, 2, 7]] * 4)), "a box in XYXY has 4 numbers, got 5"),
        ((IMAGE, boxes([1, 1, NAN, 2])), "BoundingBoxes should have finite coordinates, got nan"),
        ((IMAGE, points([1, NAN])), "KeyPoints should have finite coordinates, got nan"),
        ((IMAGE, boxes([1, 1, 2, 2], size=(24, 16))), r"canvas_size \(24, 16\).*image is 16 x 24"),
        ((IMAGE, points([1, 1], size=(8, 8))), r"KeyPoints have canvas_size \(8, 8\)"),
        ((IMAGE, tv_tensors.Mask(noise(2, 8, 24))), r"\(..., 16, 24\) as its image.*\(2, 8, 24\)"),
        ((IMAGE, noise(3, 8, 8), tv_tensors.Mask(noise(8, 8))), r"\(..., 16, 24\)"),
        (([IMAGE, IMAGE], [target(0)]), "should have one length.*have 2 and 1"),
        (([IMAGE, IMAGE], target(0)), "BoundingBoxes beside a list of images should be in a list"),
        ((BATCH, [target(0)]), "a batch of 2 images needs a list of 2 targets, got 1"),
        ((BATCH, boxes([1, 1, 2, 2])), "BoundingBoxes beside a batch of 2 images should be in a"),
        ((BATCH, tv_tensors.Mask(noise(3, 16, 24))), r"should be \(2, ..., H, W\), got.*\(3, 16"),
        ([(BATCH, target(0))], "this sample has a batch"),
        (tv_tensors.Video(noise(1, 2, 5, 3, 16, 24)), r"a Video is \(T, C, H, W\).*\(1, 2, 5, 3"),
    ],
)
def test_bad_targets_are_named(sample: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        DeepAutoAugment(POLICY)(sample)
    assert "\n" not in str(error.value)


BAD = boxes([40, 2, 50, 4])
GOOD = boxes([4, 2, 20, 4])
PICTURE = Image.new("RGB", (24, 16))
STRANGE = Image.new("CMYK", (24, 16))


@pytest.mark.parametrize(
    ("sample", "place"),
    [
        ((IMAGE, {"boxes": BAD}), r"\[1\]\['boxes'\]: box 0,"),
        ({"image": IMAGE, "boxes": BAD}, r"\['boxes'\]: box 0,"),
        (
            [(IMAGE, {"boxes": GOOD}), (IMAGE, {"boxes": BAD})],
            r"sample 1, \[1\]\['boxes'\]: box 0,",
        ),
        ([{"image": IMAGE, "boxes": b} for b in (GOOD, BAD)], r"sample 1, \['boxes'\]: box 0,"),
        (
            {"image": [IMAGE] * 2, "objects": [{"boxes": GOOD}, {"boxes": BAD}]},
            r"sample 1, \['objects'\]\[1\]\['boxes'\]: box 0,",
        ),
        ((BATCH, [{"boxes": GOOD}, {"boxes": BAD}]), r"sample 1, \[1\]\[1\]\['boxes'\]: box 0,"),
        (
            {"x": BATCH, "masks": tv_tensors.Mask(noise(2, 9, 9))},
            r"sample 0, \['masks'\]\[0\]: a Mask should be",
        ),
        ({"x": BATCH, "y": {"boxes": [GOOD]}}, r"\['y'\]\['boxes'\]: a batch of 2 images needs"),
        (
            [{"views": [PICTURE] * 2, "boxes": [GOOD, BAD]}],
            r"sample 0, \['boxes'\]\[1\]: box 0,",
        ),
        ([PICTURE, STRANGE], "sample 1: image has mode 'CMYK'"),
        ({"image": [PICTURE, STRANGE]}, r"sample 1, \['image'\]\[1\]: image has mode 'CMYK'"),
        ([{"image": PICTURE}, {"image": STRANGE}], r"sample 1, \['image'\]: image has mode"),
    ],
)
def test_errors_name_the_sample_and_the_key(sample: Any, place: str) -> None:
    with pytest.raises(ValueError, match=f"^in {place}") as error:
        DeepAutoAugment(POLICY)(sample)
    assert "\n" not in str(error.value)


def test_images_of_two_sizes_share_no_targets() -> None:
    sample = [Image.new("RGB", (24, 16)), Image.new("RGB", (8, 8))]
    with pytest.raises(ValueError, match="of one size, and these are 16 x 24 and 8 x 8"):
        DeepAutoAugment(POLICY)(tuple(sample), target(0))


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="should be 'keep' or 'hide', got 'drop'"):
        DeepAutoAugment(POLICY, cutout_targets="drop")
    with pytest.raises(TypeError, match="mask_fill should be a number, got 'x'"):
        DeepAutoAugment(POLICY, mask_fill="x")  # type: ignore[arg-type]
    for fill in (-1, 0.5, 256):
        with pytest.raises(ValueError, match=f"mask_fill is {fill}, which masks of torch.uint8"):
            DeepAutoAugment(POLICY, mask_fill=fill)(IMAGE, tv_tensors.Mask(noise(16, 24)))


def test_own_operations_and_compilers_are_refused() -> None:
    with pytest.raises(TypeError, match="the own operation 'stamp' may move pixels to anywhere"):
        DeepAutoAugment(STAMPS)(noise(3, 16, 24), target(0))
    torch._dynamo.reset()
    compiled = torch.compile(DeepAutoAugment(POLICY), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="boxes, masks, key points and videos cannot be compiled"):
        compiled(IMAGE, tv_tensors.Mask(noise(16, 24)))
