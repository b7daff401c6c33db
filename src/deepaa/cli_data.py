"""Options of the commands that read a labelled data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

DATA = "Data"
"""Their panel in the help."""

Size = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=4096,
        help="Side to bring the images to. Default: their own if all have one of up to 512 "
        "pixels, or 224.",
        rich_help_panel=DATA,
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(help="Where data sets with a name lie. Default: data.", rich_help_panel=DATA),
]
Download = Annotated[
    bool,
    typer.Option("--download", help="Fetch a data set that is not there.", rich_help_panel=DATA),
]
OnBadImage = Annotated[
    str,
    typer.Option(
        help="What a damaged file does: stop the run, or skip the file.", rich_help_panel=DATA
    ),
]
OutsideLinks = Annotated[
    bool,
    typer.Option(
        "--outside-links",
        help="Follow links that lead out of an image folder.",
        rich_help_panel=DATA,
    ),
]
Read = Annotated[
    list[str],
    typer.Option(
        "--read",
        metavar="NAME=VALUE",
        help="How image files are read: apply_exif=false leaves them as they were taken, "
        "max_pixels=100000000 takes larger ones, alpha_colour=0,0,0 shows through transparent "
        "pixels. May be repeated.",
        rich_help_panel=DATA,
    ),
]


def read_choices(given: Sequence[str]) -> dict[str, Any]:
    """What `--read` says, as fields of `image_files.Reading` that JSON can hold."""
    found: dict[str, Any] = {}
    for each in given:
        name, _, value = each.partition("=")
        if name == "apply_exif" and value in ("true", "false"):
            found[name] = value == "true"
        elif name == "max_pixels" and value.isdecimal() and int(value):
            found[name] = int(value)
        elif name == "alpha_colour" and (colour := _colour(value)) is not None:
            found[name] = colour
        else:
            raise ValueError(
                f"--read {each}: should be apply_exif=true or false, max_pixels=NUMBER, or "
                "alpha_colour=R,G,B of 0..255"
            )
    return found


def _colour(value: str) -> list[int] | None:
    parts = value.split(",")
    right = len(parts) == 3 and all(part.isdecimal() and int(part) < 256 for part in parts)
    return [int(part) for part in parts] if right else None
