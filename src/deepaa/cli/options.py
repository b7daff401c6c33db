"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from deepaa.policy import Policy

# Policies

POLICY_HELP = (
    "A name (see deepaa policies), with parameters if it has any (deepta:4, "
    "randaugment:n=3,m=5), or a file: this package's JSON, the authors' .npz, a JSON list of "
    "sub-policies, or a schedule of PBA. deepaa-simple:POLICY is a policy's first layer."
)
PolicyName = Annotated[str, typer.Argument(metavar="POLICY", help=POLICY_HELP)]
OwnOperations = Annotated[
    list[str],
    typer.Option(
        "--operations",
        metavar="MODULE:NAME",
        help="Your own operation, or a list of them, that the policy uses. The module is imported "
        "from the current folder or the Python path, so its code runs. May be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Epoch = Annotated[
    int, typer.Option(min=0, help="The epoch to show, for a policy that changes over time.")
]

# Images

DATA = "Data"
"""The panel of these options in the help."""
data_option = partial(typer.Option, rich_help_panel=DATA)

Size = Annotated[
    int | None,
    data_option(
        min=1,
        max=4096,
        help="Side to bring the images to. Default: their own if all have one of up to 512 "
        "pixels, or 224.",
    ),
]
Root = Annotated[Path | None, data_option(help="Where data sets with a name lie. Default: data.")]
Download = Annotated[bool, data_option("--download", help="Fetch a data set that is not there.")]
OnBadImage = Annotated[
    str, data_option(help="What a damaged file does: stop the run, or skip the file.")
]
OutsideLinks = Annotated[
    bool, data_option("--outside-links", help="Follow links that lead out of an image folder.")
]
Read = Annotated[
    list[str],
    data_option(
        "--read",
        metavar="NAME=VALUE",
        help="How image files are read: apply_exif=false leaves them as they were taken, "
        "max_pixels=100000000 takes larger ones, alpha_colour=0,0,0 shows through transparent "
        "pixels. May be repeated.",
    ),
]


def load(source: str, operations: Sequence[str]) -> Policy:
    """The policy of a name or file, with the user's own operations."""
    from deepaa.ops import import_operations
    from deepaa.policy import PolicyFileError, load_policy

    try:
        return load_policy(source, import_operations(operations))
    except PolicyFileError as error:
        if "unknown operation" in str(error) and not operations:
            raise ValueError(f"{error}; here: --operations MODULE:NAME") from error
        raise


def size_of(policy: Policy) -> str:
    """`6 layers over 139 transformations`."""
    layers = "1 layer" if policy.depth == 1 else f"{policy.depth} layers"
    return f"{layers} over {len(policy.table)} transformations"


def new_console() -> Console:
    """A console that prints text as it is."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def refuse_settings(context: typer.Context, allowed: Collection[str]) -> None:
    """Refuse options that would change a run that is resumed: it keeps its settings."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise ValueError(
                f"--resume takes every setting from the run; leave out {parameter.opts[0]}"
            )
