"""PBA without networks: how numbers are explored, copied and handed down, and what they mean."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from worlds import make_world

from deepaa.ops import CIFAR, Operation, Row, Space
from deepaa.policy import IDENTITY, PBA_NAMES, SCHEDULE_EPOCHS, Policy, default_policy, load_policy
from deepaa.policy.foreign import read_log
from deepaa.search.methods import World
from deepaa.search.methods.pba import PopulationConfig
from deepaa.search.methods.pba_numbers import (
    MOST_CHAINS,
    Choices,
    Numbers,
    Population,
    Update,
    drifted_population,
    drifted_schedule,
    explore,
    quantile,
)

PAPER = PopulationConfig(population=16, interval=3, epochs=200)
HELPERS, SPOILERS = range(0, 10, 2), range(10, 20, 2)


def plain_world(
    space: Space = CIFAR, side: int = 32, channels: int = 3, **changes: object
) -> World:
    images = torch.zeros(6, channels, side, side, dtype=torch.uint8)
    labels = torch.arange(6) % 2
    return make_world((images, labels), (images, labels), space=space, **changes)


def some_numbers(seed: int) -> Numbers:
    drawn = np.random.default_rng(seed).integers(0, 10, 60).tolist()
    return tuple(drawn)


# Exploring


def law(start: int, top: int) -> list[float]:
    """How likely each value follows `start`: the rule, spelt out."""
    chances = [0.2 / (top + 1)] * (top + 1)
    for step in range(4):
        for sign in (-1, 1):
            chances[min(top, max(0, start + sign * step))] += 0.8 / 8
    return chances


@pytest.mark.parametrize("start", [0, 1, 5, 9])
def test_explore_follows_its_law(start: int) -> None:
    drawn = np.array([explore([start] * 60, seed) for seed in range(1700)])  # 10^5 draws
    for numbers, top in ((drawn[:, ::2], 10), (drawn[:, 1::2], 9)):
        expected = np.array(law(start, top)) * numbers.size
        found = np.bincount(numbers.flatten(), minlength=top + 1)
        assert len(found) == top + 1
        assert ((found - expected) ** 2 / expected).sum() < top + 5 * math.sqrt(2 * top)
    # neither neighbours nor the same number of two seeds move together
    moves = drawn - drawn.mean(0)
    for a, b in ((moves[:, :-2], moves[:, 2:]), (moves[:-1], moves[1:])):
        assert abs((a * b).mean() / moves.var()) < 5 / math.sqrt(a.size)


def test_explore_keeps_numbers_within_their_ends() -> None:
    highest, lowest = [10, 9] * 30, [0] * 60
    for seed in range(200):
        for start in (highest, lowest):
            found = explore(start, seed)
            assert all(0 <= number <= top for number, top in zip(found, highest, strict=True))
    assert explore(lowest, 1) == explore(lowest, 1) != explore(lowest, 2)


def test_without_selection_gates_drift_to_one_half() -> None:
    """The null: mean gates of .16, .38 and .47 after 1, 4 and 8 times, whatever they do."""
    gates = []
    for seed in range(300):
        numbers: Numbers = (0,) * 60
        line = []
        for time in range(8):
            numbers = explore(numbers, 100 * seed + time)
            line.append(sum(numbers[::2]) / 300)
        gates.append(line)
    means = np.mean(gates, 0)[[0, 3, 7]]
    np.testing.assert_allclose(means, [0.16, 0.38, 0.47], atol=0.01)  # a standard error is .004


# A round


@pytest.mark.parametrize(("members", "few"), [(2, 1), (3, 1), (4, 1), (5, 2), (8, 2), (16, 4)])
def test_a_quarter_is_replaced(members: int, few: int) -> None:
    assert quantile(members) == few


def test_the_worst_quarter_copies_the_best() -> None:
    scores = [0.5, 0.9, 0.1, 0.8, 0.2, 0.7, 0.6, 0.3]
    sources: Counter[int] = Counter()
    for seed in range(100):
        population = Population(8, 60, seed)
        population.numbers = [some_numbers(member) for member in range(8)]
        before = list(population.numbers)
        updates = population.step(scores, 3)
        assert [update.member for update in updates] == [2, 4]
        for update in updates:
            sources[update.source] += 1
            assert update.epoch == 3
            assert update.old == before[update.source]
            assert update.new == population.numbers[update.member] != update.old
        unchanged = [member for member in range(8) if member not in (2, 4)]
        assert all(population.numbers[member] == before[member] for member in unchanged)
        assert population.log == updates
    assert set(sources) == {1, 3}
    assert abs(sources[1] - 100) < 5 * math.sqrt(200 / 4)


def test_of_equal_scores_the_first_is_better() -> None:
    (update,) = Population(4, 60, 0).step([0.5] * 4, 1)
    assert (update.member, update.source) == (3, 0)


def test_whoever_failed_is_replaced() -> None:
    nan = math.nan
    cases = {
        (0.1, nan, 0.3, 0.4): [1],
        (nan, nan, nan, 0.4): [0, 1, 2],
        (0.1, 0.2, nan, 0.5, 0.6, 0.7, 0.8, 0.9): [0, 2],
        (nan, nan): [],
    }
    for scores, replaced in cases.items():
        updates = Population(len(scores), 60, 0).step(scores, 1)
        assert [update.member for update in updates] == replaced
        assert not any(math.isnan(scores[update.source]) for update in updates)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_planted_numbers_are_found(noise: float) -> None:
    """Helpers' gates rise and spoilers' fall in 66 rounds; numbers without effect drift."""

    def score(numbers: Numbers) -> float:
        return (sum(numbers[i] for i in HELPERS) - sum(numbers[i] for i in SPOILERS)) / 50

    helpers, spoilers, others = [], [], []
    for seed in range(4):
        population, generator = Population(16, 60, seed), np.random.default_rng(seed)
        for epoch in PAPER.rounds:
            errors = noise * generator.standard_normal(16)
            scores = np.array([score(numbers) for numbers in population.numbers]) + errors
            population.step(scores.tolist(), epoch)
        gates = np.array(max(population.numbers, key=score)) / 10
        helpers.append(gates[HELPERS].mean())
        spoilers.append(gates[SPOILERS].mean())
        others.append(gates[20::2].mean())
    assert min(helpers) > 0.75
    assert max(spoilers) < 0.25
    assert 0.35 < np.mean(others) < 0.65


# Lines of descent


def log_line(update: Update) -> str:
    """A line as PBA's code writes it."""
    trial, clone, epoch, old, new = update
    return str([str(trial), str(clone), epoch, epoch, list(old), list(new)])


