"""Every bad file of a folder is found, named and counted; good ones come out as one array."""

import json
import os
import struct
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import TORCH, Program, as_ranks, in_forks
from PIL import Image

from deepaa.data import scan
from deepaa.data.embedded import load_embedded
from deepaa.data.folder import list_images
from deepaa.data.image_file import Reading, Reason
from deepaa.data.load import load_dataset, load_images
from deepaa.data.scan import BadImagesError, ScanReport, read_images, scan_images
from deepaa.data.streaming import StreamedImages


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path, **options)


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.fixture
def good(tmp_path):
    for name in ("cat", "dog"):
        for i in range(3):
            save(tmp_path / name / f"{i}.png", np.full((6, 8, 3), 10 * i, np.uint8))
    return tmp_path


def cut(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])


def bomb(path, side):
    def chunk(kind, content):
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b""))


def spoil(folder):
    """One file for each reason, and more."""
    save(folder / "cut.jpg", noise(64, 64, 3))
    cut(folder / "cut.jpg", 0.5)
    save(folder / "end.png", noise(64, 64, 3))
    cut(folder / "end.png", 0.98)
    (folder / "empty.png").write_bytes(b"")
    (folder / "page.jpg").write_text("<!doctype html><title>404</title>")
    bomb(folder / "bomb.png", 9000)
    bomb(folder / "huge.png", 20_000)
    Image.fromarray(np.ones((3, 3), np.float32)).save(folder / "float.tif")
    (folder / "gone.png").symlink_to(folder / "nothing.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    os.mkfifo(folder / "pipe.png")


REASONS = {
    "cut.jpg": Reason.DAMAGED,
    "end.png": Reason.DAMAGED,
    "empty.png": Reason.EMPTY,
    "page.jpg": Reason.NOT_AN_IMAGE,
    "bomb.png": Reason.TOO_MANY_PIXELS,
    "huge.png": Reason.TOO_MANY_PIXELS,
    "float.tif": Reason.NO_PIXEL_RANGE,
    "gone.png": Reason.UNREADABLE,
    "loop.png": Reason.UNREADABLE,
    "pipe.png": Reason.UNREADABLE,
}


def test_a_scan_names_every_bad_file_with_its_reason(good):
    spoil(good / "dog")
    limit, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = scan_images(list_images(good))
    assert {file.path.name: file.reason for file in report.bad} == REASONS
    assert report.files == 16
    summary = report.bad_summary()
    assert summary.startswith("10 of 16 files are bad (3 unreadable, 2 ")
    counts = ("2 damaged", "2 too-many-pixels", "1 empty", "1 not-an-image", "1 no-pixel-range")
    assert all(f", {count}" in summary for count in counts)
    assert limit == Image.MAX_IMAGE_PIXELS
    assert filters == warnings.filters


def test_reading_stops_with_the_list(good):
    spoil(good / "dog")
    for i in range(3):
        (good / "cat" / f"void {i}\n.png").write_bytes(b"")
    with pytest.raises(BadImagesError, match=r"13 of 19 files are bad \(4 empty, 3 unr") as caught:
        read_images(list_images(good))
    message = str(caught.value)
    assert "\n" not in message
    assert "void 0\\n.png" in message
    assert "dog/cut.jpg (image file is truncated" in message
    assert message.endswith("; and 3 more. Repair or remove them")
    assert len(caught.value.report.bad) == 13


def test_skipping_is_advised_only_where_it_may_be_done(good):
    for name in ("cat/0.png", "cat/1.png", "dog/0.png"):
        (good / name).write_bytes(b"")
    with pytest.raises(BadImagesError, match=r"--on-bad-image skip \(on_bad_image"):
        read_images(list_images(good))
    (good / "dog/0.png").unlink()
    (good / "cat/2.png").write_bytes(b"")
    with pytest.raises(BadImagesError, match=r"\. Repair or remove them$"):
        read_images(list_images(good))


def test_a_bomb_takes_no_memory(good):
    import resource

    bomb(good / "dog" / "bomb.png", 13_000)  # 507 MB if it were decoded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = scan_images(list_images(good))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert "over the limit of 64,000,000" in report.bad[0].detail


def test_the_limit_is_the_callers(good):
    assert not scan_images(list_images(good), Reading(max_pixels=48)).bad
    assert len(scan_images(list_images(good), Reading(max_pixels=47)).bad) == 6


def test_one_of_a_few_files_may_be_skipped(good):
    (good / "cat" / "1.png").write_bytes(b"")
    tree = list_images(good)
    images, kept, report = read_images(tree, on_bad_image="skip")
    assert images.shape == (5, 3, 6, 8)
    assert images[:, 0, 0, 0].tolist() == [0, 20, 0, 10, 20]
    assert kept.labels == (0, 0, 1, 1, 1)
    assert report.bad[0].path.parts == ("cat", "1.png")
    assert report.lines() == ["1 of 6 files is bad (1 empty): cat/1.png (empty file)"]


def test_skipping_is_limited(good):
    for name in ("cat/0.png", "cat/1.png", "dog/0.png"):
        (good / name).write_bytes(b"")
    assert len(read_images(list_images(good), on_bad_image="skip")[0]) == 3
    (good / "dog/1.png").write_bytes(b"")
    with pytest.raises(BadImagesError, match=r"4 of 6 .* At most 3 of 6 may be skipped \(3 files"):
        read_images(list_images(good), on_bad_image="skip")


@pytest.mark.parametrize(("files", "most"), [(1, 3), (99, 3), (399, 3), (400, 4), (12_345, 123)])
def test_a_few_files_or_one_in_a_hundred_may_be_skipped(files, most):
    assert scan.most_skipped(files) == most


def test_what_is_skipped_leaves_the_others_in_order(tmp_path):
    for i in range(200):
        save(tmp_path / "ab"[i % 2] / f"{i:03}.png", np.full((4, 4, 3), i, np.uint8))
    for i in (3, 130):
        (tmp_path / "ab"[i % 2] / f"{i:03}.png").write_bytes(b"?")
    images, kept, _ = read_images(list_images(tmp_path), on_bad_image="skip")
    values = [*(i for i in range(0, 200, 2) if i != 130), *(i for i in range(1, 200, 2) if i != 3)]
    assert images[:, 0, 0, 0].tolist() == values
    assert kept.labels == (0,) * 99 + (1,) * 99


def test_a_class_may_not_be_skipped_away(good):
    save(good / "eel" / "0.png", noise(6, 8, 3))
    cut(good / "eel" / "0.png", 0.5)
    with pytest.raises(BadImagesError, match="no images are left of eel"):
        read_images(list_images(good), on_bad_image="skip")


def test_settings_are_checked(good):
    with pytest.raises(ValueError, match="should be stop or skip, got 'ignore'"):
        load_dataset(good, on_bad_image="ignore")


# Modes and EXIF in one folder


def test_every_mode_has_one_result(tmp_path):
    folder = tmp_path / "a"
    grey = np.full((4, 4), 100, np.uint8)
    save(folder / "1 L.png", grey)
    save(folder / "2 16.png", np.full((4, 4), 100 * 257, np.uint16))
    save(folder / "3 LA.png", np.stack([grey, np.full_like(grey, 0)], 2))
    save(folder / "4 RGBA.png", np.stack([grey, grey, grey, np.full_like(grey, 255)], 2))
    palette = Image.fromarray(grey).convert("P")
    palette.save(folder / "5 P.png", transparency=bytes(256))
    Image.new("1", (4, 4), 1).save(folder / "6 1.png")
    Image.new("CMYK", (4, 4), (0, 0, 0, 0)).save(folder / "7 CMYK.jpg")
    frames = [Image.new("RGB", (4, 4), (v, v, v)) for v in (255, 0)]
    frames[0].save(folder / "8.gif", save_all=True, append_images=frames[1:])
    save(tmp_path / "b" / "0.png", grey)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _, _ = read_images(list_images(tmp_path))
        blue, _, _ = read_images(list_images(tmp_path), reading=Reading(alpha_colour=(0, 0, 255)))
    assert found[:, 0, 0, 0].tolist() == [100, 100, 255, 100, 255, 255, 255, 255, 100]
    assert (found == found[:, :1, :1, :1]).all()
    assert blue[2, :, 0, 0].tolist() == blue[4, :, 0, 0].tolist() == [0, 0, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_unless_told_not_to(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in "ab":
        save(tmp_path / name / "0.png", noise(4, 6, 3), exif=exif)
    tree = list_images(tmp_path)
    turned, _, _ = read_images(tree)
    assert turned.shape[2:] == ((6, 4) if orientation > 4 else (4, 6))
    stored, _, _ = read_images(tree, reading=Reading(apply_exif=False))
    assert np.array_equal(stored[0].transpose(1, 2, 0), noise(4, 6, 3))


def test_damaged_exif_is_noted_once(tmp_path):
    bad = Image.Exif()
    bad[0x0112] = 99
    for i, exif in enumerate([b"Exif\x00\x00garbage", b"Exif\x00\x00II*\x00\xff\xff\xff\xff", bad]):
        save(tmp_path / "a" / f"{i}.jpg", noise(4, 6, 3), exif=exif)
    save(tmp_path / "b" / "0.jpg", noise(4, 6, 3))
    _, _, report = read_images(list_images(tmp_path))
    assert report.damaged_exif == 3
    assert report.lines() == ["the EXIF data of 3 images are damaged, and turn nothing"]


# A few images of a source


def test_without_a_source_the_embedded_images_come():
    assert torch.equal(load_images(limit=7), load_embedded().train_images[:7])
    assert load_images(None, 2, size=48).shape == (2, 3, 48, 48)


def test_one_file_keeps_its_pixels_and_size(tmp_path):
    pixels = noise(9, 14, 3)
    save(tmp_path / "a.png", pixels)
    assert np.array_equal(load_images(tmp_path / "a.png")[0].permute(1, 2, 0).numpy(), pixels)


def test_a_folder_is_sorted_nested_and_sampled_evenly(tmp_path):
    for i, folder in enumerate("abc"):
        for j in range(4):
            save(
                tmp_path / folder / "deep" / f"{j}.png",
                np.full((5, 5, 3), 10 * (4 * i + j), np.uint8),
            )
    (tmp_path / "notes.txt").write_text("not an image, and not taken for one")
    (tmp_path / ".hidden.png").write_text("")
    values = load_images(tmp_path, 12)[:, 0, 0, 0].tolist()
    assert values == [10 * k for k in range(12)]
    assert load_images(tmp_path, 3)[:, 0, 0, 0].tolist() == [0, 40, 80]


def test_a_link_that_leads_back_ends(tmp_path):
    save(tmp_path / "in" / "a.png", noise(4, 4, 3))
    (tmp_path / "in" / "loop").symlink_to(tmp_path)
    assert load_images(tmp_path, 8).shape == (1, 3, 4, 4)


def test_odd_names_work(tmp_path):
    for name in ("with space.png", "Ünïcödé 图.PNG", "new\nline.jpeg"):
        save(tmp_path / name, noise(6, 6, 3), format="PNG")
    assert len(load_images(tmp_path)) == 3


def test_mixed_sizes_become_squares(tmp_path):
    save(tmp_path / "a.png", noise(30, 50, 3))
    save(tmp_path / "b.png", noise(60, 40, 3))
    assert load_images(tmp_path).shape == (2, 3, 28, 28)
    assert load_images(tmp_path, size=20).shape == (2, 3, 20, 20)


def test_the_middle_is_cut_out(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    save(tmp_path / "a.png", wide)
    assert load_images(tmp_path / "a.png", size=10).eq(200).all()


def test_arrays(tmp_path):
    rgb, grey = noise(6, 8, 7, 3), noise(6, 8, 7)
    np.savez(tmp_path / "rgb.npz", x=rgb, y=np.arange(6))
    np.savez(tmp_path / "grey.npz", images=grey)
    assert np.array_equal(load_images(tmp_path / "rgb.npz").permute(0, 2, 3, 1).numpy(), rgb)
    found = load_images(tmp_path / "grey.npz", 3)
    assert found.shape == (3, 3, 8, 7)
    assert np.array_equal(found[:, 1].numpy(), grey[::2])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((1, 2, 2, 3), np.uint8)}, "no array named images, x"),
        ({"x": np.zeros((1, 2, 2, 3))}, "x holds float64, expected uint8"),
        ({"x": np.zeros((2, 2), np.uint8)}, r"shape \(2, 2\)"),
        ({"x": np.zeros((0, 2, 2, 3), np.uint8)}, "shape"),
        ({"x": np.array([{"run": "me"}], object)}, "never unpickled"),
    ],
)
def test_arrays_of_another_kind_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=f"a.npz.*{message}"):
        load_images(tmp_path / "a.npz")


