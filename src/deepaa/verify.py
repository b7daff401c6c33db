"""Short trainings with a found policy and with what people use otherwise, side by side."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.own_model import load_model
from deepaa.pipeline import (
    PolicySearch,
    StopAskedError,
    default_augmentation,
    is_large,
    proxy_name,
)
from deepaa.policy import Policy
from deepaa.sources import LabelledImages
from deepaa.space import CIFAR, IMAGENET
from deepaa.test_sets import TrainTest, checked
from deepaa.train import TrainConfig, Training, evaluate

LEAST_PASSES = 20 * 4000
"""Images through the network in a comparison, at least."""


class Trained(NamedTuple):
    """A network after a training."""

    name: str
    accuracy: float
    """On images that took part in nothing else."""
    loss: float
    seconds: float


class Trial(NamedTuple):
    """Images to train on and images to test on."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    test_name: str


def contestants(task: PolicySearch) -> dict[str, Policy]:
    """The found policy, crop and flip, and TrivialAugment followed by crop and flip."""
    whole = IMAGENET if is_large(task.data.images) else CIFAR  # whatever the search chose from
    usual = default_augmentation(whole, ("crop", "resized_crop", "flip"))
    return {
        "found policy": task.policy,
        "crop and flip": usual,
        "TrivialAugment": Policy.trivial(whole, 1).then(usual),
    }


def trial_of(task: PolicySearch, test: LabelledImages | None) -> Trial:
    """Train on all that the search has read, and test on the data set's own test images.

    Without such, it is tested on the validation split, and trained on the rest.
    """
    data = task.data
    if test is not None:
        test = checked(TrainTest(data, test, "the test part of the data set")).test
        return Trial(data.images, data.labels, test.images, test.labels, "test images")
    left = torch.ones(len(data.labels), dtype=torch.bool)
    left[task.splits.validation] = False
    part = task.splits.validation
    name = "images of the validation split"
    return Trial(data.images[left], data.labels[left], data.images[part], data.labels[part], name)


def fresh_model(task: PolicySearch, spec: str | None) -> nn.Module:
    """The network of the search with new weights."""
    name = spec or task.proxy.model or proxy_name(task.data.images, task.device)
    return load_model(name, task.data, task.config.seed)


def usual_epochs(images: int) -> int:
    """20, or so many that a network can learn something of few images."""
    return max(20, math.ceil(LEAST_PASSES / images))


def compare(
    task: PolicySearch,
    trial: Trial,
    make: Callable[[], nn.Module],
    epochs: int,
    stop: Callable[[], bool],
) -> Iterator[Trained]:
    """Train the same network with each contestant.

    Args:
        make: A new network, the same each time.

    Raises:
        StopAskedError: `stop` said yes, between two steps.
    """

    def leave_if_asked() -> None:
        if stop():
            raise StopAskedError

    config: TrainConfig = dataclasses.replace(
        task.proxy.train, epochs=epochs, seed=task.config.seed
    )
    for name, policy in contestants(task).items():
        began = time.perf_counter()
        training = Training(make(), trial.images, trial.labels, policy, config, task.device)
        training.before_step = leave_if_asked
        for _ in training:
            pass
        result = evaluate(training.model, trial.test_images, trial.test_labels)
        yield Trained(name, result.accuracy, result.loss, time.perf_counter() - began)
