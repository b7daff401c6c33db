"""The folder of a run: settings, history, checkpoints, lock, environment and requests to stop.

Here belongs what makes work survive a kill. What is searched or trained is not known here.
"""

from deepaa.runs.checkpoint import (
    HISTORY as HISTORY,
    NEWEST as NEWEST,
    PREVIOUS as PREVIOUS,
    read_history as read_history,
    to_bytes as to_bytes,
    write_file as write_file,
    write_json as write_json,
)
from deepaa.runs.json_text import (
    RunError as RunError,
    checksum as checksum,
    parsed as parsed,
    read_json as read_json,
)
from deepaa.runs.process import (
    ProgressLine as ProgressLine,
    StopAskedError as StopAskedError,
    StopRequest as StopRequest,
    duration as duration,
    fitted as fitted,
    in_terminal as in_terminal,
    is_in_use as is_in_use,
    is_interactive as is_interactive,
    notify as notify,
    print_line as print_line,
)
from deepaa.runs.run import (
    CONFIG as CONFIG,
    CONTEST as CONTEST,
    FOUND as FOUND,
    POLICY as POLICY,
    PROVENANCE as PROVENANCE,
    Run as Run,
    check_folder as check_folder,
    devices as devices,
    differences as differences,
    in_lines as in_lines,
    part_of as part_of,
    processor as processor,
    read_config as read_config,
    versions as versions,
)
from deepaa.runs.settings import (
    ADDED as ADDED,
    apply_changes as apply_changes,
    changed_settings as changed_settings,
    changed_values as changed_values,
    checked_value as checked_value,
    from_plain as from_plain,
    parse_changes as parse_changes,
    record_of as record_of,
    short as short,
    stored as stored,
    to_plain as to_plain,
    to_record as to_record,
)
from deepaa.runs.tensorboard import FOLDER as FOLDER, TensorBoardLog as TensorBoardLog
from deepaa.runs.trust import (
    check_named as check_named,
    check_named_model as check_named_model,
    checks_state as checks_state,
)
