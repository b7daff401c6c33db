from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from bench_stream import (
    PHOTO,
    ResidentImages,
    Work,
    make_photos,
    measure_stream,
    repeated,
    stream_tables,
)
from PIL import Image

from deepaa.cli.bench import print_tables
from deepaa.data import StreamedImages
from deepaa.policy import compared_policy
from deepaa.train import StreamedBatches, TrainConfig

TINY = Work("small", 24, 4, "crop-flip", True, "auto", 1, 2)


def test_a_training_from_files_is_measured_beside_one_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos" / "deep"
    photos.mkdir(parents=True)
    for name in ("a.jpg", "b.JPEG"):
        Image.new("RGB", (90, 60), "green").save(photos / name, "jpeg")
    (photos / "notes.txt").write_text("no photo")
    path, said = tmp_path / "stream.json", []
    report = measure_stream(
        tmp_path / "photos", TINY, device="cpu", minutes=0.001, out=path, say=said.append
    )
    assert report["files"]["count"] == 2
    assert (report["files"]["width"], report["files"]["height"]) == (90, 60)
    rates = report["rates"]
    assert [r["what"] for r in rates] == ["decoding alone", "on the device", "from files"]
    for r in rates:
        assert 0 < r["slowest"] <= r["rate"] <= r["fastest"]
        assert r["epochs"] >= 1
    assert rates[2]["share"] == pytest.approx(rates[2]["rate"] / rates[1]["rate"])
    assert 0 < rates[2]["busy"] <= 1
    assert rates[1]["busy"] is None
    written = json.loads(path.read_text())
    assert written == report
    assert (written["format"], written["options"]["device"]) == ("deepaa-bench-stream", "cpu")
    assert said[0] == "2 photos, 90 x 60, {:.0f} kB".format(report["files"]["kB"])
    assert sorted(p.name for p in (tmp_path / "photos").iterdir()) == ["deep"]  # nothing is left
    print_tables(stream_tables(report), path)
    assert "from files" in capsys.readouterr().out


def test_resident_images_take_the_steps_of_the_files(tmp_path: Path) -> None:
    Image.new("RGB", (90, 60), "green").save(tmp_path / "a.jpg")
    tree = repeated([tmp_path / "a.jpg"], tmp_path / "tree", 20)
    assert sum(1 for _ in tree.rglob("*.jpg")) == 20
    files = StreamedImages(tree, 24, train=True, workers=0, crop="larger", scan=False)
    stand_in = ResidentImages(files, 20, 8)
    config, policy = TrainConfig(batch=8), compared_policy("none", space="imagenet")
    shapes = []
    for images in (files, stand_in):
        batches = StreamedBatches(images, policy, config)  # type: ignore[arg-type]
        shapes.append([(x.shape, x.dtype, len(y)) for x, y in batches.epoch(0)])
    assert shapes[0][:2] == shapes[1] == 2 * [((8, 3, 24, 24), torch.uint8, 8)]


def test_photos_that_cannot_be_linked_are_pointed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    Image.new("RGB", (90, 60), "green").save(tmp_path / "a.jpg")
    monkeypatch.setattr(os, "link", refused)
    tree = repeated([tmp_path / "a.jpg"], tmp_path / "elsewhere" / "tree", 6)
    assert all(path.is_symlink() for path in tree.rglob("*.jpg"))
    files = StreamedImages(tree, 24, train=True, workers=0, scan=False, outside_links=True)
    assert len(next(files.batches(0, 6)).images) == 6


def test_made_photos_are_like_those_of_imagenet(tmp_path: Path) -> None:
    made = make_photos(tmp_path, 3)
    for path in made:
        with Image.open(path) as photo:
            assert photo.size == PHOTO
        assert 80_000 < path.stat().st_size < 160_000


def test_folders_without_photos_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no JPEG files"):
        measure_stream(tmp_path, TINY, device="cpu", minutes=0.001)
    with pytest.raises(ValueError, match="no such folder"):
        measure_stream(tmp_path / "x", TINY, device="cpu", minutes=0.001)
