"""policy.py: draws are pure and have the stated law; everything else against enumeration."""

from __future__ import annotations

import copy
import math
import pickle
from bisect import bisect_right
from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL.Image import Image

from deepaa.ops.rng import fresh_keys, sample_keys
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Row, Space, Table
from deepaa.policy.policy import MAX_DEPTH, Policy
from deepaa.policy.stages import Chains, Layers, Stage

F64 = torch.float64
IDENTITY = Operation("identity")
ROTATE = Operation("rotate", -30.0, 30.0, neutral=0.0)
SHEAR = Operation("shear_x", -0.3, 0.3, neutral=0.0)
COLOR = Operation("color", 0.1, 1.9, neutral=1.0)
CROP, FLIP, CUTOUT = Operation("crop"), Operation("flip"), Operation("cutout")

TABLE = Table(
    [
        (ROTATE, -30.0),
        (IDENTITY, None),
        (ROTATE, 15.0),  # without its mirror image
        (ROTATE, 30.0),
        (SHEAR, -0.3),
        (COLOR, 0.1),
        (CROP, None),
        (FLIP, None),
    ]
)


def layers(*rows: list[float]) -> Layers:
    return Layers(torch.tensor(rows, dtype=F64))


def chains(*parts: tuple[float, list[tuple[int, float]]]) -> Chains:
    return Chains(
        torch.tensor([weight for weight, _ in parts], dtype=F64),
        torch.tensor([[row for row, _ in slots] for _, slots in parts]),
        torch.tensor([[gate for _, gate in slots] for _, slots in parts], dtype=F64),
    )


LAYERED = Policy(
    TABLE,
    layers(
        [0.3, 0.0, 0.2, 0.1, 0.25, 0.15, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.6, 0.4],
    ),
    info={"found by": "hand"},
)
CHAINED = Policy(
    TABLE,
    chains(
        (0.5, [(0, 0.7), (5, 0.2)]),
        (0.3, [(4, 1.0), (4, 0.5)]),
        (0.2, [(2, 0.0), (7, 0.9)]),
    ),
)
MIXED = Policy(
    TABLE,
    [
        LAYERED.phases[0].stages[0],
        CHAINED.phases[0].stages[0],
        layers([0.125] * 8),
    ],
)
SCHEDULED = Policy(
    TABLE,
    schedule=[
        (0, MIXED.phases[0].stages),
        (3, CHAINED.phases[0].stages),
        (10, ()),
        (11, LAYERED.phases[0].stages),
    ],
)
POLICIES = {"layers": LAYERED, "chains": CHAINED, "mixed": MIXED}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
Joint = dict[tuple[Row, ...], float]


# The oracle: all that can be drawn, one by one.


def joint(policy: Policy, epoch: int = 0) -> Joint:
    """The probability of every sequence of rows."""
    found: Joint = {(): 1.0}
    for stage in policy.phase(epoch).stages:
        found = times(found, stage_joint(policy.table, stage))
    return found


def stage_joint(table: Table, stage: Stage) -> Joint:
    found: Counter[tuple[Row, ...]] = Counter()
    if isinstance(stage, Layers):
        for chosen in product(range(len(table)), repeat=stage.depth):
            p = math.prod(stage.probabilities[k, i].item() for k, i in enumerate(chosen))
            found[tuple(table.rows[i] for i in chosen)] += p
        return dict(found)
    nothing = Row(IDENTITY, None)
    for m, weight in enumerate(stage.weights.tolist()):
        for is_open in product([True, False], repeat=stage.depth):
            p, rows = weight, []
            for s, opened in enumerate(is_open):
                gate = stage.gates[m, s].item()
                p *= gate if opened else 1 - gate
                rows.append(table.rows[stage.rows[m, s]] if opened else nothing)
            found[tuple(rows)] += p
    return dict(found)


def times(a: Joint, b: Joint) -> Joint:
    found: Counter[tuple[Row, ...]] = Counter()
    for x, p in a.items():
        for y, q in b.items():
            found[x + y] += p * q
    return dict(found)


