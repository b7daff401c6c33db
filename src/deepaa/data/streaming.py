"""Image files too many for memory: files decoded in workers, batches sent to the device."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from deepaa import distributed
from deepaa.data.decoding import Crop, Decoder, Piece, Request
from deepaa.data.image_file import DEFAULT_READING, BadFile, Reading, check_size
from deepaa.data.jpegs import BadFileError, DeviceDecoder, Jpegs, device_problem
from deepaa.data.scan import (
    BadImagesError,
    OnBadImage,
    ScanReport,
    check_files,
    file_fingerprint,
    in_threads,
    usable_cores,
)
from deepaa.data.sources import list_source
from deepaa.data.splits import INDEX, batch_rows, epoch_order

PIECE = 32
"""Images a worker decodes at a time, so that a batch comes from many workers."""
PREFETCH = 4
"""Pieces that each worker decodes in advance."""
MOST_WORKERS = 16
SHOW_SECONDS = 5
"""Time between two calls of `watch`."""

_LOGGER = logging.getLogger(__name__)

_Batch = tuple[Tensor, list[Request]]
"""The rows of a batch that this process gets (see `batch_rows`), and the pieces of it."""


class DecodingRate(NamedTuple):
    """How fast the files of an epoch were decoded, and how fast they could have been."""

    images: int
    """Decoded so far, copies included."""
    busy: float
    """Share of the epoch's time in which the workers, or the device's decoder, were at work; 1
    without workers, as everything waits then."""
    per_second: float
    """Images a second if all of them do nothing else."""
    seconds: float
    """Since the epoch began."""


class StreamedBatch(NamedTuple):
    """Images on the device."""

    images: Tensor
    """uint8 (N, 3, side, side); N is batch x copies, or this process's share of it."""
    labels: Tensor
    """int64 (N,)."""
    rows: Tensor
    """int64 (N,): the image's index, plus copy x 2^40. `sample_keys` takes it as the index."""


