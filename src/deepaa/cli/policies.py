"""The commands that look at policies or write them: show, policies, preview, compare, convert."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepaa.cli import options
from deepaa.cli.options import NOTHING, POLICY_HELP

if TYPE_CHECKING:
    from deepaa.policy import Policy
    from deepaa.report import Originals

PolicyName = Annotated[str, typer.Argument(metavar="POLICY", help=POLICY_HELP)]
ShownData = Annotated[
    Path | None,
    typer.Option(
        help="A folder of images (folders inside it count), one image, a .npz file with uint8 "
        "images, a table, shards, or hf:NAME. Default: those of the run where there is one, for "
        "compare, else CIFAR-10 images that come with the package."
    ),
]
Images = Annotated[int, typer.Option(min=1, max=100, help="Images, side by side.")]
Draws = Annotated[int, typer.Option(min=1, max=100, help="Draws of each image.")]
MOST_STRENGTHS = 20
FIGURES = (".png", ".svg", ".pdf", ".html")


def show(
    policy: PolicyName,
    as_json: options.AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="Operations to list per layer.")] = 6,
    epoch: options.Epoch = 0,
    operations: options.OwnOperations = NOTHING,
) -> None:
    """Show what a policy does; the folder of a run means its policy.json, the contest's winner.

    Per layer: the most frequent operations with their probabilities and magnitudes, and how
    uncertain the choice is (entropy; perplexity is the number of equally likely transformations
    with that entropy). Then how often an image meets each operation. What the search of a run
    itself found is shown by the name of its file, RUN/found.json.
    """
    from deepaa.ops import import_operations
    from deepaa.policy import parse_policy_ref
    from deepaa.report import policy_lines, policy_notes, policy_table

    loaded = _load(policy, operations)
    table = policy_table(loaded, policy, epoch, top)
    if as_json:
        options.print_json(table)
        return
    about, other = "", ""
    path = parse_policy_ref(policy).path
    if path is not None and path.is_dir():
        about, other = policy_notes(path, loaded, import_operations(operations))
    console = options.plain_console()
    for line in policy_lines(table, console.encoding, about):
        console.print(line)
    if other:
        typer.echo(f"\n{other}")


def policies() -> None:
    """List the policies that have a name."""
    from rich.table import Column, Table

    from deepaa.policy import FORMS, GENERATED, load_policy, policy_names

    grid = Table.grid(Column(style="bold cyan", no_wrap=True), Column(), padding=(0, 2, 0, 0))
    for name in policy_names():
        if name in GENERATED:
            text = GENERATED[name].description
        else:
            loaded = load_policy(name)
            text = loaded.info.get("description", _size_of(loaded))
        grid.add_row(name, text)
    for form, text in FORMS.items():
        grid.add_row(form, text)
    options.plain_console().print(grid)


def preview(
    policy: PolicyName,
    out: Annotated[Path, typer.Option(help="The picture to write, for example grid.png.")],
    data: ShownData = None,
    columns: options.ShownColumns = None,
    images: Images = 8,
    draws: Draws = 4,
    seed: options.DrawSeed = 0,
    strength: Annotated[
        str,
        typer.Option(
            metavar="S,S,...",
            help="How strong, from 0, which changes nothing, to 1. Several with commas between are "
            "a row each, in which the same draws get weaker: 0.25,0.5,1.",
        ),
    ] = "1",
    size: options.ShownSize = None,
    epoch: options.Epoch = 0,
    operations: options.OwnOperations = NOTHING,
) -> None:
    """Draw a picture of a policy at work: originals on top, augmented versions below."""
    strengths = _strengths(strength)
    options.check_columns(columns, data)
    from deepaa.data import load_images
    from deepaa.files import plural
    from deepaa.report import preview_grid
    from deepaa.runs import print_line

    _check_picture(out, "--out")
    loaded = _load(policy, operations)
    originals = load_images(data, images, size, columns=columns)
    grid = preview_grid(
        originals,
        loaded,
        draws,
        seed,
        epoch=epoch,
        title=Path(policy).name,
        strengths=strengths,
    )
    grid.save(out)
    n, _, height, width = originals.shape
    each = f"{plural(draws, 'draw')} each"
    if strengths != (1.0,):
        listed = ", ".join(f"{s:g}" for s in strengths)
        each += f" at strength{'s' if len(strengths) > 1 else ''} {listed}"
    print_line(f"wrote {out}: {plural(n, 'image')} of {width} x {height}, {each}")


def compare(
    policies: Annotated[
        list[str], typer.Argument(metavar="POLICY...", help=f"Two or more. {POLICY_HELP}")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A figure of the operations and their magnitudes: .svg, .png or .pdf; .html is a "
            "page with samples and tables as well. PNG and PDF need deepaa[report]."
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="A picture of the same images under each policy, such as samples.png."),
    ] = None,
    as_json: options.AsJson = False,
    data: ShownData = None,
    columns: options.ShownColumns = None,
    images: Images = 4,
    draws: Draws = 3,
    seed: options.DrawSeed = 0,
    size: options.ShownSize = None,
    space: Annotated[
        options.SpaceChoice | None,
        typer.Option(
            help="The default augmentation of methods that run on one, and the ranges of names "
            "that have both. Default: imagenet where a file has its resized_crop, else cifar."
        ),
    ] = None,
    epoch: options.Epoch = 0,
    operations: options.OwnOperations = NOTHING,
) -> None:
    """Compare policies: how often each operation comes, how strong, and how far they are apart.

    Each policy is taken as its authors run it: methods that were published on top of crop, flip and
    cutout get these, and published files are mirrored. The folder of a run means what its search
    found (found.json); its policy.json is the winner of the contest.
    """
    if len(policies) < 2:
        raise ValueError(f"compare takes two policies or more, got only {policies[0]}")
    options.check_columns(columns, data)
    import deepaa.report as report
    from deepaa.ops import import_operations
    from deepaa.runs import write_file

    kind = "" if out is None else out.suffix.lower()
    if out is not None and kind not in FIGURES:
        raise ValueError(f"--out {out}: unknown kind of figure; use {', '.join(FIGURES)}")
    options.check_place(out, "figure.png")
    if kind == ".html":
        report.check_pages()
    elif out is not None:
        report.check_formats([kind[1:]])
    if samples is not None:
        _check_picture(samples, "--samples")
    own = import_operations(operations)
    known: Any = space.value if space is not None else report.common_space(policies, own)
    entries = report.load_entries(policies, own, space=known, epoch=epoch)
    found = report.compare_policies(entries, space=known)
    picture, origin = None, ""
    if samples is not None or kind == ".html":
        shown = _originals(policies, images, data, size, columns)
        picture, origin = report.comparison_grid(shown.images, entries, draws, seed), shown.origin
    if out is not None and kind == ".html":
        write_file(out.resolve(), report.comparison_page(found, picture, origin).encode())
    elif out is not None:
        write_file(out.resolve(), report.figure_bytes(report.plot_comparison(found), kind[1:]))
    if samples is not None and picture is not None:
        picture.save(samples)
    if as_json:
        options.print_json(found)
        return
    console = options.plain_console()
    for line in report.comparison_lines(found):
        console.print(line)
    if written := [str(path) for path in (out, samples) if path is not None]:
        typer.echo("\n".join(("", f"wrote {' and '.join(written)}", *filter(None, [origin]))))


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
    spread: Annotated[
        bool,
        typer.Option(
            "--spread", help="Make each magnitude uniform, from the neutral one to what it is."
        ),
    ] = False,
    strength: Annotated[
        float,
        typer.Option(
            help="From 0, which changes nothing, to 1: so far magnitudes are from the neutral "
            "ones, and so often comes what has none. After --symmetric and --spread."
        ),
    ] = 1.0,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=16384,
            help="With --to albumentations: side of the images in pixels, for resized_crop and "
            "for shifts by the right whole pixels.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    operations: options.OwnOperations = NOTHING,
) -> None:
    """Write any readable policy as this package's JSON, or as a pipeline of another library."""
    if size is not None and to != "albumentations":
        raise ValueError("--size goes with --to albumentations")
    if out is None and to is None:
        raise ValueError("convert needs OUT, the file to write")
    if out is not None and out.exists() and not force:
        raise ValueError(f"{out} exists; add --force to replace it")
    if not 0 <= strength <= 1:
        raise ValueError(f"--strength should be in 0..1, got {strength:g}")
    from deepaa.export import LEAST, export_policy, pipeline_source
    from deepaa.files import plural
    from deepaa.runs import print_line

    loaded = _load(source, operations)
    written = loaded.symmetric() if symmetric else loaded
    written = (written.spread() if spread else written).strength(strength)
    changes = {"symmetric": symmetric, "spread": spread, f"strength {strength:g}": strength < 1}
    if out is None:
        typer.echo(pipeline_source(written, str(to), name=source, size=size), nl=False)
        return
    if to is None:
        written.save(out)
        wrote = _size_of(written)
    else:
        done = export_policy(written, out, to, name=source, size=size)
        if done.differences:
            typer.echo("\n".join(("pixels beside Pillow's:", *done.differences)))
        left_out = f"; {done.left_out} of at most {LEAST:g} left out" if done.left_out else ""
        layers = plural(done.layers, "layer")
        wrote = f"{to}, {layers}, {plural(done.rows, 'transformation')} in all{left_out}"
    print_line(f"read {source}: {_size_of(loaded)}")
    told = ", ".join((f"wrote {out}: {wrote}", *(name for name, made in changes.items() if made)))
    print_line(told)


