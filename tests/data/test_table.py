"""Tables of image files: the same images as a folder of them, and what is wrong with a table."""

import gzip
import os
import re
import sys
import time

import numpy as np
import pytest
import torch
from packed import photos_of, png, table_of, write_csv
from photos import save_photos
from PIL import Image

from deepaa.data import table as reading
from deepaa.data.load import DataSpec, as_images, load_dataset, load_images
from deepaa.data.scan import BadImagesError
from deepaa.data.splits import NoTestPartError
from deepaa.data.streaming import StreamedImages


@pytest.fixture
def folder(tmp_path):
    return save_photos(tmp_path / "photos")


@pytest.fixture
def pets(tmp_path):
    """Six pictures without class folders."""
    for i in range(6):
        (tmp_path / f"{i}.png").write_bytes(png(40 * i))
    return tmp_path


ROWS = [(f"{i}.png", "cat" if i % 2 else "dog") for i in range(6)]


def read(pets, header="path,label", rows=ROWS, **options):
    return load_dataset(write_csv(pets / "t.csv", header, rows), **options)


# The same images


def test_a_table_gives_what_the_folder_gives(folder):
    table = table_of(folder)
    for split in ("train", "test"):
        expected = load_dataset(folder, split=split, size=20)
        found = load_dataset(table, split=split, size=20)
        assert found.fingerprint == expected.fingerprint
        assert found.class_names == expected.class_names == ("cat", "dog")
        assert found.files == expected.files
        assert (found.name, expected.name) == ("table", "photos")
    both = DataSpec(str(table), size=20).load_train_and_test()
    assert [len(part.labels) for part in both[:2]] == [41, 10]
    assert torch.equal(load_images(table, 5, 8), load_images(folder / "train", 5, 8))


def test_a_table_streams_as_the_folder_does(folder):
    table = table_of(folder)
    for train in (True, False):
        same = [StreamedImages(s, 24, train=train, workers=0) for s in (folder, table)]
        assert same[0].fingerprint == same[1].fingerprint
        batches = [next(each.batches(3, 8, seed=2)) for each in same]
        assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))
    again = StreamedImages(table, 24, train=True, workers=1, known=same[0].scanned(), scan=False)
    assert torch.equal(
        next(again.batches(0, 8)).labels, again.labels[next(again.batches(0, 8)).rows]
    )


def test_a_table_streams_with_workers(folder):
    one, two = (StreamedImages(table_of(folder), 24, train=True, workers=n) for n in (0, 2))
    for a, b in zip(one.batches(0, 8), two.batches(0, 8), strict=True):
        assert torch.equal(a.images, b.images)


def test_a_table_in_the_current_folder_may_name_whole_paths(pets, monkeypatch):
    expected = read(pets).fingerprint
    rows = [(pets / name if i % 2 else name, label) for i, (name, label) in enumerate(ROWS)]
    write_csv(pets / "t.csv", "path,label", rows)
    monkeypatch.chdir(pets)
    for name in ("t.csv", "./t.csv"):
        assert load_dataset(name).fingerprint == expected
        assert len(StreamedImages(name, 8, train=True, workers=0)) == 6


def test_paths_above_the_table_and_whole_ones_are_taken(folder, tmp_path):
    rows = [
        (file if i % 2 else os.path.relpath(file, tmp_path / "tables" / "deep"), label, part)
        for i, (part, file, label) in enumerate(photos_of(folder))
    ]
    (tmp_path / "tables" / "deep").mkdir(parents=True)
    table = write_csv(tmp_path / "tables" / "deep" / "t.csv", "path,label,split", rows)
    found = load_dataset(table, size=20)
    assert found.fingerprint == load_dataset(folder, size=20).fingerprint
    assert found.files[0] == "train/cat/001.jpg"  # below what all have in common


# Columns


@pytest.mark.parametrize(
    "header", ["path,label", "file_name,class", "Image Path,Category", "filename,species", "img,y"]
)
def test_columns_are_known_by_their_usual_names(pets, header):
    assert read(pets, header).class_names == ("cat", "dog")


