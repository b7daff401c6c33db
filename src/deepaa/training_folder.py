"""The folder of a training: what identifies it, the seeds it has, and where its images lie."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepaa import distributed
from deepaa.agreement import by_main
from deepaa.policy import Policy
from deepaa.policy_json import dumps
from deepaa.results import SeedFailure, SeedResult
from deepaa.run_files import RunError, read_json, write_json
from deepaa.runs import Run, read_config, read_history
from deepaa.train_config import TrainConfig
from deepaa.training_data import Material

SEEDS, PLACES, SCANS = "seeds.json", "places.json", "scan.json"
POLICIES = "policies.json"
KIND = "train"
AGAIN = "again"
"""The kind of record that lets a seed that failed be trained once more."""
PATHS = ("data", "test", "root")
"""What of the source says where the images lie; a run finds them elsewhere by their checksums."""
MOST_SEED = 2**63 - 1
"""The largest seed that torch and a key of 64 bits take."""


# What it is


def identity(
    policy: Policy | None,
    model: str,
    config: TrainConfig,
    material: Material,
    source: Mapping[str, Any],
) -> dict[str, Any]:
    """What makes two runs the same but for their seeds.

    Args:
        source: Where policy, model and images came from, for `deepaa train --resume`.
    """
    train = dataclasses.asdict(config)
    del train["seed"]
    return {
        "kind": KIND,
        "policy_sha256": policy_hash(policy),
        "model": model,
        "train": train,
        "images": material.facts(),
        "source": dict(source),
    }


def policy_hash(policy: Policy | None) -> str | None:
    """The sha256 of a policy's content, whoever described it how."""
    if policy is None:
        return None
    bare = Policy(policy.table, schedule=[(p.epoch, p.stages) for p in policy.phases])
    return hashlib.sha256(dumps(bare).encode()).hexdigest()


