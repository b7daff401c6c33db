"""What a report reads: a run folder, a policy file, or a policy by name.

Runs are only read, never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from deepaa.files import read_regular
from deepaa.ops import Operation, import_operations
from deepaa.policy import Layers, Policy, load_policy, parse_policy_ref
from deepaa.report.contest import ContestView, contest_table
from deepaa.report.records import check_config, checked_provenance, checked_records
from deepaa.runs import (
    CONFIG,
    CONTEST,
    FOUND,
    HISTORY,
    NEWEST,
    POLICY,
    PREVIOUS,
    PROVENANCE,
    RunError,
    checks_state,
    is_in_use,
    read_config,
    read_history,
    read_json,
)
from deepaa.search import ProtectionRecord, Settings

Status = Literal["policy", "finished", "running", "stopped", "contest running", "contest stopped"]
"""A contest runs or was stopped when the search before it has ended."""
MAX_STATE_BYTES = 1 << 34
"""Of a checkpoint that is shown."""
CONTEST_KIND = "contest"
"""Of a run of `deepaa contest`, in its config.json."""


class Subject(NamedTuple):
    """Everything a report reads, before it is made into tables."""

    name: str
    """What the user called it."""
    status: Status
    policy: Policy | None
    """The run's policy, or what is found so far; None before the first state of a search."""
    unfinished: int | None = None
    """The last layer of `policy`, while it is still being searched."""
    folder: Path | None = None
    config: Mapping[str, Any] = {}
    records: tuple[dict[str, Any], ...] = ()
    provenance: Mapping[str, Any] = {}
    found: Policy | None = None
    """What the search itself found, where the contest chose another policy."""
    contest: ContestView | None = None
    problem: str = ""
    """Why there is no policy although there should be one."""
    lost: Mapping[str, str] = {}
    """Why `found` or `contest` cannot be shown although they are there, by their names."""

    @property
    def is_running(self) -> bool:
        """Whether there will be more to show."""
        return self.status in ("running", "contest running")

    @property
    def config_of_images(self) -> Mapping[str, Any]:
        """The settings of the run whose images are shown, also where the subject is its file."""
        return self.config or config_beside(self.name)


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
        if (folder / CONTEST).exists():
            return _own_contest(source, folder, own)
        if (folder / POLICY).exists():
            return Subject(source, "policy", load_policy(folder / POLICY, own))
        missing = f"holds no run ({CONFIG} is missing), no {CONTEST} and no {POLICY}"
        raise RunError(f"{folder}: {missing}")
    config = read_config(folder)
    if config.get("kind") == "train":
        raise RunError(
            f"{folder}: this run is a training; show it beside a policy: "
            f"deepaa report POLICY --results {folder}"
        )
    check_config(config, folder / CONFIG)
    subject = Subject(
        source,
        status_of(folder),
        None,
        folder=folder,
        config=config,
        records=checked_records(read_history(folder), folder / HISTORY),
        provenance=checked_provenance(_optional(folder / PROVENANCE)),
    )
    subject, found = _with_contest(subject, folder, own)
    try:
        if subject.status == "finished":
            winner = load_policy(folder / POLICY, own)
            is_other = found is not None and not found.equals(winner)
            return subject._replace(policy=winner, found=found if is_other else None)
        if found is not None:
            return subject._replace(policy=found)
        return _with_layers(subject, folder, own)
    except (ValueError, OSError) as error:
        return subject._replace(problem=str(error))


def _own_contest(source: str, folder: Path, own: Sequence[Operation]) -> Subject:
    """The contest of `hold_contest`, which keeps no settings of a run."""
    contest, policy, problem = contest_table(read_json(folder / CONTEST)), None, ""
    status: Status = "finished" if contest.status == "finished" else "contest stopped"
    if (folder / POLICY).exists():
        try:
            policy = load_policy(folder / POLICY, own)
        except (ValueError, OSError) as error:
            problem = str(error)
    config = {"kind": CONTEST_KIND, "source": {"from_python": ["the training loop"]}}
    return Subject(source, status, policy, None, folder, config, contest=contest, problem=problem)


