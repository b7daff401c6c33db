"""Measures how many images a second a training takes: networks, batches, ways of running a step.

python benchmarks/bench_train.py --model wrn-40-2 --device cuda
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import typer

from deepaa import distributed
from deepaa.cli.bench.lines import print_tables
from deepaa.cli.bench.tables import TextTable, hardware, writable
from deepaa.cli.bench.timing import stopwatch
from deepaa.cli.options import new_console
from deepaa.data import LabelledImages, load_dataset
from deepaa.models import build_model, channel_statistics
from deepaa.policy import Policy, compared_policy
from deepaa.runs import versions, write_file
from deepaa.train import (
    ImageBatches,
    Outcome,
    TrainConfig,
    Training,
    precision_on,
    space_of,
    train_together,
)

WAYS: Mapping[str, dict[str, Any]] = {
    "plain": {"graph": False, "compile": False},
    "recorded": {"graph": True, "compile": False},
    "compiled": {"graph": True, "compile": True},
    "tuned": {"graph": True, "compile": True, "tune": True},
}
"""Every operation started by itself; replayed as a CUDA graph; compiled first, then replayed; by a
compiler that tries more."""


class TrainTime(NamedTuple):
    """Epochs of one network, or of several at once."""

    network: str
    batch: int
    way: str
    parallel: int
    precision: str
    first: float  # seconds of the first epoch: compiling and recording included
    seconds: float  # median of the others
    fastest: float
    slowest: float
    images: int  # of all networks in an epoch
    augmenting: float  # seconds that the policy alone takes for them
    memory: float | None  # peak GB on CUDA

    @property
    def rate(self) -> float:
        """Images a second, of all networks together."""
        return self.images / self.seconds

    @property
    def share(self) -> float:
        """Part of the time that augmentation takes."""
        return self.augmenting / self.seconds


class TrainReport(NamedTuple):
    """Everything that was measured."""

    created: str
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    options: dict[str, Any]
    times: list[TrainTime]


def measure_train(
    *,
    models: Sequence[str] | None = None,
    batches: Sequence[int] = (128,),
    policy: str = "deepta",
    ways: Sequence[str] | None = None,
    parallel: Sequence[int] = (1,),
    device: str = "auto",
    precision: str | None = None,
    steps: int | None = None,
    epochs: int = 3,
    data: str | None = None,
    out: str | Path | None = None,
    progress: Callable[[TrainTime], None] = lambda found: None,
) -> TrainReport:
    """Rates of trainings with a policy, also written to `out` as JSON, after each of them.

    Args:
        models: None for WRN-40-2 and WRN-28-10 on CUDA, and the small network on a CPU.
        ways: Names of `WAYS`; None for all that the device has.
        parallel: Networks at once, one after the other.
        precision: None for bfloat16 where CUDA computes it in hardware, else float32.
        steps: Steps in an epoch; the images of `data` are repeated as often as needed. None for 200
            on CUDA and 20 on a CPU.
        epochs: Timed epochs, after one that starts everything up.
        progress: Called with each result.
    """
    path = None if out is None else writable(Path(out))
    distributed.check_device(device)
    where = distributed.init(device)
    if models is None:
        models = ("wrn-40-2", "wrn-28-10") if where.type == "cuda" else ("small",)
    if steps is None:
        steps = 200 if where.type == "cuda" else 20
    for name, value in (("steps", steps), ("epochs", epochs), ("batch", min(batches, default=0))):
        if value < 1:
            raise ValueError(f"{name} should be at least 1, got {value}")
    if min(parallel, default=0) < 1:
        raise ValueError(f"parallel should be at least 1, got {list(parallel)}")
    ways = _ways(ways, where)
    machine = hardware([where.type])  # its load is the one before the timing
    images = load_dataset(data)
    chosen = compared_policy(policy, space=space_of(list(images.images.shape[1:])))
    precision = precision_on(where, precision or "auto")
    options = {"data": images.name, "policy": policy, "layers": chosen.depth, "steps": steps}
    options |= {"epochs": epochs, "device": str(where)}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    report = TrainReport(now, versions(), machine, options, [])
    for model, batch, way in product(models, batches, ways):
        config = _config(batch, way, precision, where)
        if config.compile:
            torch._dynamo.reset()  # after eight of one code the compiler gives up on more
        for count in parallel:
            amount = _Amount(way, count, steps, epochs)
            report.times.append(train_time(model, images, chosen, config, where, amount))
            progress(report.times[-1])
            if path is not None:  # a long list of networks may be cut short
                write_file(path, train_json(report).encode())
    return report


def _ways(ways: Sequence[str] | None, device: torch.device) -> list[str]:
    possible = list(WAYS) if device.type == "cuda" else ["plain"]
    for way in ways or ():
        if way not in WAYS:
            raise ValueError(f"no way {way!r} of running a step; there are {', '.join(WAYS)}")
        if way not in possible:
            raise ValueError(f"{way} needs CUDA, the device is {device}")
    return possible if ways is None else list(ways)


def _config(batch: int, way: str, precision: str, device: torch.device) -> TrainConfig:
    return TrainConfig(
        epochs=1_000_000,
        batch=batch,
        lr=1e-3,
        precision=precision,
        channels_last=device.type == "cuda",
        **WAYS[way],
    )


class _Amount(NamedTuple):
    way: str
    parallel: int
    steps: int
    epochs: int


def train_time(
    name: str,
    data: LabelledImages,
    policy: Policy,
    config: TrainConfig,
    device: torch.device,
    amount: _Amount,
) -> TrainTime:
    """The time of an epoch of `amount.steps` steps, of several networks at once."""
    trainings = set_up(name, data, policy, config, device, amount)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    taken = []
    rounds = train_together(trainings)
    for _ in range(amount.epochs + 1):
        taken.append(stopwatch(lambda: _round(rounds), device))
    memory = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None
    alone = [stopwatch(lambda: _walk(trainings[0]), device) for _ in range(2)]  # second is warm
    rest = taken[1:]
    return TrainTime(
        name,
        config.batch,
        amount.way,
        amount.parallel,
        config.precision,
        taken[0],
        median(rest),
        min(rest),
        max(rest),
        config.batch * amount.steps * amount.parallel,
        alone[1] * amount.parallel,
        memory,
    )


def set_up(
    name: str,
    data: LabelledImages,
    policy: Policy,
    config: TrainConfig,
    device: torch.device,
    amount: _Amount,
) -> list[Training]:
    """Networks that share one copy of as many images as an epoch takes."""
    places = torch.arange(config.batch * amount.steps) % len(data.labels)
    images, labels = data.images[places].to(device), data.labels[places].to(device)
    mean, std = channel_statistics(data.images)
    return [
        Training(
            build_model(name, len(data.class_names), mean=mean, std=std, seed=seed),
            ImageBatches(images, labels, policy, config, device),
            config,
        )
        for seed in range(amount.parallel)
    ]


def _round(rounds: Iterator[list[Outcome]]) -> None:
    """An epoch of every network; the time of one that failed would say nothing."""
    for outcome in next(rounds):
        if isinstance(outcome, FloatingPointError):
            raise outcome


def _walk(training: Training) -> None:
    """An epoch's batches without the network."""
    for _ in training.batches.epoch(0):
        pass