def _strengths(text: str) -> tuple[float, ...]:
    """The numbers in a text like `0,0.5,1`, each of them once."""
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 <= value <= 1:
            raise ValueError(
                f"--strength takes numbers from 0 to 1 with commas between, got {part.strip()!r}"
                + (f" in {text!r}" if "," in text else "")
            )
        found.append(value)
    if len(kept := tuple(dict.fromkeys(found))) > MOST_STRENGTHS:
        raise ValueError(f"--strength takes at most {MOST_STRENGTHS} numbers, got {len(kept)}")
    return kept


def _load(source: str, operations: list[str]) -> Policy:
    from deepaa.ops import import_operations
    from deepaa.policy import load_policy

    return load_policy(source, import_operations(operations))


def _size_of(policy: Policy) -> str:
    """`6 layers over 139 transformations`."""
    from deepaa.files import plural  # loads numpy

    layers, rows = plural(policy.depth, "layer"), plural(len(policy.table), "transformation")
    return f"{layers} over {rows}"


def _originals(
    policies: Sequence[str],
    count: int,
    data: Path | None,
    size: int | None,
    columns: str | None,
) -> Originals:
    """The images that policies are compared on: those given, else of the first run among them."""
    from deepaa.report import config_beside, find_originals, named_images
    from deepaa.runs import notify

    config = next(filter(None, map(config_beside, policies)), {})
    if data is None and (named := named_images(config)) is not None:
        notify(f"examples are images of {named}, as the run says; --data takes others")
    return find_originals(config, count, data, size, columns)


def _check_picture(path: Path, option: str) -> None:
    """Refuse a name that no picture can be written to, before it is drawn."""
    from PIL import Image

    if path.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"{option} {path}: unknown kind of picture; use a name like grid.png")
    options.check_place(path, "grid.png", option)
