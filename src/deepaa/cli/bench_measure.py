"""The measurement of `deepaa bench ops`: contestants in turn on one thread, and its JSON file."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, islice, product
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from deepaa.cli.bench import title
from deepaa.cli.bench_peers import FORMS, LIBRARIES, PER_IMAGE, Contestant, contestants
from deepaa.data import load_embedded
from deepaa.ops import Draw, Table, apply_batch, batch_kernels, run_pil
from deepaa.policy import SPACES, Policy
from deepaa.runs import processor, versions

REPEATS = 5
"""Fewest repeats of a contestant."""
SHORTEST = 0.02
"""Least seconds of a repeat, so that the clock and the last wait for the device hardly count."""
DRAWS = 8
"""Calls in a repeat of those that draw once per batch: one call would time one draw."""
NOT_INSTALLED = "not installed (pip install 'deepaa[bench]')"
_SETTINGS: dict[tuple[str, int], tuple[tuple[int, int], ...]] = {  # (layers, batch)
    ("cpu", 32): ((2, 4096),),
    ("cpu", 224): ((2, 64),),
    ("cuda", 32): ((6, 65536), (6, 2048)),
    ("cuda", 224): ((6, 512),),
}
_PIXELS = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Pixels in a batch of images of another size."""


class Setting(NamedTuple):
    """What is augmented where: `batch` square images of `size` pixels under `layers` of ours."""

    device: str
    size: int
    layers: int
    batch: int


class Result(NamedTuple):
    """One contestant in one setting; rates are images a second, None if it did not run."""

    name: str
    takes: str
    draws: str
    operations: int | None = None
    rate: float | None = None
    """Median of the repeats."""
    slowest: float | None = None
    fastest: float | None = None
    operation_rate: float | None = None
    """Applied operations a second: `rate` times `operations`."""
    images: int = 0
    """Images per repeat."""
    repeats: int = 0
    memory: float | None = None
    """Peak memory beyond the input, in inputs; CUDA only."""
    cores: float | None = None
    """CPU seconds per second of wall time: about 1 if one thread worked."""
    note: str = ""


