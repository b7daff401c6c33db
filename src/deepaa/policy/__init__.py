"""Policies as data: layers and chains, schedules, the file format, foreign files and names.

Here belongs what says which operation an image gets. How a policy is found is the matter of
`deepaa.search`, how it is put into a data pipeline that of `deepaa.transforms`.
"""

from deepaa.policy.algebra import (
    SCHEDULE_EPOCHS as SCHEDULE_EPOCHS,
    fitted_schedule as fitted_schedule,
    weaker_draw as weaker_draw,
)
from deepaa.policy.baselines import (
    FIFTEEN as FIFTEEN,
    SIDES as SIDES,
    SPACES as SPACES,
    SpaceName as SpaceName,
    continuous_levels as continuous_levels,
    default_policy as default_policy,
    rand_augment as rand_augment,
)
from deepaa.policy.foreign import (
    PBA_NAMES as PBA_NAMES,
    pba_mixture as pba_mixture,
    pba_rows as pba_rows,
)
from deepaa.policy.format import dumps as dumps
from deepaa.policy.load import (
    DEFAULTS as DEFAULTS,
    FORMS as FORMS,
    GENERATED as GENERATED,
    PolicyRef as PolicyRef,
    compared_policy as compared_policy,
    load_policy as load_policy,
    parse_policy_ref as parse_policy_ref,
    policy_names as policy_names,
)
from deepaa.policy.measures import (
    hidden_share as hidden_share,
    layer_distances as layer_distances,
    likely_sequences as likely_sequences,
    own_advice as own_advice,
    policy_distance as policy_distance,
    use_distance as use_distance,
)
from deepaa.policy.policy import (
    Phase as Phase,
    Policy as Policy,
)
from deepaa.policy.stages import (
    IDENTITY as IDENTITY,
    Chains as Chains,
    Layers as Layers,
    Stage as Stage,
    perplexity as perplexity,
    thresholds as thresholds,
)
from deepaa.policy.strict_json import PolicyFileError as PolicyFileError
