"""`deepaa doctor`: whether deepaa runs here, with kernels equal to Pillow."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from deepaa.cli.options import AsJson, plain_console, print_json

if TYPE_CHECKING:
    from torch import Tensor

    from deepaa.ops import Apply, Space

SHAPES = ((3, 32, 32), (1, 33, 17), (3, 131, 140))
"""(C, H, W) of the images compared; the large cutout works from 121 pixels a side."""
STYLES = {"ok": "green", "note": "yellow", "failed": "bold red"}
Status = Literal["ok", "note", "failed"]


class Check(NamedTuple):
    """One thing that was tried. A note is worth knowing and no fault of this installation."""

    name: str
    status: Status
    detail: str


def doctor(as_json: AsJson = False) -> None:
    """Check this installation: versions, devices, and every kernel against Pillow.

    All 139 transformations of both spaces run on CPU, and on CUDA if there is one. Exit code 1
    means that a check failed.
    """
    report = examine()
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report["passed"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Versions, devices, kernels and all checks; takes a few seconds."""
    from deepaa.runs import devices, versions

    checks = list(_checks())
    return {
        "passed": all(check.status != "failed" for check in checks),
        "versions": versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "devices": devices(),
        "kernels": _kernels(),
        "checks": checks,
    }


def _kernels() -> dict[str, str]:
    """Which kernels a batch uses, by device, and why not faster ones."""
    from deepaa.ops import cpu_kernels, cuda_kernels

    return {"cpu": cpu_kernels(), "cuda": cuda_kernels()}


def _checks() -> Iterator[Check]:
    from deepaa.ops import CIFAR, IMAGENET, batch_kernels, pillow_rounds_blends

    fused = not pillow_rounds_blends()
    detail = "not fused, the reference arithmetic"
    if fused:
        detail = (
            "this Pillow fuses multiply and add, so PIL images may differ from batches by 1 in a "
            "few values; batches are the same everywhere"
        )
    yield Check("Pillow's blend", "note" if fused else "ok", detail)
    samples = [_sample(*shape) for shape in SHAPES]
    for space, name in ((CIFAR, "CIFAR"), (IMAGENET, "ImageNet")):
        for kernels, device, apply in batch_kernels():
            equality = partial(_equality, space, samples, device, apply, fused=fused)
            yield _guarded(f"{name} space, {kernels} = Pillow", equality)
    yield _guarded("embedded images", _embedded)
    yield _guarded("named policies", _policies)


def _guarded(name: str, check: Callable[[], tuple[Status, str]]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:  # a broken driver or compiler must not end the examination
        message = " ".join(str(error).split())[:300]
        return Check(name, "failed", f"{type(error).__name__}: {message}")


def _sample(channels: int, height: int, width: int) -> Tensor:
    """Noise, a ramp, one colour and a photograph: uint8 (4, C, H, W)."""
    import torch

    from deepaa.data import load_embedded
    from deepaa.ops import pil_to_tensor, tensor_to_pil

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
    from deepaa.ops import BLENDS, compare_with_pillow

    found = compare_with_pillow(space, samples, device, apply)
    detail = f"{found.differing} of {found.values:,} values differ"
    if not found.differing:
        return "ok", detail
    detail += f" by up to {found.largest}, in {', '.join(found.operations)}"
    excused = fused and found.largest <= 1 and set(found.operations) <= set(BLENDS)
    return "note" if excused else "failed", detail


def _embedded() -> tuple[Status, str]:
    from deepaa.data import embedded_is_intact

    if embedded_is_intact():
        return "ok", "4,000 + 1,000, checksums match"
    return "failed", "checksums differ; install deepaa again"


def _policies() -> tuple[Status, str]:
    from deepaa.policy import load_policy, policy_names

    names = policy_names()
    for name in names:
        load_policy(name)
    return "ok", f"{len(names)} load"


def _print(report: dict[str, Any]) -> None:
    """Print versions, devices and checks as tables."""
    from rich.table import Column, Table
    from rich.text import Text

    from deepaa.files import plural

    console = plain_console()
    versions = (f"{name} {version or '(missing)'}" for name, version in report["versions"].items())
    head = Table.grid(Column(style="bold", no_wrap=True), Column(), padding=(0, 2, 0, 0))
    head.add_row("versions", ", ".join(versions))
    head.add_row("system", report["system"])
    for device in report["devices"]:
        head.add_row("device", device)
    for device, name in report["kernels"].items():
        head.add_row("kernels", f"{device}: {name}")
    grid = Table.grid(Column(no_wrap=True), Column(), Column(), padding=(0, 2, 0, 0))
    for check in report["checks"]:
        grid.add_row(Text(check.status, STYLES[check.status]), check.name, check.detail)
    failed = sum(check.status == "failed" for check in report["checks"])
    outcome = f"{plural(failed, 'check')} failed" if failed else "all checks passed"
    for part in (head, "", grid, "", Text(outcome, "bold red" if failed else "bold green")):
        console.print(part)
