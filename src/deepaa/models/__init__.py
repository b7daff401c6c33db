"""Networks: the ones that are searched and trained with, by name, and those of users.

Here belongs what builds, names or copies a network. What trains one is the matter of
`deepaa.train`.
"""

from deepaa.models.factory import (
    LONG_ON_CPU as LONG_ON_CPU,
    SMALL_SIDE as SMALL_SIDE,
    Normalize as Normalize,
    ScaleShift as ScaleShift,
    build_model as build_model,
    channel_statistics as channel_statistics,
    checked_outputs as checked_outputs,
    copy_model as copy_model,
    default_model as default_model,
    frozen_copy as frozen_copy,
    is_large as is_large,
    is_own_code as is_own_code,
    load_model as load_model,
    quicker as quicker,
    quicker_options as quicker_options,
    state_hash as state_hash,
    unwrap_compiled as unwrap_compiled,
)
from deepaa.models.weights import load_weights as load_weights
