"""Run folders and files that somebody else has made: no code runs, and errors are one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import begun_search, trained, with_code, with_settings, write_data

from deepaa.cli import app as cli
from deepaa.runs import RunError, check_named
from deepaa.train import runs_in, stored_request


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: data, and a module that leaves the file `ran` when it is imported."""
    write_data(tmp_path)
    with_code(tmp_path, tmp_path / "ran")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return tmp_path


# Code


def test_the_operations_of_a_search_run_only_if_they_are_named(here: Path, run_cli: Any) -> None:
    begun_search(here / "run", here / "blobs.npz", ["stranger:blur"])
    for more in ([], ["--dry-run"]):
        code, out, err = run_cli("search", "--resume", "run", "--device", "cpu", *more)
        assert (code, out) == (2, "")
        assert err == (
            "error: run: this run uses stranger:blur: name it again with --operations "
            "stranger:blur if you trust it, for its code will run\n"
        )
    for wrong in ("other:blur", "stranger:other"):
        code, _, err = run_cli("search", "--resume", "run", "--dry-run", "--operations", wrong)
        assert code == 2
        assert f"does not use '{wrong}' but stranger:blur" in err
    assert not (here / "ran").exists()
    named = ("--operations", "stranger:blur", "--device", "cpu")
    code, out, err = run_cli("search", "--resume", "run", "--dry-run", *named)
    assert code == 0, err
    assert (here / "ran").exists()


def test_the_network_of_a_search_runs_only_if_it_is_named(here: Path, run_cli: Any) -> None:
    begun_search(here / "run", here / "blobs.npz")
    with_settings(here / "run", "proxy", "model", to="stranger:make")
    resume = ("search", "--resume", "run", "--dry-run", "--device", "cpu")
    code, _, err = run_cli(*resume)
    assert code == 2
    assert "this run uses stranger:make: name it again with --model stranger:make if you" in err
    code, _, err = run_cli(*resume, "--model", "small")
    assert code == 2
    assert not (here / "ran").exists()
    code, _, err = run_cli(*resume, "--model", "stranger:make")
    assert code == 0, err
    assert (here / "ran").exists()


def test_code_of_a_training_runs_only_if_it_is_named(here: Path, run_cli: Any) -> None:
    trained(here / "run", here / "blobs.npz", stop_after=1)
    resume = ("train", "--resume", "run", "--dry-run", "--device", "cpu")
    for path, to, option in (
        (("request", "policy", "operations"), ["stranger:blur"], "--operations stranger:blur"),
        (("model",), "stranger:make", "--model stranger:make"),
    ):
        before = (here / "run/config.json").read_text()
        with_settings(here / "run", *path, to=to)
        for folder in ("run", "."):  # and in a folder of runs
            code, _, err = run_cli("train", "--resume", folder, "--dry-run", "--device", "cpu")
            assert code == 2
            assert f"name it again with {option} if you trust it" in err
        assert not (here / "ran").exists()
        if "--operations" in option:
            code, _, err = run_cli(*resume, *option.split())
            assert code == 0, err
            assert (here / "ran").exists()
            (here / "ran").unlink()
            del sys.modules["stranger"]
        (here / "run/config.json").write_text(before)


def test_a_network_with_a_name_may_be_named_but_not_changed(here: Path, run_cli: Any) -> None:
    trained(here / "run", here / "blobs.npz", stop_after=1)
    resume = ("train", "--resume", "run", "--dry-run", "--device", "cpu")
    code, _, err = run_cli(*resume, "--model", "small")
    assert code == 0, err
    code, _, err = run_cli(*resume, "--model", "resnet18")
    assert code == 2
    assert "the network of this run is 'small', got --model 'resnet18'" in err
    code, _, err = run_cli(*resume, "--operations", "stranger:blur")
    assert code == 2
    assert "begun without --operations; leave it out" in err
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    "spec", ["a:b; rm -rf ~", "a", "a:", ":b", "a:b:c", "a b:c", "../x:y", "a:b\x1b[2J", "a:$(x)"]
)
def test_what_a_folder_names_cannot_be_a_command(spec: str) -> None:
    """The line with the name may be copied into a shell."""
    with pytest.raises(RunError, match="expected MODULE:NAME for --operations, got") as caught:
        check_named(Path("run"), "--operations", [spec], [])
    assert "name it again" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["pil", "batched", "uniforms", "__class__"])
def test_a_space_brings_no_kernels(name: str, here: Path, run_cli: Any) -> None:
    begun_search(here / "run", here / "blobs.npz")
    settings = json.loads((here / "run/config.json").read_text())["settings"]
    entry = {**settings["space"]["operations"][0], name: "stranger:blur"}
    with_settings(here / "run", "space", "operations", 0, to=entry)
    code, _, err = run_cli("search", "--resume", "run", "--dry-run")
    assert code == 2
    assert "an operation has name, low, high, neutral, options, got" in err


def test_a_module_of_this_folder_does_not_stand_in_for_an_installed_one(here: Path) -> None:
    from deepaa.ops import import_object

    (here / "json5_or_not.py").write_text("value = 1\n")
    (here / "colorsys.py").write_text("value = 1\n")
    sys.modules.pop("colorsys", None)
    assert import_object("json5_or_not:value", "--operations") == 1
    assert callable(import_object("colorsys:rgb_to_hsv", "--operations"))


# Paths


@pytest.mark.parametrize("seed", ["../../outside", "x", 1.5, True, None, [1]])
def test_a_seed_is_a_number_and_no_part_of_a_path(seed: Any, here: Path, run_cli: Any) -> None:
    trained(here / "run", here / "blobs.npz", stop_after=1)
    (here / "run/seeds.json").write_text(json.dumps({"asked": [seed]}))
    code, _, err = run_cli("train", "--resume", "run", "--device", "cpu")
    assert code == 2
    assert "seeds.json: damaged: asked should be a whole number, got" in err


