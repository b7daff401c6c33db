"""`deepaa search --methods`: images are read once, classes are protected once, one table."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs

from deepaa.data import DataSpec, as_images, read_splits
from deepaa.runs import read_history
from deepaa.search import FORMS, PolicySearch, SharedProtection, looking_of, open_method
from deepaa.search.plain_network import ClassProtection, ProtectionRecord as Found
from deepaa.search.settings import SettingsRequest

Run = Callable[..., tuple[int, str, str]]
METHODS = ["random", "randaugment"]
OPTIONS = "--preset demo --device cpu --model small --epochs 1 --set trials=2 --set numbers=[1]"


def write_data(path: Path) -> Path:
    images, labels = blobs(2000, 0)
    np.savez(path, images=images.permute(0, 2, 3, 1).numpy(), labels=labels.numpy())
    return path


def command(tmp_path: Path, *more: str) -> list[str]:
    data = write_data(tmp_path / "data.npz")
    where = ["search", "--data", str(data), "--out", str(tmp_path / "runs")]
    return [*where, "--methods", ",".join(METHODS), *OPTIONS.split(), *more]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often images were read, and changed classes were looked for."""
    counts = {"reads": 0, "looks": 0}
    for kind, name, what in ((DataSpec, "load", "reads"), (ClassProtection, "find", "looks")):
        given = getattr(kind, name)

        def noted(self: Any, *args: Any, given: Any = given, what: str = what, **kw: Any) -> Any:
            counts[what] += 1
            return given(self, *args, **kw)

        monkeypatch.setattr(kind, name, noted)
    return counts


@pytest.mark.slow
def test_the_contest_takes_over_what_the_searches_have_read_and_found(
    tmp_path: Path, run_cli: Run, counted: dict[str, int]
) -> None:
    words = command(tmp_path, "--contest-passes", "780000", "--set", "train.epochs=3")
    code, out, err = run_cli(*words)
    assert code == 0, err
    assert counted == {"reads": 1, "looks": 1}
    runs = tmp_path / "runs"
    found = [read_splits(runs / name / "splits.json", 2000) for name in METHODS]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # the judge, too
    document = json.loads((runs / "contest/contest.json").read_text())
    assert document["data"]["images"] == 2000
    forms = {f"{name}-policy{tail}" for name in METHODS for tail in FORMS}
    assert {e["name"] for e in document["candidates"]} == forms | {"none", "crop-flip"}
    rows = json.loads((runs / "methods.json").read_text())
    assert [row["method"] for row in rows] == METHODS
    assert all(row["judged"] for row in rows)
    assert {row["form"] for row in rows} <= {"as found", "spread", "half strength"}
    looks = [
        [record for record in read_history(runs / name) if record["kind"] == "protection"]
        for name in METHODS
    ]
    (first,), (second,) = looks
    assert first["passes"] > 0
    assert (second["passes"], second["seconds"]) == (0, 0.0)
    assert second["changed"] == first["changed"]
    assert document["protected"] == first["changed"]
    code, again, _ = run_cli(*words)  # all of it is there
    assert (code, again) == (0, out)
    assert counted["looks"] == 1


@pytest.mark.parametrize(("passes", "count"), [("300000", 4), ("780000", 8)])
def test_all_methods_take_part_in_all_forms_or_all_as_found(
    tmp_path: Path, run_cli: Run, passes: str, count: int
) -> None:
    code, _, err = run_cli(*command(tmp_path, "--contest-passes", passes, "--dry-run"))
    assert code == 0, err
    assert f"contest: {count} candidates" in err
    assert ("300,000 passes are too few for other forms" in err) == (count == 4)


@pytest.mark.slow
def test_a_stop_while_changed_classes_are_looked_for_costs_an_epoch(
    tmp_path: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command(tmp_path, "--contest", "off", "--set", "train.epochs=5")
    given, epochs = ClassProtection.state, []

    def state(self: ClassProtection) -> Any:
        epochs.append(self._training and self._training.epoch)
        if len(epochs) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return given(self)

    monkeypatch.setattr(ClassProtection, "state", state)
    code, _, err = run_cli(*words)
    assert code == 143
    assert "go on with the same command" in err
    before = list(epochs)
    code, out, _ = run_cli(*words)
    assert code == 0
    assert before[-1] == 3
    assert epochs[len(before)] == 4  # the next, not the first again
    assert all(name in out for name in METHODS)


# What is shared


def search_with(method: str | None, **changes: Any) -> PolicySearch:
    search, proxy, space = SettingsRequest("demo", fields=changes.pop("fields", {})).resolve()
    given: dict[str, Any] = {"space": space, "search": search, "proxy": proxy}
    found = None if method is None else open_method(method, "demo")[0]
    return PolicySearch(as_images(blobs(2000, 0)), method=found, **(given | changes))


def test_what_one_search_finds_serves_the_others_that_look_alike() -> None:
    searches = {name: search_with(name) for name in (None, "random", "dada")}
    looks = {name: looking_of(search) for name, search in searches.items()}
    assert all(a.finds_the_same(b) for a in looks.values() for b in looks.values())
    other = search_with("random", fields={"seed": 1})
    fewer = searches["random"].space.without("invert")
    assert not looks["random"].finds_the_same(looking_of(other))
    assert not looks["random"].finds_the_same(looking_of(search_with("random", space=fewer)))


@pytest.mark.slow
def test_the_network_of_gradient_matching_says_what_another_one_says() -> None:
    """So it does not matter which of the methods comes first."""
    proxy = SettingsRequest("demo", model="small", changes=["train.epochs=3"]).resolve().proxy
    first, second = (
        next(each for each in search_with(method, proxy=proxy) if isinstance(each, Found))
        for method in (None, "random")
    )
    assert (first.changed, first.untestable) == (second.changed, second.untestable)
    assert 0 < first.passes < second.passes  # which has trained a network for it


def test_nothing_is_shared_where_nobody_looked() -> None:
    search, shared = search_with("random", fields={"protect": False}), SharedProtection()
    shared.add(looking_of(search), search)
    assert shared.together is None
    assert shared.known(looking_of(search)) is None
