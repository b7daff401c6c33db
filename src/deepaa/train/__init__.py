"""Training and evaluation of networks with a policy: settings, loop, recipes and results.

Here belongs what a training does and keeps. The folder of a run is the matter of `deepaa.runs`,
what a person sees of it that of `deepaa.cli`.
"""

from deepaa.train.batches import ImageBatches, StreamedBatches
from deepaa.train.config import RECIPES, Recipe, TrainConfig, find_recipe, precision_on
from deepaa.train.experiment import (
    Experiment,
    PolicySpec,
    TrainRequest,
    build_experiment,
    runs_in,
    space_of,
    stored_request,
)
from deepaa.train.loop import (
    EpochRecord,
    Outcome,
    Training,
    evaluate,
    evaluate_streamed,
    train_together,
)
from deepaa.train.results import (
    ENOUGH,
    RESULTS,
    SeedFailure,
    SeedResult,
    percent,
    read_results,
    summary,
)
from deepaa.train.stream_policy import crop_for
from deepaa.train.training_run import (
    SeedEpoch,
    SeedEvent,
    SeedRequest,
    TrainingRun,
    train_side_by_side,
    weights_name,
)

__all__ = [
    "ENOUGH",
    "RECIPES",
    "RESULTS",
    "EpochRecord",
    "Experiment",
    "ImageBatches",
    "Outcome",
    "PolicySpec",
    "Recipe",
    "SeedEpoch",
    "SeedEvent",
    "SeedFailure",
    "SeedRequest",
    "SeedResult",
    "StreamedBatches",
    "TrainConfig",
    "TrainRequest",
    "Training",
    "TrainingRun",
    "build_experiment",
    "crop_for",
    "evaluate",
    "evaluate_streamed",
    "find_recipe",
    "percent",
    "precision_on",
    "read_results",
    "runs_in",
    "space_of",
    "stored_request",
    "summary",
    "train_side_by_side",
    "train_together",
    "weights_name",
]
