"""Networks: the ones that are searched and trained with, by name, and those of users.

Here belongs what builds, names or copies a network. What trains one is the matter of
`deepaa.train`.
"""

from deepaa.models.factory import (
    SMALL_SIDE,
    Normalize,
    ScaleShift,
    build_model,
    channel_statistics,
    checked_outputs,
    copy_model,
    default_model,
    frozen_copy,
    is_large,
    load_model,
    state_hash,
    unwrap_compiled,
)

__all__ = [
    "SMALL_SIDE",
    "Normalize",
    "ScaleShift",
    "build_model",
    "channel_statistics",
    "checked_outputs",
    "copy_model",
    "default_model",
    "frozen_copy",
    "is_large",
    "load_model",
    "state_hash",
    "unwrap_compiled",
]
