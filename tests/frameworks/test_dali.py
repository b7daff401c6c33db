"""DALI on a CPU: its pipeline reads and decodes files, and a policy takes its batches."""

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
    """Train twice on one stream, and on another; in a process of its own, as it has threads."""
    import torch.nn.functional as F
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator
    from real_files import SIZE, N, Seen, check_own_draws
    from torch.optim import SGD

    from deepaa import DeepAutoAugment
    from deepaa.models import build_model

    @pipeline_def(batch_size=8, num_threads=2, device_id=None, seed=0)
    def pictures() -> Any:
        files, labels = fn.readers.file(file_root=str(folder / "train"), name="train")
        images = fn.resize(fn.decoders.image(files), size=[SIZE, SIZE])
        return fn.transpose(images, perm=[2, 0, 1]), labels

    def train(seed: int) -> Seen:
        loader = DALIClassificationIterator(pictures(), reader_name="train", auto_reset=True)
        augment, model = DeepAutoAugment(folder / "policy.json", seed=seed), build_model("small", 4)
        optimizer, seen = SGD(model.parameters(), lr=0.01), Seen()
        for epoch in range(2):
            augment.set_epoch(epoch)
            for (batch,) in loader:
                images, labels = augment(batch["data"]), batch["label"].flatten().long()
                seen.look(images, labels)
                loss = F.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                assert math.isfinite(loss.item())
        assert len(seen.pairs) == 2 * N
        return seen

    first = train(0)
    check_own_draws(first, epochs=2)
    assert train(0).pairs == first.pairs
    assert not set(train(1).pairs) & set(first.pairs)


def test_batches_of_a_pipeline(tmp_path: Path) -> None:
    if not is_installed("nvidia.dali"):
        pytest.skip("nvidia.dali is not installed")
    from real_files import save_pictures

    folder = str(save_pictures(tmp_path, one=True))
    (done,) = in_forks([Program(file=__file__, arguments=(folder,))], timeout=300)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout


if __name__ == "__main__":
    program(Path(sys.argv[1]))
    sys.stdout.write("trained\n")