def test_a_single_other_column_is_the_label(pets):
    assert read(pets, "path,breed").class_names == ("cat", "dog")
    rows = [(*row, i) for i, row in enumerate(ROWS)]
    with pytest.raises(
        ValueError, match=r"no column of classes such as label or class; it has pat"
    ):
        read(pets, "path,breed,age", rows)
    assert read(pets, "path,breed,age", rows, columns="label=breed").class_names == ("cat", "dog")


def test_columns_can_be_said(pets):
    rows = [(i, label, name, "train") for i, (name, label) in enumerate(ROWS)]
    found = read(pets, "label,kind,where,set", rows, columns="path=where, label=kind")
    assert found.class_names == ("cat", "dog")
    assert DataSpec.from_json(DataSpec("t.csv", columns="label=a").to_json()).columns == "label=a"
    assert "columns" not in DataSpec("t.csv").to_json()


def test_columns_that_only_have_such_a_name(pets):
    """A part of a body is no part of the data, and groups of ages do not belong together."""
    rows = [(*row, ("arm", "leg")[i % 2], i // 2) for i, row in enumerate(ROWS)]
    with pytest.raises(ValueError, match=r"row 2: split arm; expected .*: --columns split= "):
        read(pets, "path,label,part,group", rows)
    found = read(pets, "path,label,part,group", rows, columns="split=")
    assert (len(found.labels), found.groups.tolist()) == (6, [0, 0, 1, 1, 2, 2])
    found = read(pets, "path,label,part,group", rows, columns="split=,group=")
    assert found.groups is None
    assert (
        read(pets, "path,label,part,group", rows, columns="split=", groups="part").groups
        is not None
    )


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("label=kind", r"t\.csv: no column kind for label; it has path, label"),
        (
            "kind=label",
            r"--columns kind=label: expected KIND=COLUMN, .* image, label, split, group",
        ),
        ("label", "--columns label: expected KIND=COLUMN"),
        ("label=", "--columns label=: expected"),
        ("", "--columns '?'?: expected"),
        ("image=path,path=label", "names two columns for image"),
    ],
)
def test_wrong_columns(pets, columns, why):
    with pytest.raises(ValueError, match=why):
        read(pets, columns=columns)


def test_a_folder_has_no_columns(folder):
    with pytest.raises(ValueError, match=r"--columns label=a: .*photos has no columns"):
        load_dataset(folder, columns="label=a")
    with pytest.raises(ValueError, match="--columns label=a: embedded has none"):
        load_dataset("embedded", columns="label=a")


# Labels


def test_numbers_are_sorted_as_numbers_and_may_have_gaps(pets):
    rows = [(name, (10, 9, 2)[i % 3]) for i, (name, _) in enumerate(ROWS)]
    found = read(pets, rows=rows)
    assert found.class_names == ("2", "9", "10")
    assert found.labels.tolist() == [2, 1, 0, 2, 1, 0]


@pytest.mark.parametrize("label", ["", "  "])
def test_an_empty_label_names_its_row(pets, label):
    with pytest.raises(ValueError, match=r"t\.csv: row 4: no label"):
        read(pets, rows=[*ROWS[:2], ("2.png", label), *ROWS[3:]])


def test_numbers_that_stand_beside_missing_ones_are_whole(pets):
    """Other programs write 3.0 for 3 in a column where something is missing."""
    rows = [(name, f"{(10, 9, 2)[i % 3]}.0") for i, (name, _) in enumerate(ROWS)]
    found = read(pets, rows=rows)
    assert found.class_names == ("2", "9", "10")
    assert found.labels.tolist() == [2, 1, 0, 2, 1, 0]
    mixed = [(name, (10, "10.0", 2)[i % 3]) for i, (name, _) in enumerate(ROWS)]
    assert read(pets, rows=mixed).class_names == ("2", "10")
    versions = [(name, ("1.0", "1.5")[i % 2]) for i, (name, _) in enumerate(ROWS)]
    assert read(pets, rows=versions).class_names == ("1.0", "1.5")


