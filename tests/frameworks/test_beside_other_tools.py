"""What the README says of boxes, masks, key points and videos in other libraries' policies."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import is_installed
from pictures import noise
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from deepaa import DeepAutoAugment

pytestmark = pytest.mark.slow
README = (Path(__file__).parents[2] / "README.md").read_text()
ROWS = ("boxes", "masks", "key points", "videos, one draw for all frames")
BOX = tv_tensors.BoundingBoxes([[4.0, 4, 20, 24]], format="XYXY", canvas_size=(32, 32))
MASK = tv_tensors.Mask(torch.tril(torch.ones(32, 32, dtype=torch.uint8)))
POINTS = tv_tensors.KeyPoints([[9.0, 13.0]], canvas_size=(32, 32))
FRAMES = noise(3, 32, 32).expand(4, 3, 32, 32).clone()


def said(library: str) -> list[str]:
    """The words yes and no of a library's column in the four rows."""
    head, *rows = [
        [cell.strip() for cell in line.split("|")]
        for line in README.splitlines()
        if line.startswith("| | deepaa |") or line.startswith(tuple(f"| {row} |" for row in ROWS))
    ]
    assert [row[1] for row in rows] == list(ROWS)
    return [re.sub(r"\W|docs.*", "", row[head.index(library)]) for row in rows]


def moves(change: Any, *given: Any) -> str:
    """Whether what goes with an image is changed by one of twenty draws, or refused."""
    try:
        return "yes" if any(change(*given) for _ in range(20)) else "no"
    except (TypeError, ValueError):
        return "no"


def shares_a_draw(out: Tensor) -> bool:
    return bool((out == out[:1]).all()) and not torch.equal(out.as_subclass(Tensor), FRAMES)


@pytest.mark.parametrize(
    ("column", "policy"),
    [
        ("deepaa", DeepAutoAugment("deepta")),
        ("torchvision v2", v2.RandAugment()),
        ("torchvision v2", v2.AutoAugment()),
        ("torchvision v2", v2.TrivialAugmentWide()),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_policies_that_take_tv_tensors(column: str, policy: Any) -> None:
    image = tv_tensors.Image(noise(3, 32, 32))
    found = [
        moves(lambda target: not torch.equal(policy(image, target)[1], target), target)
        for target in (BOX, MASK, POINTS)
    ]
    found.append(moves(lambda: shares_a_draw(policy(tv_tensors.Video(FRAMES)))))
    assert found == said(column)


def test_kornia() -> None:
    pytest.importorskip("kornia")
    augmentation = importlib.import_module("kornia.augmentation")
    policy = importlib.import_module("kornia.augmentation.auto").RandAugment(n=2, m=20)
    image = torch.rand(1, 3, 32, 32)
    given = {"bbox_xyxy": BOX, "mask": MASK[None].float(), "keypoints": POINTS}

    def changes(key: str, target: Tensor) -> bool:
        plain = target.as_subclass(Tensor)[None]
        both = augmentation.AugmentationSequential(policy, data_keys=["input", key])
        return not torch.equal(both(image, plain)[1], plain)

    found = [moves(changes, key, target) for key, target in given.items()]
    frames = FRAMES.transpose(0, 1)[None] / 255

    def video() -> bool:
        shared = augmentation.VideoSequential(policy, data_format="BCTHW", same_on_frame=True)
        return shares_a_draw(shared(frames)[0].transpose(0, 1))

    assert [*found, moves(video)] == said("kornia")


def test_albumentations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    A = pytest.importorskip("albumentations")
    augment = A.Compose(
        [A.OneOf([A.Rotate(p=1), A.Affine(shear=20, p=1)], p=1)],
        bbox_params=A.BboxParams("pascal_voc"),
        keypoint_params=A.KeypointParams("xy"),
    )
    image = noise(32, 32, 3).numpy()
    targets = {
        "bboxes": BOX.numpy(),
        "mask": MASK.numpy(),
        "keypoints": POINTS.numpy(),
        "images": FRAMES.permute(0, 2, 3, 1).numpy(),
    }

    def changes(key: str) -> bool:
        out = np.asarray(augment(image=image, **{key: targets[key]})[key])
        if key == "images":
            return bool((out == out[:1]).all())
        return out.shape != targets[key].shape or not np.array_equal(out, targets[key])

    assert [moves(changes, key) for key in targets] == said("albumentations")


def test_dali() -> None:
    if not is_installed("nvidia.dali"):
        pytest.skip("nvidia.dali is not installed")
    import inspect

    policy = importlib.import_module("nvidia.dali.auto_aug.rand_augment").rand_augment
    data = [p for p in inspect.signature(policy).parameters.values() if p.default is p.empty]
    assert [p.name for p in data] == ["data", "n", "m"]  # one input: nothing goes with an image
    assert said("DALI")[:3] == ["no"] * 3
