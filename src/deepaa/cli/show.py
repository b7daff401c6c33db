"""`deepaa show` and `deepaa policies`: what a policy does, and those that have a name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from deepaa.cli.options import (
    AsJson,
    Epoch,
    OwnOperations,
    PolicyName,
    load,
    new_console,
    size_of,
)


def show(
    policy: PolicyName,
    as_json: AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="Operations to list per layer.")] = 6,
    epoch: Epoch = 0,
    operations: OwnOperations = [],  # noqa: B006 - typer reads it, nobody writes to it
) -> None:
    """Show what a policy does.

    Per layer: the most frequent operations with their probabilities and magnitudes, and how
    uncertain the choice is (entropy; perplexity is the number of equally likely transformations
    with that entropy). Then how often an image meets each operation.
    """
    from deepaa.report import as_dict, policy_table

    table = policy_table(load(policy, operations), policy, epoch, top)
    if as_json:
        typer.echo(json.dumps(as_dict(table), indent=2, allow_nan=False))
        return
    from deepaa.report import policy_lines

    console = new_console()
    for line in policy_lines(table, console.encoding):
        console.print(line)


def policies() -> None:
    """List the policies that have a name."""
    from rich.table import Table

    from deepaa.policy import FORMS, GENERATED, load_policy, policy_names

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column()
    for name in policy_names():
        if name in GENERATED:
            text = GENERATED[name].description
        else:
            loaded = load_policy(name)
            text = loaded.info.get("description", size_of(loaded))
        grid.add_row(name, text)
    for form, text in FORMS.items():
        grid.add_row(form, text)
    new_console().print(grid)
