"""Which files of a folder are images of which class: names, links, layouts."""

import os

import pytest

from deepaa.data.folder import list_images


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"never opened")


def found(tree):
    return [
        (str(file.relative_to(tree.root)), tree.class_names[label])
        for file, label in zip(tree.files, tree.labels, strict=True)
    ]


@pytest.fixture
def pets(tmp_path):
    for name in ("dog/2.png", "dog/1.JPG", "cat/deep/er/3.webp", "cat/z.png"):
        touch(tmp_path / name)
    return tmp_path


def test_classes_are_folders_in_a_stable_order(pets):
    tree = list_images(pets)
    assert tree.class_names == ("cat", "dog")
    assert found(tree) == [
        ("cat/deep/er/3.webp", "cat"),
        ("cat/z.png", "cat"),
        ("dog/1.JPG", "dog"),
        ("dog/2.png", "dog"),
    ]
    assert tree.ignored == {}


def test_other_files_are_counted(pets):
    for name in (".DS_Store", "cat/.hidden.png", ".git/a.png", "cat/.cache/b.png"):
        touch(pets / name)
    for name in ("README.md", "dog/labels.csv"):
        touch(pets / name)
    touch(pets / "stray.png")
    tree = list_images(pets)
    assert len(tree.files) == 4
    assert tree.ignored == {"hidden": 4, "other suffix": 2, "outside a class folder": 1}


def test_odd_names(tmp_path):
    long = "x" * 251 + ".png"
    for name in ("with space.png", "Ünïcödé 图.png", "new\nline.png", long):
        touch(tmp_path / "klasse é\n1" / name)
        touch(tmp_path / ("y" * 255) / name)
    os.close(os.open(os.fsencode(tmp_path) + b"/" + b"y" * 255 + b"/\xff.png", os.O_CREAT))
    tree = list_images(tmp_path)
    assert tree.class_names == ("klasse é\n1", "y" * 255)
    assert len(tree.files) == 9
    assert all(file.is_file() for file in tree.files)


# Parts


@pytest.fixture
def parted(tmp_path):
    for name in ("train/cat/1.png", "train/dog/1.png", "train/owl/1.png"):
        touch(tmp_path / name)
    for name in ("test/owl/1.png", "test/dog/1.png"):
        touch(tmp_path / name)
    return tmp_path


def test_split_picks_the_part_and_train_names_the_classes(parted):
    assert len(list_images(parted).files) == 3
    tree = list_images(parted, "test")
    assert tree.class_names == ("cat", "dog", "owl")
    assert found(tree) == [("test/dog/1.png", "dog"), ("test/owl/1.png", "owl")]
    assert list_images(parted / "test").class_names == ("dog", "owl")


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_validation_serves_as_test(parted, name):
    (parted / "test").rename(parted / name)
    assert len(list_images(parted, "test").files) == 2
    (parted / name).rename(parted / "other")
    with pytest.raises(ValueError, match=r"train hold folders .* but other beside them"):
        list_images(parted, "test")


def test_a_test_part_without_labels_is_left_alone(parted, caplog):
    (parted / "test").rename(parted / "val")
    touch(parted / "test" / "1.png")
    assert len(list_images(parted).files) == 3
    tree = list_images(parted, "test")
    assert found(tree) == [("val/dog/1.png", "dog"), ("val/owl/1.png", "owl")]
    assert [record.getMessage() for record in caplog.records] == [
        f"{parted}: test holds images but no class folders, so it is left alone; the test images "
        "are those of val"
    ]
    caplog.clear()
    touch(parted / "test" / "cat" / "1.png")
    assert found(list_images(parted, "test")) == [("test/cat/1.png", "cat")]
    assert not caplog.records


def test_without_labels_there_is_no_test_part(parted, caplog):
    (parted / "test").rename(parted / "elsewhere")
    touch(parted / "val" / "1.png")
    (parted / "elsewhere").rename(parted / ".elsewhere")
    list_images(parted)
    assert not caplog.records
    with pytest.raises(ValueError, match="no test part; it has train; no class folders in val"):
        list_images(parted, "test")


def test_a_class_that_train_lacks(parted):
    touch(parted / "test" / "yak" / "1.png")
    with pytest.raises(ValueError, match="test: yak is not among the classes of train"):
        list_images(parted, "test")


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "ship", "car"):
        touch(tmp_path / name / "1.png")
    assert list_images(tmp_path).class_names == ("car", "ship", "train")


def test_parts_or_classes_but_not_both(parted):
    (parted / "annotations").mkdir()
    touch(parted / "annotations" / "boxes.json")
    assert len(list_images(parted).files) == 3
    touch(parted / "ship" / "1.png")
    with pytest.raises(ValueError, match=r"train, test hold folders .* but ship beside them"):
        list_images(parted)


