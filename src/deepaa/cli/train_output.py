"""What `deepaa train` prints: progress on stderr, forecasts, results and recipes on stdout."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from deepaa import distributed
from deepaa.data import batch_sizes
from deepaa.runs import ProgressLine, duration
from deepaa.train import (
    ENOUGH,
    RECIPES,
    RESULTS,
    Experiment,
    Recipe,
    SeedEpoch,
    SeedEvent,
    SeedFailure,
    SeedResult,
    TrainConfig,
    TrainingRun,
    percent,
    summary,
    weights_name,
)

CAUTION = (
    f"Seeds alone move such figures: under {ENOUGH} seeds of each, no policy should be called "
    "better than another."
)
MOST_NAMED = 12
"""Seeds that a forecast names; of more, only the first."""


class TrainProgress:
    """The progress of several training runs on one line."""

    def __init__(self, trainings: Mapping[str, TrainingRun], parallel: int) -> None:
        """Take the runs by the name that tells them apart; the only one needs none."""
        self.trainings, self.parallel = trainings, parallel
        self._names = {id(each): f"{name}: " if name else "" for name, each in trainings.items()}
        self._line = ProgressLine()

    def show(self, training: TrainingRun, event: SeedEvent) -> None:
        """Show what a seed did."""
        name = self._names[id(training)]
        if isinstance(event, SeedFailure):
            self.clear()
            if len(training.seeds) > 1 or len(self.trainings) > 1:
                # the only seed is the command's error
                self._line.message(f"{name}seed {event.seed} failed, the others go on")
        elif isinstance(event, SeedResult):
            accuracy = f"{100 * event.accuracy:.2f} %"
            self._line.message(f"{name}seed {event.seed} done: test accuracy {accuracy}")
        else:
            epochs = training.experiment.config.epochs
            is_last = event.record.epoch + 1 == epochs
            self._line.update(name + self._epoch_text(event, epochs), always=is_last)

    def clear(self) -> None:
        """Remove the line."""
        self._line.clear()

    def _epoch_text(self, event: SeedEpoch, epochs: int) -> str:
        record = event.record
        pending = sum(len(each.pending) for each in self.trainings.values())
        together = min(self.parallel, pending)
        later = max(0, pending - together)  # networks after those that are trained now
        rounds = -(-later // self.parallel)
        left = record.seconds * (epochs - record.epoch - 1 + rounds * epochs)
        rate = together * record.images / max(record.seconds, 1e-9)
        in_all = f" of {together} networks" if together > 1 else ""
        return (  # a narrow terminal cuts off the end, which is what is missed least
            f"seed {event.seed}  epoch {record.epoch + 1}/{epochs}  left {duration(left)}  "
            f"training loss {record.loss:.3f}, accuracy {100 * record.accuracy:.1f} %  "
            f"{rate:,.0f} images/s{in_all}"
        )


def print_results(trainings: Mapping[str, TrainingRun], out: Path) -> None:
    """Print a table of all seeds of the run, or of all runs, with means and their intervals."""
    if not distributed.is_main():
        return
    alone = trainings.get("")
    least = _print_runs(trainings, out) if alone is None else _print_seeds(alone, out)
    if least is not None and least < ENOUGH:
        typer.echo(f"\n{CAUTION}")


def _print_seeds(training: TrainingRun, out: Path) -> int | None:
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
    if not results:
        return None
    found = summary([result.accuracy for result in results])
    seeds = (
        "1 seed, so no interval" if found.seeds == 1 else f"{found.seeds} seeds, 95 % confidence"
    )
    typer.echo(f"\nmean    {percent(found)} % ({seeds})\nresults {out / RESULTS}")
    typer.echo(f"weights {out / weights_name('*' if found.seeds > 1 else results[0].seed)}")
    return found.seeds


def _print_runs(trainings: Mapping[str, TrainingRun], out: Path) -> int | None:
    """Print a line for each run; returns the least number of seeds that one of them has."""
    width = max(len("policy"), *map(len, trainings))
    typer.echo(f"{'policy':{width}}{'seeds':>7}{'accuracy in %':>18}   each seed")
    counts = []
    for name, training in trainings.items():
        values = [result.accuracy for result in sorted(training.results)]
        counts.append(len(values))
        mean = percent(summary(values)) if values else "-"
        each = " ".join(f"{100 * value:.2f}" for value in values)
        failed = f" ({len(training.failures)} failed)" if training.failures else ""
        typer.echo(f"{name:{width}}{len(values):7}{mean:>18}   {each}{failed}")
    typer.echo(f"\nresults {out}{os.sep}*{os.sep}{RESULTS} (+-: 95 % confidence)")
    if any(counts):
        typer.echo(f"weights {out}{os.sep}*{os.sep}{weights_name('*')}")
    return min(counts) or None


def print_recipes() -> None:
    """Print every recipe with its settings, and the command that trains it."""
    for recipe in RECIPES.values():
        train = recipe.train
        batch = f"{train.batch}" + (f" x {train.copies}" if train.copies > 1 else "")
        typer.echo(
            f"{recipe.full_name:28}{recipe.model}, {train.epochs} epochs, batch {batch}, lr "
            f"{train.lr:g}, weight decay {train.weight_decay:g}\n    {recipe.command()}\n"
            f"    {recipe.image_passes / 1e6:,.0f} million images through the network; known:"
        )
        for line in _published(recipe):
            typer.echo(f"      {line}")


def _published(recipe: Recipe) -> list[str]:
    """The published accuracies, as the sources give them: 96.1, or 97.56 +- 0.14."""
    lines = []
    for policy, accuracy, source, interval in recipe.expected:
        shown = f"{accuracy:.1f}" if round(accuracy, 1) == accuracy else f"{accuracy:.2f}"
        if interval is not None:
            shown = f"{accuracy:.2f} +- {interval:.2f}"
        lines.append(f"{policy} {shown} % ({source})")
    return lines


def print_forecast(experiment: Experiment, seeds: Sequence[int]) -> None:
    """Print what would be trained, with which seeds, and how long it would take."""
    from deepaa.report import plural  # loads rich

    images, config, policy = experiment.images.facts(), experiment.config, experiment.policy
    weights = sum(p.numel() for p in experiment.make_model(0).parameters())
    shape = " x ".join(map(str, images["shape"]))
    sizes = batch_sizes(images["train_images"], config.batch)
    passes = config.epochs * sum(sizes) * config.copies
    name = experiment.request.policy.name if experiment.request is not None else "policy"
    lines = {
        "data": f"{images['data']}: {images['train_images']:,} images of {shape}, "
        f"{images['classes']} classes",
        "test": f"{images['test_images']:,} images, {images['test']}",
        "policy": f"{name}: {plural(policy.depth, 'layer')} over "
        f"{plural(len(policy.table), 'transformation')}",
        "network": f"{experiment.model_name}: {weights:,} weights on {experiment.device}",
        "steps": f"{plural(config.epochs, 'epoch')} of {plural(len(sizes), 'step')}, "
        f"{plural(max(sizes), 'image')} x {config.copies} in each",
        "rate": f"{config.lr:g} after {config.warmup_epochs:g} epochs, then {_decline(config)}; "
        f"weight decay {config.weight_decay:g}",
        "speed": f"{config.precision}, {'' if config.compile else 'not '}compiled",
        "passes": f"{passes:,} images through the network for each seed",
    }
    if (rate := experiment.measured_rate()) is not None:
        lines["time"] = f"about {duration(passes / rate)} for each, at {rate:,.0f} images/s now"
    named = ", ".join(map(str, seeds[:MOST_NAMED])) + (", ..." if len(seeds) > MOST_NAMED else "")
    lines["seeds"] = f"{len(seeds)}: {named}" if seeds else "none left to train"
    if (recipe := experiment.recipe) is not None:
        whole = f"on {recipe.data.name} after {recipe.train.epochs} epochs:"
        lines["known"] = f"\n{'':9}".join([whole, *_published(recipe)])
    for label, text in lines.items():
        typer.echo(f"{label:8} {text}")


def _decline(config: TrainConfig) -> str:
    """How the learning rate goes down, in words."""
    if config.schedule == "cosine":
        return "a cosine"
    listed = ", ".join(f"{m:g}" for m in config.milestones)
    return f"steps at {listed}" if listed else "as it is"
