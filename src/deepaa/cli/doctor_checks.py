"""What `deepaa doctor` finds out: whether deepaa runs here, with kernels equal to Pillow."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, NamedTuple

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from deepaa.data import embedded_is_intact, load_embedded
from deepaa.ops import (
    BLENDS,
    CIFAR,
    IMAGENET,
    Apply,
    Space,
    batch_kernels,
    compare_with_pillow,
    pil_to_tensor,
    pillow_rounds_blends,
    tensor_to_pil,
)
from deepaa.policy import load_policy, policy_names
from deepaa.report import Renderable, plural
from deepaa.runs import devices, versions

SHAPES = ((3, 32, 32), (1, 33, 17), (3, 131, 140))
"""(C, H, W) of the images compared; the large cutout works from 121 pixels a side."""

Status = Literal["ok", "note", "failed"]


class Check(NamedTuple):
    """One thing that was tried. A note is worth knowing and no fault of this installation."""

    name: str
    status: Status
    detail: str


class Report(NamedTuple):
    """What `deepaa doctor` tells."""

    versions: dict[str, str | None]
    """Of Python and the packages; None for one that is not installed."""
    system: str
    devices: tuple[str, ...]
    kernels: dict[str, str]
    """Device to the kernels that batches on it use."""
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.status != "failed" for check in self.checks)


def examine() -> Report:
    """Versions, devices and all checks; takes a few seconds."""
    return Report(
        versions=versions(),
        system=f"{platform.system()} {platform.machine()}",
        devices=devices(),
        kernels=_kernels(),
        checks=tuple(_checks()),
    )


def _kernels() -> dict[str, str]:
    """Which kernels a batch uses, by device."""
    here = {name for name, _, _ in batch_kernels()}
    slow = "torch (slower; there is no C compiler, or DEEPAA_NATIVE=0)"
    found = {"cpu": "compiled C" if "CPU compiled" in here else slow}
    if "CUDA torch" not in here:
        found["cuda"] = "none: torch finds no CUDA device"
    else:
        slow = "torch (slower; Triton is not installed or does not run)"
        found["cuda"] = "Triton" if "CUDA Triton" in here else slow
    return found


def _checks() -> Iterator[Check]:
    blend = _blend()
    yield blend
    samples = [_sample(*shape) for shape in SHAPES]
    for space, name in ((CIFAR, "CIFAR"), (IMAGENET, "ImageNet")):
        for kernels, device, apply in batch_kernels():
            equality = partial(_equality, space, samples, device, apply, fused=blend.status != "ok")
            yield _guarded(f"{name} space, {kernels} = Pillow", equality)
    yield _guarded("embedded images", _embedded)
    yield _guarded("named policies", _policies)


def _guarded(name: str, check: Callable[[], tuple[Status, str]]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:  # a broken driver or compiler must not end the examination
        message = " ".join(str(error).split())[:300]
        return Check(name, "failed", f"{type(error).__name__}: {message}")


def _blend() -> Check:
    if pillow_rounds_blends():
        return Check("Pillow's blend", "ok", "not fused, the reference arithmetic")
    return Check(
        "Pillow's blend",
        "note",
        "this Pillow fuses multiply and add, so PIL images may differ from batches by 1 in a few "
        "values; batches are the same everywhere",
    )


def _sample(channels: int, height: int, width: int) -> Tensor:
    """Noise, a ramp, one colour and a photograph: uint8 (4, C, H, W)."""
    generator = torch.Generator().manual_seed(0)
    shape = (channels, height, width)
    noise = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    ramp = (torch.arange(height)[:, None] * 3 + torch.arange(width) * 2) % 256
    one_colour = torch.full(shape, 127, dtype=torch.uint8)
    plane = tensor_to_pil(load_embedded().train_images[0]).resize((width, height))
    photo = pil_to_tensor(plane if channels == 3 else plane.convert("L"))
    return torch.stack([noise, ramp.to(torch.uint8).expand(shape), one_colour, photo])


def _equality(
    space: Space, samples: list[Tensor], device: str, apply: Apply, *, fused: bool
) -> tuple[Status, str]:
    found = compare_with_pillow(space, samples, device, apply)
    detail = f"{found.differing} of {found.values:,} values differ"
    if not found.differing:
        return "ok", detail
    detail += f" by up to {found.largest}, in {', '.join(found.operations)}"
    excused = fused and found.largest <= 1 and set(found.operations) <= set(BLENDS)
    return "note" if excused else "failed", detail


def _embedded() -> tuple[Status, str]:
    if embedded_is_intact():
        return "ok", "4,000 + 1,000, checksums match"
    return "failed", "checksums differ; install deepaa again"


def _policies() -> tuple[Status, str]:
    names = policy_names()
    for name in names:
        load_policy(name)
    return "ok", f"{len(names)} load"


def doctor_lines(report: Report) -> Iterator[Renderable]:
    """The report for a terminal: versions, devices and checks."""
    versions = (f"{name} {version or '(missing)'}" for name, version in report.versions.items())
    head = Table.grid(padding=(0, 2, 0, 0))
    head.add_column(style="bold", no_wrap=True)
    head.add_column()
    head.add_row("versions", ", ".join(versions))
    head.add_row("system", report.system)
    for device in report.devices:
        head.add_row("device", device)
    for device, name in report.kernels.items():
        head.add_row("kernels", f"{device}: {name}")
    yield head
    yield Text()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_column()
    styles = {"ok": "green", "note": "yellow", "failed": "bold red"}
    for check in report.checks:
        grid.add_row(Text(check.status, style=styles[check.status]), check.name, check.detail)
    yield grid
    yield Text()
    failed = sum(check.status == "failed" for check in report.checks)
    outcome = f"{plural(failed, 'check')} failed" if failed else "all checks passed"
    yield Text(outcome, style="bold red" if failed else "bold green")
