"""What a search says that it will cost, before and while it runs, beside what it then takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs

from deepaa.data import DataSpec, as_images
from deepaa.runs import read_history
from deepaa.search import (
    ContestConfig,
    LengthPlan,
    SearchProgress,
    cheaper,
    check_contest,
    open_search,
    plain_network,
)
from deepaa.search.cost import Cost, search_cost, shorter_contest
from deepaa.search.run import SearchRequest
from deepaa.search.settings import SettingsRequest
from deepaa.train import EpochRecord

SMALL = (
    *("--data", "blobs.npz", "--preset", "demo", "--epochs", "2", "--steps", "2", "--layers", "1"),
    *("--ops", "rotate,flip", "--set", "heldout=8", "--set", "images=2", "--set", "validation=8"),
    *("--set", "chains=16", "--device", "cpu"),
)
ALONE = (*SMALL, "--contest", "off")
SHORT = (*SMALL, "--contest-passes", "60000", "--target-epochs", "2")
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder with 50 held-out images of each of four classes; short trainings."""
    monkeypatch.setattr(plain_network, "LEAST_RETRAINED", 400)
    monkeypatch.setattr(plain_network, "LEAST_PER_OPERATION", 20)
    monkeypatch.chdir(tmp_path)
    images, labels = blobs(400, 1)
    np.savez(tmp_path / "blobs.npz", x=images.numpy(), y=labels.numpy())
    return tmp_path


def counted(text: str, part: str) -> int:
    """The passes that a dry run gives to a part of the work."""
    found = re.search(rf"([\d,]+) in {part}", " ".join(text.split()))
    return int(found[1].replace(",", "")) if found else 0


@pytest.mark.parametrize("more", [(), ("--method", "random", "--set", "trials=1")])
def test_class_protection_is_counted_before_a_search(
    run_cli: Command, folder: Path, more: tuple[str, ...]
) -> None:
    words = [*ALONE, *more]
    if more:  # which knows nothing of the settings of gradient matching
        words = ["--data", "blobs.npz", "--preset", "demo", "--epochs", "1", "--device", "cpu"]
        words += ["--contest", "off", *more]
    _, told, _ = run_cli("search", *words, "--dry-run")
    assert re.search(r"time .* class protection \d+ s", " ".join(told.split()))
    code, _, err = run_cli("search", *words, "--out", "run")
    assert code == 0, err
    assert re.search(r"on this machine: .*class protection \d+ s", " ".join(err.split()))
    record = next(each for each in read_history("run") if "untestable" in each)
    assert 0 < record["passes"] <= 3 * (counted(told, "class protection at most") + 1)


def test_a_search_without_class_protection_counts_none(run_cli: Command, folder: Path) -> None:
    _, told, _ = run_cli("search", *ALONE, "--no-protect", "--dry-run")
    assert "pre-training" in told
    assert "class protection" not in told


