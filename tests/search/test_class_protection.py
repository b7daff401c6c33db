"""The look for operations that turn one class into another: stopped anywhere, it finds the same."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import strokes
from torch import Tensor

from deepaa import CIFAR, Operation, Policy, SearchConfig, Space
from deepaa.data import DataSpec, batch_sizes
from deepaa.data.load import as_images
from deepaa.runs import Run, RunError, read_history
from deepaa.runs.checkpoint import recover
from deepaa.search import plain_network
from deepaa.search.contest import ContestConfig, ContestRequest, ContestRun, open_contest
from deepaa.search.plain_network import ClassProtection, ProtectionRecord
from deepaa.search.policy_search import PolicySearch
from deepaa.search.proved import ProvedSearch
from deepaa.search.settings import ProxyConfig
from deepaa.train.config import TrainConfig

TINY = SearchConfig(
    layers=1,
    steps=2,
    learning_rate=1.0,
    images=2,
    validation=8,
    prefixes=1,
    chains=16,
    heldout=8,
)
EPOCHS, FURTHER = 15, 10
TRAIN = TrainConfig(epochs=EPOCHS, batch=16)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Further trainings of ten epochs, and one thread, without which sums differ."""
    monkeypatch.setattr(plain_network, "LEAST_RETRAINED", 120 * FURTHER)
    monkeypatch.setattr(plain_network, "LEAST_PER_OPERATION", 100)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def dims_what_rises(images: Tensor, magnitudes: Tensor, uniforms: Tensor) -> Tensor:
    """Darkens the strokes of one class: strange to a network, but it learns to tell them apart."""
    x = images.float().mean(1)
    rises = (x[:, 1:, :-1] * x[:, :-1, 1:]).mean((1, 2)) > (x[:, 1:, 1:] * x[:, :-1, :-1]).mean(
        (1, 2)
    )
    factor = torch.where(rises, 1 - magnitudes, 1.0).float()[:, None, None, None]
    return (images * factor).to(torch.uint8)


DIM = Operation("dim", 0.0, 0.95, neutral=0.0, batched=dims_what_rises)
SPACE = Space((*CIFAR.only("identity", "flip").operations, DIM))


def looking() -> ClassProtection:
    parts = torch.arange(120), torch.arange(120, 330)
    rows = SPACE.table.rows
    data = as_images(strokes(330, 0))
    return ClassProtection(data, parts, "small", TRAIN, torch.device("cpu"), rows)


class Enough(Exception):
    """Leaves the work, as a stop does."""


def test_left_after_every_epoch_it_finds_the_same_and_counts_the_same_passes() -> None:
    whole = looking()
    epochs: list[int] = []
    whole.keep = lambda: epochs.append(len(epochs))
    found = whole.find()
    assert {each.operation for each in found.protection.changed} == {"flip"}
    assert len(epochs) == EPOCHS + FURTHER  # dim was only strange: that took a further training
    training = sum(batch_sizes(120, 16)) * (EPOCHS + FURTHER)
    assert whole.passes.training == training
    assert found.passes == 3 * training + whole.passes.forward <= whole.most_passes

    state: dict[str, Tensor] | None = None
    for _ in epochs:
        part = looking()

        def leave(part: ClassProtection = part) -> None:
            nonlocal state
            state = {name: tensor.clone() for name, tensor in part.state().items()}
            raise Enough

        part.keep = leave
        if state is not None:
            part.load_state(state)
        with pytest.raises(Enough):
            part.find()
    last = looking()
    assert state is not None
    last.load_state(state)
    last.keep = lambda: pytest.fail("no epoch is left")
    again = last.find()
    assert again._replace(seconds=found.seconds) == found
    assert last.passes == whole.passes


def test_a_state_that_does_not_fit_is_told() -> None:
    part = looking()
    part.load_state({"seconds": torch.tensor(1.0), "training.epoch": torch.tensor(3)})
    with pytest.raises(RunError, match="the run: its state does not fit its settings"):
        part.find()


def test_nothing_is_trained_where_nothing_can_be_tested() -> None:
    few = ClassProtection(
        as_images(strokes(150, 0)),
        (torch.arange(90), torch.arange(90, 150)),
        "small",
        TRAIN,
        torch.device("cpu"),
        SPACE.table.rows,
    )
    few.before_step = lambda: pytest.fail("something is trained")
    assert few.most_passes == 0
    assert few.find().untestable == ["0", "1", "2"]


# In a search


class Stops:
    """Says stop whenever a phase has begun and was asked so often since."""

    def __init__(self, after: int) -> None:
        self.after, self.asked, self.search = after, 0, None

    def __call__(self) -> bool:
        if self.search is None or "looking" not in self.search.shown:
            return False
        self.asked += 1
        return self.asked > self.after