class StreamedImages:
    """One part of a source of files, read anew in every epoch; only names are in memory.

    Every pixel is a function of the file, the seed, the epoch and the row: neither the number of
    workers nor that of processes changes a batch. Files become RGB as `image_file` says, at
    full resolution unless the `reading` may reduce them, and are resized with Pillow's bicubic
    filter. On CUDA the device decodes JPEG files that are trained on, unless the `reading` says
    otherwise: its pixels differ from Pillow's by a few levels.
    """

    def __init__(
        self,
        source: str | Path,
        size: int,
        *,
        train: bool,
        workers: int | None = None,
        crop: Crop = "random",
        device: torch.device | str = "cpu",
        reading: Reading = DEFAULT_READING,
        scan: bool = True,
        known: Mapping[str, Any] | None = None,
        on_bad_image: OnBadImage = "stop",
        outside_links: bool = False,
        columns: str | None = None,
    ) -> None:
        """List the files and, with `scan`, decode each of them once to find the bad ones.

        Processes of `deepaa.distributed` share the scan, so all of them must come here.

        Args:
            source: A folder that holds `train` and `val` (or `test`) with a folder per class, as
                ImageNet does; or a table, shards or a data set of Hugging Face, see `DataSpec`.
            size: Side of the square images.
            train: Training images, shuffled; otherwise the others in order, cut for evaluation.
            workers: Processes that decode; None for one per core, at most 16. 0 decodes here.
            crop: For training images (`crop_for` has that of a policy). "random" is a box of 8 to
                100 % of the picture, resized; "centre" the middle square after the shorter side was
                resized to `size`; "larger" the same with 256 / 224 of `size`.
            device: Where batches go.
            scan: Without it, a bad file stops the epoch in which it is met.
            known: What `scanned` said of these files before, instead of a scan while it fits them.
            on_bad_image: Whether the bad files "stop" here, all of them named, or are left out
                ("skip", which needs the scan) unless they are more than three and over 1 %, or a
                whole class.
            outside_links: Follow links that lead out of the folder.
            columns: As `DataSpec.columns`.
        """
        check_size(size)
        for name, value, kind in (("crop", crop, Crop), ("on_bad_image", on_bad_image, OnBadImage)):
            if value not in get_args(kind):
                choices = ", ".join(map(repr, get_args(kind)))
                raise ValueError(f"{name} should be one of {choices}, got {value!r}")
        if workers is not None and workers < 0:
            raise ValueError(f"workers should be 0 or more, got {workers}")
        how: dict[str, Any] = {"outside_links": outside_links, "columns": columns}
        tree = list_source(str(source), "train" if train else "test", **how)
        tree, self.report = check_files(
            tree, reading, scan=scan, known=known, on_bad_image=on_bad_image
        )
        """Which files are bad, and what else was noticed; None without a scan."""
        self.size, self.train, self.crop = size, train, crop
        self.device = torch.device(device)
        self.class_names = tree.class_names
        self.labels = torch.tensor(tree.labels, dtype=torch.int64)
        """Of all images, on the CPU."""
        self.decoder = _decoder_of(reading, self.device) if train else "pillow"
        """What decodes JPEG files: `pillow` in the workers, or `torchvision` on the device."""
        on_device = self.decoder == "torchvision"
        self._decoder = Decoder(
            tree, size, crop if train else None, reading, leaves_jpegs=on_device
        )
        self._on_device = DeviceDecoder(self.device, self._decoder.stored)
        self.side = self._decoder.side
        """Of the square images in a batch; `size` unless they are cut "larger"."""
        self._epoch: list[_Batch] | None = None
        """The batches of the epoch that is read now."""
        self._requests: list[Request] = []
        """All of them, for the loader, whose workers outlive an epoch."""
        self.workers = usable_cores(MOST_WORKERS) if workers is None else workers
        """Processes that decode; 0 for this one."""
        self.watch: Callable[[int, int], None] = lambda given, total: None
        """Is told every few seconds of an epoch how many of its images were given, of how many."""
        self._decoded, self._began = 0, time.perf_counter()
        self._seconds, self._device_seconds = 0.0, 0.0  # of the workers together, and here
        self._loader = _loader(self._decoder, self._requests, self.workers)

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 over names, lengths and labels of the files: cheap, and blind to their bytes."""
        names = map(bytes, self._decoder.files.names)
        return file_fingerprint(names, self._decoder.files.lengths(), self.labels.tolist())

    def scanned(self) -> dict[str, Any] | None:
        """What the scan found, to be given as `known` another time; None without one."""
        if self.report is None:
            return None
        return {"fingerprint": self.fingerprint, **self.report.to_json()}

    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """Some images uint8 (count, 3, size, size) as an evaluation sees them, and their labels.

        All, where there are fewer. The choice depends on nothing but the number of images: neither
        on the seed nor the crop.
        """
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0)).tolist()
        chosen = order[:count]
        views = []
        for view in in_threads(lambda i: self._decoder.evaluation_view(chosen[i]), len(chosen)):
            if isinstance(view, BadFile):
                raise self._bad(view)
            views.append(view)
        return torch.from_numpy(np.stack(views)), self.labels[chosen]

    def batches(
        self,
        epoch: int,
        batch: int,
        copies: int = 1,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> Iterator[StreamedBatch]:
        """The batches of an epoch; a second call ends the first one's.

        A training epoch is in the order of `deepaa.train.Training`, whose last batch has at least
        half of the images or is left out; its rows are all images of the first copy, then those
        of the second. Evaluation takes every image.

        Args:
            epoch: Decides order and crops, together with the seed.
            batch: Different images in a batch.
            copies: Rows for each image, each with a crop of its own; decoded once.
            rank: This process; it gets its neighbouring share of the rows of each batch.
            world: Processes in all.
        """
        if batch < 1 or copies < 1:
            raise ValueError(f"batch {batch}, copies {copies}: both should be at least 1")
        distributed.share(0, rank, world)  # refuses a rank that is none
        count = len(self)
        order = epoch_order(count, batch, seed, epoch) if self.train else torch.arange(count)
        batches: list[_Batch] = []
        for some in torch.split(order, batch):
            rows = batch_rows(some, copies, rank, world)
            by_image = (rows & INDEX).argsort(stable=True)  # so that each image is decoded once
            pieces = torch.split(by_image, PIECE)
            requests = [Request(seed, epoch, rows[p].numpy(), p.numpy()) for p in pieces]
            batches.append((rows, requests))
        self._epoch = batches
        self._requests[:] = [request for _, requests in batches for request in requests]
        return self._moved(self._assembled(batches))

    def _assembled(self, batches: list[_Batch]) -> Iterator[tuple[StreamedBatch, list[Jpegs]]]:
        """The batches in pinned memory where they go on to CUDA, and what is still to decode."""
        self._require_current(batches)
        self._decoded, self._began = 0, time.perf_counter()
        self._seconds, self._device_seconds = 0.0, 0.0
        pieces = iter(self._loader)
        given, total, shown_at = 0, sum(len(rows) for rows, _ in batches), self._began
        for rows, requests in batches:
            shape = (len(rows), 3, self.side, self.side)
            images = torch.empty(shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
            jpegs = []
            for _ in requests:
                self._require_current(batches)
                piece = self._next(pieces)
                images.index_copy_(0, piece.places, piece.images)
                if piece.jpegs is not None:
                    jpegs.append(piece.jpegs)
            labels = self.labels[rows & INDEX]
            if self.device.type == "cuda":
                labels, rows = labels.pin_memory(), rows.pin_memory()
            yield StreamedBatch(images, labels, rows), jpegs
            given, now = given + len(images), time.perf_counter()
            if now - shown_at >= SHOW_SECONDS:
                shown_at = now
                self.watch(given, total)

    def _require_current(self, batches: list[_Batch]) -> None:
        if self._epoch is not batches:
            raise RuntimeError("this epoch has ended: another one was begun")

    def decoding_rate(self) -> DecodingRate | None:
        """Of the epoch that is read now, or was read last; None before its first images."""
        if not self._decoded:
            return None
        hands, passed = max(1, self.workers), time.perf_counter() - self._began
        seconds = max(self._seconds / hands, self._device_seconds, 1e-9)
        busy = min(1.0, seconds / max(passed, 1e-9)) if self.workers else 1.0
        return DecodingRate(self._decoded, busy, self._decoded / seconds, passed)

    def _next(self, pieces: Iterator[Piece | BadFile]) -> Piece:
        try:
            piece = next(pieces)
        except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
            # `read_image` raises none of these: a worker, or the connection to it, has died
            why = (str(error) or "connection lost").splitlines()[0]
            raise RuntimeError(
                f"a process that decodes images died ({why}); memory or shared memory may be "
                f"short: take fewer than {self.workers} workers"
            ) from error
        if isinstance(piece, BadFile):
            raise self._bad(piece)
        self._decoded += piece.total
        self._seconds += piece.seconds
        return piece

    def _moved(
        self, batches: Iterator[tuple[StreamedBatch, list[Jpegs]]]
    ) -> Iterator[StreamedBatch]:
        """The batches on the device; on CUDA one is prepared while the one before is worked on."""
        if self.device.type != "cuda":
            for batch, jpegs in batches:
                moved = StreamedBatch(*(part.to(self.device) for part in batch))
                self._decode(jpegs, moved.images)
                yield moved
            return
        # a priority above that of training: its small kernels would wait behind whole steps
        stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        waiting: tuple[StreamedBatch, torch.cuda.Event] | None = None
        for batch, jpegs in batches:
            with torch.cuda.stream(stream):
                moved = StreamedBatch(*(p.to(self.device, non_blocking=True) for p in batch))
                self._decode(jpegs, moved.images)
                done = stream.record_event()
            if waiting is not None:
                yield _arrived(*waiting)
            waiting = moved, done
        if waiting is not None:
            yield _arrived(*waiting)

    def _decode(self, jpegs: list[Jpegs], images: Tensor) -> None:
        """Decode what is left of a batch into its images, which are on the device."""
        began = time.perf_counter()
        try:
            for places, squares in self._on_device.squares(jpegs):
                images.index_copy_(0, places.to(images.device), squares)
        except BadFileError as error:
            raise self._bad(error.file) from None
        self._device_seconds += time.perf_counter() - began

    def _bad(self, file: BadFile) -> BadImagesError:
        bad = file._replace(path=file.path.relative_to(self._decoder.files.root))
        report = ScanReport(self._decoder.files.place, len(self), (bad,), 0, {})
        return BadImagesError(report)


def _decoder_of(reading: Reading, device: torch.device) -> str:
    """What decodes JPEG files that are trained on."""
    if reading.decoder == "pillow" or (reading.decoder == "auto" and reading.reduce):
        return "pillow"
    if reading.decoder == "auto" and device.type != "cuda":
        return "pillow"
    problem = device_problem(device)
    if problem is None:
        return "torchvision"
    if reading.decoder == "torchvision":
        raise ValueError(f"decoder=torchvision cannot decode JPEG files on {device}: {problem}")
    _LOGGER.warning("Pillow decodes JPEG files, as torchvision cannot on %s: %s", device, problem)
    return "pillow"


def _loader(files: Decoder, requests: list[Request], workers: int) -> DataLoader[Piece | BadFile]:
    return DataLoader(
        files,
        batch_size=None,  # a request is a piece already
        sampler=requests,
        num_workers=workers,
        worker_init_fn=_leave_interrupts,
        persistent_workers=workers > 0,
        prefetch_factor=PREFETCH if workers else None,
        generator=torch.Generator(),  # its seeds are not used; the global generator is left alone
    )


def _leave_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the parent ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _arrived(batch: StreamedBatch, done: torch.cuda.Event) -> StreamedBatch:
    """The batch, for work on the current stream; the host does not wait."""
    current = torch.cuda.current_stream(batch.images.device)
    current.wait_event(done)
    for part in batch:
        part.record_stream(current)  # its memory is not given away before this stream is done
    return batch
