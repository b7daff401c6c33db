"""Data sets of Hugging Face: given, saved or by name; the same images as a folder of them."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from packed import photos_of, png
from photos import save_photos

from deepaa.data import hugging_face as reading
from deepaa.data.load import DataSpec, as_images, load_dataset, load_images
from deepaa.data.scan import BadImagesError
from deepaa.data.splits import NoTestPartError
from deepaa.data.streaming import StreamedImages
from deepaa.report.classes import find_classes

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")
from datasets import (  # noqa: E402
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Image,
    Sequence,
    Value,
)

NAMES = ClassLabel(names=["dog", "cat"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """No test reads what another one, or a user, has fetched; and none asks the network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    monkeypatch.chdir(tmp_path)
    datasets.disable_progress_bars()


@pytest.fixture
def folder(tmp_path):
    return save_photos(tmp_path / "photos")


def rows_of(folder: Path, part: str) -> Dataset:
    some = [(file, label) for of, file, label in photos_of(folder) if of == part]
    images = [{"bytes": file.read_bytes(), "path": None} for file, _ in some]
    labels = [("dog", "cat").index(label) for _, label in some]
    features = Features({"image": Image(), "label": NAMES})
    return Dataset.from_dict({"image": images, "label": labels}, features=features)


def both_parts(folder: Path) -> DatasetDict:
    return DatasetDict({"train": rows_of(folder, "train"), "validation": rows_of(folder, "test")})


def pets(label=None, images=None, **columns) -> Dataset:
    """Six rows."""
    images = images or [{"bytes": png(40 * i), "path": None} for i in range(6)]
    labels = label or ["cat", "dog"] * 3
    found = Dataset.from_dict({"label": labels, **columns})
    return found.add_column("image", images).cast_column("image", Image())


# The same images


def test_a_saved_data_set_gives_what_the_folder_gives(folder, tmp_path):
    both_parts(folder).save_to_disk(tmp_path / "saved")
    for split in ("train", "test"):
        expected = load_dataset(folder, split=split, size=20)
        found = load_dataset(tmp_path / "saved", split=split, size=20)
        assert found.images.equal(expected.images)
        assert found.class_names == ("dog", "cat")  # as the data set has them
        assert found.labels.equal(1 - expected.labels)
    assert found.files[:2] == ("validation[0]", "validation[1]")
    assert found.name == "saved"
    both = DataSpec(str(tmp_path / "saved"), size=20).load_train_and_test()
    assert [len(part.labels) for part in both[:2]] == [41, 10]
    assert torch.equal(load_images(tmp_path / "saved", 5, 8), load_images(folder / "train", 5, 8))


def test_a_single_part_has_no_test(folder, tmp_path):
    rows_of(folder, "train").save_to_disk(tmp_path / "saved")
    assert len(load_dataset(tmp_path / "saved", size=8).labels) == 41
    with pytest.raises(NoTestPartError, match="saved: has no test part"):
        load_dataset(tmp_path / "saved", split="test", size=8)


def test_saved_data_sets_stream_as_the_folder_does(folder, tmp_path):
    both_parts(folder).save_to_disk(tmp_path / "saved")
    for train in (True, False):
        one = StreamedImages(folder, 24, train=train, workers=0)
        for workers in (0, 2):
            other = StreamedImages(tmp_path / "saved", 24, train=train, workers=workers)
            for a, b in zip(one.batches(3, 8, seed=2), other.batches(3, 8, seed=2), strict=True):
                assert torch.equal(a.images, b.images)
                assert torch.equal(a.labels, 1 - b.labels)
    again = StreamedImages(tmp_path / "saved", 24, train=False, workers=0, known=other.scanned())
    assert again.fingerprint == other.fingerprint
    assert again.report == other.report


def test_given_objects(folder):
    expected = load_dataset(folder, size=20)
    for data in (
        rows_of(folder, "train"),
        both_parts(folder),
        DatasetDict(all=rows_of(folder, "train")),
    ):
        assert as_images(data, size=20).images.equal(expected.images)
    some = rows_of(folder, "train").shuffle(seed=1).select(range(20))  # rows by other numbers
    some.set_transform(lambda batch: batch)
    found = as_images(some, size=20)
    places = [i for i in range(41) for j in range(20) if expected.images[i].equal(found.images[j])]
    assert len(set(places)) == 20
    assert found.name == "Dataset"
    assert found.files[3] == "train[3]"


