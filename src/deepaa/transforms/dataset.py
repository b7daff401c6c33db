"""`AugmentedDataset` applies a transform to the samples of a dataset, each under its index."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from deepaa.transforms import inputs
from deepaa.transforms.transform import DeepAutoAugment


class AugmentedDataset(Dataset[Any]):
    """A dataset whose samples are augmented under their index.

    With a seeded transform, item i is a pure function of (seed, epoch, i): the stream is the same
    for any number of workers, any order, and after a restart. Call `set_epoch` before each epoch,
    or every epoch repeats the same augmented images. Without a seed, each access draws afresh.
    """

    def __init__(
        self,
        dataset: Any,
        transform: DeepAutoAugment,
        *,
        then: Callable[[Any], Any] | None = None,
    ) -> None:
        """Check that the dataset can be indexed, and that the rest fits.

        Args:
            dataset: Anything with `__getitem__` and `__len__` whose items the transform takes.
            then: Called with each augmented sample, label and all: a v2 pipeline that makes tensors
                of PIL images, which a DataLoader cannot put into a batch.
        """
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"AugmentedDataset needs __getitem__ and __len__, which {type(dataset).__name__} "
                "lacks; call the transform inside an iterable dataset instead"
            )
        if not isinstance(transform, DeepAutoAugment):
            raise TypeError(
                f"transform should be a DeepAutoAugment(policy, seed=0), got {transform!r}"
            )
        if then is not None and not callable(then):
            raise TypeError(
                f"then should be callable, got {type(then).__name__}; v2.Compose makes one of many"
            )
        self.dataset = dataset
        self.transform = transform
        self.then = then
        # Visits, their epoch, and whether a warning was given: shared by all workers.
        self._visits = inputs.shared_tensor(torch.zeros(3, dtype=torch.int64, device="cpu"))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """Sample `index`, augmented."""
        index = inputs.whole_number(index, "index of a sample")
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a dataset of {len(self)}")
        if index < 0:
            index += len(self)
        sample = self.dataset[index]
        if self.transform.seed is None:
            sample = self.transform(sample)
        else:
            self._count_visit()
            sample = self.transform(sample, index=index)
        return sample if self.then is None else self.then(sample)

    def set_epoch(self, epoch: int) -> None:
        """Change the draws; workers that are already running see it."""
        self.transform.set_epoch(epoch)

    def _count_visit(self) -> None:
        """Warn once when two whole epochs went by under one number."""
        count, of_epoch, warned = self._visits.tolist()
        epoch = self.transform.epoch
        count = count + 1 if of_epoch == epoch else 1
        # Workers may overwrite each other's count; it then warns a little later.
        self._visits[0], self._visits[1] = count, epoch
        if count > 2 * len(self) and not warned:
            self._visits[2] = 1
            warnings.warn(
                f"{count} samples were drawn in epoch {epoch} from a dataset of {len(self)}: call "
                "set_epoch(epoch) before each epoch, or it repeats the same augmented images",
                stacklevel=2,
            )
