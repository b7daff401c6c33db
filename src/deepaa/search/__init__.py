"""Searches for policies: from images to a policy, with presets, costs and short trainings.

Here belongs what decides how a policy is found; the method of the paper is in
`gradient_matching`. The options and results of `deepaa search` are the matter of `deepaa.cli`.
"""

from deepaa.search.cost import forecast
from deepaa.search.gradient_matching.config import SearchConfig
from deepaa.search.gradient_matching.minibatch import SearchData
from deepaa.search.gradient_matching.records import LayerRecord, StepRecord
from deepaa.search.gradient_matching.search import Search
from deepaa.search.policy_search import PolicySearch
from deepaa.search.presets import PRESETS, SPACES
from deepaa.search.progress import SearchProgress
from deepaa.search.run import SearchRequest, find_policy, open_search
from deepaa.search.settings import SettingsRequest, settings_from_json
from deepaa.search.verify import Trial, TrialResult, run_trial, trial_images

__all__ = [
    "PRESETS",
    "SPACES",
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
