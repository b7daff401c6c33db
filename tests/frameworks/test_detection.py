"""Scripts for detection and segmentation on files as Pascal VOC has them, through torchvision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.datasets import VOCDetection, VOCSegmentation, wrap_dataset_for_transforms_v2
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.transforms import v2

from deepaa import CIFAR, AugmentedDataset, DeepAutoAugment, Policy
from deepaa.data import load_embedded
from deepaa.ops import tensor_to_pil

pytestmark = pytest.mark.slow
N, HEIGHT, WIDTH, SIDE = 8, 96, 128, 32
KINDS = ("bird", "cat", "dog")
OBJECT = """<object><name>{name}</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin>
<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"""


def save_scenes(root: Path) -> Path:
    """Photographs pasted on grey, with the boxes and the mask of each; a policy beside them."""
    voc = root / "VOCdevkit/VOC2012"
    names = [f"scene{i}" for i in range(N)]
    for part in ("Main", "Segmentation"):
        (voc / "ImageSets" / part).mkdir(parents=True)
        (voc / "ImageSets" / part / "train.txt").write_text("\n".join(names))
    for part in ("JPEGImages", "Annotations", "SegmentationClass"):
        (voc / part).mkdir()
    photos = load_embedded().train_images
    for i, name in enumerate(names):
        scene = Image.new("RGB", (WIDTH, HEIGHT), "grey")
        mask, objects = Image.new("P", (WIDTH, HEIGHT)), ""
        mask.putpalette(list(range(256)) * 3)
        for k in range(1 + i % 3):
            x, y = 5 + 40 * k, 7 + 9 * k + i
            scene.paste(tensor_to_pil(photos[3 * i + k]), (x, y))
            mask.paste(k + 1, (x, y, x + SIDE, y + SIDE))
            objects += OBJECT.format(name=KINDS[k], x=x, y=y, right=x + SIDE, bottom=y + SIDE)
        scene.save(voc / "JPEGImages" / f"{name}.jpg")
        mask.save(voc / "SegmentationClass" / f"{name}.png")
        (voc / "Annotations" / f"{name}.xml").write_text(f"<annotation>{objects}</annotation>")
    Policy.trivial(CIFAR, 3).save(root / "policy.json")
    return root


def samples(data: Any, epoch: int) -> list[Any]:
    data.set_epoch(epoch)
    return [data[i] for i in range(N)]


def test_a_detector_with_boxes_that_move(tmp_path: Path) -> None:
    folder = save_scenes(tmp_path)
    source = wrap_dataset_for_transforms_v2(VOCDetection(str(folder), "2012", "train"))
    then = v2.Compose(
        [
            v2.SanitizeBoundingBoxes(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.ToPureTensor(),
        ]
    )
    data = AugmentedDataset(source, DeepAutoAugment(folder / "policy.json", seed=1), then=then)
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=21, min_size=96, max_size=128
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(
        data, batch_size=2, num_workers=2, collate_fn=lambda batch: tuple(zip(*batch, strict=True))
    )
    shown = []
    for epoch in range(2):
        data.set_epoch(epoch)
        given = []
        for images, targets in loader:
            loss = sum(model(list(images), list(targets)).values())
            assert math.isfinite(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            given += list(zip(images, targets, strict=True))
        assert len(given) == N
        want = samples(AugmentedDataset(source, data.transform, then=then), epoch)
        for (image, target), (same, beside) in zip(given, want, strict=True):
            assert torch.equal(image, same)
            assert torch.equal(target["boxes"], beside["boxes"])
            assert torch.equal(target["labels"], beside["labels"])
            assert len(target["boxes"]) == len(target["labels"])
        shown.append([target["boxes"] for _, target in given])
    pairs = zip(*shown, strict=True)
    moved = [not (a.shape == b.shape and torch.equal(a, b)) for a, b in pairs]
    assert sum(moved) > N / 2  # other draws in another epoch, also for the boxes


def test_segmentation_masks_follow_their_pixels(tmp_path: Path) -> None:
    folder = save_scenes(tmp_path)
    source = wrap_dataset_for_transforms_v2(VOCSegmentation(str(folder), "2012", "train"))
    augment = DeepAutoAugment(folder / "policy.json", seed=1, mask_fill=255)
    to_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    data = AugmentedDataset(source, augment, then=to_tensor)
    model = torch.nn.Conv2d(3, 4, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = []
    for epoch in range(2):
        data.set_epoch(epoch)
        for images, mask in DataLoader(data, batch_size=4, num_workers=2):
            loss = torch.nn.functional.cross_entropy(
                model(images), mask[:, 0].long(), ignore_index=255
            )
            assert math.isfinite(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            masks += list(mask)
    assert len(masks) == 2 * N
    assert {int(value) for mask in masks for value in mask.unique()} == {0, 1, 2, 3, 255}
    assert sum(torch.equal(a, b) for a, b in zip(masks[:N], masks[N:], strict=True)) < N / 2


def test_the_masks_of_files_without_a_wrapper_are_refused_with_advice(tmp_path: Path) -> None:
    image, mask = VOCSegmentation(str(save_scenes(tmp_path)), "2012", "train")[0]
    with pytest.raises(ValueError, match=r"mode 'P'.*tv_tensors.Mask\(image\) if it is a mask"):
        DeepAutoAugment("deepta")(image, mask)
    found = DeepAutoAugment("deepta")(image, tv_tensors.Mask(mask))[1]
    assert set(found.unique().tolist()) <= {0, 1}
