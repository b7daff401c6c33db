"""left_behind.py: what would stay behind while its image moves is refused, or told once."""

from __future__ import annotations

import re
import warnings
from collections import UserDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import noise
from PIL import Image
from torchvision import datasets, tv_tensors

from deepaa.ops import CIFAR, Operation
from deepaa.policy.policy import Policy
from deepaa.transforms import DeepAutoAugment, left_behind

POLICY = Policy.uniform(CIFAR, 2)
PICTURE = Image.new("RGB", (24, 16))


def boxes(*rows: Any) -> Any:
    return tv_tensors.BoundingBoxes(torch.tensor(rows), format="XYXY", canvas_size=(16, 24))


@pytest.fixture(autouse=True)
def _nothing_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "_TOLD", set())


# What looks like a target and is none


def warned(transform: DeepAutoAugment, sample: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        transform(sample)
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("form", ["array", "tensor", "batch", "lists"])
def test_a_mask_before_the_image_is_not_taken_for_it(form: str) -> None:
    """The first array or tensor is the image: the mask got colours, and the image nothing."""
    image, mask = noise(3, 16, 24), noise(1, 16, 24)
    if form == "array":
        sample = {"mask": mask[0].numpy(), "image": image.permute(1, 2, 0).numpy()}
    elif form == "lists":
        sample = {"mask": [mask, mask], "image": [image, image]}
    else:
        several = (4, 1, 1, 1) if form == "batch" else (1, 1, 1)
        sample = {"mask": mask.repeat(several), "image": image.repeat(several)}
    transform = DeepAutoAugment(POLICY)
    with pytest.raises(TypeError, match=r"'mask' in this sample is a plain .* and comes first, so"):
        transform(sample)
    with pytest.raises(TypeError, match="'keypoints' in this sample is a plain Tensor and comes"):
        transform({"keypoints": torch.zeros(5, 17, 2), "image": image})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert transform({"mask": mask})["mask"].shape == mask.shape  # nothing else is there
        transform(dict(reversed(sample.items())))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("boxes", torch.zeros(2, 4), "'boxes' in this sample is a plain Tensor, which does not"),
        ("bbox", [[1, 2, 3, 4]], "'bbox' in this sample is a plain list.*tv_tensors.BoundingBoxes"),
        ("masks", np.zeros((2, 16, 24)), "'masks' in .* plain ndarray.*wrap it in tv_tensors.Mask"),
        ("keypoints", torch.zeros(5, 2), "'keypoints' in .* wrap it in tv_tensors.KeyPoints, or"),
        ("mask", Image.new("L", (24, 16)), "'mask' in .*, which gets the image's colours too"),
        ("gt_boxes", np.zeros((2, 4)), "'gt_boxes' in this sample is a plain ndarray"),
    ],
)
def test_plain_targets_are_told_once(name: str, value: Any, told: str) -> None:
    transform = DeepAutoAugment(POLICY)
    sample = (Image.new("RGB", (24, 16)), {"annotation": {name: value}})
    (message,) = warned(transform, sample)
    assert re.search(told, message)
    assert not warned(transform, sample)


COCO = [
    {"segmentation": [[1.0, 2, 5, 2, 5, 6]], "area": 1.0, "category_id": 3, "id": 7},
    {"bbox": [1.0, 2, 3, 4], "category_id": 1, "iscrowd": 0},
]
VOC = {"annotation": {"filename": "a.jpg", "object": [{"bndbox": {"xmin": "1"}, "name": "cat"}]}}


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        (COCO, "bbox"),
        ([{"keypoints": [1, 2, 2, 0, 0, 0], "bbox": [1.0, 2, 3, 4]}], "keypoints"),
        (VOC, "bndbox"),
        ({"object": {"bndbox": {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}}}, "bndbox"),
    ],
)
@pytest.mark.parametrize("form", ["tuple", "dict", "samples", "lists", "batch"])
def test_annotations_of_coco_and_voc_are_told_once(annotations: Any, name: str, form: str) -> None:
    """As `CocoDetection` and `VOCDetection` give them."""
    sample = {
        "tuple": (PICTURE, annotations),
        "dict": {"image": PICTURE, "target": annotations},
        "samples": [(PICTURE, annotations), (PICTURE, annotations)],
        "lists": ([PICTURE, PICTURE], [annotations, annotations]),
        "batch": (noise(2, 3, 16, 24), [annotations, annotations]),
    }[form]
    transform = DeepAutoAugment(POLICY)
    (message,) = warned(transform, sample)
    assert message.startswith(f"'{name}' in an annotation, as COCO and VOC have them, does not")
    assert "torchvision.datasets.wrap_dataset_for_transforms_v2(dataset), or make" in message
    assert not warned(transform, sample)


