"""`hold_contest`: policies compared in the user's own training loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepaa.data import FEW_IMAGES, halves
from deepaa.ops import BUILTIN, Row
from deepaa.policy import Policy, SpaceName, compared_policy
from deepaa.runs import (
    CONFIG,
    CONTEST,
    POLICY,
    ProgressLine,
    is_interactive,
    read_json,
    stored,
    write_json,
)
from deepaa.search.contest.candidates import (
    REFERENCES,
    Candidate,
    all_candidates,
    protected_away,
)
from deepaa.search.contest.plan import FIRST_FRESH_SEED, Job
from deepaa.search.contest.result import (
    ContestResult,
    contest_result,
    document,
    table_from_json,
)
from deepaa.search.contest.run import DIGITS
from deepaa.search.contest.seed_plan import SeedPlan
from deepaa.search.contest.table import ContestTable, Entry
from deepaa.train import policy_hash

OwnLoop = Callable[[Policy, int], tuple[Any, Any]]
"""Trains with a policy and a seed, and gives the loss and the correctness of each judge image."""
Exclude = str | Sequence[str] | Callable[[Row], bool]
"""Names of operations, with commas or in a sequence, or whether a row of a policy is excluded."""
Progress = bool | Callable[["LoopRecord"], None] | None
"""Whether progress is shown, or what is called with each record; None for where somebody looks."""

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
    exclude: Exclude = (),
    out: str | Path | None = None,
    progress: Progress = None,
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
        exclude: Operations that turn one of your classes into another, as a flip does "left":
            names, as "flip,invert", or a function of a `Row` that is true for what may not take
            part, as the `excludes` of what `deepaa.search.find_changed` gives. They leave every
            candidate. Nothing is looked for here, since only your loop knows your network.
        out: A folder for contest.json, and for policy.json, the winner. Called again with it,
            trainings that are done are not repeated; a folder of other policies, epochs, seeds or
            judge images is refused.
        progress: Whether each training is shown on stderr, by default in terminals and notebooks;
            or a function that is called with a `LoopRecord` after each.
    """
    for name, value in (("epochs", epochs), ("seeds", seeds), ("fresh_seeds", fresh_seeds)):
        if value < 1:
            raise ValueError(f"{name} should be 1 or more, got {value}")
    _check_judges(labels, groups)
    candidates, excluded = _candidates(policies, found, space, exclude, usual=usual)
    by_name = {each.name: each for each in candidates}
    plan = SeedPlan(tuple(by_name), epochs, fresh_seeds, epochs, seeds)
    path = None if out is None else _place(Path(out))
    entries = _stored(path, plan, by_name, labels, groups)
    table = None if not entries else _table(entries, labels, groups)
    shown = _Progress(plan, by_name, progress)
    while (
        jobs := [Job(by, epochs, 0) for by in by_name] if table is None else plan.next_jobs(table)
    ):
        if path is not None:  # of fewer candidates
            (path.parent / POLICY).unlink(missing_ok=True)
        shown.begin(jobs[0], table)
        entries.append(_trained(train, by_name[jobs[0].candidate].policy, jobs[0]))
        if len(entries[-1].losses) != len(entries[0].losses):
            raise ValueError(
                f"train gave {len(entries[-1].losses)} losses for {jobs[0].candidate}, but "
                f"{len(entries[0].losses)} before: the judge images have to stay the same"
            )
        if len(entries) == 1 and (count := len(entries[0].losses)) < FEW_IMAGES:
            few = f"{count} judge images tell only large differences between policies"
            _LOGGER.warning("%s; %d or more tell smaller ones", few, FEW_IMAGES)
        table = _table(entries, labels, groups)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, document(by_name, plan, table, _facts(table, excluded)))
        shown.end(entries[-1])
    assert table is not None
    result = contest_result(by_name, plan, table)
    if path is not None:
        result.policy.save(path.parent / POLICY)
    return result