def test_images_that_are_files(folder):
    photos = [(str(file), label) for part, file, label in photos_of(folder) if part == "train"]
    rows = Dataset.from_dict({"image": [f for f, _ in photos], "label": [k for _, k in photos]})
    found = as_images(rows.cast_column("image", Image()), size=20)
    assert found.fingerprint == load_dataset(folder, size=20).fingerprint
    gone = pets(images=[{"bytes": None, "path": "http://127.0.0.1:9/a.png"}] + [None] * 5)
    with pytest.raises(BadImagesError) as error:
        as_images(gone)
    assert "train[0] (not in the data set, but at http://127.0.0.1:9/a.png)" in str(error.value)
    assert "train[1] (empty file)" in str(error.value)


# By name


def cached(tmp_path: Path, data: DatasetDict, name: str, config: str = "default") -> None:
    """The cache as `datasets` leaves it after it has fetched and prepared a data set."""
    place = tmp_path / "cache" / name.replace("/", "___") / config / "0.0.0" / "0123456789abcdef"
    place.mkdir(parents=True)
    splits = {}
    for part, rows in data.items():
        target = f"{name.split('/')[-1]}-{part}.arrow"
        with pyarrow.OSFile(str(place / target), "wb") as sink:
            table = rows.data.table
            schema = table.schema.with_metadata(rows.features.arrow_schema.metadata)
            with pyarrow.ipc.new_stream(sink, schema) as writer:
                writer.write_table(table.cast(schema))
        splits[part] = {
            "name": part,
            "num_examples": len(rows),
            "dataset_name": name.split("/")[-1],
        }
    features = next(iter(data.values())).features.to_dict()
    about = {"features": features, "splits": splits, "config_name": config, "version": "0.0.0"}
    about |= {"builder_name": "parquet", "dataset_name": name.split("/")[-1]}
    (place / "dataset_info.json").write_text(json.dumps(about))


def test_a_data_set_of_the_cache_by_its_name(folder, tmp_path):
    cached(tmp_path, both_parts(folder), "someone/pets")
    expected = load_dataset(folder, size=20)
    found = load_dataset("hf:someone/pets", size=20)
    assert found.images.equal(expected.images)
    assert found.name == "someone/pets"
    assert len(load_dataset("hf:someone/pets", split="test", size=20).labels) == 10
    assert len(load_dataset("hf:someone/pets:default", size=20).labels) == 41
    spec = DataSpec.from_options("hf:someone/pets", size=20)
    assert (spec.data, spec.root) == ("hf:someone/pets", None)
    stream = StreamedImages("hf:someone/pets", 24, train=True, workers=0)
    assert len(next(stream.batches(0, 8)).images) == 8
    assert load_images("hf:someone/pets", 3, 8).shape == (3, 3, 8, 8)
    shown = find_classes({}, Path("hf:someone/pets"), 8)
    assert shown.images is not None, shown.note
    assert [name for name, _ in shown.images.groups] == ["dog", "cat"]


def test_a_name_that_is_not_there():
    with pytest.raises(FileNotFoundError) as error:
        load_dataset("hf:nobody/nothing")
    said = "hf:nobody/nothing: is not in the cache of datasets; fetch it with --download (Couldn"
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["../x", "/etc", "", "a/b/c", "https://a.b/c"])
def test_what_is_no_name(name):
    with pytest.raises(ValueError, match=r"expected hf:NAME or hf:USER/NAME, with :CONFIG behind"):
        load_dataset(f"hf:{name}", download=True)


def test_a_folder_is_not_taken_for_a_data_set_of_that_name(tmp_path):
    (tmp_path / "pets").mkdir()
    with pytest.raises(ValueError, match="hf:pets: datasets would read pets of the current folder"):
        load_dataset("hf:pets")


# Columns, labels, groups


def test_columns(tmp_path):
    assert as_images(pets()).class_names == ("cat", "dog")
    assert as_images(pets(label=[7, 3] * 3)).class_names == ("3", "7")
    found = pets().rename_columns({"label": "breed", "image": "photo"})
    with pytest.raises(
        ValueError, match="Dataset: no column of labels such as label; it has breed"
    ):
        as_images(found)
    assert as_images(found, columns="label=breed").class_names == ("cat", "dog")
    classes = found.cast_column("breed", ClassLabel(names=["dog", "cat", "owl"]))
    assert as_images(classes).class_names == ("dog", "cat")  # the only column of classes
    with pytest.raises(ValueError, match="no column of images; it has label"):
        as_images(pets().remove_columns("image"))
    with pytest.raises(ValueError, match="column label holds Value, expected Image"):
        as_images(pets(other=["a"] * 6), columns="image=label,label=other")
    two = pets().add_column("mask", [None] * 6).cast_column("mask", Image())
    assert len(as_images(two).labels) == 6  # image is the usual name
    two = two.rename_column("image", "left")
    with pytest.raises(ValueError, match="several columns: "):
        as_images(two)
    assert len(as_images(two, columns="image=left").labels) == 6
    two.save_to_disk(tmp_path / "saved")
    assert len(load_dataset(tmp_path / "saved", columns="image=left").labels) == 6


