"""Pure functions that run a draw on one PIL image or on a batch, with equal results.

Pillow serves one image; C, Triton or plain torch serve batches; operations of the user's own run
among them.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from deepaa.ops import kernels_c, kernels_torch
from deepaa.ops.conversions import check_mode, integer_error
from deepaa.ops.own_operations import run_own, run_own_on_pil
from deepaa.ops.plan import LARGEST_UNIFORM, Kind, Plan, plan_for, resolve, to_device
from deepaa.ops.rng import draw_words
from deepaa.ops.space import TABLES, Operation, Table

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)


class Draw(NamedTuple):
    """What was drawn for N images: the rows of K layers, and the numbers random ones consume."""

    choice: Tensor
    """(N, K) int64 rows of the table."""
    uniform: Tensor
    """(N, K, U) float32 in [0, 1)."""

    def __getitem__(self, part: Any) -> Any:
        """A draw for some of the images when sliced; a field when given 0 or 1."""
        if isinstance(part, slice | Tensor):
            return type(self)(self.choice[part], self.uniform[part])
        return tuple.__getitem__(self, part)

    def to(self, device: torch.device | str) -> Draw:
        """The draw on another device."""
        return type(self)(self.choice.to(device), self.uniform.to(device))


class Drawn(Draw):
    """A draw that a policy made: on CUDA it is taken as it is, so that nothing waits."""

    def _replace(self, **changes: Any) -> Draw:  # type: ignore[override]
        return Draw(*self)._replace(**changes)


class HasTable(Protocol):
    """A space or a policy."""

    @property
    def table(self) -> Table:
        """The rows."""


def apply_batch(images: Tensor, draw: Draw, table: Table | HasTable) -> Tensor:
    """`images` (N, C, H, W), uint8 or float in [0, 1], each under its own drawn rows.

    The input is never written to. Float images are rounded to 8 bits first; one whose rows are all
    identity comes back untouched. No gradient flows through.
    """
    table = table if isinstance(table, Table) else table.table
    _check(images, draw, table)
    images = images.detach()
    if torch.compiler.is_compiling():
        # One opaque call: a compiler that saw inside could fuse floating point and change pixels.
        out: Tensor = _compiled_apply(images, draw.choice, draw.uniform, table.handle)
        return out
    return _apply(images, draw, table)


def _apply(images: Tensor, draw: Draw, table: Table) -> Tensor:
    _check_numbers(draw, table)
    if images.dtype == torch.uint8:
        return _run_batch(images, draw, table)
    scaled = images * 255.0
    if images.device.type == "cpu" and images.numel():  # CUDA would have to be waited for
        low, high = scaled.aminmax()
        if not (low >= -0.5 and high <= 255.5):
            raise ValueError(_range_error(float(low) / 255, float(high) / 255))
    rounded = scaled.round().clamp(0, 255).to(torch.uint8)
    done = _run_batch(rounded, draw, table).to(images.dtype)
    # by a tensor: CUDA divides by a number through its reciprocal, which rounds differently
    done /= torch.full((), 255.0, dtype=images.dtype, device=images.device)
    untouched = _plan(images, table).identity[draw.choice].all(1)
    return torch.where(untouched[:, None, None, None], images, done)


def _range_error(low: float, high: float) -> str:
    """What is wrong with float images of this span, and what to do."""
    advice = "augment before you normalise"
    if low >= 0 and 3 < high < math.inf:  # normalised images go below 0, and not that high
        advice = "divide them by 255, or give them as uint8"
        if high > 255.5:
            advice = "divide them by the value of white"
    return f"float images should lie in [0, 1], but these span [{low:.4g}, {high:.4g}]; {advice}"


def _plan(images: Tensor, table: Table) -> Plan:
    _, channels, height, width = images.shape
    return plan_for(table, channels, height, width, images.device)


def apply_torch(images: Tensor, draw: Draw, table: Table) -> Tensor:
    """`apply_batch` for uint8 images as it runs where there are neither C kernels nor Triton."""
    _check(images, draw, table)
    _check_numbers(draw, table)
    plan = _plan(images, table)
    return kernels_torch.run(images, resolve(plan, *draw), plan)


def apply_pil(image: Image, draw: Draw, table: Table | HasTable) -> Image:
    """One PIL image (RGB or L) under a draw of one."""
    table = table if isinstance(table, Table) else table.table
    _check_draw(draw, table)
    _check_numbers(draw, table)
    if len(draw.choice) != 1:
        raise ValueError(f"apply_pil takes a draw of one image, got {len(draw.choice)}")
    numbers = draw.uniform[0].double().clamp(max=LARGEST_UNIFORM)  # as batches have them
    return run_pil(image, list(zip(draw.choice[0].tolist(), numbers.tolist(), strict=True)), table)


def check_images(images: Tensor, what: str = "images") -> None:
    """Refuse everything but a uint8 tensor (N, C, H, W) with at least one pixel."""
    if images.dtype != torch.uint8 or images.ndim != 4 or not images.numel():
        raise ValueError(
            f"{what} should be uint8 (N, C, H, W) and not empty, got {images.dtype} "
            f"{tuple(images.shape)}"
        )


def _check(images: Tensor, draw: Draw, table: Table) -> None:
    if not isinstance(images, Tensor):
        raise TypeError(f"images should be a tensor, got {type(images).__name__}")
    if images.ndim != 4:
        raise ValueError(f"images should be (N, C, H, W), got shape {tuple(images.shape)}")
    if images.dtype != torch.uint8 and not images.dtype.is_floating_point:
        raise TypeError(integer_error(images))
    if 0 in images.shape[1:]:
        raise ValueError(f"images have no pixels: shape {tuple(images.shape)}")
    _check_draw(draw, table)
    if len(draw.choice) != len(images):
        raise ValueError(f"a draw of {len(draw.choice)} cannot serve {len(images)} images")
    if draw.choice.device != images.device:
        raise ValueError(
            f"images are on {images.device} and their draw on {draw.choice.device}: use draw.to()"
        )


def _check_draw(draw: Draw, table: Table) -> None:
    """Refuse a draw of other shapes and types."""
    if not isinstance(draw, Draw) or not all(isinstance(part, Tensor) for part in draw):
        raise TypeError(f"draw should be a Draw of two tensors, got {type(draw).__name__}")
    choice, uniform = draw
    if choice.ndim != 2 or choice.dtype != torch.int64:
        raise TypeError(f"choice should be int64 (N, K), got {choice.dtype} {tuple(choice.shape)}")
    if uniform.shape[:2] != choice.shape or uniform.ndim != 3 or uniform.shape[2] < table.uniforms:
        raise ValueError(
            f"uniform should be {(*choice.shape, table.uniforms)}, got {tuple(uniform.shape)}"
        )
    if not uniform.is_floating_point() or uniform.device != choice.device:
        raise TypeError(
            f"uniform should be float on {choice.device}, got {uniform.dtype} on {uniform.device}"
        )


def _check_numbers(draw: Draw, table: Table) -> None:
    """Refuse rows that the table lacks and numbers outside of [0, 1): both lead into memory."""
    choice, uniform = draw
    if choice.is_cuda and (isinstance(draw, Drawn) or torch.cuda.is_current_stream_capturing()):
        return  # it would have to be waited for; kernels there keep inside of their memory
    if choice.numel():
        first, last = (int(end) for end in choice.aminmax())
        if first < 0 or last >= len(table):
            raise ValueError(f"choice names row {first if first < 0 else last} of {len(table)}")
    if uniform.numel():
        low, high = (float(end) for end in uniform.aminmax())
        if not (low >= 0 and high < 1):  # NaN is neither
            raise ValueError(f"uniform should lie in [0, 1), got {low if high < 1 else high:g}")


@torch.library.custom_op("deepaa::apply_batch", mutates_args=())
def _compiled_apply(images: Tensor, choice: Tensor, uniform: Tensor, table: int) -> Tensor:
    # a CUDA graph may be made of this, and could not wait
    draw = Drawn(choice, uniform) if choice.is_cuda else Draw(choice, uniform)
    return _apply(images, draw, TABLES[table]).contiguous()


@_compiled_apply.register_fake
def _(images: Tensor, choice: Tensor, uniform: Tensor, table: int) -> Tensor:
    return torch.empty_like(images, memory_format=torch.contiguous_format)


def draw_layers(keys: Tensor, thresholds: Tensor, uniforms: int) -> tuple[Tensor, Tensor]:
    """(N, K) rows and (N, K, U) uniform numbers for (N,) keys and (K, T) integer thresholds."""
    if keys.is_cuda and len(keys) and triton_works(keys.device):
        from deepaa.ops import draw_triton

        return draw_triton.draw(keys, thresholds, uniforms)
    choice, _, uniform = draw_words(keys, len(thresholds), uniforms)
    rows = torch.searchsorted(thresholds, choice.T.contiguous(), right=True)
    return rows.T.contiguous(), uniform


def run_pil(image: Image, steps: Sequence[tuple[int, Sequence[float]]], table: Table) -> Image:
    """`image` under the (row, uniform numbers) of each layer, as `Policy.draw_one` gives them."""
    from deepaa.ops.kernels_pil import KERNELS

    check_mode(image)
    for index, uniforms in steps:
        if not 0 <= index < len(table):
            raise ValueError(f"choice names row {index} of {len(table)}")
        operation, magnitude = table.rows[index]
        for number in uniforms[: operation.uniforms]:
            if not 0 <= number < 1:
                raise ValueError(f"uniform should lie in [0, 1), got {number:g}")
        if operation.is_custom:
            image = run_own_on_pil(image, operation, magnitude, uniforms[: operation.uniforms])
        else:
            kernel = KERNELS[operation.name]
            image = kernel(image, magnitude, uniforms, **operation.options)
    return image


def _run_batch(images: Tensor, draw: Draw, table: Table) -> Tensor:
    """uint8 (N, C, H, W) under a draw."""
    plan = _plan(images, table)
    if not len(images) or not draw.choice.shape[1]:
        return images.clone(memory_format=torch.contiguous_format)
    if Kind.CUSTOM in plan.kinds:
        return _run_with_custom(images, draw, plan)
    if draw.choice.is_cuda and plan.crops is None and triton_works(draw.choice.device):
        from deepaa.ops import draw_triton

        return _run_builtin(images, draw_triton.resolve(plan, *draw), plan)
    return _run_builtin(images, resolve(plan, *draw), plan)


def _run_builtin(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    images = images.contiguous()
    device = images.device
    if device.type == "cpu" and kernels_c.available():
        return kernels_c.run(images, lines, plan)
    # Triton's program unrolls channels, so one for many would be long
    if device.type == "cuda" and plan.channels <= 4 and triton_works(device):
        from deepaa.ops import kernels_triton

        return kernels_triton.run(images, lines, plan)
    return kernels_torch.run(images, lines, plan)


def triton_works(device: torch.device) -> bool:
    """Whether Triton can compile and start a program on `device`."""
    return triton_problem(device) is None


@cache
def triton_problem(device: torch.device) -> str | None:
    """Why Triton cannot compile and start a program on `device`; None if it can. Tried once."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        from deepaa.ops import kernels_triton

        plan = plan_for(Table([(Operation("identity"), None)]), 3, 32, 32, device)
        images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8, device=device)
        kernels_triton.run(images, torch.zeros(1, 1, 6, dtype=torch.int32, device=device), plan)
    except Exception as error:  # whatever a driver, a compiler or an old device may raise
        log.warning("Triton does not run on %s, torch's kernels serve instead: %s", device, error)
        return f"Triton does not run: {' '.join(f'{type(error).__name__}: {error}'.split())[:300]}"
    return None


