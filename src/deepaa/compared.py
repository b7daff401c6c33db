"""The policies a training compares: any name or file, run as its own authors run it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch

from deepaa.baselines import SpaceName, default_policy
from deepaa.named_policies import named
from deepaa.pba import SEARCH_EPOCHS
from deepaa.policy import Policy
from deepaa.policy_file import (
    PBA,
    SIMPLE,
    Kind,
    behind,
    only_chains,
    read_policy,
    schedule_source,
)
from deepaa.space import Operation
from deepaa.stages import Layers, Stage

__all__ = ["SpaceName", "compared_policy", "with_defaults"]


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
    policy, usual = _as_published(source, space, epochs, operations)
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
    source: str | Path, space: SpaceName, epochs: int | None, operations: Sequence[Operation]
) -> tuple[Policy, bool]:
    """The policy as its authors evaluate it, and whether the defaults follow it."""
    if (inner := behind(SIMPLE, source)) is not None:
        return _as_published(inner, space, epochs, operations)[0].first_layers(1), True
    found = read_policy(source, operations, space)
    if found.kind is Kind.NAMED:
        entry = named(str(source))
        return found.policy, entry is not None and entry.defaults
    if found.kind is Kind.SCHEDULE:
        inner = behind(PBA, source)
        over = SEARCH_EPOCHS if inner is None else schedule_source(inner)[1]
        return (found.policy if epochs is None else found.policy.stretched(epochs, over)), True
    if found.kind is Kind.SUB_POLICIES:
        return found.policy.symmetric(), True
    if found.kind is Kind.ARCHIVE:
        return found.policy.symmetric(), False
    # sub-policies were found with the defaults on; a file with layers as well may hold them
    return found.policy, only_chains(found.policy)
