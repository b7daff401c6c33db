"""What a training run needs of its images: how fast it will be, before it begins."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from deepaa.compared import compared_policy
from deepaa.data import load_embedded
from deepaa.models import build_model
from deepaa.sources import LabelledImages
from deepaa.test_sets import TrainTest
from deepaa.train_config import TrainConfig
from deepaa.training_data import InMemory, measured_rate

CPU = torch.device("cpu")


def embedded(count: int) -> InMemory:
    found = load_embedded()
    names = tuple("abcdefghij")
    images, labels = found.train_images[:count], found.train_labels[:count]
    data = LabelledImages(images, labels, names, "embedded", "")
    return InMemory(TrainTest(data, data, "the same"))


class Watched(nn.Module):
    """A network that notes how many images it gets, and may take its time over them."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.inner, self.seconds, self.seen = build_model("small", 10), seconds, [0]

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        time.sleep(self.seconds if self.training else 0.0)
        out: Tensor = self.inner(images)
        return out


def test_a_slow_network_is_timed_on_few_images() -> None:
    """A whole batch of WRN-28-10 with eight copies would take half an hour and 40 GB."""
    config = TrainConfig(batch=128, copies=8)
    model = Watched(0.6)
    rate = measured_rate(embedded(200), model, compared_policy("crop-flip"), config, CPU)
    few = max(model.seen)
    assert few <= 8
    assert 0 < rate < few / 0.6


def test_a_quick_network_is_timed_on_a_whole_batch() -> None:
    model = Watched(0.0)
    rate = measured_rate(embedded(60), model, compared_policy("none"), TrainConfig(), CPU)
    assert max(model.seen) == 60
    assert rate > 0


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_may_be_smaller_than_the_few(batch: int) -> None:
    model = Watched(0.0)
    config = TrainConfig(batch=batch)
    assert measured_rate(embedded(8), model, compared_policy("none"), config, CPU) > 0
    assert max(model.seen) == batch
