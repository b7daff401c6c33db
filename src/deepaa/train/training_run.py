"""The seeds of an experiment in a run folder, and several such runs side by side.

A run can be stopped at any time and goes on from its newest checkpoint; on CPU it then ends with
the same networks, bit for bit. Later calls add seeds to the same folder.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from deepaa import distributed
from deepaa.runs import (
    Run,
    RunError,
    StopAskedError,
    checks_state,
    part_of,
    read_history,
    read_json,
    stored,
    to_bytes,
    write_file,
)
from deepaa.train.experiment import Experiment
from deepaa.train.loop import EpochRecord, Training, train_together
from deepaa.train.results import RESULTS, SeedFailure, SeedHistory, SeedResult, document

SEEDS = "seeds.json"
FAILED = "failed-{}.safetensors"
"""The file in the run folder that gets the last good state of a seed that failed."""
LARGEST_SEED = 2**63 - 1
"""The largest seed that torch and a key of 64 bits take."""

_LOGGER = logging.getLogger(__name__)


def weights_name(seed: int | str) -> str:
    """The file in the run folder that gets the network of a seed after its last epoch."""
    return f"weights-{seed}.safetensors"


@dataclass(frozen=True)
class SeedRequest:
    """The seeds that a call wants to add to a run."""

    count: int | None = None
    """So many seeds that the run does not have. None is one where it would have none to train."""
    given: tuple[int, ...] = ()
    """Seeds by number; those that failed are trained again."""
    resume: bool = False
    """Whether seeds that were asked for before may still be unfinished."""

    def __post_init__(self) -> None:
        """Refuse seeds that no run could take."""
        for seed in self.given:
            _check_range(seed)
            if self.given.count(seed) > 1:
                raise ValueError(f"seed {seed} would be trained twice: give it once")

    def add_to(self, run: Run | None) -> list[int]:
        """All seeds that the run of the main process then has, in every process.

        The file seeds.json keeps them.
        """

        def add() -> list[int]:
            assert run is not None  # the main process has it
            seeds, failed = self._all_seeds(run.folder, SeedHistory(run.history()))
            run.write_json(SEEDS, {"asked": seeds})
            if failed and (saved := run.latest()):  # on disk at once, for a stop may come any time
                for seed in failed:
                    run.log({"kind": "again", "seed": seed})
                run.save(saved.tensors, saved.position)
            return seeds

        return distributed.from_main(add)

    def preview(self, folder: Path) -> list[int]:
        """The seeds that a call would train in a folder, which is only looked at."""
        history = SeedHistory(read_history(folder))
        seeds, failed = self._all_seeds(folder, history)
        return [seed for seed in seeds if seed not in history.done or seed in failed]

    def epochs_left(self, folder: Path, epochs: int) -> int:
        """How many epochs of so many each the seeds of `preview` have before them."""
        history = SeedHistory(read_history(folder))
        done = {seed: len(found) for seed, found in history.epochs.items()}
        done |= {failure.seed: 0 for failure in history.failures}  # which begin anew
        return sum(epochs - done.get(seed, 0) for seed in self.preview(folder))

    def _all_seeds(self, folder: Path, history: SeedHistory) -> tuple[list[int], list[int]]:
        """All seeds of the run with these, and those of them that failed and are given."""
        path = folder / SEEDS
        asked = stored(read_json(path), "asked", tuple[int, ...], path) if path.exists() else ()
        known = list(dict.fromkeys([*asked, *history.epochs, *sorted(history.done)]))
        if wrong := [seed for seed in known if not 0 <= seed <= LARGEST_SEED]:
            raise RunError(f"{folder}: damaged: a seed of {wrong[0]}, expected 0 or more")
        failed = [failure.seed for failure in history.failures if failure.seed in self.given]
        if repeated := sorted(s for s in self.given if s in known and s not in failed):
            raise RunError(
                f"{folder}: seed {repeated[0]} would be trained twice; the run has "
                f"{', '.join(map(str, known))}: give others, or --seeds for new ones"
            )
        left = [seed for seed in known if seed not in history.done]
        if left and not self.resume:
            raise RunError(
                f"{folder}: {'seed' if len(left) == 1 else 'seeds'} {', '.join(map(str, left))} "
                f"not finished; go on with: deepaa train --resume {folder}"
            )
        count = self.count or 0
        if self.count is None and not self.given and not (self.resume and known):
            count = 1  # a run that goes on may have been killed before it knew its seeds
        after = max([-1, *known, *self.given]) + 1
        new = [*(seed for seed in self.given if seed not in known), *range(after, after + count)]
        for seed in new:
            _check_range(seed)
        return known + new, failed


def _check_range(seed: int) -> None:
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"--seed should be in 0..{LARGEST_SEED}, got {seed}")


class SeedEpoch(NamedTuple):
    """What an epoch of one seed did."""

    seed: int
    record: EpochRecord


SeedEvent = SeedEpoch | SeedResult | SeedFailure


class TrainingRun:
    """The seeds of an experiment in one run folder; `train_side_by_side` trains them."""

    def __init__(
        self,
        experiment: Experiment,
        seeds: Sequence[int],
        *,
        run: Run | None = None,
        checkpoint_seconds: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on from the run's newest checkpoint if it has one.

        Args:
            seeds: All that the run should have in the end; those it has are not trained again.
            run: Where records, checkpoints and results go, in the main process; None keeps nothing.
            stop: Asked often; once it says yes, the training saves and ends with `stopped` true.
        """
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"a seed is trained once, got {', '.join(map(str, seeds))}")
        self.experiment, self.seeds, self.checkpoint_seconds = experiment, seeds, checkpoint_seconds
        self.run = run if distributed.is_main() else None
        self.stopped, self._stop = False, stop
        self.watch: Callable[[Training], None] = lambda training: None
        """Called before each step of a training, after the question whether to stop."""
        self._at_work: dict[int, Training] = {}
        kept = (None, []) if self.run is None else (self.run.latest(), self.run.history())
        saved, history = distributed.broadcast(kept)
        self.has_state = saved is not None
        """Whether the folder holds a state to go on from."""
        tensors, begun = saved[:2] if saved else ({}, {"seeds": [], "processes": []})
        with checks_state(self.run):
            numbers = stored(begun, "seeds", tuple[int, ...], "position")
            shared = stored(begun, "processes", tuple[tuple[int, ...], ...], "position")
            self._processes = dict(zip(numbers, shared, strict=True))
            """Numbers of processes that shared the batches of each seed."""
            self.history = SeedHistory(history)
        self._states = {seed: part_of(tensors, f"{seed}.") for seed in numbers}
        """The state after the newest epoch of each seed that was begun and is not done."""
        self.results, self.failures = self.history.results, self.history.failures
        """The seeds that are done, in the order in which they ended, and those that failed."""
        self._is_saved, self._saved_at = True, time.monotonic()
        distributed.run_on_main(lambda: experiment.write_inputs(run) if run else None)

    @property
    def pending(self) -> list[int]:
        """Seeds that are not done."""
        done = self.history.done
        return [seed for seed in self.seeds if seed not in done]

    @property
    def begun(self) -> list[int]:
        """Seeds that were being trained when the run was left, and are not at work again."""
        return [s for s in self._states if s in self.pending and s not in self._at_work]

    @property
    def processes(self) -> set[int]:
        """How many processes shared a batch of the seeds that are done or begun."""
        found = {number for seed in self.begun for number in self._processes[seed]}
        for result in self.results:
            found |= {result.processes, *(result.other_processes or ())}
        return found

    def begin(self, seed: int) -> Training:
        """The training of a seed, at the epoch where it was left."""
        training = self.experiment.training(seed)
        training.before_step = partial(self._before_step, training)
        if seed in self._states:
            with checks_state(self.run):
                training.load_state(self._states[seed])
        elif self.run is not None:  # what is left where it failed before
            (self.run.folder / FAILED.format(seed)).unlink(missing_ok=True)
        before = self._processes.get(seed, ())
        self._processes[seed] = tuple(sorted({*before, distributed.world_size()}))
        self._at_work[seed] = training
        return training

    def record(self, seed: int, outcome: EpochRecord | FloatingPointError) -> SeedEvent:
        """Log what an epoch of a seed at work did, or why it failed."""
        if isinstance(outcome, FloatingPointError):
            return self._fail(seed, outcome)
        state = {} if self.run is None else self._at_work[seed].state()
        self._log("epoch", {"seed": seed, **outcome._asdict()})
        self._states[seed] = state
        return SeedEpoch(seed, outcome)

    def test(self, seed: int, together: int) -> SeedEvent | None:
        """Test the network of a seed, one of `together` trained at once; None if it has failed."""
        if seed not in self._at_work:
            return None
        training = self._at_work[seed]
        # batch norm's statistics are those of the main process's share
        metrics = distributed.from_main(lambda: self.experiment.test(training.model))
        if not math.isfinite(metrics.loss):
            lr = self.experiment.config.lr
            reason = f"seed {seed}, test after epoch {training.epoch}: loss {metrics.loss}"
            return self._fail(
                seed, FloatingPointError(f"{reason}; lower lr ({lr}) or look at the images")
            )
        epochs, device = self.history.epochs.get(seed, []), self.experiment.device
        now = distributed.world_size()
        result = SeedResult(
            seed,
            metrics.accuracy,
            metrics.loss,
            training.epoch,
            sum(epoch.seconds for epoch in epochs),
            median([epoch.images / max(epoch.seconds, 1e-9) for epoch in epochs] or [0.0]),
            together,
            torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            str(torch.__version__),
            now,
            [number for number in self._processes[seed] if number != now] or None,
            list(metrics.class_accuracy),
        )
        if self.run is not None:
            write_file(self.run.folder / weights_name(seed), to_bytes(training.model.state_dict()))
        self._log("seed", result._asdict())
        self._leave(seed)  # what is left of it are its weights
        return result

    def _fail(self, seed: int, error: FloatingPointError) -> SeedFailure:
        """Record that a seed failed, and keep the state of its last good epoch in a file."""
        epoch = self._at_work[seed].epoch
        rest = "the epochs before it are not kept" if epoch else "no epoch ended"
        if self.run is not None and seed in self._states:
            write_file(self.run.folder / FAILED.format(seed), to_bytes(self._states[seed]))
            rest = f"the epochs before it are in {FAILED.format(seed)}"
        failure = SeedFailure(seed, epoch, f"{error}; {rest}")
        self._log("failed", failure._asdict())
        self._leave(seed)
        return failure

    def _leave(self, seed: int) -> None:
        """Forget the training of a seed that ended, and save what became of it soon."""
        del self._at_work[seed]
        self._states.pop(seed, None)
        self._saved_at = -math.inf

    def _log(self, kind: str, fields: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.log({"kind": kind, **fields})
            self._is_saved = False
        self.history.add(kind, fields)

    @property
    def epochs_left(self) -> int:
        """Epochs that seeds which are not done have before them."""
        done = sum(int(self._states[s]["epoch"]) for s in self.pending if s in self._states)
        return len(self.pending) * self.experiment.config.epochs - done

    def _before_step(self, training: Training) -> None:
        self.raise_if_stopped()
        self.watch(training)

    def raise_if_stopped(self) -> None:
        """Raise `StopAskedError` in all processes if any of them is asked to stop."""
        if distributed.any_rank(self._stop()):
            raise StopAskedError

    def save(self, after_seconds: float = 0.0) -> None:
        """Have the state after the newest records on disk; may be called at any time.

        Args:
            after_seconds: Least time since the last save, unless a seed has ended since.
        """
        is_due = time.monotonic() - self._saved_at >= after_seconds
        if self.run is None or self._is_saved or not is_due:
            return
        state = {f"{s}.{name}": t for s, its in self._states.items() for name, t in its.items()}
        shared = [self._processes[seed] for seed in self._states]
        self.run.save(state, {"seeds": list(self._states), "processes": shared})
        self._is_saved, self.has_state, self._saved_at = True, True, time.monotonic()
        self.write_results()

    def write_results(self) -> None:
        """Put what is known now into results.json."""
        if self.run is not None:
            facts = {**self.experiment.facts(), "made_by": self.run.start}
            self.run.write_json(RESULTS, document(self.results, facts, self.failures))


def train_side_by_side(
    runs: Sequence[TrainingRun], parallel: int = 1
) -> Iterator[tuple[TrainingRun, SeedEvent]]:
    """Train all seeds of several runs, `parallel` networks at once; events as they come.

    Runs take turns, so that the first seed of each comes before the second of any. A seed whose
    loss is not a number is left as failed, and the others go on.
    """
    if parallel < 1:
        raise ValueError(f"parallel should be at least 1, got {parallel}")
    for run in runs:
        run.write_results()  # a kill may have come between the last state and this file
    _warn_of_other_processes(runs)
    try:
        while group := _next_group(runs, parallel):
            yield from _train(group)
    except StopAskedError:
        for run in runs:
            run.save()
            run.stopped = True
    except Exception:  # whatever it is, whole epochs are not lost to it
        for run in runs:
            with suppress(Exception):  # the disk may be what is wrong
                run.save()
        raise


def _warn_of_other_processes(runs: Sequence[TrainingRun]) -> None:
    now = distributed.world_size()
    before = sorted({number for run in runs for number in run.processes} - {now})
    if before and any(run.pending for run in runs) and distributed.is_main():
        _LOGGER.warning(
            "seeds that are done or begun shared a batch among %s processes, now %d: batch norm "
            "saw other numbers of images, so accuracies should not be averaged",
            *(" and ".join(map(str, before)), now),
        )


def _next_group(runs: Sequence[TrainingRun], parallel: int) -> list[tuple[TrainingRun, int]]:
    """At most `parallel` seeds to train together: of those that were begun, else the next ones."""
    if begun := [(run, seed) for run in runs for seed in run.begun]:
        return begun[:parallel]
    turns = zip_longest(*(run.seeds for run in runs))
    in_turn = [pair for turn in turns for pair in zip(runs, turn, strict=True)]
    pending = {id(run): run.pending for run in runs}
    return [(run, seed) for run, seed in in_turn if seed in pending[id(run)]][:parallel]


def _train(group: Sequence[tuple[TrainingRun, int]]) -> Iterator[tuple[TrainingRun, SeedEvent]]:
    """Train and test these seeds of these runs together."""
    trainings = [run.begin(seed) for run, seed in group]
    for outcomes in train_together(trainings):
        pairs = zip(group, outcomes, strict=True)
        events = [(run, run.record(seed, out)) for (run, seed), out in pairs if out is not None]
        for run, _ in group:  # after all seeds of a run, so that none is an epoch behind
            run.save(run.checkpoint_seconds)
        yield from events
        group[0][0].raise_if_stopped()
    for run, _ in group:
        run.save()  # whatever becomes of a test, no epoch is lost
    tested = [(run, run.test(seed, len(group))) for run, seed in group]
    for run, _ in group:
        run.save()
    yield from ((run, event) for run, event in tested if event is not None)
