"""A network that is trained while a search asks what each of its steps does to other images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from deepaa.data import epoch_order
from deepaa.search.gradient_matching.gradients import (
    Derivatives,
    Params,
    check_forward_mode,
    checked_trace,
)
from deepaa.search.methods.searcher import Part
from deepaa.train import EpochRecord, ImageBatches, TrainConfig, Training, image_outcomes

Augment = Callable[[int, int, Tensor], Tensor]
"""The augmented images of a batch, for the epoch, the step and the indices (N,) of the images."""
SAMPLE = 16
"""Images on which forward mode is tried."""


class LivingNetwork:
    """A training, and the gradient of validation images after each of its steps.

    Derivatives are those of a network in eval mode: batch norm takes its running statistics, and
    an image's slope does not depend on the others of its batch. The step itself is an ordinary one.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Part,
        validation: Part,
        config: TrainConfig,
        device: torch.device,
        augment: Augment,
    ) -> None:
        """Prepare the training on `train`, whose batches `augment` makes."""
        self.validation = Part(validation.images.to(device), validation.labels.to(device))
        self._batches = _OwnBatches(train, config, device, self._before_step(augment))
        self.training = Training(model, self._batches, config)
        self._frozen = deepcopy(self.training.model).eval()
        """The weights before the last step."""
        sample = self._batches.images[:SAMPLE], self._batches.labels[:SAMPLE]
        nodes = checked_trace(self._frozen, *sample)
        if nodes is None:
            check_forward_mode(self._frozen, *sample)
        chunk = config.batch  # no more than a step has at a time
        self._before = Derivatives(self._frozen, nodes=nodes, chunk=chunk)
        self._after = Derivatives(self.training.model, chunk=chunk)

    def _before_step(self, augment: Augment) -> Augment:
        def kept(epoch: int, step: int, rows: Tensor) -> Tensor:
            with torch.no_grad():
                states = (net.state_dict() for net in (self._frozen, self.training.model))
                for old, new in zip(*(state.values() for state in states), strict=True):
                    old.copy_(new)
            return augment(epoch, step, rows)

        return kept

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.training.epoch

    def originals(self, rows: Tensor) -> Tensor:
        """The training images with the indices (N,), on the device."""
        return self._batches.images[rows.to(self._batches.device)]

    def steps(self) -> Iterator[EpochRecord | None]:
        """The steps of an epoch: None after each, and the record of the epoch at the end."""
        return self.training.steps()

    def validation_gradient(self, rows: Tensor) -> Params:
        """The mean gradient of validation images after the last step, which is the unrolled one."""
        images, labels = (part[rows.to(part.device)] for part in self.validation[:2])
        self.training.model.eval()
        try:
            return self._after.mean_gradient(images, labels)
        finally:
            self.training.model.train()

    def slopes(self, images: Tensor, labels: Tensor, direction: Params) -> Tensor:
        """(N,) of each image's loss along a direction, at the weights before the last step."""
        return self._before.loss_jvp(images, labels, direction).double().cpu()

    def accuracy(self) -> float:
        """The share of validation images that are classified right."""
        _, right = image_outcomes(self.training.model, *self.validation[:2])
        return right.double().mean().item()

    def state(self) -> dict[str, Tensor]:
        """Of the training; nothing else is kept between epochs."""
        return self.training.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state; ValueError if it is that of another training."""
        self.training.load_state(state)


class _OwnBatches(ImageBatches):
    """Batches that are augmented when their step comes, as the search then stands."""

    def __init__(
        self, part: Part, config: TrainConfig, device: torch.device, augment: Augment
    ) -> None:
        super().__init__(part.images, part.labels, None, config, device)
        self._augment = augment

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        config = self.config
        order = epoch_order(len(self.images), config.batch, config.seed, number)
        for step, rows in enumerate(torch.split(order, config.batch)):
            yield self._augment(number, step, rows), self.labels[rows.to(self.device)]
