"""`deepaa search`: its options, and the loop that runs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepaa.cli.options import (
    Download,
    OnBadImage,
    OutsideLinks,
    Read,
    Root,
    Size,
    data_option,
    refuse_settings,
)

if TYPE_CHECKING:
    from deepaa.runs import StopRequest
    from deepaa.search import PolicySearch, SearchRequest

WITH_RESUME = {"resume", "data", "device", "checkpoint_seconds", "download", "dry_run"}
WITH_RESUME |= {"verify", "verify_epochs", "tensorboard"}
"""Options that say nothing about what is searched."""
_space = partial(typer.Option, rich_help_panel="What is searched")
_network = partial(typer.Option, rich_help_panel="The network")
_run_option = partial(typer.Option, rich_help_panel="The run")


def search(
    context: typer.Context,
    data: Annotated[
        str | None,
        data_option(
            help="A folder of class folders, an .npz file, cifar10, cifar100, or the name of a "
            "torchvision data set. Default: 4,000 embedded images of CIFAR-10. With --resume: "
            "where the images of the run are now."
        ),
    ] = None,
    out: Annotated[Path, _run_option(help="The run folder: everything is written there.")] = Path(
        "run"
    ),
    resume: Annotated[
        Path | None, _run_option(help="Go on with the run in this folder; its settings are used.")
    ] = None,
    preset: Annotated[
        str | None,
        _space(
            help="fast: the best policy for its cost, the default for images of up to 64 pixels. "
            "imagenet: larger images, their default. demo: minutes on a CPU. official: as the "
            "authors' code. paper: as the paper says."
        ),
    ] = None,
    layers: Annotated[
        str | None, _space(help="Layers to find; auto adds layers while they help.")
    ] = None,
    max_layers: Annotated[int | None, _space(min=1, help="Most layers that auto adds.")] = None,
    steps: Annotated[int | None, _space(min=1, help="Steps per layer.")] = None,
    seed: Annotated[int | None, _space(help="Seed of everything random.")] = None,
    ops: Annotated[
        str | None,
        _space(help="Operations to choose from, as rotate,flip; identity always is one."),
    ] = None,
    exclude: Annotated[
        str | None,
        _space(help="Operations that would spoil your images, as flip,invert for digits."),
    ] = None,
    operations: Annotated[
        list[str],
        _space(
            metavar="MODULE:NAME",
            help="Your own operation, or a list of them, to choose from too. Its code runs. May "
            "be repeated.",
        ),
    ] = [],  # noqa: B006 - typer reads it, nobody writes to it
    model: Annotated[
        str | None,
        _network(
            help="The network: small, wrn-40-2, resnet18, torchvision:NAME, timm:NAME, or "
            "MODULE:FUNCTION of your own, called with the number of classes."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        _network(help="Trained weights of --model, .safetensors: no pre-training then."),
    ] = None,
    epochs: Annotated[int | None, _network(min=1, help="Epochs of pre-training.")] = None,
    splits: Annotated[
        str | None,
        _network(
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
    ] = [],  # noqa: B006 - as above
    size: Size = None,
    root: Root = None,
    download: Download = False,
    on_bad_image: OnBadImage = "stop",
    outside_links: OutsideLinks = False,
    read: Read = [],  # noqa: B006 - as above
    device: Annotated[str, _network(help="cpu, cuda, or auto for what there is.")] = "auto",
    precision: Annotated[str | None, _network(help="float32 or bfloat16, for the search.")] = None,
    checkpoint_seconds: Annotated[
        float,
        _run_option(
            min=0.0, help="Seconds between two checkpoints, which come after an epoch or a step."
        ),
    ] = 60.0,
    dry_run: Annotated[
        bool, _run_option("--dry-run", help="Say what would be done and what it costs; no more.")
    ] = False,
    verify: Annotated[
        bool,
        _run_option(
            "--verify",
            help="Then train shortly with the policy, crop and flip, and TrivialAugment.",
        ),
    ] = False,
    verify_epochs: Annotated[
        int | None,
        _run_option(
            min=1, help="Epochs of each of these trainings. Default: 20, and more of few images."
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        _run_option(
            "--tensorboard",
            help="Log to the run's folder tensorboard too; the history is always kept.",
        ),
    ] = False,
) -> None:
    """Find an augmentation policy for labelled images.

    A network is trained on a part of the images. Then layer after layer is found: the distribution
    over transformations that turns the gradient of an augmented image towards the gradient of
    other images of its class. No other network is trained.

    Ctrl-C or SIGTERM saves and leaves; --resume goes on, also after a power cut. On several GPUs:
    torchrun --nproc-per-node 4 -m deepaa search ...
    """
    from deepaa import distributed
    from deepaa.data import DataSpec
    from deepaa.distributed import OtherRankError, check_device
    from deepaa.ops import import_operations
    from deepaa.search import SearchRequest, SettingsRequest

    check_device(device)
    if resume is not None:
        refuse_settings(context, WITH_RESUME)
        request = SearchRequest.from_run(resume)
        if data is not None:
            request = request.with_data_at(data)
    else:
        given = {"max_layers": max_layers, "steps": steps, "seed": seed, "precision": precision}
        fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if layers is not None:
            fields["layers"] = _depth(layers)
        request = SearchRequest(
            SettingsRequest(
                preset=preset,
                fields=fields,
                model=model,
                epochs=epochs,
                operations=tuple(import_operations(operations)),
                ops=ops,
                exclude=exclude,
                changes=settings,
            ),
            DataSpec.from_options(
                data,
                size=size,
                root=root,
                on_bad_image=on_bad_image,
                outside_links=outside_links,
                read=read,
            ),
            weights=weights,
            splits=None if splits is None else _sizes(splits),
            operations=tuple(operations),
        )
    try:
        _run(
            request,
            resume or out,
            device=distributed.init(device),
            resume=resume is not None,
            dry_run=dry_run,
            download=download,
            checkpoint_seconds=checkpoint_seconds,
            verify_epochs=(verify_epochs or 0) if verify else None,
            tensorboard=tensorboard,
        )
    except OtherRankError:
        raise typer.Exit(2) from None  # another process says why
    finally:
        distributed.shutdown()


def _run(
    request: SearchRequest,
    out: Path,
    *,
    dry_run: bool,
    verify_epochs: int | None,
    tensorboard: bool,
    **options: Any,
) -> None:
    """Search, show progress and results, and train with the policy if that is asked for.

    Args:
        verify_epochs: None for no training, 0 for as many epochs as the images take.
        options: Further arguments of `open_search`.
    """
    from deepaa.cli.search_results import show_policy
    from deepaa.distributed import is_main
    from deepaa.runs import StopRequest, notify
    from deepaa.search import forecast, open_search

    stop = StopRequest()
    options["stop"] = lambda: stop.requested
    with open_search(request, out, dry_run=dry_run, **options) as search:
        _advise(request, search)
        if dry_run:
            for name, text in forecast(search).items() if is_main() else ():
                typer.echo(f"{name:8} {text}")
            return
        with stop:  # before this, while images are read, a signal ends the command at once
            _follow(search, out, tensorboard=tensorboard)
            if search.stopped:
                notify(f"stopped and saved; go on with: deepaa search --resume {out}")
                raise typer.Exit(stop.exit_code or 143)
            if is_main():
                show_policy(search, out)
                if verify_epochs is not None:
                    _verify(request, search, out, verify_epochs, stop)


def _follow(search: PolicySearch, out: Path, *, tensorboard: bool) -> None:
    """Run the search to its end and show its records as they come."""
    from deepaa.distributed import is_main
    from deepaa.runs import FOLDER, TensorBoardLog
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


def _verify(
    request: SearchRequest, search: PolicySearch, out: Path, epochs: int, stop: StopRequest
) -> None:
    from deepaa.cli.search_results import show_trial
    from deepaa.runs import StopAskedError, notify
    from deepaa.search import run_trial, trial_images

    assert request.data is not None
    trial = trial_images(search, request.data.load_test())
    epochs = epochs or trial.default_epochs
    try:
        show_trial(run_trial(search, trial, epochs, lambda: stop.requested), trial, epochs, out)
    except StopAskedError:
        again = f"deepaa search --resume {out} --verify"
        notify(f"stopped; the policy is there, compare it with: {again}")
        raise typer.Exit(stop.exit_code) from None


def _sizes(splits: str) -> tuple[int, int, int]:
    parts = splits.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--splits should be three numbers, as 4000,1000,1000, got {splits!r}")
    return int(parts[0]), int(parts[1]), int(parts[2])


def _depth(text: str) -> int | None:
    if text != "auto" and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"--layers takes a number from 1, or auto, got {text!r}")
    return None if text == "auto" else int(text)