def test_a_damaged_npz_is_named(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(ValueError, match=r"a\.npz"):
        load_images(tmp_path / "a.npz")


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"size": 0}, {"size": 5000}])
def test_numbers_out_of_range(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} should be"):
        load_images(**arguments)


def test_missing_and_empty_sources(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_images(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no images found"):
        load_images(tmp_path)


# Files that are decoded again in every epoch


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

    def counted(path: Path, *reading: Any) -> Any:
        seen.append(path)
        return plain(path, *reading)

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
    assert ScanReport.from_json(through_json(report.to_json()), report.place) == report
    assert report.bad[0].path.name == odd


def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(48)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert scan.usable_cores(64) == 48
    for beside, threads in (("8", 6), ("100", 1), ("", 48)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", beside)
        assert scan.usable_cores(64) == threads


# Two processes


def report_from_here(folder: Path) -> None:
    """What one process of two does: scan, know it again, and print both."""
    from deepaa import distributed

    distributed.init("cpu", timeout=60)
    seen = []
    plain = scan.read_image
    scan.read_image = lambda path, *how: (seen.append(path), plain(path, *how))[1]  # type: ignore[assignment]
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


@pytest.mark.slow
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


if __name__ == "__main__":
    report_from_here(Path(sys.argv[1]))
