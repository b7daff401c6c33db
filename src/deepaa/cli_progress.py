"""What a person sees of a search: progress on stderr, results on stdout."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from deepaa.pipeline import PolicySearch, Record
    from deepaa.search import LayerRecord, StepRecord
    from deepaa.tensorboard_log import TensorBoardLog
    from deepaa.train import EpochRecord
    from deepaa.verify import Trained, Trial

ADVICE = """\
Use it:

    from deepaa import DeepAutoAugment
    augment = DeepAutoAugment({path!r})
    images = augment(images)  # PIL, numpy, or uint8 (N, C, H, W) on CPU or CUDA

It stands instead of your own crop, flip and cutout: remove those. Resize first, normalise after."""
CAUTION = (
    "One short training of each proves little: seeds alone move such figures by about a point. "
    "Train as long as you mean to, with several seeds, before you decide."
)
PLAIN_SECONDS = 10.0
"""Seconds between two lines where there is no terminal."""
DAY = 86_400.0


def follow(task: PolicySearch, log: TensorBoardLog | None = None) -> None:
    """Run the search and show its progress; only the main process shows any."""
    from deepaa import distributed

    progress = _Progress(task) if distributed.is_main() else None
    for record in task if log is None else log.follow(task):
        if progress is not None:
            progress.show(record)
    if progress is not None:
        progress.clear()


class _Progress:
    """One line that is rewritten on a terminal; a plain line now and then elsewhere."""

    def __init__(self, task: PolicySearch) -> None:
        self.task, self.last = task, float("-inf")
        self.is_terminal = sys.stderr.isatty()
        self.rate = 0.0  # image passes a second, smoothed
        self.passes = 0

    def show(self, record: Record) -> None:
        from deepaa.search import LayerRecord
        from deepaa.train import EpochRecord

        if isinstance(record, LayerRecord):
            self.clear()
            self.passes = record.passes
            say(_layer_text(record))
            return
        if isinstance(record, EpochRecord):
            of = self.task.proxy.train.epochs
            text, is_last = _epoch_text(record, of), record.epoch + 1 == of
        else:
            text, is_last = self._step_text(record), record.step == self.task.config.steps
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[2K{text[:width]}")
            sys.stderr.flush()
        elif is_last or time.monotonic() - self.last >= PLAIN_SECONDS:
            self.last = time.monotonic()
            say(text)
        if isinstance(record, EpochRecord) and is_last:
            self._judge(record)

    def _judge(self, record: EpochRecord) -> None:
        if problem := little_learnt(record, len(self.task.data.class_names)):
            self.clear()
            say(f"warning: {problem}")

    def clear(self) -> None:
        if self.is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def _step_text(self, record: StepRecord) -> str:
        from deepaa.forecast import passes_left

        config = self.task.config
        if self.passes and record.step > 1:  # a first step compiles
            now = (record.passes - self.passes) / max(record.seconds, 1e-6)
            self.rate = 0.9 * self.rate + 0.1 * now if self.rate else now
        self.passes = record.passes
        passes = passes_left(config, len(self.task.space), record.layer, record.step)
        left = f"left {duration(passes / self.rate)}  " if self.rate else ""
        depth = config.layers or f"at most {config.max_layers}"
        top = ", ".join(f"{name} {share:.2f}" for name, share in record.top)
        return (
            f"layer {record.layer} of {depth}  step {record.step}/{config.steps}  "
            f"similarity {record.similarity:.3f}  {left}{top}"
        )


def _epoch_text(record: EpochRecord, of: int) -> str:
    left = duration(record.seconds * (of - record.epoch - 1))
    return (
        f"pre-training {record.epoch + 1}/{of}  loss {record.loss:.3f}  "
        f"accuracy {record.accuracy:.3f}  left {left}"
    )


def little_learnt(record: EpochRecord, classes: int) -> str | None:
    """What to say of a network that is hardly better than guessing."""
    chance = 1 / classes
    if record.accuracy >= max(2 * chance, chance + 0.1):
        return None
    return (
        f"the network has learnt little: accuracy {record.accuracy:.2f} on augmented images, and "
        f"guessing gives {chance:.2f}; its gradients may mislead the search, more --epochs or more "
        "images (--splits) may help"
    )


def _layer_text(record: LayerRecord) -> str:
    verdict = "kept" if record.kept else "dropped"
    return (
        f"layer {record.layer} {verdict} ({record.reason}): held-out similarity "
        f"{record.improvement_mean:+.4f} over no augmentation, DeepTA {record.deepta_mean:+.4f}"
    )


def conclude(task: PolicySearch, out: Path) -> None:
    """Show the policy, where it is, and how to use it; write a picture of it."""
    from deepaa import distributed

    if not distributed.is_main():
        return
    from rich.console import Console

    from deepaa.report.preview import preview_grid
    from deepaa.report.tables import policy_table
    from deepaa.report.terminal import policy_lines

    path, picture = out / "policy.json", out / "preview.png"
    if not task.policy.depth:
        say("no layer helped: the policy changes nothing")
    console = Console(highlight=False, markup=False, emoji=False)
    for line in policy_lines(policy_table(task.policy, str(path), top=4), console.encoding):
        console.print(line)
    images = task.data.images[task.splits.search[:8]]
    preview_grid(images, task.policy, title="policy").save(picture)
    typer.echo(
        f"\npolicy   {path}\npreview  {picture}\nhistory  {out / 'history.jsonl'}\n"
        f"a page   deepaa report {out}\n"
    )
    typer.echo(ADVICE.format(path=str(path)))


def foretell(task: PolicySearch) -> None:
    """Say what the search would do and what it would cost."""
    from deepaa import distributed
    from deepaa.forecast import all_passes, memory_needed, seconds_per_pass
    from deepaa.models import frozen_copy
    from deepaa.prepared import prepared

    if not distributed.is_main():
        return
    task.check_model()
    images, labels = task.data.images[:256].to(task.device), task.data.labels[:256].to(task.device)
    frozen = prepared(frozen_copy(task.model), images[:2], labels[:2])
    each = seconds_per_pass(frozen, images, labels)
    passes = all_passes(task.config, len(task.space))
    counts = {name: len(part) for name, part in task.splits._asdict().items()}
    training = counts["pretrain"] * task.proxy.train.epochs if task.pretrains else 0
    shape = " x ".join(map(str, task.data.images.shape[1:]))
    weights = sum(p.numel() for p in task.model.parameters())
    memory = memory_needed(task.config, frozen, images, len(task.space))
    lines = {
        "data": f"{task.data.name}: {len(task.data.labels):,} images of {shape}, "
        f"{len(task.data.class_names)} classes",
        "splits": ", ".join(f"{name} {count:,}" for name, count in counts.items())
        + f"; {task.config.heldout:,} of the search's are held out",
        "space": f"{len(task.space)} transformations of {len(task.space.operations)} operations",
        "network": f"{weights:,} weights on {task.device}",
        "memory": f"{task.data.images.nbytes / 1e6:,.0f} MB of images, about {memory / 1e6:,.0f} "
        "MB for the network",
        "passes": f"{passes:,} in the search at most, {training:,} in pre-training",
        "time": f"about {duration((passes + training) * each)}, at {1 / each:,.0f} passes a "
        "second measured now",
    }
    for name, text in lines.items():
        typer.echo(f"{name:8} {text}")
    if (passes + training) * each > DAY and task.device.type == "cpu":
        typer.echo(f"{'hint':8} --preset demo --size 32 takes minutes on a CPU")


def show_comparison(results: Iterable[Trained], trial: Trial, epochs: int, out: Path) -> None:
    """A table of the trainings, line by line as they end; `verify.json` keeps it."""
    count = len(trial.test_labels)
    typer.echo(
        f"\n{epochs} epochs on {len(trial.labels):,} images, accuracy on {count:,} "
        f"{trial.test_name}:\n\n{'':16}{'accuracy':>10}{'loss':>8}{'seconds':>9}"
    )
    rows: list[dict[str, Any]] = []
    for result in results:
        rows.append(result._asdict())
        accuracy = f"{100 * result.accuracy:.1f} %"
        typer.echo(f"{result.name:16}{accuracy:>10}{result.loss:8.3f}{result.seconds:9.0f}")
    typer.echo(f"\n{CAUTION}")
    report = {"epochs": epochs, "train": len(trial.labels), "test": count, "results": rows}
    (out / "verify.json").write_text(json.dumps(report, indent=2) + "\n")


def say(text: str) -> None:
    """One line for the person, on stderr, from the main process."""
    from deepaa import distributed

    if distributed.is_main():
        typer.echo(text, err=True)


def refuse_settings(context: typer.Context, allowed: Collection[str]) -> None:
    """A run that goes on keeps its settings, so an option that would change them is an error."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise ValueError(
                f"--resume takes every setting from the run; leave out {parameter.opts[0]}"
            )


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.0f} days"
