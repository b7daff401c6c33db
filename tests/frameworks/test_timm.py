"""timm: policies in `create_transform`, in `create_loader`, and on batches of its prefetcher."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from real_files import SIZE, N, Seen, check_own_draws, check_stream, save_pictures
from torch.utils.data import DataLoader

from deepaa import AugmentedDataset, DeepAutoAugment

pytestmark = pytest.mark.slow
timm = pytest.importorskip("timm")
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def train(
    loader: Any, seen: Seen, *, epochs: int = 2, before: Any = lambda _: None, augment: Any = None
) -> None:
    """Train as timm's script does; every loss is finite."""
    from timm.optim import create_optimizer_v2

    model = timm.create_model("test_resnet", num_classes=4)
    optimizer = create_optimizer_v2(model, "sgd", lr=0.01)
    for epoch in range(epochs):
        before(epoch)
        model.train()
        for images, labels in loader:
            images = images if augment is None else augment(images)
            seen.look(images, labels)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert math.isfinite(loss.item())


def loader_of(folder: Path, **options: Any) -> Any:
    data = timm.data.create_dataset("", root=str(folder / "train"), is_training=True)
    return timm.data.create_loader(
        data,
        input_size=(3, SIZE, SIZE),
        batch_size=8,
        is_training=True,
        num_workers=2,
        device=torch.device("cpu"),
        **{"mean": MEAN, "std": STD, **options},
    )


@pytest.mark.parametrize("prefetcher", [False, True])
def test_in_the_place_of_rand_augment(tmp_path: Path, prefetcher: bool) -> None:
    folder = save_pictures(tmp_path, one=True)
    options = {"no_aug": False, "scale": (1, 1), "ratio": (1, 1), "hflip": 0.0}
    loader = loader_of(
        folder, auto_augment="rand-m9-mstd0.5-inc1", use_prefetcher=prefetcher, **options
    )
    parts = loader.dataset.transform.transforms
    (place,) = [i for i, part in enumerate(parts) if "RandAugment" in type(part).__name__]
    assert place == 1  # no flip here; the page has one, and names the place behind it
    parts[place] = DeepAutoAugment(folder / "policy.json")
    seen = Seen()
    train(loader, seen)
    check_own_draws(seen, epochs=2)


def test_in_a_pipeline_without_other_augmentation(tmp_path: Path) -> None:
    folder = save_pictures(tmp_path)
    transform = timm.data.create_transform(SIZE, is_training=True, no_aug=True, mean=MEAN, std=STD)
    resize, crop, *rest = transform.transforms
    source = timm.data.create_dataset("", root=str(folder / "train"), is_training=True)
    source.transform = lambda image: crop(resize(image))

    def then(sample: Any) -> Any:
        image, label = sample
        for part in rest:
            image = part(image)
        return image, label

    data = AugmentedDataset(source, DeepAutoAugment(folder / "policy.json", seed=5), then=then)
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
    seen = Seen()
    train(loader, seen, before=data.set_epoch)
    check_stream(seen, folder, source, then, seed=5)


def test_on_batches_after_the_prefetcher(tmp_path: Path) -> None:
    folder = save_pictures(tmp_path, one=True)
    # this prefetcher only divides by 255, so that the batches are what a policy takes
    loader = loader_of(folder, no_aug=True, mean=(0, 0, 0), std=(1, 1, 1))
    images, _ = next(iter(loader))
    assert images.dtype == torch.float32
    assert 0 <= images.min() < 0.3 < 0.7 < images.max() <= 1
    augment = DeepAutoAugment(folder / "policy.json", seed=0)
    seen = Seen()
    train(loader, seen, augment=augment, before=augment.set_epoch)
    check_own_draws(seen, epochs=2)
    again, other = Seen(), Seen()
    train(loader, again, augment=DeepAutoAugment(folder / "policy.json", seed=0), epochs=1)
    train(loader, other, augment=DeepAutoAugment(folder / "policy.json", seed=1), epochs=1)
    # the draws belong to the place in the epoch here: the order of the pictures does not matter
    assert [image for image, _ in again.pairs] == [image for image, _ in seen.pairs[:N]]
    assert not {image for image, _ in other.pairs} & {image for image, _ in again.pairs}


def test_normalised_batches_are_refused(tmp_path: Path) -> None:
    images, _ = next(iter(loader_of(save_pictures(tmp_path), no_aug=True)))
    with pytest.raises(ValueError, match="augment before you normalise"):
        DeepAutoAugment("deepta")(images)
