"""`compared_policy` gives the policy of a name or file as its own authors run it in a training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch

from deepaa.ops import Operation
from deepaa.policy.baselines import SpaceName, default_policy
from deepaa.policy.load import Origin, read_policy
from deepaa.policy.names import GENERATED, PolicyRef, parse_policy_ref
from deepaa.policy.pba import SEARCH_EPOCHS
from deepaa.policy.policy import Policy
from deepaa.policy.stages import Chains, Layers, Stage


def compared_policy(
    source: str | Path,
    *,
    defaults: bool | None = None,
    space: SpaceName = "cifar",
    epochs: int | None = None,
    first_layers: int | None = None,
    operations: Sequence[Operation] = (),
) -> Policy:
    """The policy of a name or file as a training runs it.

    Published files are mirrored, as their evaluation does: shear, translate and rotate take either
    sign. Methods that were published on top of the default crop, flip and cutout get them.

    Args:
        defaults: Whether the default augmentation follows; None leaves it to the policy.
        space: Which defaults, and which ranges where a name has them for both data sets.
        epochs: Epochs of the training, to which PBA's schedules are stretched.
        first_layers: Only so many layers of the policy; the defaults are not counted.
        operations: Your own operations that a file names.
    """
    if space not in ("cifar", "imagenet"):
        raise ValueError(f"space should be cifar or imagenet, got {space!r}")
    policy, usual = _as_published(parse_policy_ref(source), space, epochs, operations)
    if first_layers is not None:
        policy = policy.first_layers(first_layers)
    return with_defaults(policy, space) if (usual if defaults is None else defaults) else policy


def with_defaults(policy: Policy, space: SpaceName = "cifar") -> Policy:
    """The policy, then crop and flip, and cutout on CIFAR."""
    joined = policy.then(default_policy(space))
    schedule = [(phase.epoch, _joined_layers(phase.stages)) for phase in joined.phases]
    return Policy(joined.table, schedule=schedule, info=policy.info)


def _joined_layers(stages: tuple[Stage, ...]) -> list[Stage]:
    """Neighbouring layers as one stage: the draws are the same, and one CUDA program makes them."""
    joined: list[Stage] = []
    for is_layers, group in groupby(stages, lambda stage: isinstance(stage, Layers)):
        parts = list(group)
        if is_layers:
            tables = [part.probabilities for part in parts if isinstance(part, Layers)]
            joined.append(Layers(torch.cat(tables)))
        else:
            joined += parts
    return joined


def _as_published(
    ref: PolicyRef, space: SpaceName, epochs: int | None, operations: Sequence[Operation]
) -> tuple[Policy, bool]:
    """The policy as its authors evaluate it, and whether the defaults follow it."""
    policy, origin = read_policy(ref, operations, space)
    # sub-policies were found with the defaults on; a file with layers as well may hold them
    defaults = _only_chains(policy)
    if origin is Origin.NAME:
        defaults = GENERATED[str(ref.name)].defaults
    elif origin is Origin.SCHEDULE:
        over = int(ref.arguments.get("over", SEARCH_EPOCHS))
        policy, defaults = policy if epochs is None else policy.stretched(epochs, over), True
    elif origin in (Origin.SUB_POLICIES, Origin.ARCHIVE):
        policy = policy.symmetric()
    return (policy.first_layers(1), True) if ref.first_layer else (policy, defaults)


def _only_chains(policy: Policy) -> bool:
    """Whether the policy is nothing but sub-policies."""
    stages = [stage for phase in policy.phases for stage in phase.stages]
    return bool(stages) and all(isinstance(stage, Chains) for stage in stages)