def settings_for(
    device: str, sizes: Sequence[int], batch: int | None = None, layers: int | None = None
) -> list[Setting]:
    """The settings of the published tables, with what is given in their place; auto is both."""
    names = [device.partition(":")[0]]
    if device == "auto":
        names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    found: list[Setting] = []
    for name, size in product(names, sizes):
        default = ((2 if name == "cpu" else 6, max(1, _PIXELS[name] // size**2)),)
        for default_layers, default_batch in _SETTINGS.get((name, size), default):
            found.append(Setting(name, size, layers or default_layers, batch or default_batch))
    return list(dict.fromkeys(found))


def bench_images(count: int, size: int) -> Tensor:
    """uint8 (count, 3, size, size): embedded images, resized with a little noise, used in turn."""
    distinct = min(count, 512 if size > 32 else 4000)
    images = load_embedded().train_images[:distinct]
    if size != images.shape[-1]:
        generator = torch.Generator().manual_seed(0)
        parts = []
        for part in torch.split(images, 64):  # 512 images of 224 pixels are 300 MB as floats
            large = F.interpolate(part.float(), size=(size, size), mode="bicubic")
            large += 4 * torch.randn(large.shape, generator=generator)
            parts.append(large.round().clamp(0, 255).to(torch.uint8))
        images = torch.cat(parts)
    return images[torch.arange(count) % len(images)]


def measure_ops(
    settings: Sequence[Setting],
    peers: Sequence[str],
    *,
    space: str = "cifar",
    seconds: float,
    breakdown: bool = False,
) -> dict[str, Any]:
    """Rates of our operations and of the peers' in each setting, as the JSON file has them."""
    options = {"seconds": seconds, "peers": list(peers), "space": space}
    report = report_head("deepaa-bench-ops", {setting.device for setting in settings}, options)
    report["versions"] = versions("opencv-python-headless", *LIBRARIES)
    report |= {"results": [], "comparisons": [], "breakdown": []}
    with single_thread():
        for setting in settings:
            row = setting._asdict()
            typer.echo(title(row), err=True)
            policy = Policy.uniform(SPACES[space], setting.layers)
            images = bench_images(setting.batch, setting.size).to(setting.device)
            found = measure(contestants(peers, setting.device), images, policy, seconds)
            report["results"] += [{**row, **result._asdict()} for result in found]
            report["comparisons"] += [{**row, **ratio} for ratio in ratios_to_peers(found)]
            times = operation_times(images, policy, seconds / 10) if breakdown else []
            report["breakdown"] += [{**row, **each} for each in times]
    return report


def ratios_to_peers(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Our ways over the fastest peer that draws per image, in operations a second."""
    ran = [r for r in results if r.operation_rate and r.draws == "image"]
    theirs = [r for r in ran if not r.name.startswith("deepaa")]
    if not theirs:
        return []
    fastest = max(theirs, key=lambda r: r.operation_rate or 0)
    peer, rate = f"{fastest.name} ({fastest.takes})", fastest.operation_rate or math.nan
    return [
        {"name": r.name, "takes": r.takes, "peer": peer, "ratio": r.operation_rate / rate}
        for r in ran
        if r.operation_rate and r not in theirs
    ]


def report_head(name: str, devices: Collection[str], options: dict[str, Any]) -> dict[str, Any]:
    """What the file of every benchmark begins with: versions, machine with its load, options."""
    hardware: dict[str, Any] = {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": 1,
        "cpu_kernels": "C" if next(batch_kernels())[0] == "CPU compiled" else "torch",
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gpu": None,
    }
    if "cuda" in devices:
        gpu = torch.cuda.get_device_properties(0)
        hardware["gpu"] = {"name": gpu.name, "memory": gpu.total_memory, "cuda": torch.version.cuda}
    return {
        "format": name,
        "version": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware,
        "options": options,
    }


# Timing


@contextmanager
def single_thread() -> Iterator[None]:
    """torch, OpenCV, and libraries loaded meanwhile, on one thread; restored afterwards."""
    with ExitStack() as restored:
        restored.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        with suppress(ImportError):
            import cv2

            restored.callback(cv2.setNumThreads, cv2.getNumThreads())
            cv2.setNumThreads(1)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            if (before := os.environ.get(name)) is None:
                restored.callback(os.environ.pop, name, None)
            else:
                restored.callback(os.environ.__setitem__, name, before)
            os.environ[name] = "1"
        yield


def stopwatch(work: Callable[[], object], device: torch.device) -> float:
    """Seconds `work` takes, until the device has finished it."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def calls_for(seconds_per_call: float, seconds: float) -> int:
    """Calls that make a repeat last `SHORTEST`, or its share of a shorter budget."""
    shortest = min(SHORTEST, seconds / REPEATS)
    return max(1, math.ceil(shortest / max(seconds_per_call, 1e-9)))


def measure(
    contestants: Sequence[Contestant], images: Tensor, policy: Policy, seconds: float
) -> list[Result]:
    """A result of each contestant on `images`, in order; what fails says why and stops nobody else.

    Contestants take turns, a repeat each, so that a machine that slows down slows all of them.
    """
    turns = [_turns(contestant, images, policy, seconds) for contestant in contestants]
    found: list[Result | None] = [None] * len(turns)
    with torch.no_grad():
        while None in found:
            found = [result or next(turn) for result, turn in zip(found, turns, strict=True)]
    return [result for result in found if result is not None]


def _turns(
    contestant: Contestant, images: Tensor, policy: Policy, seconds: float
) -> Iterator[Result | None]:
    """Warm the contestant up, then time one repeat in each turn; the last turn gives its result."""
    result = Result(contestant.name, contestant.takes, contestant.draws)
    try:
        device = images.device
        if contestant.one_at_a_time:
            images = images[: PER_IMAGE[device.type]]
        made, inputs = contestant.make(policy), contestant.prepare(images)
        operations = contestant.operations or policy.depth
        calls = DRAWS if contestant.draws == "batch" else 1

        def repeat() -> None:
            for _ in range(calls):  # results are dropped one by one, as a training loop would
                contestant.augment(made, inputs)

        counts_memory = device.type == "cuda" and not contestant.one_at_a_time
        if counts_memory:
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        repeat()  # compiles and fills caches
        calls *= calls_for(stopwatch(repeat, device), seconds)
        if counts_memory:
            extra = torch.cuda.max_memory_allocated(device) - before
            result = result._replace(memory=extra / (inputs.numel() * inputs.element_size()))
        times: list[float] = []
        cpu_seconds = 0.0
        while len(times) < REPEATS or sum(times) < seconds:
            yield None
            began = time.process_time()
            times.append(stopwatch(repeat, device))
            cpu_seconds += time.process_time() - began
        rates = [len(images) * calls / max(t, 1e-9) for t in times]
        yield result._replace(
            operations=operations,
            rate=median(rates),
            slowest=min(rates),
            fastest=max(rates),
            operation_rate=median(rates) * operations,
            images=len(images) * calls,
            repeats=len(rates),
            cores=cpu_seconds / max(sum(times), 1e-9),
        )
    except Exception as error:  # a peer's fault must not cost the other results
        yield result._replace(memory=None, note=_why(error, contestant))


def _why(error: Exception, contestant: Contestant) -> str:
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if missing.split(".")[0] == contestant.library:
        return NOT_INSTALLED
    reason = str(error).strip().splitlines() or [""]
    return f"failed: {type(error).__name__}: {reason[0]}"


# Each operation alone


def operation_times(images: Tensor, policy: Policy, seconds: float) -> list[dict[str, Any]]:
    """Microseconds per image of each operation of the policy's table, one layer of it alone.

    On a CPU the same with Pillow, one image at a time.
    """
    found, table, device = [], policy.table, images.device
    pictures = FORMS["PIL"](images[:64]) if device.type == "cpu" else []
    for operation in table.operations:
        rows = [i for i, row in enumerate(table.rows) if row.operation == operation]
        choice = torch.tensor(list(islice(cycle(rows), len(images))))[:, None]  # each magnitude
        draw = Draw(choice, policy.first_layers(1).sample(len(images)).uniform)
        batch = partial(apply_batch, images, draw.to(device), table)
        times = {"batch_us": _microseconds(batch, device, seconds) / len(images), "pil_us": None}
        if pictures:
            steps = zip(draw.choice[:, 0].tolist(), draw.uniform[:, 0].tolist(), strict=True)
            one_by_one = partial(_augment_pictures, list(zip(pictures, steps, strict=False)), table)
            times["pil_us"] = _microseconds(one_by_one, device, seconds) / len(pictures)
        found.append({"operation": operation.name, **times})
    return found


def _augment_pictures(work: Sequence[tuple[Any, Any]], table: Table) -> None:
    for picture, step in work:
        run_pil(picture, [step], table)


def _microseconds(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Median time of one call of `work`, over at least five repeats and `seconds`."""
    work()
    calls = calls_for(stopwatch(work, device), seconds)
    times: list[float] = []
    while len(times) < REPEATS or sum(times) < seconds:
        times.append(stopwatch(lambda: [work() for _ in range(calls)], device))
    return 1e6 * median(times) / calls
