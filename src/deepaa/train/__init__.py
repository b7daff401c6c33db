"""Training and evaluation of networks with a policy: settings, loop, recipes and results.

Here belongs what a training does and keeps. The folder of a run is the matter of `deepaa.runs`,
what a person sees of it that of `deepaa.cli`.
"""

from deepaa.train.batches import (
    ImageBatches as ImageBatches,
    StreamedBatches as StreamedBatches,
    ended_policy as ended_policy,
    space_of as space_of,
)
from deepaa.train.config import (
    MOST_EPOCHS as MOST_EPOCHS,
    RECIPES as RECIPES,
    Recipe as Recipe,
    TrainConfig as TrainConfig,
    device_settings as device_settings,
    find_recipe as find_recipe,
    precision_on as precision_on,
)
from deepaa.train.experiment import (
    Experiment as Experiment,
    PolicySpec as PolicySpec,
    TrainRequest as TrainRequest,
    build_experiment as build_experiment,
    policy_hash as policy_hash,
)
from deepaa.train.loop import (
    EpochRecord as EpochRecord,
    Outcome as Outcome,
    Training as Training,
    evaluate as evaluate,
    evaluate_streamed as evaluate_streamed,
    image_outcomes as image_outcomes,
    train_together as train_together,
)
from deepaa.train.results import (
    ENOUGH as ENOUGH,
    RESULTS as RESULTS,
    SeedFailure as SeedFailure,
    SeedResult as SeedResult,
    mean_in_percent as mean_in_percent,
    read_results as read_results,
    summary as summary,
)
from deepaa.train.stored import (
    check_alike as check_alike,
    runs_in as runs_in,
    stored_request as stored_request,
)
from deepaa.train.stream_policy import crop_for as crop_for
from deepaa.train.training_run import (
    SeedEpoch as SeedEpoch,
    SeedEvent as SeedEvent,
    SeedRequest as SeedRequest,
    TrainingRun as TrainingRun,
    train_side_by_side as train_side_by_side,
    weights_name as weights_name,
)
