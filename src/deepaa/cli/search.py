"""`deepaa search`: its options, the loop that runs it, and what it prints in the end."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepaa.cli import options
from deepaa.cli.options import NOTHING, network_option, run_option

if TYPE_CHECKING:
    from deepaa.runs import StopRequest
    from deepaa.search import PolicySearch, SearchRequest

WITH_RESUME = {"resume", "data", "device", "checkpoint_seconds", "download", "dry_run"}
WITH_RESUME |= {"verify", "verify_epochs", "tensorboard", "operations", "model"}
"""Options that say nothing about what is searched, or name its code once more."""
OF_SEARCH = ("max_layers", "steps", "seed", "precision")
"""Options that are fields of `SearchConfig`; `layers` is one too, but may be auto."""
ADVICE = """\
Use it:

    from deepaa import DeepAutoAugment
    augment = DeepAutoAugment({path!r})
    images = augment(images)  # PIL, numpy, or uint8 (N, C, H, W) on CPU or CUDA

It stands instead of your own crop, flip and cutout: remove those. Resize first, normalise after."""
CAUTION = """
One short training of each proves little: seeds alone move such figures by about a point. Train as \
long as you mean to, with several seeds, before you decide."""
_space = partial(typer.Option, rich_help_panel="What is searched")


def search(
    context: typer.Context,
    data: options.Data = None,
    out: Annotated[Path, run_option(help="The run folder; all is written there.")] = Path("run"),
    resume: Annotated[Path | None, run_option(help="Go on with this run and its settings.")] = None,
    preset: Annotated[
        str | None,
        _space(
            help="fast: the best policy for its cost, the default for images of up to 64 pixels. "
            "imagenet: larger images, their default. demo: minutes on a CPU. official: as the "
            "authors' code. paper: as the paper says."
        ),
    ] = None,
    layers: Annotated[str | None, _space(help="Layers to find; auto: as many as help.")] = None,
    max_layers: Annotated[int | None, _space(min=1, help="Most layers that auto adds.")] = None,
    steps: Annotated[int | None, _space(min=1, help="Steps per layer.")] = None,
    seed: Annotated[int | None, _space(help="Seed of everything random.")] = None,
    ops: Annotated[
        str | None, _space(help="Operations to choose from, as rotate,flip, beside identity.")
    ] = None,
    exclude: Annotated[
        str | None, _space(help="Operations that spoil your images, as flip,invert for digits.")
    ] = None,
    operations: Annotated[
        list[str],
        _space(
            metavar="MODULE:NAME",
            help="Your own operation, or a list of them, to choose from too. Its code runs. May "
            "be repeated.",
        ),
    ] = NOTHING,
    model: options.Model = None,
    weights: Annotated[
        Path | None, network_option(help="Trained weights of --model: no pre-training then.")
    ] = None,
    epochs: Annotated[int | None, network_option(min=1, help="Epochs of pre-training.")] = None,
    splits: Annotated[
        str | None,
        network_option(
            metavar="A,B,C",
            help="Images for pre-training, search and validation, as 4000,1000,1000. Default: "
            "half, a quarter and a quarter, up to 4000 or 200 of a class, 35000 and 10000.",
        ),
    ] = None,
    settings: Annotated[
        list[str],
        _space(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of docs/search.md, as heldout=64 or train.lr=0.05. May be repeated.",
        ),
    ] = NOTHING,
    size: options.Size = None,
    root: options.Root = None,
    download: options.Download = False,
    on_bad_image: options.OnBadImage = "stop",
    outside_links: options.OutsideLinks = False,
    read: options.Read = NOTHING,
    device: options.Device = "auto",
    precision: options.Precision = None,
    checkpoint_seconds: options.CheckpointSeconds = 60.0,
    dry_run: options.DryRun = False,
    verify: Annotated[
        bool, run_option("--verify", help="Then train with it, crop and flip, and TrivialAugment.")
    ] = False,
    verify_epochs: Annotated[
        int | None, run_option(min=1, help="Epochs of each. Default: 20, and more of few images.")
    ] = None,
    tensorboard: options.TensorBoard = False,
) -> None:
    """Find an augmentation policy for labelled images.

    A network is trained on a part of the images. Then layer after layer is found: the distribution
    over transformations that turns the gradient of an augmented image towards the gradient of
    other images of its class. No other network is trained.

    Ctrl-C or SIGTERM saves and leaves; --resume goes on, also after a power cut. On several GPUs:
    torchrun --nproc-per-node 4 -m deepaa search ...
    """
    from deepaa.data import DataSpec
    from deepaa.distributed import is_main, joined, run_on_all
    from deepaa.ops import import_operations
    from deepaa.runs import StopRequest
    from deepaa.search import SearchRequest, SettingsRequest, forecast, open_search

    params = context.params

    def requested() -> SearchRequest:
        if resume is not None:
            options.refuse_settings(context, WITH_RESUME)
            return SearchRequest.from_run(resume, data, operations=operations, model=model)
        fields = {name: params[name] for name in OF_SEARCH if params[name] is not None}
        settings_request = SettingsRequest(
            preset=preset,
            fields=fields if layers is None else {**fields, "layers": _depth(layers)},
            model=model,
            epochs=epochs,
            operations=tuple(import_operations(operations)),
            ops=ops,
            exclude=exclude,
            changes=settings,
        )
        return SearchRequest(
            settings_request,
            DataSpec.from_options(**{name: params[name] for name in options.OF_DATA}),
            weights=weights,
            splits=None if splits is None else _sizes(splits),
            operations=tuple(operations),
        )

    stop, folder = StopRequest(), resume or out
    with joined(device) as where:
        request = run_on_all(requested)
        with open_search(
            request,
            folder,
            device=where,
            resume=resume is not None,
            dry_run=dry_run,
            download=download,
            checkpoint_seconds=checkpoint_seconds,
            stop=lambda: stop.requested,
        ) as opened:
            _advise(request, opened)
            if dry_run:
                for name, text in forecast(opened).items() if is_main() else ():
                    typer.echo(f"{name:8} {text}")
                return
            with stop:  # before this, while images are read, a signal ends the command at once
                again = options.named_again(request.operations, request.settings.model)
                _follow(opened, folder, stop, tensorboard=tensorboard, again=again)
                if verify and is_main():
                    _verify(request, opened, folder, verify_epochs, stop)


def _sizes(splits: str) -> tuple[int, int, int]:
    parts = splits.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--splits should be three numbers, as 4000,1000,1000, got {splits!r}")
    return int(parts[0]), int(parts[1]), int(parts[2])


def _depth(text: str) -> int | None:
    if text != "auto" and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"--layers takes a number from 1, or auto, got {text!r}")
    return None if text == "auto" else int(text)


def _advise(request: SearchRequest, search: PolicySearch) -> None:
    """Name the preset that large images get, or should get."""
    from deepaa.models import is_large
    from deepaa.runs import notify

    if not is_large(search.data.images):
        return
    height, width = search.data.images.shape[-2:]
    if request.settings.preset is None and request.settings.space is None:
        notify(f"images of {width} x {height}: --preset imagenet")
    if any(op.name == "crop" for op in search.space.operations):
        notify(
            f"hint: images of {width} x {height} with the CIFAR space (cutout of 16 pixels, crop "
            "by 4); --preset imagenet is made for large images"
        )


def _follow(
    search: PolicySearch, out: Path, stop: StopRequest, *, tensorboard: bool, again: str
) -> None:
    """Run the search, show its records as they come, and print the policy in the end.

    `again` is what the command that goes on needs beside the folder.
    """
    from deepaa.distributed import is_main
    from deepaa.runs import FOLDER, TensorBoardLog, notify
    from deepaa.search import SearchProgress

    log = TensorBoardLog(out / FOLDER) if tensorboard and is_main() else None
    progress = SearchProgress(search)
    try:
        for record in search:
            progress(record)
            if log is not None:
                log.add(record)
    finally:
        progress.clear()
        if log is not None:
            log.close()
    if search.stopped:
        notify(f"stopped and saved; go on with: deepaa search --resume {out}{again}")
        raise typer.Exit(stop.exit_code or 143)
    if is_main():
        _print_policy(search, out)


def _print_policy(search: PolicySearch, out: Path) -> None:
    """Print the policy, where it is, and how to use it; write a picture of it."""
    from deepaa.report import png_bytes, policy_lines, policy_table, preview_grid
    from deepaa.runs import notify, write_file

    path, picture = out / "policy.json", out / "preview.png"
    if not search.policy.depth:
        notify("no layer helped: the policy changes nothing")
    console = options.plain_console()
    for line in policy_lines(policy_table(search.policy, str(path), top=4), console.encoding):
        console.print(line)
    images = search.data.images[search.splits.search[:8]]
    write_file(picture, png_bytes(preview_grid(images, search.policy, title="policy")))
    typer.echo(
        f"\npolicy   {path}\npreview  {picture}\nhistory  {out / 'history.jsonl'}\n"
        f"a page   deepaa report {out}\n\n{ADVICE.format(path=str(path))}"
    )


def _verify(
    request: SearchRequest, search: PolicySearch, out: Path, epochs: int | None, stop: StopRequest
) -> None:
    """Train shortly with the policy and others, print a table of it, and keep it in a file."""
    from deepaa.data import DataSpec
    from deepaa.runs import StopAskedError, notify, write_json
    from deepaa.search import run_trial, trial_epochs, trial_images

    assert isinstance(request.data, DataSpec)
    trial = trial_images(search, request.data.load_test())
    images, count = len(trial.train.labels), len(trial.test.labels)
    epochs = epochs or trial_epochs(images)
    typer.echo(
        f"\n{epochs} epochs on {images:,} images, accuracy on {count:,} "
        f"{trial.how}:\n\n{'':16}{'accuracy':>10}{'loss':>8}{'seconds':>9}"
    )
    rows: list[dict[str, Any]] = []
    try:
        for result in run_trial(search, trial, epochs, lambda: stop.requested):
            loss = result.loss if math.isfinite(result.loss) else None  # as JSON has it
            rows.append({**result._asdict(), "loss": loss})
            accuracy = f"{100 * result.accuracy:.1f} %"
            typer.echo(f"{result.name:16}{accuracy:>10}{result.loss:8.3f}{result.seconds:9.0f}")
    except StopAskedError:
        again = f"deepaa search --resume {out} --verify"
        notify(f"stopped; the policy is there, compare it with: {again}")
        raise typer.Exit(stop.exit_code) from None
    typer.echo(CAUTION)
    report = {"epochs": epochs, "train": images, "test": count, "results": rows}
    write_json(out / "verify.json", report)