@pytest.mark.parametrize(
    ("label", "feature", "why"),
    [
        ([0, 1, None] * 2, NAMES, r"train\[2\]: no label"),
        ([0, 1, -1] * 2, NAMES, r"train\[2\]: no label"),
        (["a", "b", ""] * 2, Value("string"), r"train\[2\]: no label"),
        ([[0], [1], [0]] * 2, Sequence(Value("int64")), r"train\[0\]: the label is a list"),
        (
            [0.5, 1.0, 2.0] * 2,
            Value("float32"),
            r"train\[0\]: the label is a float, expected a tex",
        ),
        ([0] * 6, NAMES, "only one class, dog; it takes at least two"),
    ],
)
def test_wrong_labels(label, feature, why):
    images = [{"bytes": png(40 * i), "path": None} for i in range(6)]
    features = Features({"image": Image(), "label": feature})
    with pytest.raises(ValueError, match=rf"Dataset: {why}"):
        as_images(Dataset.from_dict({"image": images, "label": label}, features=features))


def test_groups(caplog):
    data = pets(group=["a", "a", "b", "b", None, None], scene=[1, 1, 1, 2, 2, 2])
    assert as_images(data).groups.tolist() == [0, 0, 1, 1, 2, 3]
    assert "6 images in 4 groups" in caplog.text
    assert as_images(data, "scene").groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert as_images(data, [5, 5, 5, 5, 6, 6]).groups.tolist() == [0, 0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="no column patient for group; it has label, group, scene"):
        as_images(data, "patient")


def test_parts(tmp_path):
    with pytest.raises(ValueError, match="no part train or test; it has a, b"):
        as_images(DatasetDict(a=pets(), b=pets()))
    with pytest.raises(ValueError, match="has no train part; it has test"):
        as_images(DatasetDict(test=pets()))
    other = pets().rename_column("label", "kind")
    DatasetDict(train=pets(), test=other).save_to_disk(tmp_path / "saved")
    assert len(load_dataset(tmp_path / "saved").labels) == 6
    with pytest.raises(ValueError, match="saved: test has no column label as other parts have it"):
        load_dataset(tmp_path / "saved", split="test")
    stream = pets().to_iterable_dataset()
    with pytest.raises(ValueError, match="Dataset: is a stream, whose rows have no") as error:
        as_images(stream)
    assert "save_to_disk" in str(error.value)
    assert "shards" in str(error.value)
    with pytest.raises(ValueError, match="Dataset: no rows"):
        as_images(pets().select([]))


def test_parts_whose_classes_differ_are_told_by_name(tmp_path):
    def part(*names):
        return pets([0, 1] * 3).cast_column("label", ClassLabel(names=list(names)))

    parts = {"train": part("cat", "dog"), "test": part("Cat", "dog", "owl")}
    DatasetDict(parts).save_to_disk(tmp_path / "saved")
    told = "classes of column label differ: only test has Cat, owl, only other parts have cat"
    with pytest.raises(ValueError, match=told):
        load_dataset(tmp_path / "saved", split="test")
    DatasetDict({**parts, "test": part("dog", "cat")}).save_to_disk(tmp_path / "turned")
    found = load_dataset(tmp_path / "turned", split="test")  # by their names, whatever the order
    assert (found.class_names, found.labels.tolist()) == (("cat", "dog"), [1, 0] * 3)
    DatasetDict({**parts, "test": pets()}).save_to_disk(tmp_path / "texts")
    with pytest.raises(ValueError, match=r"column label is Value\(.*\) in test, and ClassLabel\("):
        load_dataset(tmp_path / "texts", split="test")


def test_a_test_part_without_labels_is_left_alone(tmp_path, caplog):
    """On the hub, the classes of a test part that are kept back are -1."""
    pairs, kept = [0, 1] * 3, [-1] * 6
    parts = {"train": pairs, "validation": pairs, "test": kept}
    parts = {n: pets(label).cast_column("label", NAMES) for n, label in parts.items()}
    DatasetDict(parts).save_to_disk(tmp_path / "saved")
    found = load_dataset(tmp_path / "saved", split="test")
    assert [file.partition("[")[0] for file in found.files] == ["validation"] * 6
    assert (
        "test has no labels, so it is left alone; the test images are those of val" in caplog.text
    )
    assert len(StreamedImages(tmp_path / "saved", 8, train=False, workers=0)) == 6
    del parts["validation"]
    DatasetDict(parts).save_to_disk(tmp_path / "two")
    both = DataSpec(str(tmp_path / "two")).load_train_and_test(holdout=0.5)
    assert len(both.train.labels) + len(both.test.labels) == 6
    with pytest.raises(NoTestPartError, match="two: has no test part with labels"):
        load_dataset(tmp_path / "two", split="test")


