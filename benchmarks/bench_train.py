"""Measures how many images a second a training takes: networks, batches, ways of running a step.

python benchmarks/bench_train.py --model wrn-40-2 --device cuda
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import typer

from deepaa import distributed
from deepaa.cli.bench import TextTable, print_tables
from deepaa.cli.bench_measure import report_head, stopwatch
from deepaa.cli.options import check_place
from deepaa.data import LabelledImages, load_dataset
from deepaa.models import build_model, channel_statistics
from deepaa.policy import Policy, compared_policy
from deepaa.runs import write_json
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
    "plain": {"graph": False, "compile": False, "fused": False},
    "recorded": {"graph": True, "compile": False, "fused": False},
    "compiled": {"graph": True, "compile": True, "fused": False},
    "tuned": {"graph": True, "compile": True, "tune": True, "fused": False},
    "fused": {"graph": True, "compile": True},
}
"""Every operation started by itself; replayed as a CUDA graph; compiled first, then replayed; by a
compiler that tries more; with the fused kernels where they serve, as trainings run by default."""
COLUMNS = {
    "network": "{network}",
    "batch": "{batch}",
    "way": "{way}",
    "at once": "{parallel}",
    "images/s": "{rate:,.0f}",
    "fastest..slowest": "{fastest:.3f}..{slowest:.3f} s",
    "augmenting": "{share:.1%}",
    "first epoch": "{first:.1f} s",
    "memory": "{memory:.2f} GB",
}


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
    rate: float  # images a second, of all networks together
    share: float  # part of the time that augmentation takes


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
    out: Path | None = None,
    progress: Callable[[TrainTime], None] = lambda found: None,
) -> dict[str, Any]:
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
    check_place(out, "train.json")
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
    images = load_dataset(data)
    chosen = compared_policy(policy, space=space_of(list(images.images.shape[1:])))
    precision = precision_on(where, precision or "auto")
    options = {"data": images.name, "policy": policy, "layers": chosen.depth, "steps": steps}
    options |= {"epochs": epochs, "device": str(where)}
    report = report_head("deepaa-bench-train", [where.type], options)  # the load before the timing
    report["times"] = []
    for model, batch, way in product(models, batches, ways):
        config = _config(batch, way, precision, where)
        if config.compile:
            torch._dynamo.reset()  # after eight of one code the compiler gives up on more
        for count in parallel:
            amount = _Amount(way, count, steps, epochs)
            found = train_time(model, images, chosen, config, where, amount)
            progress(found)
            report["times"].append(found._asdict())
            if out is not None:  # a long list of networks may be cut short
                write_json(out, report)
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
    seconds, augmenting = median(rest), alone[1] * amount.parallel
    images = config.batch * amount.steps * amount.parallel
    return TrainTime(
        name,
        config.batch,
        amount.way,
        amount.parallel,
        config.precision,
        taken[0],
        seconds,
        min(rest),
        max(rest),
        images,
        augmenting,
        memory,
        images / seconds,
        augmenting / seconds,
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


def train_tables(report: dict[str, Any]) -> list[TextTable]:
    """The report as text."""
    title = "training on {device} with {policy} ({layers} layers)".format(**report["options"])
    return [TextTable(title, COLUMNS, report["times"])]


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
    print_tables(train_tables(report), out)


if __name__ == "__main__":
    typer.run(main)
