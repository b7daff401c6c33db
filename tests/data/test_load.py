"""Labelled data sets of every kind of source, their specifications, and images to test on."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import logging
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from PIL import Image
from torch.utils.data import Dataset, Subset
from torchvision import datasets

import deepaa
from deepaa.data.arrays import DATASETS
from deepaa.data.embedded import embedded_is_intact, load_embedded
from deepaa.data.image_file import Reading
from deepaa.data.load import DataSpec, as_images, load_dataset
from deepaa.data.parts import SearchSubset, held_out, search_splits
from deepaa.data.scan import BadImagesError
from deepaa.data.splits import (
    TrainTest,
    absent_classes,
    fingerprint,
)

FOLDER = Path(deepaa.__file__).parent / "data" / "cifar10"
OFFICIAL = (125.307, 122.950, 113.865)  # mean of the 50,000 training images


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def check(data, n, shape, classes):
    assert data.images.shape == (n, 3, *shape)
    assert data.images.dtype == torch.uint8
    assert data.images.is_contiguous()
    assert data.labels.shape == (n,)
    assert data.labels.dtype == torch.int64
    assert len(data.class_names) == classes
    assert data.fingerprint == fingerprint(data.images, data.labels)


# Embedded


@pytest.mark.parametrize("source", [None, "embedded"])
def test_embedded(source):
    train, test = load_dataset(source), load_dataset(source, split="test")
    check(train, 4000, (32, 32), 10)
    check(test, 1000, (32, 32), 10)
    assert train.images.equal(load_embedded().train_images)
    assert test.labels.equal(load_embedded().test_labels)
    assert train.name == "embedded"
    assert train.report is None
    with pytest.raises(ValueError, match="split should be 'train' or 'test', got 'val'"):
        load_dataset(source, split="val")


def test_a_size_is_forced_on_equal_images():
    check(load_dataset(split="test", size=20), 1000, (20, 20), 10)


def test_the_fingerprint_knows_pixels_labels_and_shapes():
    images, labels = torch.from_numpy(noise(6, 3, 4, 5)), torch.arange(6)
    first = fingerprint(images, labels)
    assert len(first) == 64
    assert first == fingerprint(images.clone(), labels.clone())
    assert first == fingerprint(images.to(memory_format=torch.channels_last), labels)
    changed = images.clone()
    changed[5, 2, 3, 4] ^= 1
    others = [
        fingerprint(changed, labels),
        fingerprint(images, labels.flip(0)),
        fingerprint(images.reshape(6, 3, 5, 4), labels),
    ]
    assert len({first, *others}) == 4
    # the definition, so that it stays the same
    text = b"(6, 3, 4, 5) (6,)" + images.numpy().tobytes() + labels.numpy().tobytes()
    assert first == hashlib.sha256(text).hexdigest()


# torchvision


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_missing_cifar_says_what_to_do(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"not found under .* download=True .*--download"):
        load_dataset(name, root=tmp_path)
    assert not list(tmp_path.iterdir())


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


def test_pickles_are_read_only_after_their_checksum(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    content = pickle.dumps(Payload(tmp_path / "marker"))
    for file in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / file).write_bytes(content)
    with pytest.raises(FileNotFoundError, match="damaged"):
        load_dataset("cifar10", root=tmp_path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("name", "cls"), [("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)]
)
def test_the_official_layout(tmp_path, monkeypatch, name, cls):
    # small files in the official layout; their checksums stand in for the official ones
    coarse = name == "cifar100"
    key, meta = ("fine_labels", "fine_label_names") if coarse else ("labels", "label_names")
    folder = tmp_path / cls.base_folder
    folder.mkdir()
    pixels, labels = noise(12, 3, 32, 32), [i % 3 for i in range(12)]

    def write(file, content):
        (folder / file).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / file).read_bytes()).hexdigest()

    lists = {
        "train_list": {"data": pixels[:9].reshape(9, -1), key: labels[:9]},
        "test_list": {"data": pixels[9:].reshape(3, -1), key: labels[9:]},
    }
    for attribute, content in lists.items():
        monkeypatch.setattr(cls, attribute, [[attribute, write(attribute, content)]])
    md5 = write("meta", {meta: ["ant", "bee", "cow"]})
    monkeypatch.setattr(cls, "meta", {"filename": "meta", "key": meta, "md5": md5})
    train = load_dataset(name, root=tmp_path)
    test = load_dataset(name, root=tmp_path, split="test")
    check(train, 9, (32, 32), 3)
    assert train.name == name
    assert train.class_names == ("ant", "bee", "cow")
    assert np.array_equal(train.images.numpy(), pixels[:9])
    assert np.array_equal(test.images.numpy(), pixels[9:])
    assert test.labels.tolist() == labels[9:]


@pytest.fixture
def fashion(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", 20), ("t10k", 10)):
        images, labels = noise(n, 28, 28), np.arange(n, dtype=np.uint8) % 10
        header = struct.pack(">IIII", 0x803, n, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">II", 0x801, n)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    return tmp_path


@pytest.mark.parametrize("source", ["FashionMNIST", "torchvision:FashionMNIST"])
def test_a_torchvision_name(fashion, source):
    data = load_dataset(source, root=fashion)
    check(data, 20, (28, 28), 10)
    assert data.name == "FashionMNIST"
    assert data.class_names[0] == "T-shirt/top"
    assert np.array_equal(data.images[:, 1].numpy(), noise(20, 28, 28))  # grey, repeated
    assert data.images[:, 0].equal(data.images[:, 2])
    check(load_dataset(source, root=fashion, split="test", size=32), 10, (32, 32), 10)
    with pytest.raises(ValueError, match="split should be 'train' or 'test', got 'val'"):
        load_dataset(source, root=fashion, split="val")


class Items(Dataset):
    """A data set as torchvision has them."""

    def __init__(self, items, classes=None):
        self.items, self.classes = items, classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_images_of_different_sizes_and_kinds():
    items = [
        (Image.fromarray(noise(10, 12, 3)), 0),
        (Image.fromarray(noise(10, 30)), np.int64(1)),
        (torch.from_numpy(noise(1, 300, 300)), torch.tensor(1)),
    ]
    data = as_images(Items(items, [("tench", "Tinca"), ("dog",)]))
    check(data, 3, (8, 8), 2)
    assert data.class_names == ("tench", "dog")
    assert data.labels.tolist() == [0, 1, 1]
    check(
        as_images(Items([*items[2:], (Image.fromarray(noise(280, 300, 3)), 0)])), 2, (224, 224), 2
    )


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((Image.new("RGB", (4, 4)), (1, 2)), r"Items\[1\] .*Image with tuple"),
        ((Image.new("RGB", (4, 4)), 1.5), r"Items\[1\] .*float 1\.5"),
        ((torch.zeros(3, 4, 4), 1), r"Items\[1\] .*uint8 tensor"),
        ((torch.zeros(4, 4, 4, dtype=torch.uint8), 1), r"Items\[1\] .*\(4, 4, 4\)"),
        (Image.new("RGB", (4, 4)), r"Items\[1\] cannot be read as an image and a label"),
        ({"image": Image.new("RGB", (4, 4)), "label": 1}, r"Items\[1\] .* dict with image, label"),
        ((Image.new("RGB", (4, 4)), -3), r"\[1\] = -3"),
        ((Image.new("RGB", (4, 4)), 0), "only one class"),
        ((Image.new("RGB", (4, 4)), 2), "1 of 3 classes have no image: 1; labels should"),
    ],
)
def test_samples_that_are_not_labelled_images(item, message):
    with pytest.raises(ValueError, match=message):
        as_images(Items([(Image.new("RGB", (4, 4)), 0), item]))


def test_a_part_of_a_data_set_has_its_class_names():
    items = Items([(Image.new("RGB", (4, 4)), i % 2) for i in range(8)], ["cat", "dog"])
    part = Subset(Subset(items, range(6)), range(4))
    assert as_images(part).class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([Image.new("RGB", (4, 4))] * 4, [0, 1] * 2, r"images .*, got a list of Image; what is no"),
        (noise(4, 8, 8, 3), ["a", "b"] * 2, r"labels .* integers \(N,\), got a list of str$"),
        (noise(4, 8, 8, 3), [0, 1] * 2, r"got \(4, 8, 8, 3\); channels come before height"),
    ],
)
def test_images_and_labels_that_are_no_tensors(images, labels, message):
    with pytest.raises((TypeError, ValueError), match=message):
        as_images((images, labels))


@pytest.mark.parametrize("name", DATASETS)
def test_torchvision_takes_the_arguments_of_the_table(name):
    known = inspect.signature(getattr(datasets, name)).parameters
    for split, arguments in DATASETS[name].items():
        assert {"root", "download", *arguments} <= set(known)
        if "split" in arguments:
            source = inspect.getsource(getattr(datasets, name))
            assert f'"{arguments["split"]}"' in source, split
    if "test" not in DATASETS[name]:
        with pytest.raises(ValueError, match=f"{name}: has no test part"):
            load_dataset(name, split="test")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("cifar-10", "did you mean cifar10"),
        ("torchvision:mnist", "did you mean MNIST"),
        ("no/such/folder", "no such folder"),
        ("torchvision:ImageFolder", "Data sets are embedded, cifar10, cifar100, MNIST, "),
        ("missing.npz", "no such"),
    ],
)
def test_unknown_sources(source, hint):
    with pytest.raises(FileNotFoundError, match=hint):
        load_dataset(source)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"a\.txt: expected a folder, an \.npz file, a table"):
        load_dataset(tmp_path / "a.txt")


# Arrays


@pytest.mark.parametrize("names", [("x_train", "y_train"), ("x", "y"), ("images", "labels")])
@pytest.mark.parametrize("layout", ["nhwc", "nchw", "nhw", "n1hw"])
def test_npz(tmp_path, names, layout):
    pixels = noise(6, 8, 7, 3)
    stored = {
        "nhwc": pixels,
        "nchw": pixels.transpose(0, 3, 1, 2),
        "nhw": pixels[..., 0],
        "n1hw": pixels[:, None, :, :, 0],
    }[layout]
    labels = np.arange(6)[:, None] % 3  # (N, 1), as some have it
    np.savez(tmp_path / "pets.npz", **{names[0]: stored, names[1]: labels.astype(np.uint8)})
    data = load_dataset(tmp_path / "pets.npz")
    check(data, 6, (8, 7), 3)
    assert data.name == "pets"
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    expected = pixels if layout in ("nhwc", "nchw") else pixels[..., :1].repeat(3, 3)
    assert np.array_equal(data.images.permute(0, 2, 3, 1).numpy(), expected)
    check(load_dataset(tmp_path / "pets.npz", size=5), 6, (5, 5), 3)


def test_npz_parts_and_class_names(tmp_path):
    arrays = {
        "x_train": noise(6, 4, 4, 3),
        "y_train": np.arange(6) % 3,
        "x_test": noise(2, 4, 4, 3),
        "y_test": np.array([0, 1]),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    check(load_dataset(tmp_path / "a.npz", split="test"), 2, (4, 4), 3)
    np.savez(tmp_path / "b.npz", **arrays, class_names=np.array(["ant", "bee", "cow"]))
    assert load_dataset(str(tmp_path / "b.npz")).class_names == ("ant", "bee", "cow")


X = noise(4, 5, 6, 3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"has no train part: no x_train and y_train or .*; it has x"),
        ({"x": X, "y": np.arange(3)}, "x has 4 images, but y has 3 labels"),
        ({"x": X, "y": np.arange(4.0)}, "y holds float64"),
        ({"x": X, "y": np.eye(4, dtype=int)}, r"y holds int64 of shape \(4, 4\)"),
        ({"x": X, "y": np.array([0, 1, -1, -5])}, r"\[2\] = -1, \[3\] = -5"),
        ({"x": X, "y": np.array([1, 2, 1, 2])}, "1 of 3 classes have no image: 0; labels should"),
        ({"x": X, "y": np.zeros(4, int)}, "only one class"),
        ({"x": X / 255, "y": np.arange(4)}, "x holds float64, expected uint8"),
        ({"x": X[..., :2], "y": np.arange(4)}, r"x has shape \(4, 5, 6, 2\)"),
        (
            {"x": X, "y": np.arange(4), "class_names": np.array(["a", "b"])},
            r"y: should be in 0\.\.1, but \[2\] = 2, \[3\] = 3",
        ),
        (
            {"x": X, "y": np.array([2**63, 0, 0, 0], np.uint64)},
            r"y: should be in 0\.\.0, but \[0\] = 9223372036854775808$",
        ),
    ],
)
def test_npz_that_are_wrong(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path / "a.npz")


def test_npz_splits_are_checked(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=np.arange(4))
    with pytest.raises(ValueError, match=r"a\.npz: has no test part: no x_test and y_test "):
        load_dataset(tmp_path / "a.npz", split="test")
    with pytest.raises(ValueError, match="'train' or 'test', got 'val'"):
        load_dataset(tmp_path / "a.npz", split="val")


def test_npz_is_never_unpickled(tmp_path):
    marker = tmp_path / "marker"
    np.savez(tmp_path / "a.npz", x=X, y=np.array([Payload(marker)] * 4, object))
    with pytest.raises(ValueError, match=r"a\.npz: .*never unpickled"):
        load_dataset(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ValueError, match=r"b\.npz"):
        load_dataset(tmp_path / "b.npz")
    assert not marker.exists()


# Folders


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_a_folder(tmp_path, caplog, monkeypatch):
    root = tmp_path / "pets"
    for i, name in enumerate(("cat", "dog")):
        for j in range(3):
            save(root / name / f"{j}.png", np.full((5, 9, 3), 10 * i + j, np.uint8))
    data = load_dataset(root)
    check(data, 6, (5, 9), 2)
    assert data.name == "pets"
    assert data.images[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert data.report is not None
    assert data.report.files == 6
    assert not caplog.records
    (root / "cat" / "0.png").write_bytes(b"")
    with pytest.raises(BadImagesError, match=r"1 of 6 files is bad \(1 empty\): cat/0.png"):
        load_dataset(root)
    with caplog.at_level(logging.WARNING):
        left = load_dataset(root, on_bad_image="skip")
    check(left, 5, (5, 9), 2)
    assert "cat/0.png (empty file)" in caplog.text
    with pytest.raises(BadImagesError, match="too-many-pixels"):
        load_dataset(root, reading=Reading(max_pixels=44))


def test_of_a_large_folder_only_what_is_needed_is_read(tmp_path, caplog, monkeypatch):
    for name in ("cat", "dog"):
        for j in range(50):
            save(tmp_path / name / f"{j:02}.png", np.full((4, 4, 3), j, np.uint8))
    subset = SearchSubset((8, 8, 4))
    labels = [0] * 50 + [1] * 50
    chosen = subset.choose(labels).places
    with caplog.at_level(logging.WARNING):
        data = load_dataset(tmp_path, subset=subset)
    assert data.images[:, 0, 0, 0].tolist() == [i % 50 for i in chosen]
    assert data.labels.tolist() == [labels[i] for i in chosen]
    assert data.subset_sizes == (8, 8, 4)
    assert "24 of 100 images are enough, and no others are read" in caplog.text
    other = next(i for i in range(50) if i not in chosen)
    (tmp_path / "cat" / f"{other:02}.png").write_bytes(b"")
    assert load_dataset(tmp_path, subset=subset).fingerprint == data.fingerprint
    (tmp_path / "cat" / f"{chosen[0]:02}.png").write_bytes(b"")
    with pytest.raises(BadImagesError, match=r"1 of 24 files is bad"):
        load_dataset(tmp_path, subset=subset)
    with pytest.raises(BadImagesError, match=r"2 of 100 files are bad"):
        load_dataset(tmp_path)
    left = load_dataset(tmp_path, subset=subset, on_bad_image="skip")
    assert [len(part) for part in search_splits(left, data.subset_sizes)] == [8, 8, 4, 0]
    every = load_dataset(tmp_path, subset=SearchSubset(), on_bad_image="skip")
    assert every.subset_sizes is None
    assert len(every.images) == 98


def test_names_come_before_folders(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        save(tmp_path / "cifar10" / name / "0.png", noise(4, 4, 3))
        save(tmp_path / "MNIST" / name / "0.png", noise(4, 4, 3))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="CIFAR10: not found under data"):
        load_dataset("cifar10")
    check(load_dataset("./cifar10"), 2, (4, 4), 2)
    check(load_dataset("MNIST"), 2, (4, 4), 2)  # there, so it is meant


def test_photographs(shared):
    folder = shared / "data" / "clothing"
    if not folder.is_dir():
        pytest.skip("no photographs beside the repository")
    data = load_dataset(folder, split="test", size=64)
    check(data, 245, (64, 64), 10)
    assert data.class_names[:2] == ("dress", "hat")
    assert data.report is not None
    assert not data.report.bad
    assert data.images.float().std() > 30


def test_real_cifar10(shared):
    if not (shared / "data" / "cifar-10-batches-py").is_dir():
        pytest.skip("no CIFAR-10 beside the repository")
    data = load_dataset("cifar10", root=shared / "data", split="test")
    check(data, 10_000, (32, 32), 10)
    assert data.labels.bincount().tolist() == [1000] * 10


# Specifications


def folder_of_images(folder: Path) -> Path:
    """Two classes with three transparent images each."""
    for name in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            pixels = np.full((6, 8, 4), 10 * i, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_paths_become_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(folder_of_images(tmp_path))
    assert DataSpec.from_options("train") == DataSpec(data=str(tmp_path / "train"))
    (tmp_path / "cifar10").mkdir()
    assert DataSpec.from_options("./cifar10").data == str(tmp_path / "cifar10")
    assert DataSpec.from_options("embedded", root="x") == DataSpec(data="embedded")
    assert DataSpec.from_options() == DataSpec()
    named = DataSpec.from_options("cifar10")
    assert (named.data, named.root) == ("cifar10", str(tmp_path / "data"))
    assert DataSpec.from_options("cifar10", root="sets").root == str(tmp_path / "sets")


def test_a_spec_loads_what_its_fields_say(tmp_path):
    folder = folder_of_images(tmp_path)
    black = ["alpha_colour=0,0,0"]
    spec = DataSpec.from_options(folder, size=4, read=black)
    found = spec.load()
    expected = load_dataset(folder, size=4, reading=Reading(alpha_colour=(0, 0, 0)))
    assert found.fingerprint == expected.fingerprint
    assert found.images.shape == (6, 3, 4, 4)
    white = dataclasses.replace(spec, reading=Reading())
    assert white.load().fingerprint != found.fingerprint
    test = spec.load(split="test")
    both = spec.load_train_and_test()
    assert test is not None
    assert both.test.fingerprint == test.fingerprint
    assert both.train.fingerprint == found.fingerprint
    assert len(spec.load_train_and_test(holdout=0.5).test.labels) == 3
    moved = folder.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert dataclasses.replace(spec, data=str(moved)).load().fingerprint == found.fingerprint


def test_json_gives_the_spec_back():
    spec = DataSpec(
        "cifar10", 32, "/sets", "skip", True, Reading(1_000, (1, 2, 3), False), (10, 20, 30)
    )
    assert DataSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert not {"groups", "subset_judged"} & spec.to_json().keys()  # older runs have neither
    new = dataclasses.replace(spec, groups="x(.)", subset_judged=True)
    assert DataSpec.from_json(json.loads(json.dumps(new.to_json()))) == new
    assert DataSpec.from_json(DataSpec().to_json()) == DataSpec.from_json({}) == DataSpec()
    subset = spec.subset(7)
    assert subset is not None
    assert (subset.sizes, subset.seed) == ((10, 20, 30), 7)
    assert DataSpec().subset(7) is None


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ([], "expected an object, got []"),
        ({"data": 3}, "data should be text or null, got 3"),
        ({"size": True}, "size should be a whole number or null, got True"),
        ({"size": 0}, "size should be in 1..4096 pixels, got 0"),
        ({"outside_links": "no"}, "outside_links should be true or false, got 'no'"),
        ({"on_bad_image": "go"}, "on_bad_image should be stop or skip, got 'go'"),
        ({"subset_sizes": [1, 2]}, "subset_sizes should be "),
        ({"reading": {"alpha_colour": [1, 2]}}, "reading.alpha_colour should be "),
        ({"reading": {"alpha_colour": [1, 2, 256]}}, "alpha_colour should be three of 0..255"),
        ({"reading": {"gamma": 1}}, "no setting 'reading.gamma'; there are "),
        ({"sise": 3}, "no setting 'sise'; there are data, size, root"),
    ],
)
def test_wrong_json_is_one_error_that_names_the_field(entry, said):
    with pytest.raises(ValueError, match=re.escape(f"runs/a/config.json: {said}")):
        DataSpec.from_json(entry, "runs/a/config.json")


def test_read_choices():
    assert Reading.parse(["apply_exif=false", "max_pixels=5", "alpha_colour=1,2,3"]) == Reading(
        5, (1, 2, 3), False
    )
    for wrong in ("apply_exif=no", "max_pixels=0", "max_pixels=1,2", "alpha_colour=1,2,256", "x"):
        with pytest.raises(ValueError, match=f"--read {wrong}: "):
            Reading.parse([wrong])


# Images to test on


def train_and_test(
    source: str | Path | None = None,
    *,
    test: str | Path | None = None,
    holdout: float | None = None,
    **options: Any,
) -> TrainTest:
    spec = DataSpec(None if source is None else str(source), **options)
    return spec.load_train_and_test(test=test, holdout=holdout)


def photos(root: Path, n: int, seed: int, names: str = "abcd", side: int = 16) -> None:
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
    photos(tmp_path / "train", 40, 1)
    photos(tmp_path / part, 12, 2)
    data = train_and_test(tmp_path)
    assert (len(data.train.labels), len(data.test.labels)) == (40, 12)
    assert data.train.class_names == data.test.class_names == tuple("abcd")


def test_test_images_without_labels_are_left_alone(tmp_path, caplog):
    """The layout of ImageNet: nobody but its authors can say which class these images have."""
    photos(tmp_path / "train", 40, 1)
    photos(tmp_path / "val", 12, 2)
    (tmp_path / "test").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "test/1.png")
    assert len(train_and_test(tmp_path).test.labels) == 12
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: test holds images but no class folders, so it is left alone; the test "
        "images are those of val"
    ]


def test_a_share_is_held_out_where_test_images_have_no_labels(tmp_path, caplog):
    photos(tmp_path / "train", 40, 1)
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
    photos(tmp_path, 80, 1)
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
    photos(tmp_path / "tree/train", 40, 1)
    photos(tmp_path / "tree/val", 12, 2)
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
    photos(tmp_path / "here", 40, 1)
    photos(tmp_path / "there", 40, 2)
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
    photos(tmp_path / "train", 40, 1)
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
    photos(tmp_path / "eurosat" / "2750", 40, 1)  # the official layout
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
    photos(tmp_path / "train", 40, 1)
    photos(tmp_path / "other", 40, 2, names="abxy")
    photos(tmp_path / "large", 40, 2, side=20)
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


# The embedded images


def test_embedded_counts_types_and_balance():
    found = load_embedded()
    assert found.train_images.shape == (4000, 3, 32, 32)
    assert found.test_images.shape == (1000, 3, 32, 32)
    assert found.train_images.dtype == found.test_images.dtype == torch.uint8
    assert found.train_labels.dtype == found.test_labels.dtype == torch.int64
    assert found.train_labels.bincount().tolist() == [400] * 10
    assert found.test_labels.bincount().tolist() == [100] * 10
    assert len(found.class_names) == 10
    assert found.class_names[0] == "airplane"
    assert found.class_names[9] == "truck"


def test_first_images_are_balanced_for_every_n():
    labels = load_embedded().train_labels
    counts = torch.nn.functional.one_hot(labels, 10).cumsum(0)
    assert int((counts.amax(1) - counts.amin(1)).max()) == 1


def test_package_data_stay_under_ten_megabytes():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 10_000_000


def test_pixels_have_the_checksum_they_were_made_with():
    assert embedded_is_intact()
    images = load_embedded().train_images.permute(0, 2, 3, 1).contiguous().numpy()
    assert hashlib.sha256(images.tobytes()).hexdigest() == (
        "6ebd86ac3cd2e8a06641128a44c1d349a3377be72679c447bbece6c87dcfe9de"
    )


def test_images_are_the_first_of_each_class_in_the_official_order():
    description = json.loads((FOLDER / "cifar10.json").read_text())
    index, labels = (np.array(description["train"][key]) for key in ("official_index", "labels"))
    for c in range(10):
        assert (np.diff(index[labels == c]) > 0).all()
    # the official labels begin 6 9 9 4 1 1 2 7 8 3
    first = dict(zip(index.tolist(), labels.tolist(), strict=True))
    assert [first[i] for i in range(10)] == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    means = load_embedded().train_images.double().mean((0, 2, 3))
    assert torch.allclose(means, torch.tensor(OFFICIAL, dtype=torch.float64), atol=2.0)


def test_a_caller_may_write_to_what_it_got():
    first = load_embedded()
    before = first.train_images.clone()
    first.train_images.zero_()
    first.train_labels.fill_(7)
    again = load_embedded()
    assert torch.equal(again.train_images, before)
    assert again.train_labels[:3].tolist() == [0, 1, 2]


class ReusedTensor(torch.utils.data.Dataset[Any]):
    """Gives the same tensor each time, with other values."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(3, 4, 4, dtype=torch.uint8)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.buffer.fill_(index * 20), index % 2


def test_a_data_set_may_reuse_its_tensor() -> None:
    images = as_images(ReusedTensor()).images
    assert images[:, 0, 0, 0].tolist() == [0, 20, 40, 60, 80, 100]


def test_both_parts_of_mixed_sizes_get_one_side(tmp_path):
    for part, sides in (("train", (30, 34, 50)), ("test", (60, 90, 120))):
        for name in ("cat", "dog"):
            for side in sides:
                save(tmp_path / part / name / f"{side}.png", noise(side, side + 3, 3))
    both = DataSpec(str(tmp_path)).load_train_and_test()
    check(both.train, 6, (32, 32), 2)
    check(both.test, 6, (32, 32), 2)
    other = DataSpec(str(tmp_path / "train")).load_train_and_test(test=tmp_path / "test")
    assert other.test.fingerprint == both.test.fingerprint