def test_a_caption_is_no_class(pets):
    with pytest.raises(ValueError, match=r"row 2: a label of 300 characters is no class: xxx"):
        read(pets, rows=[("0.png", "x" * 300), *ROWS[1:]])


def test_one_class_alone(pets):
    with pytest.raises(ValueError, match=r"t\.csv: only one class, cat; it takes at least two"):
        read(pets, rows=[(name, "cat") for name, _ in ROWS])


# Splits and groups


def test_splits(pets, caplog):
    rows = [(*row, part) for row, part in zip(ROWS, ["Train"] * 4 + ["valid", "val"], strict=True)]
    assert len(read(pets, "path,label,split", rows).labels) == 4
    assert len(read(pets, "path,label,split", rows, split="test").labels) == 2
    rows = [
        (*row, p) for row, p in zip(ROWS, ["train"] * 2 + ["val"] * 2 + ["test"] * 2, strict=True)
    ]
    assert read(pets, "path,label,split", rows, split="test").files == ("4.png", "5.png")
    found = read(pets, "path,label,split", rows)
    assert found.report.ignored == {"in the part val, beside train and test": 2}
    with pytest.raises(
        NoTestPartError, match=r"t\.csv: has no test part; all images are for train"
    ):
        read(pets, split="test")


@pytest.mark.parametrize(
    ("parts", "split", "why"),
    [
        (["train", "train", "odd"], "train", r"row 4: split odd; expected train, test or val"),
        (["train", "", "train"], "train", r"row 3: no split; expected train"),
        (["test", "test", "val"], "train", r"has no train part; it has test, val"),
    ],
)
def test_wrong_splits(pets, parts, split, why):
    rows = [(*row, part) for row, part in zip(ROWS, parts, strict=False)]
    with pytest.raises(ValueError, match=why):
        read(pets, "path,label,split", rows, split=split)


def test_a_class_that_is_only_tested(pets):
    rows = [*((*row, "train") for row in ROWS[:4]), ("4.png", "owl", "test")]
    with pytest.raises(
        ValueError, match=r"row 6: the class owl is not among those of train: cat, d"
    ):
        read(pets, "path,label,split", rows, split="test")


def test_a_test_part_without_labels_is_left_alone(pets, caplog):
    kept = [("4.png", "", "test"), ("5.png", " ", "test")]
    rows = [*((*row, "train") for row in ROWS[:4]), *kept]
    found = read(pets, "path,label,split", rows)
    assert (len(found.labels), found.class_names) == (4, ("cat", "dog"))
    assert found.report.ignored == {"in the part test, without labels": 2}
    with pytest.raises(NoTestPartError, match=r"t\.csv: has no test part with labels$"):
        read(pets, "path,label,split", rows, split="test")
    rows = [*((*row, "train") for row in ROWS[:2]), *((*row, "val") for row in ROWS[2:4]), *kept]
    caplog.clear()
    assert read(pets, "path,label,split", rows, split="test").files == ("2.png", "3.png")
    assert (
        "test has no labels, so it is left alone; the test images are those of val" in caplog.text
    )
    rows[-1] = (*ROWS[5], "test")
    with pytest.raises(ValueError, match=r"t\.csv: row 6: no label"):
        read(pets, "path,label,split", rows, split="test")
    rows[0] = ("0.png", "", "train")
    with pytest.raises(ValueError, match=r"t\.csv: row 2: no label"):
        read(pets, "path,label,split", rows)


def test_another_table_of_test_images(pets):
    test = write_csv(pets / "test.csv", "path,label", [("5.png", "dog"), ("4.png", "cat")])
    train = write_csv(pets / "train.csv", "path,label", ROWS[:4])
    both = DataSpec(str(train)).load_train_and_test(test=str(test))
    assert both.test.labels.tolist() == [1, 0]
    for name in ("cat", "dog"):  # class folders have no columns
        (pets / "more" / name).mkdir(parents=True)
        (pets / "more" / name / "a.png").write_bytes(png(200))
    rows = [(*row, 1) for row in ROWS]
    kinds = write_csv(pets / "kinds.csv", "path,breed,age", rows)
    both = DataSpec(str(kinds), columns="label=breed").load_train_and_test(test=pets / "more")
    assert both.test.class_names == ("cat", "dog")


