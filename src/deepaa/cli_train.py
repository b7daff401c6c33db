"""`deepaa train`: the command. What a person sees of it is in `cli_train_progress.py`."""

from __future__ import annotations

import os
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
from deepaa.cli_policy import OwnOperations
from deepaa.cli_progress import refuse_settings

if TYPE_CHECKING:
    from deepaa.cli_train_work import Order

WITH_RESUME = {"resume", "device", "checkpoint_seconds", "download", "dry_run"}
WITH_RESUME |= {
    "tensorboard",
    "parallel",
    "workers",
    "seeds",
    "seed",
    "data",
    "test",
    "root",
    "scan",
}
"""Options that say nothing about what is trained; images may have moved."""
_POLICY, _TRAINING, _RUN = "The policy", "The training", "The run"
_NOTHING: Any = []  # typer reads it, nobody writes to it


def _list_recipes(wanted: bool) -> None:
    if wanted:
        from deepaa.cli_train_progress import list_recipes

        list_recipes()
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
    from deepaa.agreement import ElsewhereError, by_all
    from deepaa.cli_train_work import Work
    from deepaa.sources import lasting

    _check_choices(device, on_bad_image, defaults)
    given: dict[str, Any] = {"epochs": epochs, "batch": batch, "lr": lr, "copies": copies}
    given |= {"weight_decay": weight_decay, "warmup_epochs": warmup, "precision": precision}
    given |= {"compile": compiled}

    def ordered() -> list[Order]:
        if resume is not None:
            refuse_settings(context, WITH_RESUME)
            places = {"data": data, "test": test, "root": root and root.resolve()}
            return _stored(resume, places)
        source: dict[str, Any] = {
            "defaults": {None: None, "on": True, "off": False}[defaults],
            "first_layers": first_layers,
            "data": lasting(data),
            "test": lasting(test),
            "holdout": holdout,
            "size": size,
            "root": lasting(root and root.resolve()),
            "stream": stream,
            "on_bad_image": on_bad_image,
        }
        if operations:
            source["operations"] = list(operations)
        if outside_links:  # earlier runs do not have the entry, and may get new seeds
            source["outside_links"] = True
        if read:
            source["read"] = read_choices(read)
        settings_given = {name: value for name, value in given.items() if value is not None}
        return _new_orders(
            policy,
            source,
            out,
            {"recipe": recipe, "model": model, "given": settings_given, "changes": tuple(settings)},
        )

    where = distributed.init(device)
    try:
        work = Work(
            by_all(ordered),
            out if resume is None else resume,
            count=seeds,
            seeds=tuple(seed),
            parallel=parallel,
            workers=workers,
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            resume=resume is not None,
            download=download,
            scan=scan,
        )
        work.run(where, dry_run=dry_run)
    except ElsewhereError:
        raise typer.Exit(2) from None  # another process says why
    finally:
        distributed.shutdown()


def _check_choices(device: str, on_bad_image: str, defaults: str | None) -> None:
    from deepaa.distributed import check_device

    problem = None
    try:
        check_device(device)
        if on_bad_image not in ("stop", "skip"):
            raise ValueError(f"--on-bad-image should be stop or skip, got {on_bad_image!r}")
        if defaults not in (None, "on", "off"):
            raise ValueError(f"--defaults should be on or off, got {defaults!r}")
    except ValueError as error:
        problem = error
    if problem is not None and os.environ.get("RANK", "0") != "0":
        raise typer.Exit(2)  # all processes were started alike, and the first says why
    if problem is not None:
        raise problem


def _stored(folder: Path, places: dict[str, str | Path | None]) -> list[Order]:
    """The run in a folder, or those of several policies in it."""
    from deepaa.cli_train_work import Order
    from deepaa.sources import lasting
    from deepaa.training_folder import inner_folders
    from deepaa.training_plan import stored

    now = {name: lasting(place) for name, place in places.items()}
    return [Order(stored(each, now), each) for each in inner_folders(folder) or [folder]]


def _new_orders(
    policies: list[str], source: dict[str, Any], out: Path, rest: dict[str, Any]
) -> list[Order]:
    """A training of each policy: in the folder itself, or each of several in one below it."""
    from deepaa.cli_train_work import Order, folder_names
    from deepaa.training_plan import Asked

    if not policies:
        raise ValueError("--policy is needed: a name (see deepaa policies), a file, or none")
    folders = [out]
    if len(policies) > 1:
        folders = [out / name for name in folder_names(policies)]
        if (out / "config.json").exists():
            raise ValueError(f"{out}: holds a run of one policy; several need a folder of folders")
    return [
        Order(Asked(source={"policy": _policy_place(policy), **source}, **rest), folder)
        for policy, folder in zip(policies, folders, strict=True)
    ]


def _policy_place(policy: str) -> str:
    """A file that means the same from another folder; a name is a name, whatever lies around."""
    from deepaa.training_plan import is_policy_name

    named = is_policy_name(policy) or not Path(policy).is_file()
    return policy if named else str(Path(policy).resolve())