def test_the_advice_about_annotations_works(tmp_path: Path) -> None:
    folder = tmp_path / "VOCdevkit/VOC2012"
    box = "<xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax>"
    annotation = f"<object><name>cat</name><bndbox>{box}</bndbox></object>"
    for name, text in {
        "ImageSets/Main/train.txt": "a",
        "JPEGImages/a.jpg": "",
        "Annotations/a.xml": f"<annotation>{annotation}</annotation>",
    }.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    PICTURE.save(folder / "JPEGImages/a.jpg")
    data = datasets.VOCDetection(str(tmp_path), image_set="train")
    transform = DeepAutoAugment(Policy.always(Operation("invert")))
    assert len(warned(transform, data[0])) == 1
    wrapped = datasets.wrap_dataset_for_transforms_v2(data, target_keys=["boxes", "labels"])
    assert not warned(transform, wrapped[0])
    assert transform(wrapped[0])[1]["boxes"].tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    "sample",
    [
        {"image": noise(3, 16, 24), "boxes": boxes([1, 2, 3, 4]), "labels": torch.zeros(1)},
        (PICTURE, [{"category_id": 1, "mask": 1}, {"bbox": [1, 2], "boxes": []}]),
        [{"image": PICTURE, "bbox": [1, 2, 3, 4]}, {"image": PICTURE, "bbox": [1, 2, 3, 4]}],
        {"image": noise(3, 16, 24), "mask": 3, "bbox": [1, 2, 3, 4], "boxes": "none", "masks": []},
        (noise(3, 16, 24), torch.zeros(2, 4)),
        (noise(3, 16, 24), torch.zeros(24, 16), np.zeros((16, 25)), noise(3, 16, 24)),
        (noise(3, 2, 4), torch.zeros(2, 4)),
        (np.zeros((16, 24), np.uint8), np.ones((16, 24))),
        (noise(3, 16, 24), tv_tensors.Mask(noise(16, 24)), {"seg": tv_tensors.Mask(noise(16, 24))}),
        [(PICTURE, 1), (PICTURE, 2)],
        {"image": Image.new("RGB", (24, 16)), "other": noise(3, 16, 24), 4: noise(3, 16, 24)},
    ],
)
def test_other_samples_are_taken_without_a_word(sample: Any) -> None:
    assert not warned(DeepAutoAugment(POLICY), sample)


# What has the size of its image


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ((PICTURE, torch.zeros(16, 24, dtype=torch.int64)), r"plain Tensor torch.int64 \(16, 24\)"),
        (
            (noise(3, 16, 24), noise(1, 16, 24)),
            r"plain Tensor torch.uint8 \(1, 16, 24\) bes",
        ),
        (
            (np.zeros((16, 24, 3), np.uint8), np.zeros((16, 24), np.uint8)),
            r"array uint8 \(16, 24\)",
        ),
        (
            (np.zeros((16, 24, 3), np.uint8), np.zeros((16, 24, 1))),
            r"float64 \(16, 24, 1\)",
        ),
        ({"image": PICTURE, "seg": np.zeros((5, 16, 24), bool)}, r"\(5, 16, 24\) 'seg' beside"),
        ([{"image": PICTURE, "seg": torch.zeros(16, 24)}] * 2, r"'seg' beside an image of 16 x 24"),
        ({"image": [PICTURE] * 2, "seg": [noise(16, 24)] * 2}, "'seg' beside"),
        ((noise(2, 3, 16, 24), torch.zeros(2, 16, 24)), r"torch.float32 \(2, 16, 24\) beside"),
        ((PICTURE, Image.new("L", (24, 16))), "an image of mode L beside .* gets its colours too"),
        ({"image": [PICTURE], "seg": [Image.new("L", (24, 16))]}, "mode L 'seg' beside an image"),
    ],
)
def test_what_has_the_size_of_its_image_is_told_once(sample: Any, what: str) -> None:
    transform = DeepAutoAugment(POLICY)
    (message,) = warned(transform, sample)
    assert re.search(what, message)
    assert message.endswith(
        "if it is a mask, wrap it, mask = tv_tensors.Mask(mask), after from torchvision import "
        "tv_tensors"
    )
    assert not warned(transform, sample)


