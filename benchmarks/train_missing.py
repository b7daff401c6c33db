"""Trains the networks of a list that results/ does not have yet, for a number of minutes.

    python benchmarks/train_missing.py LIST.toml --minutes 60 [--parallel 4] [-- --root data]

The list holds tables `[[train]]` with `policy`, `seeds` and, if need be, `recipe`, `data`,
`parallel` and `options` (a list of further options of `deepaa train`). Each network gets one JSON
file, see results/README.md; one that is there is never trained again. Entries with the fewest
networks come first, several seeds of one entry are trained side by side. Options behind `--` say
how this machine trains (`--root`, `--device`, `--workers`, `--set tune=true`) and are not part of
the result's name. Nor are `--file data/cifar10.npz`, from which entries with the data cifar10 are
then trained, and `--commit`, which says the commit of a copy of the code without a repository.

A training that would not end in time is not begun, or is stopped as soon as its first epochs show
it. At the deadline, or after SIGTERM, what is at work saves its epochs in the work folder and goes
on from there with the next call.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from deepaa.runs import (
    RunError,
    StopRequest,
    from_plain,
    read_config,
    read_history,
    read_json,
    to_plain,
    write_json,
)

FORMAT, VERSION = "deepaa-trained-network", 1
POLL_SECONDS = 0.5
GRACE_SECONDS = 120.0
"""For a training that was asked to stop, to save its epochs."""
SETTINGS = ("recipe", "data", "policy", "options")
"""Of an entry: what tells its networks from others."""
MARGIN = 1.1
"""Times that estimates are multiplied with."""


@dataclass(frozen=True)
class Entry:
    """What is trained, once per seed."""

    policy: str
    seeds: tuple[int, ...]
    recipe: str | None = None
    data: str | None = None
    parallel: int | None = None
    options: tuple[str, ...] = ()

    @property
    def settings(self) -> list[str]:
        """All options of `deepaa train` that decide the result, but policy and seed."""
        recipe = [] if self.recipe is None else ["--recipe", self.recipe]
        return [*recipe, *([] if self.data is None else ["--data", self.data]), *self.options]

    @property
    def named(self) -> Entry:
        """The entry without places of this machine: a file has its name, a policy also a hash."""
        policy, data = Path(self.policy), Path(self.data or "")
        if policy.is_file():
            stem = policy.resolve().parent.name if policy.name == "policy.json" else policy.stem
            digest = hashlib.sha256(policy.read_bytes()).hexdigest()
            policy = Path(f"{stem}-{digest[:8]}")
        return replace(self, policy=policy.name, data=data.name or None)

    @property
    def name(self) -> str:
        """The folder of its networks in results/: settings, then policy."""
        named = self.named
        data = [] if named.data is None else [named.data]
        words = [named.recipe or "no-recipe", *data, *named.options, named.policy]
        return "_".join(re.sub(r"[^\w.=,+-]+", "-", word.lstrip("-")) for word in words)

    def command(self, *seeds: int) -> list[str]:
        """The command that trains these seeds."""
        numbers = [word for seed in seeds for word in ("--seed", str(seed))]
        return ["train", *self.settings, "--policy", self.policy, *numbers]


def read_list(path: Path) -> list[Entry]:
    """The entries of a list in TOML or JSON."""
    text = path.read_text()
    content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    entries = [from_plain(Entry, each, defaults=True) for each in content["train"]]
    names = [entry.name for entry in entries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: {twice.pop()} is listed twice; join their seeds")
    return entries


def result_path(results: Path, entry: Entry, seed: int) -> Path:
    """Where the network of a seed is kept."""
    return results / entry.name / f"seed-{seed}.json"


def missing_seeds(results: Path, entry: Entry) -> list[int]:
    """The seeds of an entry without a result."""
    return [seed for seed in entry.seeds if not result_path(results, entry, seed).exists()]


# From run folders to results


def merge(work: Path, results: Path, entries: Sequence[Entry], commit: str | None = None) -> int:
    """Keep each network that ended in a work folder and is not in results yet; how many.

    Args:
        commit: That of the code, where it is a copy without a repository.
    """
    count = 0
    for entry in entries:
        for folder in _batches(work, entry):
            for result in _finished(folder, entry, commit):
                path = result_path(results, entry, result["seed"])
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_json(path, result)
                    count += 1
                    print(f"{path}: {_outcome(result)}", flush=True)
    return count


def _finished(folder: Path, entry: Entry, commit: str | None) -> Iterator[dict[str, Any]]:
    """The content of a result file for each seed that ended, or failed, in a run folder."""
    if not (folder / "results.json").exists():
        return
    found, history = read_json(folder / "results.json"), read_history(folder)
    made, named = found["made_by"], entry.named
    hardware = {name: made[name] for name in ("system", "processor", "devices")}
    said = None if commit is None else {"commit": commit, "changed": None}
    for each in [*found["seeds"], *found["failed"]]:
        seed = each["seed"]
        failed = None if "accuracy" in each else {k: each[k] for k in ("epoch", "reason")}
        numbers = ("accuracy", "class_accuracy", "loss", "epochs", "seconds", "images_per_second")
        yield {
            "format": FORMAT,
            "version": VERSION,
            "name": entry.name,
            "seed": seed,
            "entry": {name: to_plain(named)[name] for name in SETTINGS},
            "command": ["deepaa", *named.command(seed)],
            "code": made["code"] or said,
            "started": made["started"],
            "versions": made["versions"],
            "hardware": {**hardware, "device": each.get("device")},
            "model": found["model"],
            "settings": {**found["train"], "seed": seed},
            "images": found["images"],
            "policy": {**found["policy"], "name": named.policy},
            "parallel": each.get("parallel"),
            "processes": each.get("processes"),
            **{name: each.get(name) for name in numbers},
            "failed": failed,
            "history": _epochs(history, seed),
        }


def _epochs(history: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    own = [record for record in history if record.get("seed") == seed]
    return [
        {key: value for key, value in record.items() if key not in ("kind", "seed")}
        for record in own
        if record["kind"] == "epoch"
    ]


def _outcome(result: dict[str, Any]) -> str:
    if result["failed"] is not None:
        return f"failed: {result['failed']['reason']}"
    return f"{100 * result['accuracy']:.2f} % after {result['epochs']} epochs"


# What to train next, and for how long


def _batches(work: Path, entry: Entry) -> list[Path]:
    """The run folders of an entry, each of seeds that were trained side by side."""
    return sorted(path for path in (work / entry.name).glob("seeds-*") if path.is_dir())


def batch_seeds(folder: Path) -> list[int]:
    """The seeds of a run folder, by its name."""
    return [int(seed) for seed in folder.name.removeprefix("seeds-").split("_")]


def next_batch(
    work: Path, results: Path, entry: Entry, parallel: int
) -> tuple[Path, list[int]] | None:
    """The run folder and the seeds to train in it: one that was left unfinished, or a new one."""
    missing = missing_seeds(results, entry)
    for folder in _batches(work, entry):
        if left := [seed for seed in batch_seeds(folder) if seed in missing]:
            return folder, left
    if not missing:
        return None
    seeds = missing[: entry.parallel or parallel]
    return work / entry.name / f"seeds-{'_'.join(map(str, seeds))}", seeds


def estimate(results: Path, entry: Entry, count: int) -> float | None:
    """Seconds that `count` networks at once take, by results of the same settings; or None."""
    known, wanted = [], to_plain(entry.named)
    for path in results.glob("*/seed-*.json"):
        result = read_json(path)
        there = result["entry"]
        same = all(there[name] == wanted[name] for name in ("recipe", "data", "options"))
        if same and result["seconds"] is not None:
            known.append(result["seconds"] * max(1.0, count / result["parallel"]))
    return MARGIN * median(known) if known else None


class Probe:
    """How long a training at work still needs, by the epochs that its history has."""

    def __init__(self, folder: Path, count: int) -> None:
        """Begin with the epochs that are there already.

        Args:
            count: Networks trained in the folder.
        """
        self.folder, self.count = folder, count
        self._before = self._epochs()
        self._first: tuple[int, float] | None = None

    def _epochs(self) -> int:
        return sum(record["kind"] == "epoch" for record in read_history(self.folder))

    def seconds_left(self) -> float | None:
        """None until epochs that came after the first new one say it: that one compiles."""
        done, now = self._epochs(), time.monotonic()
        if self._first is None:
            self._first = (done, now) if done > self._before else None
            return None
        if done < self._first[0] + 2 * self.count:
            return None
        each = (now - self._first[1]) / (done - self._first[0])
        try:
            total = read_config(self.folder)["train"]["epochs"] * self.count
        except (RunError, KeyError):
            return None
        return MARGIN * each * max(0, total - done)


def train(
    entry: Entry,
    folder: Path,
    seeds: Sequence[int],
    options: Sequence[str],
    deadline: float,
    stop: StopRequest,
    files: Sequence[Path] = (),
) -> bool:
    """Train seeds in a run folder until they end or the deadline comes; whether they ended."""
    file = next((str(file) for file in files if file.stem == entry.data), None)
    if (folder / "config.json").exists():
        moved = [] if file is None else ["--data", file]
        words = ["train", "--resume", str(folder), *moved, *_without_settings(options)]
    else:
        words = [*replace(entry, data=file or entry.data).command(*seeds), "--out", str(folder)]
        words += options
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "deepaa", *words, "--parallel", str(len(seeds))]
    with folder.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_stop_with_parent
        )
        probe = Probe(folder, len(batch_seeds(folder)))
        while process.poll() is None:
            left = probe.seconds_left()
            late = left is not None and time.monotonic() + left > deadline
            if late or stop.requested or time.monotonic() > deadline:
                process.terminate()
                try:
                    process.wait(GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                break
            time.sleep(POLL_SECONDS)
    return process.wait() == 0


def _without_settings(options: Sequence[str]) -> list[str]:
    """The options without `--set NAME=VALUE`, which a run that goes on has of its own."""
    pairs = zip(("", *options), options, strict=False)
    return [word for before, word in pairs if "--set" not in (before, word)]


def _stop_with_parent() -> None:
    """Have Linux send SIGTERM to this process when its parent dies, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def train_missing(
    entries: Sequence[Entry],
    results: Path,
    work: Path,
    *,
    minutes: float,
    parallel: int,
    options: Sequence[str] = (),
    files: Sequence[Path] = (),
    commit: str | None = None,
) -> int:
    """Train what is missing and fits into the time; the exit code."""
    deadline = time.monotonic() + 60 * minutes
    passed_over: set[str] = set()
    with StopRequest() as stop:
        merge(work, results, entries, commit)  # what ended before the last call could keep it
        while not stop.requested and time.monotonic() < deadline:
            open_entries = [
                entry
                for entry in entries
                if entry.name not in passed_over and missing_seeds(results, entry)
            ]
            if not open_entries:
                break
            entry = min(  # the fewest networks so far
                open_entries, key=lambda e: len(e.seeds) - len(missing_seeds(results, e))
            )
            batch = next_batch(work, results, entry, parallel)
            assert batch is not None
            folder, seeds = batch
            needed = estimate(results, entry, len(seeds))
            if needed is not None and time.monotonic() + needed > deadline:
                print(f"{entry.name}: {needed / 60:.1f} minutes do not fit", flush=True)
                passed_over.add(entry.name)
                continue
            ended = train(entry, folder, seeds, options, deadline, stop, files)
            if not merge(work, results, entries, commit) and not stop.requested:
                why = "gave no network" if ended else "did not end in time or failed"
                print(f"{entry.name}: {why}, see {folder.with_suffix('.log')}", flush=True)
                passed_over.add(entry.name)
    left = sum(len(missing_seeds(results, entry)) for entry in entries)
    print(f"{left} networks are missing", flush=True)
    return stop.exit_code


