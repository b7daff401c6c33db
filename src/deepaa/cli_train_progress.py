"""What a person sees of a training: progress on stderr, results on stdout."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import typer

from deepaa import distributed
from deepaa.cli_progress import PLAIN_SECONDS, duration, say
from deepaa.results import ENOUGH, RESULTS, SeedResult, percent, summary
from deepaa.train_batches import batch_sizes
from deepaa.training_data import InMemory, measured_rate
from deepaa.training_plan import Plan
from deepaa.training_run import SeedEpoch, TrainingRun

__all__ = ["conclude", "follow", "foretell", "say"]

CAUTION = (
    f"Seeds alone move such figures: under {ENOUGH} seeds of each, no policy should be called "
    "better than another."
)


def follow(task: TrainingRun) -> None:
    """Train and show progress; only the main process shows any."""
    progress = _Progress(task) if distributed.is_main() else None
    try:
        for event in task:
            if progress is not None:
                progress.show(event)
    finally:
        if progress is not None:
            progress.clear()


class _Progress:
    """One line that is rewritten on a terminal; a plain line now and then elsewhere."""

    def __init__(self, task: TrainingRun) -> None:
        self.task, self.last = task, float("-inf")
        self.is_terminal = sys.stderr.isatty()

    def show(self, event: SeedEpoch | SeedResult) -> None:
        if isinstance(event, SeedResult):
            self.clear()
            say(f"seed {event.seed} done: test accuracy {100 * event.accuracy:.2f} %")
            return
        text = self._text(event)
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[2K{text[:width]}")
            sys.stderr.flush()
            return
        is_last = event.record.epoch + 1 == self.task.config.epochs
        if is_last or time.monotonic() - self.last >= PLAIN_SECONDS:
            self.last = time.monotonic()
            say(text)

    def clear(self) -> None:
        if self.is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def _text(self, event: SeedEpoch) -> str:
        record, of = event.record, self.task.config.epochs
        pending = self.task.pending
        together = min(self.task.parallel, len(pending))
        later = max(0, len(pending) - together)  # seeds after those that are trained now
        rounds = -(-later // self.task.parallel)
        left = record.seconds * (of - record.epoch - 1 + rounds * of)
        rate = together * record.images / max(record.seconds, 1e-9)
        return (
            f"seed {event.seed}  epoch {record.epoch + 1}/{of}  loss {record.loss:.3f}  "
            f"accuracy {100 * record.accuracy:.1f} %  {rate:,.0f} images/s  left {duration(left)}"
        )


def conclude(task: TrainingRun, out: Path) -> None:
    """The table of all seeds of the run, their mean and its interval."""
    if not distributed.is_main():
        return
    results = sorted(task.results)
    typer.echo(f"{'seed':>8}{'accuracy':>12}{'loss':>9}{'epochs':>8}{'time':>9}{'images/s':>11}")
    for r in results:
        typer.echo(
            f"{r.seed:8}{100 * r.accuracy:10.2f} %{r.loss:9.4f}{r.epochs:8}"
            f"{duration(r.seconds):>9}{r.images_per_second:11,.0f}"
        )
    found = summary([result.accuracy for result in results])
    seeds = (
        "1 seed, so no interval" if found.seeds == 1 else f"{found.seeds} seeds, 95 % confidence"
    )
    typer.echo(f"\nmean    {percent(found)} % ({seeds})\nresults {out / RESULTS}")
    if found.seeds < ENOUGH:
        typer.echo(f"\n{CAUTION}")


def foretell(plan: Plan, count: int | None) -> None:
    """Say what would be trained."""
    if not distributed.is_main():
        return
    images, config = plan.material.facts(), plan.config
    weights = sum(p.numel() for p in plan.model(0).parameters())
    shape = " x ".join(map(str, images["shape"]))
    sizes = batch_sizes(images["train_images"], config.batch)
    passes = config.epochs * sum(sizes) * config.copies
    decline = "a cosine" if config.schedule == "cosine" else f"steps at {list(config.milestones)}"
    lines = {
        "data": f"{images['data']}: {images['train_images']:,} images of {shape}, "
        f"{images['classes']} classes",
        "test": f"{images['test_images']:,} images, {images['test']}",
        "policy": f"{plan.source['policy']}: {plan.policy.depth} layers over "
        f"{len(plan.policy.table)} transformations",
        "network": f"{plan.model_name}: {weights:,} weights on {plan.device}",
        "steps": f"{config.epochs} epochs of {len(sizes)} steps, {config.batch} images x "
        f"{config.copies} in each",
        "rate": f"{config.lr:g} after {config.warmup_epochs:g} epochs, then {decline}; weight "
        f"decay {config.weight_decay:g}",
        "speed": f"{config.precision}, {'' if config.compile else 'not '}compiled",
        "passes": f"{passes:,} images through the network for each seed",
    }
    if isinstance(plan.material, InMemory):
        rate = measured_rate(plan.material, plan.model(0), plan.policy, config, plan.device)
        lines["time"] = f"about {duration(passes / rate)} for each, at {rate:,.0f} images/s now"
    if count is not None:
        lines["seeds"] = f"{count} new"
    if plan.recipe is not None:
        known = [f"{e.policy} {e.accuracy:g} % ({e.source})" for e in plan.recipe.expected]
        lines["known"] = "; ".join(known)
    for name, text in lines.items():
        typer.echo(f"{name:8} {text}")
