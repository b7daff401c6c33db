"""`deepaa report`: the command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepaa.cli.options import Epoch, OwnOperations

if TYPE_CHECKING:
    from deepaa.report import Options, Originals, Results, Subject

POLL_SECONDS = 1.0
"""Between two checks whether a run has something new."""
WRITE_SECONDS = 4.0
"""At least, between two versions of the page."""
_NOTHING: Any = []  # typer reads it, nobody writes to it


def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The folder of a search, going on or not; or a policy, as for show."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write. Default: report.html in the run folder, or here."),
    ] = None,
    results: Annotated[
        list[Path],
        typer.Option(
            metavar="FOLDER",
            help="A run of deepaa train, a folder of several, or a results.json, to compare. "
            "May be repeated.",
        ),
    ] = _NOTHING,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder of images or an .npz to show, instead of the search's own."),
    ] = None,
    images: Annotated[int, typer.Option(min=1, max=16, help="Images to show.")] = 6,
    size: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Side to bring these images to first.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed shows other draws.")] = 0,
    epoch: Epoch = 0,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write every figure as a file.")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Of these files: png, svg, pdf, with commas between.")
    ] = "png",
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Keep the page current until the search ends, or Ctrl-C."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the page even if it is no report.")
    ] = False,
    operations: OwnOperations = _NOTHING,
) -> None:
    """Write a page that shows what a search found, how, and what it does to images.

    One HTML file that needs nothing else: no network, no server. It shows the operations and
    magnitudes of each layer, the course and cost of the search, examples, and, with --results,
    accuracies beside those of other policies.
    """
    from deepaa.report import Options, check_formats, make_figures, parse_formats, save_figures
    from deepaa.train import read_results

    kinds = parse_formats(formats)
    if figures is not None:
        check_formats(kinds)
    subject = _read(source, operations)
    runs = [run for path in results for run in _runs(path)]
    found = [read_results(path) for path in runs]
    for path, (seeds, _) in zip(runs, found, strict=True):
        if not seeds:
            raise ValueError(f"{path}: no seed is finished yet")
    place = out or (subject.folder / "report.html" if subject.folder else Path("report.html"))
    _check_place(place, force=force)
    page = _Page(place, found, Options(data, size, images, seed, epoch))
    written = page.write(subject)
    typer.echo(f"wrote {place}: {written / 1e6:.2f} MB")
    if subject.problem:
        typer.echo(f"the policy is left out: {_with_advice(subject)}", err=True)
    if watch:
        subject = _watch(subject, operations, page)
    if figures is not None:
        files = save_figures(make_figures(subject, found, epoch), figures, kinds)
        typer.echo(f"wrote {len(files)} figures to {figures}")


def _runs(path: Path) -> list[Path]:
    """The run itself, or those in a folder that `deepaa train` filled with several policies."""
    from deepaa.train import RESULTS

    inside = sorted(found.parent for found in path.glob(f"*/{RESULTS}"))
    return [path] if path.is_file() or (path / RESULTS).exists() or not inside else inside


def _read(source: str, operations: list[str]) -> Subject:
    from deepaa.report import read_subject

    try:
        return read_subject(source, operations)
    except ValueError as error:
        if "unknown operation" in str(error) and not operations:
            raise ValueError(f"{error}; here: --operations MODULE:NAME") from error
        raise


def _with_advice(subject: Subject) -> str:
    """Why there is no policy; own operations are imported only when the reader asks for it."""
    own = subject.config.get("source", {}).get("operations") or ["MODULE:NAME"]
    advice = f"; here: --operations {' --operations '.join(own)}"
    return subject.problem + (advice if "unknown operation" in subject.problem else "")


def _check_place(path: Path, *, force: bool) -> None:
    """Only a page that this command wrote is replaced unasked."""
    from deepaa.report import GENERATOR

    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise ValueError(f"--out {path}: a folder; give a name like {path / 'report.html'}")
    if path.exists() and not force:
        with path.open("rb") as file:
            if f'content="{GENERATOR}"'.encode() not in file.read(1000):
                raise ValueError(f"{path} exists and is no report; add --force to replace it")


class _Page:
    """A page that may be written again and again; its example images are read once."""

    def __init__(self, path: Path, results: Results, options: Options) -> None:
        self._path, self._results, self._options = path, results, options
        self._originals: Originals | None = None

    def write(self, subject: Subject, *, live: bool = False) -> int:
        """Write the page and return its size in bytes; a live page reloads itself."""
        from deepaa.report import make_page, originals_of
        from deepaa.runs import write_file

        if self._originals is None and subject.policy is not None:
            self._originals = originals_of(subject, self._options)
        options = self._options._replace(live=live)
        page = make_page(subject, self._results, options, self._originals).encode()
        write_file(self._path, page)
        return len(page)


def _watch(subject: Subject, operations: list[str], page: _Page) -> Subject:
    """Write the page anew whenever the run has something new, until the search ends."""
    from deepaa.report import read_subject, stamp

    folder = subject.folder
    if folder is None or subject.status != "running":
        typer.echo("nothing to watch: no search is running there", err=True)
        return subject
    typer.echo("the page follows the search; Ctrl-C ends that", err=True)
    shown: object = None
    while True:
        now = stamp(folder)
        if now != shown:
            subject, shown = read_subject(subject.name, operations), now
            page.write(subject, live=subject.status == "running")
            if subject.status != "running":
                typer.echo(f"the search is {subject.status}; the page is up to date", err=True)
                return subject
            time.sleep(WRITE_SECONDS)
        time.sleep(POLL_SECONDS)
