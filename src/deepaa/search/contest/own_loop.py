"""`hold_contest`: policies compared in the user's own training loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepaa.data import FEW_IMAGES, halves
from deepaa.policy import Policy, SpaceName, compared_policy
from deepaa.runs import read_json, stored, write_json
from deepaa.search.contest.candidates import Candidate, all_candidates
from deepaa.search.contest.plan import FIRST_FRESH_SEED, Job, SeedPlan
from deepaa.search.contest.result import (
    ContestResult,
    contest_result,
    document,
    table_from_json,
)
from deepaa.search.contest.run import DIGITS
from deepaa.search.contest.table import ContestTable, Entry
from deepaa.train import policy_hash

OwnLoop = Callable[[Policy, int], tuple[Any, Any]]
"""Trains with a policy and a seed, and gives the loss and the correctness of each judge image."""

_LOGGER = logging.getLogger(__name__)


def hold_contest(
    train: OwnLoop,
    policies: Mapping[str, Policy | str | Path] | None = None,
    *,
    found: Policy | None = None,
    usual: bool = True,
    space: SpaceName = "cifar",
    labels: Sequence[int] | Tensor | None = None,
    groups: Sequence[int] | Tensor | None = None,
    epochs: int = 1,
    seeds: int = 2,
    fresh_seeds: int = 2,
    out: str | Path | None = None,
) -> ContestResult:
    """The policy with which your own training loop does best, and the proof of it.

    `train(policy, seed)` trains a network as you always do, with the policy in place of your
    augmentation (`DeepAutoAugment(policy)`), and returns two sequences: the loss of each judge
    image and whether it was classified right, in the same order every time. Judge images are
    images that you neither train on nor test on. No augmentation and crop + flip always take
    part: they are what the others have to beat. One half of the judge images chooses; the interval
    of the result comes from the other half, and from networks that were trained for it alone.

    Args:
        policies: Your candidates by name: policies, names of policies, or files.
        found: The policy of a search; its depths, spread and half strength take part.
        usual: Whether TrivialAugment and others that need no search take part.
        space: cifar for images of up to 64 pixels, imagenet for larger ones.
        labels: Classes of the judge images, so that both halves have the same share of each.
        groups: Equal numbers for judge images that belong together, such as frames of a scene.
        epochs: Epochs of your loop, for the record.
        seeds: Networks of each candidate that is not far behind after one.
        fresh_seeds: Networks of the winner and of its rival for the proof.
        out: A folder for contest.json. Called again with it, trainings that are done are not
            repeated; a folder of other policies, epochs, seeds or judge images is refused.
    """
    for name, value in (("epochs", epochs), ("seeds", seeds), ("fresh_seeds", fresh_seeds)):
        if value < 1:
            raise ValueError(f"{name} should be 1 or more, got {value}")
    _check_judges(labels, groups)
    given = [_given(name, policy, space) for name, policy in (policies or {}).items()]
    candidates = all_candidates(space, found=found, given=given)
    if not usual:
        candidates = [*candidates[:2], *(each for each in candidates[2:] if each.kind != "named")]
    by_name = {each.name: each for each in candidates}
    plan = SeedPlan(tuple(by_name), epochs, fresh_seeds, epochs, seeds)
    path = None if out is None else Path(out) / "contest.json"
    entries = _stored(path, plan, by_name, labels, groups)
    table = None if not entries else _table(entries, labels, groups)
    while (
        jobs := [Job(by, epochs, 0) for by in by_name] if table is None else plan.next_jobs(table)
    ):
        job = jobs[0]
        stage = "proof of" if job.seed >= FIRST_FRESH_SEED else "training with"
        _LOGGER.info("%s %s, seed %d", stage, by_name[job.candidate].title, job.seed)
        entries.append(_trained(train, by_name[job.candidate].policy, job))
        if len(entries[-1].losses) != len(entries[0].losses):
            raise ValueError(
                f"train gave {len(entries[-1].losses)} losses for {job.candidate}, but "
                f"{len(entries[0].losses)} before: the judge images have to stay the same"
            )
        if len(entries) == 1 and (count := len(entries[0].losses)) < FEW_IMAGES:
            few = f"{count} judge images tell only large differences between policies"
            _LOGGER.warning("%s; %d or more tell smaller ones", few, FEW_IMAGES)
        table = _table(entries, labels, groups)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, document(by_name, plan, table, _facts(table)))
    assert table is not None
    return contest_result(by_name, plan, table)


def _given(name: str, policy: Policy | str | Path, space: SpaceName) -> Candidate:
    if not isinstance(policy, Policy):
        policy = compared_policy(policy, space=space)
    return Candidate(name, name, policy, "given")


def _trained(train: OwnLoop, policy: Policy, job: Job) -> Entry:
    """What the user's loop gives, checked."""
    found = train(policy, job.seed)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(
            "train should return two sequences, the loss of each judge image and whether it was "
            f"classified right, got {type(found).__name__}"
        )
    losses, correct = (torch.as_tensor(part).detach().cpu() for part in found)
    if losses.ndim != 1 or losses.shape != correct.shape or not len(losses):
        shapes = f"{tuple(losses.shape)} and {tuple(correct.shape)}"
        raise ValueError(f"train should return losses (N,) and correctness (N,), got {shapes}")
    if not bool(((correct == 0) | (correct == 1)).all()):
        raise ValueError("correctness should be true or false for each image")
    rounded = losses.double().round(decimals=DIGITS)
    # the loop does not tell its training loss: candidates are not ordered by strength
    return Entry(*job, rounded, correct.bool(), 0.0)


