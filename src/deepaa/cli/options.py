"""Options, checks and ways of printing that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from deepaa.data import DataSpec

NOTHING: Any = []
"""The default of an option that may be repeated; typer reads it, nobody writes to it."""
data_option = partial(typer.Option, rich_help_panel="Data")
network_option = partial(typer.Option, rich_help_panel="The network")
run_option = partial(typer.Option, rich_help_panel="The run")
plain_console = partial(Console, highlight=False, markup=False, emoji=False)
"""A console that prints text as it is."""

# Policies

POLICY_HELP = (
    "A name (see deepaa policies), with parameters if it has any (deepta:4, "
    "randaugment:n=3,m=5), or a file: this package's JSON, the authors' .npz, a JSON list of "
    "sub-policies, or a schedule of PBA. deepaa-simple:POLICY is a policy's first layer."
)
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
SpaceChoice = StrEnum("SpaceChoice", ["cifar", "imagenet"])
DrawSeed = Annotated[int, typer.Option(help="Another seed gives other draws.")]
ShownSize = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Resize and cut the images to this many pixels a side."),
]

# Images

Data = Annotated[
    str | None,
    data_option(
        help="A folder of class folders; a table of paths and labels (.csv, .tsv, .parquet); "
        "hf:NAME or a folder of save_to_disk (Hugging Face); WebDataset shards, as "
        "'train-{000..127}.tar' or their folder; an .npz file; cifar10, cifar100 or a torchvision "
        "data set. Default: 4,000 embedded images of CIFAR-10, or the recipe's data. "
        "With --resume: where the images of the run are now."
    ),
]
Size = Annotated[
    int | None,
    data_option(
        min=1,
        max=4096,
        help="Side to bring the images to. Default: their own if all have one of up to 512 "
        "pixels, or the median of their shorter sides, at most 224.",
    ),
]
Root = Annotated[Path | None, data_option(help="Where data sets with a name lie. Default: data.")]
Download = Annotated[bool, data_option("--download", help="Fetch a data set that is not there.")]
OnBadImage = Annotated[
    str,
    data_option(
        help="What a damaged file does: stop the run, or skip the file. At most three are skipped, "
        "or 1 % of more than 300."
    ),
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
        "pixels; with train --stream reduce=true decodes large photos smaller, and decoder=pillow "
        "in the workers on CUDA machines too. May be repeated.",
    ),
]
Groups = Annotated[
    str | None,
    data_option(
        metavar="PATTERN",
        help="Keeps images that belong together, as the frames of a scene, in one part. A folder: "
        "a regular expression that finds the group in each path below it, as 'scene(\\d+)', or a "
        ".csv file with the columns file and group. A table or hf:NAME: the name of a column. "
        "Shards: json:KEY. An .npz file: the name of an array.",
    ),
]
Columns = Annotated[
    str | None,
    data_option(
        metavar="KIND=NAME,...",
        help="Columns of a table or of hf:NAME whose names do not say what they hold, as "
        "image=file,label=kind; kinds are image, label, split and group. For shards what files "
        "end with, or a key: label=json:kind.",
    ),
]
ShownColumns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="KIND=NAME,...",
        help="Columns of the table, data set or shards of --data, as in deepaa search.",
    ),
]
OF_DATA = ("data", "size", "root", "on_bad_image", "outside_links", "read", "groups", "columns")
"""The options that say which images are read and how, as `DataSpec.from_options` takes them."""

# Networks and runs

Model = Annotated[
    str | None,
    network_option(
        help="The network: small, wrn-40-2, wrn-28-10, shake-shake-26-2x96d, resnet18, resnet50, "
        "torchvision:NAME, timm:NAME, or MODULE:FUNCTION of your own, called with the number of "
        "classes. Default: the recipe's or preset's, or small on a CPU and wrn-40-2 on CUDA, or "
        "resnet18 for images over 64 pixels."
    ),
]
Precision = Annotated[
    str | None, network_option(help="float32 or bfloat16. Default: bfloat16 on CUDA.")
]
Device = Annotated[str, run_option(help="cpu, cuda, or auto for what there is.")]
CheckpointSeconds = Annotated[
    float,
    run_option(
        min=0.0, help="Seconds between two checkpoints, which come after an epoch or a step."
    ),
]
DryRun = Annotated[
    bool, run_option("--dry-run", help="Say what would be done and what it costs; no more.")
]
TensorBoard = Annotated[
    bool,
    run_option(
        "--tensorboard", help="Log to the run's folder tensorboard too; the history is always kept."
    ),
]


# Contests

Switch = StrEnum("Switch", ["on", "off"])
ContestPasses = Annotated[
    int | None,
    run_option(
        min=1,
        help="Most images through the network in the contest. Default: 20 million on CUDA, 3 "
        "million on a CPU.",
    ),
]
TargetEpochs = Annotated[
    int | None,
    run_option(
        min=1,
        help="Epochs of the training that the policy is for. Default: 200, and more of few images.",
    ),
]
Protect = Annotated[
    bool,
    typer.Option(
        "--protect/--no-protect",
        help="Leave out operations that turn one class into another, as a flip does 'left'.",
    ),
]


def absolute_policy(policy: str) -> str:
    """A policy that means the same from every working folder: a name, or an absolute path."""
    from deepaa.policy import parse_policy_ref

    is_file = not parse_policy_ref(policy).is_name and Path(policy).is_file()
    return str(Path(policy).resolve()) if is_file else policy


def data_words(spec: DataSpec) -> list[str]:
    """The options that mean these images, for a command that is printed."""
    from deepaa.runs import changed_values

    named = {name: getattr(spec, name) for name in OF_DATA if name != "read"}
    usual = {"on_bad_image": "stop", "outside_links": False}
    words = []
    for name, value in named.items():
        option = f"--{name.replace('_', '-')}"
        if value is not None and value != usual.get(name):
            words += [option] if value is True else [option, str(value)]
    for text in changed_values(spec.reading):
        words += ["--read", text]
    return words


def refuse_settings(context: typer.Context, allowed: Collection[str]) -> None:
    """Refuse options that would change a run that is resumed: it keeps its settings."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise ValueError(
                f"--resume takes every setting from the run; leave out {parameter.opts[0]}"
            )


