"""The measurement of `deepaa bench ops`: settings, images, results, each operation alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from deepaa.cli.bench.peers import LIBRARIES, contestants
from deepaa.cli.bench.tables import (
    OperationTime,
    OpsReport,
    hardware,
    ratios_to_peers,
    report_json,
    title,
    writable,
)
from deepaa.cli.bench.timing import Result, Setting, measure, median_seconds, single_thread
from deepaa.data import load_embedded
from deepaa.distributed import check_device
from deepaa.ops import CIFAR, IMAGENET, Draw, Operation, apply_batch, run_pil
from deepaa.policy import Policy
from deepaa.runs import versions, write_file

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


def measure_ops(
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
        breakdown: Also time each of our operations alone.
    """
    check_device(device)
    devices = {"auto": ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]}.get(
        device, [device.partition(":")[0]]
    )
    if space not in SPACES:
        raise ValueError(f"no space {space!r}; choose from {', '.join(SPACES)}")
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
                results += measure(entrants, images, policy, seconds, setting)
                if breakdown:
                    times += operation_times(setting, images, policy, seconds / 10)
    report = OpsReport(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions("opencv-python-headless", *LIBRARIES),
        hardware=machine,
        options={"seconds": seconds, "peers": list(peers), "space": space},
        results=results,
        comparisons=ratios_to_peers(results),
        breakdown=times,
    )
    if path is not None:
        write_file(path, report_json(report).encode())
    return report


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
    from deepaa.ops import tensor_to_pil

    draw = _one_operation(operation, len(images), policy)
    steps = zip(draw.choice[:, 0].tolist(), draw.uniform[:, 0].tolist(), strict=True)
    work = [(tensor_to_pil(image), [step]) for image, step in zip(images, steps, strict=True)]

    def run() -> None:
        for image, step in work:
            run_pil(image, step, policy.table)

    return median_seconds(run, images.device, seconds) / len(images)
