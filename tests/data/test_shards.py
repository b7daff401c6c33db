"""Shards of WebDataset: the same images as a folder of them, and what is wrong with a shard."""

import errno
import gzip
import json
import os
import re

import pytest
import torch
from packed import png, shards_of, write_tar
from photos import save_photos

from deepaa.data.load import DataSpec, load_dataset, load_images
from deepaa.data.scan import BadImagesError
from deepaa.data.shards import braces, find_shards, list_shards, shard_part
from deepaa.data.sources import absolute_source
from deepaa.data.splits import NoTestPartError
from deepaa.data.streaming import StreamedImages


@pytest.fixture
def folder(tmp_path):
    return save_photos(tmp_path / "photos")


def pets(**changes):
    """Six samples, some of whose files are changed."""
    files = {}
    for i in range(6):
        files[f"{i}.png"] = png(40 * i)
        files[f"{i}.cls"] = b"01"[i % 2 : i % 2 + 1]
    return {**files, **changes}


def read(tmp_path, files, name="a.tar", **options):
    return load_dataset(write_tar(tmp_path / name, files), **options)


# The same images


def test_shards_give_what_the_folder_gives(folder, tmp_path):
    shards = shards_of(folder, tmp_path / "shards")
    assert len(list(shards.glob("*.tar"))) == 4
    for split in ("train", "test"):
        expected = load_dataset(folder, split=split, size=20)
        for source in (shards, str(shards / "*.tar")):
            found = load_dataset(source, split=split, size=20)
            assert found.fingerprint == expected.fingerprint
            assert found.class_names == ("cat", "dog")
        assert found.files[0] == f"{split}-000.tar/00000.jpg"
    pattern = str(shards / "train-{000..002}.tar")
    assert (
        load_dataset(pattern, size=20).labels.tolist()
        == load_dataset(folder, size=20).labels.tolist()
    )
    with pytest.raises(NoTestPartError, match=r"train-\{000..002\}\.tar: has no test part"):
        load_dataset(pattern, split="test")
    both = DataSpec(pattern, size=20).load_train_and_test(test=str(shards / "test-{000,000}.tar"))
    assert (
        both.test.labels.tolist() == 2 * load_dataset(folder, split="test", size=20).labels.tolist()
    )
    assert torch.equal(load_images(shards, 5, 8), load_images(folder / "train", 5, 8))


def test_shards_stream_as_the_folder_does(folder, tmp_path):
    shards = shards_of(folder, tmp_path / "shards")
    for train in (True, False):
        one = StreamedImages(folder, 24, train=train, workers=0)
        for workers in (0, 2):
            other = StreamedImages(shards, 24, train=train, workers=workers)
            for a, b in zip(one.batches(3, 8, seed=2), other.batches(3, 8, seed=2), strict=True):
                assert torch.equal(a.images, b.images)
                assert torch.equal(a.labels, b.labels)
    again = StreamedImages(shards, 24, train=False, workers=0, known=other.scanned())
    assert again.fingerprint == other.fingerprint != one.fingerprint
    assert again.report == other.report


def test_packed_shards_are_told_from_class_folders(tmp_path):
    content = gzip.compress(write_tar(tmp_path / "plain" / "a.tar", pets()).read_bytes())
    for place in ("packed", "parts/train"):
        (tmp_path / place).mkdir(parents=True)
        for name in ("a.tgz", "b.tar.gz"):
            (tmp_path / place / name).write_bytes(content)
    named = r"2 packed archives, as a\.tgz; shards must be plain \.tar: unpack with gunzip first"
    for folder in ("packed", "parts"):
        with pytest.raises(ValueError, match=rf"{folder}: {named}"):
            load_dataset(tmp_path / folder)
    with pytest.raises(ValueError, match=r"\{a,b\}\.tar\.gz: shards must be plain \.tar"):
        load_dataset(str(tmp_path / "packed" / "{a,b}.tar.gz"))
    (tmp_path / "packed" / "c.tar.zst").touch()
    with pytest.raises(ValueError, match=r"3 packed .* unpack with gunzip and unzstd first"):
        load_dataset(tmp_path / "packed")


