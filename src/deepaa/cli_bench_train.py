"""`deepaa bench train`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_BATCHES: Any = [128]  # typer reads these, nobody writes to them
_ONE: Any = [1]


def bench_train(
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
    ] = _BATCHES,
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
    ] = _ONE,
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

    The first epoch compiles and records, and is told apart. Augmentation is also timed alone, which
    gives its share of the time.
    """
    from rich.console import Console

    from deepaa.bench.train import TrainTime, main_train, train_tables
    from deepaa.report.terminal import bench_lines

    def say(found: TrainTime) -> None:
        name = f"{found.network}, batch {found.batch}, {found.way}, {found.parallel} at once"
        typer.echo(f"{name}: {found.rate:,.0f} images/s", err=True)

    report = main_train(
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
    console = Console(highlight=False, markup=False, emoji=False)
    for line in bench_lines(train_tables(report), console.width):
        console.print(line)
    if out is not None:
        typer.echo(f"\nwrote {out}")
