"""The rules by which a layer is kept, dropped, or made simpler."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepaa import CIFAR
from deepaa.layer_end import Measured, described, leader_of, measured, only, shares_of, simplest

P = torch.tensor([0.3, 0.7], dtype=torch.float64)


def layer(
    gains: list[float],
    *,
    identity: float = 0.0,
    asked: bool = False,
    usable: Tensor | None = None,
) -> Measured:
    cosines = torch.tensor(gains, dtype=torch.float64) + 0.5
    before = torch.full((len(gains),), 0.5, dtype=torch.float64)
    usable = torch.ones(len(gains), dtype=torch.bool) if usable is None else usable
    return measured(P, cosines, before, usable, identity=identity, asked=asked)


@pytest.mark.parametrize(
    ("gains", "identity", "kept", "reason"),
    [
        ([0.01, 0.03], 0.5, True, "a gain of 0.0200, standard error 0.0100"),
        ([-0.01, 0.03], 0.5, False, "a gain of 0.0100 is not above its standard error, 0.0200"),
        ([0.0, 0.0], 0.5, False, "a gain of 0.0000 is not above its standard error, 0.0000"),
        ([0.01, 0.03], 0.91, False, "identity has 0.91 of the layer"),
        ([0.01, 0.03], 0.90, True, "a gain of 0.0200, standard error 0.0100"),
        ([0.02], 0.0, True, "a gain of 0.0200, standard error 0.0000"),
    ],
)
def test_the_stop_rule(gains: list[float], identity: float, kept: bool, reason: str) -> None:
    found = layer(gains, identity=identity)
    assert (found.kept, found.reason) == (kept, reason)
    wanted = layer(gains, identity=identity, asked=True)
    assert wanted.kept
    assert wanted.reason == ("asked for" if kept else f"asked for, although {reason}")


def test_images_without_a_finite_cosine_are_left_out() -> None:
    found = layer([0.01, math.nan, 0.03, math.inf])
    assert found.usable.tolist() == [True, False, True, False]
    assert found.gain == pytest.approx(0.02)
    assert found.error == pytest.approx(0.01)


def test_the_leader_has_to_bring_its_share_of_the_gain() -> None:
    found, alone = layer([0.03, 0.04, 0.05]), layer([0.02, 0.04, 0.03])  # 0.04 and 0.03
    chosen, why = simplest(found, alone, "crop", 0.76)
    assert chosen is found
    assert why == "; better than crop alone by 0.0100, standard error 0.0058"
    chosen, why = simplest(found, alone, "crop", 0.74)
    assert chosen is alone
    assert why == "; crop alone, the rest brings 0.0100, standard error 0.0058"


@pytest.mark.parametrize(("gain", "taken"), [(-0.03, False), (-0.02, True), (0.01, True)])
def test_of_layers_that_harm_the_better_one_is_kept(gain: float, taken: bool) -> None:
    """When the number of layers is given."""
    found, alone = layer([-0.02, -0.02], asked=True), layer([gain, gain], asked=True)
    assert (simplest(found, alone, "crop", 0.5)[0] is alone) == taken


@pytest.mark.parametrize("asked", [False, True])
def test_a_simpler_layer_that_would_be_dropped_does_not_replace_one_that_helps(
    asked: bool,
) -> None:
    """So that layers which are asked for are those that an open search would find."""
    found = layer([0.001, 0.004, 0.001], asked=asked)
    alone = layer([0.004, 0.001, -0.003], asked=asked)
    assert (found.helps, alone.helps) == (True, False)
    assert (found.kept, alone.kept) == (True, asked)
    chosen, why = simplest(found, alone, "crop", 0.1)
    assert chosen is found
    assert why == "; crop alone is not enough"


@pytest.mark.parametrize("alone", [[0.02, math.nan], [math.nan, math.nan], [0.9, math.inf]])
def test_a_form_that_cannot_be_measured_is_not_taken(alone: list[float]) -> None:
    found = layer([0.02, 0.03])
    chosen, why = simplest(found, layer(alone, usable=found.usable), "crop", 0.5)
    assert chosen is found
    assert why == "; crop alone cannot be measured on the same images"


def test_a_form_that_can_be_measured_on_more_images_is_compared_on_the_same() -> None:
    found = layer([0.02, math.nan, 0.03])
    alone = layer([0.02, 0.9, 0.03], usable=found.usable)
    assert alone.gain == pytest.approx(0.025)
    assert simplest(found, alone, "crop", 0.5)[0] is alone


def mixture(**shares: float) -> Tensor:
    """All magnitudes of an operation alike."""
    p = torch.zeros(len(CIFAR.table), dtype=torch.float64)
    for name, share in shares.items():
        rows = [i for i, row in enumerate(CIFAR.table.rows) if row.operation.name == name]
        p[rows] = share / len(rows)
    return p


def test_who_leads_a_layer() -> None:
    p = mixture(rotate=0.33, crop=0.32, identity=0.3, flip=0.05)
    assert leader_of(CIFAR.table, p) is None  # not more than a third
    p = mixture(rotate=0.4, crop=0.3, identity=0.3)
    leader = leader_of(CIFAR.table, p)
    assert leader is not None
    assert leader.name == "rotate"
    assert leader_of(CIFAR.table, mixture(rotate=0.4, identity=0.6)).name == "identity"
    p = mixture(rotate=0.6, crop=0.3, identity=0.1)
    leader = leader_of(CIFAR.table, p)
    assert leader is not None
    assert leader.name == "rotate"
    assert leader_of(CIFAR.table, p, 0.7) is None
    alone = only(CIFAR.table, p, leader)
    assert alone.sum() == pytest.approx(1)
    assert float(shares_of(CIFAR.table, alone).max()) == pytest.approx(1)
    assert torch.allclose(alone[alone > 0], torch.full((12,), 1 / 12, dtype=torch.float64))
    identity, perplexity, top = described(CIFAR.table, p)
    assert identity == pytest.approx(0.1)
    names, shares = zip(*top, strict=True)
    assert names == ("rotate", "crop", "identity")
    assert shares == pytest.approx((0.6, 0.3, 0.1))
    bits = 0.6 * math.log(12 / 0.6) + 0.3 * math.log(1 / 0.3) + 0.1 * math.log(10)
    assert perplexity == pytest.approx(math.exp(bits))
