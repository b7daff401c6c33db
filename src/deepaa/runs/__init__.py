"""The folder of a run: settings, history, checkpoints, lock, environment and requests to stop.

Here belongs what makes work survive a kill. What is searched or trained is not known here.
"""

from deepaa.runs.checkpoint import (
    HISTORY,
    NEWEST,
    PREVIOUS,
    RunError,
    read_history,
    read_json,
    to_bytes,
    write_file,
    write_json,
)
from deepaa.runs.process import (
    ProgressLine,
    StopAskedError,
    StopRequest,
    duration,
    is_in_use,
    is_interactive,
    notify,
)
from deepaa.runs.run import (
    CONFIG,
    POLICY,
    PROVENANCE,
    Run,
    check_folder,
    devices,
    part_of,
    processor,
    read_config,
    versions,
)
from deepaa.runs.settings import apply_changes, from_plain, parse_changes, to_plain
from deepaa.runs.tensorboard import FOLDER, TensorBoardLog

__all__ = [
    "CONFIG",
    "FOLDER",
    "HISTORY",
    "NEWEST",
    "POLICY",
    "PREVIOUS",
    "PROVENANCE",
    "ProgressLine",
    "Run",
    "RunError",
    "StopAskedError",
    "StopRequest",
    "TensorBoardLog",
    "apply_changes",
    "check_folder",
    "devices",
    "duration",
    "from_plain",
    "is_in_use",
    "is_interactive",
    "notify",
    "parse_changes",
    "part_of",
    "processor",
    "read_config",
    "read_history",
    "read_json",
    "to_bytes",
    "to_plain",
    "versions",
    "write_file",
    "write_json",
]
