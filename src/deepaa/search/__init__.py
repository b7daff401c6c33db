"""Searches for policies: from images to a policy, with presets, costs and short trainings.

Here belongs what decides how a policy is found; the method of the paper is in
`gradient_matching`. The options and results of `deepaa search` are the matter of `deepaa.cli`.
"""

from deepaa.search.gradient_matching.rewards import SearchData
from deepaa.search.gradient_matching.search import LayerRecord, Search, StepRecord
from deepaa.search.policy_search import (
    PolicySearch,
    forecast,
    run_trial,
    trial_epochs,
    trial_images,
)
from deepaa.search.run import SearchProgress, SearchRequest, find_policy, open_search
from deepaa.search.settings import PRESETS, SearchConfig, Settings, SettingsRequest

__all__ = [
    "PRESETS",
    "LayerRecord",
    "PolicySearch",
    "Search",
    "SearchConfig",
    "SearchData",
    "SearchProgress",
    "SearchRequest",
    "Settings",
    "SettingsRequest",
    "StepRecord",
    "find_policy",
    "forecast",
    "open_search",
    "run_trial",
    "trial_epochs",
    "trial_images",
]
