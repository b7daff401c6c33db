"""The command `deepaa train`: its options, and the requests that they mean."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepaa.cli import options
from deepaa.cli.options import NOTHING, data_option, run_option

if TYPE_CHECKING:
    from deepaa.train import TrainRequest

WITH_RESUME = {"resume", "device", "checkpoint_seconds", "download", "dry_run", "tensorboard"}
WITH_RESUME |= {"parallel", "workers", "seeds", "seed", "data", "test", "root", "scan"}
WITH_RESUME |= {"operations", "model"}
"""Options that say nothing about what is trained, or name its code once more; images may have
moved."""
OF_TRAINING = ["epochs", "batch", "lr", "weight_decay", "warmup_epochs", "copies"]
OF_TRAINING += ["end_epochs", "precision", "compile"]
"""Options that are fields of `TrainConfig`."""
OF_RUN = ["parallel", "workers", "checkpoint_seconds", "download", "tensorboard", "scan", "dry_run"]
"""Options that are fields of `RunOptions`."""
_policy = partial(typer.Option, rich_help_panel="The policy")
_training = partial(typer.Option, rich_help_panel="The training")


def _list_recipes(wanted: bool) -> None:
    if wanted:
        from deepaa.cli.train_plan import print_recipes

        print_recipes()
        raise typer.Exit


def train(
    context: typer.Context,
    policy: Annotated[
        list[str],
        _policy(
            help="A name (see deepaa policies) or a file; none for no augmentation. May be "
            "repeated: each then gets a folder in --out; later ones join them."
        ),
    ] = NOTHING,
    defaults: Annotated[
        options.Switch | None,
        _policy(
            help="Crop, flip and, on small images, cutout behind the policy. Default: as its "
            "authors evaluate it."
        ),
    ] = None,
    first_layers: Annotated[int | None, _policy(min=1, help="Only so many layers of it.")] = None,
    operations: options.OwnOperations = NOTHING,
    data: options.Data = None,
    test: Annotated[str | None, data_option(help="Test images, where they lie elsewhere.")] = None,
    holdout: Annotated[
        float | None,
        data_option(help="Share of the images to test on. Default: the data's test part, or .1."),
    ] = None,
    size: options.Size = None,
    root: options.Root = None,
    download: options.Download = False,
    stream: Annotated[
        bool | None,
        data_option(
            "--stream/--no-stream",
            help="Decode the files of a folder, a table or shards anew in every epoch, for more "
            "images than memory holds. Default: the recipe's way, or not.",
        ),
    ] = None,
    on_bad_image: options.OnBadImage = "stop",
    outside_links: options.OutsideLinks = False,
    read: options.Read = NOTHING,
    groups: options.Groups = None,
    columns: options.Columns = None,
    scan: Annotated[
        bool,
        data_option(
            "--scan/--no-scan",
            help="With --stream, decode all files once before the first epoch of a run; otherwise "
            "a damaged one stops the epoch that meets it.",
        ),
    ] = True,
    recipe: Annotated[
        str | None, _training(help="A recipe of docs/train.md, as wrn-40-2; options change it.")
    ] = None,
    list_recipes: Annotated[
        bool,
        _training(
            "--list-recipes",
            is_eager=True,
            callback=_list_recipes,
            help="Show the recipes with their commands, and exit.",
        ),
    ] = False,
    model: options.Model = None,
    epochs: Annotated[int | None, _training(min=1, help="Default: the recipe's, or 200.")] = None,
    batch: Annotated[int | None, _training(min=1, help="Images per step.")] = None,
    lr: Annotated[float | None, _training(help="Highest learning rate.")] = None,
    weight_decay: Annotated[float | None, _training(help="Weight decay.")] = None,
    warmup_epochs: Annotated[
        float | None, _training("--warmup", help="Epochs in which the learning rate rises.")
    ] = None,
    end_epochs: Annotated[
        int | None,
        _training(min=0, help="Last epochs with no more than the policy's crop and flip."),
    ] = None,
    copies: Annotated[
        int | None, _training(min=1, help="Batch augmentation: draws of each image in a batch.")
    ] = None,
    precision: options.Precision = None,
    compile: Annotated[
        bool | None,
        _training(
            "--compile/--no-compile",
            help="Compile the network first. Default: for long trainings on CUDA.",
        ),
    ] = None,
    settings: Annotated[
        list[str],
        _training(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, as label_smoothing=0.1, clip=0, decay_norm=true, or "
            "schedule=step with milestones=[60,120]. May be repeated.",
        ),
    ] = NOTHING,
    seeds: Annotated[int | None, run_option(min=1, help="So many new seeds. Default: 1.")] = None,
    seed: Annotated[list[int], run_option(help="A seed by number. May be repeated.")] = NOTHING,
    parallel: Annotated[
        int, run_option(min=1, help="Networks trained at once on one device: seeds, and policies.")
    ] = 1,
    workers: Annotated[
        int | None,
        run_option(min=0, help="Processes that augment instead of the device, or decode a stream."),
    ] = None,
    device: options.Device = "auto",
    out: Annotated[Path, run_option(help="The run folder; later seeds join it.")] = Path("trained"),
    resume: Annotated[
        Path | None,
        run_option(
            help="Go on with the run in this folder, or all of them in it; their settings are "
            "used. Images that moved are found with --data, --test and --root."
        ),
    ] = None,
    tensorboard: options.TensorBoard = False,
    checkpoint_seconds: options.CheckpointSeconds = 60.0,
    dry_run: options.DryRun = False,
) -> None:
    """Train a network with a policy and test it, once per seed.

    The folder gets results.json: the accuracy of every seed on the test images after the last
    epoch, their mean and its 95 % confidence interval. The same command again adds seeds. Several
    policies get a folder each in --out, and one table at the end; a policy that is given later with
    the same --out and settings is trained beside them.

    Ctrl-C or SIGTERM saves the whole epochs and leaves; --resume goes on, also after a power cut.
    On several GPUs: torchrun --nproc-per-node 4 -m deepaa train ...
    """
    from deepaa.cli.train_run import RunOptions, run_trainings
    from deepaa.data import DataSpec, absolute_source
    from deepaa.distributed import joined, run_on_all
    from deepaa.train import PolicySpec, SeedRequest, TrainRequest, runs_in, stored_request

    params = context.params

    def requested() -> list[TrainRequest]:
        if resume is not None:
            options.refuse_settings(context, WITH_RESUME)
            moved = {"data": absolute_source(data), "test": absolute_source(test)}
            moved["root"] = None if root is None else str(root.resolve())
            return [
                stored_request(folder, moved, operations=operations, model=model)
                for folder in runs_in(resume)
            ]
        around = None if defaults is None else defaults == "on"
        request = TrainRequest(
            out,
            PolicySpec("", around, first_layers, tuple(operations)),
            DataSpec.from_options(**{name: params[name] for name in options.OF_DATA}),
            test=absolute_source(test),
            holdout=holdout,
            stream=stream,
            recipe=recipe,
            model=model,
            given={name: params[name] for name in OF_TRAINING if params[name] is not None},
            changes=tuple(settings),
        )
        return _for_each_policy(request, policy)

    with joined(device) as where:
        asked = run_on_all(lambda: SeedRequest(seeds, tuple(seed), resume is not None))
        run_options = RunOptions(resume or out, asked, **{name: params[name] for name in OF_RUN})
        run_trainings(run_on_all(requested), run_options, where)


def _for_each_policy(request: TrainRequest, policies: list[str]) -> list[TrainRequest]:
    """The request with each policy: in its folder, or in a folder below it.

    Below it are several, and one that joins several.
    """
    from deepaa.policy import parse_policy_ref

    if not policies:
        raise ValueError("--policy is needed: a name (see deepaa policies), a file, or none")
    out = request.folder
    requests: dict[Path, TrainRequest] = {}
    several = len(policies) > 1 or (out.is_dir() and _holds_several(out))
    if several and (out / "config.json").exists():
        raise ValueError(f"{out}: holds a run of one policy; several need a folder of folders")
    for policy in policies:
        is_file = not parse_policy_ref(policy).is_name and Path(policy).is_file()
        name = str(Path(policy).resolve()) if is_file else policy
        folder = out / _label(name) if several else out
        if folder in requests:
            raise ValueError(
                f"--policy {policy}: two policies would be trained in a folder {folder.name}; "
                "train them with an --out each"
            )
        spec = replace(request.policy, name=name)
        requests[folder] = replace(request, folder=folder, policy=spec)
    return list(requests.values())


def _label(policy: str) -> str:
    """The folder of one policy among several: its name, or that of its file or its search."""
    path = Path(policy)
    if not path.is_absolute():
        return re.sub(r"[^\w.=,+-]+", "-", policy)
    # a policy that a search found is called as its run
    of_run = {"policy.json": path.parent.name, "found.json": f"{path.parent.name}-found"}
    return of_run.get(path.name, path.stem)


def _holds_several(folder: Path) -> bool:
    """Whether a folder has trainings in it, each in a folder that is named after its policy."""
    from deepaa.runs import CONFIG, read_config, stored
    from deepaa.train import runs_in

    def policy_of(run: Path) -> str:
        config = read_config(run)
        if config.get("request") is None:  # made in Python
            return ""
        return str(stored(config, "request.places.policy", str, run / CONFIG))

    inside = [run for run in runs_in(folder) if run != folder]
    return bool(inside) and all(run.name == _label(policy_of(run)) for run in inside)
