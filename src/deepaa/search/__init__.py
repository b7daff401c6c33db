"""Searches for policies: from images to a policy, with presets, costs and short trainings.

Here belongs what decides how a policy is found; the method of the paper is in
`gradient_matching`. The options and results of `deepaa search` are the matter of `deepaa.cli`.
"""

from deepaa.search.gradient_matching.rewards import SearchData as SearchData
from deepaa.search.gradient_matching.search import (
    LayerRecord as LayerRecord,
    Search as Search,
    StepRecord as StepRecord,
)
from deepaa.search.plain_network import ProtectionRecord as ProtectionRecord
from deepaa.search.policy_search import (
    PolicySearch as PolicySearch,
    forecast as forecast,
    run_trial as run_trial,
    trial_epochs as trial_epochs,
    trial_images as trial_images,
)
from deepaa.search.protection import (
    Changed as Changed,
    Protection as Protection,
    find_changed as find_changed,
)
from deepaa.search.run import (
    SearchProgress as SearchProgress,
    SearchRequest as SearchRequest,
    find_policy as find_policy,
    open_search as open_search,
)
from deepaa.search.settings import (
    PRESETS as PRESETS,
    SearchConfig as SearchConfig,
    Settings as Settings,
    SettingsRequest as SettingsRequest,
)
