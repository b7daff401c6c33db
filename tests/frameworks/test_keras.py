"""Keras 3 on torch: `fit` with a DataLoader, and epochs through a callback."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from forks import Program, in_forks
from pages import is_installed

pytestmark = pytest.mark.slow


def program(folder: Path) -> None:
    """Train; in a process of its own, because Keras chooses its backend when imported."""
    import keras
    import torch
    from real_files import SIZE, N, Seen, check_stream
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    from deepaa import AugmentedDataset, DeepAutoAugment

    assert keras.backend.backend() == "torch"
    to_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def then(sample: Any) -> Any:
        image, label = to_tensor(sample)
        return image.permute(1, 2, 0), label  # Keras has channels last

    source = ImageFolder(str(folder / "train"))
    data = AugmentedDataset(source, DeepAutoAugment(folder / "policy.json", seed=2), then=then)
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
    seen = Seen()

    class Network(keras.Sequential):  # type: ignore[misc]
        def train_step(self, batch: Any) -> Any:
            seen.look(*batch)
            return super().train_step(batch)

    network = Network(
        [
            keras.Input((SIZE, SIZE, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(4),
        ]
    )
    network.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    epochs = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: data.set_epoch(epoch))
    history = network.fit(loader, epochs=2, callbacks=[epochs], verbose=0).history
    assert len(history["loss"]) == 2
    assert all(map(math.isfinite, history["loss"]))
    assert len(seen.pairs) == 2 * N
    check_stream(seen, folder, source, then, seed=2)


def test_fit_with_a_loader(tmp_path: Path) -> None:
    if not is_installed("keras"):
        pytest.skip("keras is not installed")
    from real_files import save_pictures

    folder = str(save_pictures(tmp_path / "pictures"))
    own = {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    (done,) = in_forks([Program(file=__file__, arguments=(folder,), environment=own)], timeout=300)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout


if __name__ == "__main__":
    program(Path(sys.argv[1]))
    sys.stdout.write("trained\n")