# Operations of the user's own: found by name, and run on one image or on a batch.

_FOLDERS: set[str] = set()
"""Folders that were the current one while a module was looked for."""


def import_operations(specs: Sequence[str]) -> list[Operation]:
    """The operations at each `module:name`, where name is an `Operation` or several.

    Modules are found on the Python path or in the current folder. Importing one runs its code.
    """
    found: list[Operation] = []
    for spec in specs:
        value = import_object(spec, "operations")
        values = [value] if isinstance(value, Operation) else value
        if not isinstance(values, Iterable) or isinstance(values, str):
            raise ValueError(f"{spec} is {value!r}, expected an Operation or a list of them")
        for item in values:
            if not isinstance(item, Operation):
                raise ValueError(f"{spec} holds {item!r}, expected an Operation")
            found.append(item)
    return found


def import_object(spec: str, option: str) -> object:
    """The object at `module:name`; the module is found on the Python path or in this folder.

    Importing it runs its code. Whatever goes wrong is a ValueError.

    Args:
        option: What errors call the place where the user wrote `spec`.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise ValueError(f"{option} {spec!r} should be MODULE:NAME, like my_module:NAME")
    here = str(Path.cwd())
    if here not in sys.path:
        # behind all others: no file of this folder may stand in for an installed module
        before = (i for i, place in enumerate(sys.path) if place in _FOLDERS)
        sys.path.insert(min(before, default=len(sys.path)), here)
        _FOLDERS.add(here)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module does
        raise ValueError(f"{option} {spec}: {type(error).__name__}: {error}") from error


def _run_with_custom(images: Tensor, draw: Draw, plan: Plan) -> Tensor:
    """Layer by layer: the built-in operations first, then each of the user's on its images."""
    values = [row.magnitude or 0.0 for row in plan.table.rows]
    magnitudes = to_device(torch.tensor(values, dtype=torch.float64, device="cpu"), images.device)
    (choice, uniform), lines = draw, resolve(plan, *draw)
    for k in range(choice.shape[1]):
        layer = lines[:, k]
        images = _run_builtin(images, layer[:, None], plan)
        for i, operation in enumerate(plan.table.operations):
            if not operation.is_custom:
                continue
            mine = (layer[:, 0] == Kind.CUSTOM) & (layer[:, 1] == i)
            args = (magnitudes[choice[:, k]], uniform[:, k])
            if operation.batched is None or images.device.type == "cpu":
                # this waits for the device: the price of a PIL-only operation
                picked = mine.nonzero()[:, 0]
                if len(picked):
                    done = run_own(images[picked], operation, *(arg[picked] for arg in args))
                    images = images.index_copy(0, picked, done)
            else:
                # every image goes through the kernel: those of other rows as a copy, and at a
                # magnitude it knows
                magnitude = torch.where(mine, args[0], operation.low or 0.0)
                done = run_own(images.clone(), operation, magnitude, args[1])
                images = torch.where(mine[:, None, None, None], done, images)
    return images
