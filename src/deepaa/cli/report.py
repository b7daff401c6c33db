"""`deepaa report`: the command."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepaa.cli import options
from deepaa.cli.options import NOTHING

if TYPE_CHECKING:
    from deepaa.report import FoundClasses, Originals, Subject

POLL_SECONDS = 1.0
"""Between two checks whether a run has something new."""
MOST_CLASSES = 20
"""Classes that a page shows on demand."""
WRITE_SECONDS = 4.0
"""At least, between two versions of the page."""


def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The folder of a search or contest, going on or not; or a policy."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: report.html in the run folder.")
    ] = None,
    results: Annotated[
        list[Path],
        typer.Option(
            metavar="FOLDER",
            help="A run of deepaa train, a folder of several, or a results.json, to compare. "
            "May be repeated.",
        ),
    ] = NOTHING,
    data: Annotated[
        Path | None,
        typer.Option(help="Images to show, not the search's: a folder, an .npz, a table..."),
    ] = None,
    columns: options.ShownColumns = None,
    images: Annotated[int, typer.Option(min=1, max=16, help="Images to show.")] = 6,
    classes: Annotated[
        list[str],
        typer.Option(
            "--class",
            metavar="NAME",
            help="A class to show images of, at most twenty. May be repeated. Default: twelve "
            "classes, spread evenly.",
        ),
    ] = NOTHING,
    size: options.ShownSize = None,
    seed: options.DrawSeed = 0,
    epoch: options.Epoch = 0,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write every figure as a file.")
    ] = None,
    formats: Annotated[
        str,
        typer.Option(
            "--format",
            help="Of these files: png, svg, pdf, with commas between. PNG and PDF need "
            "deepaa[report].",
        ),
    ] = "png",
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep the page current until the search ends.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the page even if it is no report.")
    ] = False,
    operations: options.OwnOperations = NOTHING,
) -> None:
    """Write a page that shows which policy won, what a search found, and what it does to images.

    One HTML file that needs nothing else: no network, no server. It shows the contest, the
    operations and magnitudes of each layer, the course and cost of the search, examples, and, with
    --results, accuracies beside those of other policies.
    """
    import deepaa.report as reports
    from deepaa.files import plural
    from deepaa.runs import notify, write_file
    from deepaa.train import read_results

    options.check_columns(columns, data)
    reports.check_pages()
    if len(set(classes)) > MOST_CLASSES:
        raise ValueError(f"--class takes at most {MOST_CLASSES} names, got {len(set(classes))}")
    kinds = reports.parse_formats(formats)
    if figures is not None:
        reports.check_formats(kinds)
    subject = reports.read_subject(source, operations)
    runs = [run for path in results for run in _runs(path)]
    found = [read_results(path) for path in runs]
    for path, (seeds, _) in zip(runs, found, strict=True):
        if not seeds:
            raise ValueError(f"{path}: no seed is finished yet")
    place = out or (subject.folder / "report.html" if subject.folder else Path("report.html"))
    _check_page(place, force=force)
    shown = reports.Options(data, size, images, seed, epoch, classes=classes, columns=columns)
    originals: Originals | None = None
    by_class: FoundClasses | None = None

    def write(subject: Subject) -> int:
        """Write the page and return its size in bytes; its example images are read once."""
        nonlocal originals, by_class
        if originals is None and reports.draws_images(subject, shown):
            config = subject.config_of_images
            if data is None and (named := reports.named_images(config)) is not None:
                notify(f"examples are images of {named}, as the run says; --data takes others")
            originals = reports.originals_of(subject, shown)
            by_class = reports.classes_of(subject, shown)
        live = watch and subject.is_running  # such a page reloads itself
        now = shown._replace(live=live)
        page = reports.make_page(subject, found, now, originals, classes=by_class).encode()
        write_file(place, page)
        return len(page)

    typer.echo(f"wrote {place}: {write(subject) / 1e6:.2f} MB")
    if subject.problem:
        # own operations are imported only when the reader asks for it
        own = subject.config.get("source", {}).get("operations") or ["MODULE:NAME"]
        advice = f"; here: --operations {' --operations '.join(own)}"
        advice = advice if "unknown operation" in subject.problem else ""
        notify(f"the policy is left out: {subject.problem}{advice}")
    for name, reason in subject.lost.items():
        if name == "found" and subject.problem:
            continue  # for the same reason
        what = "the contest" if name == "contest" else "what the search found"
        notify(f"{what} is left out: {reason}")
    if watch:
        subject = _watch(subject, operations, write)
    if figures is not None:
        drawings = reports.make_figures(subject, found, epoch)
        files = reports.save_figures(drawings, figures, kinds)
        typer.echo(f"wrote {plural(len(files), 'figure')} to {figures}")


def _runs(path: Path) -> list[Path]:
    """The run itself, or those in a folder that `deepaa train` filled with several policies."""
    from deepaa.train import RESULTS

    inside = sorted(found.parent for found in path.glob(f"*/{RESULTS}"))
    return [path] if path.is_file() or (path / RESULTS).exists() or not inside else inside


def _check_page(path: Path, *, force: bool) -> None:
    """Refuse to replace a page that this command did not write, unless by `force`."""
    from deepaa.files import open_regular
    from deepaa.report import GENERATOR

    options.check_place(path, "report.html")
    if path.exists() and not force:
        with os.fdopen(open_regular(path), "rb") as file:
            if f'content="{GENERATOR}"'.encode() not in file.read(1000):
                raise ValueError(f"{path} exists and is no report; add --force to replace it")


def _watch(subject: Subject, operations: list[str], write: Callable[[Subject], int]) -> Subject:
    """Write the page anew whenever the run has something new, until the search ends."""
    from deepaa.report import read_subject, stamp

    folder = subject.folder
    if folder is None or not subject.is_running:
        typer.echo("nothing to watch: no search is running there", err=True)
        return subject
    typer.echo("the page follows the search; Ctrl-C ends that", err=True)
    shown: object = None
    while True:
        now = stamp(folder)
        if now != shown:
            subject, shown = read_subject(subject.name, operations), now
            write(subject)
            if not subject.is_running:
                what, end = "the search", subject.status
                if subject.status == "contest stopped":
                    what, end = "the contest", "stopped"
                typer.echo(f"{what} is {end}; the page is up to date", err=True)
                return subject
            time.sleep(WRITE_SECONDS)
        time.sleep(POLL_SECONDS)
