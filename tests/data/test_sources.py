"""What a source is: by its name, by what a folder holds, and under which name it is recorded."""

import os

import pytest
from packed import png, write_csv, write_tar

from deepaa.data.load import DataSpec, load_dataset
from deepaa.data.sources import (
    absolute_root,
    absolute_source,
    fetch,
    has_columns,
    lists_files,
    source_name,
)


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