def test_packed_archives_beside_shards_are_counted(tmp_path):
    write_tar(tmp_path / "a.tar", pets())
    (tmp_path / "b.tgz").touch()
    assert load_dataset(tmp_path).report.ignored == {"packed archive": 1}


def test_the_fingerprint_sees_other_lengths(tmp_path):
    first = write_tar(tmp_path / "a.tar", pets())
    second = write_tar(tmp_path / "b" / "a.tar", pets(**{"3.png": png(120, 300)}))
    prints = [StreamedImages(p, 8, train=True, workers=0).fingerprint for p in (first, second)]
    assert prints[0] != prints[1]


# Which shards


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{9..10}", ["9", "10"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{2..1}", []),
    ],
)
def test_braces(pattern, names):
    assert list(braces(pattern)) == names


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("data/train-000.tar", "train"),
        ("data/imagenet-val-12.tar", "val"),
        ("data/Test_3.tar", "test"),
        ("train/000.tar", "train"),
        ("data/000.tar", None),
        ("data/trainer-0.tar", None),
    ],
)
def test_parts_by_name(tmp_path, name, part):
    assert shard_part(tmp_path / name) == part


def test_folders_of_parts(folder, tmp_path):
    shards = shards_of(folder, tmp_path / "shards")
    for part in ("train", "test"):
        for shard in shards.glob(f"{part}-*.tar"):
            (tmp_path / "new" / part).mkdir(parents=True, exist_ok=True)
            shard.rename(tmp_path / "new" / part / shard.name.removeprefix(f"{part}-"))
    for split in ("train", "test"):
        expected = load_dataset(folder, split=split, size=20).fingerprint
        assert load_dataset(tmp_path / "new", split=split, size=20).fingerprint == expected


@pytest.mark.parametrize("label", ["cls", "json"])
def test_test_shards_without_labels_are_left_alone(tmp_path, caplog, label):
    for part in ("train", "val", "test"):
        files = {}
        for i in range(4):
            files[f"{part}{i}.png"] = png(40 * i)
            content = b"%d" % (i % 2) if label == "cls" else b'{"label": %d}' % (i % 2)
            if part == "test":
                files[f"{part}{i}.json"] = b'{"width": 8}'
            else:
                files[f"{part}{i}.{label}"] = content
        write_tar(tmp_path / "shards" / f"{part}-0.tar", files)
    found = load_dataset(tmp_path / "shards", split="test")
    assert [file[:4] for file in found.files] == ["val-"] * 4
    assert (
        "test has no labels, so it is left alone; the test images are those of val" in caplog.text
    )
    (tmp_path / "shards" / "val-0.tar").unlink()
    with pytest.raises(NoTestPartError, match="shards: has no test part with labels"):
        load_dataset(tmp_path / "shards", split="test")
    assert load_dataset(tmp_path / "shards").class_names == ("0", "1")


def test_patterns_hold_from_every_folder(tmp_path, monkeypatch):
    write_tar(tmp_path / "a-0.tar", pets())
    monkeypatch.chdir(tmp_path)
    spec = DataSpec.from_options("a-{0..0}.tar")
    assert spec.data == str(tmp_path / "a-{0..0}.tar") == absolute_source("./a-{0..0}.tar")
    assert spec.root is None
    monkeypatch.chdir("/")
    assert spec.load().name == "a-{0..0}"


def test_shards_that_are_not_there(tmp_path):
    write_tar(tmp_path / "a-0.tar", pets())
    with pytest.raises(FileNotFoundError, match=r"a-\{0\.\.1\}\.tar: no shard .*/a-1\.tar"):
        load_dataset(str(tmp_path / "a-{0..1}.tar"))
    with pytest.raises(FileNotFoundError, match=r"b-\*\.tar: no shards"):
        load_dataset(str(tmp_path / "b-*.tar"))
    with pytest.raises(ValueError, match="more than 100,000 shards"):
        find_shards(str(tmp_path / ("{a,a}" * 40 + "*.tar")))
    (tmp_path / "a.tar.gz").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"a\.tar\.gz: shards must be plain \.tar: unpack with gunzip"
    ):
        load_dataset(tmp_path / "a.tar.gz")
    write_tar(tmp_path / "s" / "train-0.tar", pets())
    write_tar(tmp_path / "s" / "extra.tar", pets())
    with pytest.raises(ValueError, match=r"extra\.tar is of no part, as others are by their names"):
        load_dataset(tmp_path / "s")