def _candidates(
    policies: Mapping[str, Policy | str | Path] | None,
    found: Policy | None,
    space: SpaceName,
    exclude: Exclude,
    *,
    usual: bool,
) -> tuple[list[Candidate], list[Candidate]]:
    """Who takes part, and of whom nothing is left without what is excluded."""
    given = [_given(name, policy, space) for name, policy in (policies or {}).items()]
    everybody = all_candidates(space, found=found, given=given)
    excludes = _excludes(exclude, everybody)
    kept = all_candidates(space, found=found, given=given, excludes=excludes)
    if not usual:
        everybody, kept = (
            [each for each in some if each.kind != "named" or each.name in REFERENCES]
            for some in (everybody, kept)
        )
    return kept, protected_away(everybody, kept)


def _excludes(exclude: Exclude, candidates: Sequence[Candidate]) -> Callable[[Row], bool]:
    """Whether a row is excluded: by a function, or by the name of its operation."""
    if callable(exclude):
        return exclude
    words = exclude.split(",") if isinstance(exclude, str) else exclude
    names = {word.strip() for word in words} - {""}
    own = {op.name for each in candidates for op in each.policy.table.operations}
    if unknown := sorted(names - own - {*BUILTIN}):
        known = ", ".join(sorted((own | {*BUILTIN}) - {"identity"}))
        raise ValueError(f"exclude: no operation {unknown[0]!r}; there are {known}")
    return lambda row: row.operation.name in names


def _place(folder: Path) -> Path:
    """Where contest.json is kept; refused if a policy.json would be lost, as that of a run."""
    others = POLICY if not (folder / CONTEST).exists() else CONFIG
    for name in (CONFIG, others):
        if (folder / name).exists():
            raise ValueError(
                f"{folder}: holds a {name} that is not of hold_contest; give it a folder of its own"
            )
    return folder / CONTEST


class LoopRecord(NamedTuple):
    """A training of the user's loop is over."""

    candidate: str
    title: str
    seed: int
    is_proof: bool
    number: int
    """Of this training, from 1."""
    most: int
    """Trainings of the whole contest, at most."""
    accuracy: float
    loss: float


class _Progress:
    """What a person sees of the trainings: a line for each, on stderr or by a function."""

    def __init__(
        self, plan: SeedPlan, candidates: Mapping[str, Candidate], progress: Progress
    ) -> None:
        self.plan, self.candidates = plan, candidates
        is_shown = is_interactive() if progress is None else progress is True
        self.line = ProgressLine() if is_shown else None
        self.on_record = progress if callable(progress) else lambda record: None
        self.number = self.most = 0

    def begin(self, job: Job, table: ContestTable | None) -> None:
        """Say which training begins."""
        plan, done = self.plan, 0 if table is None else len(table.entries)
        rungs = [] if table is None else plan.rungs(table)
        going_on = len(rungs[1].names if len(rungs) > 1 else plan.names)
        self.number = done + 1
        self.most = len(plan.names) + going_on * (plan.seeds - 1) + 2 * plan.fresh_seeds
        text = f"training {self.number} of at most {self.most}: {self._title(*job)}"
        _LOGGER.info("contest: %s", text)
        if self.line is not None:
            self.line.update(f"contest  {text}", always=True)

    def end(self, entry: Entry) -> None:
        """Say how the training did."""
        accuracy, loss = entry.correct.double().mean().item(), entry.losses.mean().item()
        if self.line is not None:
            self.line.message(f"contest: {100 * accuracy:5.1f} %, {self._title(*entry[:3])}")
        title, is_proof = self.candidates[entry.candidate].title, entry.seed >= FIRST_FRESH_SEED
        of = self.number, self.most
        self.on_record(
            LoopRecord(entry.candidate, title, entry.seed, is_proof, *of, accuracy, loss)
        )

    def _title(self, candidate: str, length: int, seed: int) -> str:
        proof = " (proof)" if seed >= FIRST_FRESH_SEED else ""
        return f"{self.candidates[candidate].title}, seed {seed}{proof}"


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


def _facts(table: ContestTable, excluded: Sequence[Candidate]) -> dict[str, Any]:
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
        "excluded": [each.title for each in excluded],
    }
