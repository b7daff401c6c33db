"""The command line: its commands, and errors as one line.

torch is imported inside the commands, so that help and version come at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from deepaa.cli.bench import ops
from deepaa.cli.contest import contest
from deepaa.cli.doctor import doctor
from deepaa.cli.policies import compare, convert, policies, preview, show
from deepaa.cli.report import report
from deepaa.cli.search import search
from deepaa.cli.train import train

DEBUG = "DEEPAA_DEBUG"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which a user says how threads wait: of the standard, of GNU, of LLVM and Intel."""
app = typer.Typer(
    name="deepaa",
    help="Find, look at and apply image augmentation policies.",
    epilog="Start with: deepaa search --preset demo, or deepaa show deepta",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(
    help="Measure how fast images are augmented, beside other libraries.",
    rich_markup_mode="markdown",
)
for command, example in (
    (show, "deepaa show deepta --top 3"),
    (search, "deepaa search --data my_images/ --out run"),
    (contest, "deepaa contest --data my_images/ --policy run/found.json"),
    (train, "deepaa train --policy run/policy.json --epochs 10 --seeds 2"),
    (report, "deepaa report run --figures figures"),
    (preview, "deepaa preview deepta --data photos/ --out grid.png"),
    (compare, "deepaa compare deepta run/policy.json --out figure.png"),
    (convert, "deepaa convert policy.npz policy.json --symmetric"),
    (policies, "deepaa policies"),
    (doctor, "deepaa doctor --json > doctor.json"),
):
    app.command(epilog=f"Example: {example}")(command)
app.add_typer(bench, name="bench")
bench.command(
    epilog="Example: deepaa bench ops --device cpu --peers timm,torchvision --out b.json"
)(ops)


def _print_version(wanted: bool) -> None:
    if wanted:
        from deepaa import __version__

        typer.echo(f"deepaa {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _deepaa(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors become one line on stderr."""
    if logging.lastResort is not None:  # the one that prints warnings
        logging.lastResort.setFormatter(_Printable())
    try:
        code = app(arguments, prog_name="deepaa", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # Python flushes stdout once more at exit, and would complain again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get(DEBUG, "0") not in ("", "0"):
            raise
        message, code = _explained(error)
        # of several processes, all of which find a wrong option, the first says it
        several = os.environ.get("WORLD_SIZE", "") not in ("", "0", "1")
        other = several and os.environ.get("RANK", "0") != "0"
        wrong_option = hasattr(error, "format_message")
        if not ((other and wrong_option) or getattr(error, "said_elsewhere", False)):
            from deepaa.files import fit_for  # not deepaa.runs, which loads torch

            line = f"error: {_printable(' '.join(message.split()))}"
            typer.echo(fit_for(sys.stderr, line), err=True)
        return code


class _Printable(logging.Formatter):
    """Messages whose quotes of files cannot move the terminal, without broken words there."""

    def format(self, record: logging.LogRecord) -> str:
        from deepaa.runs import in_terminal

        lines = super().format(record).split("\n")
        return "\n".join(in_terminal(_printable(line)) for line in lines)


def _printable(text: str) -> str:
    from deepaa.files import printable  # loads numpy

    return printable(text)


def _explained(error: Exception) -> tuple[str, int]:
    """What to tell the user, and the exit code: 2 for bad input, 1 for what should not happen."""
    if hasattr(error, "format_message"):  # typer's own: unknown options, bad numbers
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "deepaa"
        text = error.format_message().rstrip(".")
        return f"{text}{'' if text.endswith('?') else ';'} try '{command} --help'", 2
    if isinstance(error, MemoryError) and not str(error):  # Python's own says nothing
        return "not enough memory", 2
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{str(error.filename)[:300]}: {error.strerror}", 2
    if isinstance(error, ValueError | TypeError | OSError | MemoryError | FloatingPointError):
        advice = "; here: --operations MODULE:NAME" if "pass operations=[" in str(error) else ""
        return f"{error}{advice}", 2
    reason = f"unexpected {type(error).__name__}: {error}"
    return f"{reason} (set {DEBUG}=1 to see where it came from)", 1


def sleep_while_waiting() -> None:
    """Have OpenMP's threads sleep where they wait for each other, unless the user chose otherwise.

    By default they spin. Where other processes need the cores too, a spinning thread keeps the one
    it waits for from running, and a search takes many times as long. OpenMP reads this when torch
    is imported.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "passive"


def main() -> None:
    """Run the command line and exit."""
    sleep_while_waiting()
    sys.exit(run())