# Labels


def test_labels_may_be_texts_or_keys(tmp_path):
    texts = {f"{i}.cls": f" {'cat' if i % 2 else 'dog'}\n".encode() for i in range(6)}
    assert read(tmp_path, pets(**texts)).class_names == ("cat", "dog")
    keys = {name: c for name, c in pets().items() if name.endswith("png")}
    for i in range(6):
        about = {"species": "cat" if i % 2 else "dog", "scene": i // 2, "n": [i]}
        keys[f"{i}.json"] = json.dumps(about).encode()
    found = read(tmp_path, keys)  # species is one of the usual names
    assert found.class_names == ("cat", "dog")
    assert found.groups is None
    assert read(tmp_path, keys, groups="json:scene").groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert read(tmp_path, keys, columns="label=json:scene").class_names == ("0", "1", "2")
    with pytest.raises(
        ValueError, match=r"sample 0: no age in its \.json, which has species, scene"
    ):
        read(tmp_path, keys, columns="label=json:age")
    with pytest.raises(ValueError, match=r"sample 0: the label is a list, expected a text or"):
        read(tmp_path, keys, columns="label=json:n")
    assert read(tmp_path, keys, groups=r"([012])\.png").groups.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_key_that_only_has_the_name_of_groups(tmp_path):
    files = {}
    for i in range(6):
        files[f"{i}.png"] = png(40 * i)
        files[f"{i}.json"] = json.dumps({"label": i % 2, "group": i // 2}).encode()
    assert read(tmp_path, files).groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert read(tmp_path, files, columns="group=").groups is None


def test_numbers_may_have_gaps(tmp_path):
    changed = {f"{i}.cls": b"107" for i in (0, 2, 4)}
    assert read(tmp_path, pets(**changed)).class_names == ("1", "107")


def test_several_images_of_a_sample(tmp_path):
    masks = {f"{i}.mask.png": png(3) for i in range(6)}
    with pytest.raises(
        ValueError, match=r"a\.tar: sample 0 has 2 images: png, mask\.png; say which"
    ):
        read(tmp_path, pets(**masks))
    plain = read(tmp_path, pets())
    assert read(tmp_path, pets(**masks), columns="image=png").fingerprint == plain.fingerprint
    assert read(tmp_path, pets(**masks), columns="image=mask.png").images[0, 0, 0, 0] == 3


def test_other_files_are_counted(tmp_path):
    more = {"README": b"hello", "._0.png": b"mac", "0.txt": b"a caption", "x/.hidden.png": b""}
    found = read(tmp_path, pets(**more))
    assert found.report.ignored == {"hidden": 2, "outside a sample": 1}
    assert read(tmp_path, pets(**{"9.txt": b"x"})).report.ignored == {"sample without image": 1}


# What is wrong with a shard


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (
            {k: v for k, v in pets().items() if k.endswith("png")},
            "images without labels: sample 0 has png; labels are files that end with .cls, .label",
        ),
        (
            {k: v for k, v in pets().items() if k != "3.cls"},
            "1 of 6 samples have no label .cls: 3; the first has png",
        ),
        (
            {k: v for k, v in pets().items() if k != "3.png"},
            "1 of 6 samples have a label and no image: 3; the first has cls",
        ),
        (pets(**{"2.cls": b""}), "sample 2: no label"),
        (pets(**{"2.cls": b"x" * 300}), "sample 2: a label of 300 characters is no class"),
        (pets(**{"2.cls": b"x" * 2_000_000}), "2.cls has 2,000,000 bytes; at most 1,048,576"),
        ({f"{i}.cls": b"0" for i in range(3)}, "3 of 3 samples have a label and no image"),
        ({"0.png": png(), "0.json": b"{"}, "0.json cannot be read"),
        ({"0.png": png(), "0.json": b"[" * 100_000}, "0.json cannot be read"),
        ({"0.png": png(), "0.json": b"[]"}, "0.json is a list, expected an object"),
        ({"0.png": png(), "0.json": b'{"a": 1}'}, "images without labels: sample 0 has json, png"),
        (pets(**{"0.PNG": png()}), "0.PNG is there twice"),
    ],
)
def test_wrong_samples(tmp_path, files, why):
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        read(tmp_path, files)
    assert str(error.value).startswith(f"{tmp_path / 'a.tar'}: ")
    assert "\n" not in str(error.value)


def test_a_shard_that_is_cut_short_is_named(folder, tmp_path):
    shards = shards_of(folder, tmp_path / "shards")
    shard = shards / "train-001.tar"
    shard.write_bytes(shard.read_bytes()[:9000])
    with pytest.raises(ValueError, match=r"train-001\.tar: cut short: "):
        load_dataset(shards)
    shard.write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-001\.tar: cut short: it has no end"):
        load_dataset(shards)
    empty = write_tar(tmp_path / "empty.tar", {})
    with pytest.raises(ValueError, match=r"empty\.tar: no images in 1 shard"):
        load_dataset(empty)


def test_bad_images_in_shards(tmp_path):
    bad = pets(**{"3.png": b"<html>", "4.png": b"", "5.png": png(1, 300)[:200]})
    with pytest.raises(BadImagesError) as error:
        read(tmp_path, bad)
    said = str(error.value)
    assert "3 of 6 files are bad" in said
    for name in ("a.tar/3.png (not an image)", "a.tar/4.png (empty file)", "a.tar/5.png ("):
        assert name in said
    found = read(tmp_path, bad, on_bad_image="skip")
    assert found.files == ("a.tar/0.png", "a.tar/1.png", "a.tar/2.png")
    huge = {**pets(), "6.png": png(1, 9000), "6.cls": b"0"}
    with pytest.raises(BadImagesError, match=r"1 too-many-pixels\): a\.tar/6\.png \(9000 x 9000"):
        read(tmp_path, huge)


def test_a_shard_that_changes_while_it_is_read(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.tar", pets())
    store = list_shards(str(path), "train", {}).store
    assert store.content(0) == png(0)
    assert store.lengths([0, 5]) == [len(png(0)), len(png(200))]
    monkeypatch.setattr("deepaa.data.shards.MOST_BYTES", 10)
    with pytest.raises(OSError, match="bytes; at most 10 are read") as error:
        store.content(0)
    assert error.value.errno == errno.EFBIG
    monkeypatch.undo()
    os.truncate(path, 530)
    with pytest.raises(OSError, match="the shard is shorter than it was"):
        store.content(0)
    stream = StreamedImages(write_tar(path, pets()), 8, train=True, workers=0)
    os.truncate(path, 530)
    with pytest.raises(BadImagesError, match=r"a\.tar/\d\.png \(the shard is shorter"):
        list(stream.batches(0, 6))


def test_webdataset_writes_what_is_read(folder, tmp_path):
    webdataset = pytest.importorskip("webdataset")

    expected = load_dataset(folder, size=20)
    with webdataset.ShardWriter(str(tmp_path / "w-%03d.tar"), maxcount=15, verbose=0) as sink:
        for i, (name, label) in enumerate(
            zip(expected.files, expected.labels.tolist(), strict=True)
        ):
            file = folder / name
            sink.write({"__key__": f"{i:04}", file.suffix[1:]: file.read_bytes(), "cls": label})
    found = load_dataset(str(tmp_path / "w-{000..002}.tar"), size=20)
    assert found.fingerprint == expected.fingerprint
    names = [
        s["__key__"] for s in webdataset.WebDataset(str(tmp_path / "w-000.tar"), shardshuffle=False)
    ]
    assert [f"w-000.tar/{name}" for name in names] == [
        n.rsplit(".", 1)[0] for n in found.files[:15]
    ]
