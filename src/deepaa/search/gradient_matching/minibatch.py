"""The images of a step: some to augment, each with original images whose gradient it should match.

Indices are drawn on the CPU, wherever the images lie.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.ops import check_images, hash_int, to_device


class SearchData(NamedTuple):
    """Images to augment and images whose gradient is matched, uint8, with labels."""

    images: Tensor
    labels: Tensor
    validation_images: Tensor
    validation_labels: Tensor


class Indices(NamedTuple):
    """Which images of the data a minibatch has."""

    images: Tensor  # (G,)
    originals: Tensor  # (G, V)

    def subset(self, numbers: list[int]) -> Indices:
        """The entries with these numbers."""
        return Indices(self.images[numbers], self.originals[numbers])


class Minibatch(NamedTuple):
    """G images with their labels, and for each a batch of V originals with theirs."""

    images: Tensor  # (G, C, H, W)
    labels: Tensor  # (G,)
    originals: Tensor  # (G, V, C, H, W)
    original_labels: Tensor  # (G, V)


class MinibatchSampler:
    """Draws minibatches by class; the held-out images never take part in a step."""

    def __init__(
        self, data: SearchData, *, validation: int, heldout: int, same_class: bool, seed: int
    ) -> None:
        """Set the held-out images aside and index the rest by class.

        Args:
            validation: Originals per image, drawn with replacement.
            heldout: Images set aside.
            same_class: Draw originals of the image's class, or of all classes.
        """
        _check(data)
        self.data, self.validation, self.seed = data, validation, seed
        self.labels = data.labels.cpu()
        self.heldout, rest = _set_aside(heldout, self.labels, seed)
        self.classes = sorted(set(self.labels[rest].tolist()))
        self.members = {c: rest[self.labels[rest] == c] for c in self.classes}
        originals = torch.arange(len(data.validation_images))
        answers = data.validation_labels.cpu()
        present = sorted(set(self.labels.tolist()))
        self.originals = {c: originals[answers == c] if same_class else originals for c in present}
        if missing := [c for c in present if not len(self.originals[c])]:
            raise ValueError(f"no validation image of class {missing[0]} ({len(missing)} missing)")

    def draw(self, seed: int, n: int) -> Indices:
        """`n` images, of classes drawn uniformly, and a batch of originals for each."""
        generator = _generator(seed)

        def below(limit: int, count: int) -> Tensor:
            return torch.randint(limit, (count,), generator=generator)

        indices, batches = [], []
        for place in below(len(self.classes), n).tolist():
            members = self.members[self.classes[place]]
            indices.append(int(members[below(len(members), 1)]))
            batches.append(self._originals(indices[-1], generator))
        return Indices(torch.tensor(indices), torch.stack(batches))

    def draw_heldout(self) -> Indices:
        """All held-out images with their originals, the same every time."""
        generator = _generator(hash_int(self.seed, 2))
        batches = [self._originals(index, generator) for index in self.heldout.tolist()]
        return Indices(self.heldout, torch.stack(batches))

    def _originals(self, index: int, generator: torch.Generator) -> Tensor:
        candidates = self.originals[int(self.labels[index])]
        return candidates[torch.randint(len(candidates), (self.validation,), generator=generator)]

    def fetch(self, indices: Indices, device: torch.device) -> Minibatch:
        """The images themselves, on a device."""
        d = self.data
        images = to_device(indices.images, d.images.device)
        originals = to_device(indices.originals, d.validation_images.device)
        found = d.images[images], d.labels[images]
        matched = d.validation_images[originals], d.validation_labels[originals]
        return Minibatch(*(part.to(device) for part in (*found, *matched)))


def _set_aside(count: int, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """`count` random images, or fewer so that every class keeps one; and the rest in order."""
    order = torch.randperm(len(labels), generator=_generator(hash_int(seed, 1)))
    if count >= len(order):
        raise ValueError(
            f"{count} held-out images leave none of {len(order)} for the search; "
            "lower heldout or give more images"
        )
    left = labels.bincount().tolist()
    taken: list[int] = []
    rest: list[int] = []
    for place, label in zip(order.tolist(), labels[order].tolist(), strict=True):
        if len(taken) < count and left[label] > 1:
            left[label] -= 1
            taken.append(place)
        else:
            rest.append(place)
    if not taken:  # one image of each class
        return order[:count], order[count:].sort().values
    return torch.tensor(taken), torch.tensor(sorted(rest))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


def _check(data: SearchData) -> None:
    for what, images, labels in (
        ("search", data.images, data.labels),
        ("validation", data.validation_images, data.validation_labels),
    ):
        check_images(images, f"{what} images")
        if labels.shape != (len(images),):
            raise ValueError(f"{len(images)} {what} images, but labels {tuple(labels.shape)}")
    if data.images.shape[1:] != data.validation_images.shape[1:]:
        raise ValueError(
            f"search images are {tuple(data.images.shape[1:])}, validation images "
            f"{tuple(data.validation_images.shape[1:])}"
        )