def test_groups_are_a_column(pets, caplog):
    rows = [(*row, f"scene {i // 2}") for i, row in enumerate(ROWS)]
    assert read(pets, "path,label,group", rows).groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert "6 images in 3 groups, by its column of groups" in caplog.text
    assert read(pets, "path,label,scene", rows).groups is None
    assert read(pets, "path,label,scene", rows, groups="scene").groups.tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    found = read(pets, "path,label,scene", rows, columns="group=scene").groups
    assert found.tolist() == [0, 0, 1, 1, 2, 2]
    assert read(pets, "path,label,scene", rows, groups=r"[03]\.png").groups.tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    with pytest.raises(ValueError, match=r"no column patient for group; it has path, label, scene"):
        read(pets, "path,label,scene", rows, groups="patient")
    with pytest.raises(ValueError, match=r"--groups scene: all 6 images are one group"):
        read(pets, "path,label,scene", [(*row, "a") for row in ROWS], groups="scene")


def test_a_row_without_a_group_is_its_own(pets):
    rows = [(*row, "a" if i < 2 else "") for i, row in enumerate(ROWS)]
    assert read(pets, "path,label,group", rows).groups.tolist() == [0, 0, 1, 2, 3, 4]


# What is wrong with a table


def test_missing_files_are_named_and_may_be_skipped(pets):
    rows = [*ROWS, ("gone.png", "cat")]
    with pytest.raises(BadImagesError, match=r"1 of 7 files is bad \(1 missing\): gone\.png"):
        read(pets, rows=rows)
    assert len(read(pets, rows=rows, on_bad_image="skip").labels) == 6
    with pytest.raises(FileNotFoundError) as error:
        read(pets, rows=[(f"x/{name}", label) for name, label in ROWS])
    assert re.fullmatch(
        r".*/t\.csv: none of its 6 files is there; row 2 names .*/x/0\.png. Relative paths start "
        "at the folder of the table",
        str(error.value),
    )


def test_names_with_another_suffix_are_told(pets):
    rows = [(f"{i}.jpg", label) for i, (_, label) in enumerate(ROWS)]
    with pytest.raises(FileNotFoundError, match=r"row 2 names .*/0\.jpg\. There is 0\.png: write"):
        read(pets, "id,label", rows)


