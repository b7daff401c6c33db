"""Layers of a policy as tables, by equality with numbers computed by hand, and in words."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from deepaa.ops.space import CIFAR, IMAGENET, Operation, Table
from deepaa.policy import likely_sequences
from deepaa.policy.policy import Chains, Layers, Policy
from deepaa.report.policy_tables import (
    FAMILIES,
    LayerTable,
    MagnitudeShare,
    OperationRow,
    OperationShare,
    OperationUses,
    as_dict,
    layer_sentences,
    layer_table,
    magnitudes_text,
    operation_table,
    policy_lines,
    policy_table,
)

IDENTITY, INVERT, FLIP = Operation("identity"), Operation("invert"), Operation("flip")
ROTATE = Operation("rotate", -30.0, 30.0, neutral=0.0)
ROWS = Table([(INVERT, None), (ROTATE, 15.0), (ROTATE, -30.0), (IDENTITY, None)])
TWO = Policy(ROWS, Layers(torch.tensor([[0.5, 0.375, 0.125, 0.0], [0.0, 0.0, 0.25, 0.75]])))
SMALL = Table([(IDENTITY, None), (INVERT, None), (ROTATE, -30.0), (ROTATE, 15.0)])
TWO_LAYERS = Policy(SMALL, Layers(torch.tensor([[0.0, 0.5, 0.125, 0.375], [1.0, 0.0, 0.0, 0.0]])))


def test_layers_by_hand():
    # entropy of (1/2, 1/8, 3/8): 1/2 * 1 + 1/8 * 3 + 3/8 * (3 - log2 3)
    entropy = 0.5 + 0.375 + 0.375 * (3 - np.log2(3))
    first, second = layer_table(TWO_LAYERS)
    assert first == LayerTable(
        layer=1,
        entropy=pytest.approx(entropy, abs=1e-12),
        perplexity=pytest.approx(2**entropy, abs=1e-12),
        identity=0.0,
        operations=(
            OperationShare("invert", 0.5, ()),
            OperationShare(
                "rotate", 0.5, (MagnitudeShare(15.0, 0.75), MagnitudeShare(-30.0, 0.25))
            ),
        ),
        others=0,
        others_probability=0.0,
    )
    assert second == LayerTable(2, 0.0, 1.0, 1.0, (OperationShare("identity", 1.0, ()),), 0, 0.0)


def test_top_keeps_the_rest_as_one_number():
    first, second = layer_table(TWO_LAYERS, top=1)
    assert [op.name for op in first.operations] == ["invert"]
    assert (first.others, first.others_probability) == (1, 0.5)
    assert (second.others, second.others_probability) == (0, 0.0)
    with pytest.raises(ValueError, match="top should be at least 1, got 0"):
        layer_table(TWO_LAYERS, top=0)


def test_uniform_and_trivial_policies():
    (uniform,) = layer_table(Policy.uniform(CIFAR, 1), top=99)
    assert uniform.entropy == pytest.approx(np.log2(139), abs=1e-12)
    assert uniform.perplexity == pytest.approx(139, abs=1e-9)
    assert uniform.identity == pytest.approx(1 / 139)
    shares = {op.name: op for op in uniform.operations}
    assert shares["rotate"].probability == pytest.approx(12 / 139)
    assert shares["flip"].probability == pytest.approx(1 / 139)
    assert [item.magnitude for item in shares["rotate"].magnitudes] == [
        *(-30, -25, -20, -15, -10, -5, 5, 10, 15, 20, 25, 30)  # equal shares stay in order
    ]
    (trivial,) = layer_table(Policy.trivial(CIFAR, 1), top=99)
    assert {round(op.probability, 12) for op in trivial.operations} == {round(1 / 18, 12)}
    assert [op.name for op in trivial.operations] == [op.name for op in CIFAR.operations]


def test_closed_gates_count_as_identity():
    chains = Chains(
        torch.tensor([0.25, 0.75]), torch.tensor([[1, 2], [3, 1]]), torch.tensor([[1.0, 0.5]] * 2)
    )
    first, second = layer_table(Policy(SMALL, chains))
    assert [(op.name, op.probability) for op in first.operations] == [
        ("rotate", 0.75),
        ("invert", 0.25),
    ]
    assert second.identity == 0.5
    assert policy_table(Policy(SMALL, chains), "mine").uses == (
        OperationUses("rotate", 0.875),
        OperationUses("invert", 0.625),
        OperationUses("identity", 0.5),
    )


def test_uses_add_up_over_layers_and_leave_out_the_unused():
    assert policy_table(TWO_LAYERS, "mine").uses == (
        OperationUses("identity", 1.0),
        OperationUses("invert", 0.5),
        OperationUses("rotate", 0.5),
    )
    assert [use.name for use in policy_table(Policy.identity(CIFAR), "mine").uses] == ["identity"]


def test_a_schedule_is_shown_at_an_epoch():
    invert = Layers(torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    still = Layers(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    policy = Policy(SMALL, schedule=[(0, [still]), (5, [invert, invert])])
    assert [layer.identity for layer in layer_table(policy, epoch=4)] == [1.0]
    assert [layer.identity for layer in layer_table(policy, epoch=5)] == [0.0, 0.0]
    table = policy_table(policy, "mine", epoch=7)
    assert table.epochs == (0, 5)
    assert len(table.layers) == 2
    assert table.uses == (OperationUses("invert", 2.0),)


def test_tables_are_json():
    table = policy_table(TWO_LAYERS, "mine", top=1)
    found = json.loads(json.dumps(as_dict(table), allow_nan=False))
    assert found["name"] == "mine"
    assert (found["transformations"], found["operations"]) == (4, 3)
    assert found["layers"][0]["operations"] == [
        {"name": "invert", "probability": 0.5, "magnitudes": []}
    ]
    assert found["uses"][0] == {"name": "identity", "uses": 1.0}


# Words


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([0.0, 0.0, 0.0, 1.0], "leaves the image as it is"),
        ([0.0, 0.5, 0.5, 0.0], "always rotate"),
        ([0.001, 0.0, 0.0, 0.999], "almost always leaves the image as it is (> 99 %)"),
        ([0.45, 0.0, 0.0, 0.55], "mostly leaves the image as it is (55 %), else invert (45 %)"),
        ([0.2, 0.0, 0.0, 0.8], "mostly leaves the image as it is (80 %), else invert (20 %)"),
        ([0.999, 0.001, 0.0, 0.0], "almost always invert (> 99 %)"),
        ([0.6, 0.3, 0.0, 0.1], "mostly invert (60 %), else rotate (30 %) or identity (10 %)"),
        (
            [0.4, 0.15, 0.15, 0.3],
            "a mix; most often invert (40 %), rotate (30 %) and identity (30 %)",
        ),
    ],
)
def test_a_layer_in_words(shares: list[float], text: str) -> None:
    policy = Policy(ROWS, torch.tensor([shares], dtype=torch.float64))
    assert layer_sentences(layer_table(policy)) == [("Layer 1", text)]


def test_layers_that_are_alike_share_a_sentence() -> None:
    text = "any of 18 operations, all equally often (6 %)"
    assert layer_sentences(layer_table(Policy.trivial(CIFAR, 6), top=99)) == [
        ("Layers 1 to 6", text)
    ]
    first, second = layer_sentences(layer_table(TWO), unfinished=2)
    assert (first[0], second[0]) == ("Layer 1", "Layer 2")
    assert second[1].endswith("(not finished)")
    assert not first[1].endswith("(not finished)")


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ((), ""),
        (((4.0, 1.0),), "4"),
        (((-3.0, 0.5), (3.0, 0.5)), "-3 to 3, 2 levels evenly"),
        (((0.45, 0.49), (-0.45, 0.38), (0.3, 0.13)), "0.45 (49%), -0.45 (38%), 0.3 (13%)"),
        (((1.0, 0.4), (2.0, 0.3), (3.0, 0.2), (4.0, 0.1)), "1 (40%), 2 (30%), 3 (20%) ..."),
    ],
)
def test_magnitudes_in_words(shares: tuple[tuple[float, float], ...], text: str) -> None:
    found = tuple(MagnitudeShare(*share) for share in shares)
    assert magnitudes_text(OperationShare("x", 1.0, found)) == text


# Operations


def test_operations_by_family() -> None:
    rows = operation_table(TWO)
    assert rows == (
        OperationRow("identity", "nothing", (0.0, 0.75), (), ((), ())),
        OperationRow("rotate", "geometry", (0.5, 0.25), (-30.0, 15.0), ((0.25, 0.75), (1.0, 0.0))),
        OperationRow("invert", "colour", (0.5, 0.0), (), ((), ())),
    )
    assert [(row.uses, row.peak) for row in rows] == [(0.75, 2), (0.75, 1), (0.5, 1)]
    assert OperationRow("flip", "geometry", (0.0, 0.0), (), ((), ())).peak == 0


def test_every_built_in_operation_has_a_family_and_others_are_own() -> None:
    known = [name for names in FAMILIES.values() for name in names.split()]
    assert len(known) == len(set(known))
    assert {op.name for op in (*CIFAR.operations, *IMAGENET.operations)} == set(known)
    own = Operation("fade", pil=lambda image, magnitude, uniforms: image)
    policy = Policy(Table([(own, None), (IDENTITY, None)]), torch.tensor([[0.5, 0.5]]))
    assert [row.family for row in operation_table(policy)] == ["nothing", "own"]


def test_magnitudes_within_an_operation() -> None:
    assert [row.name for row in operation_table(TWO) if row.is_spread] == ["rotate"]
    rare = Policy(ROWS, Layers(torch.tensor([[0.9995, 0.0005, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0]])))
    (row,) = (row for row in operation_table(rare) if row.is_spread)
    assert row.shares == ((), (1.0, 0.0))  # the first layer hardly rotates
    assert not any(row.is_spread for row in operation_table(Policy.always(FLIP)))


def test_a_flip_is_said_to_be_a_coin_toss() -> None:
    always = layer_table(Policy.always(FLIP), top=None)
    assert layer_sentences(always) == [
        ("Layer 1", "always flip, a coin toss that changes half of the images")
    ]
    assert magnitudes_text(always[0].operations[0]) == "a coin toss: half of these images change"
    table = Table([(IDENTITY, None), (FLIP, None), (INVERT, None)])
    mixed = Policy(table, torch.tensor([[0.1, 0.6, 0.3], [0.4, 0.35, 0.25]]))
    assert [text for _, text in layer_sentences(layer_table(mixed, top=None))] == [
        "mostly flip (60 %, a coin toss), else invert (30 %) or identity (10 %)",
        "a mix; most often identity (40 %), flip (35 %, a coin toss) and invert (25 %)",
    ]


def test_bars_begin_in_one_column_in_every_layer() -> None:
    table = Table([(IDENTITY, None), (FLIP, None), (INVERT, None)])
    policy = Policy(table, torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.25, 0.25], [1e-5, 0.99999, 0.0]]))
    console = Console(width=80, record=True, file=io.StringIO())
    for line in policy_lines(policy_table(policy, "mine")):
        console.print(line)
    text = console.export_text()
    bars = {line.index("█") for line in text.splitlines() if "█" in line}
    assert len(bars) == 1, text
    assert "100.0 %" in text
    assert " 50.0 %" in text


def test_likely_sequences_of_layers() -> None:
    # invert or rotate, then rotate (1/4) or nothing (3/4)
    assert likely_sequences(TWO) == [
        (("invert",), 0.375),
        (("rotate",), 0.375),
        (("invert", "rotate"), 0.125),
        (("rotate", "rotate"), 0.125),
    ]
    assert len(likely_sequences(TWO, top=1)) == 1


def test_likely_sequences_of_sub_policies() -> None:
    chains = Chains(
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.tensor([[0, 1], [0, 2]]),
        torch.tensor([[1.0, 0.5], [1.0, 0.25]], dtype=torch.float64),
    )
    assert likely_sequences(Policy(ROWS, chains)) == [
        (("invert",), 0.625),
        (("invert", "rotate"), 0.375),
    ]


def test_shares_of_sequences_are_those_that_are_drawn() -> None:
    table = Table([(IDENTITY, None), (FLIP, None), (INVERT, None)])
    policy = Policy(table, torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.3, 0.3, 0.4]]))
    draws = policy.sample(40_000, torch.Generator().manual_seed(0)).choice.tolist()
    names = [row.operation.name for row in table.rows]
    met = [tuple(names[i] for i in row if names[i] != "identity") for row in draws]
    everything = likely_sequences(policy, top=1000)
    assert sum(p for _, p in everything) == pytest.approx(1)
    for operations, p in everything:
        sigma = (p * (1 - p) / len(met)) ** 0.5
        assert abs(met.count(operations) / len(met) - p) < 5 * sigma
