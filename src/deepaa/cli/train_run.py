"""How `deepaa train` runs, and what it prints: progress on stderr, the rest on stdout."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer

from deepaa.cli.options import named_again
from deepaa.data import StreamedImages
from deepaa.distributed import is_main, run_on_all, run_on_main, world_size
from deepaa.files import plural
from deepaa.models import LONG_ON_CPU, quicker, quicker_options
from deepaa.runs import (
    FOLDER,
    ProgressLine,
    Run,
    StopRequest,
    TensorBoardLog,
    duration,
    notify,
    print_line,
    stored,
)
from deepaa.train import (
    ENOUGH,
    RESULTS,
    EpochRecord,
    Experiment,
    SeedFailure,
    SeedRequest,
    SeedResult,
    Training,
    TrainingRun,
    TrainRequest,
    build_experiment,
    check_alike,
    mean_in_percent,
    read_results,
    runs_in,
    summary,
    train_side_by_side,
    weights_name,
)

BUSY = 0.8
"""Processes that decode so much of the time are what a training waits for; the start of an epoch,
before its first images, is a part of the rest."""
MEASURED_SECONDS, STREAMED_SECONDS = 3.0, 15.0
"""Of steps that say what a training takes; on files, some batches were decoded before."""
WORTH_SAYING = 60.0
"""Seconds of all trainings from which on they are announced."""


@dataclass(frozen=True)
class RunOptions:
    """What a command says about how it trains, but not what."""

    out: Path
    """The folder of the only run, or the one that holds those of several policies."""
    seeds: SeedRequest
    """Those that every run gets."""
    parallel: int
    workers: int | None
    checkpoint_seconds: float
    download: bool
    tensorboard: bool
    scan: bool
    """Whether files that are decoded in every epoch are all decoded once before."""
    dry_run: bool


def run_trainings(
    requests: Sequence[TrainRequest], options: RunOptions, device: torch.device
) -> None:
    """Train the experiments of all requests side by side and print their results.

    What is wrong with any of them is said before a folder is made.
    """
    experiments = run_on_all(lambda: _experiments(requests, options, device))
    others = run_on_all(lambda: _others(experiments, options.out))
    if options.dry_run:
        from deepaa.cli.train_plan import preview

        run_on_main(lambda: preview(experiments, options.seeds))
        return
    with StopRequest() as stop, ExitStack() as opened:
        runs: dict[Path, Run | None] = {}
        for folder, experiment in experiments.items():  # what is wrong is raised in all processes
            run = run_on_main(partial(_open, folder, experiment, options))
            runs[folder] = opened.enter_context(run or nullcontext())
        if len(runs) > 1:  # none gets new seeds unless all can
            run_on_main(lambda: [options.seeds.preview(folder) for folder in runs])
        trainings = {
            "" if folder == options.out else folder.name: TrainingRun(
                experiments[folder],
                options.seeds.add_to(run),
                run=run,
                checkpoint_seconds=options.checkpoint_seconds,
                stop=lambda: stop.requested,
            )
            for folder, run in runs.items()
        }
        _train(trainings, options)
        if any(training.stopped for training in trainings.values()):
            first = requests[0]
            again = f"deepaa train --resume {options.out}"
            again += named_again(first.policy.operations, first.model)
            again += f" --parallel {options.parallel}" if options.parallel > 1 else ""
            saved = "; whole epochs are saved, one in work is lost; go on with:"
            if not any(training.has_state for training in trainings.values()):
                saved = " before an epoch ended: only the settings are saved; begin with:"
            notify(f"stopped{saved} {again}")
            raise typer.Exit(stop.exit_code or 143)
        if is_main():
            _print_results(trainings, others, options.out)
        _raise_failures(trainings)


def _experiments(
    requests: Sequence[TrainRequest], options: RunOptions, device: torch.device
) -> dict[Path, Experiment]:
    """What is trained in each folder, checked as far as possible."""
    experiments: dict[Path, Experiment] = {}
    for request in requests:
        # how many images there are depends on the scan where bad files are skipped
        is_needed = request.data.on_bad_image == "skip" or not options.dry_run
        experiment = build_experiment(
            request,
            device,
            download=options.download,
            workers=options.workers,
            scan=options.scan and is_needed,
            like=next(iter(experiments.values()), None),
        )
        streams = experiment.request is not None and experiment.request.stream
        if options.parallel > 1 and (streams or world_size() > 1):
            reason = "--stream" if streams else "several processes"
            raise ValueError(f"--parallel {options.parallel} does not go with {reason}")
        experiment.check()
        experiments[request.folder] = experiment
    return experiments


def _others(experiments: Mapping[Path, Experiment], out: Path) -> list[Path]:
    """Runs of other policies in the folder, after a check that they can be compared."""
    if out in experiments:
        return []
    inside = (folder for folder in runs_in(out) if folder not in (out, *experiments))
    found = [folder for folder in inside if (folder / RESULTS).exists()]
    for experiment in experiments.values():
        check_alike(found, experiment.identity())
    return found


def _open(folder: Path, experiment: Experiment, options: RunOptions) -> Run:
    return Run(folder, experiment.identity(), resume=options.seeds.resume)


def _train(trainings: Mapping[str, TrainingRun], options: RunOptions) -> None:
    """Train all seeds, and show and log what they do."""
    runs = list(trainings.values())
    names = {id(run): f"{name}: " if name else "" for name, run in trainings.items()}
    line = ProgressLine()
    with ExitStack() as opened:
        opened.callback(line.clear)
        logs = {
            id(its): opened.enter_context(closing(TensorBoardLog(its.run.folder / FOLDER)))
            for its in runs
            if options.tensorboard and its.run is not None
        }
        forecast = TrainingForecast(runs, options, line.message)
        for its in runs:
            its.watch = forecast.look
            if isinstance(images := its.experiment.images.train, StreamedImages):
                images.watch = partial(_show_within_epoch, line, images)
        for training, event in train_side_by_side(runs, options.parallel):
            seed = f"{names[id(training)]}seed {event.seed}"
            if isinstance(event, SeedFailure):
                line.clear()
                if sum(len(run.seeds) for run in runs) > 1:  # the only one is the command's error
                    line.message(f"{seed} failed, the others go on")
            elif isinstance(event, SeedResult):
                line.message(f"{seed} done: test accuracy {100 * event.accuracy:.2f} %")
            else:
                epochs = training.experiment.config.epochs
                pending = sum(len(run.pending) for run in runs)
                text = _epoch_text(event.record, epochs, pending, options.parallel)
                line.update(f"{seed}  {text}", always=event.record.epoch + 1 == epochs)
            if id(training) in logs:
                logs[id(training)].add(event)


def _epoch_text(record: EpochRecord, epochs: int, pending: int, parallel: int) -> str:
    """Where a training is; of networks that are not done, `parallel` are trained at once."""
    together = min(parallel, pending)
    rounds = -(-(pending - together) // parallel)  # after those that are trained now
    left = record.seconds * (epochs - record.epoch - 1 + rounds * epochs)
    rate = together * record.images / max(record.seconds, 1e-9)
    in_all = f" of {together} networks" if together > 1 else ""
    if record.decoding is not None and record.decoding_busy is not None:
        in_all = f", {who_waits(record.decoding, record.decoding_busy)}"
    return (  # a narrow terminal leaves out the last parts, which are missed least
        f"epoch {record.epoch + 1}/{epochs}  left {duration(left)}  "
        f"training loss {record.loss:.3f}, accuracy {100 * record.accuracy:.1f} %  "
        f"{rate:,.0f} images/s{in_all}"
    )


def who_waits(decoding: float, busy: float) -> str:
    """What holds a training on files up: decoding, at so many images a second, or the network."""
    who = "training waits for files" if busy >= BUSY else "files wait for training"
    return f"{decoding:,.0f}/s can be decoded: {who}"


def _show_within_epoch(line: ProgressLine, images: StreamedImages, given: int, total: int) -> None:
    """Show how far a long epoch of files is, and how fast; of this process alone."""
    if rate := images.decoding_rate():
        speed = f"{given / max(rate.seconds, 1e-9):,.0f} images/s"
        waits = who_waits(rate.per_second, rate.busy)
        line.update(f"{100 * given / total:.0f} % of an epoch  {speed}, {waits}")


def _raise_failures(trainings: Mapping[str, TrainingRun]) -> None:
    """End the command with the first failure of a seed, if there is one."""
    failed = [
        f"{name}: {failure.reason}" if name else failure.reason
        for name, training in trainings.items()
        for failure in sorted(training.failures)
    ]
    if failed and not is_main():
        raise typer.Exit(2)  # the main process says why
    if failed:
        several = f"{len(failed)} seeds failed, the first: " if len(failed) > 1 else ""
        raise FloatingPointError(f"{several}{failed[0]}")


# What it will take


class TrainingForecast:
    """Says once, by the first steps of the trainings, how long all of them will take.

    The first step of each has more to do than others and does not count. Where all take less than
    a minute, nothing is said.
    """

    def __init__(
        self, runs: Sequence[TrainingRun], options: RunOptions, say: Callable[[str], None]
    ) -> None:
        """Nothing is measured before the first `look`."""
        self._say, self._can_change = say, not options.seeds.resume
        self._networks = sum(len(run.pending) for run in runs)
        self._epochs = sum(run.epochs_left for run in runs)
        self._at_once = min(options.parallel, self._networks)
        self._experiment = runs[0].experiment
        streams = isinstance(self._experiment.images.train, StreamedImages)
        self._enough = STREAMED_SECONDS if streams else MEASURED_SECONDS
        self._steps, self._since, self._is_over = 0, 0.0, False

    def look(self, training: Training) -> None:
        """Count a step that begins, and say what was measured once that is enough."""
        if self._is_over:
            return
        done, self._steps = self._steps, self._steps + 1
        if done == 0:
            self._since = time.monotonic()
        elif done == self._at_once:
            first = self._passed()
            if first > 10 * self._enough:  # so that what only they do is little
                self._tell(first / done, training)
            self._since = time.monotonic()
        elif done > self._at_once and time.monotonic() - self._since > self._enough:
            self._tell(self._passed() / (done - self._at_once), training)

    def _passed(self) -> float:
        if self._experiment.device.type == "cuda":
            torch.cuda.synchronize(self._experiment.device)
        return time.monotonic() - self._since

    def _tell(self, step: float, training: Training) -> None:
        self._is_over = True
        seconds = step * len(training.batches.sizes) * self._epochs
        if seconds < WORTH_SAYING:
            return
        self._say(f"{together(seconds, self._networks)} on this machine")
        if self._can_change and (hint := cheaper(self._experiment, seconds)) is not None:
            self._say(f"hint: {hint} (Ctrl-C leaves; other settings need another --out)")


def together(seconds: float, networks: int) -> str:
    """What so many networks take."""
    return f"about {duration(seconds)} for {plural(networks, 'network')}"


def cheaper(experiment: Experiment, seconds: float) -> str | None:
    """A cheaper way, where trainings of so many seconds are long on a CPU."""
    if seconds < LONG_ON_CPU or experiment.device.type != "cpu":
        return None
    weights = sum(p.numel() for p in experiment.make_model(0).parameters())
    ways = [quicker(quicker_options(experiment.images.sample.images, weights))]
    if epochs := int(experiment.config.epochs * LONG_ON_CPU / 2 / seconds):
        ways.append(f"--epochs {epochs} takes half an hour")
    return "; ".join(filter(None, ways)) or "fewer --policy, --seeds or images take less"


# Results


def _print_results(trainings: Mapping[str, TrainingRun], others: Sequence[Path], out: Path) -> None:
    """Print a table of all seeds of the run, or of all runs, with means and their intervals.

    Args:
        others: Runs of the same folder that were trained before.
    """
    alone = trainings.get("")
    least = _print_runs(trainings, others, out) if alone is None else _print_seeds(alone, out)
    if 0 < least < ENOUGH:
        typer.echo()
        print_line(
            f"Seeds alone move such figures: under {ENOUGH} seeds of each, no policy should be "
            "called better than another."
        )


def _print_seeds(training: TrainingRun, out: Path) -> int:
    """Print every seed of a run; returns how many have a result."""
    results = sorted(training.results)
    rate = "images/s" if all(r.parallel == 1 for r in results) else "images/s each"
    if results:
        typer.echo(f"{'seed':>8}{'accuracy':>12}{'loss':>9}{'epochs':>8}{'time':>9}{rate:>15}")
    for r in results:
        typer.echo(
            f"{r.seed:8}{100 * r.accuracy:10.2f} %{r.loss:9.4f}{r.epochs:8}"
            f"{duration(r.seconds):>9}{r.images_per_second:15,.0f}"
        )
    for failure in sorted(training.failures):
        tested = failure.epoch == training.experiment.config.epochs
        where = "the test" if tested else f"epoch {failure.epoch + 1}"
        typer.echo(f"{failure.seed:8}      failed in {where}")
    if results:
        count, found = len(results), summary([result.accuracy for result in results])
        seeds = "1 seed, so no interval" if count == 1 else f"{count} seeds, 95 % confidence"
        weights = weights_name("*" if count > 1 else results[0].seed)
        mean = f"\nmean    {mean_in_percent(found)} % ({seeds})\n"
        typer.echo(f"{mean}results {out / RESULTS}\nweights {out / weights}")
    return len(results)


def _print_runs(trainings: Mapping[str, TrainingRun], others: Sequence[Path], out: Path) -> int:
    """Print a line for each run; returns the least number of seeds that one of them has."""
    rows: dict[str, tuple[list[SeedResult], int]] = {}  # results, and how many seeds failed
    for folder in others:
        results, facts = read_results(folder)
        rows[folder.name] = results, len(stored(facts, "failed", list[Any], folder / RESULTS, []))
    for name, training in trainings.items():
        rows[name] = sorted(training.results), len(training.failures)
    width = max(len("policy"), *map(len, rows))
    typer.echo(f"{'policy':{width}}{'seeds':>7}{'accuracy in %':>18}   each seed")
    counts = []
    for name, (results, failures) in rows.items():
        values = [result.accuracy for result in results]
        counts.append(len(values))
        mean = mean_in_percent(summary(values)) if values else "-"
        each = " ".join(f"{100 * value:.2f}" for value in values)
        failed = f" ({failures} failed)" if failures else ""
        typer.echo(f"{name:{width}}{len(values):7}{mean:>18}   {each}{failed}")
    typer.echo(f"\nresults {out / '*' / RESULTS} (+-: 95 % confidence)")
    if any(counts):
        typer.echo(f"weights {out / '*' / weights_name('*')}")
    return min(counts)
