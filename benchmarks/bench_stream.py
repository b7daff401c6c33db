"""Measures a training from JPEG files beside the same training on images that lie on the device.

python benchmarks/bench_stream.py --minutes 4 --out stream.json
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from PIL import Image
from torch import Tensor

from deepaa import distributed
from deepaa.cli.bench import TextTable, print_tables
from deepaa.cli.bench_measure import bench_images, report_head
from deepaa.cli.options import check_place
from deepaa.data import DecodingRate, StreamedImages
from deepaa.data.folder import all_images
from deepaa.data.image_file import Reading
from deepaa.data.scan import usable_cores
from deepaa.data.streaming import MOST_WORKERS, StreamedBatch
from deepaa.models import build_model
from deepaa.policy import compared_policy
from deepaa.runs import write_json
from deepaa.train import StreamedBatches, TrainConfig, Training, crop_for, precision_on

CLASSES = 10
PHOTO = (500, 375)
"""The most frequent size of ImageNet's pictures."""
COLUMNS = {
    "what": "{what}",
    "images/s": "{rate:,.0f}",
    "slowest..fastest": "{slowest:,.0f}..{fastest:,.0f}",
    "epochs": "{epochs:d}",
    "of the device's own": "{share:.1%}",
    "decoders busy": "{busy:.0%}",
}


class Rate(NamedTuple):
    """Images a second of one part of the work, or of all of it."""

    what: str
    rate: float
    """Median over the epochs."""
    slowest: float
    fastest: float
    epochs: int
    share: float | None = None
    """Of the rate with images that lie on the device."""
    busy: float | None = None
    """Share of the time in which the processes that decode did so."""


