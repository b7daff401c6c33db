"""Operations of a policy as tables, by equality with numbers computed by hand."""

import pytest
import torch

from deepaa.ops.space import CIFAR, IMAGENET, Operation, Table
from deepaa.policy.policy import Chains, Layers, Policy
from deepaa.report.operation_tables import (
    FAMILIES,
    OperationRow,
    likely_sequences,
    operation_table,
    top_transformations,
)

IDENTITY, INVERT, FLIP = Operation("identity"), Operation("invert"), Operation("flip")
ROTATE = Operation("rotate", -30.0, 30.0, neutral=0.0)
ROWS = Table([(INVERT, None), (ROTATE, 15.0), (ROTATE, -30.0), (IDENTITY, None)])
TWO = Policy(ROWS, Layers(torch.tensor([[0.5, 0.375, 0.125, 0.0], [0.0, 0.0, 0.25, 0.75]])))
SMALL = Table([(IDENTITY, None), (INVERT, None), (ROTATE, -30.0), (ROTATE, 15.0)])
TWO_LAYERS = Policy(SMALL, Layers(torch.tensor([[0.0, 0.5, 0.125, 0.375], [1.0, 0.0, 0.0, 0.0]])))


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
    known = [name for names in FAMILIES.values() for name in names]
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


def test_top_transformations_are_the_commonest_of_each_operation() -> None:
    assert top_transformations(TWO) == [(1, 0.375), (0, 0.5)]  # rotate 15, as often as -30, first
