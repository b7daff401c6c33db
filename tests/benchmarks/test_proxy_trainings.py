"""What small trainings are worth: the sums of the benchmark, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from proxy_trainings import bits, packed, predicted, shapes, summary, worth

Row = dict[str, object]


def network(name: str, images: int, epochs: int, wrong: int, loss: float, draw: int = 0) -> Row:
    """One that has the first of 400 images wrong."""
    about = {"data": "x", "images": images, "epochs": epochs, "draw": draw, "seed": draw}
    about |= {"judge": 400, "candidate": name, "train_loss": loss, "seconds": 1.0}
    return about | {"accuracy": 1 - wrong / 400, "correct": "0" * wrong + "1" * (400 - wrong)}


def test_shapes_have_the_share_of_the_passes() -> None:
    found = shapes(4000, 96, [8, 4], 500)
    assert found[0] == (4000, 96)
    assert found[1:5] == [(4000, 12), (2000, 24), (1000, 48), (500, 96)]
    assert all(images * epochs * 4 == 4000 * 96 for images, epochs in found[5:])
    assert (500, 96) not in shapes(4000, 96, [8], 501)


def test_answers_are_packed_without_a_loss() -> None:
    (row,) = packed([network("a", 1, 1, 37, 0.1)])
    assert bits(row).tolist() == [False] * 37 + [True] * 363


def test_worth() -> None:
    """Of three pairs one is too near to count; of the other two a training orders one."""
    long = [network(name, 8, 8, wrong, 0.1) for name, wrong in (("a", 40), ("b", 41), ("c", 80))]
    networks = {str(row["candidate"]): row for row in packed(long)}
    lost, right, first = worth({"a": 0.5, "b": 0.7, "c": 0.6}, networks)
    assert lost == pytest.approx(0.25)
    assert (right, first) == (0.5, "b")


def test_a_prediction_follows_the_curve() -> None:
    """Both have the same high loss; errors halve as images and epochs double, and twice more."""
    small = {str(r["candidate"]): r for r in packed([network(n, 10, 4, 200, 3.0) for n in "abcd"])}
    large = {str(r["candidate"]): r for r in packed([network(n, 20, 8, 100, 3.0) for n in "abcd"])}
    new = 1 - math.exp(-3)  # the knee is a third of the highest loss
    way = torch.tensor([new / 2, 1 / 2], dtype=torch.float64)  # half of it is epochs
    below = 4 * torch.outer(way, way) + 0.25 * torch.eye(2, dtype=torch.float64)
    fall = math.log(200.5 / 100.5) / math.log(4)
    rate, scaling = (torch.linalg.inv(below) @ (4 * way * fall + 0.25 * 0.5)).tolist()
    whole = 80, 16  # four times the images and twice the epochs of the larger ones
    wanted = rate * new * math.log(2) + scaling * math.log(4)
    for accuracy in predicted(small, large, whole).values():
        assert accuracy == pytest.approx(1 - 0.25 * math.exp(-wanted))


def test_the_summary_tells_of_each_shape_and_each_pair_of_them() -> None:
    rows = packed(
        [
            *(network(n, 8, 8, w, 1.0) for n, w in (("a", 40), ("b", 80))),
            *(network(n, 8, 1, w, 1.0) for n, w in (("a", 120), ("b", 100))),
            *(network(n, 4, 4, w, 1.0) for n, w in (("a", 90), ("b", 110))),
            *(network(n, 2, 4, w, 1.0) for n, w in (("a", 110), ("b", 120))),
            network("a", 2, 2, 1, 1.0),  # not all were trained
        ]
    )
    assert summary(rows, 8, 8) == [
        "8 images, 1 epochs (8 times fewer passes): lost 10.00 points, 0% of pairs right, "
        "1 draws; first b",
        "4 images, 4 epochs (4 times fewer passes): lost 0.00 points, 100% of pairs right, "
        "1 draws; first a",
        "2 images, 4 epochs (8 times fewer passes): lost 0.00 points, 100% of pairs right, "
        "1 draws; first a",
        "predicted from 2 images, 4 epochs and 4 images, 4 epochs (4 times fewer passes): "
        "lost 0.00 points, 100% of pairs right, 1 draws; first a",
    ]
    assert torch.equal(bits(rows[0]), bits(packed([network("z", 8, 8, 40, 0.0)])[0]))
