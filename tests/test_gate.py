from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepaa import CIFAR, Policy, load_policy
from deepaa.gate import DROPPED_IDENTITY, policy_distance, reproduction_gate


@pytest.mark.parametrize("name", ["deepaa_cifar_1", "deepaa_cifar_2"])
def test_the_authors_policies_pass(shared: Path, name: str) -> None:
    checks = reproduction_gate(load_policy(shared / "policies" / f"{name}.npz"))
    assert [check for check in checks if not check.passed] == []
    assert len(checks) == 7


@pytest.mark.parametrize(
    ("policy", "failed"),
    [
        (Policy.identity(CIFAR, 3), {"layer 1 is broad", "crop is used", "cutout is used"}),
        (Policy.trivial(CIFAR, 6), {"a layer up to the third is cutout", "the end is identity"}),
        (load_policy("crop-flip-cutout"), {"layer 1 is broad"}),
    ],
)
def test_others_do_not(policy: Policy, failed: set[str]) -> None:
    if policy.table.identity is None:
        policy = policy.then(Policy.identity())
    found = {check.name for check in reproduction_gate(policy) if not check.passed}
    assert failed <= found


def test_the_layer_that_ended_the_search_counts() -> None:
    checks = reproduction_gate(Policy.trivial(CIFAR, 2), last_identity=0.95)
    assert checks[-1].passed
    for said, passed in (("0.95", True), ("0.5", False), ("unknown", False)):
        trivial = Policy.trivial(CIFAR, 2)
        policy = Policy(CIFAR, trivial.phases[0].stages, info={DROPPED_IDENTITY: said})
        assert reproduction_gate(policy)[-1].passed is passed


def test_distance() -> None:
    trivial, identity = Policy.trivial(CIFAR, 4), Policy.identity(CIFAR, 4)
    assert policy_distance(trivial, trivial) == 0
    assert policy_distance(trivial, identity) == pytest.approx(17 / 18)
    assert policy_distance(identity, Policy.identity(CIFAR, 2)) == 0
    flip = torch.zeros(1, 139)
    flip[0, [t.op for t in CIFAR.transformations].index("flip")] = 1
    assert policy_distance(Policy(CIFAR, flip), Policy.identity(CIFAR, 1)) == 1
    assert policy_distance(Policy(CIFAR, flip), Policy.identity(CIFAR, 4)) == 0.25
