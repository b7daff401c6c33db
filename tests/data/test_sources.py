"""What a source is: by its name, by what a folder holds, and under which name it is recorded."""

import os

import numpy as np
import pytest
from packed import png, write_csv, write_tar

from deepaa.data.load import DataSpec, load_dataset, load_images
from deepaa.data.sources import (
    absolute_root,
    absolute_source,
    fetch,
    has_columns,
    lists_files,
    source_name,
)
from deepaa.data.streaming import StreamedImages


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pets(tmp_path):
    """A folder of two classes."""
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "pets" / name / f"{i}.png").write_bytes(png(50 * i))
    return tmp_path / "pets"


def test_kinds(pets, tmp_path):
    write_csv(tmp_path / "t.csv", "path,label", [])
    write_tar(tmp_path / "shards" / "train" / "0.tar", {})
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").touch()
    (tmp_path / "a.npz").touch()
    columns = {"t.csv", "shards", "saved", "shards/train/0.tar", "hf:a/b", "x-{0..3}.tar", "*.tar"}
    sources = (*columns, "pets", "a.npz", "cifar10", "embedded", "no.csv", "no.tar", "no.parquet")
    assert {source for source in sources if has_columns(source)} == columns
    assert {source for source in sources if lists_files(source)} == {*columns, "pets"}


def test_a_stray_archive_makes_no_shards_of_class_folders(pets):
    expected = load_dataset(pets).fingerprint
    write_tar(pets / "backup.tar", {"a.png": b""})
    write_tar(pets / "cat" / "more.tar", {"a.png": b""})
    assert load_dataset(pets).fingerprint == expected


def test_class_folders_are_not_looked_into_for_shards(pets, monkeypatch):
    seen = []
    plain = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (seen.append(str(path)), plain(path))[1])
    assert not has_columns(str(pets))
    assert set(seen) <= {str(pets)}


def test_names_stay_and_paths_become_absolute(tmp_path):
    write_csv(tmp_path / "t.csv", "path,label", [])
    assert absolute_source("t.csv") == str(tmp_path / "t.csv")
    assert absolute_source("hf:a/b:c") == "hf:a/b:c"
    assert absolute_source("s/{train,test}-*.tar") == str(tmp_path / "s" / "{train,test}-*.tar")
    assert absolute_root(None, "hf:a/b", "x-{0..1}.tar", "t.csv") is None
    assert absolute_root(None, "hf:a/b", "cifar10") == str(tmp_path / "data")


def test_links_to_files_keep_their_names(pets, tmp_path):
    """The cache of Hugging Face has files that are called by their checksums, and links to them."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    rows = [(f"pets/{name}/{i}.png", name) for name in ("cat", "dog") for i in range(3)]
    write_csv(blobs / "1f", "path,label", rows)
    sample = {
        f"{i}.{end}": part for i in range(2) for end, part in (("png", png(i)), ("cls", b"%d" % i))
    }
    write_tar(blobs / "2e", sample)
    arrays = {"x": np.zeros((4, 8, 8, 3), np.uint8), "y": np.arange(4) % 2}
    np.savez(blobs / "3d.npz", **arrays)
    for name, blob in (("t.csv", "1f"), ("train.tar", "2e"), ("a.npz", "3d.npz")):
        (tmp_path / name).symlink_to(f"blobs/{blob}")
    for name, count in (("t.csv", 6), ("train.tar", 2), ("a.npz", 4)):
        spec = DataSpec.from_options(name)
        assert spec.data == str(tmp_path / name)
        assert len(spec.load().labels) == count
    (tmp_path / "animals").symlink_to("pets")
    assert absolute_source("animals") == str(pets)


def test_a_link_to_a_table_finds_the_files_beside_either(pets, tmp_path):
    rows = [(f"{name}/{i}.png", name) for name in ("cat", "dog") for i in range(3)]
    table = write_csv(pets / "t.csv", "path,label", rows)
    (tmp_path / "link.csv").symlink_to("pets/t.csv")
    assert load_dataset("link.csv").fingerprint == load_dataset(table).fingerprint


def test_home(pets, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = [(f"~/pets/{name}/{i}.png", name) for name in ("cat", "dog") for i in range(3)]
    write_csv(tmp_path / "t.csv", "path,label", rows)
    monkeypatch.chdir(pets)
    assert absolute_source("~/t.csv") == str(tmp_path / "t.csv")
    assert absolute_source("~/x-{0..3}.tar") == str(tmp_path / "x-{0..3}.tar")
    expected = load_dataset(pets).fingerprint
    assert load_dataset("~/pets").fingerprint == load_dataset("~/t.csv").fingerprint == expected
    assert len(load_images("~/pets", 4)) == 4
    assert len(StreamedImages("~/t.csv", 8, train=True, workers=0)) == 6


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a/labels.csv", "labels"),
        ("hf:someone/pets:small", "someone/pets:small"),
        ("a/x-{0..3}.tar", "x-{0..3}"),
        ("pets", "pets"),
    ],
)
def test_names_in_records(pets, source, name):
    assert source_name(source) == name


def test_only_names_are_fetched(pets):
    for source in (None, "cifar10", str(pets)):
        fetch(source)
    pytest.importorskip("datasets")
    spec = DataSpec("hf:no/thing/more")
    with pytest.raises(ValueError, match="expected hf:NAME or hf:USER/NAME"):
        spec.load()
