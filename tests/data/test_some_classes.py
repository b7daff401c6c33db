"""Images of some classes, to look at."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from packed import png, write_tar
from PIL import Image

from deepaa.data import DataSpec, load_class_images, load_dataset, load_embedded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class c of 30 has 3 + c % 2 images, each of one colour that says which it is."""
    for c in range(30):
        place = tmp_path / "tree" / f"class {c:02}"
        place.mkdir(parents=True)
        for i in range(3 + c % 2):
            Image.new("RGB", (12, 10), (8 * c, 50 * i, 7)).save(place / f"{i}.png")
    return tmp_path / "tree"


def test_classes_and_images_are_spread_evenly(folder: Path) -> None:
    found = load_class_images(DataSpec(str(folder)), classes=10, count=2)
    assert [name for name, _ in found.groups] == [f"class {c:02}" for c in range(0, 30, 3)]
    assert set(found.others) == {f"class {c:02}" for c in range(30) if c % 3}
    for name, images in found.groups:
        c = int(name[-2:])
        second = 50 * ((3 + c % 2) // 2)
        assert images.shape == (2, 3, 10, 12)
        assert images[:, :, 0, 0].tolist() == [[8 * c, 0, 7], [8 * c, second, 7]]


def test_no_other_file_of_a_folder_is_opened(folder: Path) -> None:
    (folder / "class 00" / "1.png").write_text("damaged")  # neither the first nor the second shown
    (folder / "class 00" / "3.png").write_text("damaged")
    (folder / "class 01" / "0.png").write_text("damaged")
    found = load_class_images(DataSpec(str(folder), size=8), classes=10, count=2)
    assert found.groups[0][1].shape == (2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"class 01/0\.png"):
        load_class_images(DataSpec(str(folder)), classes=30, count=2)


def test_few_classes_are_all_there_with_all_their_images(folder: Path) -> None:
    found = load_class_images(DataSpec(str(folder)), classes=50, count=9)
    assert [len(images) for _, images in found.groups] == [3, 4] * 15
    assert found.others == ()


def test_embedded_images_and_files_of_arrays(tmp_path: Path) -> None:
    data = load_embedded()
    found = load_class_images(DataSpec(), classes=3, count=4)
    assert [name for name, _ in found.groups] == ["airplane", "cat", "frog"]
    assert torch.equal(found.groups[1][1], data.train_images[data.train_labels == 3][::100])
    images = data.train_images[:40].permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "a.npz", x=images, y=data.train_labels[:40].numpy())
    spec = DataSpec(str(tmp_path / "a.npz"))
    found, whole = load_class_images(spec, classes=12, count=2), load_dataset(spec.data)
    assert len(found.groups) == 10
    assert torch.equal(found.groups[4][1], whole.images[[4, 24]])
    small = load_class_images(DataSpec(str(tmp_path / "a.npz"), size=16), classes=12, count=2)
    assert small.groups[4][1].shape == (2, 3, 16, 16)


def test_of_a_file_of_arrays_no_other_image_is_copied(tmp_path: Path) -> None:
    images = np.zeros((40_000, 32, 32, 1), np.uint8)
    images[::4000] = np.arange(10, dtype=np.uint8)[:, None, None, None]
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(40_000) // 4000)
    tracemalloc.start()
    found = load_class_images(DataSpec(str(tmp_path / "a.npz")), classes=10, count=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [int(group.max()) for _, group in found.groups] == list(range(10))
    assert [name for name, _ in found.groups] == [str(c) for c in range(10)]
    assert peak < 1.5 * images.nbytes  # as RGB they would be three times as many bytes


@pytest.mark.parametrize(("classes", "count"), [(0, 1), (1, 0), (-1, 2)])
def test_numbers_without_meaning(classes: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, got {classes} and {count}"):
        load_class_images(DataSpec(), classes, count)


def test_classes_of_other_sources_of_files(tmp_path: Path) -> None:
    """A folder of shards and one of `save_to_disk` have no class folders."""
    files = {}
    for i in range(12):
        files[f"{i:02}.png"] = png(10 * i) if i not in (3, 4) else b"damaged"
        files[f"{i:02}.cls"] = b"%d" % (i % 2)
    write_tar(tmp_path / "shards" / "train-0.tar", files)
    found = load_class_images(DataSpec(str(tmp_path / "shards")), count=2)
    assert [(name, images.shape[0]) for name, images in found.groups] == [("0", 2), ("1", 2)]
    datasets = pytest.importorskip("datasets")
    rows = {"image": [{"bytes": files[f"{i:02}.png"]} for i in range(12)], "label": ["a", "b"] * 6}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    again = load_class_images(DataSpec(str(tmp_path / "saved")), count=2)
    for (_, images), (_, others) in zip(found.groups, again.groups, strict=True):
        assert torch.equal(images, others)
