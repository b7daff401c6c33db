"""`deepaa doctor`: the command."""

from __future__ import annotations

import json

import typer

from deepaa.cli.options import AsJson, new_console


def doctor(as_json: AsJson = False) -> None:
    """Check this installation: versions, devices, and every kernel against Pillow.

    All 139 transformations of both spaces run on CPU, and on CUDA if there is one. Exit code 1
    means that a check failed.
    """
    from deepaa.cli.doctor_checks import doctor_lines, examine
    from deepaa.report import as_dict

    report = examine()
    if as_json:
        found = {"passed": report.passed, **as_dict(report)}
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        console = new_console()
        for line in doctor_lines(report):
            console.print(line)
    if not report.passed:
        raise typer.Exit(1)