def train_tables(report: TrainReport) -> list[TextTable]:
    """The report as text."""
    columns = ("network", "batch", "way", "at once", "images/s", "fastest..slowest")
    more = ("augmenting", "first epoch", "memory")
    rows = [
        (
            t.network,
            str(t.batch),
            t.way,
            str(t.parallel),
            f"{t.rate:,.0f}",
            f"{t.fastest:.3f}..{t.slowest:.3f} s",
            f"{100 * t.share:.1f} %",
            f"{t.first:.1f} s",
            "" if t.memory is None else f"{t.memory:.2f} GB",
        )
        for t in report.times
    ]
    options = report.options
    title = f"training on {options['device']} with {options['policy']} ({options['layers']} layers)"
    return [TextTable(title, columns + more, rows)]


def train_json(report: TrainReport) -> str:
    """The report as JSON text."""
    times = [{**t._asdict(), "rate": t.rate, "share": t.share} for t in report.times]
    content = {"format": "deepaa-bench-train", "version": 1, **report._asdict(), "times": times}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def main(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="A network to time. May be repeated. Default: wrn-40-2 and wrn-28-10 on CUDA, "
            "small on a CPU.",
        ),
    ] = None,
    batches: Annotated[
        list[int], typer.Option("--batch", min=1, help="Images per step. May be repeated.")
    ] = [128],  # noqa: B006 - typer reads it, nobody writes to it
    policy: Annotated[str, typer.Option(help="A name or a file; none for none.")] = "deepta",
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            help="plain: every operation started by itself. recorded: as a CUDA graph. compiled: "
            "compiled first, then recorded. tuned: by a compiler that tries more. May be repeated. "
            "Default: all that the device has.",
        ),
    ] = None,
    parallel: Annotated[
        list[int], typer.Option(min=1, help="Networks trained at once. May be repeated.")
    ] = [1],  # noqa: B006 - typer reads it, nobody writes to it
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto for what there is.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps in an epoch. Default: 200 on CUDA, 20 on a CPU."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Timed epochs.")] = 3,
    data: Annotated[str | None, typer.Option(help="As for deepaa train.")] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for all numbers.")] = None,
) -> None:
    """Measure how many images a second a training takes, augmentation included.

    The first epoch compiles and records, and is listed apart. Augmentation is also timed alone,
    which gives its share of the time.
    """

    def say(found: TrainTime) -> None:
        name = f"{found.network}, batch {found.batch}, {found.way}, {found.parallel} at once"
        typer.echo(f"{name}: {found.rate:,.0f} images/s", err=True)

    try:
        report = measure_train(
            models=models or None,
            batches=batches,
            policy=policy,
            ways=ways or None,
            parallel=parallel,
            device=device,
            precision=precision,
            steps=steps,
            epochs=epochs,
            data=data,
            out=out,
            progress=say,
        )
    except ValueError as error:
        sys.exit(f"error: {error}")
    print_tables(new_console(), train_tables(report), out)


if __name__ == "__main__":
    typer.run(main)
