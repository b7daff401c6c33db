"""Tables, shards and data sets of Hugging Face as a person gives them to `--data`."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from blobs import blobs
from packed import png, write_csv, write_tar
from PIL import Image

import deepaa
from deepaa.cli import app as cli
from deepaa.data import DataSpec
from deepaa.report.pictures import find_originals
from deepaa.runs import read_config
from deepaa.train.experiment import policy_hash

find_policy = partial(deepaa.find_policy, contest=False)
TINY = (
    *("--preset", "demo", "--epochs", "1", "--steps", "1", "--layers", "1", "--ops", "flip"),
    *("--set", "heldout=4", "--set", "images=2", "--set", "validation=8", "--set", "chains=16"),
    *("--set", "converged=1", "--set", "least_passes=1", "--device", "cpu", "--contest", "off"),
)
TRAIN = ("--model", "small", "--epochs", "1", "--batch", "32", "--device", "cpu")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str, str]]:
    """Name, class, part and scene of 200 pictures in the folder photos of the current folder."""
    rows = []
    (tmp_path / "photos").mkdir()
    for i, (image, label) in enumerate(zip(*blobs(200, 1), strict=True)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "photos" / f"{i:03}.png")
        part = "train" if i < 160 else "test"
        rows.append((f"photos/{i:03}.png", "abcd"[int(label)], part, f"scene {i // 8}"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    return rows


@pytest.fixture
def table(photos: Any) -> Path:
    return write_csv(Path("photos.csv"), "file,species,split,scene", photos)


@pytest.fixture
def shards(photos: Any) -> Path:
    for part in ("train", "test"):
        files = {}
        for name, label, of, scene in photos:
            if of == part:
                key = Path(name).stem
                files[f"{key}.png"] = Path(name).read_bytes()
                files[f"{key}.json"] = json.dumps({"label": label, "scene": scene}).encode()
        write_tar(Path("shards", f"{part}-0.tar"), files)
    return Path("shards")


def results(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(run) / "results.json").read_text())
    return found


def test_a_table_is_searched_and_the_search_goes_on(table: Path, run_cli: Any) -> None:
    given = (*TINY, "--data", table, "--groups", "scene")
    code, out, err = run_cli("search", *given, "--dry-run")
    assert code == 0, err
    assert "photos: 160 images of 3 x 16 x 16, 4 classes, 20 groups" in out
    code, _, err = run_cli("search", *given, "--out", "run")
    assert code == 0, err
    source = read_config(Path("run"))["source"]["data"]
    assert source["data"] == str(table.resolve())
    assert run_cli("search", "--resume", "run")[0] == 0
    table.rename("moved.csv")
    code, _, err = run_cli("search", "--resume", "run", "--data", "moved.csv")
    assert code == 0, err
    code, _, err = run_cli("preview", "run/policy.json", "--data", "moved.csv", "--out", "a.png")
    assert code == 0, err


def test_columns_are_kept_by_a_run(photos: Any, run_cli: Any) -> None:
    rows = [(name, i, label) for i, (name, label, *_) in enumerate(photos)]
    write_csv(Path("t.csv"), "what,label,kind", rows)
    code, _, err = run_cli("search", *TINY, "--data", "t.csv", "--out", "run")
    assert code == 2
    assert "no column of paths such as image or path; it has what, label, kind. Say which" in err
    columns = ("--columns", "path=what,label=kind")
    code, _, err = run_cli("search", *TINY, "--data", "t.csv", *columns, "--out", "run")
    assert code == 0, err
    assert run_cli("search", "--resume", "run")[0] == 0
    shown = find_originals(read_config(Path("run")), 4)
    assert shown.origin == "Images of the search: t.csv."
    code, _, err = run_cli("train", *TRAIN, "--policy", "none", "--data", "t.csv", *columns)
    assert code == 0, err
    assert run_cli("train", "--resume", "run", "--seeds", 2)[0] == 2  # that is a search


def test_columns_are_named_where_images_are_only_shown(
    photos: Any, run_cli: Any, tmp_path: Path
) -> None:
    """Pictures, comparisons and pages take the tables that a search takes."""
    rows = [(name, i, label) for i, (name, label, *_) in enumerate(photos)]
    write_csv(Path("t.csv"), "what,label,kind", rows)
    write_csv(Path("usual.csv"), "path,class", [(name, label) for name, _, label in rows])
    columns = ("--columns", "path=what,label=kind")
    commands = (
        ("preview", "deepta", "--out", "{}.png"),
        ("compare", "deepta", "randaugment", "--samples", "{}.png"),
        ("report", "deepta", "--out", "{}.html"),
    )
    for command in commands:
        made = []
        for data, more in (("t.csv", columns), ("usual.csv", ())):
            given = (word.format(data) for word in command)
            code, _, err = run_cli(*given, "--data", data, *more)
            assert code == 0, err
            made.append(Path(command[-1].format(data)))
        if made[0].suffix == ".png":
            assert made[0].read_bytes() == made[1].read_bytes()
        else:
            pages = [re.findall(r"data:image/png;base64,[^\"']*", p.read_text()) for p in made]
            assert len(pages[0]) > 20
            assert pages[0] == pages[1]
            assert "Images of each class cannot be shown" not in made[0].read_text()
        some = (word.format("x") for word in command)
        code, _, err = run_cli(*some, "--data", "t.csv")
        assert code == 2
        assert "no column of paths such as image or path; it has what, label, kind. Say" in err
        some = (word.format("x") for word in command)
        assert (
            run_cli(*some, *columns)[2]
            == "error: --columns path=what,label=kind goes with --data\n"
        )
        some = (word.format("x") for word in command)
        code, _, err = run_cli(*some, *columns, "--data", "photos")
        assert (code, "photos has no columns" in err) == (2, True), err


def test_a_table_and_shards_train_alike(table: Path, shards: Path, run_cli: Any) -> None:
    found = []
    for data, out in ((table, "a"), ("shards", "b"), ("shards/{train,test}-0.tar", "c")):
        given = ("--data", data, *TRAIN, "--policy", "crop-flip", "--out", out)
        code, _, err = run_cli("train", *given)
        assert code == 0, err
        found.append(results(out))
    assert found[0]["images"]["test_images"] == 40
    assert found[0]["images"]["fingerprint"] == found[1]["images"]["fingerprint"]
    assert found[0]["seeds"][0]["accuracy"] == found[1]["seeds"][0]["accuracy"]
    assert found[1]["seeds"][0]["accuracy"] == found[2]["seeds"][0]["accuracy"]


def test_they_stream_alike(table: Path, shards: Path, run_cli: Any) -> None:
    found = []
    for data, out in ((table, "a"), ("shards", "b")):
        given = ("--data", data, "--stream", "--size", 16, "--workers", 0, *TRAIN)
        code, _, err = run_cli("train", *given, "--policy", "crop-flip", "--out", out)
        assert code == 0, err
        found.append(results(out)["seeds"][0]["accuracy"])
        code, _, err = run_cli("train", "--resume", out, "--seeds", 2, "--workers", 0)
        assert code == 0, err
        assert json.loads((Path(out) / "scan.json").read_text())["train"]["files"] == 160
    assert found[0] == found[1]


def test_what_is_wrong_is_one_line(table: Path, shards: Path, run_cli: Any) -> None:
    write_tar(Path("bare.tar"), {f"{i}.png": png() for i in range(3)})
    cut = Path("cut.tar")
    cut.write_bytes(Path("shards/train-0.tar").read_bytes()[:5000])
    text = table.read_text()
    Path("empty.csv").write_text(re.sub(r"(.*7\.png),[a-d],", r"\1,,", text))
    Path("gone.csv").write_text(text.replace("photos/007", "photos/x07"))
    Path("x.tar.gz").touch()
    for data, why in (
        ("bare.tar", "bare.tar: images without labels: sample 0 has png"),
        ("cut.tar", "cut.tar: cut short: "),
        ("empty.csv", "empty.csv: row 9: no label"),
        ("gone.csv", "gone.csv: 1 of 160 files is bad (1 missing): photos/x07.png (No such"),
        ("shards/train-{0..3}.tar", "no shard "),
        ("x.tar.gz", "x.tar.gz: shards must be plain .tar: unpack with gunzip first"),
    ):
        code, out, err = run_cli("search", *TINY, "--data", data, "--out", "run")
        assert (code, out) == (2, ""), err
        lines = [line for line in err.splitlines() if not line.startswith(("reading", "listing"))]
        assert len(lines) == 1, err
        assert why in lines[0]
    assert not Path("run").exists()
    code, _, err = run_cli("contest", "--data", "gone.csv", "--on-bad-image", "skip", "--dry-run")
    assert code == 0, err


def test_find_policy_takes_tables_and_rows(table: Path, photos: Any) -> None:
    small: dict[str, Any] = {"preset": "demo", "epochs": 1, "steps": 1, "layers": 1, "ops": "flip"}
    small |= {"heldout": 4, "images": 2, "validation": 8, "chains": 16}
    small |= {"device": "cpu"}
    found = find_policy(table, groups="scene", **small)
    said = find_policy(table, columns="group=scene", **small)
    assert policy_hash(said) == policy_hash(found)
    datasets = pytest.importorskip("datasets")
    some = [row for row in photos if row[2] == "train"]
    images = [{"bytes": Path(row[0]).read_bytes(), "path": None} for row in some]
    rows = {"image": images, "label": [row[1] for row in some], "scene": [row[3] for row in some]}
    data = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    assert policy_hash(find_policy(data, groups="scene", **small)) == policy_hash(found)
    with pytest.raises(ValueError, match="columns 'label=a': tuple has none"):
        find_policy((None, None), columns="label=a")
    assert DataSpec.from_options(table, columns="group=scene").load().groups is not None