def test_without_parts_all_is_train(pets):
    with pytest.raises(ValueError, match="no test part"):
        list_images(pets, "test")


# Missing things


def test_empty_classes_are_named(pets):
    (pets / "eel").mkdir()
    touch(pets / "fox" / "notes.txt")
    with pytest.raises(ValueError, match="no images for 2 of 4 classes: eel, fox; looked"):
        list_images(pets)


def test_one_class_is_too_few(tmp_path):
    touch(tmp_path / "cat" / "1.png")
    with pytest.raises(ValueError, match="only one class, cat"):
        list_images(tmp_path)


def test_no_classes(tmp_path):
    with pytest.raises(ValueError, match="no class folders"):
        list_images(tmp_path)
    touch(tmp_path / "1.png")
    with pytest.raises(ValueError, match="1 image but no class folders"):
        list_images(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list_images(tmp_path / "nowhere")


def test_parts_without_classes_are_not_classes(tmp_path):
    touch(tmp_path / "train" / "1.png")
    touch(tmp_path / "test" / "1.png")
    with pytest.raises(ValueError, match="test, train hold images directly"):
        list_images(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("Testing", "Training"),
        ("TEST", "Train"),
        ("test_images", "train_images"),
        ("val-set", "train-set"),
        ("seg_pred", "seg_test", "seg_train"),
        ("images.test", "images.train", "other"),
    ],
)
def test_parts_by_other_names_are_not_taken_for_classes(tmp_path, names):
    for name in names:
        touch(tmp_path / name / "1.png")
    message = "are parts of a data set by their names, and would be taken for classes; "
    with pytest.raises(ValueError, match=message) as error:
        list_images(tmp_path)
    assert str(error.value).endswith("; name them train and test, with a folder for each class "
                                     "inside of them")  # fmt: skip
    for name in names:
        touch(tmp_path / name / "cat" / "1.png")
        touch(tmp_path / name / "dog" / "1.png")
    train = next(name for name in names if "train" in name.lower())
    with pytest.raises(ValueError, match=f"; give one of them, --data .*/{train}, or name them"):
        list_images(tmp_path)
    assert list_images(tmp_path / train).class_names == ("cat", "dog")
    for table in ("sample.csv", "train.csv"):
        (tmp_path / table).write_text("id,label")
    with pytest.raises(ValueError, match=r"; give its table: --data .*/train\.csv$"):
        list_images(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("bus", "car", "train"),
        ("test negative", "test positive"),
        ("steam train", "test track"),
        ("flight_training", "training_ground"),
        ("train", "validated", "tested"),
    ],
)
def test_classes_may_be_called_much_as_parts(tmp_path, names):
    for name in names:
        touch(tmp_path / name / "1.png")
    assert list_images(tmp_path).class_names == tuple(sorted(names))


# Links


def test_link_loops_end_and_are_counted(pets):
    (pets / "cat" / "self").symlink_to(pets / "cat")
    (pets / "cat" / "deep" / "up").symlink_to("..")
    (pets / "dog" / "all").symlink_to(pets)
    (pets / "everything").symlink_to(pets)
    (pets / "itself").symlink_to(pets / "itself")
    tree = list_images(pets)
    assert tree.class_names == ("cat", "dog")
    assert len(tree.files) == 4
    assert tree.ignored == {"linked again": 4, "other suffix": 1}


def test_links_inside_are_followed(pets):
    (pets / "dog" / "3.png").symlink_to(pets / "dog" / "2.png")
    (pets / "puppy").symlink_to("dog")
    assert len(list_images(pets).files) == 8


def test_links_that_lead_out_are_refused(pets, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    touch(outside / "cow" / "1.png")
    (pets / "dog" / "3.png").symlink_to(outside / "cow" / "1.png")
    (pets / "dog" / "gone.png").symlink_to(outside / "never")
    (pets / "cow").symlink_to(outside / "cow")
    with pytest.raises(ValueError, match="3 links lead out of the folder: ") as caught:
        list_images(pets)
    assert "allow it with --outside-links (outside_links=True in Python)" in str(caught.value)
    for name in ("dog/3.png", "dog/gone.png", "cow"):
        assert str(pets / name) in str(caught.value)
    tree = list_images(pets, outside_links=True)
    assert tree.class_names == ("cat", "cow", "dog")
    assert len(tree.files) == 7


def test_a_part_that_is_a_link_out(pets, tmp_path_factory):
    holder = tmp_path_factory.mktemp("holder")
    (holder / "train").symlink_to(pets)
    with pytest.raises(ValueError, match=f"1 links lead out of the folder: {holder}/train;"):
        list_images(holder)
    assert len(list_images(holder, outside_links=True).files) == 4
    given = tmp_path_factory.mktemp("given") / "link"
    given.symlink_to(pets)  # what the user gives is the root, link or not
    assert len(list_images(given).files) == 4
