"""What a search looks at: an image, and the original images whose gradient it should match."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.keys import hash_int
from deepaa.ops.plan import to_device


class SearchData(NamedTuple):
    """Images to augment and images whose gradient is matched, uint8, with labels."""

    images: Tensor
    labels: Tensor
    validation_images: Tensor
    validation_labels: Tensor


class Chosen(NamedTuple):
    """Which images are looked at, on the CPU: places in the data, not the images themselves."""

    images: Tensor  # (G,)
    originals: Tensor  # (G, V)

    def part(self, numbers: list[int]) -> Chosen:
        """Some of them."""
        return Chosen(self.images[numbers], self.originals[numbers])


class Pairs(NamedTuple):
    """G images with their labels, and for each a batch of V originals with theirs."""

    images: Tensor  # (G, C, H, W)
    labels: Tensor  # (G,)
    originals: Tensor  # (G, V, C, H, W)
    original_labels: Tensor  # (G, V)


class Pools:
    """Draws pairs by class; the held-out images never take part in a step."""

    def __init__(
        self, data: SearchData, *, validation: int, heldout: int, same_class: bool, seed: int
    ) -> None:
        """Set the held-out images aside and index the rest by class.

        Args:
            validation: Originals per pair, drawn with replacement.
            heldout: Images set aside.
            same_class: Draw originals of the image's class, or of all classes.
        """
        self.data, self.validation, self.same_class, self.seed = data, validation, same_class, seed
        _check(data)
        # indices are drawn on the CPU, wherever the images lie
        self.labels, answers = data.labels.cpu(), data.validation_labels.cpu()
        order = torch.randperm(len(data.images), generator=_generator(hash_int(seed, 1)))
        if heldout >= len(order):
            raise ValueError(
                f"{heldout} held-out images leave none of {len(order)} for the search; "
                "lower heldout or give more images"
            )
        self.heldout, rest = _set_aside(order, heldout, self.labels)
        self.classes = sorted(set(self.labels[rest].tolist()))
        self.members = {c: rest[self.labels[rest] == c] for c in self.classes}
        everything = torch.arange(len(data.validation_images))
        present = sorted(set(self.labels.tolist()))
        self.originals = {
            c: everything[answers == c] if same_class else everything for c in present
        }
        if missing := [c for c in present if not len(self.originals[c])]:
            raise ValueError(f"no validation image of class {missing[0]} ({len(missing)} missing)")

    def choose(self, seed: int, n: int) -> Chosen:
        """`n` pairs: classes uniformly, an image of each, and a batch of originals for each."""
        generator = _generator(seed)

        def below(limit: int, count: int) -> Tensor:
            return torch.randint(limit, (count,), generator=generator)

        indices, batches = [], []
        for place in below(len(self.classes), n).tolist():
            members = self.members[self.classes[place]]
            indices.append(int(members[below(len(members), 1)]))
            batches.append(self._originals(indices[-1], generator))
        return Chosen(torch.tensor(indices), torch.stack(batches))

    def heldout_pairs(self) -> Chosen:
        """A pair for each held-out image, the same every time."""
        generator = _generator(hash_int(self.seed, 2))
        batches = [self._originals(index, generator) for index in self.heldout.tolist()]
        return Chosen(self.heldout, torch.stack(batches))

    def _originals(self, index: int, generator: torch.Generator) -> Tensor:
        candidates = self.originals[int(self.labels[index])]
        return candidates[torch.randint(len(candidates), (self.validation,), generator=generator)]

    def fetch(self, chosen: Chosen, device: torch.device) -> Pairs:
        """The images themselves, on a device."""
        d = self.data
        places = to_device(chosen.images, d.images.device)
        batches = to_device(chosen.originals, d.validation_images.device)
        found = d.images[places], d.labels[places]
        originals = d.validation_images[batches], d.validation_labels[batches]
        return Pairs(*(part.to(device) for part in (*found, *originals)))


def _set_aside(order: Tensor, count: int, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The first `count`, and the rest in rising order; of every class the rest keeps an image."""
    left = labels.bincount()
    places = order[:count]
    if bool((left > labels[places].bincount(minlength=len(left)))[left > 0].all()):
        return places, order[count:].sort().values
    taken: list[int] = []
    rest: list[int] = []
    for place, label in zip(order.tolist(), labels[order].tolist(), strict=True):
        if len(taken) < count and left[label] > 1:
            left[label] -= 1
            taken.append(place)
        else:
            rest.append(place)
    if not taken:  # one image of each class
        return places, order[count:].sort().values
    return torch.tensor(taken), torch.tensor(sorted(rest))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


def _check(data: SearchData) -> None:
    for what, images, labels in (
        ("search", data.images, data.labels),
        ("validation", data.validation_images, data.validation_labels),
    ):
        if images.ndim != 4 or images.dtype != torch.uint8 or not len(images):
            raise ValueError(
                f"{what} images should be uint8 (N, C, H, W), got {images.dtype} "
                f"{tuple(images.shape)}"
            )
        if labels.shape != (len(images),):
            raise ValueError(f"{len(images)} {what} images, but labels {tuple(labels.shape)}")
    if data.images.shape[1:] != data.validation_images.shape[1:]:
        raise ValueError(
            f"search images are {tuple(data.images.shape[1:])}, validation images "
            f"{tuple(data.validation_images.shape[1:])}"
        )
