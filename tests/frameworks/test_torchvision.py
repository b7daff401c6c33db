"""Training loops in the style of torchvision's references, with a policy where RandAugment was."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from real_files import SIZE, N, Seen, check_own_draws, check_stream, save_pictures
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import get_model
from torchvision.transforms import v2

from deepaa import AugmentedDataset, DeepAutoAugment

MEAN, STD = [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]
TO_TENSOR = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def train(loader: DataLoader[Any], seen: Seen, *, epochs: int, before: Any = lambda _: None) -> Any:
    """The loop of a classification script: its losses."""
    model = get_model("mobilenet_v3_small", num_classes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        before(epoch)
        model.train()
        for images, labels in loader:
            seen.look(images, labels)
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pil", "tensor", "tv_tensor"])
def test_a_policy_where_randaugment_was(tmp_path: Path, backend: str) -> None:
    folder = save_pictures(tmp_path, one=True)
    first = {"pil": [], "tensor": [v2.PILToTensor()], "tv_tensor": [v2.ToImage()]}[backend]
    last = TO_TENSOR if backend == "pil" else TO_TENSOR[1:]
    augment = DeepAutoAugment(folder / "policy.json")
    preset = v2.Compose([*first, v2.Resize(40), v2.CenterCrop(SIZE), augment, *last])
    data = ImageFolder(str(folder / "train"), preset)
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
    seen = Seen()
    losses = train(loader, seen, epochs=2)
    assert len(losses) == 2 * N / 8
    assert all(map(math.isfinite, losses))
    check_own_draws(seen, epochs=2)


@pytest.mark.slow
def test_cutmix_and_mixup_follow_the_policy(tmp_path: Path) -> None:
    folder = save_pictures(tmp_path, one=True)
    preset = v2.Compose([DeepAutoAugment(folder / "policy.json"), *TO_TENSOR])
    mix = v2.RandomChoice([v2.MixUp(num_classes=4), v2.CutMix(num_classes=4)])
    loader = DataLoader(
        ImageFolder(str(folder / "train"), preset),
        batch_size=8,
        shuffle=True,
        num_workers=1,
        collate_fn=lambda batch: mix(*torch.utils.data.default_collate(batch)),
    )
    images, labels = zip(*loader, strict=True)
    assert torch.cat(labels).sum() == pytest.approx(N, rel=1e-4)  # shares of one label each
    assert len({image.numpy().tobytes() for image in torch.cat(images)}) > 0.95 * N


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_the_stream_is_that_of_seed_epoch_and_index(tmp_path: Path, persistent: bool) -> None:
    folder = save_pictures(tmp_path)
    source = ImageFolder(str(folder / "train"))
    then = v2.Compose(TO_TENSOR)
    data = AugmentedDataset(source, DeepAutoAugment(folder / "policy.json", seed=3), then=then)
    loader = DataLoader(
        data, batch_size=8, shuffle=True, num_workers=2, persistent_workers=persistent
    )
    seen = Seen()
    losses = train(loader, seen, epochs=2, before=data.set_epoch)
    assert all(map(math.isfinite, losses))
    check_stream(seen, folder, source, then, seed=3)


@pytest.mark.slow
def test_the_first_version_of_transforms_takes_it(tmp_path: Path) -> None:
    from torchvision import transforms

    folder = save_pictures(tmp_path, one=True)
    augment = DeepAutoAugment(folder / "policy.json")
    parts = [augment, transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    data = ImageFolder(str(folder / "train"), transforms.Compose(parts))
    seen = Seen()
    losses = train(DataLoader(data, batch_size=16, num_workers=2), seen, epochs=2)
    assert all(map(math.isfinite, losses))
    check_own_draws(seen, epochs=2)
