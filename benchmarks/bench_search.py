"""Measures how long a step of the search takes: presets, first and later layers, passes a second.

python benchmarks/bench_search.py --preset fast --device cuda
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import typer

from deepaa import distributed
from deepaa.cli.bench import TextTable, print_tables
from deepaa.cli.bench_measure import report_head
from deepaa.cli.options import check_place
from deepaa.data import LabelledImages, SearchSubset, load_dataset, stratified_splits
from deepaa.models import build_model, channel_statistics, default_model, frozen_copy
from deepaa.policy import Policy
from deepaa.runs import write_json
from deepaa.search import PRESETS, Search, SearchData

COLUMNS = {
    "preset": "{preset}",
    "layer": "{layer}",
    "network": "{network}",
    "precision": "{precision}",
    "passes": "{passes:,}",
    "s/step": "{seconds:.3f}",
    "fastest..slowest": "{fastest:.3f}..{slowest:.3f}",
    "passes/s": "{rate:,.0f}",
    "first step": "{first:.1f} s",
    "memory": "{memory:.2f} GB",
}


class StepTime(NamedTuple):
    """Steps of one preset in one layer."""

    preset: str
    layer: int
    network: str
    precision: str
    first: float  # seconds of the first step: compiling and recording included
    seconds: float  # median of the others
    fastest: float
    slowest: float
    passes: int  # images through the network in a step
    memory: float | None  # peak GB on CUDA
    rate: float  # image passes a second


def measure_search(
    *,
    presets: Sequence[str] = ("fast", "official"),
    data: str | None = None,
    device: str = "auto",
    precision: str | None = None,
    steps: int = 10,
    model: str | None = None,
    settings: dict[str, Any] | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Times of a step in the first and in a later layer, also written to `out` as JSON.

    The network is not trained: its speed does not depend on its weights.

    Args:
        steps: Timed steps per layer, after one that compiles.
        settings: Single fields of `SearchConfig` to change.
    """
    check_place(out, "search.json")
    if unknown := [name for name in presets if name not in PRESETS]:
        raise ValueError(f"no preset {unknown[0]!r}; there are {', '.join(PRESETS)}")
    if steps < 1:
        raise ValueError(f"steps should be at least 1, got {steps}")
    where = distributed.init(device)
    images = load_dataset(data, subset=SearchSubset())
    changes = {**(settings or {}), **({} if precision is None else {"precision": precision})}
    options = {"data": images.name, "steps": steps, "settings": changes, "device": str(where)}
    report = report_head("deepaa-bench-search", [where.type], options)  # the load before the timing
    report["steps"] = [
        step_time(name, layer, images, where, steps, model, changes)._asdict()
        for name in presets
        for layer in (1, 2)
    ]
    if out is not None:
        write_json(out, report)
    return report


def step_time(
    preset: str,
    layer: int,
    data: LabelledImages,
    device: torch.device,
    steps: int,
    model: str | None,
    changes: dict[str, Any],
) -> StepTime:
    """The time of a step in layer 1, or in layer 2 on top of a layer of DeepTA."""
    config = dataclasses.replace(PRESETS[preset].search, **changes)
    # every timed step is like the first one of a layer
    config = dataclasses.replace(config, steps=steps + 1, halvings=0, converged=1.0)
    space = PRESETS[preset].space
    name = model or PRESETS[preset].proxy.model or default_model(data.images, device)
    mean, std = channel_statistics(data.images)
    network = build_model(name, len(data.class_names), mean=mean, std=std)
    _, part, validation, _ = stratified_splits(data.labels)
    parts = (data.images[part], data.labels[part], data.images[validation], data.labels[validation])
    search = Search(
        frozen_copy(network.to(device)),
        SearchData(*(tensor.to(device) for tensor in parts)),
        space,
        config,
    )
    if layer == 2:
        state = search.state()
        state["found"] = Policy.trivial(space, 1).row_probabilities()
        state["layer"] = torch.tensor(2)
        search.load_state(state)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    taken, passes = [], []
    for _, record in zip(range(steps + 1), search, strict=False):
        taken.append(time.perf_counter() - began)
        passes.append(record.passes)
        began = time.perf_counter()
    memory = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None
    rest = taken[1:]
    return StepTime(
        preset,
        layer,
        name,
        search.precision,
        taken[0],
        median(rest),
        min(rest),
        max(rest),
        passes[0],
        memory,
        passes[0] / median(rest),
    )


def search_tables(report: dict[str, Any]) -> list[TextTable]:
    """The report as text."""
    title = f"steps of the search on {report['options']['device']}"
    return [TextTable(title, COLUMNS, report["steps"])]


def main(
    presets: Annotated[
        list[str], typer.Option("--preset", help="A preset to time. May be repeated.")
    ] = ["fast", "official"],  # noqa: B006 - typer reads it, nobody writes to it
    data: Annotated[str | None, typer.Option(help="As for deepaa search.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto for what there is.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps per layer.")] = 10,
    model: Annotated[str | None, typer.Option(help="Another network than the preset's.")] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for all numbers.")] = None,
) -> None:
    """Measure how long a step of the search takes, in the first and in a later layer.

    The first step compiles and is listed apart. The network is not trained for this: its speed does
    not depend on its weights.
    """
    try:
        report = measure_search(
            presets=presets,
            data=data,
            device=device,
            precision=precision,
            steps=steps,
            model=model,
            out=out,
        )
    except ValueError as error:
        sys.exit(f"error: {error}")
    print_tables(search_tables(report), out)


if __name__ == "__main__":
    typer.run(main)
