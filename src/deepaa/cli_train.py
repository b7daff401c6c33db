"""`deepaa train`: the command. What a person sees of it is in `cli_train_progress.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from deepaa.runs import Run
    from deepaa.signals import StopRequest
    from deepaa.training_plan import Asked, Plan

WITH_RESUME = {"resume", "device", "checkpoint_seconds", "download", "dry_run"}
WITH_RESUME |= {"parallel", "workers", "seeds", "seed"}
"""Options that say nothing about what is trained."""
_POLICY, _DATA, _TRAINING, _RUN = "The policy", "Data", "The training", "The run"
_NOTHING: Any = []  # typer reads it, nobody writes to it


def train(
    context: typer.Context,
    policy: Annotated[
        str | None,
        typer.Option(
            help="A name (see deepaa policies) or a file; none for no augmentation.",
            rich_help_panel=_POLICY,
        ),
    ] = None,
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
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder of class folders, an .npz file, cifar10, cifar100, or the name of a "
            "torchvision data set. Default: the recipe's, or 4,000 embedded images of CIFAR-10.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(help="Test images, where they lie elsewhere.", rich_help_panel=_DATA),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            help="Test on this share of the training images. Default: the data's test part, or .1.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Side to bring the images to.", rich_help_panel=_DATA),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="Where data sets with a name lie. Default: data.", rich_help_panel=_DATA),
    ] = None,
    download: Annotated[
        bool,
        typer.Option(
            "--download", help="Fetch a data set that is not there.", rich_help_panel=_DATA
        ),
    ] = False,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Decode the files of a folder anew in every epoch, for more images than memory "
            "holds. Default: the recipe's way, or not.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    on_bad_image: Annotated[
        str,
        typer.Option(
            help="What a damaged file does: stop the run, or skip the file.", rich_help_panel=_DATA
        ),
    ] = "stop",
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Network and settings of docs/train.md, as wrn-40-2; other options change them.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The network: small, wrn-40-2, wrn-28-10, resnet50, torchvision:NAME, timm:NAME, "
            "or MODULE:FUNCTION of your own, called with the number of classes.",
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
            "schedule=step with milestones=[60,120,160]. May be repeated.",
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
        typer.Option(min=1, help="Seeds trained at once on one device.", rich_help_panel=_RUN),
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
            help="Go on with the run in this folder; its settings are used.", rich_help_panel=_RUN
        ),
    ] = None,
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
    epoch, their mean and its 95 % confidence interval. The same command again adds seeds.

    Ctrl-C or SIGTERM saves and leaves; --resume goes on, also after a power cut. On several GPUs:
    torchrun --nproc-per-node 4 -m deepaa train ...
    """
    from deepaa import distributed
    from deepaa.training_plan import Asked, stored

    _check_choices(device, on_bad_image, defaults)
    if resume is not None:
        _refuse_settings(context)
        asked, out = stored(resume), resume
    else:
        if policy is None:
            raise ValueError("--policy is needed: a name (see deepaa policies), a file, or none")
        given: dict[str, Any] = {"epochs": epochs, "batch": batch, "lr": lr, "copies": copies}
        given |= {"weight_decay": weight_decay, "warmup_epochs": warmup, "precision": precision}
        given |= {"compile": compiled}
        asked = Asked(
            source={
                "policy": _place(policy) if Path(policy).is_file() else policy,
                "defaults": {None: None, "on": True, "off": False}[defaults],
                "first_layers": first_layers,
                "data": _place(data),
                "test": _place(test),
                "holdout": holdout,
                "size": size,
                "root": _place(root),
                "stream": stream,
                "on_bad_image": on_bad_image,
            },
            recipe=recipe,
            model=model,
            given={name: value for name, value in given.items() if value is not None},
            changes=tuple(settings),
        )
    order = _Order(
        asked,
        out,
        count=seeds,
        seeds=tuple(seed),
        parallel=parallel,
        workers=workers,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume is not None,
        download=download,
    )
    where = distributed.init(device)
    try:
        order.run(where, dry_run=dry_run)
    finally:
        distributed.shutdown()


