"""What a folder says of a contest and of protected classes fits, or one line says why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_folders import (
    contest_request,
    contested,
    finished_search,
    with_settings,
    write_data,
)
from torch import Tensor

from deepaa.data import read_splits
from deepaa.policy import Policy
from deepaa.report import read_subject
from deepaa.runs import RunError
from deepaa.search import (
    ContestConfig,
    ProtectionRecord,
    SearchRequest,
    hold_contest,
    open_contest,
    open_search,
)

CPU = torch.device("cpu")
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that stands in its contest, and a contest alone."""
    path = tmp_path_factory.mktemp("contests")
    data = write_data(path)
    finished_search(path / "search", data, 8, contest=True)
    contested(path / "contest", data)
    return path


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root / "search", tmp_path / "search"))


def go_on(folder: Path) -> None:
    with open_search(SearchRequest.from_run(folder), folder, device=CPU, resume=True) as search:
        next(iter(search), None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (3, "contest should be an object or null, got 3"),
        ({"passes": 9_000}, "no value for contest.target_epochs"),
        ({"passes": "many", "target_epochs": 1, "fresh_seeds": 1}, "contest.passes should be"),
        ({"passes": None, "target_epochs": 1, "fresh_seeds": 10**9}, "at most 1,000"),
        ({"passes": 1, "target_epochs": 1, "fresh_seeds": 1, "more": 1}, "no setting"),
    ],
)
def test_settings_of_a_contest(folder: Path, value: object, reason: str) -> None:
    with_settings(folder, "contest", to=value)
    with pytest.raises(RunError, match=reason):
        SearchRequest.from_run(folder)


def test_most_of_a_contest() -> None:
    with pytest.raises(ValueError, match="target_epochs of a contest should be at most 1,000,000"):
        ContestConfig(target_epochs=10**7)


def changed_state(monkeypatch: pytest.MonkeyPatch, change: Callable[[State], object]) -> None:
    """The state that a run folder gives, changed; the checksums of one on disk fit as well."""
    from deepaa.runs import Run

    latest = Run.latest

    def spoilt(self: Run) -> Any:
        saved = latest(self)
        assert saved is not None
        change(saved.tensors)
        return saved

    monkeypatch.setattr(Run, "latest", spoilt)


def key_of(state: State, start: str) -> str:
    return next(key for key in state if key.startswith(start))


def rename(state: State, start: str, old: str, new: str) -> None:
    for key in [key for key in state if key.startswith(start)]:
        state[key.replace(old, new, 1)] = state.pop(key)


