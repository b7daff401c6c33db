"""`deepaa preview`: a picture of a policy at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepaa.cli.options import Epoch, OwnOperations, PolicyName, load


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
    from deepaa.report import preview_grid

    loaded = load(policy, operations)
    originals = load_images(data, images, size)
    grid = preview_grid(originals, loaded, draws, seed, epoch=epoch, title=Path(policy).name)
    grid.save(out)
    n, _, height, width = originals.shape
    typer.echo(f"wrote {out}: {n} images of {width} x {height}, {draws} draws each")
