"""Whether this machine can run deepaa, and whether its kernels equal Pillow's here.

Nothing is printed: `examine` returns a `Report`.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from typing import Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from deepaa.data import embedded_is_intact, load_embedded
from deepaa.keys import draw_words, sample_keys
from deepaa.ops import Draw, apply_batch, apply_pil, engine, native
from deepaa.ops.convert import pil_to_tensor, tensor_to_pil
from deepaa.ops.plan import plan_for, resolve
from deepaa.policy_file import load_policy, policy_names
from deepaa.space import CIFAR, IMAGENET, Space, Table

PACKAGES = ("deepaa", "torch", "torchvision", "numpy", "pillow", "triton")
SHAPES = ((3, 32, 32), (1, 33, 17), (3, 131, 140))
"""(C, H, W) of the images compared; the large cutout works from 121 pixels a side."""
BLENDS = ("contrast", "color", "brightness", "sharpness")
"""Operations for which Pillow blends two images; a fused Pillow rounds them differently."""

Status = Literal["ok", "note", "failed"]
Apply = Callable[[Tensor, Draw, Table], Tensor]


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


class Difference(NamedTuple):
    """How far batched results are from Pillow's."""

    differing: int
    values: int
    operations: tuple[str, ...]
    """Those with differing values."""
    largest: int
    """Greatest difference of two values."""


def examine() -> Report:
    """Versions, devices and all checks; takes a few seconds."""
    return Report(
        versions=versions(),
        system=f"{platform.system()} {platform.machine()}",
        devices=devices(),
        kernels=kernels(),
        checks=tuple(_checks()),
    )


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages that matter here."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = getattr(sys.modules.get(package), "__version__", None)
    return found


def devices() -> tuple[str, ...]:
    """The CPU and each CUDA device, in words."""
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    found = [f"cpu: {cores} cores, torch uses {threads} thread{'s' if threads > 1 else ''}"]
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        memory = about.total_memory / 2**30
        capability = f"compute capability {about.major}.{about.minor}"
        found.append(f"cuda:{i}: {about.name}, {memory:.0f} GiB, {capability}")
    return tuple(found)


def kernels() -> dict[str, str]:
    """Which kernels a batch uses, by device."""
    slow = "torch (slower; there is no C compiler, or DEEPAA_NATIVE=0)"
    found = {"cpu": "compiled C" if native.available() else slow}
    if torch.cuda.is_available():
        found["cuda"] = "Triton" if _triton_serves() else "torch (slower; Triton is not installed)"
    else:
        found["cuda"] = "none: torch finds no CUDA device"
    return found


def _triton_serves() -> bool:
    return torch.cuda.is_available() and versions()["triton"] is not None


def _checks() -> Iterator[Check]:
    blend = probe_blend()
    yield blend
    for space, name in ((CIFAR, "CIFAR"), (IMAGENET, "ImageNet")):
        for path, device, apply in _paths():
            equality = partial(_equality, space, device, apply, fused=blend.status != "ok")
            yield _guarded(f"{name} space, {path} = Pillow", equality)
    yield _guarded("embedded images", _embedded)
    yield _guarded("named policies", _policies)


def _paths() -> Iterator[tuple[str, str, Apply]]:
    """Every way a batch can be computed here."""
    if native.available():
        yield "CPU compiled", "cpu", apply_batch
    yield "CPU torch", "cpu", _apply_plain
    if torch.cuda.is_available():
        if _triton_serves():
            yield "CUDA Triton", "cuda", apply_batch
        yield "CUDA torch", "cuda", _apply_plain


def _apply_plain(images: Tensor, draw: Draw, table: Table) -> Tensor:
    """What `apply_batch` does where there is neither a C compiler nor Triton."""
    _, channels, height, width = images.shape
    plan = plan_for(table, channels, height, width, images.device)
    return engine.run_plain(images, resolve(plan, draw.choice, draw.uniform), plan)


def _guarded(name: str, check: Callable[[], tuple[Status, str]]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:  # a broken driver or compiler must not end the examination
        message = " ".join(str(error).split())[:300]
        return Check(name, "failed", f"{type(error).__name__}: {message}")


def probe_blend() -> Check:
    """Whether this Pillow rounds the product in a blend before it adds, as on x86-64.

    20 + 0.85 * (0 - 20) in float32 is 3 when the product is rounded first, and 2.9999998, so 2,
    when a fused multiply-add keeps it exact.
    """
    one, other = Image.new("L", (1, 1), 20), Image.new("L", (1, 1), 0)
    value = Image.blend(one, other, 0.85).getpixel((0, 0))
    if value == 3:
        return Check("Pillow's blend", "ok", "not fused, the reference arithmetic")
    return Check(
        "Pillow's blend",
        "note",
        f"gives {value}, not 3: this Pillow fuses multiply and add, so PIL images may differ from "
        "batches by 1 in a few values; batches are the same everywhere",
    )


def compare(space: Space, device: str = "cpu", apply: Apply = apply_batch) -> Difference:
    """Every transformation of the space on four kinds of images, against Pillow."""
    differing = values = largest = 0
    wrong: dict[str, None] = {}
    for shape in SHAPES:
        images, draw = _case(space, shape)
        got = apply(images.to(device), draw.to(device), space.table).cpu()
        want = torch.stack([_pil_result(images, draw, space, i) for i in range(len(images))])
        unequal = (got != want).flatten(1).sum(1)
        differing += int(unequal.sum())
        largest = max(largest, int((got.int() - want.int()).abs().max()))
        values += want.numel()
        for i in unequal.nonzero()[:, 0].tolist():
            wrong[space.table.rows[int(draw.choice[i, 0])].operation.name] = None
    return Difference(differing, values, tuple(wrong), largest)


def _pil_result(images: Tensor, draw: Draw, space: Space, i: int) -> Tensor:
    one = Draw(draw.choice[i : i + 1], draw.uniform[i : i + 1])
    return pil_to_tensor(apply_pil(tensor_to_pil(images[i]), one, space))


def _case(space: Space, shape: Sequence[int]) -> tuple[Tensor, Draw]:
    """Four images of `shape` for each transformation, and the draw that gives it to them."""
    samples = _samples(*shape)
    n = len(space) * len(samples)
    choice = torch.arange(len(space)).repeat_interleave(len(samples))[:, None]
    keys = sample_keys(0, 0, torch.arange(n))
    uniform = draw_words(keys, 1, space.table.uniforms)[2]
    return samples.repeat(len(space), 1, 1, 1), Draw(choice, uniform)


def _samples(channels: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (channels, height, width)
    noise = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    ramp = (torch.arange(height)[:, None] * 3 + torch.arange(width) * 2) % 256
    one_colour = torch.full(shape, 127, dtype=torch.uint8)
    plane = tensor_to_pil(load_embedded().train_images[0]).resize((width, height))
    photo = pil_to_tensor(plane if channels == 3 else plane.convert("L"))
    return torch.stack([noise, ramp.to(torch.uint8).expand(shape), one_colour, photo])


def _equality(space: Space, device: str, apply: Apply, *, fused: bool) -> tuple[Status, str]:
    found = compare(space, device, apply)
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
