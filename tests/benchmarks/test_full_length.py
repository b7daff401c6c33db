"""The order in which the benchmarks of choices take images."""

from __future__ import annotations

import pytest
import torch
from full_length import shuffled


@pytest.mark.parametrize("count", [3, 30, 60])
def test_the_beginning_of_an_order_has_as_many_of_each_class(count: int) -> None:
    labels = torch.tensor([0, 1] * 30 + [0] * 20 + [2] * 24)
    taken = labels[shuffled(labels, 0)[:count]]
    assert taken.bincount(minlength=3).tolist() == [count // 3] * 3


def test_a_small_class_is_there_whole_and_the_others_fill_up() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 4)
    order = shuffled(labels, 0)
    assert labels[order[:30]].bincount().tolist() == [13, 13, 4]
    assert order.sort().values.equal(torch.arange(84)), "every image is there once"


def test_another_seed_is_another_order() -> None:
    labels = torch.arange(100) % 4
    assert shuffled(labels, 0).equal(shuffled(labels, 0))
    assert not shuffled(labels, 0)[:20].equal(shuffled(labels, 1)[:20])
