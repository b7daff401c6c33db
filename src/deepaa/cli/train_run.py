"""How `deepaa train` runs: experiments, run folders, seeds, and how the command ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import torch
import typer

from deepaa import distributed
from deepaa.cli.train_output import TrainProgress, print_forecast, print_results
from deepaa.distributed import run_on_all, run_on_main
from deepaa.runs import (
    FOLDER,
    Run,
    StopRequest,
    TensorBoardLog,
    check_folder,
    notify,
    open_in_main,
)
from deepaa.train import (
    PLACES,
    SCANS,
    Experiment,
    SeedRequest,
    TrainingRun,
    TrainRequest,
    build_experiment,
    train_side_by_side,
)


@dataclass(frozen=True)
class RunOptions:
    """What a command says about how it trains, but not what."""

    out: Path
    """The folder of the only run, or the one that holds those of several policies."""
    seeds: SeedRequest
    """Those that every run gets."""
    parallel: int = 1
    workers: int | None = None
    checkpoint_seconds: float = 60.0
    download: bool = False
    tensorboard: bool = False
    scan: bool = True
    """Whether files that are decoded in every epoch are all decoded once before."""
    dry_run: bool = False


def run_trainings(
    requests: Sequence[TrainRequest], options: RunOptions, device: torch.device
) -> None:
    """Train the experiments of all requests side by side and print their results.

    What is wrong with any of them is said before a folder is made.
    """
    experiments = run_on_all(lambda: _experiments(requests, options, device))
    folders = [request.folder for request in requests]
    if options.dry_run:
        seeds = run_on_main(lambda: _previewed_seeds(folders, experiments, options))
        for experiment, its in zip(experiments, seeds or (), strict=False):  # in the main process
            print_forecast(experiment, its)
        return
    with StopRequest() as stop, ExitStack() as opened:
        runs = [
            _open(experiment, folder, options, opened)
            for experiment, folder in zip(experiments, folders, strict=True)
        ]
        if len(runs) > 1:  # none gets new seeds unless all can
            run_on_main(lambda: [options.seeds.preview(folder) for folder in folders])
        trainings = {
            "" if folder == options.out else folder.name: _training_run(
                experiment, run, options, stop
            )
            for experiment, folder, run in zip(experiments, folders, runs, strict=True)
        }
        _train(trainings, options)
        if any(training.stopped for training in trainings.values()):
            notify(_how_to_resume(trainings.values(), options))
            raise typer.Exit(stop.exit_code or 143)
        print_results(trainings, options.out)
        _raise_failures(trainings)


def _experiments(
    requests: Sequence[TrainRequest], options: RunOptions, device: torch.device
) -> list[Experiment]:
    options.seeds.check()
    experiments: list[Experiment] = []
    for request in requests:
        # how many images there are depends on the scan where bad files are skipped
        is_needed = request.data.on_bad_image == "skip" or not options.dry_run
        experiment = build_experiment(
            request,
            device,
            download=options.download,
            workers=options.workers,
            scan=options.scan and is_needed,
            like=experiments[0] if experiments else None,
        )
        streams = experiment.request is not None and experiment.request.stream
        if options.parallel > 1 and (streams or distributed.world_size() > 1):
            reason = "--stream" if streams else "several processes"
            raise ValueError(f"--parallel {options.parallel} does not go with {reason}")
        experiment.check()
        experiments.append(experiment)
    return experiments


def _previewed_seeds(
    folders: Sequence[Path], experiments: Sequence[Experiment], options: RunOptions
) -> list[list[int]]:
    """The seeds each run would train; what the folders would refuse is refused here too."""
    for folder, experiment in zip(folders, experiments, strict=True):
        check_folder(folder, experiment.identity())
    return [options.seeds.preview(folder) for folder in folders]


def _open(
    experiment: Experiment, folder: Path, options: RunOptions, opened: ExitStack
) -> Run | None:
    config = run_on_main(lambda: experiment.identity())
    run = open_in_main(folder, config or {}, resume=options.seeds.resume)
    if run is not None:
        opened.callback(run.close)
    return run


def _training_run(
    experiment: Experiment, run: Run | None, options: RunOptions, stop: StopRequest
) -> TrainingRun:
    seeds = options.seeds.add_to(run)
    if run is not None and experiment.request is not None:
        run.write_policy(experiment.policy)
        run.write_json(PLACES, experiment.request.places())
        if any((scans := experiment.images.scan_record()).values()):
            run.write_json(SCANS, scans)
    return TrainingRun(
        experiment,
        seeds,
        run=run,
        checkpoint_seconds=options.checkpoint_seconds,
        stop=lambda: stop.requested,
    )


def _train(trainings: Mapping[str, TrainingRun], options: RunOptions) -> None:
    """Train all seeds, and show and log what they do."""
    progress = TrainProgress(trainings, options.parallel)
    with ExitStack() as opened:
        opened.callback(progress.clear)
        logs = {
            id(training): opened.enter_context(
                closing(TensorBoardLog(training.run.folder / FOLDER))
            )
            for training in trainings.values()
            if options.tensorboard and training.run is not None
        }
        for training, event in train_side_by_side(list(trainings.values()), options.parallel):
            progress.show(training, event)
            if id(training) in logs:
                logs[id(training)].add(event)


def _how_to_resume(trainings: Iterable[TrainingRun], options: RunOptions) -> str:
    again = f"deepaa train --resume {options.out}"
    if options.parallel > 1:
        again += f" --parallel {options.parallel}"
    if any(training.has_state for training in trainings):
        return f"stopped; whole epochs are saved, one in work is lost; go on with: {again}"
    return f"stopped before an epoch ended: only the settings are saved; begin with: {again}"


def _raise_failures(trainings: Mapping[str, TrainingRun]) -> None:
    """End the command with the first failure of a seed, if there is one."""
    failed = [
        f"{name}: {failure.reason}" if name else failure.reason
        for name, training in trainings.items()
        for failure in sorted(training.failures)
    ]
    if failed and not distributed.is_main():
        raise typer.Exit(2)  # the main process says why
    if failed:
        several = f"{len(failed)} seeds failed, the first: " if len(failed) > 1 else ""
        raise FloatingPointError(f"{several}{failed[0]}")
