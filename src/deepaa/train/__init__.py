"""Training and evaluation of networks with a policy: settings, loop, recipes and results.

Here belongs what a training does and keeps. The folder of a run is the matter of `deepaa.runs`,
what a person sees of it that of `deepaa.cli`.
"""

from deepaa.train.batches import ImageBatches, StreamedBatches
from deepaa.train.config import TrainConfig, precision_on
from deepaa.train.evaluation import evaluate, evaluate_streamed
from deepaa.train.experiment import Experiment, build_experiment, space_of
from deepaa.train.loop import EpochRecord, Outcome, Training, train_together
from deepaa.train.recipes import RECIPES, Recipe, find_recipe
from deepaa.train.request import (
    PLACES,
    SCANS,
    PolicySpec,
    TrainRequest,
    runs_in,
    stored_request,
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
from deepaa.train.seeds import SeedRequest
from deepaa.train.stream_policy import crop_for
from deepaa.train.training_run import (
    SeedEpoch,
    SeedEvent,
    TrainingRun,
    train_side_by_side,
    weights_name,
)

__all__ = [
    "ENOUGH",
    "PLACES",
    "RECIPES",
    "RESULTS",
    "SCANS",
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
