"""What `deepaa bench ops` found: records, tables to print, and the JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from deepaa.cli.bench.timing import Result, Setting
from deepaa.ops import c_kernels_available
from deepaa.runs import processor

FORMAT, VERSION = "deepaa-bench-ops", 1
NOTES = (
    "Everyone runs on one CPU thread; `cores` is CPU time over wall time.",
    "An image's operations are counted as drawn: identity counts for us and for torchvision alike.",
    "Inputs are made before the clock starts: PIL images, uint8 tensors or arrays one by one, or a "
    "batch on the device. Our times include drawing.",
    "`draws` is what gets a draw of its own; ratios are to the fastest peer that draws per image.",
    "Images are the embedded CIFAR-10 images; other sizes are those, resized (bicubic), plus noise "
    "of standard deviation 4.",
)


class SpeedRatio(NamedTuple):
    """Our batch path over the fastest peer that draws per image, in operations a second."""

    setting: Setting
    peer: str
    ratio: float


class OperationTime(NamedTuple):
    """Microseconds per image of one operation, averaged over its magnitudes."""

    setting: Setting
    operation: str
    batch_us: float
    pil_us: float | None
    """The same with Pillow, one image at a time; only on CPU."""


class OpsReport(NamedTuple):
    """Everything `deepaa bench ops` found."""

    created: str
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    options: dict[str, Any]
    results: list[Result]
    comparisons: list[SpeedRatio]
    breakdown: list[OperationTime]


class TextTable(NamedTuple):
    """A table ready to print."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def ratios_to_peers(results: Sequence[Result]) -> list[SpeedRatio]:
    """Our batch path over the fastest peer that draws per image, where both ran."""
    found = []
    for setting in dict.fromkeys(result.setting for result in results):
        rates = {
            f"{r.name} ({r.takes})": r.operation_rate
            for r in results
            if r.setting == setting and r.operation_rate is not None and r.draws == "image"
        }
        ours = rates.get("deepaa batch (uint8 batch)")
        theirs = {name: rate for name, rate in rates.items() if not name.startswith("deepaa")}
        if ours is not None and theirs:
            peer = max(theirs, key=lambda name: theirs[name])
            found.append(SpeedRatio(setting, peer, ours / theirs[peer]))
    return found


def title(setting: Setting) -> str:
    """`CPU, 32 x 32, batch 4,096, 2 layers`."""
    device, size, layers, batch = setting
    plural = "" if layers == 1 else "s"
    return f"{device.upper()}, {size} x {size}, batch {batch:,}, {layers} layer{plural}"


def ops_tables(report: OpsReport) -> list[TextTable]:
    """The report as text: a table per setting, then the operations one by one."""
    settings = list(dict.fromkeys(result.setting for result in report.results))
    ratios = {c.setting: f"; {c.ratio:.2f} times {c.peer}" for c in report.comparisons}
    found = []
    for setting in settings:
        rows = [_text_row(result) for result in report.results if result.setting == setting]
        found.append(TextTable(title(setting) + ratios.get(setting, ""), _COLUMNS, rows))
    for setting in dict.fromkeys(time.setting for time in report.breakdown):
        lines = [
            (t.operation, f"{t.batch_us:.3f}", "" if t.pil_us is None else f"{t.pil_us:.3f}")
            for t in report.breakdown
            if t.setting == setting
        ]
        columns = ("operation", "batch", "PIL")
        found.append(TextTable(title(setting) + ": microseconds per image", columns, lines))
    return found


_COLUMNS = (
    "who",
    "takes",
    "draws per",
    "operations/s",
    "images/s",
    "slowest..fastest",
    "operations",
    "cores",
    "extra memory",
    "note",
)


def _text_row(result: Result) -> tuple[str, ...]:
    head = (result.name, result.takes, result.draws)
    if result.rate is None:
        return (*head, "-", "-", "-", "-", "-", "-", result.note)
    return (
        *head,
        f"{result.operation_rate:,.0f}",
        f"{result.rate:,.0f}",
        f"{result.slowest:,.0f}..{result.fastest:,.0f}",
        str(result.operations),
        f"{result.cores:.2f}",
        "" if result.memory is None else f"{result.memory:.2f} x",
        result.note,
    )


def report_json(report: OpsReport) -> str:
    """The report as JSON text."""

    def plain(record: Any) -> dict[str, Any]:
        fields = record._asdict()
        return {**fields.pop("setting")._asdict(), **fields}

    content = {"format": FORMAT, "version": VERSION, "notes": NOTES, **report._asdict()}
    for part in ("results", "comparisons", "breakdown"):
        content[part] = [plain(record) for record in content[part]]
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def writable(path: Path) -> Path:
    """`path`, if a file can be made there: better to know before minutes of measuring."""
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    return path


def hardware(devices: Sequence[str]) -> dict[str, Any]:
    """Processor, which of our kernels serve it, load before the run, and the GPU if it is used."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found: dict[str, Any] = {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": 1,
        "cpu_kernels": "C" if c_kernels_available() else "torch",
        "load_before": load,
        "gpu": None,
    }
    if "cuda" in devices:
        gpu = torch.cuda.get_device_properties(0)
        found["gpu"] = {"name": gpu.name, "memory": gpu.total_memory, "cuda": torch.version.cuda}
    return found