def _table(
    entries: Sequence[Entry],
    labels: Sequence[int] | Tensor | None,
    groups: Sequence[int] | Tensor | None,
) -> ContestTable:
    count = len(entries[0].losses)
    classes = torch.zeros(count, dtype=torch.int64) if labels is None else torch.as_tensor(labels)
    clusters = None if groups is None else torch.as_tensor(groups)
    for name, values in (("labels", classes), ("groups", clusters)):
        if values is not None and values.shape != (count,):
            shape = tuple(values.shape)
            raise ValueError(f"{name} should be ({count},), one for each loss, got {shape}")
    return ContestTable(halves(classes, clusters), tuple(entries), clusters)


def _check_judges(
    labels: Sequence[int] | Tensor | None, groups: Sequence[int] | Tensor | None
) -> None:
    """Refuse labels and groups that no loop can fit, before it trains."""
    sizes = [len(part) for part in (labels, groups) if part is not None]
    if len({*sizes}) > 1:
        raise ValueError(f"labels and groups should be as many, got {sizes[0]} and {sizes[1]}")
    if groups is not None:
        classes = torch.zeros(len(groups), dtype=torch.int64)
        halves(classes if labels is None else torch.as_tensor(labels), torch.as_tensor(groups))


def _stored(
    path: Path | None,
    plan: SeedPlan,
    candidates: Mapping[str, Candidate],
    labels: Sequence[int] | Tensor | None,
    groups: Sequence[int] | Tensor | None,
) -> list[Entry]:
    """The trainings that an earlier call has done.

    Raises:
        ValueError: They are of other policies, epochs, seeds or judge images than this call's.
    """
    if path is None or not path.exists():
        return []
    content = read_json(path)
    table = table_from_json(stored(content, "table", dict[str, Any], path), path)
    hashes = {
        stored(row, "name", str, path): stored(row, "policy_sha256", str, path)
        for row in stored(content, "candidates", tuple[dict[str, Any], ...], path)
    }
    for name in table.candidates:
        if name not in candidates:
            raise _other(path, f"{name!r}, which is no candidate now")
        if hashes.get(name) != policy_hash(candidates[name].policy):
            raise _other(path, f"another policy {name!r}")
    for name, value in plan.settings.items():
        if (kept := stored(content, f"plan.{name}", int, path)) != value:
            raise _other(path, f"{name.replace('target_', '')}={kept}, and this call has {value}")
    if table.entries:
        now = _table(table.entries, labels, groups)
        if not _same(now.chooses, table.chooses) or not _same(now.clusters, table.clusters):
            raise _other(path, "other labels or groups")
    return sorted(table.entries, key=lambda entry: plan.place(Job(*entry[:3])))


def _same(ours: Tensor | None, theirs: Tensor | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return torch.equal(ours, theirs)


def _other(path: Path, what: str) -> ValueError:
    return ValueError(
        f"{path}: holds a contest with {what}; its trainings are not those of this call. Give "
        "another folder, or delete this one"
    )


def _facts(table: ContestTable) -> dict[str, Any]:
    clusters = table.clusters
    judge = {
        "how": "part",
        "images": len(table.chooses),
        "folds": None,
        "chooses": int(table.chooses.sum()),
        "groups": None if clusters is None else len(torch.unique(clusters)),
    }
    return {
        "data": {"name": "your own", "images": None, "judge": judge},
        "network": "your own",
        "device": None,
        "protected": [],
    }
