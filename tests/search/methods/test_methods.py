"""Search methods in their run folders: by name, resumed at every record, and compared."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs

from deepaa import CIFAR, Policy, SearchConfig, find_policy
from deepaa.cli.several import method_names, passes_of
from deepaa.models import load_model
from deepaa.runs import (
    RunError,
    apply_changes,
    changed_settings,
    parse_changes,
    read_history,
    to_record,
)
from deepaa.search import (
    METHODS,
    MethodRow,
    SearchRequest,
    method_lines,
    open_method,
    open_search,
)
from deepaa.search.contest import ContestConfig
from deepaa.search.contest.plan import Size
from deepaa.search.contest.seed_plan import SeedPlan
from deepaa.search.contest.table import ContestTable, Entry
from deepaa.search.methods.registry import (
    base_preset,
    find_searcher,
    opened_method,
    stored_method,
)
from deepaa.search.methods.searcher import Passes, Searcher, seed_for
from deepaa.search.policy_search import PolicySearch
from deepaa.search.run import demo_contest
from deepaa.search.settings import ProxyConfig, SettingsRequest
from deepaa.search.several import (
    Judged,
    best_form,
    check_contest,
    judged,
    settings_for,
    spent,
    training_changes,
    whole_cost,
    within_budget,
)
from deepaa.train.config import TrainConfig

SMALL: dict[str, Any] = {"epochs": 2, "trials": 3, "parallel": 2, "chains": 2}
OWN = """
from deepaa.search.methods.random_search import RandomSearch

class Mine(RandomSearch):
    method = "mine"
