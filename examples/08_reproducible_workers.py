"""The same augmented images for any number of DataLoader workers, and after a restart.

Usage: python examples/08_reproducible_workers.py

`AugmentedDataset` tells the transform which sample it is working on. With a seed, the draw then
depends on (seed, epoch, index) and on nothing else.
"""

import hashlib

from torch.utils.data import DataLoader, TensorDataset

from deepaa import AugmentedDataset, DeepAutoAugment
from deepaa.data import load_embedded


def epochs(workers: int, first: int, last: int) -> list[str]:
    """A fingerprint of all augmented images of each epoch from `first` to `last`."""
    data = load_embedded()
    source = TensorDataset(data.train_images[:200], data.train_labels[:200])
    dataset = AugmentedDataset(source, DeepAutoAugment("deepta", seed=0))
    loader = DataLoader(dataset, batch_size=50, num_workers=workers, persistent_workers=workers > 0)
    prints = []
    for epoch in range(first, last + 1):
        dataset.set_epoch(epoch)  # before each epoch; workers that are running see it
        digest = hashlib.sha256()
        for images, labels in loader:
            digest.update(images.numpy().tobytes())
            digest.update(labels.numpy().tobytes())
        prints.append(digest.hexdigest()[:12])
    return prints


def main() -> None:
    """Compare three ways to see the same epochs."""
    alone = epochs(workers=0, first=0, last=2)
    shared = epochs(workers=2, first=0, last=2)
    restarted = epochs(workers=2, first=2, last=2)
    print("no workers        ", *alone)
    print("2 workers         ", *shared)
    print("restart in epoch 2", " " * 12, " " * 12, *restarted)
    assert alone == shared
    assert alone[2:] == restarted
    assert len(set(alone)) == 3  # and yet no epoch repeats another
    print("the same images every time, and new ones in every epoch")


if __name__ == "__main__":  # workers may import this file again
    main()
