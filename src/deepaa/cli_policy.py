"""What commands about policies share: the arguments that name one, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from deepaa.policy import Policy

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


def load(source: str, operations: Sequence[str]) -> Policy:
    """The policy of a name or file, with the user's own operations."""
    from deepaa.own_operations import import_operations
    from deepaa.policy_file import PolicyFileError, load_policy

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
