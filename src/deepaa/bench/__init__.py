"""Speed of the operations beside other libraries': `deepaa bench ops`.

`main_ops` returns a report; `tables` turns it into text for the command to print.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from deepaa.bench.peers import LIBRARIES, contestants
from deepaa.bench.report import (
    OperationTime,
    OpsReport,
    Result,
    Setting,
    TextTable,
    as_result,
    compare,
    hardware,
    tables,
    title,
    versions,
    writable,
    write_report,
)
from deepaa.bench.timing import measure, median_seconds, single_thread
from deepaa.data import load_embedded
from deepaa.ops import Draw, apply_batch, engine
from deepaa.policy import Policy
from deepaa.space import CIFAR, IMAGENET, Operation

__all__ = ["LIBRARIES", "OpsReport", "TextTable", "main_ops", "tables"]

SPACES = {"cifar": CIFAR, "imagenet": IMAGENET}
_SETTINGS: dict[tuple[str, int], tuple[tuple[int, int], ...]] = {  # (layers, batch)
    ("cpu", 32): ((2, 4096),),
    ("cpu", 224): ((2, 64),),
    ("cuda", 32): ((6, 65536), (6, 2048)),
    ("cuda", 224): ((6, 512),),
}
_PIXELS = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Pixels in a batch of images of another size."""

_log = logging.getLogger(__name__)


def settings_for(
    device: str, sizes: Sequence[int], batch: int | None = None, layers: int | None = None
) -> list[Setting]:
    """The settings of the published tables, with what is given in their place."""
    found: list[Setting] = []
    for size in sizes:
        default = ((2 if device == "cpu" else 6, max(1, _PIXELS[device] // size**2)),)
        for default_layers, default_batch in _SETTINGS.get((device, size), default):
            found.append(Setting(device, size, layers or default_layers, batch or default_batch))
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


def main_ops(
    *,
    sizes: Sequence[int] = (32, 224),
    batch: int | None = None,
    layers: int | None = None,
    device: str = "auto",
    seconds: float = 2.0,
    peers: Sequence[str] = LIBRARIES,
    space: str = "cifar",
    breakdown: bool = False,
    out: str | Path | None = None,
) -> OpsReport:
    """Rates of our operations and of the peers', side by side, also written to `out` as JSON.

    Args:
        sizes: Sides of the square images.
        batch: Images in a batch; by default what the published tables use.
        layers: Layers of our policy, uniform over the space; by default 2 on CPU and 6 on CUDA.
        device: "cpu", "cuda", or "auto" for both where there is a CUDA device.
        seconds: Least time spent on each contestant, in at least five repeats.
        peers: Libraries to compare with, from `peers.LIBRARIES`.
        space: "cifar" or "imagenet".
        breakdown: Also time each of our operations alone.
    """
    devices = _devices(device)
    _check(sizes, batch, layers, seconds, space)
    path = None if out is None else writable(Path(out))
    results: list[Result] = []
    times: list[OperationTime] = []
    machine = hardware(devices)
    with single_thread():
        for name in devices:
            entrants = contestants(peers, name)
            for setting in settings_for(name, sizes, batch, layers):
                _log.info("%s", title(setting))
                policy = Policy.uniform(SPACES[space], setting.layers)
                images = bench_images(setting.batch, setting.size).to(name)
                timings = measure(entrants, images, policy, seconds)
                results += [as_result(setting, timing) for timing in timings]
                if breakdown:
                    times += operation_times(setting, images, policy, seconds / 10)
    report = OpsReport(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        hardware=machine,
        options={"seconds": seconds, "peers": list(peers), "space": space},
        results=results,
        comparisons=compare(results),
        breakdown=times,
    )
    if path is not None:
        write_report(report, path)
    return report


def _devices(device: str) -> list[str]:
    if device == "auto":
        return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    if device not in ("cpu", "cuda"):
        raise ValueError(f"no device {device!r}; choose from auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no CUDA device; choose cpu or auto")
    return [device]


def _check(
    sizes: Sequence[int], batch: int | None, layers: int | None, seconds: float, space: str
) -> None:
    if not sizes:
        raise ValueError("give at least one size")
    numbers = [("size", size) for size in sizes] + [("batch", batch), ("layers", layers)]
    for name, value in numbers:
        if value is not None and value < 1:
            raise ValueError(f"{name} should be at least 1, got {value}")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"seconds should be above 0, got {seconds}")
    if space not in SPACES:
        raise ValueError(f"no space {space!r}; choose from {', '.join(SPACES)}")


def operation_times(
    setting: Setting, images: Tensor, policy: Policy, seconds: float
) -> list[OperationTime]:
    """Microseconds per image of each operation of the policy's table, one layer of it alone."""
    return [
        OperationTime(
            setting,
            operation.name,
            _batch_seconds(operation, images, policy, seconds) * 1e6,
            _pil_seconds(operation, images[:64], policy, seconds) * 1e6
            if images.device.type == "cpu"
            else None,
        )
        for operation in policy.table.operations
    ]


def _one_operation(operation: Operation, n: int, policy: Policy) -> Draw:
    """A draw of one layer whose rows are all of one operation, each magnitude in turn."""
    rows = [i for i, row in enumerate(policy.table.rows) if row.operation == operation]
    choice = torch.tensor(list(islice(cycle(rows), n)))[:, None]
    return Draw(choice, policy.first_layers(1).sample(n).uniform)


def _batch_seconds(operation: Operation, images: Tensor, policy: Policy, seconds: float) -> float:
    draw = _one_operation(operation, len(images), policy).to(images.device)
    call = median_seconds(lambda: apply_batch(images, draw, policy.table), images.device, seconds)
    return call / len(images)


def _pil_seconds(operation: Operation, images: Tensor, policy: Policy, seconds: float) -> float:
    from deepaa.ops.convert import tensor_to_pil

    draw = _one_operation(operation, len(images), policy)
    steps = zip(draw.choice[:, 0].tolist(), draw.uniform[:, 0].tolist(), strict=True)
    work = [(tensor_to_pil(image), [step]) for image, step in zip(images, steps, strict=True)]

    def run() -> None:
        for image, step in work:
            engine.run_pil(image, step, policy.table)

    return median_seconds(run, images.device, seconds) / len(images)
