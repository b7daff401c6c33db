"""Layers and magnitudes in words."""

from __future__ import annotations

import pytest
import torch

from deepaa.ops.space import CIFAR, Operation, Table
from deepaa.policy.policy import Layers, Policy
from deepaa.report.policy_tables import MagnitudeShare, OperationShare, layer_table
from deepaa.report.wording import LayerSentence, layer_sentences, magnitudes_text

IDENTITY, INVERT = Operation("identity"), Operation("invert")
ROTATE = Operation("rotate", -30.0, 30.0, neutral=0.0)
ROWS = Table([(INVERT, None), (ROTATE, 15.0), (ROTATE, -30.0), (IDENTITY, None)])
TWO = Policy(ROWS, Layers(torch.tensor([[0.5, 0.375, 0.125, 0.0], [0.0, 0.0, 0.25, 0.75]])))


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
    assert layer_sentences(layer_table(policy)) == [LayerSentence("Layer 1", text)]


def test_layers_that_are_alike_share_a_sentence() -> None:
    text = "any of 18 operations, all equally often (6 %)"
    assert layer_sentences(layer_table(Policy.trivial(CIFAR, 6), top=99)) == [
        LayerSentence("Layers 1 to 6", text)
    ]
    first, second = layer_sentences(layer_table(TWO), unfinished=2)
    assert (first.layers, second.layers) == ("Layer 1", "Layer 2")
    assert second.text.endswith("(not finished)")
    assert not first.text.endswith("(not finished)")


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