def mirrored(law: Joint) -> Joint:
    """The law after each shear and rotation changes its sign with probability 1/2."""
    found: Counter[tuple[Row, ...]] = Counter()
    for rows, p in law.items():
        ways = [
            (row, Row(row.operation, -row.magnitude))
            if row.operation in (ROTATE, SHEAR) and row.magnitude is not None
            else (row, row)
            for row in rows
        ]
        for way in product(*ways):
            found[way] += p / 2 ** len(rows)
    return dict(found)


def assert_same_law(found: Joint, expected: Joint, tolerance: float = 1e-12) -> None:
    for rows in {*found, *expected}:
        assert abs(found.get(rows, 0.0) - expected.get(rows, 0.0)) <= tolerance, rows


def keys(n: int, seed: int = 0) -> torch.Tensor:
    return fresh_keys(n, torch.device("cpu"), torch.Generator().manual_seed(seed))


# Drawing


@every_policy
def test_a_draw_does_not_depend_on_the_batch(policy: Policy) -> None:
    many = keys(500)
    whole = policy.draw(many)
    assert whole.choice.shape == (500, policy.depth)
    assert whole.uniform.shape == (500, policy.depth, 2)
    assert whole.choice.dtype == torch.int64
    assert whole.uniform.dtype == torch.float32
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    for part in (slice(0, 1), slice(17, 250), order):
        draw = policy.draw(many[part])
        assert torch.equal(draw.choice, whole.choice[part])
        assert torch.equal(draw.uniform, whole.uniform[part])


@every_policy
def test_drawing_again_and_later_changes_nothing(policy: Policy) -> None:
    first = policy.draw(keys(100))
    torch.rand(3)
    policy.draw(keys(50, seed=9))
    assert torch.equal(first.choice, policy.draw(keys(100)).choice)
    assert torch.equal(first.uniform, policy.draw(keys(100)).uniform)


@pytest.mark.parametrize("epoch", [0, 2, 3, 9, 10, 11, 500])
def test_draw_one_equals_draw(epoch: int) -> None:
    check_draw_one(SCHEDULED, keys(200), epoch)


@pytest.mark.parametrize("space", [CIFAR, IMAGENET], ids=["cifar", "imagenet"])
def test_draw_one_equals_draw_over_a_space(space: Space) -> None:
    check_draw_one(Policy.trivial(space, 3), keys(100))


def check_draw_one(policy: Policy, many: torch.Tensor, epoch: int = 0) -> None:
    draw = policy.draw(many, epoch)
    for n, key in enumerate(many.tolist()):
        steps = policy.draw_one(key, epoch)
        assert [row for row, _ in steps] == draw.choice[n].tolist()
        for k, (row, uniforms) in enumerate(steps):
            assert len(uniforms) == policy.table.rows[row].operation.uniforms
            assert uniforms == draw.uniform[n, k, : len(uniforms)].tolist()


probability = st.floats(0, 1, allow_subnormal=True)


@st.composite
def distributions(draw: st.DrawFn, size: int) -> list[float]:
    weights = draw(
        st.lists(
            st.sampled_from([0.0, 0.0, 1e-300, 1e-17, 0.3, 1.0, 7.0]), min_size=size, max_size=size
        )
        | st.lists(probability, min_size=size, max_size=size)
    )
    weights[draw(st.integers(0, size - 1))] += 1.0
    return [weight / math.fsum(weights) for weight in weights]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_draw_one_equals_draw_for_any_policy(data: st.DataObject) -> None:
    size = len(TABLE)
    stages: list[Stage] = []
    for _ in range(data.draw(st.integers(0, 3))):
        if data.draw(st.booleans()):
            count = data.draw(st.integers(0, 3))
            rows = [data.draw(distributions(size)) for _ in range(count)]
            stages.append(Layers(torch.tensor(rows, dtype=F64).view(count, size)))
        else:
            weights = data.draw(distributions(data.draw(st.integers(1, 4))))
            slots = data.draw(st.integers(1, 3))
            slot = st.tuples(st.integers(0, size - 1), probability)
            parts = [data.draw(st.lists(slot, min_size=slots, max_size=slots)) for _ in weights]
            stages.append(chains(*zip(weights, parts, strict=True)))
    policy = Policy(TABLE, stages)
    special = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)])
    check_draw_one(policy, torch.cat((special, keys(10))))


