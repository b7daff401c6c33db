"""The command `deepaa train`: its options, and the requests that they mean."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepaa.cli.options import (
    DATA,
    Download,
    OnBadImage,
    OutsideLinks,
    OwnOperations,
    Read,
    Root,
    Size,
    refuse_settings,
)

if TYPE_CHECKING:
    from deepaa.train import TrainRequest

WITH_RESUME = {"resume", "device", "checkpoint_seconds", "download", "dry_run", "tensorboard"}
WITH_RESUME |= {"parallel", "workers", "seeds", "seed", "data", "test", "root", "scan"}
"""Options that say nothing about what is trained; images may have moved."""
_POLICY, _TRAINING, _RUN = "The policy", "The training", "The run"
_NOTHING: Any = []  # typer reads it, nobody writes to it


def _list_recipes(wanted: bool) -> None:
    if wanted:
        from deepaa.cli.train_output import print_recipes

        print_recipes()
        raise typer.Exit


def train(
    context: typer.Context,
    policy: Annotated[
        list[str],
        typer.Option(
            help="A name (see deepaa policies) or a file; none for no augmentation. May be "
            "repeated: each then gets a folder in --out.",
            rich_help_panel=_POLICY,
        ),
    ] = _NOTHING,
    defaults: Annotated[
        str | None,
        typer.Option(
            metavar="on|off",
            help="Crop, flip and, on small images, cutout behind the policy. Default: as its "
            "authors evaluate it.",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    first_layers: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many layers of the policy.", rich_help_panel=_POLICY),
    ] = None,
    operations: OwnOperations = _NOTHING,
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder of class folders, an .npz file, cifar10, cifar100, or the name of a "
            "torchvision data set. Default: the recipe's, or 4,000 embedded images of CIFAR-10.",
            rich_help_panel=DATA,
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(help="Test images, where they lie elsewhere.", rich_help_panel=DATA),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            help="Test on this share of the training images. Default: the data's test part, or .1.",
            rich_help_panel=DATA,
        ),
    ] = None,
    size: Size = None,
    root: Root = None,
    download: Download = False,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Decode the files of a folder anew in every epoch, for more images than memory "
            "holds. Default: the recipe's way, or not.",
            rich_help_panel=DATA,
        ),
    ] = None,
    on_bad_image: OnBadImage = "stop",
    outside_links: OutsideLinks = False,
    read: Read = [],  # noqa: B006 - typer reads it, nobody writes to it
    scan: Annotated[
        bool,
        typer.Option(
            "--scan/--no-scan",
            help="With --stream, decode all files once before the first epoch of a run; otherwise "
            "a damaged one stops the epoch that meets it.",
            rich_help_panel=DATA,
        ),
    ] = True,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Network and settings of docs/train.md, as wrn-40-2; other options change them.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    list_recipes: Annotated[
        bool,
        typer.Option(
            "--list-recipes",
            is_eager=True,
            callback=_list_recipes,
            help="Show the recipes with their commands, and exit.",
            rich_help_panel=_TRAINING,
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="The network: small, wrn-40-2, wrn-28-10, shake-shake-26-2x96d, resnet50, "
            "torchvision:NAME, timm:NAME, or MODULE:FUNCTION of your own, called with the number "
            "of classes. Default: the recipe's, or small on a CPU and wrn-40-2 on CUDA, or "
            "resnet18 for images over 64 pixels.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Default: the recipe's, or 200.", rich_help_panel=_TRAINING),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Images per step.", rich_help_panel=_TRAINING)
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Highest learning rate.", rich_help_panel=_TRAINING)
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay.", rich_help_panel=_TRAINING)
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(help="Epochs in which the learning rate rises.", rich_help_panel=_TRAINING),
    ] = None,
    copies: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Batch augmentation: so many draws of each image in a batch.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="float32 or bfloat16. Default: bfloat16 on CUDA.", rich_help_panel=_TRAINING
        ),
    ] = None,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Compile the network first. Default: for long trainings on CUDA.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, as label_smoothing=0.1, clip=0, decay_norm=true, or "
            "schedule=step with milestones=[60,120]. May be repeated.",
            rich_help_panel=_TRAINING,
        ),
    ] = _NOTHING,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="So many new seeds. Default: 1.", rich_help_panel=_RUN),
    ] = None,
    seed: Annotated[
        list[int],
        typer.Option(help="A seed by number. May be repeated.", rich_help_panel=_RUN),
    ] = _NOTHING,
    parallel: Annotated[
        int,
        typer.Option(
            min=1,
            help="Networks trained at once on one device: seeds, and policies.",
            rich_help_panel=_RUN,
        ),
    ] = 1,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that augment on the CPU instead of the device; with --stream, that "
            "decode.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto for what there is.", rich_help_panel=_RUN)
    ] = "auto",
    out: Annotated[
        Path, typer.Option(help="The run folder; later seeds join it.", rich_help_panel=_RUN)
    ] = Path("trained"),
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on with the run in this folder, or all of them in it; their settings are "
            "used. Images that moved are found with --data, --test and --root.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Log to the run's folder tensorboard too.", rich_help_panel=_RUN
        ),
    ] = False,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds between two checkpoints, which come after an epoch.",
            rich_help_panel=_RUN,
        ),
    ] = 60.0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be done; no more.", rich_help_panel=_RUN),
    ] = False,
) -> None:
    """Train a network with a policy and test it, once per seed.

    The folder gets results.json: the accuracy of every seed on the test images after the last
    epoch, their mean and its 95 % confidence interval. The same command again adds seeds. Several
    policies get a folder each in --out, and one table at the end.

    Ctrl-C or SIGTERM saves the whole epochs and leaves; --resume goes on, also after a power cut.
    On several GPUs: torchrun --nproc-per-node 4 -m deepaa train ...
    """
    from deepaa import distributed
    from deepaa.cli.train_run import RunOptions, run_trainings
    from deepaa.data import DataSpec, absolute_source
    from deepaa.distributed import OtherRankError, run_on_all
    from deepaa.train import PolicySpec, SeedRequest, TrainRequest

    _check_device(device)

    def requested() -> list[TrainRequest]:
        if resume is not None:
            refuse_settings(context, WITH_RESUME)
            return _stored_requests(resume, data, test, root)
        given = {
            "epochs": epochs,
            "batch": batch,
            "lr": lr,
            "weight_decay": weight_decay,
            "warmup_epochs": warmup,
            "copies": copies,
            "precision": precision,
            "compile": compiled,
        }
        request = TrainRequest(
            out,
            PolicySpec("", _on_or_off(defaults), first_layers, tuple(operations)),
            DataSpec.from_options(
                data,
                size=size,
                root=root,
                on_bad_image=on_bad_image,
                outside_links=outside_links,
                read=read,
            ),
            test=absolute_source(test),
            holdout=holdout,
            stream=stream,
            recipe=recipe,
            model=model,
            given={name: value for name, value in given.items() if value is not None},
            changes=tuple(settings),
        )
        return _for_each_policy(request, policy)

    where = distributed.init(device)
    try:
        options = RunOptions(
            out if resume is None else resume,
            SeedRequest(seeds, tuple(seed), resume is not None),
            parallel=parallel,
            workers=workers,
            checkpoint_seconds=checkpoint_seconds,
            download=download,
            tensorboard=tensorboard,
            scan=scan,
            dry_run=dry_run,
        )
        run_trainings(run_on_all(requested), options, where)
    except OtherRankError:
        raise typer.Exit(2) from None  # another process says why
    finally:
        distributed.shutdown()


def _check_device(device: str) -> None:
    from deepaa.distributed import check_device

    try:
        check_device(device)
    except ValueError:
        if os.environ.get("RANK", "0") != "0":
            raise typer.Exit(2) from None  # the first of the processes says why
        raise


def _on_or_off(text: str | None) -> bool | None:
    if text not in (None, "on", "off"):
        raise ValueError(f"--defaults should be on or off, got {text!r}")
    return None if text is None else text == "on"


def _stored_requests(
    folder: Path, data: str | None, test: str | None, root: Path | None
) -> list[TrainRequest]:
    """The request of the run in a folder, or those of the runs in it; images may have moved."""
    from deepaa.data import absolute_source
    from deepaa.train import runs_in, stored_request

    moved = {"data": absolute_source(data), "test": absolute_source(test)}
    moved["root"] = None if root is None else str(root.resolve())
    return [stored_request(run, moved) for run in runs_in(folder)]


def _for_each_policy(request: TrainRequest, policies: list[str]) -> list[TrainRequest]:
    """The request with each policy: in its folder, or each of several in a folder below it."""
    from deepaa.policy import parse_policy_ref

    if not policies:
        raise ValueError("--policy is needed: a name (see deepaa policies), a file, or none")
    out = request.folder
    requests: list[TrainRequest] = []
    if len(policies) > 1 and (out / "config.json").exists():
        raise ValueError(f"{out}: holds a run of one policy; several need a folder of folders")
    for policy in policies:
        is_file = not parse_policy_ref(policy).is_name and Path(policy).is_file()
        path = Path(policy).resolve()
        folder = out
        if len(policies) > 1:
            folder = out / (_file_label(path) if is_file else re.sub(r"[^\w.=,+-]+", "-", policy))
        if folder in [earlier.folder for earlier in requests]:
            raise ValueError(
                f"--policy {policy}: two policies would be trained in a folder {folder.name}; "
                "train them with an --out each"
            )
        spec = replace(request.policy, name=str(path) if is_file else policy)
        requests.append(replace(request, folder=folder, policy=spec))
    return requests


def _file_label(path: Path) -> str:
    """What a policy file is called: its name, or that of the run that it was found in."""
    return path.parent.name if path.name == "policy.json" else path.stem
