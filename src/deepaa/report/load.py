"""What a report is about: a policy, and the run that found it if there is one.

Runs are only read, never changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from deepaa.ops import Operation, import_operations
from deepaa.policy import Layers, Policy, load_policy
from deepaa.runs import (
    CONFIG,
    HISTORY,
    NEWEST,
    POLICY,
    PREVIOUS,
    PROVENANCE,
    RunError,
    is_in_use,
    read_config,
    read_history,
    read_json,
)
from deepaa.search import settings_from_json

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
    unfinished: int | None = None
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
    """Read a run folder, a policy file or a policy by name.

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
    """The subject with the layers of its newest checkpoint, the unfinished one among them."""
    state = _state(folder)
    if "search.found" not in state:
        return subject
    settings = settings_from_json(subject.config, own)
    kept = state["search.found"]
    unfinished = None
    if not bool(state["search.done"]):
        kept = torch.cat((kept, state["search.logits"].softmax(0)[None]))
        unfinished = len(kept)
    policy = Policy(settings.space, Layers(kept / kept.sum(1, keepdim=True)))
    if settings.search.symmetric:
        policy = policy.symmetric()
    return subject._replace(policy=policy, unfinished=unfinished)


def _state(folder: Path) -> Mapping[str, Tensor]:
    """The tensors of the newest readable checkpoint; a run may be replacing it just now."""
    for name in (NEWEST.state, PREVIOUS.state):
        try:
            return load_file(folder / name)
        except (OSError, SafetensorError):
            continue
    return {}


def _optional(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is missing or damaged."""
    try:
        return read_json(path)
    except RunError:
        return {}


def status_of(folder: Path) -> Status:
    """Whether a search is finished, running or stopped; it writes its policy last."""
    if (folder / POLICY).exists():
        return "finished"
    return "running" if is_in_use(folder) else "stopped"


def stamp(folder: Path) -> tuple[object, ...]:
    """A value that changes whenever a run has something new to show."""
    return (status_of(folder), *(_size_and_time(folder / n) for n in (HISTORY, NEWEST.state)))


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)
