"""Searches for policies: from images to a policy, with presets, costs and short trainings.

Here belongs what decides how a policy is found; the method of the paper is in
`gradient_matching`. The options and results of `deepaa search` are the matter of `deepaa.cli`.
"""

from deepaa.search.gradient_matching.rewards import SearchData
from deepaa.search.gradient_matching.search import LayerRecord, Search, StepRecord
from deepaa.search.policy_search import PolicySearch, forecast
from deepaa.search.run import SearchProgress, SearchRequest, find_policy, open_search
from deepaa.search.settings import PRESETS, SearchConfig, SettingsRequest, settings_from_json
from deepaa.search.verify import Trial, TrialResult, run_trial, trial_images

__all__ = [
    "PRESETS",
    "LayerRecord",
    "PolicySearch",
    "Search",
    "SearchConfig",
    "SearchData",
    "SearchProgress",
    "SearchRequest",
    "SettingsRequest",
    "StepRecord",
    "Trial",
    "TrialResult",
    "find_policy",
    "forecast",
    "open_search",
    "run_trial",
    "settings_from_json",
    "trial_images",
]