def test_a_seed_below_zero(here: Path, run_cli: Any) -> None:
    trained(here / "run", here / "blobs.npz", stop_after=1)
    (here / "run/seeds.json").write_text('{"asked": [0, -1]}')
    code, _, err = run_cli("train", "--resume", "run", "--device", "cpu")
    assert (code, err) == (2, f"error: {here}/run: damaged: a seed of -1, expected 0 or more\n")


def test_a_run_that_reads_other_images_than_it_began_with_is_refused(
    here: Path, run_cli: Any
) -> None:
    """A folder could name any images of this machine; what it shows of them is their pixels."""
    begun_search(here / "run", here / "blobs.npz")
    secret = {name: 255 - array for name, array in np.load("blobs.npz").items()}
    np.savez("secret.npz", **{**secret, "y_train": np.arange(96) % 4, "y_test": np.arange(24) % 4})
    with_settings(here / "run", "source", "data", "data", to=str(here / "secret.npz"))
    code, _, err = run_cli("search", "--resume", "run", "--device", "cpu")
    assert code == 2
    assert "holds a run with other settings: fingerprint: " in err
    assert not (here / "run/preview.png").exists()


def test_a_folder_of_runs_may_not_lead_elsewhere(here: Path) -> None:
    trained(here / "mine", here / "blobs.npz", stop_after=1)
    (here / "received").mkdir()
    (here / "received/run").symlink_to(here / "mine")
    with pytest.raises(RunError, match="run is a link to a run elsewhere; resume that one"):
        runs_in(here / "received")
    assert stored_request(here / "mine").model == "small"


def test_a_report_says_whose_images_it_shows(here: Path, run_cli: Any) -> None:
    begun_search(here / "run", here / "blobs.npz")
    from deepaa.policy import Policy

    Policy.identity().save("run/policy.json")
    code, _, err = run_cli("report", "run")
    assert code == 0, err
    assert f"examples are images of {here / 'blobs.npz'}, as the run says" in err


# Words


def test_nothing_of_a_file_moves_the_terminal(here: Path, run_cli: Any) -> None:
    evil = "\x1b]0;mine\x07\x1b[2Jname"
    np.savez("p.npz", **{evil: np.zeros(3)})
    np.savez("d.npz", **{evil: np.zeros(3)})
    info = {"by\x1b[31m": f"me{evil}"}
    document = json.loads((Path(__file__).parents[1] / "golden/policy_v1_layers.json").read_text())
    Path("info.json").write_text(json.dumps({**document, "info": info}))
    begun_search(here / "run", here / "blobs.npz")
    with_settings(here / "run", "source", "from_python", to=[evil])
    for arguments in (
        ("show", "p.npz"),
        ("show", "info.json"),
        ("show", f"no{evil}"),
        ("search", "--data", "d.npz", "--device", "cpu"),
        ("search", "--resume", "run"),
        ("preview", "deepta", "--data", "d.npz", "--out", "x.png"),
    ):
        _, out, err = run_cli(*arguments)
        assert "\x1b" not in out + err, arguments
        assert "\x07" not in out + err, arguments
        assert out + err


def test_a_very_long_name_of_a_policy(run_cli: Any) -> None:
    code, _, err = run_cli("show", "deepaa-simple:" * 2000 + "deepta")
    assert code == 2
    assert "deepaa-simple is given twice" in err
    assert len(err) < 300


WRONG = {
    "array.npz": (lambda path: path.write_bytes(b"\x93NUMPY" + b"x" * 99), "not an .npz file"),
    "empty.npz": (lambda path: path.write_bytes(b""), "not an .npz file"),
    "pickle.npz": (lambda path: path.write_bytes(b"\x80\x04N."), "not an .npz file"),
    "none.npz": (lambda path: np.savez(path), "has none"),
    "no-images.npz": (
        lambda path: np.savez(path, x=np.zeros((0, 8, 8), np.uint8), y=np.zeros(0, int)),
        "x has shape (0, 8, 8), expected (N, H, W)",
    ),
    "scalar.npz": (
        lambda path: np.savez(path, x=np.uint8(3), y=np.int64(3)),
        "x has shape (), expected (N, H, W)",
    ),
    "label.npz": (
        lambda path: np.savez(path, x=np.zeros((3, 8, 8), np.uint8), y=np.array([0, 1, 10**12])),
        "y: a label of 1,000,000,000,000; classes count from 0, and at most 1,000,000",
    ),
    "objects.npz": (
        lambda path: np.savez(path, x=np.array([print] * 3), y=np.arange(3)),
        "x holds Python objects, which are never unpickled",
    ),
    "no-labels.npz": (
        lambda path: np.savez(path, x=np.zeros((3, 8, 8), np.uint8), y=np.zeros(0, int)),
        "x has 3 images, but y has 0 labels",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_archives_are_one_line(name: str, here: Path, run_cli: Any) -> None:
    make, message = WRONG[name]
    make(here / name)
    code, out, err = run_cli("search", "--data", name, "--device", "cpu")
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith(f"error: {here / name}: ")
    assert err.count("\n") == 1
    code, _, err = run_cli("show", name)
    assert code == 2
    assert err.startswith(f"error: {name}: ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_page_is_not_written_into_a_pipe(here: Path, run_cli: Any) -> None:
    os.mkfifo(here / "report.html")
    code, _, err = run_cli("report", "deepta", "--out", "report.html")
    assert (code, err) == (2, "error: report.html: a pipe, expected a regular file\n")


def test_python_s_own_memory_error_has_words() -> None:
    assert cli._explained(MemoryError()) == ("not enough memory", 2)