def named_again(operations: Sequence[str], model: str | None, method: str | None = None) -> str:
    """What a command that resumes a run adds: its own code is named once more."""
    from deepaa.models import is_own_code

    words = [f" --operations {spec}" for spec in operations]
    named = {"--model": model, "--method": method}
    words += [f" {option} {name}" for option, name in named.items() if is_own_code(name)]
    return "".join(words)


def check_columns(columns: str | None, data: Path | None) -> None:
    """Refuse names of columns where no source is given that could have any."""
    if columns is not None and data is None:
        raise ValueError(f"--columns {columns} goes with --data")


def check_place(path: Path | None, like: str, option: str = "--out") -> None:
    """Refuse a file that cannot be made, before the work for it; `like` is a name it could have."""
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"{option} {path}: the folder {path.parent} does not exist")
    if path is not None and path.is_dir():
        raise ValueError(f"{option} {path}: a folder; give a name like {path / like}")


def print_facts(facts: Mapping[str, str], *, err: bool = False) -> None:
    """Print a text for each subject; lines of a terminal end between words.

    Args:
        err: On stderr, not on stdout.
    """
    from deepaa.files import columns_of, in_columns, printable

    stream = sys.stderr if err else sys.stdout
    width = columns_of(stream) if stream.isatty() else 0
    for name, text in facts.items():  # a run folder says what its policy is called
        line = f"{name:8} {printable(text, keep=chr(10))}"
        each = [in_columns(part, width, " " * 9) if width else part for part in line.split("\n")]
        typer.echo("\n".join(each), err=err)


def print_json(content: Any) -> None:
    """Print tables or plain values as JSON."""
    from deepaa.report import as_dict

    typer.echo(json.dumps(as_dict(content), indent=2, allow_nan=False))
