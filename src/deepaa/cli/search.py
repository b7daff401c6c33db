"""`deepaa search`: its options, the loop that runs it, and what it prints in the end."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepaa.cli import options
from deepaa.cli.options import NOTHING, network_option, run_option

if TYPE_CHECKING:
    from deepaa.runs import StopRequest
    from deepaa.search import PolicySearch, ProvedSearch, SearchRequest

WITH_RESUME = {"resume", "data", "device", "checkpoint_seconds", "download", "dry_run"}
WITH_RESUME |= {"tensorboard", "operations", "model", "method"}
"""Options that say nothing about what is searched, or name its code once more."""
OF_SEARCH = ("max_layers", "steps", "seed", "precision", "protect")
"""Options that are fields of `SearchConfig`; `layers` is one too, but may be auto."""
OF_LAYERS = ("layers", "max_layers", "steps")
"""Options that only gradient matching has."""
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
    method: Annotated[
        str | None,
        _space(
            metavar="NAME",
            help="What finds the policy: deepaa, randaugment, fast-aa, pba, dada, random, or a "
            "Searcher of yours as MODULE:NAME, whose code runs. Default: deepaa.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        _space(
            metavar="A,B,...",
            help="Several methods, each in a folder of its own under --out; what they found then "
            "meets in one contest, and one table compares them.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        _space(
            metavar="PASSES",
            help="What each of --methods may cost, as 15M: images forward through a network; "
            "one back as well, or with a slope, counts 3.",
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
    protect: Annotated[
        bool | None,
        _space(
            "--protect/--no-protect",
            help="Leave out operations that turn one class into another, as a network says that "
            "was trained without them. On, but for official and paper.",
        ),
    ] = None,
    model: options.Model = None,
    weights: Annotated[
        Path | None,
        network_option(
            help="A safetensors file of --model, where every training begins; no pre-training "
            "then, unless its last layer is for other classes."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        network_option(
            min=1, help="Epochs of pre-training; with --method, of each of its trainings."
        ),
    ] = None,
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
    groups: options.Groups = None,
    columns: options.Columns = None,
    device: options.Device = "auto",
    precision: options.Precision = None,
    checkpoint_seconds: options.CheckpointSeconds = 60.0,
    dry_run: options.DryRun = False,
    contest: Annotated[
        options.Switch,
        run_option(help="Train with the found policy and others in the end, and take the best."),
    ] = options.Switch.on,
    contest_passes: options.ContestPasses = None,
    target_epochs: options.TargetEpochs = None,
    tensorboard: options.TensorBoard = False,
) -> None:
    """Find the augmentation policy that helps on your labelled images, if one does.

    A network is trained on a part of the images. Then layer after layer is found: the distribution
    over transformations that turns the gradient of an augmented image towards the gradient of
    other images of its class. Last comes a contest by training between the found policy, policies
    that need no search, and no augmentation, judged by images that took part in nothing before.

    Ctrl-C or SIGTERM saves and leaves; --resume goes on, also after a power cut. On several GPUs:
    torchrun --nproc-per-node 4 -m deepaa search ...
    """
    from deepaa.cli.several import method_names, passes_of, search_several
    from deepaa.data import DataSpec
    from deepaa.distributed import is_main, joined, run_on_all
    from deepaa.ops import import_operations
    from deepaa.runs import ProgressLine, StopRequest
    from deepaa.search import (
        ContestConfig,
        SearchRequest,
        SettingsRequest,
        base_preset,
        demo_contest,
        forecast,
        open_search,
        opened_method,
        search_cost,
        settings_for,
    )

    params = context.params
    held = ContestConfig(contest_passes, target_epochs) if contest == "on" else None

    def requested(method: str | None = method, *, judged: bool = contest == "on") -> SearchRequest:
        if resume is not None:
            options.refuse_settings(context, WITH_RESUME)
            return SearchRequest.from_run(
                resume, data, operations=operations, model=model, method=method
            )
        fields = {name: params[name] for name in OF_SEARCH if params[name] is not None}
        found, changes = None, settings
        if method is not None:
            names = [] if methods is None else method_names(methods)
            given = settings_for(method, names, settings)
            found, others = opened_method(method, preset, given, epochs)
            changes = list(others)
        unused = [name for name in OF_LAYERS if params[name] is not None]
        if found is not None and methods is None and unused:
            option = f"--{unused[0].replace('_', '-')}"
            raise ValueError(f"{option} is of gradient matching; {found.name} has its own: --set")
        settings_request = SettingsRequest(
            preset=preset if found is None else base_preset(preset),
            fields=fields if layers is None else {**fields, "layers": _depth(layers)},
            model=model,
            epochs=epochs if found is None else None,
            operations=tuple(import_operations(operations)),
            ops=ops,
            exclude=exclude,
            changes=changes,
        )
        return SearchRequest(
            settings_request,
            DataSpec.from_options(**{name: params[name] for name in options.OF_DATA}),
            weights=weights,
            splits=None if splits is None else _sizes(splits),
            operations=tuple(operations),
            method=found,
            contest=held if judged else None,
        )

    stop, folder = StopRequest(), resume or out
    with joined(device) as where, ProgressLine() as line:
        if methods is not None:
            if resume is not None or method is not None:
                raise ValueError("--methods goes on by itself; it takes no --resume, no --method")
            with stop:
                search_several(
                    {name: requested(name, judged=False) for name in method_names(methods)},
                    out,
                    budget=None if budget is None else passes_of(budget),
                    contest=held and demo_contest(held, preset),
                    are_passes_asked=contest_passes is not None,
                    dry_run=dry_run,
                    stop=stop,
                    device=where,
                    download=download,
                    checkpoint_seconds=checkpoint_seconds,
                )
            return
        if budget is not None:
            raise ValueError("--budget is for --methods, which compares searches of equal cost")
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
            show=line.update,
        ) as opened:
            line.clear()
            _advise(request, opened.search)
            if dry_run:
                options.print_facts(forecast(opened, search_cost(opened)) if is_main() else {})
                return
            with stop:  # before this, while images are read, a signal ends the command at once
                again = options.named_again(
                    request.operations,
                    request.settings.model,
                    request.method and request.method.name,
                )
                _follow(opened, folder, stop, tensorboard=tensorboard, again=again)
            if opened.config is None and is_main():
                _advise_contest(request, opened.search, folder)


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
        advice = "--preset imagenet is made for large images"
        if search.device.type == "cpu":
            advice = "--size 32 suits it and is quick; --preset imagenet takes days on a CPU"
        notify(
            f"hint: images of {width} x {height} with the CIFAR space (cutout of 16 pixels, crop "
            f"by 4); {advice}"
        )


def _follow(
    proved: ProvedSearch, out: Path, stop: StopRequest, *, tensorboard: bool, again: str
) -> None:
    """Run the search and its contest, show records as they come, and print the result.

    `again` is what the command that goes on needs beside the folder.
    """
    from deepaa.distributed import is_main
    from deepaa.runs import FOLDER, TensorBoardLog, notify
    from deepaa.search import SearchProgress, cheaper, search_cost

    cost = None
    if not proved.is_over:
        cost = search_cost(proved)
        notify(cost.text())
        if (hint := cheaper(proved, cost)) is not None:
            notify(f"hint: {hint}")
        if not proved.is_searched:
            notify(proved.too_few)
        if (note := proved.search.training_note) is not None:
            notify(note)
        for line in proved.weaknesses:
            notify(f"warning: {line}")
        if proved.config is not None and (shortness := proved.plan().shortness) is not None:
            notify(f"contest: {shortness} (--contest-passes)")
    log = TensorBoardLog(out / FOLDER) if tensorboard and is_main() else None
    progress = SearchProgress(proved, cost)
    try:
        for record in proved:
            progress(record)
            if log is not None:
                log.add(record)
    finally:
        progress.clear()
        if log is not None:
            log.close()
    if proved.stopped:
        notify(f"stopped and saved; go on with: deepaa search --resume {out}{again}")
        raise typer.Exit(stop.exit_code or 143)
    if is_main():
        _print_result(proved, out)


def _print_result(proved: ProvedSearch, out: Path) -> None:
    """Print what was found and what the contest says, where all is, and how to use it."""
    from deepaa.cli.contest import print_contest, print_use
    from deepaa.report import png_bytes, policy_lines, policy_table, preview_grid
    from deepaa.runs import write_file

    search, found = proved.search, out / "found.json"
    console = options.plain_console()
    if proved.is_searched:
        if not proved.found.depth:
            typer.echo("no layer helped: the search found nothing")
        for line in policy_lines(policy_table(proved.found, str(found), top=4), console.encoding):
            console.print(line)
    images, picture = search.data.images[search.splits.search[:8]], out / "preview.png"
    write_file(picture, png_bytes(preview_grid(images, proved.policy, title="policy")))
    files: dict[str, object] = {"policy": out / "policy.json", "found": found, "preview": picture}
    files |= {"history": out / "history.jsonl", "a page": f"deepaa report {out}"}
    if not proved.is_searched:  # so nothing was found
        del files["found"]
    typer.echo("\n" + "\n".join(f"{name:8} {place}" for name, place in files.items()))
    if proved.contest is not None:
        print_contest(proved.contest, out)
        return
    print_use(proved.policy, out / "policy.json")


def _advise_contest(request: SearchRequest, search: PolicySearch, out: Path) -> None:
    """Print the command that proves what was found, as the contest of the search would have."""
    from deepaa.cli.contest import contest_words
    from deepaa.runs import print_line

    typer.echo()
    print_line("Nothing is proved: without a contest nobody knows whether it helps. Ask:")
    typer.echo(shlex.join(contest_words(request, search, out / "found.json")))