def _with_contest(
    subject: Subject, folder: Path, own: Sequence[Operation]
) -> tuple[Subject, Policy | None]:
    """The subject with its contest, and what the search found, as far as they can be read."""
    found, lost = None, {}
    if (folder / CONTEST).exists():
        try:
            subject = subject._replace(contest=contest_table(read_json(folder / CONTEST)))
        except ValueError as error:
            lost["contest"] = str(error)
    if (folder / FOUND).exists():
        try:
            found = load_policy(folder / FOUND, own)
        except (ValueError, OSError) as error:
            lost["found"] = str(error)
    return subject._replace(lost=lost), found


def _with_layers(subject: Subject, folder: Path, own: Sequence[Operation]) -> Subject:
    """The subject with the layers of its newest checkpoint, the unfinished one among them."""
    state: dict[str, torch.Tensor] = {}
    for name in (NEWEST.state, PREVIOUS.state):
        with suppress(OSError, SafetensorError, ValueError):  # it may be replaced just now
            state = state or load(read_regular(folder / name, MAX_STATE_BYTES))
    if "search.found" not in state:
        return subject
    settings = Settings.from_json(subject.config, own)
    kept = state["search.found"]
    unfinished = None
    with checks_state(folder):
        space = settings.space
        if "protection" in state:
            space = ProtectionRecord.from_tensor(state["protection"]).protection.space(space)
        if not bool(state["search.done"]):
            kept = torch.cat((kept, state["search.logits"].softmax(0)[None]))
            unfinished = len(kept)
        policy = Policy(space, Layers(kept / kept.sum(1, keepdim=True)))
    if settings.search.symmetric:
        policy = policy.symmetric()
    return subject._replace(policy=policy, unfinished=unfinished)


def _optional(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is missing or damaged."""
    try:
        return read_json(path)
    except RunError:
        return {}


def status_of(folder: Path) -> Status:
    """Whether a run is finished, running or stopped, and whether that is its contest.

    A run writes its policy last: what a search found comes before its contest.
    """
    if (folder / POLICY).exists():
        return "finished"
    is_contest = read_config(folder).get("kind") == CONTEST_KIND
    if is_contest or (folder / FOUND).exists() or (folder / CONTEST).exists():
        return "contest running" if is_in_use(folder) else "contest stopped"
    return "running" if is_in_use(folder) else "stopped"


def stamp(folder: Path) -> tuple[object, ...]:
    """A value that changes whenever a run has something new to show."""
    found: list[object] = [status_of(folder)]
    for path in (folder / HISTORY, folder / NEWEST.state, folder / FOUND, folder / CONTEST):
        try:
            found.append((path.stat().st_size, path.stat().st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def config_beside(policy: str) -> Mapping[str, Any]:
    """The settings of the run that a policy is a folder or file of; empty for other policies."""
    path = parse_policy_ref(policy).path
    with suppress(ValueError, OSError):  # no folder of a run, or a damaged one
        folder = None if path is None else path if path.is_dir() else path.parent
        if folder is not None and (folder / CONFIG).exists():
            config = read_config(folder)
            check_config(config, folder / CONFIG)
            return config
    return {}


def policy_notes(folder: Path, policy: Policy, own: Sequence[Operation] = ()) -> tuple[str, str]:
    """What the policy of a run folder is, and where the one is that its search found.

    Either is empty where the folder does not say it.
    """
    config, contest, found = {}, None, None
    with suppress(ValueError, OSError):  # a folder that somebody made by hand
        config = read_config(folder)
    with suppress(ValueError, OSError):
        contest = contest_table(read_json(folder / CONTEST))
    with suppress(ValueError, OSError):
        found = load_policy(folder / FOUND, own)
    about, other = "", f"what the search itself found: deepaa show {folder / FOUND}"
    if contest is not None and contest.winner is not None:
        about = f"the winner of the contest: {contest.winner.title}"
    elif config.get("kind") == "train":
        about = "the policy of a training"
    elif config.get("kind") == "search":
        about = "what the search found; no contest has judged it"
    if found is not None and found.equals(policy):
        other = "" if contest is None else "the search itself found this policy"
    return about, other if (folder / FOUND).is_file() else ""