def test_a_line_of_descent_is_what_a_log_of_it_reads_as() -> None:
    zeros = (0,) * 60
    a, b, c, d, e = map(some_numbers, range(5))
    line = [Update(2, 0, 3, zeros, a), Update(1, 2, 9, a, b), Update(3, 1, 12, b, c)]
    population = Population(4, 60, 0)
    population.log = [  # and what became of others
        Update(3, 1, 3, zeros, d),
        line[0],
        Update(0, 3, 6, d, e),
        line[1],
        line[2],
        Update(2, 3, 15, c, e),
    ]
    phases = population.line(3)
    assert phases == {0: zeros, 3: a, 9: b, 12: c}
    assert population.line(2) == {**phases, 15: e}
    schedule = Choices.of(plain_world()).schedule(phases, 200)
    assert schedule.equals(read_log("\n".join(map(log_line, line)), "log"))
    assert schedule.info == {SCHEDULE_EPOCHS: "200"}


def test_a_log_of_a_whole_search_is_read_as_its_schedule() -> None:
    population = drifted_population(PAPER, 60, 5)
    member, line = 7, []
    for update in reversed(population.log):
        if update.member == member:
            line.append(update)
            member = update.source
    text = "\n".join(map(log_line, reversed(line)))
    schedule = Choices.of(plain_world()).schedule(population.line(7), 200)
    assert schedule.equals(read_log(text, "log"))
    assert len(schedule.phases) == len(line) + 1 > 5


# What numbers mean


def test_names_that_the_space_lacks_have_no_numbers() -> None:
    kept = [operation for operation in CIFAR.operations if operation.name != "invert"]
    choices = Choices.of(plain_world(Space(tuple(kept))))
    assert choices.count == 56
    assert "invert" not in {row.operation.name for row in choices.table.rows}
    assert Choices.of(plain_world()).count == 4 * len(PBA_NAMES) == 60
    with pytest.raises(ValueError, match="no operation is left"):
        Choices.of(plain_world(Space((Operation("identity"), Operation("flip")))))


def test_rows_that_are_excluded_do_nothing() -> None:
    def excludes(row: Row) -> bool:
        magnitude = row.magnitude or 0.0
        return row.operation.name == "equalize" or (
            row.operation.name == "rotate" and magnitude > 15
        )

    choices = Choices.of(plain_world(excludes=excludes))
    assert choices.count == 56
    assert not any(excludes(row) for row in choices.table.rows)
    always = (10, 9) + (0, 0) * 27  # the first is rotate
    found = {
        tuple(row for row, _ in chain if row != IDENTITY): weight
        for chain, weight in choices.mixture(always)
    }
    (turned,) = [rows for rows in found if rows]
    assert [(row.operation.name, row.magnitude) for row in turned] == [("rotate", -27.0)]
    assert found[turned] == pytest.approx(0.8 / 2)  # of 80 % of the images, those of one sign


def brighter(image: object, magnitude: float | None) -> object:
    return image