def recognised(found: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """An identity in the words of the run in `folder`, where only names and places differ.

    Checksums tell images and policies apart, so both may have moved since the run began. A setting
    that is younger than the run has its default there.
    """
    found = dict(found)
    if not (Path(folder) / "config.json").exists():
        return found
    known = read_config(folder)
    if known.get("kind") != KIND:
        return found
    found["train"] = _said(found["train"], known["train"])
    words: dict[str, Any] = {}
    images, there = found["images"], known["images"]
    if all(images[name] == there.get(name) for name in ("fingerprint", "test_fingerprint")):
        words |= {name: known["source"].get(name) for name in PATHS}
        found["images"] = {**images, "data": there["data"], "test": there["test"]}
    if found["policy_sha256"] == known["policy_sha256"]:
        words["policy"] = known["source"].get("policy")
    found["source"] = {**found["source"], **words}
    return found


def _said(train: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without defaults that a run says nothing about."""
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    return {k: v for k, v in train.items() if k in there or v != defaults[k]}


def places_of(folder: Path) -> dict[str, Any]:
    """Where the run found its images last."""
    path = folder / PLACES
    return {k: v for k, v in read_json(path).items() if k in PATHS} if path.exists() else {}


def scans_of(folder: Path) -> dict[str, Any]:
    """What was found when the run's files were decoded to look for bad ones, in all processes."""

    def read() -> dict[str, Any]:
        try:
            return dict(read_json(folder / SCANS))
        except (OSError, ValueError):  # none, or a damaged one: then they are decoded again
            return {}

    return distributed.from_main(by_main(read)) or {}


def inner_folders(folder: Path) -> list[Path]:
    """The runs of several policies that a folder holds."""
    path = folder / POLICIES
    return [folder / name for name in read_json(path)["folders"]] if path.exists() else []


def remember_inner(folder: Path, inner: Sequence[Path]) -> None:
    """Let `inner_folders` know these too."""
    known = [path.name for path in inner_folders(folder)]
    new = [path.name for path in inner if path.name not in known]
    if new:
        write_json(folder / POLICIES, {"folders": [*known, *new]})


# What it has


def results_of(history: Sequence[Mapping[str, Any]]) -> list[SeedResult]:
    """The results that a run's history holds."""
    return [SeedResult(**row) for row in _rows(history, "seed")]


def failures_of(history: Sequence[Mapping[str, Any]]) -> list[SeedFailure]:
    """The seeds that failed and were not asked for again, by a run's history."""
    newest = {row["seed"]: row for row in history if row["kind"] in ("failed", AGAIN)}
    return [SeedFailure(**row) for row in _rows(list(newest.values()), "failed")]


def _rows(history: Sequence[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    rows = [record for record in history if record["kind"] == kind]
    return [{k: v for k, v in row.items() if k != "kind"} for row in rows]


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that no folder could take."""
    for seed in seeds:
        if not 0 <= seed <= MOST_SEED:
            raise ValueError(f"--seed should be in 0..{MOST_SEED}, got {seed}")
        if seeds.count(seed) > 1:
            raise ValueError(f"seed {seed} would be trained twice: give it once")


def agreed_seeds(
    run: Run | None,
    *,
    count: int | None,
    given: Sequence[int],
    resume: bool,
    remember: bool = True,
) -> list[int]:
    """All seeds of a run after new ones were asked for; the folder remembers them.

    Args:
        count: So many seeds that the run does not have. None is one where it would have none: a
            kill may have come before it knew its seeds.
        given: Seeds by number; those that failed are trained again.
        resume: Whether seeds that were asked for before may still be unfinished.
        remember: Without it, the folder stays as it is.
    """
    check_seeds(given)

    def agree() -> list[int]:
        assert run is not None  # the main process has it
        run.latest()  # drops records that no state stands for
        known, new = _known_and_new(run.folder, run.history(), count, given, resume)
        if new and remember:
            run.write_json(SEEDS, {"asked": [*known, *new]})
        if remember:
            _try_again(run, [seed for seed in given if seed in known])
        return [*known, *new]

    return distributed.from_main(by_main(agree)) or []


def foreseen_seeds(
    folder: Path, *, count: int | None, given: Sequence[int], resume: bool
) -> list[int]:
    """The seeds that a call would train, see `agreed_seeds`; only looks."""
    check_seeds(given)
    history = read_history(folder)
    known, new = _known_and_new(folder, history, count, given, resume)
    done = {result.seed for result in results_of(history)}
    done |= {failure.seed for failure in failures_of(history)} - {*given}
    return [seed for seed in [*known, *new] if seed not in done]


def _known_and_new(
    folder: Path,
    history: Sequence[Mapping[str, Any]],
    count: int | None,
    given: Sequence[int],
    resume: bool,
) -> tuple[list[int], list[int]]:
    known = _asked(folder, history)
    failed = {failure.seed for failure in failures_of(history)}
    if repeated := sorted(seed for seed in given if seed in known and seed not in failed):
        raise RunError(
            f"{folder}: seed {repeated[0]} would be trained twice; the run has "
            f"{', '.join(map(str, known)) or 'none'}: give others, or --seeds for new ones"
        )
    done = failed | {result.seed for result in results_of(history)}
    left = [seed for seed in known if seed not in done]
    if left and not resume:
        raise RunError(
            f"{folder}: {'seed' if len(left) == 1 else 'seeds'} {', '.join(map(str, left))} "
            f"not finished; go on with: deepaa train --resume {folder}"
        )
    if count is None and not given and not known:
        count = 1
    after = max([-1, *known, *given]) + 1
    new = [seed for seed in given if seed not in known]
    new += range(after, after + (count or 0))
    check_seeds(new)
    return known, new


def _asked(folder: Path, history: Sequence[Mapping[str, Any]]) -> list[int]:
    """The seeds that were asked for, and any that were trained should the file have lost them."""
    path = folder / SEEDS
    listed = read_json(path).get("asked") if path.exists() else []
    if not isinstance(listed, list) or not all(type(seed) is int for seed in listed):
        raise RunError(f"{path}: damaged, expected a list of seeds; without it the history is read")
    return list(dict.fromkeys([*listed, *(row["seed"] for row in history if "seed" in row)]))


def _try_again(run: Run, failed: Sequence[int]) -> None:
    """Let these seeds be trained once more; on disk at once, for a stop may come any time."""
    if not failed:
        return
    saved = run.latest()
    assert saved is not None  # a failure is kept with a state
    for seed in failed:
        run.log({"kind": AGAIN, "seed": seed})
    run.save(saved.tensors, saved.position)
