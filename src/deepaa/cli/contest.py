"""`deepaa contest`: its options, the loop that runs it, and what it prints in the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepaa.cli import options
from deepaa.cli.options import NOTHING, network_option, run_option

if TYPE_CHECKING:
    from deepaa.policy import Policy
    from deepaa.runs import StopRequest
    from deepaa.search import (
        ContestProgress,
        ContestRun,
        PolicySearch,
        ProvedSearch,
        SearchProgress,
        SearchRequest,
    )

USE = """\
Use it:

    from deepaa import DeepAutoAugment
    augment = DeepAutoAugment({path!r})
    images = augment(images)  # PIL, numpy, or uint8 (N, C, H, W) on CPU or CUDA
"""


def contest(
    context: typer.Context,
    policy: Annotated[
        list[str],
        typer.Option(
            help="A policy that takes part: a name of deepaa policies, or a file. May be repeated."
        ),
    ] = NOTHING,
    forms: Annotated[
        bool,
        typer.Option(
            "--forms/--no-forms",
            help="Let a file that a search has written, as found.json, take part spread, at half "
            "of its strength and with fewer layers, too, as in the contest of a search.",
        ),
    ] = True,
    usual: Annotated[
        bool,
        typer.Option(
            "--usual/--no-usual",
            help="Let TrivialAugment, RandAugment and crop, flip and cutout take part, too.",
        ),
    ] = True,
    protect: options.Protect = True,
    operations: options.OwnOperations = NOTHING,
    data: options.Data = None,
    groups: options.Groups = None,
    columns: options.Columns = None,
    size: options.Size = None,
    root: options.Root = None,
    download: options.Download = False,
    on_bad_image: options.OnBadImage = "stop",
    outside_links: options.OutsideLinks = False,
    read: options.Read = NOTHING,
    model: options.Model = None,
    weights: Annotated[
        Path | None,
        network_option(help="A safetensors file of --model from which every training begins."),
    ] = None,
    settings: Annotated[
        list[str],
        network_option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of the trainings, as lr=0.05 or batch=64. May be repeated.",
        ),
    ] = NOTHING,
    passes: options.ContestPasses = None,
    target_epochs: options.TargetEpochs = None,
    device: options.Device = "auto",
    out: Annotated[
        Path, run_option(help="The run folder; the same command again goes on with it.")
    ] = Path("contest"),
    checkpoint_seconds: options.CheckpointSeconds = 60.0,
    dry_run: options.DryRun = False,
) -> None:
    """Find out by training which policy helps on your images, if any does.

    A part of the images is set aside: no network trains on it. Every candidate trains the same
    network from scratch, first shortly, then those that are not far behind for longer. One half of
    the judge images chooses. Whether the winner is better than no augmentation and than crop and
    flip is told by the other half, and by networks that chose nothing. Test images are not looked
    at.

    Ctrl-C or SIGTERM saves and leaves; the same command goes on.
    """
    from deepaa.data import DataSpec
    from deepaa.distributed import joined, world_size
    from deepaa.runs import ProgressLine, StopRequest
    from deepaa.search import (
        ContestConfig,
        ContestProgress,
        ContestRequest,
        contest_forecast,
        open_contest,
    )

    params = context.params
    request = ContestRequest(
        DataSpec.from_options(**{name: params[name] for name in options.OF_DATA}),
        tuple(options.absolute_policy(each) for each in policy),
        forms=forms,
        usual=usual,
        model=model,
        weights=weights,
        changes=tuple(settings),
        contest=ContestConfig(passes, target_epochs),
        protect=protect,
        operations=tuple(operations),
    )
    stop = StopRequest()
    with (
        joined(device) as where,
        ProgressLine() as line,
        open_contest(
            request,
            out,
            device=where,
            dry_run=dry_run,
            download=download,
            checkpoint_seconds=checkpoint_seconds,
            stop=lambda: stop.requested,
            show=line.update,
        ) as opened,
    ):
        line.clear()
        if world_size() > 1:
            raise ValueError("deepaa contest runs in one process, not under torchrun")
        options.print_facts(contest_forecast(opened), err=not dry_run)
        if dry_run:
            return
        with stop:
            follow(opened, ContestProgress(opened), stop)
        print_contest(opened, out)


def follow(
    run: ContestRun | ProvedSearch,
    progress: ContestProgress | SearchProgress,
    stop: StopRequest,
) -> None:
    """Run a contest, or one of several searches, to its end and show its records."""
    from deepaa.runs import notify

    try:
        for record in run:
            progress(record)  # type: ignore[arg-type]  # each shows the records of its own
    finally:
        progress.clear()
    if run.stopped:
        notify("stopped and saved; go on with the same command")
        raise typer.Exit(stop.exit_code or 143)


def print_contest(run: ContestRun, out: Path) -> None:
    """Print who took part and how it ended, where the winner is, and how to use it."""
    from deepaa.report import contest_lines, contest_table

    console = options.plain_console()
    width = min(console.width, 100)
    typer.echo()
    for line in contest_lines(contest_table(run.document), width, console.encoding):
        console.print(line)
    print_use(run.result.policy, out / "policy.json")


def contest_words(request: SearchRequest, search: PolicySearch, policy: Path) -> list[str]:
    """The command that holds the contest which a search has left out, on what it found."""
    from torch import cuda

    from deepaa.data import DataSpec
    from deepaa.models import default_model
    from deepaa.search import ContestConfig, demo_contest, training_changes

    assert isinstance(request.data, DataSpec)
    words = ["deepaa", "contest", "--policy", str(policy), *options.data_words(request.data)]
    name, short = search.network_name, demo_contest(ContestConfig(), request.settings.preset)
    given = {
        "--model": None if name == default_model(search.data.images, search.device) else name,
        "--weights": request.weights,
        "--passes": short.passes,
        "--device": "cpu" if search.device.type == "cpu" and cuda.is_available() else None,
    }
    if given["--weights"] is not None:  # which need its name
        given["--model"] = name
    words += [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    for own in request.operations:
        words += ["--operations", own]
    for change in training_changes(search.proxy.train):
        words += ["--set", change]
    return words if search.config.protect else [*words, "--no-protect"]


def print_use(policy: Policy, path: Path) -> None:
    """Print how a policy is used, and what it takes the place of."""
    from deepaa.policy import own_advice
    from deepaa.runs import print_line

    if any(name != "identity" and uses for name, uses in policy.expected_uses().items()):
        typer.echo(f"\n{USE.format(path=str(path))}")
        print_line(f"{own_advice(policy)} Resize first, normalise after.")
