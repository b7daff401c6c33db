"""Folders of pictures for the training loops of other libraries, and what their networks saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from deepaa import CIFAR, AugmentedDataset, DeepAutoAugment, Policy
from deepaa.data import load_embedded
from deepaa.ops import tensor_to_pil

CLASSES, PER_CLASS = 4, 8
N = CLASSES * PER_CLASS
SIZE = 32


def save_pictures(root: Path, *, one: bool = False) -> Path:
    """Photographs as root/train/CLASS and root/val/CLASS, PNG and JPEG; a policy beside them.

    Args:
        one: The same picture in all files of train, so that unequal pixels are unequal draws.
    """
    data = load_embedded()
    labels = data.train_labels.tolist()
    for part, start in (("train", 0), ("val", PER_CLASS)):
        for label in range(CLASSES):
            folder = root / part / data.class_names[label]
            folder.mkdir(parents=True)
            places = [i for i, mine in enumerate(labels) if mine == label]
            for number, place in enumerate(places[start : start + PER_CLASS]):
                same = one and part == "train"
                picture = tensor_to_pil(data.train_images[0 if same else place])
                picture.save(folder / f"{number}.{'png' if same or number % 2 else 'jpg'}")
    # many layers with geometry, colour and cutout: two draws hardly ever give the same pixels
    Policy.trivial(CIFAR, 6).save(root / "policy.json")
    return root


class Seen:
    """What a network was given in training: the pixels of each image, with its label."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.pairs: list[tuple[bytes, int]] = []

    def look(self, images: Tensor, labels: Tensor) -> None:
        """Note a batch."""
        assert images.ndim == 4
        assert len(images) == len(labels)
        for image, label in zip(images.detach().cpu(), labels.tolist(), strict=True):
            self.pairs.append((as_bytes(image), int(label)))

    def epochs(self) -> list[list[tuple[bytes, int]]]:
        """The pairs of each epoch."""
        assert self.pairs
        assert len(self.pairs) % N == 0
        return [self.pairs[start : start + N] for start in range(0, len(self.pairs), N)]


def as_bytes(image: Tensor) -> bytes:
    """The pixels of an image, whatever its layout in memory."""
    return image.contiguous().numpy().tobytes()


def check_own_draws(seen: Seen, epochs: int) -> None:
    """Raise unless images of one picture differ, in an epoch and between epochs; and the labels.

    Two workers, or two epochs, with the same draws would have every image come twice.
    """
    images = [image for image, _ in seen.pairs]
    assert len(images) == epochs * N
    assert len(set(images)) >= 0.95 * len(images), Counter(images).most_common(2)[0][1]
    for pairs in seen.epochs():
        assert Counter(label for _, label in pairs) == dict.fromkeys(range(CLASSES), PER_CLASS)


def expected(
    folder: Path, source: Any, then: Callable[[Any], tuple[Tensor, int]], epoch: int, seed: int
) -> Counter[tuple[bytes, int]]:
    """The images that a stream should show, computed without a loader, with their labels."""
    augment = DeepAutoAugment(folder / "policy.json", seed=seed)
    data = AugmentedDataset(source, augment)
    data.set_epoch(epoch)
    found = [then(data[i]) for i in range(len(source))]
    return Counter((as_bytes(image), int(label)) for image, label in found)


def check_stream(
    seen: Seen,
    folder: Path,
    source: Any,
    then: Callable[[Any], tuple[Tensor, int]],
    *,
    seed: int,
    epochs: int = 2,
) -> None:
    """Raise unless epoch e showed every sample under (seed, e, its index), with its label."""
    want = [expected(folder, source, then, epoch, seed) for epoch in range(epochs)]
    assert [Counter(pairs) for pairs in seen.epochs()] == want
    plain = Counter((as_bytes(image), int(label)) for image, label in map(then, source))
    assert not want[0] & want[1]  # other draws in another epoch
    assert sum((want[0] & plain).values()) < N / 4  # and not the pictures as they were
