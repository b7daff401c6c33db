"""Which files are read: found once, by all processes together, and known again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from forks import TORCH, Program, as_ranks, in_forks
from PIL import Image

from deepaa import checked_files, scan
from deepaa.folder import list_images
from deepaa.image_files import DEFAULT_READING
from deepaa.scan import BadImagesError, ScanReport
from deepaa.streaming import StreamedImages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """400 small images, two of them web pages."""
    picture = Image.new("RGB", (6, 5), (90, 60, 30))
    for part, count in (("train", 400), ("val", 20)):
        for i in range(count):
            place = tmp_path / "tree" / part / "ab"[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            picture.save(place / f"{i:03}.png")
    for name in ("train/b/007.png", "train/a/200.png"):
        (tmp_path / "tree" / name).write_text("<html>")
    return tmp_path / "tree"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that a scan decodes from now on."""
    seen: list[Path] = []
    plain = scan.read_image

    def counted(path: Path, reading: Any) -> Any:
        seen.append(path)
        return plain(path, reading)

    monkeypatch.setattr(scan, "read_image", counted)
    return seen


def images(folder: Path, **options: Any) -> StreamedImages:
    settings = {"train": True, "workers": 0, "on_bad_image": "skip", **options}
    return StreamedImages(folder, 8, **settings)


def through_json(value: object) -> Any:
    return json.loads(json.dumps(value))


def test_a_scan_is_known_again(folder: Path, decoded: list[Path]) -> None:
    first = images(folder)
    assert len(decoded) == 400
    known = through_json(first.scanned())
    decoded.clear()
    again = images(folder, known=known)
    assert not decoded
    assert again.report == first.report
    assert len(again) == len(first) == 398
    assert again.fingerprint == first.fingerprint
    assert through_json(again.scanned()) == known
    with pytest.raises(BadImagesError, match="2 of 400 files are bad"):
        images(folder, known=known, on_bad_image="stop")
    # the scan may be switched off where it is known
    assert len(images(folder, known=known, scan=False)) == 398


def test_other_files_are_scanned_again(folder: Path, decoded: list[Path]) -> None:
    known = through_json(images(folder).scanned())
    good = folder / "train/a/000.png"

    def grow() -> None:
        good.write_bytes(good.read_bytes() + b"\0")

    def move() -> None:
        good.rename(folder / "train/b/000.png")

    def rename() -> None:
        (folder / "train/b/000.png").rename(folder / "train/b/x.png")

    def add() -> None:
        Image.new("RGB", (5, 5)).save(folder / "train/a/new.png")

    for change in (grow, move, rename, add):
        decoded.clear()
        change()
        found = images(folder, known=known)
        assert len(decoded) == len(found) + 2, change
        known = through_json(found.scanned())
        decoded.clear()
        images(folder, known=known)
        assert not decoded


@pytest.mark.parametrize("spoil", [{"bad": 3}, {"files": "x"}, {"bad": [["a", "no reason", ""]]}])
def test_a_spoilt_record_is_no_obstacle(folder: Path, decoded: list[Path], spoil: Any) -> None:
    known = {**through_json(images(folder).scanned()), **spoil}
    decoded.clear()
    for stored in (known, {}):
        assert len(images(folder, known=stored)) == 398
    assert len(decoded) == 800


def test_without_a_scan_nothing_is_decoded(folder: Path, decoded: list[Path]) -> None:
    stream = images(folder, scan=False, on_bad_image="stop")
    assert not decoded
    assert (len(stream), stream.report, stream.scanned()) == (400, None, None)
    with pytest.raises(ValueError, match="on_bad_image='skip' needs a scan"):
        images(folder, scan=False)


def test_bad_files_that_stop_are_named_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BadImagesError, match="2 of 400 files are bad"):
        images(folder, on_bad_image="stop")
    assert "files are bad" not in caplog.text
    images(folder)
    assert caplog.text.count("2 of 400 files are bad") == 1


def test_reports_survive_json_with_any_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (2, 2)).save(tmp_path / name / "0.png")
    odd = os.fsdecode(b"\xff\nx.png")
    (tmp_path / "a" / odd).write_text("")
    report = scan.scan_images(list_images(tmp_path))
    assert ScanReport.of(through_json(report.document()), report.place) == report
    assert report.bad[0].path.name == odd


def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(48)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert scan.own_cores(64) == 48
    for beside, threads in (("8", 6), ("100", 1), ("", 48)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", beside)
        assert scan.own_cores(64) == threads


# Two processes


def report_from_here(folder: Path) -> None:
    """What one process of two does: scan, know it again, and print both."""
    from deepaa import distributed

    distributed.init("cpu", timeout=60)
    seen = []
    plain = scan.read_image
    scan.read_image = lambda path, reading: (seen.append(path), plain(path, reading))[1]  # type: ignore[assignment]
    first = images(folder)
    count = len(seen)
    # one process alone cannot have others scan again: it says so, and both do
    known = first.scanned() if distributed.is_main() else {}
    again = images(folder, known=known)
    same = images(folder, known=first.scanned())
    found = {
        "decoded": [count, len(seen)],
        "bad": [str(file.path) for file in first.report.bad],  # type: ignore[union-attr]
        "lengths": [len(first), len(again), len(same)],
        "fingerprint": first.fingerprint,
    }
    sys.stdout.write(json.dumps(found))
    distributed.shutdown()


def test_processes_share_a_scan(folder: Path) -> None:
    program = Program(file=__file__, arguments=(str(folder),))
    done = in_forks(as_ranks(program), together=True, modules=TORCH)
    assert [each.returncode for each in done] == [0, 0], done
    found = [json.loads(each.stdout) for each in done]
    for each in found:
        assert each["decoded"] == [200, 400]  # its half of the files, twice
        assert each["bad"] == ["train/a/200.png", "train/b/007.png"]
        assert each["lengths"] == [398, 398, 398]
    assert found[0]["fingerprint"] == found[1]["fingerprint"] == images(folder).fingerprint
    assert "2 of 400 files are bad" in done[0].stderr
    assert "files are bad" not in done[1].stderr  # said once


def test_the_record_is_what_the_check_takes(folder: Path) -> None:
    tree = list_images(folder, "train")
    report = scan.scan_images(tree)
    options: dict[str, Any] = {"scan": False, "on_bad": "skip"}
    kept = checked_files.check_files(
        tree,
        DEFAULT_READING,
        known=checked_files.record(report, images(folder).fingerprint),
        **options,
    )
    assert kept.report == report
    assert len(kept.tree.files) == 398


if __name__ == "__main__":
    report_from_here(Path(sys.argv[1]))
