"""Measures of policies against numbers that are counted or multiplied out by hand."""

from __future__ import annotations

import pytest
import torch

from deepaa import CIFAR, Operation, Policy, load_policy
from deepaa.ops.space import Space
from deepaa.policy import compared_policy
from deepaa.policy.measures import (
    hidden_share,
    layer_distances,
    own_advice,
    policy_distance,
    use_distance,
)


def always(*operations: Operation) -> Policy:
    """Each operation alone in a layer, at its highest magnitude."""
    policies = [
        Policy(Space((operation,), levels=2), torch.tensor([[0.0, 1.0]]))
        if operation.low is not None
        else Policy(Space((operation,)), torch.ones(1, 1))
        for operation in operations
    ]
    whole = policies[0]
    for policy in policies[1:]:
        whole = whole.then(policy)
    return whole


HALF = Operation("translate_x", -0.5, 0.5)
CROP = Operation("crop")


def test_geometry_hides_what_it_uncovers() -> None:
    assert hidden_share(always(HALF)) == 0.5
    assert hidden_share(always(HALF), side=64) == 0.5
    down = Operation("translate_y", -0.25, 0.25)
    assert hidden_share(always(HALF, down)) == 1 - 0.5 * 0.75


def test_what_is_hidden_stays_hidden() -> None:
    # all that the second translation could uncover has been filled by the first
    assert hidden_share(always(HALF, HALF)) == 1.0
    assert hidden_share(always(HALF, Operation("flip"))) == 0.5


def test_colours_hide_nothing() -> None:
    names = ["identity", "auto_contrast", "invert", "equalize", "solarize", "posterize"]
    names += ["contrast", "color", "brightness", "sharpness", "flip"]
    colours = Policy.uniform(CIFAR.only(*names), layers=3)
    assert hidden_share(colours) == 0.0
    assert hidden_share(always(Operation("solarize", 0.0, 1.0), HALF)) == 0.5


def test_a_padded_crop_hides_its_border() -> None:
    moved = sum(abs(offset - 4) for offset in range(9)) / 9
    want = 1 - (1 - moved / 32) ** 2  # rows and columns are drawn apart
    assert hidden_share(always(CROP)) == pytest.approx(want, abs=0.01)
    assert hidden_share(always(CROP), side=64) == pytest.approx(1 - (1 - moved / 64) ** 2, abs=0.01)


def test_the_original_cutout_hides_its_square() -> None:
    def covered(centre: int) -> int:
        return min(32, centre + 8) - max(0, centre - 8)

    mean = sum(map(covered, range(32))) / 32
    want = 1 - (1 - 20 / 9 / 32) ** 2 * (1 - (mean / 32) ** 2)
    # cutout may cover what the crop has filled, so both together hide what either does
    assert hidden_share(load_policy("crop-flip-cutout")) == pytest.approx(want, abs=0.02)


def test_a_mixture_hides_its_mean() -> None:
    half = Policy(Space((HALF, Operation("identity")), levels=2), torch.tensor([[0.0, 0.5, 0.5]]))
    assert hidden_share(half) == pytest.approx(0.25, abs=0.03)


def test_own_operations_count_as_hiding_nothing() -> None:
    def black(image: object, magnitude: object, uniforms: object) -> object:
        raise AssertionError("it is not called")

    own = Operation("black", pil=black)  # type: ignore[arg-type]
    assert hidden_share(always(own, HALF)) == 0.5


def test_each_phase_of_a_schedule_has_its_own() -> None:
    moved, still = always(HALF), always(Operation("identity"))
    both = moved.then(still)
    stages = both.phases[0].stages
    schedule = Policy(both.table, schedule=[(0, stages[1:]), (5, stages)])
    assert hidden_share(schedule, epoch=4) == 0.0
    assert hidden_share(schedule, epoch=5) == 0.5


def test_distance_by_layer() -> None:
    trivial, identity = Policy.trivial(CIFAR, 4), Policy.identity(CIFAR, 4)
    assert policy_distance(trivial, trivial) == 0
    assert policy_distance(trivial, identity) == pytest.approx(17 / 18)
    assert policy_distance(identity, Policy.identity(CIFAR, 2)) == 0
    flip = torch.zeros(1, 139)
    flip[0, [t.op for t in CIFAR.transformations].index("flip")] = 1
    assert policy_distance(Policy(CIFAR, flip), Policy.identity(CIFAR, 1)) == 1
    assert policy_distance(Policy(CIFAR, flip), Policy.identity(CIFAR, 4)) == 0.25
    empty = Policy(CIFAR)
    assert policy_distance(empty, empty) == 0


def test_distances_agree() -> None:
    policies = [load_policy(name) for name in ("deepta", "uniform", "randaugment", "crop-flip")]
    for a in policies:
        for b in policies:
            layers = layer_distances(a, b)
            assert len(layers) == max(a.depth, b.depth)
            assert sum(layers) / len(layers) == pytest.approx(policy_distance(a, b))
            assert use_distance(a, b) == pytest.approx(use_distance(b, a))
        assert use_distance(a, a) == 0
    none, deepta, uniform = load_policy("none"), *policies[:2]
    assert use_distance(none, none) == 0
    assert use_distance(none, deepta) == 1
    # the order of layers does not matter to what an image meets
    cutout = load_policy("crop-flip-cutout")
    assert use_distance(uniform.then(cutout), cutout.then(uniform)) == pytest.approx(0)
    assert policy_distance(uniform.then(cutout), cutout.then(uniform)) > 0


# What to do with one's own crop, flip and cutout


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("crop-flip", "It has its own crop and flip: remove yours."),
        ("crop-flip-cutout", "It has its own crop, flip and cutout: remove yours."),
    ],
)
def test_only_what_a_policy_has_is_removed(name: str, advice: str) -> None:
    assert own_advice(compared_policy(name)) == advice


def test_nothing_is_removed_beside_a_policy_that_has_none_of_it() -> None:
    colours = Policy.trivial(CIFAR.only("identity", "rotate", "solarize"), 2)
    assert own_advice(colours).startswith("It has no crop, flip or cutout; whether yours help")
    seldom = Policy.trivial(CIFAR, 1).strength(0.5)
    assert "remove" in own_advice(Policy.trivial(CIFAR, 1)), "one in 18 has each"
    assert "remove" not in own_advice(seldom)


def test_every_phase_of_a_schedule_counts() -> None:
    late = compared_policy("crop-flip-cutout").ending(compared_policy("crop-flip"), 5)
    assert own_advice(late) == "It has its own crop, flip and cutout: remove yours."
    identity = Policy.identity(CIFAR).ending(compared_policy("crop-flip"), 5)
    assert own_advice(identity) == "It has its own crop and flip: remove yours."
