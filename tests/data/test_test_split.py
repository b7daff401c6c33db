"""Which images a network is tested on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from PIL import Image
from torchvision import datasets

from deepaa.data.embedded import load_embedded
from deepaa.data.load import DataSpec, load_dataset
from deepaa.data.test_split import TrainTest, absent_classes, held_out, load_train_and_test


def train_and_test(
    source: str | Path | None = None,
    *,
    test: str | Path | None = None,
    holdout: float | None = None,
    **options: Any,
) -> TrainTest:
    spec = DataSpec(None if source is None else str(source), **options)
    return load_train_and_test(spec, test=test, holdout=holdout)


def folder(root: Path, n: int, seed: int, names: str = "abcd", side: int = 16) -> None:
    images, labels = blobs(n, seed)
    for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        place = root / names[label]
        place.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        picture.resize((side, side)).save(place / f"{i}.png")


def test_embedded_images_have_a_test_part():
    data, stored = train_and_test(), load_embedded()
    assert torch.equal(data.train.images, stored.train_images)
    assert torch.equal(data.test.images, stored.test_images)
    assert torch.equal(data.test.labels, stored.test_labels)
    assert data.how == "the test part of the data set"


@pytest.mark.parametrize("part", ["test", "val"])
def test_folders_with_parts(tmp_path, part):
    folder(tmp_path / "train", 40, 1)
    folder(tmp_path / part, 12, 2)
    data = train_and_test(tmp_path)
    assert (len(data.train.labels), len(data.test.labels)) == (40, 12)
    assert data.train.class_names == data.test.class_names == tuple("abcd")


def test_test_images_without_labels_are_left_alone(tmp_path, caplog):
    """The layout of ImageNet: nobody but its authors can say which class these images have."""
    folder(tmp_path / "train", 40, 1)
    folder(tmp_path / "val", 12, 2)
    (tmp_path / "test").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "test/1.png")
    assert len(train_and_test(tmp_path).test.labels) == 12
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: test holds images but no class folders, so it is left alone; the test "
        "images are those of val"
    ]


def test_a_share_is_held_out_where_test_images_have_no_labels(tmp_path, caplog):
    folder(tmp_path / "train", 40, 1)
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match="no test part; it has train"):  # empty by mistake
        train_and_test(tmp_path)
    Image.new("RGB", (16, 16)).save(tmp_path / "test/1.png")
    assert train_and_test(tmp_path).how == "0.1 of the training images, held out"
    assert "no test part; it has train; no class folders in test; 0.1 of" in caplog.text


def test_arrays_with_parts(tmp_path):
    images, labels = (part.numpy() for part in blobs(50, 1))
    parts = {"x_train": images[:40], "y_train": labels[:40]}
    np.savez(tmp_path / "both.npz", **parts, x_test=images[40:], y_test=labels[40:])
    data = train_and_test(tmp_path / "both.npz")
    assert np.array_equal(data.test.images.numpy(), images[40:])


@pytest.mark.parametrize("share", [None, 0.1, 0.3])
def test_a_share_is_held_out_where_there_is_no_test_part(tmp_path, share, caplog):
    folder(tmp_path, 80, 1)
    data = train_and_test(tmp_path, holdout=share)
    count = round(80 * (share or 0.1))
    assert len(data.test.labels) == count
    assert len(data.train.labels) == 80 - count
    assert f"{share or 0.1:g} of the training images, held out" == data.how
    assert ("no test part" in caplog.text) == (share is None)
    counts = data.test.labels.bincount(minlength=4)
    assert int(counts.max() - counts.min()) <= 1
    # every image is in one part, and the parts are the same each time
    whole = load_dataset(tmp_path)
    both = torch.cat([data.train.images, data.test.images]).flatten(1)
    assert torch.equal(both.unique(dim=0), whole.images.flatten(1).unique(dim=0))
    again = train_and_test(tmp_path, holdout=share)
    assert again.test.fingerprint == data.test.fingerprint != data.train.fingerprint


def test_an_official_test_part_can_be_left_alone():
    data = train_and_test(holdout=0.25)
    assert (len(data.train.labels), len(data.test.labels)) == (3000, 1000)
    assert not torch.equal(data.test.images, load_embedded().test_images)


def absent(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [line for line in said if "no test images" in line]


def test_classes_without_test_images_are_named(tmp_path, caplog):
    folder(tmp_path / "tree/train", 40, 1)
    folder(tmp_path / "tree/val", 12, 2)
    train_and_test(tmp_path / "tree")
    assert not absent(caplog)
    (tmp_path / "tree/val/b").rename(tmp_path / "b")
    train_and_test(tmp_path / "tree")
    line = "no test images of 1 of 4 classes: b; the test says nothing about them"
    assert absent(caplog) == [f"tree: {line}"]
    train_and_test(tmp_path / "tree/train", test=tmp_path / "tree/val")
    assert absent(caplog) == [f"train: {line}"]


def test_classes_without_test_images_in_arrays_are_named(tmp_path, caplog):
    images, labels = (part.numpy() for part in blobs(40, 1))
    np.savez(tmp_path / "train.npz", x=images, y=labels)
    few = labels < 2
    np.savez(tmp_path / "test.npz", x=images[few], y=labels[few])
    train_and_test(tmp_path / "train.npz", test=tmp_path / "test.npz")
    line = "train: no test images of 2 of 4 classes: 2, 3; the test says nothing about them"
    assert absent(caplog) == [line]
    assert "c9 and 2 more;" in (
        absent_classes([f"c{i}" for i in range(13)], torch.tensor([12])) or ""
    )


def test_test_images_of_another_folder_are_counted_by_class_name(tmp_path):
    """The other folder lacks class a, so its own numbers are others."""
    folder(tmp_path / "here", 40, 1)
    folder(tmp_path / "there", 40, 2)
    for path in (tmp_path / "there/a").iterdir():
        path.unlink()
    (tmp_path / "there/a").rmdir()
    data = train_and_test(tmp_path / "here", test=tmp_path / "there")
    assert data.how == "given: there"
    assert data.test.labels.bincount(minlength=4).tolist() == [0, 10, 10, 10]
    for label, name in enumerate("abcd"):
        own = [image for image, at in zip(*data.test[:2], strict=True) if int(at) == label]
        assert len(own) == len(list((tmp_path / "there" / name).glob("*")))


def test_labels_without_names_count_as_those_of_the_training_images(tmp_path, caplog):
    folder(tmp_path / "train", 40, 1)
    images, labels = (part.numpy() for part in blobs(12, 2))
    np.savez(tmp_path / "test.npz", x=images, y=labels)
    data = train_and_test(tmp_path / "train", test=tmp_path / "test.npz")
    assert data.test.labels.tolist() == labels.tolist()
    assert data.test.class_names == data.train.class_names == ("a", "b", "c", "d")
    assert "test.npz: labels without names count as the training images' do" in caplog.text
    np.savez(tmp_path / "more.npz", x=images, y=labels + np.arange(12) // 11)  # a fifth class
    with pytest.raises(ValueError, match=r"more\.npz: 5 classes that the training images do not"):
        train_and_test(tmp_path / "train", test=tmp_path / "more.npz")


@pytest.mark.parametrize("name", ["MNIST", "EuroSAT"])
def test_missing_data_sets_are_not_taken_for_ones_without_a_test_part(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"{name}: not found under"):
        train_and_test(name, root=tmp_path)


def test_a_data_set_without_a_test_part_has_a_share_held_out(tmp_path, caplog):
    folder(tmp_path / "eurosat" / "2750", 40, 1)  # the official layout
    found = train_and_test("EuroSAT", root=tmp_path)
    assert (len(found.train.labels), len(found.test.labels)) == (36, 4)
    assert found.how == "0.1 of the training images, held out"
    assert "has no test part" in caplog.text


class _Damaged(datasets.VisionDataset):
    """A data set class as torchvision has them, whose test part is damaged."""

    classes = ("a", "b")

    def __init__(self, root, split, download):
        super().__init__(root)
        self.split = split

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if self.split == "test":
            raise OSError("truncated")
        return Image.new("RGB", (8, 8), (index, 0, 0)), index % 2


def test_a_damaged_test_part_is_not_taken_for_none(monkeypatch):
    """Training images would be held out instead, and another figure reported."""
    monkeypatch.setattr(datasets, "SVHN", _Damaged)
    with pytest.raises(ValueError, match=r"SVHN\[0\] cannot be read as .*: truncated"):
        train_and_test("SVHN")


def test_bad_input(tmp_path):
    folder(tmp_path / "train", 40, 1)
    folder(tmp_path / "other", 40, 2, names="abxy")
    folder(tmp_path / "large", 40, 2, side=20)
    with pytest.raises(ValueError, match="2 classes that the training images do not have: x, y"):
        train_and_test(tmp_path / "train", test=tmp_path / "other")
    with pytest.raises(ValueError, match="training images are 16 x 16, test images 20 x 20"):
        train_and_test(tmp_path / "train", test=tmp_path / "large")
    both = train_and_test(tmp_path / "train", test=tmp_path / "large", size=16)
    assert both.test.images.shape == (40, 3, 16, 16)
    for share in (0.0, 1.0, -0.1, 2.0):
        with pytest.raises(ValueError, match="holdout should be a share between 0 and 1"):
            train_and_test(tmp_path / "train", holdout=share)
    with pytest.raises(ValueError, match="not both"):
        train_and_test(tmp_path / "train", test=tmp_path / "large", holdout=0.1)
    data = load_dataset(tmp_path / "train")
    with pytest.raises(ValueError, match="leaves 0 of 40 images, too few to train"):
        held_out(data, 0.999)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train_and_test(tmp_path / "train", test="nowhere")
