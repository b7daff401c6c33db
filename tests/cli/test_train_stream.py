"""`deepaa train --stream`: crops, levels and the scan, as a run folder keeps them."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import TORCH, Done, Program, as_ranks, in_forks
from PIL import Image
from safetensors.torch import load_file

from deepaa.cli import app as cli
from deepaa.data import StreamedImages, scan, streaming
from deepaa.data.folder import list_images
from deepaa.models import build_model
from deepaa.runs import read_history
from deepaa.train import experiment
from deepaa.train.loop import evaluate_streamed
from deepaa.train.results import read_results

SIZE = 72
"""Over 64 pixels images get the augmentation of ImageNet."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a tree of 240 pictures in it."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 200), ("val", 40)):
        for i in range(count):
            place = tmp_path / "tree" / part / "ab"[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 90 + 120 * (i % 2), (6, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((100, 80)).save(place / f"{i:03}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    return tmp_path


@pytest.fixture
def command(folder: Path, run_cli: Any) -> Any:
    return partial(run_cli, "train")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that a scan decodes from now on."""
    seen: list[str] = []
    plain = scan.read_image

    def counted(path: Path, *reading: Any) -> Any:
        seen.append(path.name)
        return plain(path, *reading)

    monkeypatch.setattr(scan, "read_image", counted)
    return seen


STREAM = (
    *("--data", "tree", "--stream", "--size", SIZE, "--workers", 0, "--device", "cpu"),
    *("--model", "small", "--epochs", 1, "--batch", 40),
)


def request_of(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(run, "config.json").read_text())["settings"]["request"]
    return found


def test_every_policy_has_its_crop_and_the_same_levels(command: Any) -> None:
    levels = []
    crops = {"none": "centre", "crop-flip": "random", "deepta:1": "larger"}
    for policy, crop in crops.items():
        run = f"run-{crop}"
        code, _, err = command(*STREAM, "--policy", policy, "--out", run)
        assert code == 0, err
        assert read_results(run)[1]["images"]["crop"] == crop
        levels.append(request_of(run)["normalisation"])
        weights = load_file(Path(run, "weights-0.safetensors"))
        for name, stored in zip(("mean", "std"), levels[-1], strict=True):
            used = weights[f"normalize.{name}"].flatten().tolist()
            assert used == pytest.approx(stored, abs=1e-6)
    assert levels[0] == levels[1] == levels[2]
    pixels = np.stack([np.asarray(Image.open(p)) for p in Path("tree/train").rglob("*.png")]) / 255
    assert levels[0][0] == pytest.approx(pixels.mean((0, 1, 2)), abs=0.02)
    assert levels[0][1] == pytest.approx(pixels.std((0, 1, 2)), abs=0.02)


@pytest.mark.slow
def test_a_run_decodes_its_files_once_to_look_at_them(command: Any, decoded: list[str]) -> None:
    run = (*STREAM, "--policy", "crop-flip", "--out", "run")
    assert command(*run, "--dry-run")[0] == 0
    assert not decoded
    assert not Path("run").exists()
    assert command(*run)[0] == 0
    assert len(decoded) == len(set(decoded)) + 40 == 240  # names repeat in the two parts
    decoded.clear()
    for again in ((*run,), ("--resume", "run"), ("--resume", "run", "--seeds", 1)):
        code, _, err = command(*again, *(() if "--stream" in again else ("--workers", 0)))
        assert code == 0, err
    assert not decoded
    assert [result.seed for result in read_results("run")[0]] == [0, 1, 2]
    # the record alone decides nothing: a spoilt one is made again
    Path("run/scan.json").write_text("{")
    assert command(*run)[0] == 0
    assert len(decoded) == 240
    assert json.loads(Path("run/scan.json").read_text())["train"]["files"] == 200


def test_a_run_keeps_its_decoder_on_another_machine(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One begun with Pillow goes on so on CUDA, and the other way round."""
    again = ("--seeds", 1, "--workers", 0)
    with monkeypatch.context() as on_cuda:
        on_cuda.setattr(experiment, "decoder_for", lambda *_: "torchvision")
        code, _, err = command(*STREAM, "--policy", "crop-flip", "--out", "device")
        assert code == 0, err
    code, _, err = command(*STREAM, "--policy", "crop-flip", "--out", "workers")
    assert code == 0, err
    for other, run in (("torchvision", "workers"), ("pillow", "device")):
        monkeypatch.setattr(experiment, "decoder_for", lambda *_, other=other: other)
        code, _, err = command("--resume", run, *again)
        assert code == 0, err
        code, _, err = command(*STREAM, "--policy", "crop-flip", "--seeds", 1, "--out", run)
        assert code == 0, err
        assert len(read_results(run)[0]) == 3
    assert read_results("device")[1]["images"]["decoder"] == "torchvision"
    assert "decoder" not in read_results("workers")[1]["images"]


def test_a_decoder_for_the_device_needs_a_stream(command: Any) -> None:
    args = (
        "--model",
        "small",
        "--epochs",
        1,
        "--device",
        "cpu",
        "--policy",
        "none",
        "--out",
        "run",
    )
    code, _, err = command("--data", "tree", *args, "--read", "decoder=torchvision")
    assert (code, "decoder=torchvision is for --stream" in err) == (2, True)


def test_policies_side_by_side_share_the_scan(command: Any, decoded: list[str]) -> None:
    code, _, err = command(*STREAM, "--policy", "none", "--policy", "crop-flip", "--out", "both")
    assert code == 0, err
    assert len(decoded) == 240
    crops = [read_results(f"both/{name}")[1]["images"]["crop"] for name in ("none", "crop-flip")]
    assert crops == ["centre", "random"]


def test_test_images_without_labels_are_left_alone(
    command: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Path("tree/test").mkdir()
    Path("tree/val/a/000.png").rename("tree/test/000.png")
    code, _, err = command(*STREAM, "--policy", "none", "--no-scan", "--out", "run")
    assert code == 0, err
    assert read_results("run")[1]["images"]["test_images"] == 39
    assert "so it is left alone; the test images are those of val" in caplog.text


def test_without_test_images_nothing_is_decoded(command: Any, decoded: list[str]) -> None:
    Path("tree/val").rename("elsewhere")
    code, _, err = command(*STREAM, "--policy", "none", "--dry-run")
    assert code == 2
    assert "--stream needs one: without --stream, 0.1 of the training images are held out" in err
    assert len(err.splitlines()) == 1
    assert not decoded


def test_a_class_without_test_images_is_named(
    command: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Path("tree/val/b").rename("b")
    code, _, err = command(*STREAM, "--policy", "none", "--dry-run")
    assert code == 0, err
    assert "tree: no test images of 1 of 2 classes: b; the test says nothing" in caplog.text


def test_parts_that_are_links_out_of_the_folder(command: Any) -> None:
    Path("tree").rename("elsewhere")
    Path("tree").mkdir()
    for part in ("train", "val"):
        Path("tree", part).symlink_to(Path("elsewhere", part).resolve())
    run = (*STREAM, "--policy", "none", "--out", "run")
    code, out, err = command(*run)
    assert (code, out, "allow it with --outside-links" in err) == (2, "", True), err
    code, _, err = command(*run, "--outside-links")
    assert code == 0, err
    code, _, err = command("--resume", "run", "--seeds", 1, "--workers", 0)
    assert code == 0, err
    memory = (*run[:-1], "memory", "--no-stream", "--dry-run")
    assert command(*memory)[0] == 2
    code, out, err = command(*memory, "--outside-links")
    assert (code, "200 images" in out) == (0, True), err


def test_the_scan_can_be_left_out(command: Any, decoded: list[str]) -> None:
    run = (*STREAM, "--policy", "crop-flip", "--no-scan")
    code, _, err = command(*run, "--out", "run")
    assert (code, decoded, Path("run/scan.json").exists()) == (0, [], False), err
    Path("tree/train/a/000.png").write_text("<html>")
    code, out, err = command(*run, "--out", "bad")
    assert (code, out, decoded) == (2, "", [])
    assert "a/000.png (not an image)" in err
    code, _, err = command(*run, "--on-bad-image", "skip", "--out", "skip")
    assert (code, "needs a scan, to know which files to skip" in err) == (2, True), err
    code, _, err = command(*run[:-1], "--on-bad-image", "skip", "--out", "skip")
    assert code == 0, err
    assert read_results("skip")[1]["images"]["train_images"] == 199
    # what was skipped stays so, also where the scan is left out
    decoded.clear()
    code, _, err = command("--resume", "skip", "--seeds", 1, "--no-scan", "--workers", 0)
    assert (code, decoded) == (0, []), err
    code, out, err = command(*run[:-1], "--on-bad-image", "skip", "--out", "new", "--dry-run")
    assert (code, "199 images" in out) == (0, True), err


def in_two_processes(*arguments: object) -> list[Done]:
    """How the command ends in each, as torchrun would start them."""
    program = Program(module="deepaa", arguments=("train", *map(str, arguments)))
    return in_forks(as_ranks(program), together=True, modules=TORCH)


@pytest.mark.slow
def test_two_processes_share_scan_and_batches(folder: Path) -> None:
    run = (*STREAM, "--policy", "deepta:1", "--out", "run")
    found = in_two_processes(*run)
    assert [code for code, *_ in found] == [0, 0], found
    assert found[1][1:] == ("", "")
    results, content = read_results("run")
    assert (len(results), content["images"]["crop"]) == (1, "larger")
    assert json.loads(Path("run/scan.json").read_text())["test"]["files"] == 40
    Path("tree/val/b/001.png").write_text("<html>")
    found = in_two_processes(*run[:-1], "bad")
    assert [code for code, *_ in found] == [2, 2], found
    assert "1 of 40 files is bad (1 not-an-image): val/b/001.png (not an image)" in found[0][2]
    assert found[1][1:] == ("", "")  # said once


@pytest.mark.parametrize("way", ["--stream", "--no-stream"])
def test_how_files_are_read_is_a_choice(command: Any, way: str) -> None:
    run = (*STREAM, way, "--policy", "none", "--out", "run")
    code, _, err = command(*run, "--read", "max_pixels=9")
    assert (code, "pixels" in err) == (2, True), err
    code, _, err = command(*run, "--read", "max_pixels=99999", "--read", "apply_exif=false")
    assert code == 0, err
    reading = request_of("run")["files"]["reading"]
    assert (reading["max_pixels"], reading["apply_exif"]) == (99999, False)
    code, _, err = command("--resume", "run", "--seeds", 1, "--workers", 0)
    assert code == 0, err


def test_reduced_pictures_are_a_choice_that_older_runs_did_not_make(command: Any) -> None:
    run = (*STREAM, "--policy", "none", "--out", "run")
    assert command(*run)[0] == 0
    reading = request_of("run")["files"]["reading"]
    assert sorted(reading) == ["alpha_colour", "apply_exif", "max_pixels"]  # as before it was there
    code, _, err = command(*run[:-1], "other", "--read", "reduce=true")
    assert code == 0, err
    assert request_of("other")["files"]["reading"]["reduce"] is True
    code, _, err = command("--resume", "other", "--seeds", 2, "--workers", 0)
    assert code == 0, err
    code, _, err = command(*run[:-1], "run", "--resume", "run", "--read", "reduce=true")
    assert code == 2


def test_long_epochs_say_who_waits(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "SHOW_SECONDS", 0)
    code, _, err = command(*STREAM, "--policy", "none", "--out", "run")
    assert code == 0, err
    line = re.search(
        r"^20 % of an epoch  [\d,]+ images/s, ([\d,]+)/s can be decoded: (.*)$", err, re.M
    )
    assert line is not None, err
    assert line[2] in ("training waits for files", "files wait for training")


def test_the_history_says_how_fast_files_can_be_decoded(command: Any) -> None:
    code, _, err = command(*STREAM, "--policy", "none", "--out", "run")
    assert code == 0, err
    records = [each for each in read_history(Path("run")) if "lr" in each]
    assert records
    assert all(each["decoding"] > 0 and 0 < each["decoding_busy"] <= 1 for each in records)
    assert "/s can be decoded: " in err
    code, _, err = command(*STREAM, "--no-stream", "--policy", "none", "--out", "memory")
    assert code == 0, err
    records = [each for each in read_history(Path("memory")) if "lr" in each]
    assert {each["decoding"] for each in records} == {None}
    assert "decoded" not in err


@pytest.mark.slow
def test_photos_train_a_network_from_decoding_to_results(shared, tmp_path, monkeypatch, capfd):
    """`deepaa train` on real photos: scan, workers, policy, epochs, test, results, resume."""
    folder = shared / "data" / "clothing"
    if not folder.is_dir():
        pytest.skip("no clothing photos beside the repository")
    files = {part: len(list_images(folder, part).files) for part in ("train", "test")}
    run = tmp_path / "run"
    command = ["train", "--data", folder, "--stream", "--size", 72, "--workers", 2]
    command += ["--policy", "trivialaugment-wide", "--model", "small", "--epochs", 2]
    command += ["--batch", 32, "--lr", 0.05, "--warmup", 1, "--device", "cpu", "--out", run]
    assert cli.run([str(word) for word in command]) == 0, capfd.readouterr().err
    (result,), content = read_results(run)
    images = content["images"]
    assert (images["train_images"], images["test_images"]) == (files["train"], files["test"])
    assert (images["classes"], images["crop"], images["shape"]) == (10, "random", [3, 72, 72])
    epochs = [record for record in read_history(run) if record["kind"] == "epoch"]
    assert [record["epoch"] for record in epochs] == [0, 1]
    assert all(record["images"] >= files["train"] - 16 for record in epochs)
    assert epochs[1]["loss"] < epochs[0]["loss"] < 2.6  # ln 10 is 2.3
    # the weights that were saved give the result that was written
    model = build_model("small", 10)
    model.load_state_dict(load_file(run / "weights-0.safetensors"))
    test = StreamedImages(folder, 72, train=False, workers=0, scan=False)
    found = evaluate_streamed(model, test)
    assert (found.count, found.accuracy) == (files["test"], pytest.approx(result.accuracy))
    assert found.loss == pytest.approx(result.loss, rel=1e-5)
    # and the photos are known: nothing is decoded to look for bad ones
    monkeypatch.setattr(scan, "read_image", None)
    assert cli.run(["train", "--resume", str(run)]) == 0, capfd.readouterr().err