@given(distributions(6))
def test_no_word_draws_a_row_of_probability_zero(distribution: list[float]) -> None:
    steps = layers(distribution).constants[0][0].tolist()
    edges = {0, 2**53 - 1, *(s for s in steps), *(s - 1 for s in steps)}
    for word in edges:
        if 0 <= word < 2**53:
            assert distribution[bisect_right(steps, word)] > 0


@given(distributions(6))
def test_thresholds_give_each_row_its_share(distribution: list[float]) -> None:
    steps = [0, *layers(distribution).constants[0][0].tolist()]
    for p, low, high in zip(distribution, steps, steps[1:], strict=False):
        assert abs((high - low) / 2**53 - p) < 1e-14


def test_rows_of_probability_zero_are_never_drawn() -> None:
    draw = LAYERED.draw(keys(100_000))
    assert set(draw.choice[:, 0].tolist()) == {0, 2, 3, 4, 5}
    assert set(draw.choice[:, 1].tolist()) == {6, 7}


def test_closed_gates_give_identity_and_open_ones_their_row() -> None:
    policy = Policy(TABLE, chains((1.0, [(3, 0.0), (4, 1.0)])))
    assert set(map(tuple, policy.draw(keys(10_000)).choice.tolist())) == {(1, 4)}


@pytest.mark.parametrize("source", ["fresh", "samples"])
@every_policy
def test_sampled_frequencies_are_within_5_sigma(policy: Policy, source: str) -> None:
    # of whole sequences, so that layers must be independent too
    n = 400_000
    many = keys(n, seed=7) if source == "fresh" else sample_keys(3, 1, torch.arange(n))
    counts = Counter(map(tuple, policy.draw(many).choice.tolist()))
    law = joint(policy)
    rows = policy.table.rows
    found = {tuple(rows[i] for i in chosen): count for chosen, count in counts.items()}
    assert set(found) <= {chosen for chosen, p in law.items() if p > 0}
    for chosen, p in law.items():
        sigma = math.sqrt(n * p * (1 - p))
        # a rare sequence is not normally distributed; 5 more images cover it
        assert abs(found.get(chosen, 0) - n * p) <= 5 * sigma + 5, chosen


def test_frequencies_over_the_139_are_within_5_sigma() -> None:
    n = 300_000
    policy = Policy.trivial(CIFAR, 2)
    choice = policy.draw(sample_keys(0, 0, torch.arange(n))).choice
    for k in range(2):
        counts = torch.bincount(choice[:, k], minlength=139).double()
        p = policy.row_probabilities()[k]
        assert ((counts - n * p).abs() <= 5 * (n * p * (1 - p)).sqrt()).all()


def test_uniform_numbers_are_independent_of_the_choice() -> None:
    draw = LAYERED.draw(keys(200_000))
    flips = draw.uniform[:, 1, 0][draw.choice[:, 1] == 7]
    assert abs((flips >= 0.5).double().mean().item() - 0.5) < 5 * 0.5 / math.sqrt(len(flips))


def test_zero_images_and_zero_layers() -> None:
    assert MIXED.draw(keys(0)).choice.shape == (0, 5)
    empty = Policy(TABLE)
    assert len(empty) == 0
    assert empty.draw(keys(4)).choice.shape == (4, 0)
    assert empty.draw(keys(4)).uniform.shape == (4, 0, 2)
    assert empty.draw_one(1) == []
    assert empty.expected_uses() == {op.name: 0.0 for op in TABLE.operations}


def test_sample_follows_its_generator() -> None:
    def sample(seed: int) -> torch.Tensor:
        return LAYERED.sample(50, torch.Generator().manual_seed(seed)).choice

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))
    assert SCHEDULED.sample(5, epoch=10).choice.shape == (5, 0)


def test_a_schedule_changes_at_its_epochs() -> None:
    many = keys(100)
    for epoch, expected in [(0, MIXED), (2, MIXED), (3, CHAINED), (9, CHAINED), (11, LAYERED)]:
        assert torch.equal(SCHEDULED.draw(many, epoch).choice, expected.draw(many).choice)
        assert_same_law(joint(SCHEDULED, epoch), joint(expected))


# Policies from policies