class ResidentImages:
    """Stands for `StreamedImages` with a few batches that lie on the device, used in turn."""

    train = True
    KEPT = 4

    def __init__(self, like: StreamedImages, count: int, batch: int) -> None:
        """Noise of the shape and on the device of the images that it stands for."""
        self.size, self.side, self.crop, self.device = like.size, like.side, like.crop, like.device
        self.labels = torch.arange(count) % CLASSES
        shape = (batch, 3, self.side, self.side)
        generator = torch.Generator(self.device).manual_seed(0)
        self._kept = [
            torch.randint(256, shape, dtype=torch.uint8, device=self.device, generator=generator)
            for _ in range(self.KEPT)
        ]

    def decoding_rate(self) -> DecodingRate | None:
        """None: nothing is decoded."""
        return None

    def batches(self, epoch: int, batch: int, copies: int = 1, **_: int) -> Iterator[StreamedBatch]:
        """As many batches as the files would give."""
        for number in range(len(self.labels) // batch):
            rows = torch.arange(number * batch, (number + 1) * batch, device=self.device)
            yield StreamedBatch(self._kept[number % self.KEPT], rows % CLASSES, rows)


def make_photos(folder: Path, count: int = 64) -> list[Path]:
    """JPEG files with about the pixels and the bytes of ImageNet's: embedded images, enlarged."""
    width, height = PHOTO
    made = []
    for number, image in enumerate(bench_images(count, 64)):
        small = Image.fromarray(image.permute(1, 2, 0).numpy())
        large = np.asarray(small.resize(PHOTO, Image.Resampling.BICUBIC), np.float32)
        grain = np.random.default_rng(number).normal(0, 13, (height, width, 1))
        pixels = (large + grain).clip(0, 255).astype(np.uint8)
        made.append(folder / f"{number:03}.jpg")
        Image.fromarray(pixels).save(made[-1], quality=90)
    return made


def repeated(photos: list[Path], folder: Path, count: int) -> Path:
    """A tree of `count` files in classes: hard links to the photos, or symbolic ones."""
    classes = min(CLASSES, count)
    for place in range(classes):
        (folder / f"class{place}").mkdir(parents=True)
    for number in range(count):
        source = photos[number % len(photos)]
        target = folder / f"class{number % classes}" / f"{number:07}{source.suffix.lower()}"
        try:
            os.link(source, target)
        except OSError:  # another file system, or too many links to one file
            target.symlink_to(source.resolve())
    return folder


def decode_only(stream: StreamedImages, batch: int, seconds: float) -> Rate:
    """How fast batches come if nobody uses them; the first of an epoch is not counted."""
    rates, end, epoch = [], time.perf_counter() + seconds, 0
    while not rates or time.perf_counter() < end:
        began, count = None, 0
        for part in stream.batches(epoch, batch):
            if began is None:
                began = time.perf_counter()
            else:
                count += len(part.images)
            if count and time.perf_counter() > end:
                break
        if stream.device.type == "cuda":
            torch.cuda.synchronize()
        if began is None or not count:
            raise ValueError(f"an epoch of {len(stream)} files has less than two batches")
        rates.append(count / (time.perf_counter() - began))
        epoch += 1
    return Rate("decoding alone", median(rates), min(rates), max(rates), len(rates))


def epochs_of(
    what: str, training: Training, seconds: float, say: Callable[[str], None], warm: int
) -> Rate:
    """Whole epochs until the time is over, at least one after `warm` that are not counted."""
    rates: list[float] = []
    busy: list[float] = []
    end = time.perf_counter() + seconds
    for number in range(10_000):
        record = training.train_epoch()
        rate = record.images / record.seconds
        say(f"{what}, epoch {number + 1}: {rate:,.0f} images/s")
        if number == warm - 1:  # compiled and recorded now
            end = time.perf_counter() + seconds
        if number >= warm:
            rates.append(rate)
            busy += [] if record.decoding_busy is None else [record.decoding_busy]
            if time.perf_counter() + record.seconds > end:
                break
    found = Rate(what, median(rates), min(rates), max(rates), len(rates))
    return found._replace(busy=median(busy) if busy else None)


class Work(NamedTuple):
    """What is measured."""

    model: str
    size: int
    batch: int
    policy: str
    reduce: bool
    decoder: str
    workers: int | None
    steps: int | None


def measure_stream(
    photos: Path | None,
    work: Work,
    *,
    device: str = "auto",
    compile: bool = True,
    minutes: float = 4.0,
    out: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Rates of decoding, of training on resident images, and of training from files.

    Args:
        photos: A folder with JPEG files anywhere in it, which are repeated; None makes some.
        device: cpu, cuda, or auto for what there is.
        compile: Whether the network is compiled on CUDA.
        minutes: About how long it takes, without compiling.
        out: A JSON file, written after each of the three.
        say: Is told how far it is.
    """
    check_place(out, "stream.json")
    distributed.check_device(device)
    where = distributed.init(device)
    if work.workers is None:
        work = work._replace(workers=usable_cores(MOST_WORKERS))
    options = {**work._asdict(), "photos": photos and str(photos), "minutes": minutes}
    report = report_head("deepaa-bench-stream", [where.type], {**options, "device": str(where)})
    report["rates"] = []
    with _scratch(photos) as scratch:
        files = make_photos(scratch) if photos is None else _photos_in(photos)
        report["files"] = _described(files)
        say("{count} photos, {width:.0f} x {height:.0f}, {kB:.0f} kB".format(**report["files"]))
        for rate in _rates(files, scratch, work, where, compile, 60 * minutes, say):
            report["rates"].append(rate._asdict())
            if out is not None:
                write_json(out, report)
    return report


def _rates(
    files: list[Path],
    scratch: Path,
    work: Work,
    where: torch.device,
    compile: bool,
    seconds: float,
    say: Callable[[str], None],
) -> Iterator[Rate]:
    cuda = where.type == "cuda"
    policy = compared_policy(work.policy, space="imagenet" if work.size > 64 else "cifar")

    def stream(count: int) -> StreamedImages:
        tree = repeated(files, scratch / f"files{count}", count)
        reading = Reading(reduce=work.reduce, decoder=work.decoder)
        return StreamedImages(
            tree, work.size, train=True, workers=work.workers, crop=crop_for(policy),
            device=where, reading=reading, scan=False, outside_links=True,
        )  # fmt: skip

    decoding = decode_only(stream(work.batch * 48), work.batch, seconds / 6)
    say(f"decoding alone: {decoding.rate:,.0f} images/s")
    yield decoding
    # an epoch of about 15 seconds: short beside the time there is, long beside its start
    steps = work.steps or max(10, min(400, int(15 * decoding.rate / work.batch)))
    config = TrainConfig(
        epochs=1_000_000, batch=work.batch, lr=1e-3, channels_last=cuda, compile=compile and cuda,
        precision=precision_on(where, "auto"),
    )  # fmt: skip
    photos = stream(steps * work.batch)
    count = len(photos)
    network = build_model(work.model, 1000 if cuda else CLASSES, **_levels())
    resident = StreamedBatches(ResidentImages(photos, count, work.batch), policy, config)  # type: ignore[arg-type]
    training = Training(network, resident, config)
    own = epochs_of("on the device", training, seconds / 4, say, warm=1)
    yield own._replace(share=1.0)
    training.batches = StreamedBatches(photos, policy, config)  # the same steps, compiled already
    # a first epoch starts the workers and fills the caches of the system
    found = epochs_of("from files", training, seconds / 2, say, warm=1)
    yield found._replace(share=found.rate / own.rate)


def _levels() -> dict[str, Tensor]:
    """The normalisation of ImageNet, for `build_model`."""
    return {
        "mean": torch.tensor([0.485, 0.456, 0.406]),
        "std": torch.tensor([0.229, 0.224, 0.225]),
    }


def _photos_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    found = [path for path in all_images(folder) if path.suffix.lower() in (".jpg", ".jpeg")]
    if not found:
        raise ValueError(f"{folder}: no JPEG files in it")
    return found


def _described(files: list[Path]) -> dict[str, Any]:
    some = files[:: max(1, len(files) // 500)]
    sizes = []
    for path in some:
        with Image.open(path) as image:
            sizes.append(image.size)
    width, height = np.mean(sizes, axis=0).tolist()
    length = float(np.mean([path.stat().st_size for path in some])) / 1000
    return {"count": len(files), "width": width, "height": height, "kB": length}


@contextmanager
def _scratch(beside: Path | None) -> Iterator[Path]:
    """A folder that is removed again; beside the photos, if that may be, so that links can be."""
    try:
        made = tempfile.mkdtemp(prefix=".bench_stream_", dir=None if beside is None else beside)
    except OSError:
        made = tempfile.mkdtemp(prefix="bench_stream_")
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def stream_tables(report: dict[str, Any]) -> list[TextTable]:
    """The report as text."""
    options = report["options"]
    text = "{model}, {size} x {size}, batch {batch}, {policy}, {workers} workers, on {device}"
    text += ", decoder {decoder}"
    title = text.format(**options)
    return [TextTable(title, COLUMNS, report["rates"])]


def main(
    photos: Annotated[
        Path | None,
        typer.Option(help="A folder with JPEG files, used again and again. Default: made up."),
    ] = None,
    model: Annotated[str, typer.Option(help="The network.")] = "torchvision:resnet50",
    size: Annotated[int, typer.Option(min=8, help="Side of its images.")] = 224,
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 256,
    policy: Annotated[str, typer.Option(help="A name or a file; none for none.")] = "crop-flip",
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode. Default: one per core.")
    ] = None,
    reduce: Annotated[
        bool, typer.Option("--reduce", help="Decode large photos at the size that is needed.")
    ] = False,
    decoder: Annotated[
        str, typer.Option(help="auto, pillow, or torchvision: what decodes the files.")
    ] = "auto",
    steps: Annotated[
        int | None, typer.Option(min=2, help="Steps in an epoch. Default: about 15 seconds.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto for what there is.")] = "auto",
    compile: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the network, on CUDA.")
    ] = True,
    minutes: Annotated[
        float,
        typer.Option(min=0.01, help="About how long it takes, without compiling and first epochs."),
    ] = 4.0,
    out: Annotated[Path | None, typer.Option(help="A JSON file for all numbers.")] = None,
) -> None:
    """Measure a training from JPEG files beside the same training on images on the device."""

    def say(text: str) -> None:
        typer.echo(text, err=True)

    work = Work(model, size, batch, policy, reduce, decoder, workers, steps)
    try:
        report = measure_stream(
            photos, work, device=device, compile=compile, minutes=minutes, out=out, say=say
        )
    except ValueError as error:
        sys.exit(f"error: {error}")
    print_tables(stream_tables(report), out)


if __name__ == "__main__":
    typer.run(main)
