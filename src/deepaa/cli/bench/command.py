"""`deepaa bench ops`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepaa.cli.options import new_console


def ops(
    sizes: Annotated[
        list[int], typer.Option("--size", min=1, help="Side of the images. May be repeated.")
    ] = [32, 224],  # noqa: B006 - typer reads it, nobody writes to it
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Images in a batch. Default: as in docs/benchmarks.md."),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of our policy. Default: 2 on CPU, 6 on CUDA.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto for what there is.")] = "auto",
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Least time spent on each contestant.")
    ] = 2.0,
    peers: Annotated[
        str, typer.Option(help="Libraries to compare with, with commas between; all or none.")
    ] = "all",
    space: Annotated[str, typer.Option(help="cifar or imagenet.")] = "cifar",
    breakdown: Annotated[
        bool, typer.Option("--breakdown", help="Also time each operation alone.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A JSON file for all numbers.")] = None,
) -> None:
    """Measure how fast images are augmented, beside other libraries, on one thread.

    Rates are per applied operation, so that methods that apply one and methods that apply several
    can be compared. Other libraries come with pip install 'deepaa[bench]'; one that is missing or
    fails is listed with the reason.
    """
    import logging

    from deepaa.cli.bench.lines import print_tables
    from deepaa.cli.bench.ops import measure_ops
    from deepaa.cli.bench.peers import LIBRARIES
    from deepaa.cli.bench.tables import ops_tables

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("deepaa.cli.bench").setLevel(logging.INFO)  # progress, to stderr
    chosen = {"all": LIBRARIES, "none": ()}.get(peers)
    report = measure_ops(
        sizes=sizes,
        batch=batch,
        layers=layers,
        device=device,
        seconds=seconds,
        peers=[p.strip() for p in peers.split(",")] if chosen is None else chosen,
        space=space,
        breakdown=breakdown,
        out=out,
    )
    print_tables(new_console(), ops_tables(report), out)
