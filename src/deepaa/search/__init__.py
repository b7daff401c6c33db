"""Searches for policies: from images to a policy that training has proved.

Here belongs what decides how a policy is found; the method of the paper is in `gradient_matching`,
the trainings that decide between policies in `contest`. The options and results of `deepaa search`
are the matter of `deepaa.cli`.
"""

from deepaa.search.contest import (
    FORMS as FORMS,
    ContestConfig as ContestConfig,
    ContestProgress as ContestProgress,
    ContestRequest as ContestRequest,
    ContestResult as ContestResult,
    ContestRun as ContestRun,
    LengthPlan as LengthPlan,
    LoopRecord as LoopRecord,
    Searched as Searched,
    hold_contest as hold_contest,
    open_contest as open_contest,
    short_name as short_name,
)
from deepaa.search.cost import (
    Cost as Cost,
    cheaper as cheaper,
    cheaper_way as cheaper_way,
    contest_forecast as contest_forecast,
    forecast as forecast,
    plan_text as plan_text,
    search_cost as search_cost,
)
from deepaa.search.gradient_matching.rewards import SearchData as SearchData
from deepaa.search.gradient_matching.search import (
    LayerRecord as LayerRecord,
    Search as Search,
    StepRecord as StepRecord,
)
from deepaa.search.methods import (
    METHODS as METHODS,
    TRAINING_COST as TRAINING_COST,
    Forecast as Forecast,
    Method as Method,
    Needs as Needs,
    Part as Part,
    Passes as Passes,
    Searcher as Searcher,
    TrainedChoice as TrainedChoice,
    TrainedChoiceConfig as TrainedChoiceConfig,
    TrialRecord as TrialRecord,
    World as World,
    base_preset as base_preset,
    open_method as open_method,
    opened_method as opened_method,
    seed_for as seed_for,
)
from deepaa.search.plain_network import ProtectionRecord as ProtectionRecord
from deepaa.search.policy_search import PolicySearch as PolicySearch
from deepaa.search.progress import SearchProgress as SearchProgress
from deepaa.search.protection import (
    Changed as Changed,
    Protection as Protection,
    find_changed as find_changed,
)
from deepaa.search.proved import ProvedSearch as ProvedSearch
from deepaa.search.run import (
    SearchRequest as SearchRequest,
    demo_contest as demo_contest,
    find_policy as find_policy,
    open_search as open_search,
)
from deepaa.search.settings import (
    PRESETS as PRESETS,
    SearchConfig as SearchConfig,
    Settings as Settings,
    SettingsRequest as SettingsRequest,
)
from deepaa.search.several import (
    METHODS_FILE as METHODS_FILE,
    MethodRow as MethodRow,
    SharedProtection as SharedProtection,
    best_form as best_form,
    check_contest as check_contest,
    images_used as images_used,
    judged as judged,
    looking_of as looking_of,
    method_lines as method_lines,
    settings_for as settings_for,
    shared_seconds as shared_seconds,
    spent as spent,
    training_changes as training_changes,
    whole_cost as whole_cost,
    within_budget as within_budget,
)