def test_it_is_counted_where_nothing_is_searched(
    run_cli: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepaa.search.proved.LEAST_SEARCHED", 10_000)
    _, told, _ = run_cli("search", *SHORT, "--dry-run")
    assert re.search(
        r"time +at most about .*: class protection \d+ s, *contest", " ".join(told.split())
    )


def test_what_is_done_is_not_counted_again(run_cli: Command, folder: Path) -> None:
    assert run_cli("search", *ALONE, "--out", "run")[0] == 0
    with open_search(
        SearchRequest.from_run(Path("run")), Path("run"), device=torch.device("cpu"), resume=True
    ) as opened:
        assert search_cost(opened).protection == 0


def test_the_time_that_is_left_has_class_protection_in_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SettingsRequest(preset="demo", epochs=2)
    request = SearchRequest(settings, DataSpec.from_options("blobs.npz"))
    with open_search(request, dry_run=True, device=torch.device("cpu")) as opened:
        progress = SearchProgress(opened, Cost(2.0, 60.0, 0.0, 1.0, protection=3600.0))
        progress(EpochRecord(1, 1.0, 0.9, 0.1, 1.0, 100))  # the last: it stays on the screen
    assert "left 61 min" in capsys.readouterr().err


def test_a_cost_without_parts_names_none() -> None:
    assert Cost(0.0, 0.0, 0.0, 1.0).text() == "at most about 0 s on this machine"


def test_several_methods_say_how_long_each_takes_and_the_contest(
    run_cli: Command, folder: Path
) -> None:
    images, labels = blobs(1000, 1)
    np.savez(folder / "many.npz", x=images.numpy(), y=labels.numpy())
    words = ["--data", "many.npz", "--preset", "demo", "--device", "cpu"]
    words += ["--methods", "deepaa,random", "--contest-passes", "1000000", "--target-epochs", "2"]
    code, _, err = run_cli("search", *words, "--dry-run")
    assert code == 0, err
    told = {line.partition(":")[0]: line for line in err.splitlines()}
    said = "labelled images; at most about .* machine: "
    assert re.search(f"{said}pre-training .*, class protection .*, search", told["deepaa"])
    assert re.search(f"{said}search", told["random"])  # which takes over what deepaa has seen
    every = r"in all: at most about [\d.]+ \w+ on this machine: deepaa .*, random .*, contest "
    assert re.search(every, err)
    assert "hint" not in err
    assert re.search(r"passes, at most about [\d.]+ (s|min) on this machine$", told["contest"])


def test_new_searches_of_several_methods_say_what_all_will_take(
    run_cli: Command, folder: Path
) -> None:
    words = ["--data", "blobs.npz", "--preset", "demo", "--device", "cpu", "--epochs", "1"]
    words += ["--methods", "random,randaugment", "--set", "trials=1", "--set", "numbers=[1]"]
    words += ["--contest", "off", "--out", "runs"]
    code, out, err = run_cli("search", *words)
    assert code == 0, err
    assert re.search(r"^in all: at most about .*: random .*, randaugment ", err, re.M)
    note = "Passes and minutes are those of the search, without the contest and without class"
    assert f"{note} protection, which took " in " ".join(out.split())
    code, out, err = run_cli("search", *words)
    assert (code, "in all" in err) == (0, False)  # all of it is there


@pytest.mark.parametrize(
    ("side", "model", "more", "hint"),
    [
        (16, "small", {}, None),
        (16, "wrn-40-2", {}, "--preset demo --model small takes minutes on a CPU"),
        (48, "wrn-40-2", {}, "--preset demo --model small --size 32 takes minutes on a CPU"),
        (80, None, {"preset": "imagenet"}, "--preset demo --size 32 takes minutes on a CPU"),
        (16, "small", {"preset": "fast"}, "--preset demo takes minutes on a CPU"),
        (48, "small", {}, "--size 32 is quicker"),
    ],
)
def test_a_cheaper_way_is_one(side: int, model: str | None, more: Any, hint: str | None) -> None:
    images, labels = blobs(1000, 1)
    data = as_images((torch.nn.functional.interpolate(images, side), labels))
    request = SearchRequest(SettingsRequest(**{"preset": "demo", "model": model, **more}), data)
    hours = {"pretraining": 1.0, "search": 9000.0, "contest": 10.0, "rate": 100.0}
    with open_search(request, dry_run=True, device=torch.device("cpu")) as opened:
        assert cheaper(opened, Cost(**hours)) == hint
        assert cheaper(opened, Cost(**{**hours, "search": 9.0})) is None
        trained = cheaper(opened, Cost(**{**hours, "search": 9.0, "pretraining": 9000.0}))
        if hint is None:
            assert trained == "fewer --epochs make the pre-training shorter"
        judged = str(cheaper(opened, Cost(**{**hours, "contest": 40_000.0})))
    quicker = [way for way in ("--model small", "--size 32") if way in judged]
    assert ("--size 32" in quicker) == (side > 32)
    assert ("--model small" in quicker) == (model != "small")


def test_a_shorter_contest_has_passes_enough_for_all() -> None:
    names = ["none", "crop-flip", "a", "b", "c"]
    config = ContestConfig(passes=3_000_000)
    plan = LengthPlan.make(names, train_images=2000, batch=128, config=config)
    now = plan.most_passes()
    told = shorter_contest("--passes", plan, 36_000.0, ["--size 32"])
    found = re.fullmatch(r"--passes (\d+) takes about [\d.]+ \w+; --size 32 is quicker, too", told)
    assert found is not None, told
    assert plan.enough <= int(found[1]) < 0.8 * now
    few = LengthPlan.make(names, train_images=2000, batch=128, config=ContestConfig(plan.enough))
    assert shorter_contest("--passes", few, 36_000.0, []) is None


def test_too_few_passes_for_a_contest_of_methods_name_those_that_would_do() -> None:
    request = SearchRequest(SettingsRequest(preset="demo"), as_images(blobs(2000, 1)))
    with open_search(request, dry_run=True, device=torch.device("cpu")) as opened:
        told = r"20,000 passes are few for 4 candidates; ([\d,]+) would do, or --contest off"
        with pytest.raises(ValueError, match=told) as error:
            check_contest(opened.search, ContestConfig(20_000), 2)
        found = re.search(told, str(error.value))
        assert found is not None
        enough = int(found[1].replace(",", ""))
        assert not check_contest(opened.search, ContestConfig(enough), 2).left_out
        assert check_contest(opened.search, ContestConfig(20_000), 2, is_asked=False).enough
