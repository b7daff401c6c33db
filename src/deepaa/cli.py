"""The command line: one function per command. Only this file prints.

torch is imported inside the commands, so that help and version come at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepaa.cli_bench_train import bench_train
from deepaa.cli_compare import compare
from deepaa.cli_convert import convert
from deepaa.cli_policy import AsJson, Epoch, OwnOperations, PolicyName, load, size_of
from deepaa.cli_report import report
from deepaa.cli_search import search
from deepaa.cli_train import train

if TYPE_CHECKING:
    from rich.console import Console

DEBUG = "DEEPAA_DEBUG"
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
    help="Measure speed: of operations beside other libraries, and of the search.",
    rich_markup_mode="markdown",
)
app.add_typer(bench, name="bench")


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


@app.command(epilog="Example: deepaa show deepta --top 3")
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
    from deepaa.report.tables import as_dict, policy_table

    table = policy_table(load(policy, operations), policy, epoch, top)
    if as_json:
        _print_json(as_dict(table))
        return
    from deepaa.report.terminal import policy_lines

    console = _console()
    _print_lines(console, policy_lines(table, console.encoding))


app.command(epilog="Example: deepaa search --data my_images/ --out run")(search)
app.command(epilog="Example: deepaa train --policy run/policy.json --epochs 10 --seeds 2")(train)
app.command(epilog="Example: deepaa report run --figures figures")(report)


@app.command(epilog="Example: deepaa preview deepta --data photos/ --out grid.png")
def preview(
    policy: PolicyName,
    out: Annotated[Path, typer.Option(help="The picture to write, for example grid.png.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="A folder of images (folders inside it count), one image, or a .npz file with "
            "uint8 images. Default: CIFAR-10 images that come with the package."
        ),
    ] = None,
    images: Annotated[int, typer.Option(min=1, max=100, help="Images, side by side.")] = 8,
    draws: Annotated[int, typer.Option(min=1, max=100, help="Draws, one below the other.")] = 4,
    seed: Annotated[int, typer.Option(help="Another seed gives other draws.")] = 0,
    size: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, help="Resize and cut the images to this many pixels a side first."
        ),
    ] = None,
    epoch: Epoch = 0,
    operations: OwnOperations = [],  # noqa: B006 - typer reads it, nobody writes to it
) -> None:
    """Draw a picture of a policy at work: originals on top, augmented versions below."""
    from PIL import Image

    if out.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"--out {out}: unknown kind of picture; use a name like grid.png")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: the folder {out.parent} does not exist")
    from deepaa.data import load_images
    from deepaa.report.preview import preview_grid

    loaded = load(policy, operations)
    originals = load_images(data, images, size)
    grid = preview_grid(originals, loaded, draws, seed, epoch=epoch, title=Path(policy).name)
    grid.save(out)
    n, _, height, width = originals.shape
    typer.echo(f"wrote {out}: {n} images of {width} x {height}, {draws} draws each")


app.command(epilog="Example: deepaa compare deepta run/policy.json --out figure.png")(compare)
app.command(epilog="Example: deepaa convert policy.npz policy.json --symmetric")(convert)


@app.command(epilog="Example: deepaa policies")
def policies() -> None:
    """List the policies that have a name."""
    from rich.table import Table

    from deepaa.policy_file import FORMS, GENERATED, load_policy, policy_names

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
    _console().print(grid)


@app.command(epilog="Example: deepaa doctor --json > doctor.json")
def doctor(as_json: AsJson = False) -> None:
    """Check this installation: versions, devices, and every kernel against Pillow.

    All 139 transformations of both spaces run on CPU, and on CUDA if there is one. Exit code 1
    means that a check failed.
    """
    from deepaa.doctor import examine
    from deepaa.report.tables import as_dict

    report = examine()
    if as_json:
        _print_json({"passed": report.passed, **as_dict(report)})
    else:
        from deepaa.report.terminal import doctor_lines

        _print_lines(_console(), doctor_lines(report))
    if not report.passed:
        raise typer.Exit(1)


@bench.command(
    epilog="Example: deepaa bench ops --device cpu --peers timm,torchvision --out b.json"
)
def ops(
    sizes: Annotated[
        list[int], typer.Option("--size", min=1, help="Side of the images. May be repeated.")
    ] = [32, 224],  # noqa: B006 - typer reads it, nobody writes to it
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Images in a batch. Default: as in docs/benchmarks.md."),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of our policy. Default: 2 on CPU, 6 on CUDA.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto for what there is.")] = "auto",
    seconds: Annotated[float, typer.Option(help="Least time spent on each contestant.")] = 2.0,
    peers: Annotated[
        str, typer.Option(help="Libraries to compare with, with commas between; all or none.")
    ] = "all",
    space: Annotated[str, typer.Option(help="cifar or imagenet.")] = "cifar",
    breakdown: Annotated[
        bool, typer.Option("--breakdown", help="Also time each operation alone.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A JSON file for all numbers.")] = None,
) -> None:
    """Measure how fast images are augmented, beside other libraries, on one thread.

    Rates are per applied operation, so that methods that apply one and methods that apply several
    can be compared. Other libraries come with pip install 'deepaa[bench]'; one that is missing or
    fails is listed with the reason.
    """
    import logging

    from deepaa.bench import LIBRARIES, main_ops, tables
    from deepaa.report.terminal import bench_lines

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("deepaa.bench").setLevel(logging.INFO)  # progress, to stderr
    chosen = {"all": LIBRARIES, "none": ()}.get(peers)
    report = main_ops(
        sizes=sizes,
        batch=batch,
        layers=layers,
        device=device,
        seconds=seconds,
        peers=[p.strip() for p in peers.split(",")] if chosen is None else chosen,
        space=space,
        breakdown=breakdown,
        out=out,
    )
    console = _console()
    _print_lines(console, bench_lines(tables(report), console.width))
    if out is not None:
        typer.echo(f"\nwrote {out}")


@bench.command("search", epilog="Example: deepaa bench search --preset fast --device cuda")
def bench_search(
    presets: Annotated[
        list[str], typer.Option("--preset", help="A preset to time. May be repeated.")
    ] = ["fast", "official"],  # noqa: B006 - typer reads it, nobody writes to it
    data: Annotated[str | None, typer.Option(help="As for deepaa search.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto for what there is.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps per layer.")] = 10,
    model: Annotated[str | None, typer.Option(help="Another network than the preset's.")] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for all numbers.")] = None,
) -> None:
    """Measure how long a step of the search takes, in the first and in a later layer.

    The first step compiles and is told apart. The network is not trained for this: its speed does
    not depend on its weights.
    """
    from deepaa.bench.search import main_search, search_tables
    from deepaa.report.terminal import bench_lines

    report = main_search(
        presets=presets,
        data=data,
        device=device,
        precision=precision,
        steps=steps,
        model=model,
        out=out,
    )
    console = _console()
    _print_lines(console, bench_lines(search_tables(report), console.width))
    if out is not None:
        typer.echo(f"\nwrote {out}")


bench.command("train", epilog="Example: deepaa bench train --model wrn-40-2 --device cuda")(
    bench_train
)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _print_lines(console: Console, lines: Iterable[Any]) -> None:
    for line in lines:
        console.print(line)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors become one line on stderr."""
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
        typer.echo(f"error: {' '.join(message.split())}", err=True)
        return code


def _explained(error: Exception) -> tuple[str, int]:
    """What to tell the user, and the exit code: 2 for bad input, 1 for what should not happen."""
    if hasattr(error, "format_message"):  # typer's own: unknown options, bad numbers
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "deepaa"
        text = error.format_message().rstrip(".")
        return f"{text}{'' if text.endswith('?') else ';'} try '{command} --help'", 2
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}", 2
    if isinstance(error, ValueError | TypeError | OSError | MemoryError | FloatingPointError):
        return str(error), 2
    reason = f"unexpected {type(error).__name__}: {error}"
    return f"{reason} (set {DEBUG}=1 to see where it came from)", 1


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())
