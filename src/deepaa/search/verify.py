"""Short trainings with a found policy and with what people use otherwise, side by side."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.data import LabelledImages, TrainTest, checked
from deepaa.models import default_model, is_large, load_model
from deepaa.ops import CIFAR, IMAGENET
from deepaa.policy import Policy
from deepaa.runs import StopAskedError
from deepaa.search.policy_search import PolicySearch, default_augmentation
from deepaa.train import ImageBatches, Training, evaluate

LEAST_PASSES = 20 * 4000
"""Images through the network in a comparison, at least."""


class TrialResult(NamedTuple):
    """How well a network does after a training with one policy."""

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

    @property
    def default_epochs(self) -> int:
        """20, or as many as a network needs to learn something of few images."""
        return max(20, math.ceil(LEAST_PASSES / len(self.labels)))


def compared_policies(search: PolicySearch) -> dict[str, Policy]:
    """The found policy, crop and flip, and TrivialAugment followed by crop and flip."""
    whole = IMAGENET if is_large(search.data.images) else CIFAR  # whatever the search chose from
    usual = default_augmentation(whole, ("crop", "resized_crop", "flip"))
    return {
        "found policy": search.policy,
        "crop and flip": usual,
        "TrivialAugment": Policy.trivial(whole, 1).then(usual),
    }


def trial_images(search: PolicySearch, test: LabelledImages | None) -> Trial:
    """All images of the search to train on, and the data set's own test images.

    Without such, the validation split is tested on, and the rest trains.
    """
    data, part = search.data, search.splits.validation
    if test is not None:
        test = checked(TrainTest(data, test, "the test part of the data set")).test
        return Trial(data.images, data.labels, test.images, test.labels, "test images")
    left = torch.ones(len(data.labels), dtype=torch.bool)
    left[part] = False
    name = "images of the validation split"
    return Trial(data.images[left], data.labels[left], data.images[part], data.labels[part], name)


def run_trial(
    search: PolicySearch, trial: Trial, epochs: int, stop: Callable[[], bool]
) -> Iterator[TrialResult]:
    """Train the network of the search from new weights with each policy.

    Raises:
        StopAskedError: `stop` said yes, between two steps.
    """

    def check_stop() -> None:
        if stop():
            raise StopAskedError

    seed = search.config.seed
    config = dataclasses.replace(search.proxy.train, epochs=epochs, seed=seed)
    images, classes = search.data.images, len(search.data.class_names)
    network = search.proxy.model or default_model(images, search.device)
    for name, policy in compared_policies(search).items():
        began = time.perf_counter()
        model = load_model(network, images, classes, seed)
        batches = ImageBatches(trial.images, trial.labels, policy, config, search.device)
        training = Training(model, batches, config)
        training.before_step = check_stop
        for _ in training:
            pass
        result = evaluate(training.model, trial.test_images, trial.test_labels)
        yield TrialResult(name, result.accuracy, result.loss, time.perf_counter() - began)
