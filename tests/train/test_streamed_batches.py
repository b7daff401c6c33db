"""Training and evaluation on images that are read from disk in every epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from photos import SIZE, all_of, decoded, save_photos, streamed
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as vision

from deepaa.data.decoding import centred
from deepaa.data.folder import list_images
from deepaa.models import build_model
from deepaa.ops.apply import apply_batch
from deepaa.ops.rng import sample_keys
from deepaa.ops.space import CIFAR
from deepaa.policy.load import compared_policy
from deepaa.policy.policy import Policy
from deepaa.train.batches import ImageBatches, StreamedBatches
from deepaa.train.config import TrainConfig
from deepaa.train.loop import Training, evaluate, evaluate_streamed
from deepaa.train.stream_policy import crop_for


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos"))


def epoch_of(folder: Path, policy: Policy | None, **options: object) -> tuple[Tensor, Tensor]:
    """The images of an epoch as the network gets them, and as they were decoded."""
    stream = streamed(folder, **{"crop": crop_for(policy), **options})
    config = TrainConfig(epochs=1, batch=41, seed=3)
    ((images, _),) = StreamedBatches(stream, policy, config).epoch(2)
    return images, all_of(stream, 2, batch=41, seed=3)[0]


def test_the_default_crop_is_a_box_of_the_whole_picture(folder):
    """Inception's preprocessing: only the flip is left to the device."""
    for name in ("crop-flip", "trivialaugment-wide", "autoaugment"):
        policy = compared_policy(name, space="imagenet")
        images, boxes = epoch_of(folder, policy)
        assert torch.equal(boxes, all_of(streamed(folder), 2, batch=41, seed=3)[0])
        changed = [i for i in range(41) if not torch.equal(images[i], boxes[i])]
        flipped = [i for i in range(41) if torch.equal(images[i], boxes[i].flip(-1))]
        if name == "crop-flip":
            assert changed == flipped
        assert len(changed) >= 8
        assert 2 <= len(flipped) <= 33


@pytest.mark.parametrize("policy", [None, compared_policy("none", space="imagenet")])
def test_without_augmentation_nothing_is_random(folder, policy):
    images, decoded_ones = epoch_of(folder, policy)
    assert torch.equal(images, decoded_ones)
    stream = streamed(folder, crop=crop_for(policy))
    again = [all_of(stream, epoch, batch=41, seed=3) for epoch in (2, 5)]
    first, second = (part[0][part[2].argsort()] for part in again)
    assert torch.equal(first, second)


def test_crops_of_a_policy_find_more_pixels_than_the_network_sees(folder):
    policy = compared_policy("deepta", space="imagenet", first_layers=2)
    images, larger = epoch_of(folder, policy)
    assert larger.shape == (41, 3, 27, 27)
    assert images.shape == (41, 3, SIZE, SIZE)
    stream = streamed(folder, crop="larger")
    assert (stream.size, stream.side) == (SIZE, 27)
    rows = all_of(stream, 2, batch=41, seed=3)[2]
    pictures = decoded(folder, "train")
    for got, row in zip(larger, rows.tolist(), strict=True):
        assert torch.equal(got, vision.pil_to_tensor(centred(pictures[row], 27, 27)))
    draw = policy.draw(sample_keys(3, 2, rows), 2)
    changed = apply_batch(larger, draw, policy.table)
    boxes = 0
    for i, line in enumerate(draw.choice.tolist()):
        box = any(policy.table.rows[row].operation.name == "resized_crop" for row in line)
        whole = vision.to_pil_image(changed[i])
        middle = vision.center_crop(whole, [SIZE, SIZE])
        want = whole.resize((SIZE, SIZE), Image.Resampling.BICUBIC) if box else middle
        assert torch.equal(images[i], vision.pil_to_tensor(want))
        boxes += box
    assert 0 < boxes < 41
    # no policy at all: the middle, which is what a test sees
    images, _ = epoch_of(folder, None, crop="larger")
    assert torch.equal(images, vision.center_crop(larger, [SIZE, SIZE]))


@pytest.mark.parametrize("copies", [1, 2])
def test_training_from_disk_equals_training_from_memory(folder, copies):
    """With middle squares the pixels are the same, so order, draws and weights must be too."""
    pictures = [vision.pil_to_tensor(centred(p, SIZE, SIZE)) for p in decoded(folder, "train")]
    labels = torch.tensor(list_images(folder, "train").labels)
    policy = Policy.trivial(CIFAR, 2)
    config = TrainConfig(epochs=2, batch=16, lr=0.05, copies=copies, seed=3)
    trained = []
    for from_disk in (False, True):
        model = build_model("small", 2)
        if from_disk:
            stream = streamed(folder, crop="centre")
            training = Training(model, StreamedBatches(stream, policy, config), config)
        else:
            batches = ImageBatches(torch.stack(pictures), labels, policy, config)
            training = Training(model, batches, config)
        trained.append((list(training), model.state_dict()))
    (memory, weights), (disk, others) = trained
    assert [record.loss for record in memory] == [record.loss for record in disk]
    assert all(torch.equal(value, others[name]) for name, value in weights.items())


def test_evaluation_from_disk_equals_evaluation_from_memory(folder):
    stream = streamed(folder, train=False)
    images, labels, _ = all_of(stream)
    model = build_model("small", 2).train()
    expected = evaluate(model, images, labels)
    found = evaluate_streamed(model, stream, batch=4)
    assert found.count == expected.count == 10
    assert found.accuracy == pytest.approx(expected.accuracy)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert model.training


def test_evaluation_looks_at_the_model_once(folder):
    seen = []

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return x.flatten(1)[:, :2].float() + self.weight

    found = evaluate_streamed(Counted(), streamed(folder, train=False), batch=4)
    assert found.count == 10
    assert seen == [1, 4, 4, 2]

    class Narrow(Counted):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :1]

    with pytest.raises(ValueError, match=r"labels should be in 0\.\.0"):
        evaluate_streamed(Narrow(), streamed(folder, train=False))


def test_batches_refuse_what_cannot_be_trained(folder):
    with pytest.raises(ValueError, match="for evaluation"):
        StreamedBatches(streamed(folder, train=False), None, TrainConfig())


@pytest.mark.gpu
def test_training_from_disk_on_cuda(folder):
    stream = streamed(folder, workers=2, device="cuda")
    config = TrainConfig(epochs=3, batch=16, lr=0.05, precision="bfloat16", channels_last=True)
    model = build_model("small", 2)
    policy = Policy.trivial(CIFAR, 1)
    batches = StreamedBatches(stream, policy, config)
    records = list(Training(model, batches, config))
    assert [record.images for record in records] == [41, 41, 41]
    assert all(np.isfinite(record.loss) for record in records)
    found = evaluate_streamed(model, streamed(folder, train=False, device="cuda"))
    assert found.count == 10
