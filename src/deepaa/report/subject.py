"""What a report is about: a policy, and the run that found it if there is one. Only reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from deepaa.checkpoint import NEWEST, PREVIOUS
from deepaa.own_operations import import_operations
from deepaa.policy import Layers, Policy
from deepaa.policy_file import load_policy
from deepaa.run_files import RunError, read_json
from deepaa.run_history import HISTORY
from deepaa.run_lock import is_in_use
from deepaa.run_settings import settings_of
from deepaa.runs import CONFIG, POLICY, PROVENANCE, read_config, read_history
from deepaa.space import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

Status = Literal["policy", "finished", "running", "stopped"]
VERIFY = "verify.json"


class Subject(NamedTuple):
    """Everything a report reads, before it is made into tables."""

    name: str
    """What the user called it."""
    status: Status
    policy: Policy | None
    """What is found so far; None before the first state of a search."""
    in_work: int | None = None
    """The last layer of `policy`, while it is still being searched."""
    folder: Path | None = None
    config: Mapping[str, Any] = {}
    records: tuple[dict[str, Any], ...] = ()
    provenance: Mapping[str, Any] = {}
    verify: Mapping[str, Any] = {}
    """The short trainings of `deepaa search --verify`."""
    problem: str = ""
    """Why there is no policy although there should be one."""


def read_subject(source: str, operations: Sequence[str] = ()) -> Subject:
    """The run folder, the policy file or the policy with this name.

    Args:
        operations: Own operations as MODULE:NAME; importing them runs their code. A run's own list
            is not imported by itself: looking at a folder runs no code.
    """
    own = import_operations(operations)
    folder = Path(source)
    if not folder.is_dir():
        return Subject(source, "policy", load_policy(source, own))
    if not (folder / CONFIG).exists():
        if (folder / POLICY).exists():
            return Subject(source, "policy", load_policy(folder / POLICY, own))
        raise RunError(f"{folder}: holds no run ({CONFIG} is missing) and no {POLICY}")
    config = read_config(folder)
    if config.get("kind") == "train":
        raise RunError(
            f"{folder}: this run is a training; show it beside a policy: "
            f"deepaa report POLICY --results {folder}"
        )
    return _read_run(source, folder, config, own)


def _read_run(
    source: str, folder: Path, config: Mapping[str, Any], own: Sequence[Operation]
) -> Subject:
    subject = Subject(
        source,
        status_of(folder),
        None,
        folder=folder,
        config=config,
        records=tuple(read_history(folder)),
        provenance=_optional(folder / PROVENANCE),
        verify=_optional(folder / VERIFY),
    )
    try:
        if subject.status == "finished":
            return subject._replace(policy=load_policy(folder / POLICY, own))
        return _with_found(subject, folder, own)
    except (ValueError, OSError) as error:
        return subject._replace(problem=str(error))


def _with_found(subject: Subject, folder: Path, own: Sequence[Operation]) -> Subject:
    """The layers of the newest state, and the layer in work."""
    state = _state(folder)
    if "search.found" not in state:
        return subject
    settings = settings_of(subject.config, own)
    kept = state["search.found"]
    _, _, _, _, is_done = state["search.counters"].tolist()
    in_work = None
    if not is_done:
        kept = torch.cat((kept, state["search.logits"].softmax(0)[None]))
        in_work = len(kept)
    policy = Policy(settings.space, Layers(kept / kept.sum(1, keepdim=True)))
    if settings.search.symmetric:
        policy = policy.symmetric()
    return subject._replace(policy=policy, in_work=in_work)


def _state(folder: Path) -> Mapping[str, Tensor]:
    """The newest tensors that can be read; a run may be renaming them just now."""
    for name in (NEWEST.state, PREVIOUS.state):
        try:
            return load_file(folder / name)
        except (OSError, SafetensorError):
            continue
    return {}


def _optional(path: Path) -> dict[str, Any]:
    """A file that need not be there, or be whole."""
    try:
        return read_json(path)
    except RunError:
        return {}


def status_of(folder: Path) -> Status:
    """Where a search is: its policy is the last thing it writes."""
    if (folder / POLICY).exists():
        return "finished"
    return "running" if is_in_use(folder) else "stopped"


def stamp(folder: Path) -> tuple[object, ...]:
    """Differs once there is something new to show of a run."""
    return (status_of(folder), *(_size_and_time(folder / n) for n in (HISTORY, NEWEST.state)))


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)
