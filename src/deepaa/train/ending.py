"""The weak ending of a training: its last epochs with the weakest augmentation that is safe."""

from __future__ import annotations

from collections.abc import Sequence

from deepaa.models import SMALL_SIDE
from deepaa.policy import Policy, SpaceName, default_policy
from deepaa.train.config import TrainConfig


def space_of(shape: Sequence[int]) -> SpaceName:
    """Whose ranges and defaults images of this shape (C, H, W) get."""
    return "imagenet" if max(shape[1:]) > SMALL_SIDE else "cifar"


def ended_policy(policy: Policy | None, config: TrainConfig, shape: Sequence[int]) -> Policy | None:
    """The policy that a training with these settings draws from; None stays no augmentation.

    In the last `end_epochs` images get the crop and the flip of the default augmentation for their
    shape (C, H, W), without its cutout; of the two only what the policy has as well. It may have no
    flip because that makes another class of an image, and then the ending has none.
    """
    if policy is None or not config.end_epochs:
        return policy
    uses = [policy.expected_uses(phase.epoch) for phase in policy.phases]
    names = {name for found in uses for name, count in found.items() if count > 0}
    weak = default_policy(space_of(shape), cutout=False)
    weak = weak.without(lambda row: row.operation.name not in names)
    return policy.ending(weak, config.epochs - config.end_epochs)