def small_search(out: Path | None, stop: Any = lambda: False, **options: Any) -> PolicySearch:
    given = {"search": TINY, "proxy": ProxyConfig("small", augment=True, train=TRAIN)}
    run = None if out is None else Run(out, {"kind": "search"})
    search = PolicySearch(
        as_images(strokes(330, 0)),
        space=SPACE,
        sizes=(120, 150, 60),
        run=run,
        stop=stop,
        checkpoint_seconds=1e6,
        **(given | options),
    )
    search.shown = ""  # type: ignore[attr-defined]

    def show(text: str) -> None:
        search.shown = text  # type: ignore[attr-defined]

    search.show = show  # type: ignore[method-assign]
    return search


def without_seconds(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in each.items() if k != "seconds"} for each in read_history(out)]


@pytest.mark.slow
def test_a_search_that_is_stopped_while_it_looks_goes_on_from_the_epoch(tmp_path: Path) -> None:
    whole = small_search(tmp_path / "whole")
    policy = [*whole] and whole.policy
    assert whole.run is not None
    whole.run.close()
    assert "flip" in policy.info["left out"]
    trained = list[int]()
    for _ in range(2):
        stop = Stops(60)  # of 8 steps an epoch: more than seven epochs each
        part = small_search(tmp_path / "parts", stop)
        stop.search = part
        before = part._state.get("protecting.training.epoch", torch.tensor(0))
        trained.append(int(before))
        list(part)
        assert part.stopped
        assert part.run is not None
        part.run.close()
    assert trained == [0, 7]
    last = small_search(tmp_path / "parts")
    list(last)
    assert last.run is not None
    last.run.close()
    assert last.policy.equals(policy)
    assert without_seconds(tmp_path / "parts") == without_seconds(tmp_path / "whole")
    assert (tmp_path / "parts/found.json").read_bytes() == (
        tmp_path / "whole/found.json"
    ).read_bytes()


def test_a_contest_without_a_search_goes_on_from_the_epoch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepaa.search.proved.LEAST_SEARCHED", 10_000)
    stop = Stops(60)
    part = small_search(tmp_path, stop)
    stop.search = part
    proved = ProvedSearch(part, ContestConfig(40_000))
    assert not proved.is_searched
    assert list(proved) == []
    assert proved.stopped
    assert part.run is not None
    part.run.close()
    again = small_search(tmp_path)
    assert int(again._state["protecting.training.epoch"]) == 7
    (record,) = again.protect_alone()
    assert isinstance(record, ProtectionRecord)
    assert "flip" in {each.operation for each in record.protection.changed}
    assert again.run is not None
    again.run.close()
    third = small_search(tmp_path)  # killed before the contest has a state: it is known
    assert list(third.protect_alone()) == []
    assert third.protection == record.protection


def test_what_was_found_before_is_not_looked_for_again(tmp_path: Path) -> None:
    known = ProtectionRecord([], ["level"], 3, 0.0)
    search = small_search(tmp_path, protection=known)
    records = list(search)
    assert not any(isinstance(record, ProtectionRecord) for record in records)
    assert search.protection == known.protection
    assert search.run is not None
    search.run.close()
    (kept,) = (each for each in read_history(tmp_path) if each["kind"] == "protection")
    assert kept["untestable"] == ["level"]
    assert isinstance(search.policy, Policy)


# In a contest without a search


def whole_contest(folder: Path, name: str, stops_after: int | None = None) -> ContestRun:
    """A contest of the strokes, or as far as it comes until it was asked so often to stop."""
    path = folder / "strokes.npz"
    images, labels = strokes(330, 0)
    np.savez(path, x=images.numpy(), y=labels.numpy())
    settings = ("batch=16",)
    request = ContestRequest(
        DataSpec(str(path)),
        usual=False,
        model="small",
        changes=settings,
        contest=ContestConfig(14_000, 2),
    )
    asked = itertools.count()

    def stop() -> bool:
        return stops_after is not None and next(asked) >= stops_after

    begun = open_contest(
        request, folder / name, device=torch.device("cpu"), checkpoint_seconds=1e6, stop=stop
    )
    with begun as run:
        list(run)
    return run


def test_a_contest_that_is_stopped_while_it_looks_goes_on_from_the_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = whole_contest(tmp_path, "whole")
    protected = json.loads((tmp_path / "whole/protection.json").read_text())
    assert "rotate" in {each["operation"] for each in protected["changed"]}
    assert "left out: rotate" in capsys.readouterr().err
    for stops_after, epoch in ((0, None), (60, 7), (30, 10)):  # of 8 steps each
        part = whole_contest(tmp_path, "parts", stops_after)
        assert part.stopped
        assert part.unprotected is not None
        assert not (tmp_path / "parts/protection.json").exists()
        saved = recover(tmp_path / "parts")
        found = None if saved is None else int(saved.tensors["training.epoch"])
        assert found == epoch
    last = whole_contest(tmp_path, "parts")
    assert last.unprotected is None
    again = json.loads((tmp_path / "parts/protection.json").read_text())
    assert again | {"seconds": 0} == protected | {"seconds": 0}
    assert last.document == whole.document
    # whatever the state is of: once it is known, nobody looks again
    assert whole_contest(tmp_path, "parts").document == whole.document
    with (tmp_path / "parts/protection.json").open() as file:
        assert json.load(file) == again
