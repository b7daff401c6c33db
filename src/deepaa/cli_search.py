"""`deepaa search`: the command, its progress and its last words."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from deepaa.pipeline import PolicySearch
    from deepaa.presets import ProxyConfig
    from deepaa.search_config import SearchConfig
    from deepaa.sources import LabelledImages
    from deepaa.space import Space

ADVICE = """\
Use it:

    from deepaa import DeepAutoAugment
    augment = DeepAutoAugment({path!r})
    images = augment(images)          # PIL, numpy, or uint8 (N, C, H, W) on CPU or CUDA

It stands instead of your own crop, flip and cutout: remove those. Resize first, normalise after."""


def search(
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder of class folders, an .npz, cifar10, cifar100, or a torchvision data "
            "set. Default: the embedded images."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The run folder.")] = Path("run"),
    resume: Annotated[
        Path | None, typer.Option(help="A run folder to go on with; other options are its own.")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="fast, official, paper, imagenet or demo (docs/search.md).")
    ] = "fast",
    layers: Annotated[
        str | None, typer.Option(help="Layers to find, or auto to add layers while they help.")
    ] = None,
    max_layers: Annotated[
        int | None, typer.Option(min=1, help="Most layers when auto adds them.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps per layer.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    ops: Annotated[
        str | None, typer.Option(help="Operations to choose from, with commas between.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Operations to leave out: flip,invert.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The network: a name, or module:function of your own with --weights."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Trained weights, .safetensors: no pre-training then.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of pre-training.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Side to resize the images to.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where named data sets lie.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a named data set.")] = False,
    on_bad_image: Annotated[str, typer.Option(help="stop or skip.")] = "stop",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Most seconds of work that a kill may cost.")
    ] = 60.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and how long it takes.")
    ] = False,
) -> None:
    """Find an augmentation policy for labelled images.

    A small network is trained on a part of the data. Then layer after layer is found: each is the
    distribution over transformations that turns the gradient of an augmented image towards the
    gradient of other images of its class. The run folder holds the policy, its history and a
    checkpoint: Ctrl-C saves, --resume goes on.
    """
    from deepaa import distributed
    from deepaa.runs import read_config

    where = distributed.init(device)
    source: dict[str, Any] = {
        "data": data,
        "size": size,
        "root": None if root is None else str(root),
        "on_bad_image": on_bad_image,
        "model": model,
        "weights": None if weights is None else str(weights),
    }
    if resume is not None:
        from deepaa.run_settings import settings_of

        config = read_config(resume)
        settings, out, source = settings_of(config), resume, config["source"]
    else:
        changes = {
            "max_layers": max_layers,
            "steps": steps,
            "seed": seed,
            "precision": precision,
            "layers": layers,
        }
        settings = _settings(preset, changes, model, epochs, ops, exclude)
    from deepaa.sources import load_dataset

    images = load_dataset(
        source["data"],
        size=source["size"],
        root=source["root"],
        download=download,
        on_bad_image=source["on_bad_image"],
    )
    _run(images, settings, source, out, where, checkpoint_seconds, resume is not None, dry_run)


def _settings(
    preset: str,
    changes: dict[str, Any],
    model: str | None,
    epochs: int | None,
    ops: str | None,
    exclude: str | None,
) -> tuple[SearchConfig, ProxyConfig, Space]:
    from deepaa.presets import PRESETS, SPACES

    if preset not in PRESETS:
        raise ValueError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    chosen = PRESETS[preset]
    given = {name: value for name, value in changes.items() if value is not None}
    if "layers" in given:
        text = given["layers"]
        if text != "auto" and not text.isdecimal():
            raise ValueError(f"--layers takes a number or auto, got {text!r}")
        given["layers"] = None if text == "auto" else int(text)
    proxy = chosen.proxy if model is None else dataclasses.replace(chosen.proxy, model=model)
    if epochs is not None:
        proxy = dataclasses.replace(proxy, train=dataclasses.replace(proxy.train, epochs=epochs))
    space = SPACES[chosen.space]
    if ops is not None:
        space = space.only("identity", *(name.strip() for name in ops.split(",")))
    if exclude is not None:
        space = space.without(*(name.strip() for name in exclude.split(",")))
    return dataclasses.replace(chosen.search, **given), proxy, space


def _run(
    images: LabelledImages,
    settings: tuple[SearchConfig, ProxyConfig, Space],
    source: dict[str, Any],
    out: Path,
    device: Any,
    checkpoint_seconds: float,
    resume: bool,
    dry_run: bool,
) -> None:
    from deepaa import distributed
    from deepaa.pipeline import PolicySearch, load_model
    from deepaa.run_settings import run_config
    from deepaa.runs import Run

    config, proxy, space = settings
    network = None
    if source["weights"] is not None:
        path, classes = Path(source["weights"]), len(images.class_names)
        network = load_model(source["model"] or "wrn-40-2", path, classes, images, config.seed)
    work: dict[str, Any] = {"space": space, "search": config, "proxy": proxy, "model": network}
    work |= {"device": device, "checkpoint_seconds": checkpoint_seconds}
    if dry_run:
        _foretell(PolicySearch(images, **work))
        return
    run = None
    if distributed.is_main():
        identity = run_config(
            search=config,
            proxy=proxy,
            space=space,
            fingerprint=images.fingerprint,
            source=source,
        )
        run = Run.open_or_create(out, identity, resume=resume)
    try:
        _follow(PolicySearch(images, run=run, **work), out)
    finally:
        if run is not None:
            run.close()


def _follow(task: PolicySearch, out: Path) -> None:
    """Run the search with progress on stderr; a signal saves and leaves."""
    from deepaa import distributed
    from deepaa.search import LayerRecord
    from deepaa.signals import StopRequest

    progress = _Progress(task)
    with StopRequest() as stop:
        for record in task:
            progress.show(record)
            if distributed.any_rank(stop.requested):
                task.save()
                if distributed.is_main():
                    _say(f"stopped and saved; go on with: deepaa search --resume {out}")
                raise typer.Exit(stop.exit_code or 143)
            if isinstance(record, LayerRecord) and distributed.is_main():
                progress.layer(record)
    if distributed.is_main():
        _conclude(task, out)


def _conclude(task: PolicySearch, out: Path) -> None:
    """The policy, where it is, a picture, and how to use it."""
    from rich.console import Console

    from deepaa.report.preview import preview_grid
    from deepaa.report.tables import policy_table
    from deepaa.report.terminal import policy_lines

    console = Console(highlight=False, markup=False, emoji=False)
    path, picture = out / "policy.json", out / "preview.png"
    for line in policy_lines(policy_table(task.policy, "policy", top=4), console.encoding):
        console.print(line)
    images = task.data.images[task.splits.search[:8]]
    preview_grid(images, task.policy, title="policy").save(picture)
    typer.echo(f"\npolicy   {path}\npreview  {picture}\nhistory  {out / 'history.jsonl'}\n")
    typer.echo(ADVICE.format(path=str(path)))


def _foretell(task: PolicySearch) -> None:
    from deepaa.pipeline import foretold_passes, split_counts, step_seconds

    each, passes = step_seconds(task), foretold_passes(task.config, len(task.space))
    counts = split_counts(task.splits)
    training = 0 if task.given else counts["pretrain"] * task.proxy.train.epochs
    shape = " x ".join(map(str, task.data.images.shape[1:]))
    megabytes = task.data.images.nbytes / 1e6
    parameters = sum(p.numel() for p in task.model.parameters())
    lines = {
        "data": f"{task.data.name}: {len(task.data.labels):,} of {shape}, {megabytes:,.0f} MB",
        "splits": ", ".join(f"{name} {count:,}" for name, count in counts.items()),
        "space": f"{len(task.space)} transformations of {len(task.space.operations)} operations",
        "network": f"{parameters:,} parameters on {task.device}",
        "passes": f"{passes:,} in the search at most, {training:,} in pre-training",
        "time": f"about {_duration((passes + training) * each)} at {1 / each:,.0f} passes a second",
    }
    for name, text in lines.items():
        typer.echo(f"{name:8} {text}")


class _Progress:
    """One line that is rewritten on a terminal; a plain line now and then elsewhere."""

    def __init__(self, task: PolicySearch) -> None:
        self.task, self.began, self.last = task, time.monotonic(), 0.0
        self.terminal = sys.stderr.isatty()
        self.done = 0

    def show(self, record: Any) -> None:
        from deepaa import distributed
        from deepaa.search import LayerRecord
        from deepaa.train import EpochRecord

        if not distributed.is_main() or isinstance(record, LayerRecord):
            return
        config, proxy = self.task.config, self.task.proxy
        if isinstance(record, EpochRecord):
            of = proxy.train.epochs
            text = f"pre-training {record.epoch + 1}/{of}  accuracy {record.accuracy:.3f}"
            text += f"  left {_duration(record.seconds * (of - record.epoch - 1))}"
            whole = record.epoch + 1 == of
        else:
            top = ", ".join(f"{name} {share:.2f}" for name, share in record.top)
            layers = config.layers or config.max_layers
            rest = config.steps - record.step + config.steps * (layers - record.layer)
            text = f"layer {record.layer}/{layers}  step {record.step}/{config.steps}  "
            text += f"similarity {record.similarity:.3f}  {top}  "
            text += f"left {_duration(record.seconds * rest)}"
            whole = record.step == config.steps
        now = time.monotonic()
        if self.terminal:
            sys.stderr.write(f"\r\x1b[2K{text[:118]}")
            sys.stderr.flush()
        elif whole or now - self.last >= 10:
            self.last = now
            _say(text)

    def layer(self, record: Any) -> None:
        verdict = "kept" if record.kept else "dropped"
        if self.terminal:
            sys.stderr.write("\r\x1b[2K")
        _say(
            f"layer {record.layer} {verdict}: {record.reason}; similarity improvement "
            f"{record.improvement_mean:+.4f} (DeepTA {record.deepta_mean:+.4f})"
        )


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
