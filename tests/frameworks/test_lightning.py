"""Lightning: a policy on its batches and in its data loaders, with the epochs of its Trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from real_files import N, Seen, check_own_draws, check_stream, save_pictures
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from deepaa import AugmentedDataset, DeepAutoAugment
from deepaa.models import build_model

pytestmark = pytest.mark.slow
lightning = pytest.importorskip("lightning")
TO_TENSOR = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


class Network(lightning.LightningModule):  # type: ignore[misc]
    """A classifier that notes what reached it, and how often each loop called it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_model("small", 4)
        self.seen, self.judged = Seen(), Seen()
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.look(*batch)
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.judged.look(*batch)
        self.log("val_loss", F.cross_entropy(self.model(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class OnBatches(Network):
    """As the page has it: augment what was moved to the device, and only in training."""

    def __init__(self, policy: Path) -> None:
        super().__init__()
        self.augment = DeepAutoAugment(policy, seed=7)

    def on_train_epoch_start(self) -> None:
        self.augment.set_epoch(self.current_epoch)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        images, labels = batch
        return (self.augment(images) if self.trainer.training else images), labels


class InWorkers(Network):
    """The data set of the train loader augments; the module tells it the epoch."""

    def on_train_epoch_start(self) -> None:
        self.trainer.train_dataloader.dataset.set_epoch(self.current_epoch)


def fit(network: Network, train: Any, val: Any, folder: Path) -> None:
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(network, train, val)
    assert trainer.current_epoch == 2
    assert len(network.losses) == trainer.global_step == 2 * N / 8
    assert all(map(math.isfinite, [*network.losses, float(trainer.callback_metrics["val_loss"])]))


def loader(folder: Path, part: str, transform: Any) -> DataLoader[Any]:
    return DataLoader(ImageFolder(str(folder / part), transform), batch_size=8)


def test_batches_on_the_device(tmp_path: Path) -> None:
    folder = save_pictures(tmp_path, one=True)

    def run() -> OnBatches:
        network = OnBatches(folder / "policy.json")
        val = loader(folder, "val", v2.PILToTensor())
        fit(network, loader(folder, "train", v2.PILToTensor()), val, folder)
        return network

    first = run()
    check_own_draws(first.seen, epochs=2)
    assert run().seen.pairs == first.seen.pairs
    # validation images are not augmented: neither in its own runs nor before the training
    plain = Seen()
    for batch in loader(folder, "val", v2.PILToTensor()):
        plain.look(*batch)
    assert first.judged.pairs[-N:] == first.judged.pairs[-2 * N : -N] == plain.pairs


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_hear_of_the_epoch(tmp_path: Path, persistent: bool) -> None:
    folder = save_pictures(tmp_path)
    source = ImageFolder(str(folder / "train"))
    data = AugmentedDataset(source, DeepAutoAugment(folder / "policy.json", seed=3), then=TO_TENSOR)
    train = DataLoader(
        data, batch_size=8, shuffle=True, num_workers=2, persistent_workers=persistent
    )
    network = InWorkers()
    fit(network, train, loader(folder, "val", TO_TENSOR), folder)
    check_stream(network.seen, folder, source, TO_TENSOR, seed=3)
