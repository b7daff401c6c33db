"""What a person sees of a training: progress on stderr, results on stdout."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from deepaa import distributed
from deepaa.cli_progress import PLAIN_SECONDS, duration, say
from deepaa.recipes import RECIPES, Recipe
from deepaa.results import ENOUGH, RESULTS, SeedFailure, SeedResult, percent, summary
from deepaa.tensorboard_log import FOLDER, TensorBoardLog
from deepaa.train_batches import batch_sizes
from deepaa.training_data import InMemory, measured_rate
from deepaa.training_plan import Plan
from deepaa.training_run import Event, SeedEpoch, TrainingRun, train_side_by_side, weights_name

__all__ = ["conclude", "follow", "foretell", "list_recipes", "say"]

CAUTION = (
    f"Seeds alone move such figures: under {ENOUGH} seeds of each, no policy should be called "
    "better than another."
)

NAMED = 12
"""Seeds that are named before it is enough."""


def follow(
    tasks: Mapping[str, TrainingRun], parallel: int = 1, *, tensorboard: bool = False
) -> None:
    """Train and show progress, in the main process alone.

    Args:
        tasks: By the name that tells them apart; the only one needs none.
        parallel: Networks trained at once.
        tensorboard: Log to the folder of each run too.
    """
    logs = {
        id(task): TensorBoardLog(task.run.folder / FOLDER)
        for task in tasks.values()
        if tensorboard and task.run is not None
    }
    progress = _Progress(tasks, parallel) if distributed.is_main() else None
    try:
        for task, event in train_side_by_side(list(tasks.values()), parallel):
            if progress is not None:
                progress.show(task, event)
            if (log := logs.get(id(task))) is not None:
                log.add(event)
    finally:
        for log in logs.values():
            log.close()
        if progress is not None:
            progress.clear()


class _Progress:
    """One line that is rewritten on a terminal; a plain line now and then elsewhere."""

    def __init__(self, tasks: Mapping[str, TrainingRun], parallel: int) -> None:
        self.tasks, self.parallel, self.last = tasks, parallel, float("-inf")
        self.names = {id(task): f"{name}: " if name else "" for name, task in tasks.items()}
        self.is_terminal = sys.stderr.isatty()

    def show(self, task: TrainingRun, event: Event) -> None:
        name = self.names[id(task)]
        if isinstance(event, SeedFailure):
            self.clear()
            if len(task.seeds) > 1 or len(self.tasks) > 1:  # the only one is the command's error
                say(f"{name}seed {event.seed} failed, the others go on")
            return
        if isinstance(event, SeedResult):
            self.clear()
            say(f"{name}seed {event.seed} done: test accuracy {100 * event.accuracy:.2f} %")
            return
        text = name + self._text(task, event)
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[2K{text[:width]}")
            sys.stderr.flush()
            return
        is_last = event.record.epoch + 1 == task.config.epochs
        if is_last or time.monotonic() - self.last >= PLAIN_SECONDS:
            self.last = time.monotonic()
            say(text)

    def clear(self) -> None:
        if self.is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def _text(self, task: TrainingRun, event: SeedEpoch) -> str:
        record, of = event.record, task.config.epochs
        pending = sum(len(each.pending) for each in self.tasks.values())
        together = min(self.parallel, pending)
        later = max(0, pending - together)  # networks after those that are trained now
        rounds = -(-later // self.parallel)
        left = record.seconds * (of - record.epoch - 1 + rounds * of)
        rate = together * record.images / max(record.seconds, 1e-9)
        in_all = f" of {together} networks" if together > 1 else ""
        return (  # a narrow terminal cuts off the end, which is what is missed least
            f"seed {event.seed}  epoch {record.epoch + 1}/{of}  left {duration(left)}  "
            f"training loss {record.loss:.3f}, accuracy {100 * record.accuracy:.1f} %  "
            f"{rate:,.0f} images/s{in_all}"
        )


def conclude(tasks: Mapping[str, TrainingRun], out: Path) -> None:
    """The table of all seeds of the run, or of all runs, with means and their intervals."""
    if not distributed.is_main():
        return
    alone = tasks.get("")
    least = _common_table(tasks, out) if alone is None else _one_table(alone, out)
    if least is not None and least < ENOUGH:
        typer.echo(f"\n{CAUTION}")


def _one_table(task: TrainingRun, out: Path) -> int | None:
    """Every seed of a run; how many there are."""
    results = sorted(task.results)
    rate = "images/s" if all(r.parallel == 1 for r in results) else "images/s each"
    if results:
        typer.echo(f"{'seed':>8}{'accuracy':>12}{'loss':>9}{'epochs':>8}{'time':>9}{rate:>15}")
    for r in results:
        typer.echo(
            f"{r.seed:8}{100 * r.accuracy:10.2f} %{r.loss:9.4f}{r.epochs:8}"
            f"{duration(r.seconds):>9}{r.images_per_second:15,.0f}"
        )
    for failure in sorted(task.failures):
        tested = failure.epoch == task.config.epochs
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


def _common_table(tasks: Mapping[str, TrainingRun], out: Path) -> int | None:
    """A line for each run; the least seeds that one of them has."""
    width = max(len("policy"), *map(len, tasks))
    typer.echo(f"{'policy':{width}}{'seeds':>7}{'accuracy in %':>18}   each seed")
    counts = []
    for name, task in tasks.items():
        values = [result.accuracy for result in sorted(task.results)]
        counts.append(len(values))
        mean = percent(summary(values)) if values else "-"
        each = " ".join(f"{100 * value:.2f}" for value in values)
        failed = f" ({len(task.failures)} failed)" if task.failures else ""
        typer.echo(f"{name:{width}}{len(values):7}{mean:>18}   {each}{failed}")
    typer.echo(f"\nresults {out}{os.sep}*{os.sep}{RESULTS} (+-: 95 % confidence)")
    if any(counts):
        typer.echo(f"weights {out}{os.sep}*{os.sep}{weights_name('*')}")
    return min(counts) or None


def list_recipes() -> None:
    """Every recipe with its settings, and the command that trains it."""
    for recipe in RECIPES.values():
        train = recipe.train
        batch = f"{train.batch}" + (f" x {train.copies}" if train.copies > 1 else "")
        typer.echo(
            f"{recipe.full_name:28}{recipe.model}, {train.epochs} epochs, batch {batch}, lr "
            f"{train.lr:g}, weight decay {train.weight_decay:g}\n    {recipe.command()}\n"
            f"    {recipe.image_passes / 1e6:,.0f} million images through the network; known:"
        )
        for line in _known(recipe):
            typer.echo(f"      {line}")


def _known(recipe: Recipe) -> list[str]:
    """The published accuracies, as the sources give them: 96.1, or 97.56 +- 0.14."""
    lines = []
    for policy, accuracy, source, interval in recipe.expected:
        shown = f"{accuracy:.1f}" if round(accuracy, 1) == accuracy else f"{accuracy:.2f}"
        if interval is not None:
            shown = f"{accuracy:.2f} +- {interval:.2f}"
        lines.append(f"{policy} {shown} % ({source})")
    return lines


def foretell(plan: Plan, seeds: Sequence[int]) -> None:
    """Say what would be trained, and with which seeds."""
    from deepaa.report.terminal import plural  # loads rich

    images, config = plan.material.facts(), plan.config
    weights = sum(p.numel() for p in plan.model(0).parameters())
    shape = " x ".join(map(str, images["shape"]))
    sizes = batch_sizes(images["train_images"], config.batch)
    passes = config.epochs * sum(sizes) * config.copies
    decline = "a cosine"
    if config.schedule == "step":
        listed = ", ".join(f"{m:g}" for m in config.milestones)
        decline = f"steps at {listed}" if listed else "as it is"
    lines = {
        "data": f"{images['data']}: {images['train_images']:,} images of {shape}, "
        f"{images['classes']} classes",
        "test": f"{images['test_images']:,} images, {images['test']}",
        "policy": f"{plan.source['policy']}: {plural(plan.policy.depth, 'layer')} over "
        f"{plural(len(plan.policy.table), 'transformation')}",
        "network": f"{plan.model_name}: {weights:,} weights on {plan.device}",
        "steps": f"{plural(config.epochs, 'epoch')} of {plural(len(sizes), 'step')}, "
        f"{plural(max(sizes), 'image')} x {config.copies} in each",
        "rate": f"{config.lr:g} after {config.warmup_epochs:g} epochs, then {decline}; weight "
        f"decay {config.weight_decay:g}",
        "speed": f"{config.precision}, {'' if config.compile else 'not '}compiled",
        "passes": f"{passes:,} images through the network for each seed",
    }
    if isinstance(plan.material, InMemory):
        rate = measured_rate(plan.material, plan.model(0), plan.policy, config, plan.device)
        lines["time"] = f"about {duration(passes / rate)} for each, at {rate:,.0f} images/s now"
    named = ", ".join(map(str, seeds[:NAMED])) + (", ..." if len(seeds) > NAMED else "")
    lines["seeds"] = f"{len(seeds)}: {named}" if seeds else "none left to train"
    if plan.recipe is not None:
        whole = f"on {plan.recipe.data} after {plan.recipe.train.epochs} epochs:"
        lines["known"] = f"\n{'':9}".join([whole, *_known(plan.recipe)])
    for name, text in lines.items():
        typer.echo(f"{name:8} {text}")