def _check_choices(device: str, on_bad_image: str, defaults: str | None) -> None:
    import torch

    if device not in ("auto", "cpu") and not device.startswith("cuda"):
        raise ValueError(f"--device should be cpu, cuda or auto, got {device!r}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch finds no CUDA device here")
    if on_bad_image not in ("stop", "skip"):
        raise ValueError(f"--on-bad-image should be stop or skip, got {on_bad_image!r}")
    if defaults not in (None, "on", "off"):
        raise ValueError(f"--defaults should be on or off, got {defaults!r}")


def _refuse_settings(context: typer.Context) -> None:
    """A run that goes on keeps its settings, so an option that would change them is an error."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in WITH_RESUME and source is not None and source.name == "COMMANDLINE":
            raise ValueError(
                f"--resume takes every setting from the run; leave out {parameter.opts[0]}"
            )


def _place(source: str | Path | None) -> str | None:
    """A path that means the same from another folder; a name stays a name."""
    from deepaa.sources import EMBEDDED, SHORT_NAMES

    if source is None or str(source) in (EMBEDDED, *SHORT_NAMES):
        return None if source is None else str(source)
    return str(Path(source).resolve()) if Path(source).exists() else str(source)


@dataclass
class _Order:
    """One call of the command."""

    asked: Asked
    out: Path
    count: int | None  # new seeds
    seeds: tuple[int, ...]  # by number
    parallel: int
    workers: int | None
    checkpoint_seconds: float
    resume: bool
    download: bool

    def run(self, device: torch.device, *, dry_run: bool) -> None:
        """Train, show progress, and print the table of seeds."""
        from deepaa import cli_train_progress, distributed
        from deepaa.signals import StopRequest
        from deepaa.training_plan import Plan
        from deepaa.training_run import open_folder

        plan = Plan.of(self.asked, device, download=self.download, workers=self.workers)
        if self.parallel > 1 and (plan.streams or distributed.world_size() > 1):
            reason = "--stream" if plan.streams else "several processes"
            raise ValueError(f"--parallel {self.parallel} does not go with {reason}")
        plan.model(0)  # what is wrong with it is said before a folder is made
        if dry_run:
            cli_train_progress.foretell(plan, self._new_count())
            return
        with StopRequest() as stop:
            try:
                run = open_folder(self.out, plan.identity(), resume=self.resume)
            except (ValueError, OSError):
                if distributed.is_main():
                    raise
                raise typer.Exit(2) from None  # the main process says why
            try:
                self._train(plan, run, stop)
            finally:
                if run is not None:
                    run.close()

    def _new_count(self) -> int | None:
        nothing_said = self.count is None and not self.seeds and not self.resume
        return 1 if nothing_said else self.count

    def _train(self, plan: Plan, run: Run | None, stop: StopRequest) -> None:
        from deepaa import cli_train_progress
        from deepaa.training_run import TrainingRun, agreed_seeds

        seeds = agreed_seeds(run, count=self._new_count(), given=self.seeds, resume=self.resume)
        if run is not None:
            run.write_policy(plan.policy)
        task = TrainingRun(
            plan.material,
            plan.model,
            plan.policy,
            plan.config,
            seeds,
            device=plan.device,
            parallel=self.parallel,
            run=run,
            facts=plan.facts(),
            checkpoint_seconds=self.checkpoint_seconds,
            stop=lambda: stop.requested,
        )
        try:
            cli_train_progress.follow(task)
        except FloatingPointError as error:
            saved = run is not None and run.latest() is not None
            kept = "the state before it is kept in" if saved else "no epoch had ended: see"
            raise FloatingPointError(f"{error}; {kept} {self.out}") from error
        if task.stopped:
            again = f"deepaa train --resume {self.out}"
            cli_train_progress.say(f"stopped and saved; go on with: {again}")
            raise typer.Exit(stop.exit_code or 143)
        cli_train_progress.conclude(task, self.out)
