"""`deepaa search`: the command. What a person sees of it is in `cli_progress.py`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepaa.cli_data import (
    DATA,
    Download,
    OnBadImage,
    OutsideLinks,
    Read,
    Root,
    Size,
    read_choices,
)
from deepaa.cli_progress import refuse_settings
from deepaa.cli_search_plan import Plan

if TYPE_CHECKING:
    from deepaa.run_settings import Settings

WITH_RESUME = {"resume", "data", "device", "checkpoint_seconds", "download", "dry_run"}
WITH_RESUME |= {"verify", "verify_epochs", "tensorboard"}
"""Options that say nothing about what is searched."""
_SPACE, _NETWORK, _RUN = "What is searched", "The network", "The run"


def search(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder of class folders, an .npz file, cifar10, cifar100, or the name of a "
            "torchvision data set. Default: 4,000 embedded images of CIFAR-10. With --resume: "
            "where the images of the run are now.",
            rich_help_panel=DATA,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="The run folder: everything is written there.", rich_help_panel=_RUN),
    ] = Path("run"),
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on with the run in this folder; its settings are used.", rich_help_panel=_RUN
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="fast: the best policy for its cost, the default for images of up to 64 pixels. "
            "imagenet: larger images, their default. demo: minutes on a CPU. official: as the "
            "authors' code. paper: as the paper says.",
            rich_help_panel=_SPACE,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers to find; auto adds layers while they help.", rich_help_panel=_SPACE
        ),
    ] = None,
    max_layers: Annotated[
        int | None, typer.Option(min=1, help="Most layers that auto adds.", rich_help_panel=_SPACE)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps per layer.", rich_help_panel=_SPACE)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of everything random.", rich_help_panel=_SPACE)
    ] = None,
    ops: Annotated[
        str | None,
        typer.Option(
            help="Operations to choose from, as rotate,flip; identity always is one.",
            rich_help_panel=_SPACE,
        ),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option(
            help="Operations that would spoil your images, as flip,invert for digits.",
            rich_help_panel=_SPACE,
        ),
    ] = None,
    operations: Annotated[
        list[str],
        typer.Option(
            metavar="MODULE:NAME",
            help="Your own operation, or a list of them, to choose from too. Its code runs. May "
            "be repeated.",
            rich_help_panel=_SPACE,
        ),
    ] = [],  # noqa: B006 - typer reads it, nobody writes to it
    model: Annotated[
        str | None,
        typer.Option(
            help="The network: small, wrn-40-2, resnet18, torchvision:NAME, timm:NAME, or "
            "MODULE:FUNCTION of your own, called with the number of classes.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Trained weights of --model, .safetensors: no pre-training then.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of pre-training.", rich_help_panel=_NETWORK)
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Images for pre-training, search and validation, as 4000,1000,1000. Default: "
            "half, a quarter and a quarter, up to 4000 or 200 of a class, 35000 and 10000.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of docs/search.md, as heldout=64 or train.lr=0.05. May be repeated.",
            rich_help_panel=_SPACE,
        ),
    ] = [],  # noqa: B006 - as above
    size: Size = None,
    root: Root = None,
    download: Download = False,
    on_bad_image: OnBadImage = "stop",
    outside_links: OutsideLinks = False,
    read: Read = [],  # noqa: B006 - as above
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto for what there is.", rich_help_panel=_NETWORK)
    ] = "auto",
    precision: Annotated[
        str | None,
        typer.Option(help="float32 or bfloat16, for the search.", rich_help_panel=_NETWORK),
    ] = None,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds between two checkpoints, which come after an epoch or a step.",
            rich_help_panel=_RUN,
        ),
    ] = 60.0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Say what would be done and what it costs; no more.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Then train shortly with the policy, crop and flip, and TrivialAugment.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    verify_epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Epochs of each of these trainings. Default: 20, and more of few images.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            help="Log to the run's folder tensorboard too; the history is always kept.",
            rich_help_panel=_RUN,
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
    from deepaa.agreement import ElsewhereError
    from deepaa.presets import LARGE, SMALL
    from deepaa.run_settings import chosen_settings
    from deepaa.sources import lasting

    if resume is not None:
        refuse_settings(context, WITH_RESUME)
        chosen, source = _stored(resume)
        out = resume
    else:
        if weights is not None and model is None:
            raise ValueError("--weights needs --model, the network that they belong to")
        given = {"max_layers": max_layers, "steps": steps, "seed": seed, "precision": precision}
        given = {name: value for name, value in given.items() if value is not None}
        if layers is not None:
            given["layers"] = _depth(layers)
        choose = partial(
            chosen_settings,
            search=given,
            model=model,
            epochs=epochs,
            ops=ops,
            exclude=exclude,
            operations=_own_operations(operations),
            changes=settings,
        )
        chosen = choose(preset or SMALL)
        source = {
            "data": lasting(data),
            "size": size,
            "root": lasting(root and root.resolve()),
            "on_bad_image": on_bad_image,
            "model": model,
            "weights": lasting(weights and weights.resolve()),
            "operations": list(operations),
        }
        if outside_links:  # earlier runs do not have the entry
            source["outside_links"] = True
        if read:
            source["read"] = read_choices(read)
        if splits is not None:
            source["splits"] = _sizes(splits)
    _check_choices(device, source["on_bad_image"])
    where = distributed.init(device)
    try:
        plan = Plan(chosen, source, out, where, checkpoint_seconds, resume is not None)
        if resume is None and preset is None:
            plan.for_large = partial(choose, LARGE)
        plan.verify, plan.verify_epochs = verify, verify_epochs
        plan.tensorboard = tensorboard
        plan.moved = None if resume is None else lasting(data)
        plan.run(download=download, dry_run=dry_run)
    except ElsewhereError:
        raise typer.Exit(2) from None  # another process says why
    finally:
        distributed.shutdown()


def _sizes(splits: str) -> list[int]:
    parts = splits.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--splits should be three numbers, as 4000,1000,1000, got {splits!r}")
    return [int(part) for part in parts]


def _check_choices(device: str, on_bad_image: str) -> None:
    from deepaa.distributed import check_device

    check_device(device)
    if on_bad_image not in ("stop", "skip"):
        raise ValueError(f"--on-bad-image should be stop or skip, got {on_bad_image!r}")


def _stored(folder: Path) -> tuple[Settings, dict[str, Any]]:
    from deepaa.run_settings import is_from_python, settings_of
    from deepaa.runs import read_config

    if not (folder / "config.json").exists():
        reason = "holds no run" if folder.is_dir() else "no such folder"
        raise ValueError(f"{folder}: {reason}, so there is nothing to resume; start with --out")
    config = read_config(folder)
    if is_from_python(config):
        raise ValueError(f"{folder}: this run was started from Python; call find_policy again")
    source = config["source"]
    return settings_of(config, _own_operations(source["operations"])), source


def _own_operations(specs: list[str]) -> Any:
    from deepaa.own_operations import import_operations

    return import_operations(specs)


def _depth(text: str) -> int | None:
    if text != "auto" and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"--layers takes a number from 1, or auto, got {text!r}")
    return None if text == "auto" else int(text)
