"""Weaker, spread and shorter policies, against laws that are multiplied out row by row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from PIL.Image import Image
from torchvision.transforms.v2 import functional as vision

from deepaa.data.embedded import load_embedded
from deepaa.ops import apply_batch, apply_pil
from deepaa.ops.rng import sample_keys
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Row, Table
from deepaa.policy import compared_policy, hidden_share, load_policy
from deepaa.policy.algebra import STEPS, weaker_draw
from deepaa.policy.policy import Policy
from deepaa.policy.stages import Chains, Layers, Stage

F64 = torch.float64


def darker(image: Image, magnitude: float | None, uniforms: object) -> Image:
    return image.point(lambda value: int(value * (1 - (magnitude or 0.5))))


NOTHING = Row(Operation("identity"), None)
ROTATE = Operation("rotate", -30.0, 30.0, neutral=0.0)
COLOR = Operation("color", 0.1, 1.9, neutral=1.0)
SOLARIZE = Operation("solarize", 0.0, 256.0, neutral=256.0)
POSTERIZE = Operation("posterize", 4.0, 8.0, neutral=8.0)
CUTOUT, SIZED = Operation("cutout"), Operation("cutout", 0.0, 0.5, neutral=0.0)
CROP, FLIP, BOX = Operation("crop"), Operation("flip"), Operation("resized_crop")
OWN = Operation("darker", 0.0, 1.0, neutral=0.0, pil=darker)
RANGED = Operation("shear_x", -0.3, 0.3)  # nobody said where it changes nothing
PLAIN = Operation("half", pil=darker)
ROWS = [
    *(Row(ROTATE, -30.0), Row(ROTATE, 7.5), Row(ROTATE, 0.0), Row(COLOR, 0.1), Row(COLOR, 1.6)),
    *(Row(SOLARIZE, 64.0), Row(POSTERIZE, 4.0), Row(POSTERIZE, 7 - 1 / 3), Row(SIZED, 0.5)),
    *(Row(CUTOUT, None), Row(CROP, None), Row(FLIP, None), Row(BOX, None)),
    *(Row(OWN, 0.8), Row(RANGED, 0.3), Row(PLAIN, None), NOTHING),
]
TABLE = Table(ROWS)


def layers(count: int) -> Layers:
    """Uneven layers over the table."""
    weights = torch.arange(1, count * len(ROWS) + 1, dtype=F64).reshape(count, -1) % 7
    return Layers(weights / weights.sum(1, keepdim=True))


CHAINS = Chains(
    torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=F64),
    torch.tensor([[0, 3], [9, 5], [6, 14], [2, 2]]),
    torch.tensor([[0.7, 1.0], [0.5, 0.4], [1.0, 0.0], [1.0, 1.0]], dtype=F64),
)
LAYERED = Policy(TABLE, layers(2), info={"found by": "hand"})
CHAINED = Policy(TABLE, CHAINS)
MIXED = Policy(TABLE, [layers(1), CHAINS])
SCHEDULED = Policy(TABLE, schedule=[(0, [CHAINS]), (3, [layers(1)]), (8, [])])
EMPTY = Policy(CIFAR)
NO_IDENTITY = Policy.always(CROP, FLIP)
POLICIES = {
    **{"layers": LAYERED, "chains": CHAINED, "mixed": MIXED, "phases": SCHEDULED},
    **{"no layers": EMPTY, "zero layers": Policy(CIFAR, torch.zeros(0, 139))},
    **{"no identity": NO_IDENTITY, "cifar10": load_policy("cifar10")},
    **{name: compared_policy(name) for name in ("autoaugment", "trivialaugment-wide")},
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
small_policy = pytest.mark.parametrize(
    "policy", [LAYERED, CHAINED, MIXED, SCHEDULED, NO_IDENTITY, EMPTY]
)
Law = dict[tuple[Row, ...], float]
STRENGTHS = (0.0, 0.01, 0.3, 0.5, 0.75, 0.99, 1.0)


# The oracle: what can happen to an image, way by way


def law(policy: Policy, change: Callable[[Row], Sequence[tuple[Row, float]]], epoch: int) -> Law:
    """The probability of each sequence of rows that do something, after a change of each row."""
    found: Law = {(): 1.0}
    for stage in policy.phase(epoch).stages:
        after: Counter[tuple[Row, ...]] = Counter()
        for before, p in found.items():
            for rows, q in ways_of_stage(policy.table, stage):
                for way in product(*(change(row) for row in rows)):
                    kept = tuple(row for row, _ in way if row != NOTHING)
                    after[before + kept] += p * q * math.prod(share for _, share in way)  # type: ignore[assignment]
        found = dict(after)
    return {rows: p for rows, p in found.items() if p}


def ways_of_stage(table: Table, stage: Stage) -> list[tuple[tuple[Row, ...], float]]:
    if isinstance(stage, Layers):
        places = product(range(len(table)), repeat=stage.depth)
        shares = [[float(p) for p in layer] for layer in stage.probabilities]
        found = [
            (way, math.prod(shares[k][i] for k, i in enumerate(way)))
            for way in places
            if all(shares[k][i] for k, i in enumerate(way))
        ]
        return [(tuple(table.rows[i] for i in way), p) for way, p in found]
    ways = []
    for slots, weight in stage.pairs():
        for states in product([True, False], repeat=len(slots)):
            gates = [g if state else 1 - g for (_, g), state in zip(slots, states, strict=True)]
            pairs = zip(slots, states, strict=True)
            rows = tuple(table.rows[i] if state else NOTHING for (i, _), state in pairs)
            ways.append((rows, weight * math.prod(gates)))
    return [(rows, p) for rows, p in ways if p]


def as_it_is(row: Row) -> list[tuple[Row, float]]:
    return [(row, 1.0)]


def assert_same(found: Law, expected: Law) -> None:
    """Equal up to the last digits of probabilities and magnitudes."""

    def rounded(some: Law) -> Counter[tuple[object, ...]]:
        sums: Counter[tuple[object, ...]] = Counter()
        for rows, p in some.items():
            key = tuple((op, None if m is None else round(m, 9)) for op, m in rows)
            sums[key] += p  # type: ignore[assignment]
        return sums

    one, two = rounded(found), rounded(expected)
    for key in {*one, *two}:
        assert one[key] == pytest.approx(two[key], abs=1e-12), key


def weaker(row: Row, s: float) -> list[tuple[Row, float]]:
    operation, magnitude = row
    if row == NOTHING or magnitude is None or operation.neutral is None:
        return [(row, s), (NOTHING, 1 - s)]
    if operation == POSTERIZE:
        bits = 8 - s * (8 - int(magnitude))
        magnitude = float(math.floor(bits + 0.5))
    else:
        magnitude = operation.neutral + s * (magnitude - operation.neutral)
    return [(NOTHING if magnitude == operation.neutral else Row(operation, magnitude), 1.0)]


# Strength


@small_policy
@pytest.mark.parametrize("s", STRENGTHS)
def test_strength_has_its_law(policy: Policy, s: float) -> None:
    for phase in policy.phases:
        found = law(policy.strength(s), as_it_is, phase.epoch)
        expected = law(policy, lambda row: weaker(row, s), phase.epoch)
        if s == 1:
            expected = law(policy, as_it_is, phase.epoch)
        assert_same(found, expected)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row(ROTATE, -30.0), -15.0),
        (Row(COLOR, 0.1), 0.55),
        (Row(COLOR, 1.6), 1.3),
        (Row(SOLARIZE, 64.0), 160.0),
        (Row(POSTERIZE, 4.0), 6.0),
        (Row(POSTERIZE, 5.0), 7.0),  # 6.5 bits: of two numbers the weaker
        (Row(POSTERIZE, 7 - 1 / 3), 7.0),  # which acts as 6
        (Row(SIZED, 0.5), 0.25),
        (Row(OWN, 0.8), 0.4),
    ],
)
def test_half_strength_of_a_magnitude(row: Row, expected: float) -> None:
    policy = Policy(Table([row]), torch.ones(1, 1)).strength(0.5)
    assert policy.table.rows == ((row.operation, expected),)
    assert policy.row_probabilities().tolist() == [[1.0]]


@pytest.mark.parametrize("operation", [CUTOUT, CROP, FLIP, BOX, PLAIN, RANGED])
def test_half_strength_without_a_magnitude_or_a_neutral_one(operation: Operation) -> None:
    row = Row(operation, 0.3 if operation is RANGED else None)
    policy = Policy(Table([row]), torch.ones(1, 1)).strength(0.25)
    assert dict(zip(policy.table.rows, policy.row_probabilities()[0].tolist(), strict=True)) == {
        NOTHING: 0.75,
        row: 0.25,
    }


@every_policy
def test_full_strength_is_the_policy_and_none_is_identity(policy: Policy) -> None:
    assert policy.strength(1).equals(policy)
    assert policy.strength(1).info == policy.info
    gone = policy.strength(0)
    for phase in gone.phases:
        assert gone.expected_uses(phase.epoch).get("identity", 0.0) == phase.depth <= 1
    images = load_embedded().train_images[:20]
    keys = sample_keys(0, 0, torch.arange(20))
    assert torch.equal(apply_batch(images, gone.draw(keys), gone.table), images)


def test_every_row_gets_weaker_with_its_strength() -> None:
    wide = [row for row in load_policy("trivialaugment-wide").table.rows if row.operation.high]
    for row in {*CIFAR.table.rows, *IMAGENET.table.rows, *wide[::3], *ROWS}:
        policy = Policy(Table([row]), torch.ones(1, 1))
        before = (0.0, 0.0)
        for s in (0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0):
            found = policy.strength(s)
            share = 1 - found.expected_uses().get("identity", 0.0)
            now = (share, max(map(distance, found.table.rows)))
            assert now[0] >= before[0]
            assert now[1] >= before[1]
            before = now
        assert before == (float(row != NOTHING), distance(row))


def distance(row: Row) -> float:
    """How far from doing nothing; 1 for what cannot say."""
    operation, magnitude = row
    if row == NOTHING:
        return 0.0
    neutral = operation.neutral
    if magnitude is None or neutral is None:
        return 1.0
    return abs((int(magnitude) if operation.name == "posterize" else magnitude) - neutral)


@pytest.mark.parametrize(
    "name", ["cifar10", "trivialaugment-wide", "autoaugment", "crop-flip-cutout", "deepta"]
)
def test_images_are_changed_and_hidden_more_with_more_strength(name: str) -> None:
    images = load_embedded().train_images[:1000]
    policy = compared_policy(name)
    changes, hidden = [], []
    for s in (0.0, 0.25, 0.5, 0.75, 1.0):
        some = policy.strength(s)
        draw = some.draw(sample_keys(1, 0, torch.arange(1000)))
        changed = apply_batch(images, draw, some.table)
        changes.append(float((changed.float() - images.float()).abs().mean()))
        hidden.append(hidden_share(some))
    assert changes[0] == hidden[0] == 0
    for values in (changes, hidden):
        assert all(b > 1.05 * a for a, b in pairwise(values)), values


def test_each_operation_changes_real_images_more_with_more_strength() -> None:
    images = load_embedded().train_images[:200]
    keys = sample_keys(1, 0, torch.arange(200))
    for operation in CIFAR.operations:
        if operation.name == "identity":
            continue
        for magnitude in {operation.low, operation.high} - {operation.neutral or math.inf}:
            one = Policy(Table([(operation, magnitude)]), torch.ones(1, 1))
            before = 0.0
            for s in (0.25, 0.5, 0.75, 1.0):
                some = one.strength(s)
                changed = apply_batch(images, some.draw(keys), some.table)
                change = float((changed.float() - images.float()).abs().mean())
                assert change > before, (operation.name, magnitude, s)
                before = change


@small_policy
@pytest.mark.parametrize("s", [0.25, 0.6])
def test_weaker_draws_come_as_often_as_those_of_the_weaker_policy(policy: Policy, s: float) -> None:
    n = 20_000
    for phase in policy.phases:
        draw, table = weaker_draw(policy, sample_keys(3, 1, torch.arange(n)), s, phase.epoch)
        found = Counter(
            tuple(table.rows[i] for i in rows if table.rows[i] != NOTHING)
            for rows in draw.choice.tolist()
        )
        expected = law(policy.strength(s), as_it_is, phase.epoch)
        assert found.keys() <= expected.keys()
        for chain, share in expected.items():
            spread = math.sqrt(n * share * (1 - share))
            assert abs(found[chain] - n * share) <= 5 * spread + 4, (chain, share)


@every_policy
def test_a_draw_weakens_step_by_step(policy: Policy) -> None:
    keys = sample_keys(0, 0, torch.arange(300))
    whole = policy.draw(keys)
    before = [[(-1.0, -1.0)] * policy.phase(0).depth for _ in keys]
    for s in (0.0, 0.2, 0.5, 0.8, 1.0):
        draw, table = weaker_draw(policy, keys, s)
        assert torch.equal(draw.uniform, whole.uniform)
        for i, (now, then) in enumerate(
            zip(draw.choice.tolist(), whole.choice.tolist(), strict=True)
        ):
            for k, (a, b) in enumerate(zip(now, then, strict=True)):
                row = table.rows[a]
                assert row.operation in (NOTHING.operation, policy.table.rows[b].operation)
                size = (float(row != NOTHING), distance(row))
                assert size >= before[i][k]
                before[i][k] = size
    images = load_embedded().train_images[:300]
    gone, table = weaker_draw(policy, keys, 0.0)
    assert torch.equal(apply_batch(images, gone, table), images)
    same, table = weaker_draw(policy, keys, 1.0)
    assert table is policy.table
    assert torch.equal(same.choice, whole.choice)


@pytest.mark.parametrize("s", [-0.1, 1.1, math.nan])
def test_draws_have_no_strength_beyond(s: float) -> None:
    with pytest.raises(ValueError, match=r"strength of a draw should be in 0\.\.1, got"):
        weaker_draw(LAYERED, torch.arange(3), s)


def test_strengths_multiply() -> None:
    kept = [i for i, row in enumerate(ROWS) if row.operation is not POSTERIZE]  # whole bits
    shares = torch.ones(2, len(kept), dtype=F64) / len(kept)
    policy = Policy(Table(ROWS[i] for i in kept), shares)
    twice = law(policy.strength(0.5).strength(0.6), as_it_is, 0)
    assert_same(twice, law(policy.strength(0.3), as_it_is, 0))


@pytest.mark.parametrize("s", [-0.1, 1.001, math.nan, math.inf])
def test_strengths_without_meaning(s: float) -> None:
    with pytest.raises(ValueError, match=f"strength of a policy should be in 0..1, got {s}"):
        LAYERED.strength(s)


# Spread


def spread_shares(
    policy: Policy, layer: int, operation: Operation, sign: int
) -> dict[float, float]:
    """The probability of each distance from the neutral magnitude on one side."""
    found = policy.row_probabilities()[layer].tolist()
    shares: dict[float, float] = {}
    for row, share in zip(policy.table.rows, found, strict=True):
        if row.operation == operation and row.magnitude is not None and share:
            step = sign * (row.magnitude - (operation.neutral or 0.0))
            if step >= 0:
                shares[step] = shares.get(step, 0.0) + share
    return shares


@pytest.mark.parametrize("name", ["cifar10", "deepta", "trivialaugment-wide", "uniformaugment"])
def test_a_spread_magnitude_is_uniform_up_to_itself(name: str) -> None:
    """At each magnitude of the policy the distribution function is exact, between them nearly."""
    policy = load_policy(name)
    found = policy.spread()
    assert found.depth == policy.depth
    assert torch.allclose(found.row_probabilities().sum(1), torch.ones(found.depth, dtype=F64))
    graded = [op for op in policy.table.operations if op.neutral is not None]
    assert len(graded) == 11
    for layer, operation, sign in product(range(policy.depth), graded, (-1, 1)):
        if operation.name == "posterize":
            continue
        before = spread_shares(policy, layer, operation, sign)
        before.pop(0.0, None)  # at the neutral magnitude it is identity
        after = spread_shares(found, layer, operation, sign)
        assert 0.0 not in after
        assert sum(after.values()) == pytest.approx(sum(before.values()), abs=1e-12)
        for end in before:
            expected = sum(p * min(1.0, end / most) for most, p in before.items())
            below = sum(p for step, p in after.items() if step < end)
            assert below == pytest.approx(expected, abs=1e-12)
        assert max(after, default=0.0) <= max(before, default=0.0)
        mean = sum(step * p for step, p in after.items())
        assert mean == pytest.approx(sum(end / 2 * p for end, p in before.items()))
        gaps = [b - a for a, b in pairwise(sorted(after))]
        assert max(gaps, default=0.0) <= max(after, default=0.0) / (STEPS - 0.5) + 1e-9


def test_spread_bits_are_whole() -> None:
    table = Table([(POSTERIZE, 4 + 1 / 3), (POSTERIZE, 7.0), (POSTERIZE, 8.0)])
    for share, bits in (([1, 0, 0], (8, 7, 6, 5, 4)), ([0, 1, 0], (8, 7)), ([0, 0, 1], (8,))):
        found = Policy(table, torch.tensor([share], dtype=F64)).spread()
        shares = dict(zip(found.table.rows, found.row_probabilities()[0].tolist(), strict=True))
        rows = [NOTHING if bit == 8 else Row(POSTERIZE, float(bit)) for bit in bits]
        assert shares == pytest.approx({row: 1 / len(bits) for row in rows})


def test_what_has_no_magnitude_or_no_neutral_one_is_not_spread() -> None:
    rows = [row for row in ROWS if row.magnitude is None or row.operation is RANGED]
    policy = Policy(Table(rows), torch.ones(1, len(rows), dtype=F64) / len(rows))
    assert_same(law(policy.spread(), as_it_is, 0), law(policy, as_it_is, 0))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_chains_spread_each_slot(depth: int) -> None:
    """Each slot has every step once, and chains become eleven times as many at most."""
    rows = [Row(ROTATE, 30.0), Row(COLOR, 0.1), Row(SOLARIZE, 0.0)][:depth]
    chain = Policy.of_chains({0: [([(row, 0.8) for row in rows], 1.0)]})
    found = chain.spread()
    (stage,) = found.phases[0].stages
    assert isinstance(stage, Chains)
    assert stage.rows.shape == (STEPS, depth)
    assert torch.equal(stage.gates, torch.full((STEPS, depth), 0.8, dtype=F64))
    for s, row in enumerate(rows):
        steps = sorted(abs(distance(found.table.rows[i])) for i in stage.rows[:, s].tolist())
        middles = [(k + 0.5) / STEPS * distance(row) for k in range(STEPS)]
        assert steps == pytest.approx(middles)
    if depth > 1:  # the steps of neighbouring slots hardly depend on each other
        first, second = (
            torch.tensor([distance(found.table.rows[i]) for i in stage.rows[:, s].tolist()])
            for s in (0, 1)
        )
        assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.11


def test_a_spread_policy_stays_small() -> None:
    for name in ("deepta", "autoaugment", "trivialaugment-wide", "uniformaugment", "cifar100"):
        policy = compared_policy(name)
        sides = 2 * len(policy.table.operations)
        found = policy.spread()
        assert len(found.table) <= len(policy.table) + sides * STEPS
        before, after = (
            sum(len(s.weights) for s in p.phases[0].stages if isinstance(s, Chains))
            for p in (policy, found)
        )
        assert after <= STEPS * before
    assert len(Policy.uniform(CIFAR, 6).spread().table) == 239


def test_spread_and_strength_may_come_in_any_order() -> None:
    policy = Policy(CIFAR.without("posterize"), torch.full((1, 127), 1 / 127, dtype=F64))
    one, two = policy.spread().strength(0.5), policy.strength(0.5).spread()
    assert_same(law(one, as_it_is, 0), law(two, as_it_is, 0))


# Without some rows


@small_policy
def test_excluded_rows_become_identity(policy: Policy) -> None:
    def is_excluded(row: Row) -> bool:
        return row.operation.name in ("flip", "cutout") or row.magnitude == -30.0

    for phase in policy.phases:
        found = law(policy.without(is_excluded), as_it_is, phase.epoch)
        expected = law(
            policy, lambda row: [(NOTHING if is_excluded(row) else row, 1.0)], phase.epoch
        )
        assert_same(found, expected)


def test_a_layer_that_does_nothing_then_is_gone() -> None:
    policy = compared_policy("crop-flip-cutout").without(lambda row: row.operation.name == "flip")
    assert policy.depth == 2
    assert [row.operation.name for row in policy.table.rows] == ["crop", "cutout"]
    assert policy.info["changed"] == "without flip"
    nothing = policy.without(lambda row: True)
    assert nothing.equals(Policy.identity())
    chains = CHAINED.without(lambda row: row.operation in (ROTATE, CUTOUT, POSTERIZE))
    assert chains.depth == 1
    (stage,) = chains.phases[0].stages
    assert isinstance(stage, Chains)
    # the first slot does nothing any more; in the second a closed gate is no row
    assert stage.weights.tolist() == [0.5, 0.3, 0.2]


def test_nothing_to_exclude_changes_nothing() -> None:
    for policy in POLICIES.values():
        assert policy.without(lambda row: row.operation.name == "identity").equals(policy)
    asked: list[Row] = []

    def is_excluded(row: Row) -> bool:
        asked.append(row)
        return False

    LAYERED.without(is_excluded)
    assert NOTHING not in asked
    drawn = LAYERED.row_probabilities().sum(0).gt(0).tolist()
    assert asked == [r for r, p in zip(ROWS, drawn, strict=True) if p and r != NOTHING]


def test_what_is_left_of_an_operation_is_said() -> None:
    policy = load_policy("deepta").without(lambda row: row.magnitude == 30.0)
    assert policy.info["changed"] == "without parts of rotate"
    assert policy.expected_uses()["rotate"] == pytest.approx(6 / 18 * 11 / 12)


# Ending


def test_an_ending_begins_at_its_epoch() -> None:
    weak = load_policy("crop-flip")
    found = SCHEDULED.ending(weak, 5)
    assert [phase.epoch for phase in found.phases] == [0, 3, 5]
    for epoch in range(12):
        source = SCHEDULED if epoch < 5 else weak
        assert_same(law(found, as_it_is, epoch), law(source, as_it_is, epoch))
    keys = sample_keys(0, 7, torch.arange(50))
    images = load_embedded().train_images[:50]
    ended, alone = (apply_batch(images, p.draw(keys, 7), p.table) for p in (found, weak))
    assert torch.equal(ended, alone), "the draws are those of the ending alone"
    assert_same(law(found.ending(weak, 5), as_it_is, 6), law(found, as_it_is, 6))


def test_an_ending_with_phases_keeps_its_epochs() -> None:
    found = LAYERED.ending(SCHEDULED, 2)
    assert [phase.epoch for phase in found.phases] == [0, 2, 3, 8]
    assert found.phase(2).depth == 2  # chains, as at epoch 2 of the schedule
    assert found.phase(9).depth == 0
    assert LAYERED.ending(SCHEDULED, 0).depth == SCHEDULED.depth
    with pytest.raises(ValueError, match="from 0 on, got -1"):
        LAYERED.ending(SCHEDULED, -1)


# Ordinary policies

CHANGES: dict[str, Callable[[Policy], Policy]] = {
    "strength": lambda policy: policy.strength(0.4),
    "spread": lambda policy: policy.spread(),
    "both": lambda policy: policy.spread().strength(0.7),
    "without": lambda policy: policy.without(lambda row: row.operation.name in ("flip", "rotate")),
    "ending": lambda policy: policy.ending(NO_IDENTITY, 4),
}


@every_policy
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_results_are_ordinary_policies(
    policy: Policy, change: Callable[[Policy], Policy], tmp_path: Path
) -> None:
    found = change(policy)
    assert len(set(found.table.rows)) == len(found.table)
    found.save(tmp_path / "policy.json")
    again = load_policy(tmp_path / "policy.json", operations=[OWN, PLAIN])
    assert again.equals(found)
    assert again.info == found.info
    images = load_embedded().train_images[:12]
    for epoch in (0, 5, 9):
        keys = sample_keys(3, epoch, torch.arange(12))
        draw = found.draw(keys, epoch)
        changed = apply_batch(images, draw, found.table)
        for i, key in enumerate(keys.tolist()):
            assert [row for row, _ in found.draw_one(key, epoch)] == draw.choice[i].tolist()
            one = found.draw(keys[i : i + 1], epoch)
            picture = apply_pil(vision.to_pil_image(images[i]), one, found.table)
            assert torch.equal(vision.pil_to_tensor(picture), changed[i])


def test_what_was_done_is_noted_in_order() -> None:
    policy = LAYERED.spread().strength(0.5).without(lambda row: row.operation is FLIP)
    ended = policy.ending(NO_IDENTITY, 9)
    done = "spread; strength 0.5; without flip; another policy from epoch 9 on"
    assert ended.info == {"found by": "hand", "changed": done}
    assert LAYERED.info == {"found by": "hand"}
