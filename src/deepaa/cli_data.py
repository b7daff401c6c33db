"""Options of the commands that read a labelled data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DATA = "Data"
"""Their panel in the help."""

Size = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Side to bring the images to.", rich_help_panel=DATA),
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