@pytest.mark.parametrize("second", POLICIES.values(), ids=POLICIES.keys())
@pytest.mark.parametrize("first", [LAYERED, CHAINED], ids=["layers", "chains"])
def test_then_is_one_after_the_other(first: Policy, second: Policy) -> None:
    if second is MIXED:
        second = second.first_layers(3)
    both = first.then(second)
    assert both.table == first.table
    assert_same_law(joint(both), times(joint(first), joint(second)))


def test_then_joins_schedules() -> None:
    late = Policy(TABLE, schedule=[(0, ()), (5, CHAINED.phases[0].stages)])
    both = SCHEDULED.then(late)
    assert [phase.epoch for phase in both.phases] == [0, 3, 5, 10, 11]
    for epoch in (0, 3, 5, 10, 11):
        expected = times(joint(SCHEDULED, epoch), joint(late, epoch))
        assert_same_law(joint(both, epoch), expected)


def test_then_joins_spaces() -> None:
    cifar, imagenet = Policy.trivial(CIFAR, 2), Policy.uniform(IMAGENET, 1)
    both = cifar.then(imagenet)
    rows = both.table.rows
    assert rows[:139] == CIFAR.table.rows
    assert [row.operation for row in rows[139:]] == list(IMAGENET.operations[-2:])
    assert [
        row.operation.options.get("size") for row in rows if row.operation.name == "cutout"
    ] == [16, 60]
    many = keys(2000)
    draw = both.draw(many)
    # what comes after does not change what was drawn before
    assert torch.equal(draw.choice[:, :2], cifar.draw(many).choice)
    assert {rows[i] for i in draw.choice[:, 2].tolist()} <= set(IMAGENET.table.rows)
    for row, p in zip(rows, both.row_probabilities()[2].tolist(), strict=True):
        assert p == (1 / 139 if row in IMAGENET.table.rows else 0.0)
    assert both.expected_uses()["cutout"] == pytest.approx(2 / 18 + 1 / 139)


@pytest.mark.parametrize(
    "policy", [LAYERED, CHAINED, MIXED.first_layers(4)], ids=["layers", "chains", "mixed"]
)
def test_symmetric_flips_signs_with_probability_one_half(policy: Policy) -> None:
    even = policy.symmetric()
    assert_same_law(joint(even), mirrored(joint(policy)))
    assert even.info == policy.info
    assert_same_law(joint(even.symmetric()), joint(even))


def test_symmetric_keeps_a_symmetric_table_and_policy() -> None:
    for space in (CIFAR, IMAGENET):
        policy = Policy.trivial(space, 2)
        assert policy.symmetric().table == space.table
        assert torch.allclose(
            policy.symmetric().row_probabilities(), policy.row_probabilities(), atol=0, rtol=1e-15
        )


def test_symmetric_averages_each_pair() -> None:
    p = torch.rand(1, 139, dtype=F64, generator=torch.Generator().manual_seed(2))
    policy = Policy(CIFAR, Layers(p / p.sum()))
    even = policy.symmetric().row_probabilities()[0]
    index = {t: i for i, t in enumerate(CIFAR.transformations)}
    for t, i in index.items():
        signed = t.op in ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
        twin = index[t._replace(magnitude=-t.magnitude)] if signed else i
        mean = (policy.row_probabilities()[0, i] + policy.row_probabilities()[0, twin]) / 2
        assert even[i] == mean


@pytest.mark.parametrize("count", range(6))
def test_first_layers_is_the_marginal(count: int) -> None:
    expected: Counter[tuple[Row, ...]] = Counter()
    for rows, p in joint(MIXED).items():
        expected[rows[:count]] += p
    cut = MIXED.first_layers(count)
    assert cut.depth == count
    assert_same_law(joint(cut), dict(expected))
    many = keys(300)
    assert torch.equal(cut.draw(many).choice, MIXED.draw(many).choice[:, :count])


def test_first_layers_refuses_more_than_there_are() -> None:
    with pytest.raises(ValueError, match=r"first_layers\(6\) of a policy of 5 layers"):
        MIXED.first_layers(6)


# Looking at policies


@every_policy
def test_row_probabilities_are_marginals(policy: Policy) -> None:
    expected = torch.zeros(policy.depth, len(TABLE), dtype=F64)
    for rows, p in joint(policy).items():
        for k, row in enumerate(rows):
            expected[k, TABLE.rows.index(row)] += p
    assert torch.allclose(policy.row_probabilities(), expected, rtol=0, atol=1e-12)


