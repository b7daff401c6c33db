"""Search methods beside gradient matching, behind one interface, and the controls for each.

Here belongs how other methods find a policy. Data, splits, run folder, resume and progress are
the matter of `deepaa.search`, which gives every method the same images, network and seeds.
"""

from deepaa.search.methods.registry import (
    METHODS as METHODS,
    OWN as OWN,
    Method as Method,
    base_preset as base_preset,
    find_searcher as find_searcher,
    method_of as method_of,
    open_method as open_method,
    opened_method as opened_method,
    stored_method as stored_method,
)
from deepaa.search.methods.searcher import (
    TRAINING_COST as TRAINING_COST,
    Forecast as Forecast,
    MethodConfig as MethodConfig,
    Needs as Needs,
    Part as Part,
    Passes as Passes,
    Searcher as Searcher,
    TrialRecord as TrialRecord,
    World as World,
    default_place as default_place,
    seed_for as seed_for,
)
from deepaa.search.methods.trained_choice import (
    TrainedChoice as TrainedChoice,
    TrainedChoiceConfig as TrainedChoiceConfig,
)
