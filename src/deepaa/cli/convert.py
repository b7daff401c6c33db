"""`deepaa convert`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepaa.cli.options import OwnOperations, load, size_of

if TYPE_CHECKING:
    from deepaa.policy import Policy

_NONE: list[str] = []  # typer reads it, nobody writes to it


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A policy: a name or a file.")],
    out: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT",
            help="The file to write: .json, or with --to a Python file, which is printed without "
            "OUT. albumentations also has .json and .yaml files of its own.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="LIBRARY",
            help="Write a pipeline of another library instead: albumentations, kornia or "
            "torchvision. It does not need this package; where its pixels differ is said.",
        ),
    ] = None,
    symmetric: Annotated[
        bool,
        typer.Option(
            "--symmetric",
            help="Make m and -m equally likely for shear, translate and rotate, as the authors' "
            "evaluation does.",
        ),
    ] = False,
    image_size: Annotated[
        int | None,
        typer.Option(
            "--size",
            min=1,
            max=16384,
            help="With --to albumentations: side of the images in pixels, for resized_crop and "
            "for shifts by the right whole pixels.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    operations: OwnOperations = _NONE,
) -> None:
    """Write any readable policy as this package's JSON, or as a pipeline of another library."""
    if image_size is not None and to != "albumentations":
        raise ValueError("--size goes with --to albumentations")
    if out is None and to is None:
        raise ValueError("convert needs OUT, the file to write")
    if out is not None and out.exists() and not force:
        raise ValueError(f"{out} exists; add --force to replace it")
    loaded = load(source, operations)
    written = loaded.symmetric() if symmetric else loaded
    note = ", symmetric" if symmetric else ""
    if out is None:
        from deepaa.export import pipeline_source

        typer.echo(pipeline_source(written, str(to), name=source, size=image_size), nl=False)
        return
    if to is None:
        written.save(out)
        wrote = size_of(written)
    else:
        wrote = _export(written, source, out, to, image_size)
    typer.echo(f"read {source}: {size_of(loaded)}")
    typer.echo(f"wrote {out}: {wrote}{note}")


def _export(policy: Policy, source: str, out: Path, to: str, image_size: int | None) -> str:
    from deepaa.export import LEAST, export_policy
    from deepaa.report import plural

    done = export_policy(policy, out, to, name=source, size=image_size)
    if done.differences:
        typer.echo("\n".join(("pixels beside Pillow's:", *done.differences)))
    left_out = f"; {done.left_out} of at most {LEAST:g} left out" if done.left_out else ""
    return f"{to}, {plural(done.layers, 'layer')}, {done.rows} transformations in all{left_out}"