@every_policy
def test_operation_probabilities_and_expected_uses(policy: Policy) -> None:
    names = [operation.name for operation in TABLE.operations]
    assert names == ["rotate", "identity", "shear_x", "color", "crop", "flip"]
    expected = torch.zeros(policy.depth, len(names), dtype=F64)
    for rows, p in joint(policy).items():
        for k, row in enumerate(rows):
            expected[k, names.index(row.operation.name)] += p
    assert torch.allclose(policy.operation_probabilities(), expected, rtol=0, atol=1e-12)
    uses = policy.expected_uses()
    assert list(uses) == names
    assert list(uses.values()) == pytest.approx(expected.sum(0).tolist(), abs=1e-12)


def test_expected_uses_follow_the_epoch() -> None:
    assert SCHEDULED.expected_uses(3) == CHAINED.expected_uses()
    assert sum(SCHEDULED.expected_uses(10).values()) == 0


# Ready-made


def test_uniform() -> None:
    policy = Policy.uniform(CIFAR, 3)
    assert policy.table == CIFAR.table
    assert torch.equal(policy.row_probabilities(), torch.full((3, 139), 1 / 139, dtype=F64))


def test_trivial_is_uniform_over_operations_then_levels() -> None:
    policy = Policy.trivial(CIFAR, 6)
    assert policy.depth == 6
    assert torch.allclose(policy.operation_probabilities(), torch.full((6, 18), 1 / 18, dtype=F64))
    for t, p in zip(CIFAR.transformations, policy.row_probabilities()[0].tolist(), strict=True):
        levels = sum(other.op == t.op for other in CIFAR.transformations)
        assert p == pytest.approx(1 / 18 / levels, rel=1e-14)
    # the figure that tells DeepTA from a uniform policy: 29 % of images meet cutout
    assert 1 - (1 - policy.operation_probabilities()[0, 16].item()) ** 6 == pytest.approx(
        0.29, abs=0.005
    )


def test_identity() -> None:
    for policy in (Policy.identity(), Policy.identity(IMAGENET, 4), Policy.identity(TABLE)):
        rows = policy.draw(keys(50)).choice.flatten().tolist()
        assert {policy.table.rows[i].operation.name for i in rows} == {"identity"}
    assert Policy.identity(IMAGENET, 4).depth == 4
    with pytest.raises(ValueError, match="no identity"):
        Policy.identity(CIFAR.without("identity"))


def test_always() -> None:
    policy = Policy.always(CROP, FLIP, CUTOUT)
    assert policy.draw(keys(20)).choice.tolist() == [[0, 1, 2]] * 20
    assert policy.expected_uses() == {"crop": 1.0, "flip": 1.0, "cutout": 1.0}


@pytest.mark.parametrize("make", [Policy.uniform, Policy.trivial, Policy.identity])
def test_no_layers_at_all(make: object) -> None:
    assert make(CIFAR, 0).depth == 0  # type: ignore[operator]


# Values


