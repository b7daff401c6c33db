"""The seeds of an experiment in a run folder, and several such runs side by side.

A run can be stopped at any time and goes on from its newest checkpoint; on CPU it then ends with
the same networks, bit for bit. Later calls add seeds to the same folder.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepaa import distributed
from deepaa.distributed import run_on_main
from deepaa.runs import Run, StopAskedError, part_of, to_bytes, write_file
from deepaa.train.experiment import Experiment
from deepaa.train.loop import EpochRecord, Outcome, Training, train_together
from deepaa.train.results import RESULTS, SeedFailure, SeedResult, document
from deepaa.train.seeds import failures_in, results_in

_LOGGER = logging.getLogger(__name__)


def failed_name(seed: int) -> str:
    """The file in the run folder that gets the last good state of a seed that failed."""
    return f"failed-{seed}.safetensors"


def weights_name(seed: int | str) -> str:
    """The file in the run folder that gets the network of a seed after its last epoch."""
    return f"weights-{seed}.safetensors"


class SeedEpoch(NamedTuple):
    """What an epoch of one seed did."""

    seed: int
    record: EpochRecord


SeedEvent = SeedEpoch | SeedResult | SeedFailure


class TrainingRun:
    """The training of several seeds of an experiment: iterate for their epochs and results."""

    def __init__(
        self,
        experiment: Experiment,
        seeds: Sequence[int],
        *,
        parallel: int = 1,
        run: Run | None = None,
        checkpoint_seconds: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on from the run's newest checkpoint if it has one.

        Args:
            seeds: All that the run should have in the end; those it has are not trained again.
            parallel: Networks trained at once on the device.
            run: Where records, checkpoints and results go, in the main process; None keeps nothing.
            stop: Asked often; once it says yes, the iteration saves and ends with `stopped` true.
        """
        if parallel < 1:
            raise ValueError(f"parallel should be at least 1, got {parallel}")
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"a seed is trained once, got {', '.join(map(str, seeds))}")
        self.experiment, self.seeds = experiment, list(seeds)
        self.parallel, self.checkpoint_seconds = parallel, checkpoint_seconds
        self.run = run if distributed.is_main() else None
        self.stopped = False
        self._stop = stop
        self._saved_at = time.monotonic()
        self._at_work: dict[int, Training] = {}
        self._unsaved: tuple[list[int], dict[str, Tensor]] | None = None
        self._resume()

    def _resume(self) -> None:
        saved = None if self.run is None else self.run.latest()
        history = [] if self.run is None else self.run.history()
        position: Mapping[str, Any] = {} if saved is None else saved.position
        group, state = position.get("seeds", []), {} if saved is None else saved.tensors
        shared = position.get("processes", [])
        self._processes: dict[int, list[int]]
        self._group, self._state, history, self._processes = distributed.broadcast(
            (group, state, history, dict(zip(group, shared, strict=True)))
        )
        self.has_state = saved is not None
        """Whether the folder holds a state to go on from."""
        self.results = results_in(history)
        """Of the seeds that are done, in the order in which they ended."""
        self.failures = failures_in(history)
        """Of the seeds whose loss was no number."""
        self._times: dict[int, list[tuple[float, int]]] = {}
        for record in history:
            if record["kind"] == "epoch":
                self._times.setdefault(record["seed"], []).append(
                    (record["seconds"], record["images"])
                )
            elif record["kind"] == "failed":  # if it is trained again, it begins anew
                self._times.pop(record["seed"], None)

    @property
    def pending(self) -> list[int]:
        """Seeds that are not done."""
        done = {result.seed for result in self.results}
        done |= {failure.seed for failure in self.failures}
        return [seed for seed in self.seeds if seed not in done]

    @property
    def begun(self) -> list[int]:
        """Seeds that were being trained when the run was left, and are not at work again."""
        return [seed for seed in self._group if seed in self.pending]

    @property
    def processes(self) -> set[int]:
        """How many processes shared a batch of the seeds that are done or begun."""
        found = {number for seed in self.begun for number in self._processes[seed]}
        for result in self.results:
            found |= {result.processes, *(result.other_processes or ())}
        return found

    def __iter__(self) -> Iterator[SeedEvent]:
        """Train the seeds that are left; events as they come."""
        for _, event in train_side_by_side([self], self.parallel):
            yield event

    # What `train_side_by_side` asks for

    def begin(self, group: Sequence[int]) -> list[Training]:
        """The trainings of these seeds, at the epoch where each was left.

        Other seeds that were begun keep their state until their turn comes.
        """
        trainings = [self.experiment.training(seed) for seed in group]
        for seed, training in zip(group, trainings, strict=True):
            training.before_step = self.raise_if_stopped
            before: list[int] = []
            if state := part_of(self._state, f"{seed}."):
                training.load_state(state)
                before = self._processes[seed]
            elif self.run is not None:  # what is left where it failed before
                (self.run.folder / failed_name(seed)).unlink(missing_ok=True)
            self._processes[seed] = sorted({*before, distributed.world_size()})
        self._at_work = dict(zip(group, trainings, strict=True))
        self._group = [seed for seed in self.begun if seed not in group]
        self._state = {
            f"{seed}.{name}": tensor
            for seed in self._group
            for name, tensor in part_of(self._state, f"{seed}.").items()
        }
        return trainings

    def record(self, outcomes: Mapping[int, Outcome]) -> list[SeedEvent]:
        """Log what an epoch of each seed at work did, and what has failed."""
        events: list[SeedEvent] = []
        for seed, outcome in outcomes.items():
            if isinstance(outcome, EpochRecord):
                events.append(SeedEpoch(seed, outcome))
                self._times.setdefault(seed, []).append((outcome.seconds, outcome.images))
                self._log("epoch", {"seed": seed, **outcome._asdict()})
        broken = {s: o for s, o in outcomes.items() if isinstance(o, FloatingPointError)}
        events += [self._mark_failed(seed, error) for seed, error in broken.items()]
        if events:
            self._hold_state()
        if broken:
            self.save()
            self.write_results()
        return events

    def finish(self, together: int) -> list[SeedEvent]:
        """Test the networks at work, of `together` that were trained at once."""
        tested = {seed: self._tested(seed, its, together) for seed, its in self._at_work.items()}
        events: list[SeedEvent] = []
        for seed, outcome in tested.items():
            if isinstance(outcome, FloatingPointError):
                events.append(self._mark_failed(seed, outcome))
                continue
            self._write_tensors(weights_name(seed), self._at_work[seed].model.state_dict())
            self.results.append(outcome)
            self._log("seed", outcome._asdict())
            events.append(outcome)
        self._at_work = {}
        if events:
            self._hold_state()  # no seed is at work: what one leaves behind are its weights
            self.save()
            self.write_results()
        return events

    def raise_if_stopped(self) -> None:
        """Raise `StopAskedError` in all processes if any of them is asked to stop."""
        if distributed.any_rank(self._stop()):
            raise StopAskedError

    def _mark_failed(self, seed: int, error: FloatingPointError) -> SeedFailure:
        """Record that a seed failed, and keep the state of its last good epoch in a file."""
        training = self._at_work.pop(seed)
        rest = "no epoch ended"
        if training.epoch:
            rest = "the epochs before it are not kept"
        if kept := self._write_last_good(seed):
            rest = f"the epochs before it are in {kept}"
        failure = SeedFailure(seed, training.epoch, f"{error}; {rest}")
        self.failures.append(failure)
        self._log("failed", failure._asdict())
        return failure

    def _write_last_good(self, seed: int) -> str | None:
        if self.run is None:
            return None
        saved = None
        if self._unsaved is None and (saved := self.run.latest()) is None:
            return None
        state = saved.tensors if saved is not None else (self._unsaved or ([], {}))[1]
        own = part_of(state, f"{seed}.")
        if not own:
            return None
        name = failed_name(seed)
        self._write_tensors(name, own)
        return name

    def _write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        if self.run is not None:
            write_file(self.run.folder / name, to_bytes(tensors))

    def _tested(
        self, seed: int, training: Training, together: int
    ) -> SeedResult | FloatingPointError:
        images, lr = self.experiment.images, self.experiment.config.lr
        # batch norm's statistics are those of the main process's share
        metrics = distributed.broadcast(run_on_main(lambda: images.test(training.model)))
        assert metrics is not None
        if not math.isfinite(metrics.loss):
            return FloatingPointError(
                f"seed {seed}, test after epoch {training.epoch}: loss {metrics.loss}; lower lr "
                f"({lr}) or look at the images"
            )
        times = self._times.get(seed, [])
        rate = median([images / max(seconds, 1e-9) for seconds, images in times] or [0.0])
        now, shared = distributed.world_size(), self._processes[seed]
        return SeedResult(
            seed,
            metrics.accuracy,
            metrics.loss,
            training.epoch,
            sum(seconds for seconds, _ in times),
            rate,
            together,
            _device_name(self.experiment.device),
            torch.__version__,
            now,
            [number for number in shared if number != now] or None,
            list(metrics.class_accuracy),
        )

    # Saving

    def _log(self, kind: str, record: Mapping[str, Any]) -> None:
        if self.run is not None:
            self.run.log({"kind": kind, **record})

    def _hold_state(self) -> None:
        """Hold the state that belongs to the newest records, and save it when it is time.

        Seeds that were begun and wait for their turn stay as they were left.
        """
        if self.run is None:
            return
        state = self._state | {
            f"{seed}.{name}": tensor
            for seed, training in self._at_work.items()
            for name, tensor in training.snapshot().items()
        }
        self._unsaved = ([*self._at_work, *self._group], state)
        if time.monotonic() - self._saved_at >= self.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Have the state after the newest records on disk; may be called at any time."""
        if self._unsaved is None or self.run is None:
            return
        group, state = self._unsaved
        shared = [self._processes[seed] for seed in group]
        self.run.save(state, {"seeds": group, "processes": shared})
        self._unsaved, self.has_state = None, True
        self._saved_at = time.monotonic()

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
    loss is no number is left as failed, and the others go on.
    """
    for run in runs:
        run.write_results()  # a kill may have come between the last state and this file
    _warn_of_other_processes(runs)
    try:
        while group := _next_group(runs, parallel):
            yield from _train(runs, group)
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
        listed = " and ".join(map(str, before))
        _LOGGER.warning(
            "seeds that are done or begun shared a batch among %s processes, now %d: batch norm "
            "saw other numbers of images, so accuracies should not be averaged",
            *(listed, now),
        )