CHANGES: dict[str, Callable[[State], object]] = {
    "no passes": lambda s: s.pop("passes"),
    "several passes": lambda s: s.update(passes=torch.zeros(3)),
    "no such candidate": lambda s: rename(s, "judged/none/", "/none/", "/nobody/"),
    "no whole number": lambda s: rename(s, "judged/none/", "/none/", "/none/x"),
    "too short a name": lambda s: s.update({"judged/none": torch.zeros(1)}),
    "no such part": lambda s: s.update({"judged/none/1/0/7/losses": torch.zeros(1)}),
    "no training loss": lambda s: s.pop(key_of(s, "judged/").rpartition("/")[0] + "/train_loss"),
    "losses of another shape": lambda s: s.update(
        {k: v[:1] for k, v in s.items() if k.endswith("/losses")}
    ),
    "losses of another type": lambda s: s.update(
        {k: v.float() for k, v in s.items() if k.endswith("/losses")}
    ),
    "work without a loss": lambda s: s.update({"work/none/9/0/0/epoch": torch.tensor(1)}),
    "work that is none": lambda s: s.update(
        {
            f"{kind}/crop-flip/1/0/4{name}": torch.tensor(1.0)
            for kind, name in (("work", "/epoch"), ("loss", ""))
        }
    ),
    "a protection of no bytes": lambda s: s.update(protection=torch.zeros(3)),
    "a protection that is no JSON": lambda s: s.update(protection=torch.ones(3).byte()),
    "a protection of a list": lambda s: s.update(protection=torch.tensor([91, 93]).byte()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_states_of_a_contest(folder: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    changed_state(monkeypatch, CHANGES[change])
    with pytest.raises(RunError) as caught:
        go_on(folder)
    assert "\n" not in str(caught.value)


def test_a_state_that_is_not_changed_goes_on(folder: Path) -> None:
    go_on(folder)


GOOD = {"operation": "flip", "from": "a", "to": "b", "share": 0.9, "before": 0, "images": 60}
GOOD |= {"magnitude": None}


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        ({}, "no value for changed"),
        ({"changed": 1}, "changed should be a list, got 1"),
        ({"changed": [1]}, "changed should be an object, got 1"),
        ({"changed": [{}]}, "no value for operation"),
        ({"changed": [{**GOOD, "share": "x"}]}, "share should be a number, got 'x'"),
        ({"changed": [{**GOOD, "more": 1}]}, "no setting 'more'"),
        ({"changed": [{**GOOD, "operation": "identity"}]}, "identity, which changes nothing"),
        ({"changed": [], "untestable": [3]}, "untestable should be text, got 3"),
    ],
)
def test_protection(plain: dict[str, Any], reason: str, root: Path, tmp_path: Path) -> None:
    usual = {"untestable": [], "classes": 4, "seconds": 1}
    content = {**usual, **plain} if plain else plain
    path = Path(shutil.copytree(root / "contest", tmp_path / "contest")) / "protection.json"
    path.write_text(json.dumps(content))
    request = contest_request(root / "blobs.npz")
    with (
        pytest.raises(RunError, match=reason) as caught,
        open_contest(request, path.parent, device=CPU),
    ):
        pass
    assert str(path.resolve()) in str(caught.value)


def test_protection_that_fits() -> None:
    plain = {"changed": [GOOD], "untestable": ["c"], "classes": 4, "seconds": 1}
    (found,) = ProtectionRecord.from_json(plain, "here").protection.changed
    assert (found.operation, found.from_class, found.share, found.before) == ("flip", "a", 0.9, 0.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.pop("table"), "no value for table"),
        (lambda d: d.update(table=[]), "table should be an object"),
        (lambda d: d["table"].update(chooses="01x"), "chooses should be digits 0 and 1"),
        (lambda d: d["table"].update(entries=[3]), "entries should be an object"),
        (lambda d: d["table"].update(clusters=[1]), "clusters"),
        (lambda d: d["table"]["entries"][0].pop("seed"), "no value for seed"),
        (lambda d: d["table"]["entries"][0].update(losses=["x"]), "losses should be a number"),
        (lambda d: d["table"]["entries"][0].update(losses=[1.0]), "outcomes, expected"),
        (lambda d: d["table"]["entries"][0].update(correct=7), "correct should be text"),
    ],
)
def test_the_table_of_an_own_loop(
    change: Callable[[dict[str, Any]], object], reason: str, tmp_path: Path
) -> None:
    def train(policy: Policy, seed: int) -> tuple[list[float], list[bool]]:
        return [1.0] * 8, [True, False] * 4

    def again() -> None:
        hold_contest(train, usual=False, out=tmp_path)

    again()
    again()  # reads what it has written
    path = tmp_path / "contest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(RunError, match=reason) as caught:
        again()
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "expected pretrain, search, validation, judge, got"),
        ({"pretrain": [0], "search": [1], "validation": [2], "x": []}, "expected pretrain"),
        ({"pretrain": [0], "search": [1], "validation": 2}, "validation should be a list"),
        ({"pretrain": [0], "search": [1.5], "validation": [2]}, "search should be a whole number"),
        ({"pretrain": [], "search": [], "validation": []}, "not there, or one twice"),
        ({"pretrain": [0], "search": [0], "validation": [2]}, "not there, or one twice"),
        ({"pretrain": [0], "search": [-1], "validation": [2]}, "not there, or one twice"),
        ({"pretrain": [0], "search": [10**15], "validation": [2]}, "not there, or one twice"),
        ({"pretrain": [0], "search": [1], "validation": [2], "judge": [2]}, "one twice"),
    ],
)
def test_splits(content: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match=reason):
        read_splits(path, 10)


@pytest.mark.parametrize(
    ("kind", "value"), [("contest", 3), ("contest", {"operations": ["x; rm"]}), ("other", {})]
)
def test_reports_of_other_settings(kind: str, value: object, root: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(root / "contest", tmp_path / "contest"))
    assert read_subject(str(folder)).contest is not None
    with_settings(folder, "source", to=value)
    with_settings(folder, "kind", to=kind)
    with pytest.raises(RunError, match="damaged"):
        read_subject(str(folder))