@pytest.mark.parametrize("suffix", ["", ".png"])
@pytest.mark.parametrize("inside", [".", "pictures", "pictures/all"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_names_are_those_of_paths(pets, caplog, suffix, inside, ending):
    """As competitions have them: a table of names beside a folder of files."""
    expected = read(pets).images
    (pets / inside).mkdir(parents=True, exist_ok=True)
    for name, _ in ROWS:
        (pets / name).rename(pets / inside / name)
    names = [f"{i}{suffix}" for i in range(6)]
    labels = [label for _, label in ROWS]
    table = pets / f"names.{ending}"
    if ending == "csv":
        write_csv(table, "image_id,breed", zip(names, labels, strict=True))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        arrow = pytest.importorskip("pyarrow").table({"image_id": names, "breed": labels})
        parquet.write_table(arrow, table)
    found = load_dataset(table)
    assert torch.equal(found.images, expected)
    assert found.files == tuple(os.path.normpath(f"{inside}/{name}") for name, _ in ROWS)
    stream = StreamedImages(table, 8, train=True, workers=0)
    assert len(stream) == 6
    said = [record.getMessage() for record in caplog.records]
    lie, end = inside != ".", not suffix
    parts = [f"lie in {inside}"] * lie + ["end with .png"] * end
    want = [f"{table}: the files that it names {' and '.join(parts)}"] if parts else []
    assert said == want  # once, and not where the table says it all


def test_files_are_looked_for_where_no_first_one_is_there(pets):
    """A file that is missing is a bad one, and others are not looked for elsewhere."""
    (pets / "old").mkdir()
    (pets / "old" / "gone.png").write_bytes(png(3))
    with pytest.raises(BadImagesError, match=r"1 of 7 files is bad \(1 missing\): gone\.png"):
        read(pets, rows=[("gone.png", "cat"), *ROWS])


def test_a_name_of_two_files_is_refused(pets):
    rows = [(f"x{i}", label) for i, (_, label) in enumerate(ROWS)]
    for part in ("train", "test"):
        (pets / part).mkdir()
        (pets / part / "x1.png").write_bytes(png(3))
    with pytest.raises(ValueError, match=r"t\.csv: x1 may be test/x1\.png, train/x1\.png; write"):
        read(pets, "id,label", rows)
    (pets / "test" / "x1.png").rename(pets / "x1.jpg")
    (pets / "x1.png").write_bytes(png(3))
    with pytest.raises(ValueError, match=r"t\.csv: x1 may be x1\.png, x1\.jpg; write names with"):
        read(pets, "id,label", rows)
    (pets / "x1.png").unlink()
    with pytest.raises(BadImagesError, match=r"5 of 6 files are bad \(5 missing\): x0\.jpg"):
        read(pets, "id,label", rows)  # what lies beside the table is taken first


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
def test_links_and_hidden_folders_are_not_looked_into(pets, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (pets / ".hidden").mkdir()
    for name, _ in ROWS:
        (outside / name).write_bytes((pets / name).read_bytes())
        (pets / name).rename(pets / ".hidden" / name)
    (pets / "link").symlink_to(outside)
    with pytest.raises(FileNotFoundError, match=r"none of its 6 files is there; row 2 names"):
        read(pets)


def test_damaged_files_are_found_before_anything_else(pets):
    (pets / "2.png").write_bytes(b"<html>")
    with pytest.raises(BadImagesError, match=r"1 of 6 files is bad \(1 not-an-image\): 2\.png"):
        read(pets)


def test_rows_of_one_file(pets):
    again = read(pets, rows=[*ROWS, ROWS[0]])
    assert again.report.ignored == {"row of a file again": 1}
    assert len(again.labels) == 6
    with pytest.raises(ValueError, match=r"row 8 gives \./0\.png the label cat, but row 2 dog"):
        read(pets, rows=[*ROWS, ("./0.png", "cat")])
    rows = [(*row, "train") for row in ROWS]
    with pytest.raises(ValueError, match=r"row 8 gives 0\.png the split test, but row 2 train"):
        read(pets, "path,label,split", [*rows, (*ROWS[0], "test")])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("path,label\n", "no rows"),
        ("0.png,dog\n1.png,cat\n", "row 1 names an image and not columns; put a first row"),
        ("path,label\n0.png,dog\n1.png\n", "row 3 has 1 cell, but there are 2 columns"),
        ("path,label\n0.png,dog,x\n", "row 2 has 3 cells, but there are 2 columns"),
        ("path,label\n,dog\n", "row 2: no path"),
        ("path,label\nhttps://a.b/0.png,dog\n", "row 2: https://a.b/0.png is an address; fetch"),
        ("path,label\n0\0.png,dog\n", "is no name of a file"),
        ("path,label,label\n0.png,dog,cat\n", "two columns are called label"),
        ("age,label\n0,dog\n", "no column of paths such as image or path; it has age, label. Say"),
        ('path,label\n"0.png,dog\n' + "x" * 200_000, "field larger than field limit"),
    ],
)
def test_wrong_tables(pets, text, why):
    (pets / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        load_dataset(pets / "t.csv")
    assert str(error.value).startswith(f"{pets / 't.csv'}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("header", "sign", "end"),
    [
        ("path,label,,", ",", ",,"),
        ("path,label,note,note", ",", ",a,b"),
        ("\n  \npath,label", ",", ""),
        ("path,label", ",", "\n   "),
        ("path\tlabel", "\t", ""),
        (",,\npath,label,", ",", ","),
    ],
)
def test_tables_with_more_than_is_needed(pets, header, sign, end):
    rows = "".join(f"{sign.join(row)}{end}\n" for row in ROWS)
    (pets / "t.csv").write_text(f"{header}\n{rows}")
    assert load_dataset(pets / "t.csv").fingerprint == read(pets).fingerprint
    (pets / "t.csv").write_text(f"{header}\n{rows}{sign.join(('9.png', 'cat'))}{end}\n")
    row = header.count("\n") + 2 + len(ROWS) * (1 + end.count("\n"))
    with pytest.raises(ValueError, match=r"1 of 7 files is bad .*9\.png"):
        load_dataset(pets / "t.csv")
    (pets / "t.csv").write_text(f"{header}\n{rows}{sign.join(('5.png', 'dog'))}{end}\n")
    with pytest.raises(ValueError, match=rf"row {row} gives 5\.png the label "):
        load_dataset(pets / "t.csv")


def test_tables_as_spreadsheets_write_them(pets):
    lines = [f"{name};{label}\r\n" for name, label in ROWS]
    (pets / "t.csv").write_text("path;label\r\n" + "".join(lines) + "\r\n", encoding="utf-8-sig")
    assert len(load_dataset(pets / "t.csv").labels) == 6
    (pets / "t.tsv").write_text("path\tlabel\n" + "".join(f"{n}\t{k}\t\n" for n, k in ROWS))
    assert len(load_dataset(pets / "t.tsv").labels) == 6
    (pets / "t.csv").write_text("path,label\n0.png,dog\n", encoding="utf-16")
    with pytest.raises(ValueError, match="is UTF-16; save it as UTF-8"):
        load_dataset(pets / "t.csv")
    (pets / "a").mkdir()
    (pets / "a" / "b.png").write_bytes(png())
    assert read(pets, rows=[*ROWS, (r"a\b.png", "cat")]).files[-1] == "a/b.png"


def test_a_table_that_is_too_large_is_not_read(pets, monkeypatch):
    monkeypatch.setattr(reading, "MOST_TEXT", 20)
    with pytest.raises(ValueError, match=r"t\.csv: \d+ bytes; tables of up to 20 are read"):
        read(pets)


def test_packed_tables_are_read(pets, monkeypatch):
    plain = write_csv(pets / "t.csv", "path,label", ROWS)
    whole = gzip.compress(plain.read_bytes())
    (pets / "T.csv.GZ").write_bytes(whole)
    expected, found = load_dataset(plain), load_dataset(pets / "T.csv.GZ")
    assert (found.fingerprint, found.name) == (expected.fingerprint, "T")
    flipped = bytearray(whole)
    flipped[30] ^= 255
    for damaged in (whole[:-12], bytes(flipped), plain.read_bytes()):
        (pets / "T.csv.GZ").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"T\.csv\.GZ: not packed by gzip, or damaged \("):
            load_dataset(pets / "T.csv.GZ")
    write_csv(plain, "path,label", [*ROWS, *[("0.png", "dog")] * 100_000])
    (pets / "long.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    monkeypatch.setattr(reading, "MOST_TEXT", 100_000)
    with pytest.raises(ValueError, match=r"long\.csv\.gz: \d+,\d+ bytes; tables of up to 100,000"):
        load_dataset(pets / "long.csv.gz")


def test_links_out_of_the_folder_are_refused(pets, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.png").write_bytes(png(7))
    (pets / "link.png").symlink_to(outside / "secret.png")
    (pets / "deep").symlink_to(outside)
    for name in ("link.png", "deep/secret.png"):
        with pytest.raises(
            ValueError, match=rf"links lead out of .* to 1 file, as row 8: .*{name}; copy"
        ):
            read(pets, rows=[*ROWS, (name, "cat")])
        assert len(read(pets, rows=[*ROWS, (name, "cat")], outside_links=True).labels) == 7
    (pets / "inside.png").symlink_to("0.png")
    assert len(read(pets, rows=[*ROWS, ("inside.png", "dog")]).labels) == 7


def test_a_folder_of_a_table_and_all_images_names_the_table(pets):
    (pets / "images").mkdir()
    for name, _ in ROWS:
        (pets / name).rename(pets / "images" / name)
    table = write_csv(pets / "t.csv", "id,label", ROWS)
    with pytest.raises(ValueError, match="only one class, images; it takes at least two") as error:
        load_dataset(pets)
    assert str(error.value).endswith(f"it takes at least two, or give its table: --data {table}")
    assert len(load_dataset(table).labels) == 6


def test_a_folder_without_classes_names_its_table(pets):
    write_csv(pets / "labels.csv", "path,label", ROWS)
    with pytest.raises(ValueError, match=r"6 images but no class folders; .*--data .*/labels\.csv"):
        load_dataset(pets)


def test_a_folder_of_parquet_files_is_told_how_to_join_them(tmp_path):
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    (folder / "train-0.parquet").touch()
    for root in (folder, folder.parent):  # as the hub has it
        with pytest.raises(ValueError, match=r"; .*give its table: --data .*/train-0\.parquet$"):
            load_dataset(root)
    (folder / "train-1.parquet").touch()
    for root in (folder, folder.parent):
        with pytest.raises(ValueError, match="join its 2 Parquet files, as one at a time") as error:
            load_dataset(root)
        assert f"datasets.load_dataset({str(root)!r}).save_to_disk" in str(error.value)


def test_what_is_no_file_is_not_waited_for(pets):
    os.mkfifo(pets / "pipe.png")
    with pytest.raises(BadImagesError, match=r"1 unreadable\): pipe.png \(not a regular file\)"):
        read(pets, rows=[*ROWS, ("pipe.png", "cat")])
    os.mkfifo(pets / "pipe.csv")
    with pytest.raises(ValueError, match=r"pipe\.csv: a pipe, expected a regular file"):
        load_dataset(pets / "pipe.csv")
    with pytest.raises(FileNotFoundError, match=r"no\.csv: no such folder, file or data set"):
        load_dataset(pets / "no.csv")


# Parquet


def test_parquet_gives_what_the_text_gives(folder):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    text = table_of(folder)
    parquet.write_table(csv.read_csv(text), folder / "t.parquet")
    for split in ("train", "test"):
        found = load_dataset(folder / "t.parquet", split=split, size=20)
        assert found.fingerprint == load_dataset(text, split=split, size=20).fingerprint
    numbers = {"file": [f"{i}" for i in range(3)], "label": [0.0, 1.0, None], "x": [[1]] * 3}
    parquet.write_table(pyarrow.table(numbers), folder / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet: row 3: no label"):
        load_dataset(folder / "t.parquet")
    with pytest.raises(ValueError, match=r"column x holds list<.*>, expected texts or numbers"):
        load_dataset(folder / "t.parquet", columns="label=x")
    numbers["image"] = [{"bytes": b"", "path": ""}] * 3
    parquet.write_table(pyarrow.table(numbers), folder / "t.parquet")
    with pytest.raises(ValueError, match="column image holds images and not their paths; datasets"):
        load_dataset(folder / "t.parquet")
    del numbers["image"]
    numbers["label"] = [0.5, 1.0, 1.0]
    parquet.write_table(pyarrow.table(numbers), folder / "t.parquet")
    with pytest.raises(
        ValueError, match=r"row 1: the label is a float, expected a text or a whole"
    ):
        load_dataset(folder / "t.parquet")


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "binary", "binary_view"])
def test_every_kind_of_text_in_parquet(pets, kind):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    if not hasattr(pyarrow, kind):
        pytest.skip(f"this pyarrow has no {kind}")
    make = getattr(pyarrow, kind)
    columns = [pyarrow.array(column, make()) for column in zip(*ROWS, strict=True)]
    table = pyarrow.Table.from_arrays(columns, names=["path", "label"])
    parquet.write_table(table, pets / "t.parquet")
    assert load_dataset(pets / "t.parquet").fingerprint == read(pets).fingerprint


def test_images_in_parquet_are_told(pets):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    big = np.random.default_rng(0).integers(0, 256, (90, 90, 3), np.uint8)
    Image.fromarray(big).save(pets / "big.png")
    for name in ("0.png", "big.png"):
        content = [(pets / name).read_bytes()] * 6
        table = pyarrow.table({"image": content, "label": ["cat", "dog"] * 3})
        parquet.write_table(table, pets / "t.parquet")
        with pytest.raises(ValueError, match="column image holds images and not") as error:
            load_dataset(pets / "t.parquet")
        assert len(str(error.value)) < 400
        cast = "datasets.Dataset.from_parquet(path).cast_column('image', datasets.Image())"
        assert cast in str(error.value)
        datasets = pytest.importorskip("datasets")
        rows = datasets.Dataset.from_parquet(str(pets / "t.parquet"), cache_dir=str(pets / "c"))
        assert len(as_images(rows.cast_column("image", datasets.Image())).labels) == 6


def test_damaged_parquet_is_one_line(pets):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"path": [name for name, _ in ROWS], "label": [label for _, label in ROWS]}
    parquet.write_table(pyarrow.table(columns), pets / "t.parquet")
    assert len(load_dataset(pets / "t.parquet").labels) == 6
    whole = (pets / "t.parquet").read_bytes()
    for damaged in (b"", b"PAR1", whole[: len(whole) // 2], whole[:-20] + whole[-8:]):
        (pets / "t.parquet").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"t\.parquet: not a Parquet file, or a d") as error:
            load_dataset(pets / "t.parquet")
        assert "\n" not in str(error.value)


def test_parquet_bombs_are_refused(pets, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    long = pyarrow.table({"path": ["x" * 2_000_000] * 9, "label": ["cat"] * 9})
    parquet.write_table(long, pets / "t.parquet", compression="zstd")
    assert (pets / "t.parquet").stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"a value of 2,000,000 bytes; at most 16,384 are read"):
        load_dataset(pets / "t.parquet")
    monkeypatch.setattr("deepaa.data.parquet.MOST_ROWS", 8)
    with pytest.raises(ValueError, match=r"t\.parquet: 9 rows; at most 8 are read"):
        load_dataset(pets / "t.parquet")


def test_parquet_without_pyarrow_says_what_to_install(pets, monkeypatch):
    (pets / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"need pyarrow: pip install 'deepaa\[parquet\]'"):
        load_dataset(pets / "t.parquet")


@pytest.mark.parametrize(
    ("source", "package", "needed", "told"),
    [
        ("t.parquet", "pyarrow", "import cffi_gone", "its cffi_gone is missing; pip install pyarr"),
        ("hf:a/b", "datasets", "import xxhash_gone", "its xxhash_gone is missing; pip install dat"),
        (
            *("hf:a/b", "datasets", "from os import gone"),
            "be imported (cannot import name 'gone' from 'os'",
        ),
    ],
)
def test_a_package_that_does_not_work_is_not_called_missing(
    pets, monkeypatch, source, package, needed, told
):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    (pets / "broken" / package).mkdir(parents=True)
    (pets / "broken" / package / "__init__.py").write_text(needed)
    monkeypatch.syspath_prepend(pets / "broken")
    (pets / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="installed but cannot be imported") as error:
        load_dataset(str(pets / source) if source == "t.parquet" else source)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_many_rows_are_listed_in_seconds(tmp_path):
    """Names only: what a row costs is far below a millisecond."""
    (tmp_path / "0.png").write_bytes(png())
    rows = [("0.png", "dog"), *((f"images/{i}.png", "cat") for i in range(20_000))]
    table = write_csv(tmp_path / "t.csv", "path,label", rows)
    began = time.process_time()
    listing = reading.list_table(table, {})
    assert len(listing.tree("train").files) == 20_001
    assert time.process_time() - began < 5
