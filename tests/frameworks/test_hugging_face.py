"""Hugging Face: `datasets.set_transform`, and the Trainer of transformers over several epochs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import blocks
from real_files import SIZE, N, Seen, check_own_draws, check_stream, save_pictures
from torchvision import tv_tensors
from torchvision.transforms import v2

from deepaa import AugmentedDataset, DeepAutoAugment, Policy
from deepaa.ops import Operation, Table

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


def documented_prepare(policy: Path) -> Any:
    """`prepare` of the page on boxes, for this policy."""
    page = Path(__file__).parents[2] / "docs/boxes-and-masks.md"
    code = next(block.code for block in blocks(page) if "YolosImageProcessor" in block.code)
    names = {"torch": torch, "tv_tensors": tv_tensors, "DeepAutoAugment": DeepAutoAugment}
    exec(code.partition("\nobjects =")[0].replace("policy.json", str(policy)), names)
    return names["prepare"]


def test_detection_with_an_image_processor(tmp_path: Path) -> None:
    """Boxes as rows have them move half of the width to the left, and some of them leave."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    folder = save_pictures(tmp_path)
    half_left = Table([(Operation("translate_x", 0, 0.5), 0.5)])
    Policy.uniform(half_left, 1).save(folder / "policy.json")
    rows = rows_of(folder)
    # in pixels of 32: one that leaves, one that is cut, one that stays whole; and no box at all
    every = [[2.0, 4.0, 10.0, 8.0], [12.0, 4.0, 8.0, 8.0], [20.0, 0.0, 8.0, 16.0]]
    objects = [{"bbox": every[: i % 4], "category": [0, 1, 2][: i % 4]} for i in range(N)]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "image_id": datasets.Value("int64"),
            "objects": {
                "bbox": datasets.List(datasets.List(datasets.Value("float32"), length=4)),
                "category": datasets.List(datasets.Value("int64")),
            },
        }
    )
    columns = {"image": rows["image"][:], "image_id": list(range(N)), "objects": objects}
    data = datasets.Dataset.from_dict(columns, features=features)
    data.set_transform(documented_prepare(folder / "policy.json"))
    seen: dict[int, Any] = {}

    def look(_: Any, args: Any, given: Any) -> None:
        seen.update({int(target["image_id"]): target for target in given["labels"]})

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"intermediate_size": 16, "image_size": [96, 128], "num_detection_tokens": 5}
    network = transformers.YolosForObjectDetection(transformers.YolosConfig(num_labels=3, **small))
    network.register_forward_pre_hook(look, with_kwargs=True)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), num_train_epochs=1, per_device_train_batch_size=8,
        remove_unused_columns=False, use_cpu=True, report_to=[], save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    outcome = transformers.Trainer(
        model=network,
        args=arguments,
        train_dataset=data,
        data_collator=lambda batch: {
            "pixel_values": torch.stack([row["pixel_values"] for row in batch]),
            "labels": [row["labels"] for row in batch],
        },
    ).train()
    assert math.isfinite(outcome.training_loss)
    assert len(seen) == N
    # the middle, width and height as shares of the image
    want = torch.tensor([[2 / 32, 8 / 32, 4 / 32, 8 / 32], [8 / 32, 8 / 32, 8 / 32, 16 / 32]])
    for number, target in seen.items():
        left = max(0, number % 4 - 1)
        assert target["class_labels"].tolist() == [1, 2][:left]
        assert torch.allclose(target["boxes"], want[:left], atol=1e-5)


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