def halved(image: Image, m: float | None, u: object) -> Image:
    return image.point(lambda value: value // 2)


OWN = Policy(Table([(IDENTITY, None), (Operation("halved", pil=halved), None)]), layers([0.5, 0.5]))


@pytest.mark.parametrize(
    "policy",
    [LAYERED, CHAINED, MIXED, SCHEDULED, OWN],
    ids=["layers", "chains", "mixed", "schedule", "own"],
)
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_copies_draw_the_same(policy: Policy, duplicate: object) -> None:
    before = policy.draw(keys(50))  # fills what is computed once per device
    twin = duplicate(policy)  # type: ignore[operator]
    assert twin.equals(policy)
    assert twin.info == policy.info
    assert torch.equal(twin.draw(keys(50)).choice, before.choice)
    assert twin._devices is not policy._devices


def test_pickles_stay_small() -> None:
    policy = Policy.trivial(CIFAR, 6)
    size = len(pickle.dumps(policy))
    policy.draw(keys(10))
    policy.draw_one(1)
    assert len(pickle.dumps(policy)) == size


def test_equals() -> None:
    assert LAYERED.equals(Policy(TABLE, LAYERED.phases[0].stages))
    others = [
        CHAINED,
        MIXED,
        SCHEDULED,
        Policy(TABLE),
        LAYERED.symmetric(),
        LAYERED.first_layers(1),
    ]
    for other in others:
        assert not LAYERED.equals(other)
    assert not Policy.trivial(CIFAR, 1).equals(Policy.trivial(IMAGENET, 1))


def test_python_lists_keep_their_precision() -> None:
    policy = Policy(Table([(IDENTITY, None), (FLIP, None)]), Layers([[0.1, 0.9]]))  # type: ignore[arg-type]
    assert policy.row_probabilities().tolist() == [[0.1, 0.9]]
    stage = Chains([0.1, 0.9], [[0], [1]], [[0.3], [1.0]])  # type: ignore[arg-type]
    assert stage.weights.tolist() == [0.1, 0.9]
    assert stage.gates.tolist() == [[0.3], [1.0]]


def test_a_policy_keeps_its_own_numbers() -> None:
    numbers = torch.full((1, 8), 0.125, dtype=F64)
    policy = Policy(TABLE, Layers(numbers))
    numbers[0, 0] = 7.0
    assert policy.row_probabilities()[0, 0] == 0.125


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers([0.5, 0.4]), "layer 1 sums to 0.900000"),
        (lambda: layers([1.0, 0.0], [0.0, 0.0]), "layer 2 sums to 0.000000"),
        (lambda: layers([1.5, -0.5]), "layer 1 holds a negative"),
        (lambda: layers([math.nan, 1.0]), "layer 1 holds a value that is not finite"),
        (lambda: Layers(torch.ones(3)), r"got shape \(3,\)"),
        (lambda: chains((0.5, [(0, 1.0)])), "chain weights sum to 0.500000"),
        (lambda: chains((1.0, [(0, 1.5)])), "at most 1, got 1.5"),
        (lambda: chains((1.0, [(0, -0.5)])), "chain gates holds a negative"),
        (lambda: Policy(TABLE, chains((1.0, [(8, 1.0)]))), "a row outside 0..7"),
        (lambda: Policy(TABLE, chains((1.0, [(-1, 1.0)]))), "a row outside 0..7"),
        (lambda: Policy(TABLE, layers([1.0])), "1 probabilities, but the table has 8"),
        (lambda: Policy(Table([(FLIP, None)]), chains((1.0, [(0, 0.5)]))), "identity row"),
        (lambda: Policy(TABLE, schedule=[]), "at least one phase"),
        (lambda: Policy(TABLE, schedule=[(1, ())]), r"start at epoch 0 .* got \[1\]"),
        (lambda: Policy(TABLE, schedule=[(0, ()), (4, ()), (4, ())]), r"got \[0, 4, 4\]"),
        (lambda: Policy.identity(layers=MAX_DEPTH + 1), f"more than {MAX_DEPTH} layers"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("info", [{"steps": 3}, {3: "a"}])
def test_info_holds_text(info: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="info holds text under text, got"):
        Policy(CIFAR, info=info)


def test_a_tensor_of_probabilities_is_enough() -> None:
    assert Policy(CIFAR, torch.full((2, 139), 1 / 139)).equals(
        Policy(CIFAR, Layers(torch.full((2, 139), 1 / 139)))
    )


@pytest.mark.parametrize("keys", [[1, 2], torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)])
def test_keys_are_int64_numbers(keys: object) -> None:
    with pytest.raises(TypeError, match="keys should be an int64 tensor"):
        Policy.uniform(CIFAR, 1).draw(keys)


def test_negative_numbers_of_layers_are_refused() -> None:
    for make in (Policy.uniform, Policy.trivial, Policy.identity):
        with pytest.raises(ValueError, match="cannot have -1 layers"):
            make(CIFAR, -1)


def test_chains_without_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        Chains(torch.ones(1), torch.zeros(1, 0), torch.zeros(1, 0))


def test_symmetric_refuses_to_spell_out_millions_of_chains() -> None:
    table = Table([(IDENTITY, None), (CIFAR.operations[1], 0.3)])
    long = Chains(torch.ones(1), torch.ones(1, 30, dtype=torch.int64), torch.ones(1, 30))
    with pytest.raises(ValueError, match=r"1073741824 combinations of signs"):
        Policy(table, long).symmetric()