def main() -> int:
    """Read the command line and train."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("list", type=Path, help="TOML or JSON, see benchmarks/train_missing.py")
    parser.add_argument("--minutes", type=float, default=60.0, help="then it stops and saves")
    parser.add_argument("--parallel", type=int, default=1, help="seeds trained side by side")
    parser.add_argument("--results", type=Path, default=Path("results"))
    folder = Path("out/training")
    parser.add_argument("--work", type=Path, default=folder, help="run folders and logs")
    at_hand = "an .npz file of the data that its name says; may be given several times"
    parser.add_argument("--file", type=Path, action="append", default=[], help=at_hand)
    without = "the code's, full length, where it is a copy without a repository"
    parser.add_argument("--commit", type=_commit, help=without)
    given = parser.parse_args(words[:at])
    try:
        entries = read_list(given.list)
    except (OSError, KeyError, TypeError, ValueError) as error:
        print(f"error: {given.list}: {error}", file=sys.stderr)
        return 2
    return train_missing(
        entries,
        given.results,
        given.work,
        minutes=given.minutes,
        parallel=given.parallel,
        options=words[at + 1 :],
        files=given.file,
        commit=given.commit,
    )


def _commit(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{40}", text):
        raise argparse.ArgumentTypeError(f"expected 40 hexadecimal digits, got {text!r}")
    return text


if __name__ == "__main__":
    sys.exit(main())
