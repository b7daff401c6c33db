"""The file format: golden files, round trips, operations of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from policy_text import loads
from torch import Tensor

from deepaa.ops.space import BUILTIN, CIFAR, IMAGENET, Operation, Table
from deepaa.policy import dumps
from deepaa.policy.load import load_policy
from deepaa.policy.policy import Policy
from deepaa.policy.stages import Chains, Layers, Stage

DATA = Path(__file__).parents[1] / "golden"
F64 = torch.float64


def swapped(images: Tensor, magnitudes: Tensor, uniforms: Tensor, **options: object) -> Tensor:
    return images.flip(1)


SWAP = Operation("swap-channels", 0.0, 4.0, neutral=0.0, uniforms=3, batched=swapped)


# What the golden files hold, built in code


def layered() -> Policy:
    cutout, flip, identity = (
        CIFAR.transformations.index((name, None)) for name in ("cutout", "flip", "identity")
    )
    table = torch.zeros(3, 139, dtype=F64)
    table[0] = torch.arange(1, 140, dtype=F64) / 9730  # 1 + 2 + ... + 139
    table[1, cutout] = 1.0
    table[2, flip], table[2, identity] = 0.7, 0.3
    info = {"found by": "hand", "note": 'quotes ", back\\slash, tab \t and Umlaute äöü, 数据'}
    return Policy(CIFAR, Layers(table), info=info)


def chained() -> Policy:
    rotate = Operation("rotate", -45.0, 45.0, neutral=0.0, options={"fill": (1, 2, 3)})
    rows = [
        (Operation("identity"), None),
        (rotate, -12.3456789),
        (rotate, 1e-05),
        (Operation("cutout", 0.0, 0.2), 0.1),
        (Operation("cutout", options={"size": 8, "central": 20}), None),
        (Operation("invert"), None),
    ]
    stage = Chains(
        torch.tensor([0.1, 0.2, 0.7], dtype=F64),
        torch.tensor([[1, 3], [2, 5], [4, 0]]),
        torch.tensor([[0.6, 1.0], [1 / 3, 0.0], [0.25, 1.0]], dtype=F64),
    )
    return Policy(Table(rows), stage)


def scheduled() -> Policy:
    table = Table((Operation(name), None) for name in ("identity", "flip", "crop"))
    layers = Layers(torch.tensor([[0.0, 0.5, 0.5], [0.2, 0.0, 0.8]], dtype=F64))
    chains = Chains(
        torch.tensor([0.5, 0.5], dtype=F64),
        torch.tensor([[1, 2], [2, 1]]),
        torch.tensor([[0.5, 0.9], [1.0, 0.1]], dtype=F64),
    )
    return Policy(table, schedule=[(0, ()), (5, [layers]), (80, [chains, layers])])


def own() -> Policy:
    options = {"mode": "fast", "order": (2, 1, 0), "scale": 1.0, "strict": True, "limit": None}
    swap = Operation("swap-channels", -1.0, 1.0, None, options, uniforms=3, batched=swapped)
    table = Table([(Operation("identity"), None), (swap, 0.5)])
    return Policy(table, Layers(torch.tensor([[0.25, 0.75]], dtype=F64)), info={"method": "own"})


GOLDEN: dict[str, Callable[[], Policy]] = {
    "policy_v1_layers.json": layered,
    "policy_v1_chains.json": chained,
    "policy_v1_schedule.json": scheduled,
    "policy_v1_own.json": own,
}


def test_every_golden_file_is_known() -> None:
    assert {path.name for path in DATA.glob("policy_*.json")} == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_file(name: str) -> None:
    text = (DATA / name).read_bytes()
    policy = load_policy(DATA / name, operations=[SWAP])
    expected = GOLDEN[name]()
    assert policy.equals(expected)
    assert policy.info == expected.info
    assert dumps(policy).encode() == text
    assert dumps(expected).encode() == text
    assert text.endswith(b"}\n")
    assert b"\r" not in text


def test_golden_draws() -> None:
    # a release that draws other rows from an old file breaks its users' experiments
    keys = torch.arange(8)
    draw = load_policy(DATA / "policy_v1_layers.json").draw(keys)
    assert draw.choice.tolist() == [
        [130, 137, 136],
        [120, 137, 136],
        [69, 137, 136],
        [125, 137, 0],
        [36, 137, 136],
        [89, 137, 136],
        [33, 137, 136],
        [100, 137, 136],
    ]
    draw = load_policy(DATA / "policy_v1_schedule.json").draw(keys, epoch=80)
    assert draw.choice.tolist() == [
        [2, 0, 2, 0],
        [2, 0, 2, 0],
        [0, 2, 1, 2],
        [2, 0, 1, 0],
        [0, 2, 1, 2],
        [0, 2, 2, 2],
        [1, 2, 2, 2],
        [2, 0, 1, 0],
    ]


# Round trips

numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    if draw(st.booleans()):
        options = draw(
            st.dictionaries(
                words,
                st.none()
                | st.booleans()
                | words
                | numbers
                | st.integers(-(2**53), 2**53)
                | st.lists(numbers | st.integers(-(2**53), 2**53), max_size=3).map(tuple),
                max_size=3,
            )
        )
        low, high = draw(st.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1]))
        neutral = draw(st.none() | st.sampled_from([low, high]))
        return Operation("swap-channels", low, high, neutral, options, uniforms=3, batched=swapped)
    name = draw(st.sampled_from(sorted(BUILTIN)))
    space = [op for op in (*CIFAR.operations, *IMAGENET.operations) if op.name == name]
    return draw(st.sampled_from(space))


@st.composite
def shares(draw: st.DrawFn, size: int) -> list[float]:
    weights = draw(st.lists(st.floats(0, 1), min_size=size, max_size=size))
    weights[draw(st.integers(0, size - 1))] += 1
    return [weight / sum(weights) for weight in weights]


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    rows: list[tuple[Operation, float | None]] = [(Operation("identity"), None)]
    for operation in draw(st.lists(operations(), max_size=4)):
        inside = st.floats(operation.low or 0.0, operation.high or 0.0)
        magnitudes = draw(st.lists(inside, min_size=1, max_size=3))
        rows += [(operation, None if operation.low is None else m) for m in magnitudes]
    schedule: list[tuple[int, list[Stage]]] = []
    for epoch in sorted({0, *draw(st.lists(st.integers(1, 2**53), max_size=2))}):
        stages: list[Stage] = []
        for _ in range(draw(st.integers(0, 2))):
            if draw(st.booleans()):
                table = draw(st.lists(shares(len(rows)), max_size=3))
                stages.append(Layers(torch.tensor(table, dtype=F64).view(-1, len(rows))))
            else:
                weights = draw(shares(draw(st.integers(1, 3))))
                shape = (len(weights), draw(st.integers(1, 3)))
                cells = shape[0] * shape[1]
                chosen = st.lists(st.integers(0, len(rows) - 1), min_size=cells, max_size=cells)
                gates = st.lists(st.floats(0, 1), min_size=cells, max_size=cells)
                stages.append(
                    Chains(
                        torch.tensor(weights, dtype=F64),
                        torch.tensor(draw(chosen)).view(shape),
                        torch.tensor(draw(gates), dtype=F64).view(shape),
                    )
                )
        schedule.append((epoch, stages))
    return Policy(
        Table(rows), schedule=schedule, info=draw(st.dictionaries(words, words, max_size=3))
    )


@settings(max_examples=150, deadline=None)
@given(policies())
def test_save_load_save(policy: Policy) -> None:
    text = dumps(policy)
    again = loads(text, operations=[SWAP])
    assert again.equals(policy)
    assert again.info == policy.info
    assert dumps(again) == text
    json.loads(text, parse_constant=pytest.fail)  # strict JSON for any other reader


# Operations of one's own, and what cannot be saved


def test_own_operations_take_range_and_options_from_the_file() -> None:
    policy = load_policy(DATA / "policy_v1_own.json", operations=[SWAP])
    operation = policy.table.rows[1].operation
    assert (operation.low, operation.high, operation.neutral) == (-1.0, 1.0, None)
    assert operation.options["order"] == (2, 1, 0)
    assert operation.batched is swapped
    assert operation.uniforms == 3


def test_built_in_operations_among_ones_own_do_not_matter() -> None:
    path = DATA / "policy_v1_own.json"
    policy = load_policy(path, operations=[*CIFAR.operations, SWAP])
    assert policy.equals(load_policy(path, operations=[SWAP]))


def test_two_own_operations_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two operations of one name"):
        load_policy(DATA / "policy_v1_own.json", operations=[SWAP, SWAP])


def test_left_out_options_have_their_defaults() -> None:
    policy = Policy.always(Operation("crop"))
    text = dumps(policy).replace('{"fill": [125, 123, 114], "pad": 4}', "{}")
    assert "pad" not in text
    assert loads(text).equals(policy)


def one(operation: Operation, magnitude: float | None = None) -> Policy:
    return Policy(Table([(operation, magnitude)]), Layers(torch.ones(1, 1)))


def other(images: Tensor, magnitudes: Tensor, uniforms: Tensor) -> Tensor:
    return images


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Policy(CIFAR, info={"a": "\ud800"}), r"info\['a'\] should be text that UTF-8 can hold"),
        (one(Operation("own", options={"n": 2**60}, batched=other)), "own: option n holds"),
        (one(Operation("own", options={"n": (True,)}, batched=other)), "own: option n holds"),
        (one(Operation("own", options={"n": "\udfff"}, batched=other)), "own: option n should be"),
        (
            one(Operation("own", batched=other)).then(one(Operation("own", batched=swapped))),
            "two operations named 'own' have different kernels",
        ),
    ],
)
def test_what_a_file_cannot_hold_is_not_written(policy: Policy, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dumps(policy)


def test_the_order_of_info_does_not_change_the_text() -> None:
    one_way = Policy(CIFAR, info={"a": "1", "b": "2"})
    assert dumps(one_way) == dumps(Policy(CIFAR, info={"b": "2", "a": "1"}))
