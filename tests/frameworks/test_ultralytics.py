"""Ultralytics: its classification trainer with a policy where its RandAugment was."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from forks import Program, in_forks
from pages import is_installed

pytestmark = pytest.mark.slow
ONLY_THE_POLICY = {"scale": 0.0, "fliplr": 0.0, "erasing": 0.0}
"""Settings that turn its other random changes of pixels off."""


def program(folder: Path, workers: int) -> None:
    """Train; in a process of its own, because the library changes torch's settings for all."""
    from real_files import SIZE, N, Seen, check_own_draws
    from ultralytics import YOLO
    from ultralytics.models.yolo.classify import ClassificationTrainer

    from deepaa import DeepAutoAugment

    seen, validated, losses = Seen(), [], []

    class Trainer(ClassificationTrainer):  # type: ignore[misc]
        def build_dataset(self, img_path: str, mode: str = "train", batch: Any = None) -> Any:
            data = super().build_dataset(img_path, mode, batch)
            if mode == "train":
                parts = data.torch_transforms.transforms
                place = [type(part).__name__ for part in parts].index("RandAugment")
                parts[place] = DeepAutoAugment(folder / "policy.json")
            else:
                validated.append(str(data.torch_transforms))
            return data

        def get_dataloader(self, *args: Any, **options: Any) -> Any:
            self.args.workers = workers  # which it sets to 0 on a CPU
            return super().get_dataloader(*args, **options)

        def preprocess_batch(self, batch: Any) -> Any:
            batch = super().preprocess_batch(batch)
            seen.look(batch["img"], batch["cls"])
            return batch

    model = YOLO("yolo11n-cls.yaml")
    model.add_callback("on_train_batch_end", lambda trainer: losses.append(float(trainer.loss)))
    outcome = model.train(
        trainer=Trainer,
        data=str(folder),
        epochs=2,
        imgsz=SIZE,
        batch=8,
        device="cpu",
        plots=False,
        amp=False,
        project=str(folder.parent / "out"),
        **ONLY_THE_POLICY,
    )
    assert len(losses) == 2 * N / 8
    assert all(map(math.isfinite, losses))
    assert 0 <= outcome.top1 <= 1
    check_own_draws(seen, epochs=2)
    assert validated
    assert "DeepAutoAugment" not in "".join(validated)


def test_in_the_place_of_randaugment(tmp_path: Path) -> None:
    if not is_installed("ultralytics"):
        pytest.skip("ultralytics is not installed")
    from real_files import save_pictures

    programs = []
    for workers in ("0", "2"):
        place = tmp_path / workers
        folder = str(save_pictures(place / "pictures", one=True))
        own = {"YOLO_CONFIG_DIR": str(place), "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
        programs.append(Program(file=__file__, arguments=(folder, workers), environment=own))
    for done in in_forks(programs, timeout=300):
        assert done.returncode == 0, done.stderr
        assert "trained" in done.stdout


if __name__ == "__main__":
    program(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write("trained\n")