def test_bad_images_are_named_and_may_be_skipped(tmp_path):
    images = [{"bytes": png(40 * i), "path": None} for i in range(6)]
    images[2]["bytes"] = b"<html>"
    pets(images=images).save_to_disk(tmp_path / "saved")
    with pytest.raises(BadImagesError, match=r"1 not-an-image\): train\[2\] \(not an image\)"):
        load_dataset(tmp_path / "saved")
    assert len(load_dataset(tmp_path / "saved", on_bad_image="skip").labels) == 5


# Folders of strangers


def test_damaged_folders_are_one_line(tmp_path):
    pets().save_to_disk(tmp_path / "saved")
    arrow = next((tmp_path / "saved").glob("*.arrow"))
    whole, state = arrow.read_bytes(), (tmp_path / "saved" / "state.json").read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2]):
        arrow.write_bytes(damaged)
        with pytest.raises(ValueError, match="saved: cannot be read by datasets: ") as error:
            load_dataset(tmp_path / "saved")
        assert "\n" not in str(error.value)
    arrow.write_bytes(whole)
    for damaged in (b"{", b"[]", state.replace(b"_data_files", b"_files")):
        (tmp_path / "saved" / "state.json").write_bytes(damaged)
        with pytest.raises(ValueError, match="saved: cannot be read by datasets: ") as error:
            load_dataset(tmp_path / "saved")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("gone", [["state.json"], ["dataset_info.json", "state.json"]])
def test_folders_that_are_not_all_copied_are_told(tmp_path, gone):
    pets().save_to_disk(tmp_path / "saved")
    for name in gone:
        (tmp_path / "saved" / name).unlink()
    there_is_no = " and no ".join(sorted(gone, reverse=True))
    with pytest.raises(ValueError, match=f"beside its .arrow files there is no {there_is_no}$"):
        load_dataset(tmp_path / "saved")


def test_offsets_that_lead_out_of_a_file_do_not_crash(tmp_path):
    """Arrow maps files as they are: an offset of two billion would be read, and end the process."""
    pets().save_to_disk(tmp_path / "saved")
    arrow = next((tmp_path / "saved").glob("*.arrow"))
    whole = arrow.read_bytes()
    offsets = b"".join((3 * i).to_bytes(4, "little") for i in range(7))  # of the labels
    assert offsets in whole
    wrong = b"".join((n).to_bytes(4, "little") for n in (0, 3, 6, 2_000_000_000, 12, 15, 18))
    arrow.write_bytes(whole.replace(offsets, wrong))
    with pytest.raises(ValueError, match=r"saved: .*[Oo]ffset"):
        load_dataset(tmp_path / "saved")


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    pets().save_to_disk(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "datasets", None)
    for source in ("hf:a/b", str(tmp_path / "saved")):
        with pytest.raises(ValueError, match=re.escape("pip install 'deepaa[hf]'")):
            load_dataset(source)


def test_versions_that_run_scripts_are_refused(monkeypatch):
    monkeypatch.setattr(datasets, "__version__", "3.6.0")
    with pytest.raises(ValueError, match=r"needs datasets 4 or newer, .*; here is 3\.6\.0"):
        load_dataset("hf:a/b")


def test_the_package_is_not_imported_for_other_sources():
    assert not reading.is_dataset((torch.zeros(1), [0]))
    assert reading.is_dataset(pets())
    assert reading.is_dataset(DatasetDict(train=pets()))
    own = type("Own", (torch.utils.data.Dataset,), {"__module__": "datasets"})  # of a project
    assert not reading.is_dataset(own())


def test_lengths_are_those_of_the_images():
    sizes = [8, 300, 20, 100, 9, 200]
    images = [{"bytes": png(9 * i, side), "path": None} for i, side in enumerate(sizes)]
    images[4] = None
    some = pets(images=images)
    for data in (some, some.select([5, 1, 4, 3]), some.shuffle(seed=3), some.select(range(2, 6))):
        store = reading.RowStore([data, some], "image")
        places = list(range(len(data) + 6))
        assert store.lengths(places) == [len(store.content(place)) for place in places]
        assert store.lengths([3, 0]) == [len(store.content(3)), len(store.content(0))]