"""


def small_search(**options: Any) -> Policy:
    """A search of a second with random policies."""
    given = {"method": "random", "sizes": (60, 20, 40), "contest": False, "protect": False}
    proxy = ProxyConfig(model="small", train=TrainConfig(epochs=2, batch=32))
    data = options.pop("data", None) or blobs(160, 0)
    own = SMALL if options.get("method", "random") != "dada" else {"epochs": 2}
    return find_policy(data, proxy=proxy, device="cpu", **(given | own | options))


def write_data(path: Path) -> Path:
    images, labels = blobs(160, 0)
    np.savez(path, images=images.permute(0, 2, 3, 1).numpy(), labels=labels.numpy())
    return path


# By name


def test_every_method_has_presets_and_says_what_it_is() -> None:
    for name in METHODS:
        searcher = find_searcher(name)
        assert searcher.method == name
        assert searcher.presets.keys() >= {"paper", "fast", "demo"}
        assert all(isinstance(each, searcher.Config) for each in searcher.presets.values())
        assert searcher.result in ("layers", "chains", "schedule", "any")


def test_unknown_methods_and_settings_are_told() -> None:
    with pytest.raises(ValueError, match=r"no search method 'fastaa'; there are deepaa, random,"):
        open_method("fastaa")
    with pytest.raises(ValueError, match=r"random has no preset 'official'"):
        open_method("random", "official")
    with pytest.raises(ValueError, match="no preset 'quick'; random has paper, fast, demo"):
        opened_method("random", "quick", [])
    with pytest.raises(ValueError, match="expected a class that is a deepaa Searcher"):
        open_method("math:pi")
    with pytest.raises(ValueError, match="trials should be at least 1"):
        open_method("random", changes=["trials=0"])


def test_changes_go_where_they_belong() -> None:
    method, others = open_method("randaugment", "demo", ["one_se=false", "train.lr=0.2"])
    assert method.config == replace(method.searcher.presets["demo"], one_se=False)
    assert others == ["train.lr=0.2"]
    assert opened_method("deepaa", "demo", ["steps=3"]) == (None, ["steps=3"])
    found, _ = opened_method("random", "imagenet", [])
    assert found is not None
    assert found.config == found.searcher.presets["fast"]
    assert [base_preset(name) for name in ("demo", "paper", None)] == ["demo", None, None]


def test_seeds_differ_by_everything_they_are_for() -> None:
    places = [(), ("a",), ("b",), ("a", 0), ("a", 1), ("longer than eight", 1), ("eight", 1)]
    assert len({seed_for(0, *place) for place in places}) == len(places)
    assert seed_for(0, "a") != seed_for(1, "a")


def test_passes_are_counted_by_what_they_cost() -> None:
    assert Passes(10, 5, 2).plus(training=1, forward=2, slopes=3) == Passes(11, 7, 5)
    assert Passes(11, 7, 5).cost == 3 * 16 + 7


# In a run folder


def test_a_method_goes_on_however_often_it_is_left(tmp_path: Path) -> None:
    whole = small_search(out=tmp_path / "whole")
    records = read_history(tmp_path / "whole")
    assert [record["kind"] for record in records] == ["trial"] * 4
    assert whole.info["description"] == "found by random"
    assert whole.info["passes"] == f"{records[-1]['passes']:,}"

    class Enough(KeyboardInterrupt):
        pass

    def leave(record: object) -> None:
        raise Enough

    out = tmp_path / "parts"
    for n in range(1, len(records) + 1):
        with pytest.raises(Enough):
            small_search(out=out, progress=leave)
        assert len(read_history(out)) == n
    assert small_search(out=out).equals(whole)
    assert (out / "policy.json").read_bytes() == (tmp_path / "whole/policy.json").read_bytes()


def test_a_search_that_is_over_is_not_done_again(tmp_path: Path) -> None:
    seen: list[Any] = []
    first = small_search(out=tmp_path, progress=seen.append, checkpoint_seconds=1e6)
    assert len(seen) == 4
    again = small_search(out=tmp_path, progress=seen.append, checkpoint_seconds=1e6)
    assert len(seen) == len(read_history(tmp_path)) == 4
    assert again.equals(first)


@dataclass(frozen=True)
class Required:
    """Settings of which one has no default."""

    strength: int
    epochs: int = 3
    sizes: list[int] = field(default_factory=lambda: [1])


def test_settings_without_a_default_are_told() -> None:
    assert changed_settings(Required(2)) == "strength=2"
    assert changed_settings(Required(2, 4, [1, 2])) == "strength=2, epochs=4, sizes=[1, 2]"
    assert changed_settings(SearchConfig()) == "the defaults"


def test_a_stored_method_is_read_again_and_own_code_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_data(tmp_path / "data.npz")
    small_search(data=data, out=tmp_path / "run")
    request = SearchRequest.from_run(tmp_path / "run")
    assert request.method is not None
    assert request.method.name == "random"
    assert request.method.config.trials == 3
    with pytest.raises(RunError, match=r"the method of this run is 'random', got --method 'pba'"):
        SearchRequest.from_run(tmp_path / "run", method="pba")

    (tmp_path / "own_method_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    spec = "own_method_of_a_test:Mine"
    small_search(data=data, out=tmp_path / "mine", method=spec)
    with pytest.raises(RunError, match=f"name it again with --method {spec}"):
        SearchRequest.from_run(tmp_path / "mine")
    assert SearchRequest.from_run(tmp_path / "mine", method=spec).method is not None


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "random"},
        {"name": "random", "config": {"trials": "many"}},
        {"name": "random", "config": []},
        {"name": 3, "config": {}},
        {"name": "os;system", "config": {}},
        [],
    ],
)
def test_a_damaged_method_in_a_folder_is_one_line(tmp_path: Path, entry: Any) -> None:
    small_search(data=write_data(tmp_path / "data.npz"), out=tmp_path / "run")
    path = tmp_path / "run/config.json"
    content = json.loads(path.read_text())
    content["settings"]["method"] = entry
    path.write_text(json.dumps(content))
    with pytest.raises(RunError) as error:
        SearchRequest.from_run(tmp_path / "run")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("random", "trials"),
        ("random", "chains"),
        ("random", "layers"),
        ("random", "schedule_epochs"),
        ("random", "repeats"),
        ("randaugment", "parallel"),
        ("randaugment", "epochs"),
        ("fast-aa", "trials"),
        ("fast-aa", "folds"),
        ("fast-aa", "rounds"),
        ("fast-aa", "candidates"),
        ("pba", "population"),
        ("pba", "epochs"),
        ("dada", "epochs"),
    ],
)
def test_numbers_that_would_fill_the_memory_are_refused(name: str, setting: str) -> None:
    config = {**to_record(open_method(name)[0].config), setting: 10**9}
    with pytest.raises(ValueError, match=f"{setting} should be"):
        stored_method({"name": name, "config": config})


def test_trials_and_what_is_kept_are_limited_together() -> None:
    with pytest.raises(ValueError, match="all_trials should be at most 1,000,000"):
        open_method("fast-aa", changes=["rounds=1000", "trials=1000"])
    with pytest.raises(ValueError, match="all_kept should be at most 5,000"):
        open_method("fast-aa", changes=["trials=2000", "keep=1001"])


class Looks(find_searcher("random")):  # type: ignore[misc]
    """Keeps the world that it was given."""

    worlds: list[Any] = []  # noqa: RUF012

    def __init__(self, world: Any, config: Any) -> None:
        super().__init__(world, config)
        Looks.worlds.append(world)


def test_what_layers_lack_is_told_of_gradient_matching_alone() -> None:
    data = _labelled(*blobs(160, 0))
    told = {}
    for method in (None, open_method("random")[0]):
        request = SearchRequest(SettingsRequest("demo"), data, method=method, contest=None)
        with open_search(request, dry_run=True, device=torch.device("cpu")) as opened:
            told[method is None] = " ".join(opened.weaknesses)
    assert "decision on a layer" in told[True]
    assert "layer" not in told[False]


def test_a_method_without_a_choice_is_refused_before_anything_is_trained() -> None:
    seen: list[Any] = []
    with pytest.raises(ValueError, match="only rotate is left to choose from"):
        small_search(method="dada", ops="rotate", protect=True, progress=seen.append)
    assert seen == []
    asked = SearchRequest(
        SettingsRequest("demo", ops="rotate"),
        _labelled(*blobs(160, 0)),
        method=open_method("dada")[0],
        contest=None,
    )
    opened = open_search(asked, dry_run=True, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="only rotate is left to choose from"):
        opened.__enter__()


def test_networks_of_a_method_normalise_by_the_images_they_train_on() -> None:
    images, labels = blobs(160, 0)
    task = PolicySearch(
        _labelled(images, labels),
        space=CIFAR,
        search=SearchConfig(protect=False),
        proxy=ProxyConfig(model="small"),
        method=open_method("random")[0],
        sizes=(60, 20, 40),
    )
    expected = load_model("small", images[task.splits.pretrain], 4, 7).state_dict()
    made = task.world.make_model(7).state_dict()
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], value) for name, value in expected.items())


def test_no_method_sees_the_images_that_judge() -> None:
    images, labels = blobs(2400, 0)
    task = PolicySearch(
        _labelled(images, labels),
        space=CIFAR,
        search=SearchConfig(protect=False),
        proxy=ProxyConfig(model="small"),
        method=open_method(Looks, "paper")[0],
    )
    assert list(task) == []
    (world,) = Looks.worlds
    given = torch.cat([part.images for part in (world.pretrain, world.search, world.validation)])
    judge = images[task.splits.judge]
    assert len(judge) == 480
    assert len(given) == 2400 - 480
    rows = {bytes(image.numpy()) for image in given}
    assert not any(bytes(image.numpy()) in rows for image in judge)
    assert set(world.defaults.expected_uses()) >= {"crop", "flip", "cutout"}


def _labelled(images: torch.Tensor, labels: torch.Tensor) -> Any:
    from deepaa.data import as_images

    return as_images((images, labels))


# Several


def test_settings_go_to_the_methods_that_have_them() -> None:
    names, given = (
        ["deepaa", "fast-aa", "random"],
        ["trials=4", "steps=9", "rounds=2", "train.lr=1"],
    )
    assert settings_for("deepaa", names, given) == ["steps=9", "train.lr=1"]
    assert settings_for("fast-aa", names, given) == ["trials=4", "rounds=2", "train.lr=1"]
    assert settings_for("random", names, [*given, "typo=1"]) == ["trials=4", "train.lr=1", "typo=1"]


def test_a_contest_trains_as_the_searches_did() -> None:
    train = TrainConfig(epochs=3, seed=2, lr=0.05, milestones=(3, 4), schedule="step", graph=False)
    changes = training_changes(train)
    assert apply_changes(TrainConfig(), parse_changes(changes, TrainConfig)) == replace(
        train, epochs=45, seed=0
    )


def test_a_contest_without_some_of_the_methods_is_refused_before_them() -> None:
    search = PolicySearch(
        _labelled(*blobs(2400, 0)),
        space=CIFAR,
        search=SearchConfig(),
        proxy=ProxyConfig(model="small"),
    )
    assert len(check_contest(search, ContestConfig(10**6), 3).names) == 5
    with pytest.raises(ValueError, match=r"--contest-passes: .*leave out"):
        check_contest(search, ContestConfig(10**5), 6)
    more = check_contest(search, ContestConfig(10**5), 6, is_asked=False)
    assert (len(more.names), more.shortness) == (8, None)
    assert check_contest(search, ContestConfig(more.passes), 6).names == more.names


def test_python_names_wrong_settings_of_a_method() -> None:
    with pytest.raises(TypeError, match="steps is no setting of random; there are"):
        small_search(steps=3)


def test_budgets_and_lists_are_read() -> None:
    assert [passes_of(text) for text in ("15M", "1.5k", "70")] == [15_000_000, 1_500, 70]
    for text in ("", "0", "15m", "-3", "1e6"):
        with pytest.raises(ValueError, match="--budget takes passes"):
            passes_of(text)
    assert method_names("random, deepaa") == ["random", "deepaa"]
    for text in ("random", "random,random", ""):
        with pytest.raises(ValueError, match="--methods takes two or more different methods"):
            method_names(text)


def test_gradient_matching_fits_a_budget_with_fewer_steps_then_fewer_layers() -> None:
    data = _labelled(*blobs(1200, 0))
    request = SearchRequest(SettingsRequest("demo"), data)

    def opened(request: SearchRequest) -> PolicySearch:
        search, proxy, space = request.settings.resolve()
        return PolicySearch(data, space=space, search=search, proxy=proxy)

    whole = whole_cost(opened(request))
    for share in (1.0, 0.9, 0.6):
        fitted = opened(within_budget(request, opened(request), int(share * whole)))
        assert 0.5 * share * whole < whole_cost(fitted) <= share * whole
        config = fitted.config
        assert config.steps * config.learning_rate == pytest.approx(12)
    with pytest.raises(ValueError, match=r"deepaa takes [\d,]+ passes at least, the budget is 10"):
        within_budget(request, opened(request), 10)


@pytest.mark.parametrize("images", [1020, 300])
def test_few_images_keep_gradient_matching_within_a_budget(images: int) -> None:
    """Of few images fewer layers leave more held-out images to each, which cost more."""
    data = _labelled(*blobs(images, 0))
    request = SearchRequest(SettingsRequest("demo"), data)

    def cost(request: SearchRequest) -> int:
        return whole_cost(PolicySearch(data, **_by_name(request)))

    opened = PolicySearch(data, **_by_name(request))
    with pytest.raises(ValueError, match=r"takes ([\d,]+) passes at least") as refused:
        within_budget(request, opened, 10)
    least = int(str(refused.value).split()[2].replace(",", ""))
    for budget in range(least, cost(request), max(1, (cost(request) - least) // 8)):
        assert cost(within_budget(request, opened, budget)) <= budget


def _by_name(request: SearchRequest) -> dict[str, Any]:
    search, proxy, space = request.settings.resolve()
    return {"space": space, "search": search, "proxy": proxy}


def test_what_a_search_took_is_read_from_its_history(tmp_path: Path) -> None:
    small_search(out=tmp_path / "random")
    passes, seconds = spent(tmp_path / "random")
    history = read_history(tmp_path / "random")
    assert passes == history[-1]["passes"] > 0
    assert seconds == pytest.approx(sum(record["seconds"] for record in history))


def test_the_table_has_the_best_first() -> None:
    correct = torch.tensor([True] * 60 + [False] * 40)
    losses = torch.zeros(100, dtype=torch.float64)
    entries = (
        Entry("a", 5, 0, losses, ~correct, 0.0),
        Entry("a", 15, 0, losses, correct, 0.0),
        Entry("a", 15, 1, losses, ~correct, 0.0),
    )
    table = ContestTable(torch.ones(100, dtype=torch.bool), entries, None)
    plan = SeedPlan(("a", "b"), 15, 1)
    found = judged(plan, table, "a")
    assert found is not None
    assert (found.length, found.seeds, found.accuracy) == (15, 2, 0.5)
    assert (found.low, found.high) == pytest.approx((0.402, 0.598))
    assert judged(plan, table, "b") is None
    rows = [MethodRow("none", 5, 0.1, 7), MethodRow("a", 1_000, 2.0, 300, found)]
    assert method_lines(rows) == [
        "method             passes  minutes   images  accuracy (95 %)",
        "after 15 epochs:",
        "a                   1,000      2.0      300  50.0 % (40.2 to 59.8)",
        "not judged:",
        "none                    5      0.1        7",
    ]


def test_a_method_is_told_by_its_best_form_on_images_that_did_not_choose_it() -> None:
    chooses = torch.arange(100) % 2 == 0
    losses = torch.zeros(100, dtype=torch.float64)

    def entry(name: str, length: int, choosing: float, others: float) -> Entry:
        place = torch.arange(100) // 2
        right = torch.where(chooses, place < 50 * choosing, place < 50 * others)
        return Entry(name, length, 0, losses, right, 0.0)

    entries = (
        entry("a", 5, 0.98, 0.98),  # but nobody trained it for longer
        entry("a-spread", 15, 0.8, 0.6),
        entry("a-half", 15, 0.7, 0.9),
        entry("b", 15, 0.4, 0.2),
    )
    table = ContestTable(chooses, entries, None)
    plan = SeedPlan(("a", "a-spread", "a-half", "b"), 15, 1)
    assert best_form(plan, table, "a") == ("a-spread", "spread")
    assert best_form(plan, table, "b") == ("b", "as found")
    assert best_form(plan, table, "c") is None
    found = judged(plan, table, "a-spread", ~chooses)
    assert found is not None
    assert found.accuracy == pytest.approx(0.6)
    assert found.high - found.low == pytest.approx(2 * 1.96 * (0.24 / 50) ** 0.5)
    line = method_lines([MethodRow("a", 1, 0.0, 1, found, "spread")])[-1]
    assert line.endswith("60.0 % (46.4 to 73.6)  spread")


def test_who_was_trained_longest_comes_first_and_numbers_have_names() -> None:
    early = MethodRow(
        "early", 1, 0.0, 1, Judged(5, Size(50, 640), 1, 0.9, 0.8, 1.0)
    )  # of shorter trainings
    late = MethodRow("late", 1, 0.0, 1, Judged(15, Size(15), 1, 0.6, 0.5, 0.7))
    none = MethodRow("none", 1, 0.0, 1)
    lines = [line for line in method_lines([none, early, late])[1:] if line[-1] != ":"]
    assert [line.split()[0] for line in lines] == ["late", "early", "none"]
    assert "after 50 epochs of 640 images:" in method_lines([early])
    assert late.to_json()["judged"] == {
        "length": 15,
        "epochs": 15,
        "images": None,
        "seeds": 1,
        "accuracy": 0.6,
        "low": 0.5,
        "high": 0.7,
    }
    assert none.to_json()["judged"] is None


def test_searchers_say_what_they_leave_out() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Searcher(None, None)  # type: ignore[abstract, arg-type]


def test_a_class_of_python_is_known_by_its_name_only_if_that_leads_to_it(tmp_path: Path) -> None:
    class Other(find_searcher("random")):  # type: ignore[misc]
        """Called as the one of this package."""

    assert open_method("random")[0].is_named
    assert not open_method(Other)[0].is_named
    small_search(data=write_data(tmp_path / "data.npz"), method=Other, out=tmp_path / "run")
    with pytest.raises(ValueError, match="the search method of this run came from Python"):
        SearchRequest.from_run(tmp_path / "run")


def test_the_contest_of_a_demo_is_short_unless_its_passes_are_given() -> None:
    assert demo_contest(ContestConfig(), "demo").passes == 700_000
    assert demo_contest(ContestConfig(5), "demo").passes == 5
    assert demo_contest(ContestConfig(), None).passes is None