def test_the_advice_about_masks_works() -> None:
    mask = noise(16, 24)
    for given in (mask, mask.numpy(), Image.fromarray(mask.numpy())):
        assert not warned(DeepAutoAugment(POLICY), (PICTURE, tv_tensors.Mask(given)))


# What is inside of an object


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slots:
    __slots__ = ("boxes", "unset")

    def __init__(self, boxes: Any) -> None:
        self.boxes = boxes


@dataclass
class Annotation:
    boxes: Any


class Dict(dict[str, Any]):
    """As libraries have them whose keys are attributes, too."""


@pytest.mark.parametrize(
    ("holder", "way"),
    [
        (Holder(boxes=boxes([1, 2, 3, 4])), r"in \.boxes of Holder"),
        (Slots(boxes([1, 2, 3, 4])), r"in \.boxes of Slots"),
        (Annotation(boxes([1, 2, 3, 4])), r"in \.boxes of Annotation"),
        (Dict(boxes=boxes([1, 2, 3, 4])), r"in \['boxes'\] of Dict"),
        (UserDict({"boxes": boxes([1, 2, 3, 4])}), r"in \['boxes'\] of UserDict"),
        (Holder(deep=[Annotation(boxes([1, 2, 3, 4]))]), r"in \.deep\[0\]\.boxes of Holder"),
    ],
)
@pytest.mark.parametrize("form", ["tuple", "dict", "list", "samples", "batch"])
def test_targets_in_an_object_are_refused(holder: Any, way: str, form: str) -> None:
    sample = {
        "tuple": (PICTURE, holder),
        "dict": {"image": PICTURE, "target": holder},
        "list": ([PICTURE], [holder]),
        "samples": [(PICTURE, holder), (PICTURE, holder)],
        "batch": (noise(2, 3, 16, 24), [holder, holder]),
    }[form]
    with pytest.raises(TypeError, match=f"BoundingBoxes {way} would stay behind: only dicts") as e:
        DeepAutoAugment(POLICY)(sample)
    assert "\n" not in str(e.value)


def test_plain_boxes_in_an_object_are_told_once() -> None:
    transform = DeepAutoAugment(POLICY)
    sample = (PICTURE, Holder(_fields={"gt_boxes": Holder(tensor=torch.zeros(2, 4))}, boxes=None))
    (message,) = warned(transform, sample)
    assert "._fields['gt_boxes'] of Holder does not move with the image" in message
    assert not warned(transform, sample)


def test_what_moves_is_not_refused() -> None:
    queue = deque([boxes([1.0, 2.0, 3.0, 4.0])])  # a part of a tree, as torch says
    policy = Policy.always(Operation("flip"))
    _, moved = DeepAutoAugment(policy, seed=0)((PICTURE, queue), index=0)
    assert isinstance(moved, deque)
    assert moved[0].tolist() in ([[1, 2, 3, 4]], [[21, 2, 23, 4]])
    assert not warned(
        DeepAutoAugment(POLICY), (PICTURE, queue, Holder(name="a", n=3), print, Holder)
    )


def test_images_in_an_object_are_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"got Dict; Dict is not looked into: give dict\(sample\)"):
        DeepAutoAugment(POLICY)(Dict(image=PICTURE))
    with pytest.raises(TypeError, match="got Holder; Holder is not looked into: give its parts"):
        DeepAutoAugment(POLICY)(Holder(image=PICTURE))
