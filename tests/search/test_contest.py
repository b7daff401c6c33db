"""Contests by training: the plan is a function of the table, and a stopped contest goes on."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs
from torch import Tensor

import deepaa
from deepaa import Operation, Policy, Space, hold_contest, load_policy
from deepaa.data import judge_part
from deepaa.data.load import DataSpec, as_images
from deepaa.ops import Row
from deepaa.policy import compared_policy
from deepaa.runs import Run, StopAskedError, read_history
from deepaa.search.contest.candidates import (
    Candidate,
    all_candidates,
    found_candidates,
    protected_away,
)
from deepaa.search.contest.judged import JudgedImages
from deepaa.search.contest.keep import ContestRun
from deepaa.search.contest.own_loop import LoopRecord
from deepaa.search.contest.pick import Difference, Pick
from deepaa.search.contest.plan import (
    FIRST_FRESH_SEED,
    ContestConfig,
    Job,
    LengthPlan,
    Size,
)
from deepaa.search.contest.proof import Proof
from deepaa.search.contest.request import (
    ContestRequest,
    asked_contest,
    contest_facts,
    contest_network,
    short_name,
)
from deepaa.search.contest.result import (
    ContestResult,
    contest_result,
    document,
    say,
    stands,
    table_from_json,
    table_to_json,
)
from deepaa.search.contest.run import Contest, ContestEntry
from deepaa.search.contest.seed_plan import SeedPlan
from deepaa.search.contest.table import ContestTable, Entry
from deepaa.search.protection import Protection
from deepaa.train.config import TrainConfig

CPU = torch.device("cpu")
NAMES = ("none", "crop-flip", "a", "b", "c", "d")


def outcome(job: Job, share: float, judges: int = 400) -> Entry:
    """A network that has this share of the judge images right, other ones for each name."""
    generator = torch.Generator().manual_seed(len(job.candidate) + 7 * job.seed)
    correct = torch.rand(judges, generator=generator) < share
    losses = torch.where(correct, 0.1, 2.0).double()
    return Entry(*job, losses, correct, 1.0)


def played(plan: LengthPlan | SeedPlan, shares: dict[str, float]) -> tuple[ContestTable, list[Job]]:
    """A whole contest, one job at a time, and its jobs in order."""
    chooses = torch.arange(400) % 2 == 0
    table, jobs = ContestTable(chooses), []
    while left := plan.next_jobs(table):
        jobs.append(left[0])
        table = table.plus(outcome(left[0], shares.get(left[0].candidate, 0.6)))
        assert len(jobs) < 200
    return table, jobs


# Candidates


def test_candidates_begin_with_the_references_and_are_all_different() -> None:
    found = all_candidates("cifar", found=compared_policy("deepta:3", defaults=False))
    assert [each.name for each in found[:2]] == ["none", "crop-flip"]
    forms = {each.name for each in found if each.kind == "found"}
    names = [each.name for each in found]
    assert names.index("found-spread") < names.index("found-half") < names.index("found")
    tails = ("", "-spread", "-half")
    assert forms == {f"found{depth}{tail}" for depth in ("", "-2", "-1") for tail in tails}
    for first, second in itertools.combinations(found, 2):
        assert not first.policy.equals(second.policy), (first.name, second.name)


def test_large_images_have_no_cutout_of_small_ones() -> None:
    found = all_candidates("imagenet")
    assert "crop-flip-cutout" not in {each.name for each in found}
    assert found[1].policy.expected_uses()["resized_crop"] == 1


def test_a_found_policy_without_layers_brings_no_candidate() -> None:
    assert all(each.kind == "named" for each in all_candidates("cifar", found=Policy.identity()))
    assert not found_candidates(Policy.identity(layers=0))


CHAINS = [([(Row(Operation("rotate", -30.0, 30.0, neutral=0.0), 20.0), 0.5)], 1.0)]


def with_info(policy: Policy, info: dict[str, str]) -> Policy:
    schedule = [(phase.epoch, phase.stages) for phase in policy.phases]
    return Policy(policy.table, schedule=schedule, info=info)


def test_a_winner_without_the_defaults_is_read_without_them(tmp_path: Path) -> None:
    nothing = Policy.always(Operation("identity"))  # crop, flip and cutout were left out
    found = Policy.of_chains({0: CHAINS}).then(nothing)
    for candidate in found_candidates(found):
        result = ContestResult(candidate, "", None, None, None)  # type: ignore[arg-type]
        result.policy.save(tmp_path / "policy.json")
        uses = compared_policy(tmp_path / "policy.json").expected_uses()
        assert {name for name, count in uses.items() if count} == {"identity", "rotate"}
        assert uses["rotate"] == pytest.approx(0.5)


def requested(*policies: Path, **more: Any) -> list[Candidate]:
    """Who takes part in `deepaa contest --policy`."""
    request = ContestRequest(DataSpec(), tuple(map(str, policies)), **more)
    return request.candidates("cifar", request.given("cifar"))


FOUND = compared_policy("deepta:3", defaults=False)
TOLD = {"description": "found by deepaa on blobs, 3 layers"}


def test_a_found_file_takes_part_as_in_the_contest_of_its_search(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run/found.json"
    with_info(FOUND, TOLD).save(path)
    ours, theirs = requested(path), all_candidates("cifar", found=FOUND)
    assert len(ours) == len(theirs)
    assert all(any(a.policy.equals(b.policy) for b in theirs) for a in ours)
    names = [each.name for each in ours]
    assert names[2:5] == ["run-found", "run-found-spread", "run-found-half"]
    assert {"run-found-2-half", "run-found-1"} < {*names}
    assert names.index("run-found-2") > names.index("timm-randaugment")
    assert ours[3].title == "run/found.json, spread"
    whole = [each.name for each in requested(path, depths=False, usual=False)]
    assert whole == ["none", "crop-flip", *names[2:5]]
    assert len(requested(path, forms=False)) == len(all_candidates("cifar")) + 1


def test_what_was_changed_or_judged_takes_part_as_it_is(tmp_path: Path) -> None:
    """Its strength has been chosen already."""
    found = with_info(FOUND, TOLD)
    found.strength(0.7).save(tmp_path / "weaker.json")
    with_info(FOUND, {**TOLD, "contest": "It won."}).save(tmp_path / "winner.json")
    with_info(FOUND, {"description": "by hand"}).save(tmp_path / "mine.json")
    for name in ("weaker.json", "winner.json", "mine.json"):
        assert len(requested(tmp_path / name, usual=False)) == 3


@pytest.mark.parametrize("method", ["randaugment", "fast-aa", "pba"])
def test_what_any_method_finds_takes_part_in_the_same_forms(tmp_path: Path, method: str) -> None:
    kinds = {
        "randaugment": compared_policy("randaugment:n=2,m=9"),
        "fast-aa": compared_policy("autoaugment"),
        "pba": Policy.of_chains({0: CHAINS, 5: CHAINS}),
    }
    path = tmp_path / "found.json"
    with_info(kinds[method], {"method": method, "defaults": "none"}).save(path)
    name = short_name(str(path))
    found = [each.name for each in requested(path, usual=False)]
    assert found[2:] == [name, f"{name}-spread", f"{name}-half"]


def test_what_is_excluded_leaves_every_candidate() -> None:
    found = compared_policy("deepta:2", defaults=True)
    usual = all_candidates("cifar", found=found)
    protected = all_candidates("cifar", found=found, excludes=lambda r: r.operation.name == "flip")
    assert sum("flip" in each.policy.expected_uses() for each in usual) > 8
    for each in protected:
        assert each.policy.expected_uses().get("flip", 0.0) == 0.0, each.name


def test_titles_say_what_was_left_out_and_who_has_nothing_left() -> None:
    flip = Candidate("flips", "flips.json", Policy.always(Operation("flip")), "given")

    def excludes(row: Row) -> bool:
        name, magnitude = row.operation.name, row.magnitude
        return name == "flip" or (name == "rotate" and abs(magnitude or 0) > 15)

    everybody = all_candidates("cifar", given=[flip])
    kept = all_candidates("cifar", given=[flip], excludes=excludes)
    titles = {each.name: each.title for each in kept}
    assert titles["none"] == "no augmentation"
    assert titles["crop-flip"] == "crop and flip without flip"
    assert "without strong rotate and flip" in titles["trivialaugment-wide"]
    assert [each.name for each in protected_away(everybody, kept)] == ["flips"]
    more = all_candidates("cifar", excludes=lambda row: row.operation.name in ("flip", "crop"))
    assert "crop-flip" not in {each.name for each in more}  # which would be no augmentation


def test_a_title_names_only_what_an_image_could_have_met() -> None:
    """A policy may have operations in its table that are never drawn."""
    space = Space((Operation("identity"), Operation("flip"), Operation("invert")), 2)
    given = Candidate("mine", "mine", Policy.repeated(space, [0.5, 0.0, 0.5], 1), "given")
    kept = all_candidates("cifar", given=[given], excludes=lambda r: r.operation.name != "identity")
    titles = {each.name: each.title for each in kept}
    assert "mine" not in titles  # nothing is left of it
    kept = all_candidates("cifar", given=[given], excludes=lambda r: r.operation.name == "flip")
    assert {each.name: each.title for each in kept}["mine"] == "mine"
    both = given._replace(policy=Policy.repeated(space, [0.4, 0.3, 0.3], 1))
    kept = all_candidates("cifar", given=[both], excludes=lambda r: r.operation.name == "flip")
    assert {each.name: each.title for each in kept}["mine"] == "mine without flip"


def test_who_takes_no_part_is_in_the_document() -> None:
    many = all_candidates("cifar")
    few = small_contest(many[:3], 100)
    plan = replace(few.plan, names=tuple(each.name for each in many[:3]))
    contest = Contest(many, few.images, few.network, plan)
    facts = contest_facts(few.images, few.network, Protection(), many[-1:])
    content = ContestRun(contest, facts).document
    assert content["left_out"] == [each.title for each in many[3:]]
    assert content["excluded"] == [many[-1].title]


def test_two_candidates_of_one_name_are_refused() -> None:
    given = [Candidate("none", "mine", Policy.always(Operation("invert")), "given")]
    with pytest.raises(ValueError, match="two policies of a contest are called 'none'"):
        all_candidates("cifar", given=given)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("trivialaugment", "trivialaugment"),
        ("runs/first/policy.json", "first-policy"),
        ("runs/first/found.json", "first-found"),
        ("my policies/a b.json", "a-b"),
        ("randaugment:n=3,m=5", "randaugment-n=3,m=5"),
    ],
)
def test_short_names(policy: str, name: str) -> None:
    assert short_name(policy) == name


# Plans


@pytest.mark.parametrize("fresh", [1, 2, 3])
@pytest.mark.parametrize("passes", [60_000, 300_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize(("images", "folds"), [(240, 5), (3200, 1), (40_000, 1)])
def test_a_contest_never_takes_more_than_its_passes(
    passes: int, fresh: int, images: int, folds: int
) -> None:
    config = ContestConfig(passes, fresh_seeds=fresh)
    make = partial(LengthPlan.make, NAMES, train_images=images, batch=128, folds=folds)
    if passes < images * folds * 3 * (1 + 2 * fresh):
        with pytest.raises(ValueError, match="too short"):
            make(config=config)
        return
    plan = make(config=config)
    _, jobs = played(plan, {"a": 0.9, "b": 0.62})
    used = sum(job.length for job in jobs) * images * folds
    assert used <= plan.most_passes() <= passes
    assert max(job.length for job in jobs) <= plan.target


@pytest.mark.parametrize(("images", "target"), [(8, 600), (250, 600), (500, 400), (9000, 200)])
def test_few_images_are_not_trained_on_for_thousands_of_epochs(images: int, target: int) -> None:
    plan = LengthPlan.make(NAMES, train_images=images, batch=128, folds=5)
    assert plan.target == target
    _, jobs = played(plan, {"a": 0.9})
    assert max(job.length for job in jobs) <= target
    asked = ContestConfig(target_epochs=5000)
    assert LengthPlan.make(NAMES, train_images=images, batch=128, config=asked).target == 5000


@pytest.mark.parametrize("classes", [2, 100])
@pytest.mark.parametrize(("images", "target"), [(600, 600), (4_000, 96), (40_000, 200)])
def test_short_trainings_have_fewer_images_and_more_epochs(
    images: int, target: int, classes: int
) -> None:
    plan = LengthPlan.make(
        NAMES, train_images=images, batch=128, classes=classes, config=ContestConfig(10**9, target)
    )
    least = max(500, 20 * classes)
    before = (0, 0)
    for length in range(1, target):
        size = plan.size(length)
        count = images if size.images is None else size.images
        work = length * images
        assert work - count < size.epochs * count <= work  # no whole epoch is left
        assert (size.epochs, count) >= before
        before = (0, count)
        if size.images is None:
            assert size.epochs == length
            continue
        assert count < images
        assert count % 128 == 0  # whole batches
        cube = (length / target) ** (1 / 3)
        wanted = max(least, work / (target * cube))
        assert wanted <= count < wanted + 128
        if wanted > least:
            assert size.epochs == pytest.approx(target * cube, rel=128 / count + 1 / size.epochs)
    assert plan.size(target) == Size(target)
    assert plan.size(2 * target) == Size(2 * target)


def test_a_share_of_the_work_is_a_power_of_the_epochs() -> None:
    plan = LengthPlan.make(NAMES, train_images=64_000, batch=100, config=ContestConfig(10**9, 800))
    assert [plan.size(length) for length in (1, 100, 800)] == [
        Size(80, 800),
        Size(400, 16_000),
        Size(800),
    ]
    assert str(plan.size(1)) == "80 epochs of 800 images"
    assert str(Size(1)) == "1 epoch"


def test_few_passes_are_told_of() -> None:
    make = partial(LengthPlan.make, NAMES, train_images=3200, batch=128)
    plan = make(config=ContestConfig(60_000))
    assert plan.left_out
    left = f"they leave out {len(plan.left_out)} of {len(NAMES)} candidates"
    assert plan.shortness == f"60,000 passes are few: {left}; {plan.enough:,} would do"
    whole = make(config=ContestConfig(plan.enough))
    assert (whole.left_out, whole.shortness) == ((), None)
    assert whole.names == tuple(NAMES)


def test_rungs_become_longer_and_the_proof_has_seeds_of_its_own() -> None:
    plan = LengthPlan.make(
        NAMES, train_images=3200, batch=128, config=ContestConfig(3_000_000, 100)
    )
    table, jobs = played(plan, {"a": 0.9, "none": 0.6, "d": 0.2})
    rungs = plan.rungs(table)
    for short, long in itertools.pairwise(rungs):
        assert 2 * short.length <= long.length <= 4 * short.length
    assert set(rungs[0].names) == set(NAMES)
    assert "d" not in rungs[1].names
    assert {"none", "crop-flip", "a"} <= set(rungs[1].names)
    proof = [job for job in jobs if job.seed >= FIRST_FRESH_SEED]
    assert {job.candidate for job in proof} == {"a", plan.chosen(table).reference}
    assert len({job.seed for job in proof}) == plan.fresh_seeds
    assert jobs[-len(proof) :] == proof
    assert {job.length for job in proof} == {plan.proof_length(table)}


@pytest.mark.parametrize(("passes", "seeds"), [(20_000_000, 1), (200_000_000, 2)])
def test_the_proof_is_long_before_it_is_repeated(passes: int, seeds: int) -> None:
    """Two networks of 20 epochs tell less of a training of 200 than one of a hundred."""
    names = (*NAMES, *"efghijklm")
    plan = LengthPlan.make(names, train_images=40_000, batch=128, config=ContestConfig(passes))
    table, jobs = played(plan, {"a": 0.9})
    assert len(plan.proof_seeds(table)) == len({job.seed for job in jobs} - {0}) == seeds
    used = 40_000 * sum(job.length for job in jobs)
    assert plan.proof_length(table) == plan.target or 0.98 * passes < used <= passes


def test_half_of_the_candidates_go_on_where_passes_are_few() -> None:
    names = (*NAMES, *"efghijklm")
    plan = LengthPlan.make(names, train_images=40_000, batch=128, config=ContestConfig(20_000_000))
    table, _ = played(plan, {})
    first, second, *_ = plan.rungs(table)
    assert (len(first.names), len(second.names)) == (15, 8)
    assert {"none", "crop-flip"} <= {*second.names}
    assert second.length == 4 * first.length


def test_the_proof_does_not_change_the_pick() -> None:
    plan = LengthPlan.make(NAMES, train_images=3200, batch=128, config=ContestConfig(1_000_000))
    table, _ = played(plan, {"a": 0.9})
    before = plan.chosen(table)
    worse = [e._replace(correct=~e.correct) if e.seed else e for e in table.entries]
    assert plan.chosen(replace(table, entries=tuple(worse))) == before


def test_few_passes_leave_out_the_last_candidates() -> None:
    make = LengthPlan.make
    many = make(NAMES, train_images=3200, batch=128, config=ContestConfig(3_000_000))
    few = make(NAMES, train_images=3200, batch=128, config=ContestConfig(250_000))
    assert many.names == NAMES
    assert few.names == NAMES[: len(few.names)]
    assert few.names + few.left_out == NAMES
    assert 3 <= len(few.names) < len(NAMES)


def test_no_augmentation_needs_no_proof() -> None:
    plan = LengthPlan.make(NAMES, train_images=3200, batch=128, config=ContestConfig(1_000_000))
    table, jobs = played(plan, {"none": 0.9})
    assert plan.chosen(table).winner == "none"
    assert all(job.seed < FIRST_FRESH_SEED for job in jobs)
    assert plan.proved(table) is None


def test_a_seed_plan_gives_more_seeds_to_those_that_stay() -> None:
    plan = SeedPlan(NAMES, 30, 2, 30, 3)
    table, _ = played(plan, {"a": 0.95, "none": 0.6, "d": 0.1})
    assert table.seeds("d", 30) == (0,)
    assert table.seeds("a", 30) == (0, 1, 2, FIRST_FRESH_SEED, FIRST_FRESH_SEED + 1)


# Trainings


def small_contest(candidates: list[Candidate], judges: int | None = None) -> Contest:
    data = as_images(blobs(100 if judges is None else 400, 1))
    judge = None if judges is None else torch.arange(judges)
    images = JudgedImages.of(data, judge)
    network = contest_network(images, "small", TrainConfig(batch=20), CPU)
    plan = LengthPlan(("none", "crop-flip", "rotate"), 6, 1, 2, 60_000, 400, 400, 20, 10)
    return Contest(candidates, images, network, plan, parallel=2)


def three() -> list[Candidate]:
    rotate = Operation("rotate", -30, 30, neutral=0.0)
    given = Policy.repeated(deepaa.Space((Operation("identity"), rotate), 3), [0.2, 0.4, 0.4], 1)
    return all_candidates("cifar", given=[Candidate("rotate", "rotate", given, "given")])[:3]


def same_tables(first: ContestTable, second: ContestTable) -> bool:
    def by_name(table: ContestTable) -> dict[tuple[str, int, int], tuple[Tensor, Tensor, float]]:
        return {entry[:3]: entry[3:] for entry in table.entries}

    ours, theirs = by_name(first), by_name(second)
    return ours.keys() == theirs.keys() and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) and a[2] == b[2]
        for a, b in ((ours[key], theirs[key]) for key in ours)
    )


@pytest.mark.parametrize(
    "judges", [pytest.param(None, marks=pytest.mark.slow), 100], ids=["folds", "part"]
)
def test_a_stopped_contest_goes_on_as_if_it_had_not_been(
    tmp_path: Path, judges: int | None, one_thread: None
) -> None:
    whole = small_contest(three(), judges)
    records = list(whole)
    entries = [record for record in records if isinstance(record, ContestEntry)]
    assert len(entries) == len(whole.table.entries)
    passes = sum(entry.length * len(part.train) for entry in entries for part in whole.images.parts)
    assert whole.passes == passes == records[-1].passes
    for stop_after in (3, 40):
        pieces = small_contest(three(), judges)
        steps = itertools.count()

        def stop(steps: itertools.count[int] = steps, limit: int = stop_after) -> None:
            if next(steps) == limit:
                raise StopAskedError

        pieces.before_step = stop
        with pytest.raises(StopAskedError):
            list(pieces)
        state = {name: tensor.clone() for name, tensor in pieces.state().items()}
        rest = small_contest(three(), judges)
        rest.load_state(state)
        list(rest)
        assert same_tables(rest.table, whole.table)
        assert rest.passes == whole.passes


def test_a_state_that_was_read_again_changes_no_order(tmp_path: Path, one_thread: None) -> None:
    """A file of tensors gives them back in an order of its own; names decide between equals."""
    first = Candidate("z", "z", Policy.always(Operation("invert")), "given")
    second = Candidate("a", "a", Policy.always(Operation("equalize")), "given")
    plan = LengthPlan(("none", "crop-flip", "z", "a"), 6, 1, 2, 60_000, 400, 400, 20, 10)
    candidates = all_candidates("cifar", given=[first, second])[:4]

    def again() -> Contest:
        shape = small_contest(three(), 100)
        return Contest(candidates, shape.images, shape.network, plan, parallel=2)

    contest = again()
    for record in contest:
        if isinstance(record, ContestEntry) and len(contest.table.entries) == 4:
            break
    with Run(tmp_path / "run", {"kind": "contest"}) as run:
        run.save(contest.state(), {"phase": "contest"})
        saved = run.latest()
    assert saved is not None
    assert [*saved.tensors] != [*contest.state()]
    resumed = again()
    resumed.load_state(saved.tensors)
    assert resumed.table.candidates == contest.table.candidates == plan.names
    assert plan.next_jobs(resumed.table) == plan.next_jobs(contest.table)


def test_networks_side_by_side_are_judged_together(one_thread: None) -> None:
    """A state between their records would put others beside them when it goes on."""
    contest = small_contest(three(), 100)
    for record in contest:
        if isinstance(record, ContestEntry):
            assert len(contest.table.entries) == 2
            return
    pytest.fail("nothing was judged")


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_each_entry_is_what_a_training_alone_gives(one_thread: None) -> None:
    from deepaa.train import ImageBatches, Training, evaluate

    contest = small_contest(three(), 100)
    list(contest)
    part, config = contest.images.parts[0], TrainConfig(batch=20, epochs=2, seed=0)
    in_order = contest.images.in_class_order(0)
    assert torch.equal(in_order.sort().values, part.train)
    images, labels = (each[in_order] for each in contest.images.data[:2])
    model = contest.network.make(0)
    batches = ImageBatches(images, labels, contest.candidates["rotate"].policy, config)
    _, record = Training(model, batches, config)
    judge = [each[part.judge] for each in contest.images.data[:2]]
    metrics = evaluate(model, *judge)
    (entry,) = (e for e in contest.table.entries if e[:3] == ("rotate", 2, 0))
    assert entry.correct.double().mean().item() == pytest.approx(metrics.accuracy)
    assert entry.losses.mean().item() == pytest.approx(metrics.loss, abs=1e-4)
    assert entry.train_loss == pytest.approx(record.loss, abs=1e-4)


def larger_contest() -> Contest:
    """One whose first rung trains on a part of the images."""
    data = as_images(blobs(1400, 1))
    images = JudgedImages.of(data, torch.arange(200))
    network = contest_network(images, "small", TrainConfig(batch=100), CPU)
    plan = LengthPlan(("none", "crop-flip", "rotate"), 40, 1, 2, 60_000, 1200, 1200, 100, 4)
    return Contest(three(), images, network, plan, parallel=2)


def test_a_short_training_has_the_first_of_the_images(one_thread: None) -> None:
    from deepaa.train import ImageBatches, Training

    contest = larger_contest()
    assert contest.plan.size(2) == Size(4, 500)
    epochs = [r for r in itertools.islice(contest, 9) if not isinstance(r, ContestEntry)]
    assert {record.size for record in epochs} == {Size(4, 500)}
    assert [record.epoch for record in epochs[:8:2]] == [0, 1, 2, 3]
    assert epochs[-1].passes == 8 * 500
    chosen = contest.images.in_class_order(0)[:500]
    images, labels = (each[chosen] for each in contest.images.data[:2])
    assert torch.bincount(labels).tolist() == [125] * 4
    config = TrainConfig(batch=100, epochs=4, seed=0)
    none = contest.candidates["none"].policy
    batches = ImageBatches(images, labels, none, config)
    alone = [record.loss for record in Training(contest.network.make(0), batches, config)]
    ours = [record.loss for record in epochs if record.candidate == "none"]
    assert ours == pytest.approx(alone, abs=1e-4)


def test_a_state_of_trainings_of_other_sizes_is_refused(one_thread: None) -> None:
    contest = larger_contest()
    next(iter(contest))
    state = contest.state()
    assert state["size/2"].tolist() == [4, 500]
    larger_contest().load_state(state)
    others = {**state, "size/2": torch.tensor([2, 0])}
    older = {name: tensor for name, tensor in state.items() if name != "size/2"}  # had all images
    for refused in (others, older):
        with pytest.raises(ValueError, match="trainings of length 2 have other sizes"):
            larger_contest().load_state(refused)


@pytest.mark.parametrize("searched", [False, True])
def test_images_that_judge_and_are_trained_on_are_told_of(
    caplog: pytest.LogCaptureFixture, searched: bool
) -> None:
    images, labels = (each.clone() for each in blobs(2000, 1))
    judge = judge_part(labels)
    others = torch.ones(2000, dtype=torch.bool)
    others[judge] = False
    images[judge[:7]] = images[others.nonzero()[0, 0]].clone()
    JudgedImages.of(as_images((images, labels)), searched=searched)
    told = [text for text in caplog.messages if "same pixels" in text]
    if searched:  # which has said so
        assert not told
        return
    part, classes = told
    assert "7 of 400 images of the judge have the same pixels as images that networks train" in part
    assert part.endswith("--groups keeps such images in one part")
    assert "of another class" in classes


def test_folds_judge_every_image_by_a_network_that_never_saw_it() -> None:
    images = JudgedImages.of(as_images(blobs(100, 1)))
    assert len(images.parts) == 5
    judged = torch.cat([part.judge for part in images.parts])
    assert torch.equal(judged.sort().values, torch.arange(100))
    for part in images.parts:
        assert not set(part.train.tolist()) & set(part.judge.tolist())
        assert len(part.train) + len(part.judge) == 100


@pytest.mark.parametrize(("count", "parts"), [(4, 4), (5, 5), (9, 5)])
def test_few_groups_have_fewer_folds_and_none_is_empty(count: int, parts: int) -> None:
    groups = torch.arange(100) * count // 100
    data = as_images(blobs(100, 1))._replace(groups=groups, labels=groups % 2)
    images = JudgedImages.of(data)
    assert len(images.parts) == parts
    for part in images.parts:
        assert len(part.judge)
        assert not set(groups[part.train].tolist()) & set(groups[part.judge].tolist())
    judged = torch.cat([part.judge for part in images.parts])
    assert torch.equal(judged.sort().values, torch.arange(100))


def test_groups_that_are_too_few_for_a_contest_are_refused_in_one_line() -> None:
    data = as_images(blobs(100, 1))._replace(groups=torch.arange(100) // 40)
    with pytest.raises(ValueError, match="in 3 groups, and a contest takes at least 4"):
        JudgedImages.of(data)


def test_a_training_that_fails_never_wins() -> None:
    contest = small_contest(three(), 100)
    contest.network = contest.network._replace(config=TrainConfig(batch=64, lr=1e30, clip=0.0))
    with pytest.raises(ValueError, match="no network of none or crop-flip was trained"):
        list(contest)
    assert all(entry.failed for entry in contest.table.entries)
    # nobody else trains where there is nothing to compare with
    assert set(contest.table.candidates) == {"none", "crop-flip"}


# The run folder and contest.json


def test_a_contest_in_a_run_folder(tmp_path: Path, one_thread: None) -> None:
    contest = small_contest(three(), 100)
    facts = contest_facts(contest.images, contest.network, Protection())
    asked = itertools.count()
    with Run(tmp_path / "run", {"kind": "contest"}) as run:
        first = ContestRun(contest, facts, run=run, stop=lambda: next(asked) > 60)
        list(first)
        assert first.stopped
        assert json.loads((run.folder / "contest.json").read_text())["status"] == "running"
        assert not (run.folder / "policy.json").exists()
    with Run(tmp_path / "run", {"kind": "contest"}) as run:
        saved = run.latest()
        assert saved is not None
        second = ContestRun(small_contest(three(), 100), facts, run=run, state=saved.tensors)
        list(second)
    whole = small_contest(three(), 100)
    list(whole)
    assert same_tables(second.contest.table, whole.table)
    content = json.loads((tmp_path / "run/contest.json").read_text())
    assert content["status"] == "finished"
    assert content["sentence"] == second.result.sentence
    winner = deepaa.load_policy(tmp_path / "run/policy.json")
    assert winner.info["contest"] == content["sentence"]
    assert winner.equals(whole.candidates[content["pick"]["winner"]].policy)
    assert same_tables(table_from_json(content["table"]), whole.table)
    history = list(read_history(tmp_path / "run"))
    assert {record["kind"] for record in history} == {"contest", "contest-epoch"}
    assert all(Size(r["epochs"], r["images"]) == Size(r["length"]) for r in history)


def test_the_pick_can_be_made_again_from_the_document() -> None:
    plan = LengthPlan.make(NAMES, train_images=3200, batch=128, config=ContestConfig(1_000_000))
    table, _ = played(plan, {"a": 0.9, "d": 0.2})
    again = table_from_json(json.loads(json.dumps(table_to_json(table))))
    assert plan.chosen(again) == plan.chosen(table)
    assert plan.proved(again) == plan.proved(table)
    candidates = {name: Candidate(name, f"the {name}", Policy.identity()) for name in NAMES}
    content = document(candidates, plan, table, {})
    rows = {row["name"]: row for row in content["candidates"]}
    for found in rows["a"]["rungs"]:
        assert Size(found["epochs"], found["images"]) == plan.size(found["length"])
    assert rows["d"]["left_after"] == plan.first
    assert rows["a"]["left_after"] is None
    assert rows["a"]["rungs"][0]["difference"] > 0.2
    assert content["pick"]["winner"] == "a"
    assert contest_result(candidates, plan, table).winner.name == "a"


# What is said


PICK = Pick("a", "none", "ahead", Difference(0.02, 0.005), extrapolated=False)
PROOF = Proof("a", "none", 0.011, 0.004, 0.018, 500, 2)
TITLES = {"a": "my policy", "none": "no augmentation", "crop-flip": "crop and flip"}


def said(
    chosen: Pick, proof: Proof | None, length: int, target: int, *, is_own: bool = False
) -> str:
    """The sentence after trainings of all images."""
    share = length / target
    size = Size(length)
    return say(chosen, proof, TITLES, size=size, target=target, share=share, is_own=is_own)


@pytest.mark.parametrize(
    ("pick", "proof", "text"),
    [
        (
            PICK,
            PROOF,
            "On your data my policy is 1.1 points better than no augmentation (95 %: 0.4 to 1.8) "
            "after 60 epochs.",
        ),
        (
            PICK,
            PROOF._replace(low=-0.002),
            "On your data my policy is 1.1 points better than no augmentation (95 %: -0.2 to 1.8) "
            "after 60 epochs, which may still be chance.",
        ),
        (
            PICK._replace(winner="none", reason="not-separated"),
            None,
            "Nothing helped after 60 epochs: train without augmentation.",
        ),
        (
            PICK._replace(winner="crop-flip", reference="crop-flip"),
            PROOF._replace(winner="crop-flip"),
            "No policy is clearly better than crop and flip: use that. On your data it is 1.1 "
            "points better than no augmentation (95 %: 0.4 to 1.8) after 60 epochs.",
        ),
        (
            PICK,
            PROOF._replace(mean=-0.011, low=-0.018, high=-0.004),
            "Nothing is proved to help: my policy led, but is 1.1 points worse than no "
            "augmentation (95 %: -1.8 to -0.4) after 60 epochs, on images and with networks that "
            "did not choose it; train without augmentation.",
        ),
        (
            PICK._replace(extrapolated=True),
            PROOF._replace(mean=-0.001, low=-0.008),
            "On your data my policy is 0.1 points worse than no augmentation (95 %: -0.8 to 1.8) "
            "after 60 epochs, but gains as trainings grow: take it for 100 epochs.",
        ),
    ],
)
def test_one_plain_sentence(pick: Pick, proof: Proof | None, text: str) -> None:
    assert said(pick, proof, 60, 100) == text
    short = said(pick, proof, 1, 2)
    assert short == text.replace("after 60 epochs", "after 1 epoch").replace(
        "for 100 epochs", "for 2 epochs"
    )
    own = said(pick, proof, 1, 2, is_own=True)
    assert own == short.replace("after 1 epoch", "in your loop")
    longer = said(pick, proof, 60, 200)
    assert longer.startswith(text.replace("100 epochs", "200 epochs"))
    assert "Trainings of 200 epochs may differ" in longer


def test_the_sentence_says_on_how_few_images_networks_were_trained() -> None:
    found = say(PICK, PROOF, TITLES, size=Size(60, 1280), target=200, share=0.1)
    assert "after 60 epochs of 1,280 images." in found
    assert found.endswith(" Trainings of 200 epochs of all images may differ.")


@pytest.mark.parametrize(
    ("pick", "proof", "text"),
    [
        (
            PICK._replace(winner="none", reason="alone"),
            None,
            "Crop and flip did not help after 60 epochs: train without augmentation.",
        ),
        (
            PICK._replace(winner="crop-flip", reference="crop-flip", reason="alone"),
            PROOF._replace(winner="crop-flip"),
            "On your data crop and flip is 1.1 points better than no augmentation (95 %: 0.4 to "
            "1.8) after 60 epochs.",
        ),
        (
            PICK._replace(winner="crop-flip", reference="crop-flip"),
            PROOF._replace(winner="crop-flip", low=-0.002),
            "No policy is clearly better than crop and flip: use that. On your data it is 1.1 "
            "points better than no augmentation (95 %: -0.2 to 1.8) after 60 epochs, which may "
            "still be chance.",
        ),
        (  # nothing is left to gain after the epochs that it was wanted for
            PICK._replace(extrapolated=True),
            PROOF,
            "On your data my policy is 1.1 points better than no augmentation (95 %: 0.4 to 1.8) "
            "after 60 epochs.",
        ),
        (
            PICK._replace(extrapolated=True),
            PROOF._replace(mean=-0.001, low=-0.008),
            "Nothing is proved to help: my policy led, but is 0.1 points worse than no "
            "augmentation (95 %: -0.8 to 1.8) after 60 epochs, on images and with networks that "
            "did not choose it; train without augmentation.",
        ),
    ],
)
def test_the_sentence_after_as_many_epochs_as_are_meant(
    pick: Pick, proof: Proof | None, text: str
) -> None:
    assert said(pick, proof, 60, 60) == text


@pytest.mark.parametrize(
    ("bad", "winner", "text"),
    [
        ({"a"}, "none", "of the a that should prove it failed"),
        ({"a", "none"}, "none", "of the a and the none that should prove it failed"),
        ({"none"}, "a", "of the none that should prove it failed"),
    ],
)
def test_a_proof_that_failed_gives_no_interval(bad: set[str], winner: str, text: str) -> None:
    """Networks whose loss is no number have everything wrong: that is no accuracy."""
    plan = LengthPlan.make(NAMES, train_images=3200, batch=128, config=ContestConfig(1_000_000))
    table, _ = played(plan, {"a": 0.9, "none": 0.65})
    broken = [
        e._replace(losses=e.losses * math.nan, correct=torch.zeros_like(e.correct))
        if e.candidate in bad and e.seed == FIRST_FRESH_SEED
        else e
        for e in table.entries
    ]
    table = replace(table, entries=tuple(broken))
    candidates = {name: Candidate(name, f"the {name}", Policy.identity()) for name in NAMES}
    result = contest_result(candidates, plan, table)
    assert result.proof is None
    assert result.winner.name == winner
    assert result.sentence.startswith("Nothing is proved: the a led after ")
    assert text in result.sentence
    advice = "train without augmentation" if winner == "none" else "use the a"
    assert f"as its loss was not a number; {advice}." in result.sentence
    assert "95 %" not in result.sentence
    content = document(candidates, plan, table, {})
    assert (content["proof"], set(content["unproved"])) == (None, bad)
    assert content["pick"]["winner"] == winner


def test_candidates_that_failed_are_not_told_as_beaten() -> None:
    plan = LengthPlan.make(NAMES, train_images=3200, batch=128, config=ContestConfig(1_000_000))
    table, _ = played(plan, {"none": 0.9})
    failed = [
        e._replace(train_loss=math.nan, correct=torch.zeros_like(e.correct))
        if e.candidate in "abcd"
        else e
        for e in table.entries
    ]
    table = replace(table, entries=tuple(failed))
    while left := plan.next_jobs(table):
        table = table.plus(outcome(left[0], 0.9))
    candidates = {name: Candidate(name, f"the {name}", Policy.identity()) for name in NAMES}
    sentence = contest_result(candidates, plan, table).sentence
    assert "Trainings of 4 of 6 candidates failed: their loss was not a number." in sentence
    rows = {row["name"]: row for row in document(candidates, plan, table, {})["candidates"]}
    first = rows["a"]["rungs"][0]
    assert (first["accuracy"], first["difference"], first["error"]) == (None, None, None)


def test_a_winner_that_is_surely_behind_never_stands() -> None:
    behind = PROOF._replace(mean=-0.01, low=-0.02, high=-0.001)
    assert not stands(PICK, behind)
    assert not stands(PICK._replace(extrapolated=True), behind)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        *((each, ContestConfig()) for each in (True, "on")),
        *((each, None) for each in (False, "off", None)),
        (60_000, ContestConfig(passes=60_000)),
        (ContestConfig(1000, 5), ContestConfig(1000, 5)),
    ],
)
def test_a_contest_is_asked_for_in_python(asked: Any, meant: ContestConfig | None) -> None:
    assert asked_contest(asked) == meant


@pytest.mark.parametrize("asked", ["maybe", 0.5, [], {}, ("on",)])
def test_what_asks_for_no_contest_is_one_line(asked: Any) -> None:
    with pytest.raises(TypeError, match=r"contest should be True or .*, got ") as raised:
        deepaa.find_policy(blobs(200, 1), contest=asked, device="cpu")
    assert "\n" not in str(raised.value)


# Loops of one's own


def test_the_users_own_loop(tmp_path: Path) -> None:
    labels = torch.arange(300) % 3
    calls = []

    def train(policy: Policy, seed: int) -> tuple[Tensor, Tensor]:
        """A network that likes rotations; half of its mistakes are its own."""
        likes = policy.expected_uses().get("rotate", 0.0) > 0.9
        calls.append((likes, seed))
        generator = torch.Generator().manual_seed(17 * seed + likes)
        correct = torch.rand(300, generator=generator) < (0.9 if likes else 0.6)
        return torch.where(correct, 0.2, 1.5), correct

    rotate = Policy.repeated(
        deepaa.Space((Operation("rotate", -30, 30, neutral=0.0),), 3), [0.5, 0.5], 1
    )
    result = hold_contest(
        train, {"turns": rotate}, usual=False, labels=labels, epochs=30, out=tmp_path / "run"
    )
    assert result.winner.name == "turns"
    assert result.policy.equals(rotate)
    assert result.proof is not None
    assert result.proof.low > 0.1
    assert "turns is" in result.sentence
    count = len(calls)
    again = hold_contest(
        train, {"turns": rotate}, usual=False, labels=labels, epochs=30, out=tmp_path / "run"
    )
    assert len(calls) == count
    assert again.sentence == result.sentence
    assert repr(again) == f"<ContestResult: turns. {result.sentence}>"
    assert load_policy(tmp_path / "run/policy.json").equals(rotate)
    # with another policy it goes on: what is there is no winner any more

    def fails(policy: Policy, seed: int) -> tuple[Tensor, Tensor]:
        raise KeyboardInterrupt

    more = {"turns": rotate, "more": rotate.strength(0.9)}
    with pytest.raises(KeyboardInterrupt):
        hold_contest(fails, more, usual=False, labels=labels, epochs=30, out=tmp_path / "run")
    assert not (tmp_path / "run/policy.json").exists()


def test_what_is_excluded_leaves_the_candidates_of_an_own_loop(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    def train(policy: Policy, seed: int) -> tuple[Tensor, Tensor]:
        seen.append(policy.expected_uses())
        return coins(policy, seed)

    call = {"found": FOUND, "labels": LABELS, "seeds": 1, "fresh_seeds": 1}
    mirror = {"mirror": Policy.always(Operation("flip"))}
    hold_contest(train, mirror, exclude="flip, invert", out=tmp_path, **call)  # type: ignore[arg-type]
    assert len(seen) > 10
    assert not any(uses.get("flip") or uses.get("invert") for uses in seen)
    content = json.loads((tmp_path / "contest.json").read_text())
    assert content["excluded"] == ["mirror"]
    titles = {each["name"]: each["title"] for each in content["candidates"]}
    assert titles["crop-flip"] == "crop and flip without flip"
    seen.clear()
    hold_contest(train, usual=False, exclude=lambda row: row.operation.name == "flip", **call)  # type: ignore[arg-type]
    assert any(uses.get("invert") for uses in seen)
    assert not any(uses.get("flip") for uses in seen)
    with pytest.raises(ValueError, match="exclude: no operation 'flop'; there are auto"):
        hold_contest(train, exclude=["flop"])


def test_an_own_loop_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    records: list[LoopRecord] = []
    hold = partial(hold_contest, coins, {"mine": "deepta:2"}, usual=False, labels=LABELS)
    hold(progress=records.append)
    assert [record.number for record in records] == [*range(1, len(records) + 1)]
    assert records[0][:4] == ("none", "no augmentation", 0, False)
    assert records[0].most == 3 * 2 + 2 * 2
    assert all(record.number <= record.most for record in records)
    assert capsys.readouterr() == ("", "")  # nobody looks
    hold(progress=True)
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("contest  training 1 of at most 10: no augmentation, seed 0\n")
    assert f"contest: {100 * records[0].accuracy:5.1f} %, no augmentation, seed 0\n" in err


@pytest.mark.parametrize("name", ["config.json", "policy.json"])
def test_a_folder_of_something_else_is_not_written_to(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"holds a {name} that is not of hold_contest"):
        hold_contest(coins, usual=False, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


LABELS = torch.arange(60) % 3
GROUPS = torch.arange(60) // 6


def coins(policy: Policy, seed: int) -> tuple[Tensor, Tensor]:
    """What a loop gives whose networks guess."""
    generator = torch.Generator().manual_seed(seed + policy.depth)
    correct = torch.rand(60, generator=generator) < 0.5
    return torch.where(correct, 0.2, 1.5), correct


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"policies": {"mine": "deepta:3"}}, "another policy 'mine'"),
        ({"policies": {}}, "'mine', which is no candidate now"),
        ({"epochs": 4}, "epochs=3, and this call has 4"),
        ({"seeds": 1}, "seeds=2, and this call has 1"),
        ({"fresh_seeds": 1}, "fresh_seeds=2, and this call has 1"),
        ({"groups": GROUPS.flip(0) // 2}, "other labels or groups"),
        ({"groups": None}, "other labels or groups"),
    ],
)
def test_a_folder_of_another_contest_is_not_taken(
    tmp_path: Path, change: dict[str, object], error: str
) -> None:
    """Its rows would be told as those of policies, epochs and images that they are not of."""
    call = {"policies": {"mine": "deepta:2"}, "epochs": 3, "labels": LABELS, "groups": GROUPS}
    hold = partial(hold_contest, coins, usual=False, out=tmp_path)
    hold(**call)  # type: ignore[arg-type]
    before = (tmp_path / "contest.json").read_bytes()
    with pytest.raises(ValueError, match=error) as raised:
        hold(**{**call, **change})  # type: ignore[arg-type]
    assert "Give another folder, or delete this one" in str(raised.value)
    assert (tmp_path / "contest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"epochs": 0}, "epochs should be 1 or more, got 0"),
        ({"seeds": 0}, "seeds should be 1 or more, got 0"),
        ({"fresh_seeds": 0}, "fresh_seeds should be 1 or more, got 0"),
        ({"labels": LABELS, "groups": GROUPS[:-1]}, "as many, got 60 and 59"),
        ({"groups": GROUPS // 4}, "in 3 groups, and a contest takes at least 4"),
        ({"policies": {"none": "deepta:2"}}, "two policies of a contest are called 'none'"),
    ],
)
def test_what_no_loop_can_do_is_refused_before_it_trains(
    change: dict[str, object], error: str
) -> None:
    def train(policy: Policy, seed: int) -> tuple[Tensor, Tensor]:
        pytest.fail("a training was begun")

    with pytest.raises(ValueError, match=error):
        hold_contest(train, usual=False, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gives", "error"),
    [
        (lambda p, s: 0.9, "train should return two sequences"),
        (lambda p, s: ([0.1, 0.2], [True]), r"got \(2,\) and \(1,\)"),
        (lambda p, s: ([0.1, 0.2], [0.5, 1.0]), "true or false"),
        (lambda p, s: ([], []), r"got \(0,\)"),
    ],
)
def test_a_loop_that_returns_something_else(gives: object, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        hold_contest(gives, usual=False)  # type: ignore[arg-type]