RunSeed = tuple[TrainingRun, int]


def _next_group(runs: Sequence[TrainingRun], parallel: int) -> list[RunSeed]:
    """At most `parallel` seeds to train together: of those that were begun, else the next ones."""
    if begun := [(run, seed) for run in runs for seed in run.begun]:
        return begun[:parallel]
    pending = [set(run.pending) for run in runs]
    turns = zip_longest(*(run.seeds for run in runs))
    places = [
        (run, seed)
        for turn in turns
        for run, left, seed in zip(runs, pending, turn, strict=True)
        if seed in left
    ]
    return places[:parallel]


def _train(
    runs: Sequence[TrainingRun], group: Sequence[RunSeed]
) -> Iterator[tuple[TrainingRun, SeedEvent]]:
    seeds = {id(run): [seed for its, seed in group if its is run] for run in runs}
    busy = [run for run in runs if seeds[id(run)]]
    owners = [(run, seed) for run in busy for seed in seeds[id(run)]]
    trainings = [training for run in busy for training in run.begin(seeds[id(run)])]
    for outcomes in train_together(trainings):
        pairs = list(zip(owners, outcomes, strict=True))
        yield from [
            (run, event)
            for run in busy
            for event in run.record({seed: out for (its, seed), out in pairs if its is run})
        ]
        busy[0].raise_if_stopped()
    for run in busy:
        run.save()  # whatever becomes of a test, no epoch is lost
    for run in busy:
        yield from ((run, event) for event in run.finish(len(group)))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
