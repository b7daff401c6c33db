"""Which seeds a run folder has, and which ones a call adds to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from deepaa import distributed
from deepaa.distributed import run_on_main
from deepaa.runs import Run, RunError, read_history, read_json
from deepaa.train.results import SeedFailure, SeedResult

SEEDS = "seeds.json"
AGAIN = "again"
"""The kind of record that lets a seed that failed be trained once more."""
LARGEST_SEED = 2**63 - 1
"""The largest seed that torch and a key of 64 bits take."""
History = Sequence[Mapping[str, Any]]


def results_in(history: History) -> list[SeedResult]:
    """The results that a run's history holds, in the order in which they came."""
    return [SeedResult(**row) for row in _rows(history, "seed")]


def failures_in(history: History) -> list[SeedFailure]:
    """The seeds of a run's history that failed and were not asked for again."""
    newest = {row["seed"]: row for row in history if row["kind"] in ("failed", AGAIN)}
    return [SeedFailure(**row) for row in _rows(list(newest.values()), "failed")]


def _rows(history: History, kind: str) -> list[dict[str, Any]]:
    rows = [record for record in history if record["kind"] == kind]
    return [{k: v for k, v in row.items() if k != "kind"} for row in rows]


class _Seeds(NamedTuple):
    known: list[int]
    """Asked for by earlier calls."""
    new: list[int]


@dataclass(frozen=True)
class SeedRequest:
    """The seeds that a call wants to add to a run."""

    count: int | None = None
    """So many seeds that the run does not have. None is one where it would have none to train."""
    given: tuple[int, ...] = ()
    """Seeds by number; those that failed are trained again."""
    resume: bool = False
    """Whether seeds that were asked for before may still be unfinished."""

    def check(self) -> None:
        """Refuse seeds that no run could take."""
        for seed in self.given:
            _check_range(seed)
            if self.given.count(seed) > 1:
                raise ValueError(f"seed {seed} would be trained twice: give it once")

    def add_to(self, run: Run | None, *, remember: bool = True) -> list[int]:
        """All seeds that the run has afterwards, in every process; seeds.json keeps them.

        Args:
            run: That of the main process.
            remember: Without it, the folder stays as it is.
        """
        self.check()

        def add() -> list[int]:
            assert run is not None  # the main process has it
            run.latest()  # drops records that no state stands for
            known, new = self._split(run.folder, run.history())
            if new and remember:
                run.write_json(SEEDS, {"asked": [*known, *new]})
            if remember:
                _try_again(run, [seed for seed in self.given if seed in known])
            return [*known, *new]

        return distributed.broadcast(run_on_main(add)) or []

    def preview(self, folder: Path) -> list[int]:
        """The seeds that a call would train in a folder, which is only looked at."""
        self.check()
        history = read_history(folder)
        known, new = self._split(folder, history)
        done = {result.seed for result in results_in(history)}
        done |= {failure.seed for failure in failures_in(history)} - {*self.given}
        return [seed for seed in [*known, *new] if seed not in done]

    def _split(self, folder: Path, history: History) -> _Seeds:
        known = _known_seeds(folder, history)
        failed = {failure.seed for failure in failures_in(history)}
        if repeated := sorted(s for s in self.given if s in known and s not in failed):
            raise RunError(
                f"{folder}: seed {repeated[0]} would be trained twice; the run has "
                f"{', '.join(map(str, known)) or 'none'}: give others, or --seeds for new ones"
            )
        done = failed | {result.seed for result in results_in(history)}
        left = [seed for seed in known if seed not in done]
        if left and not self.resume:
            raise RunError(
                f"{folder}: {'seed' if len(left) == 1 else 'seeds'} {', '.join(map(str, left))} "
                f"not finished; go on with: deepaa train --resume {folder}"
            )
        count = self.count or 0
        if self.count is None and not self.given and not (self.resume and known):
            count = 1  # a run that goes on may have been killed before it knew its seeds
        after = max([-1, *known, *self.given]) + 1
        new = [seed for seed in self.given if seed not in known]
        new += range(after, after + count)
        for seed in new:
            _check_range(seed)
        return _Seeds(known, new)


def _check_range(seed: int) -> None:
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"--seed should be in 0..{LARGEST_SEED}, got {seed}")


def _known_seeds(folder: Path, history: History) -> list[int]:
    """The seeds that were asked for, and those that were trained without being in the file."""
    path = folder / SEEDS
    listed = read_json(path)["asked"] if path.exists() else []
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
