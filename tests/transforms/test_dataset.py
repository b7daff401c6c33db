"""AugmentedDataset and DataLoader workers: which draws repeat, and which never do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import ROOT, blocks
from pictures import BLANK, STAMPS, as_array, noise, stamps
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset
from torchvision.datasets import FakeData
from torchvision.transforms import v2

from deepaa.ops.space import CIFAR, Operation
from deepaa.policy.policy import Policy
from deepaa.transforms import AugmentedDataset, DeepAutoAugment


class Blank(Dataset[Any]):
    """(blank image, its index)."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return BLANK.clone(), index


class BlankAugmented(Blank):
    """(augmented blank image, its index), the transform called without an index."""

    def __init__(self, n: int, transform: DeepAutoAugment) -> None:
        super().__init__(n)
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index))


def loaded(loader: DataLoader[Any], epochs: int = 1, dataset: Any = None) -> list[dict[int, bytes]]:
    """What each sample showed, by its index, for every epoch."""
    out = []
    for epoch in range(epochs):
        if dataset is not None:
            dataset.set_epoch(epoch)
        seen: dict[int, bytes] = {}
        for images, index in loader:
            seen.update(zip(index.tolist(), stamps(images), strict=True))
        out.append(seen)
    return out


def test_augmented_dataset_gives_one_stream_for_any_number_of_workers() -> None:
    def dataset() -> AugmentedDataset:
        return AugmentedDataset(Blank(24), DeepAutoAugment(STAMPS, seed=6))

    data = dataset()
    want = loaded(DataLoader(data, batch_size=5), 3, data)
    assert len({show for epoch in want for show in epoch.values()}) == 72
    for workers, persistent in ((1, False), (2, False), (2, True)):
        data = dataset()
        loader = DataLoader(
            data,
            batch_size=4,
            num_workers=workers,
            persistent_workers=persistent,
            sampler=RandomSampler(data),
            multiprocessing_context="fork",
        )
        assert loaded(loader, 3, data) == want
    # a restart in the last epoch, and one sample by hand
    data = dataset()
    data.set_epoch(2)
    assert loaded(DataLoader(data, batch_size=24)) == want[2:]
    assert data[7][0].numpy().tobytes() == data[7 - 24][0].numpy().tobytes() == want[2][7]


class Streams(Blank):
    """(image under its index, by a seeded and by an unseeded stream, index)."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.indexed = AugmentedDataset(Blank(n), DeepAutoAugment(STAMPS, seed=6))
        self.streams = [DeepAutoAugment(STAMPS, seed=1), DeepAutoAugment(STAMPS)]

    def __getitem__(self, index: int) -> Any:
        image = self.indexed[index][0]
        return torch.stack([image, *(stream(BLANK) for stream in self.streams)]), index


@pytest.mark.slow
def test_spawned_workers_repeat_the_indexed_stream_and_no_other() -> None:
    data, n = Streams(8), 8
    want = AugmentedDataset(Blank(n), DeepAutoAugment(STAMPS, seed=6))
    loader = DataLoader(
        data,
        batch_size=2,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    free: list[bytes] = []
    for epoch in range(2):
        data.indexed.set_epoch(epoch)  # reaches workers that run already
        want.set_epoch(epoch)
        for images, index in loader:
            for image, i in zip(images, index.tolist(), strict=True):
                assert torch.equal(image[0], want[i][0])
                free += stamps(image[1:])
    assert len(set(free)) == len(free) == 2 * 2 * n


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_no_two_workers_or_epochs_repeat_a_draw(
    seed: int | None, workers: int, persistent: bool
) -> None:
    def run() -> list[dict[int, bytes]]:
        torch.manual_seed(8)
        data = BlankAugmented(12, DeepAutoAugment(STAMPS, seed=seed))
        loader = DataLoader(
            data,
            batch_size=3,
            num_workers=workers,
            persistent_workers=persistent,
            multiprocessing_context="fork" if workers else None,
        )
        return loaded(loader, 3)

    first = run()
    shown = [show for epoch in first for show in epoch.values()]
    assert len(set(shown)) == 36
    assert run() == first  # torch's seed repeats the run


def test_unseeded_dataset_draws_afresh() -> None:
    data = AugmentedDataset(Blank(4), DeepAutoAugment(STAMPS))
    assert len(data) == 4
    assert len({data[0][0].numpy().tobytes() for _ in range(20)}) == 20


def test_dataset_of_pil_images_with_a_pipeline_behind() -> None:
    pixels = [noise(3, 8, 8, seed=i) for i in range(4)]
    source = [(Image.fromarray(as_array(image)), i) for i, image in enumerate(pixels)]
    then = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    data = AugmentedDataset(
        source, DeepAutoAugment(Policy.always(Operation("invert")), seed=0), then=then
    )
    images, labels = next(iter(DataLoader(data, batch_size=4)))
    assert torch.allclose(images, 1 - torch.stack(pixels) / 255)
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["torchvision", "PIL", "tensors"])
def test_the_documented_lines_take_data_sets_of_pil_images(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, *_ = [
        block.code
        for block in blocks(ROOT / "docs/use-a-policy.md")
        if block.language == "python" and "AugmentedDataset(" in block.code
    ]
    monkeypatch.chdir(tmp_path)
    Policy.uniform(CIFAR, 2).save("policy.json")
    images = torch.stack([noise(3, 32, 32, seed=i) for i in range(8)])
    pictures = [Image.fromarray(as_array(image)) for image in images]
    sources: dict[str, Any] = {
        "torchvision": FakeData(8, (3, 32, 32), 10),
        "PIL": list(zip(pictures, range(8), strict=True)),
        "tensors": TensorDataset(images, torch.arange(8)),
    }
    names = {"dataset": sources[kind], "DeepAutoAugment": DeepAutoAugment, "v2": v2, "torch": torch}
    exec(code, names)
    batch: Any = names["images"]
    labels: Any = names["labels"]
    assert (batch.shape, batch.dtype) == ((4, 3, 32, 32), torch.float32)
    assert 0 <= float(batch.min()) <= float(batch.max()) <= 1
    assert (labels.shape, labels.dtype) == ((4,), torch.int64)


def test_dataset_warns_when_the_epoch_stands_still() -> None:
    data = AugmentedDataset(Blank(5), DeepAutoAugment(STAMPS, seed=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(DataLoader(data, batch_size=5), 4, data)  # the epoch moves
        loaded(DataLoader(data, batch_size=5))
    with pytest.warns(UserWarning, match=r"from a dataset of 5: call set_epoch") as caught:
        loaded(DataLoader(data, batch_size=5), 4)
    assert len(caught) == 1


def test_dataset_refuses_what_it_cannot_use() -> None:
    with pytest.raises(TypeError, match="needs __getitem__ and __len__, which generator lacks"):
        AugmentedDataset((i for i in range(3)), DeepAutoAugment(STAMPS))
    with pytest.raises(TypeError, match=r"a DeepAutoAugment\(policy, seed=0\), got 'deepta'"):
        AugmentedDataset(Blank(3), "deepta")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"then should be callable, got list; v2.Compose makes"):
        AugmentedDataset(Blank(3), DeepAutoAugment(STAMPS), then=[v2.ToImage()])  # type: ignore[arg-type]
    data = AugmentedDataset(Blank(3), DeepAutoAugment(STAMPS, seed=0))
    with pytest.raises(IndexError):
        data[3]
    with pytest.raises(IndexError):
        data[-4]
    with pytest.raises(TypeError, match="index of a sample should be a whole number, got 'a'"):
        data["a"]  # type: ignore[index]
