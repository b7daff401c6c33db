"""Policies as data: layers and chains, schedules, the file format, foreign files and names.

Here belongs what says which operation an image gets. How a policy is found is the matter of
`deepaa.search`, how it is put into a data pipeline that of `deepaa.transforms`.
"""

from deepaa.policy.baselines import SIDES, SPACES, SpaceName, default_policy
from deepaa.policy.format import dumps
from deepaa.policy.load import (
    FORMS,
    GENERATED,
    PolicyRef,
    compared_policy,
    load_policy,
    parse_policy_ref,
    policy_names,
)
from deepaa.policy.measures import hidden_share, layer_distances, policy_distance, use_distance
from deepaa.policy.policy import DROPPED_IDENTITY, Phase, Policy
from deepaa.policy.stages import Chains, Layers, Stage, perplexity, thresholds
from deepaa.policy.strict_json import PolicyFileError

__all__ = [
    "DROPPED_IDENTITY",
    "FORMS",
    "GENERATED",
    "SIDES",
    "SPACES",
    "Chains",
    "Layers",
    "Phase",
    "Policy",
    "PolicyFileError",
    "PolicyRef",
    "SpaceName",
    "Stage",
    "compared_policy",
    "default_policy",
    "dumps",
    "hidden_share",
    "layer_distances",
    "load_policy",
    "parse_policy_ref",
    "perplexity",
    "policy_distance",
    "policy_names",
    "thresholds",
    "use_distance",
]
