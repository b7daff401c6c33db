"""Groups of images: by patterns over paths, by tables, by arrays, and what is wrong with each."""

import logging
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepaa.data import groups as module
from deepaa.data.folder import list_images
from deepaa.data.groups import (
    folder_groups,
    given_groups,
    kept_groups,
    matches,
    numbered,
    repeats_repeats,
)
from deepaa.data.load import DataSpec, as_images, load_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with four frames of each of three scenes; the third scene shows both."""
    root, value = tmp_path / "pets", 0
    for name, scenes in (("cat", "039"), ("dog", "129")):
        (root / name).mkdir(parents=True)
        for scene in scenes:
            for frame in range(4):
                value += 1
                path = root / name / f"scene{scene}_{frame}.png"
                Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(path)
    return root


def test_names_are_numbered_as_they_appear():
    assert numbered(["b", "a", "b", None, "c", None]) == [0, 1, 0, 2, 3, 4]
    assert numbered([]) == []


# Patterns


def test_a_pattern_finds_the_group_of_each_path(folder, caplog):
    with caplog.at_level(logging.WARNING):
        data = load_dataset(folder, groups=r"scene(\d+)")
    assert not caplog.records
    assert data.groups.dtype == torch.int64
    scenes = [re.search(r"scene(\d)", file)[1] for file in data.files]
    expected = [[a == b for b in scenes] for a in scenes]
    assert (data.groups[:, None] == data.groups).tolist() == expected
    assert len(data.groups.unique()) == 5  # scene 9 has cats and dogs
    whole = load_dataset(folder, groups=r"[a-z]+/scene\d+")
    assert len(whole.groups.unique()) == 6
    assert load_dataset(folder).groups is None


def test_files_that_no_pattern_names_are_alone_and_counted_once(folder, caplog):
    with caplog.at_level(logging.WARNING):
        data = load_dataset(folder, groups=r"scene([12])")
    assert len(data.groups.unique()) == 2 + 16
    assert [record.getMessage() for record in caplog.records] == [
        "--groups scene([12]): 16 of 24 images are in no group, as cat/scene0_0.png; each is one "
        "of its own"
    ]
    optional = folder_groups(list_images(folder), r"scene([12])?")  # found, but not the group
    assert optional.equal(data.groups)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("patient", r"--groups patient matches none of 24 paths, such as cat/scene0_0.png; a reg"),
        ("png", r"--groups png: all 24 images are one group, png"),
        ("(", r"--groups \(: neither a .csv file nor a regular expression: missing \)"),
        ("x" * 201, r"--groups: a pattern of 201 characters, at most 200 are allowed; a .csv"),
        (r"(\w+)+9", r"--groups \(\\w\+\)\+9: a repeat inside of a repeated part can take for ev"),
        ("groups.csv", r"pets/groups.csv: No such file"),
    ],
)
def test_patterns_that_do_not_work(folder, pattern, message):
    with pytest.raises(ValueError, match=message) as error:
        load_dataset(folder, groups=pattern)
    assert "\n" not in str(error.value)


def test_groups_of_one_image_each_change_nothing_and_that_is_said(folder, caplog):
    with caplog.at_level(logging.WARNING):
        data = load_dataset(folder, groups=".*")
    assert len(data.groups.unique()) == 24
    assert "--groups .*: every image is a group of its own, which changes nothing" in caplog.text


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(a+)+", True),
        (r"(?:a*b?)*x", True),
        (r"((a|b)+c){2,}", True),
        (r"(a{1,30}){1,30}", True),
        (r"(x(y(z+)))+", True),
        (r"scene(\d+)", False),
        (r"(\d+)_(\d+)", False),
        (r"(?:[a-z]++_)+(\d+)", False),
        (r"(?P<scene>[^/]+)/[^/]*", False),
        (r"([+*]\+\))+", False),
        (r"(?:[]+*)]x)+", False),
        (r"(?:\d{1,3}-)+", False),
        (r"(a)(b+)", False),
        (r"(a+)b*", False),
    ],
)
def test_repeats_of_repeats_are_seen(pattern, expected):
    re.compile(pattern)
    assert repeats_repeats(pattern) is expected


def test_patterns_that_are_slow_all_the_same_are_given_up(monkeypatch):
    monkeypatch.setattr(module, "MOST_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(ValueError, match="too slow; it was at a"):
        list(matches(r"(a|a)*b", ["a" * 18] * 1000))
    assert time.monotonic() - began < 30


# Tables


def test_tables_with_and_without_a_header(folder, tmp_path):
    tree = list_images(folder)
    names = [file.relative_to(folder).as_posix() for file in tree.files]
    by_scene = [name.split("scene")[1][0] for name in names]
    expected = folder_groups(tree, r"scene(\d)")
    rows = list(zip(names, by_scene, strict=True))
    for suffix, sign in ((".csv", ","), (".tsv", "\t")):
        path = tmp_path / f"groups{suffix}"
        path.write_text("".join(f"{name}{sign}{scene}\n" for name, scene in reversed(rows)))
        assert folder_groups(tree, str(path)).equal(expected)
    lines = [f'7,"{scene}",./{name}\n' for name, scene in rows]
    (tmp_path / "wide.csv").write_text("\ufeffage,Group, File \n" + "\n".join(lines))
    assert folder_groups(tree, str(tmp_path / "wide.csv")).equal(expected)
    back = [f"{name},{scene}\n".replace("/", "\\") for name, scene in rows]
    (folder / "groups.csv").write_text("file,group\n" + "".join(back))
    assert load_dataset(folder, groups="groups.csv").groups.equal(expected)  # lies in the folder


def test_files_that_a_table_leaves_out_are_alone(folder, tmp_path, caplog):
    (tmp_path / "some.csv").write_text(
        "file,group\ncat/scene0_0.png,a\ncat/scene0_1.png,a\ndog/scene1_0.png,\ngone.png,b\n"
    )
    with caplog.at_level(logging.WARNING):
        data = load_dataset(folder, groups=str(tmp_path / "some.csv"))
    assert len(data.groups.unique()) == 23
    assert "22 of 24 images are in no group, as cat/scene0_2.png" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names none of 24 images, such as cat/scene0_0.png; it names none"),
        ("path,patient\nx.png,3\n", "names none of 24 images, .*; it names path"),
        ("cat/scene0_0.png\n", "row 1 has 1; expected the columns file and group"),
        ("a.png,1,2\n", "row 1 has 3; expected the columns file and group"),
        ("file,x,group\na.png,1,2\nb.png,1\n", "row 3 has 2; expected the columns"),
        ("a.png,1\n\na.png,2\n", "row 3 gives a.png another group than a row before"),
        ('a.png,"1\n\0', "line contains NUL|row 1 has|names none"),
    ],
)
def test_tables_that_do_not_work(folder, tmp_path, text, message):
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_dataset(folder, groups=str(tmp_path / "groups.csv"))
    assert "\n" not in str(error.value)


def test_a_table_is_found_from_everywhere_and_moves_with_its_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside.csv").write_text("cat/scene0_0.png,a\ncat/scene0_1.png,a\n")
    (folder / "inside.csv").write_text("cat/scene0_0.png,a\ncat/scene0_1.png,a\n")
    assert kept_groups("outside.csv", "pets") == str(tmp_path / "outside.csv")
    assert kept_groups("inside.csv", "pets") == "inside.csv"
    assert kept_groups("pets/inside.csv", "pets") == "inside.csv"
    assert kept_groups("scene(.)", "pets") == "scene(.)"
    assert DataSpec.from_options("pets").groups is None
    spec = DataSpec.from_options("pets", groups="pets/inside.csv")
    folder.rename(tmp_path / "moved")
    moved = replace(spec, data=str(tmp_path / "moved"))
    assert len(moved.load().groups.unique()) == 23
    assert DataSpec.from_json(moved.to_json()) == moved


def test_links_and_odd_names_can_be_in_groups(folder):
    odd = folder / "cat" / "sc\u00e8ne7_\udcff.png"
    odd.write_bytes((folder / "cat" / "scene0_0.png").read_bytes())
    tree = list_images(folder)
    assert len(folder_groups(tree, r"sc.ne(\d)").unique()) == 6
    with pytest.raises(ValueError, match="matches none") as error:
        folder_groups(tree._replace(files=(odd,), labels=(0,)), "x1")
    str(error.value).encode()  # a message that every terminal can show


def test_bad_files_leave_their_groups(folder):
    before = load_dataset(folder, groups=r"scene(\d)")
    (folder / "cat" / "scene3_1.png").write_bytes(b"")
    after = load_dataset(folder, groups=r"scene(\d)", on_bad_image="skip")
    kept = torch.tensor([file != "cat/scene3_1.png" for file in before.files])
    assert after.groups.equal(before.groups[kept])
    assert after.files == tuple(file for file in before.files if file != "cat/scene3_1.png")


# Arrays


def npz(path, **arrays):
    images = np.arange(12 * 12, dtype=np.uint8).reshape(12, 4, 3, 1).repeat(3, 3)
    np.savez(path, x_train=images, y_train=np.arange(12) % 2, **arrays)
    return path


@pytest.mark.parametrize("name", ["patient", "patient_train", "train_patient"])
@pytest.mark.parametrize("kind", ["int64", "uint8", "<U3", "S3", "column"])
def test_groups_of_an_npz_file(tmp_path, name, kind):
    values = np.arange(12) // 3
    stored = values[:, None] if kind == "column" else values.astype(kind)
    data = load_dataset(npz(tmp_path / "a.npz", **{name: stored}), groups="patient")
    assert data.groups.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(11), r"a.npz: array g: expected .* each of 12 images, got int64 of shape \(11,"),
        (np.arange(12.0), "got float64 of shape"),
        (np.zeros((12, 2), int), r"got int64 of shape \(12, 2\)"),
        (np.zeros(12, int), "all 12 images are one group, 0"),
    ],
)
def test_arrays_that_are_no_groups(tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(npz(tmp_path / "a.npz", g=values), groups="g")


def test_an_array_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(ValueError, match=r"a.npz: --groups: no array h or h_train or .*x_train"):
        load_dataset(npz(tmp_path / "a.npz", g=np.arange(12)), groups="h")


def test_data_sets_by_name_have_no_groups():
    with pytest.raises(ValueError, match=r"--groups x: embedded has none; those of folders"):
        load_dataset(groups="x")
    with pytest.raises(ValueError, match=r"--groups x: cifar10 has none"):
        load_dataset("cifar10", groups="x")


# Python


def test_groups_that_are_given(tmp_path):
    images, labels = torch.zeros(6, 3, 4, 4, dtype=torch.uint8), torch.arange(6) % 2
    for groups in (
        ["b", "b", "a", "a", "c", "c"],
        torch.tensor([9, 9, -1, -1, 4, 4]),
        np.array(["b", "b", "a", "a", "c", "c"], dtype=object),
    ):
        assert as_images((images, labels, groups)).groups.tolist() == [0, 0, 1, 1, 2, 2]
        assert as_images((images, labels), groups).groups.tolist() == [0, 0, 1, 1, 2, 2]
        found = as_images(as_images((images, labels)), groups)
        assert found.groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert as_images((images, labels)).groups is None
    with pytest.raises(ValueError, match=r"groups: expected .* each of 6 images"):
        as_images((images, labels, [1, 2]))
    with pytest.raises(TypeError, match=r"\(images, labels\) or \(images, labels, groups\), got"):
        as_images((images, labels, [1] * 6, 3))
    with pytest.raises(ValueError, match="got object"):
        given_groups([None] * 6, 6, "groups")
