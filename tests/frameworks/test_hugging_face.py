"""Hugging Face: `datasets.set_transform`, and the Trainer of transformers over several epochs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from real_files import SIZE, N, Seen, check_own_draws, check_stream, save_pictures
from torchvision.transforms import v2

from deepaa import AugmentedDataset, DeepAutoAugment

pytestmark = pytest.mark.slow
datasets = pytest.importorskip("datasets")
TO_TENSOR = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def rows_of(folder: Path, part: str = "train") -> Any:
    """The pictures of a part as `load_dataset("imagefolder")` reads them."""
    cache = str(folder / "cache")
    data_dir = str(folder / part)
    return datasets.load_dataset("imagefolder", data_dir=data_dir, split="train", cache_dir=cache)


def trained(folder: Path, data: Any, *, workers: int = 2, callbacks: Any = ()) -> Seen:
    """Two epochs by the Trainer; what the network was given."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    seen = Seen()

    small = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 4}
    network = transformers.ResNetForImageClassification(transformers.ResNetConfig(**small))
    network.register_forward_pre_hook(
        lambda _, args, given: seen.look(given["pixel_values"], given["labels"]), with_kwargs=True
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        dataloader_num_workers=workers,
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=network,
        args=arguments,
        train_dataset=data,
        callbacks=list(callbacks),
    )
    outcome = trainer.train()
    assert outcome.global_step == 2 * N / 8
    assert math.isfinite(outcome.training_loss)
    return seen


def test_set_transform_with_the_trainer(tmp_path: Path) -> None:
    folder = save_pictures(tmp_path, one=True)
    augment = DeepAutoAugment(folder / "policy.json")

    def prepare(batch: Any) -> Any:
        pixels = [TO_TENSOR(augment(image.convert("RGB"))) for image in batch["image"]]
        return {"pixel_values": pixels, "labels": batch["label"]}

    rows = rows_of(folder)
    rows.set_transform(prepare)
    check_own_draws(trained(folder, rows), epochs=2)


def test_a_batch_of_rows_as_it_is(tmp_path: Path) -> None:
    folder = save_pictures(tmp_path, one=True)
    rows = rows_of(folder)
    plain = rows[:N]["image"]
    rows.set_transform(DeepAutoAugment(folder / "policy.json", seed=0))
    found = rows[:N]
    assert found["label"] == [label for label in range(4) for _ in range(8)]
    assert len({image.tobytes() for image in found["image"]}) > 0.95 * N
    assert all(image.size == (SIZE, SIZE) for image in found["image"])
    assert {image.tobytes() for image in plain} == {plain[0].tobytes()}


def test_the_trainer_hands_its_epochs_to_the_data_set(tmp_path: Path) -> None:
    folder = save_pictures(tmp_path)
    source = rows_of(folder)

    def then(sample: Any) -> Any:
        return {"pixel_values": TO_TENSOR(sample["image"]), "labels": sample["label"]}

    augment = DeepAutoAugment(folder / "policy.json", seed=4)
    seen = trained(folder, AugmentedDataset(source, augment, then=then))

    def pair(sample: Any) -> Any:
        return tuple(then(sample).values())

    check_stream(seen, folder, source, pair, seed=4)
