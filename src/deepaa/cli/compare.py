"""`deepaa compare`: the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepaa.cli.options import POLICY_HELP, AsJson, Epoch, OwnOperations, new_console

if TYPE_CHECKING:
    from PIL.Image import Image

    from deepaa.report import Comparison

_NONE: list[str] = []  # typer reads it, nobody writes to it
FIGURES = (".png", ".svg", ".pdf", ".html")


def compare(
    policies: Annotated[
        list[str], typer.Argument(metavar="POLICY...", help=f"Two or more. {POLICY_HELP}")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A figure of the operations and their magnitudes: .png, .svg or .pdf; .html is a "
            "page with samples and tables as well."
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="A picture of the same images under each policy, such as samples.png."),
    ] = None,
    as_json: AsJson = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Images for the samples: a folder, one image or a .npz file. Default: CIFAR-10 "
            "images that come with the package."
        ),
    ] = None,
    images: Annotated[int, typer.Option(min=1, max=100, help="Images in the samples.")] = 4,
    draws: Annotated[int, typer.Option(min=1, max=100, help="Draws of each image.")] = 3,
    seed: Annotated[int, typer.Option(help="Another seed gives other draws.")] = 0,
    size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Resize and cut the images to this side first."),
    ] = None,
    space: Annotated[
        str,
        typer.Option(
            help="cifar or imagenet: the default augmentation of methods that run on one, and the "
            "ranges of names that have both."
        ),
    ] = "cifar",
    epoch: Epoch = 0,
    operations: OwnOperations = _NONE,
) -> None:
    """Compare policies: how often each operation comes, how strong, and how far they are apart.

    Each policy is taken as its authors run it: methods that were published on top of crop, flip and
    cutout get these, and published files are mirrored.
    """
    if len(policies) < 2:
        raise ValueError(f"compare takes two policies or more, got only {policies[0]}")
    _check_paths(out, samples)
    from deepaa.ops import import_operations
    from deepaa.report import compare_policies, load_entries

    known: Any = space  # checked by load_entries
    entries = load_entries(policies, import_operations(operations), space=known, epoch=epoch)
    found = compare_policies(entries, space=known)
    picture = None
    if samples is not None or (out is not None and out.suffix.lower() == ".html"):
        from deepaa.data import load_images
        from deepaa.report import comparison_grid

        picture = comparison_grid(load_images(data, images, size), entries, draws, seed)
    if out is not None:
        _write(found, out, picture)
    if samples is not None and picture is not None:
        picture.save(samples)
    _print(found, [path for path in (out, samples) if path is not None], as_json)


def _check_paths(out: Path | None, samples: Path | None) -> None:
    """Refuse names that cannot be written, before anything is computed."""
    from PIL import Image

    from deepaa.report import check_formats

    if out is not None and out.suffix.lower() not in FIGURES:
        raise ValueError(f"--out {out}: unknown kind of figure; use {', '.join(FIGURES)}")
    if samples is not None and samples.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"--samples {samples}: unknown kind of picture; use a name like s.png")
    for name, path in (("--out", out), ("--samples", samples)):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{name} {path}: the folder {path.parent} does not exist")
    if out is not None and out.suffix.lower() != ".html":
        check_formats([out.suffix.lower()[1:]])


def _write(found: Comparison, out: Path, picture: Image | None) -> None:
    from deepaa.report import comparison_page, figure_bytes, plot_comparison
    from deepaa.runs import write_file

    kind = out.suffix.lower()[1:]
    if kind == "html":
        content = comparison_page(found, picture).encode()
    else:
        content = figure_bytes(plot_comparison(found), kind)
    write_file(out.resolve(), content)


def _print(found: Comparison, written: Sequence[Path], as_json: bool) -> None:
    from deepaa.report import as_dict, comparison_lines

    if as_json:
        typer.echo(json.dumps(as_dict(found), indent=2, allow_nan=False))
        return
    console = new_console()
    for line in comparison_lines(found):
        console.print(line)
    if written:
        typer.echo(f"\nwrote {' and '.join(map(str, written))}")