def test_own_operations_have_numbers_too() -> None:
    own = [
        Operation("plain", pil=brighter),
        Operation("one_sided", 1.0, 4.0, pil=brighter),
        Operation("signed", -2.0, 2.0, neutral=0.0, pil=brighter),
    ]
    choices = Choices.of(plain_world(Space((*CIFAR.operations, *own))))
    assert choices.count == 4 * 18
    plain, one_sided, signed = choices.rows[-3:]
    assert {row for rows in plain for row in rows} == {Row(own[0], None)}
    assert [row.magnitude for (row,) in one_sided] == pytest.approx([1 + i / 3 for i in range(10)])
    assert [[row.magnitude for row in rows] for rows in signed][::9] == [[0.0], [2.0, -2.0]]


def test_cutout_grows_with_the_images() -> None:
    for side, size in ((16, 9), (32, 18), (224, 126)):
        rows = Choices.of(plain_world(side=side)).table.rows
        sizes = [row.operation.options["size"] for row in rows if row.operation.name == "cutout"]
        assert max(map(int, sizes)) == size


def test_chains_of_a_search_and_its_schedule_draw_the_same() -> None:
    choices, numbers = Choices.of(plain_world()), some_numbers(3)
    training = Policy(choices.table, choices.chains(numbers))
    found = choices.schedule({0: (0,) * 60, 2: numbers}, 4)
    keys = torch.arange(500)
    drawn = [
        [[policy.table.rows[row] for row in rows] for rows in policy.draw(keys, 2).choice.tolist()]
        for policy in (training, found)
    ]
    assert drawn[0] == drawn[1]


def test_a_schedule_fits_a_file(tmp_path: Path) -> None:
    """Even if the line of descent explores in every round."""
    phases = {epoch: explore(some_numbers(epoch), epoch) for epoch in range(3, 200, 3)}
    lasting = some_numbers(1)
    phases = {0: (0,) * 60, **phases}
    del phases[99], phases[102]
    phases[96] = lasting  # in force for nine epochs
    choices = Choices.of(plain_world())
    assert sum(len(choices.mixture(numbers)) for numbers in phases.values()) > MOST_CHAINS
    policy = choices.schedule(phases, 200)
    starts = [phase.epoch for phase in policy.phases]
    assert {0, 96} <= set(starts) < set(phases)
    assert len(starts) > 20
    policy = policy.then(default_policy())
    policy.save(tmp_path / "policy.json")
    assert load_policy(tmp_path / "policy.json").equals(policy)


# The control


def test_the_control_is_a_schedule_of_drift(tmp_path: Path) -> None:
    world = plain_world()
    policy = drifted_schedule(world, PAPER, 1)
    assert policy.equals(drifted_schedule(world, PAPER, 1))
    assert not policy.equals(drifted_schedule(world, PAPER, 2))
    policy.save(tmp_path / "policy.json")
    assert load_policy(tmp_path / "policy.json").equals(policy)
    assert policy.info[SCHEDULE_EPOCHS] == "200"
    explored = [len(drifted_population(PAPER, 4, seed).line(3)) - 1 for seed in range(40)]
    rounds = len(PAPER.rounds)
    assert rounds == 66
    error = math.sqrt(rounds * 3 / 16 / len(explored))
    assert abs(np.mean(explored) - rounds / 4) < 5 * error


def test_the_gates_of_the_control_are_those_of_drift() -> None:
    gates: dict[int, list[float]] = {1: [], 4: [], 8: []}
    for seed in range(60):
        line = list(drifted_population(PAPER, 60, seed).line(seed % 16).values())
        for times, found in gates.items():
            if len(line) > times:
                found.append(sum(line[times][::2]) / 300)
    for times, expected in ((1, 0.16), (4, 0.38), (8, 0.47)):
        assert len(gates[times]) > 40
        assert abs(np.mean(gates[times]) - expected) < 0.025  # a standard error is .008


# State


def test_numbers_follow_from_the_log() -> None:
    population = drifted_population(PAPER, 60, 2)
    other = Population(16, 60, 2)
    other.load_state(population.state())
    assert (other.numbers, other.log) == (population.numbers, population.log)
    empty = Population(16, 60, 2)
    empty.load_state(Population(16, 60, 2).state())
    assert empty.log == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((0, 0), 16),
        ((0, 1), -1),
        ((5, 2), 0),
        ((0, 3), 1),
        ((7, 63), 11),
        ((7, 64), 10),
        ((7, 63), -1),
        ((0, 2), 100),
    ],
)
def test_a_log_that_cannot_be_is_refused(place: tuple[int, int], value: int) -> None:
    log = drifted_population(PAPER, 60, 2).state()["log"]
    log[place] = value
    population = Population(16, 60, 2)
    with pytest.raises(ValueError, match="log"):
        population.load_state({"log": log})
    assert population.log == []
    for bad in (log[:, :-1], log.float(), log[0]):
        with pytest.raises(ValueError, match="lines of 123 whole numbers"):
            population.load_state({"log": bad})
    with pytest.raises(LookupError):
        population.load_state({})
