"""Pure functions that run a draw on one PIL image or on a batch, with equal results.

Pillow serves one image; C, Triton or plain torch serve batches; operations of the user's own run
among them.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from deepaa.ops import kernels_c, kernels_torch
from deepaa.ops.plan import Kind, Plan, plan_for, resolve, to_device
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
            return Draw(self.choice[part], self.uniform[part])
        return tuple.__getitem__(self, part)

    def to(self, device: torch.device | str) -> Draw:
        """The draw on another device."""
        return Draw(self.choice.to(device), self.uniform.to(device))


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
    if images.dtype == torch.uint8:
        return _run_batch(images, draw, table)
    scaled = images * 255.0
    if images.device.type == "cpu" and images.numel():  # CUDA would have to be waited for
        low, high = scaled.aminmax()
        if not (low >= -0.5 and high <= 255.5):
            raise ValueError(
                f"float images should lie in [0, 1], but these span [{float(low) / 255:.4g}, "
                f"{float(high) / 255:.4g}]; augment before you normalise"
            )
    rounded = scaled.round().clamp(0, 255).to(torch.uint8)
    done = _run_batch(rounded, draw, table).to(images.dtype)
    # by a tensor: CUDA divides by a number through its reciprocal, which rounds differently
    done /= torch.full((), 255.0, dtype=images.dtype, device=images.device)
    untouched = _plan(images, table).identity[draw.choice].all(1)
    return torch.where(untouched[:, None, None, None], images, done)


def _plan(images: Tensor, table: Table) -> Plan:
    _, channels, height, width = images.shape
    return plan_for(table, channels, height, width, images.device)


def apply_torch(images: Tensor, draw: Draw, table: Table) -> Tensor:
    """`apply_batch` for uint8 images as it runs where there is neither a C compiler nor Triton."""
    plan = _plan(images, table)
    return kernels_torch.run(images, resolve(plan, *draw), plan)


def apply_pil(image: Image, draw: Draw, table: Table | HasTable) -> Image:
    """One PIL image (RGB or L) under a draw of one."""
    if len(draw.choice) != 1:
        raise ValueError(f"apply_pil takes a draw of one image, got {len(draw.choice)}")
    steps = list(zip(draw.choice[0].tolist(), draw.uniform[0].tolist(), strict=True))
    return run_pil(image, steps, table if isinstance(table, Table) else table.table)


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
        raise TypeError(f"images should be uint8 or float in [0, 1], got {images.dtype}")
    if 0 in images.shape[1:]:
        raise ValueError(f"images have no pixels: shape {tuple(images.shape)}")
    if len(draw.choice) != len(images):
        raise ValueError(f"a draw for {len(draw.choice)} images cannot serve {len(images)}")
    choice, uniform = draw
    if choice.ndim != 2 or choice.dtype != torch.int64:
        raise TypeError(f"choice should be int64 (N, K), got {choice.dtype} {tuple(choice.shape)}")
    if uniform.shape[:2] != choice.shape or uniform.ndim != 3 or uniform.shape[2] < table.uniforms:
        raise ValueError(
            f"uniform should be {(*choice.shape, table.uniforms)}, got {tuple(uniform.shape)}"
        )
    # CUDA would have to be waited for; its index kernels stop at a row out of range
    if choice.device.type == "cpu" and choice.numel() and not torch.compiler.is_compiling():
        low, high = choice.aminmax()
        if low < 0 or high >= len(table):
            raise ValueError(f"choice names row {int(low if low < 0 else high)} of {len(table)}")


@torch.library.custom_op("deepaa::apply_batch", mutates_args=())
def _compiled_apply(images: Tensor, choice: Tensor, uniform: Tensor, table: int) -> Tensor:
    return _apply(images, Draw(choice, uniform), TABLES[table]).contiguous()


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
    """`image` under the (row, uniform numbers) of each layer."""
    from deepaa.ops.kernels_pil import KERNELS, MODES

    if image.mode not in MODES:
        raise ValueError(
            f"image has mode {image.mode!r}; policies work on RGB and L: use image.convert('RGB')"
        )
    for index, uniforms in steps:
        operation, magnitude = table.rows[index]
        if operation.is_custom:
            image = _run_custom_on_pil(image, operation, magnitude, uniforms[: operation.uniforms])
        else:
            kernel = KERNELS[operation.name]
            image = kernel(image, magnitude, uniforms, **operation.options)
    return image


def pil_to_tensor(image: Image) -> Tensor:
    """An RGB or L image as uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def tensor_to_pil(image: Tensor) -> Image:
    """uint8 (1 or 3, H, W) as an L or RGB image."""
    from PIL.Image import fromarray

    if image.shape[0] not in (1, 3):
        raise ValueError(f"a PIL image has 1 or 3 channels here, got {image.shape[0]}")
    pixels = image[0] if image.shape[0] == 1 else image.permute(1, 2, 0)
    return fromarray(pixels.contiguous().numpy())


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


@cache
def triton_works(device: torch.device) -> bool:
    """Whether Triton can compile and start a program on `device`; tried once."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from deepaa.ops import kernels_triton

        plan = plan_for(Table([(Operation("identity"), None)]), 3, 32, 32, device)
        images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8, device=device)
        kernels_triton.run(images, torch.zeros(1, 1, 6, dtype=torch.int32, device=device), plan)
    except Exception as error:  # whatever a driver, a compiler or an old device may raise
        log.warning("Triton does not run on %s, torch's kernels serve instead: %s", device, error)
        return False
    return True


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
                    done = _run_custom(images[picked], operation, *(arg[picked] for arg in args))
                    images = images.index_copy(0, picked, done)
            else:
                # every image goes through the kernel: those of other rows as a copy, and at a
                # magnitude it knows
                magnitude = torch.where(mine, args[0], operation.low or 0.0)
                done = _run_custom(images.clone(), operation, magnitude, args[1])
                images = torch.where(mine[:, None, None, None], done, images)
    return images


def _run_custom(
    images: Tensor, operation: Operation, magnitudes: Tensor, uniform: Tensor
) -> Tensor:
    uniform = uniform[:, : operation.uniforms]
    if operation.batched is not None:
        out = operation.batched(images, magnitudes, uniform, **operation.options)
    else:
        given = zip(images.cpu(), magnitudes.tolist(), uniform.tolist(), strict=True)
        done = [
            _checked_pil(operation, tensor_to_pil(image), None if operation.low is None else m, u)
            for image, m, u in given
        ]
        out = torch.stack([pil_to_tensor(image) for image in done]).to(images.device)
    if out.shape != images.shape or out.dtype != torch.uint8 or out.device != images.device:
        raise ValueError(
            f"operation {operation.name!r} gave {out.dtype} {tuple(out.shape)} on {out.device}; "
            f"expected uint8 {tuple(images.shape)} on {images.device}"
        )
    return out


def _run_custom_on_pil(
    image: Image, operation: Operation, magnitude: float | None, uniforms: Sequence[float]
) -> Image:
    """A PIL image through one of the user's operations, which may have only a batched kernel."""
    if operation.pil is not None:
        return _checked_pil(operation, image.copy(), magnitude, uniforms)
    numbers = torch.tensor([uniforms], dtype=torch.float32, device="cpu")
    magnitudes = torch.tensor([magnitude or 0.0], dtype=torch.float64, device="cpu")
    images = pil_to_tensor(image)[None]
    return tensor_to_pil(_run_custom(images, operation, magnitudes, numbers)[0])


def _checked_pil(
    operation: Operation, image: Image, magnitude: float | None, uniforms: Sequence[float]
) -> Image:
    """What a user's PIL kernel makes of an image it may write to."""
    assert operation.pil is not None
    out = operation.pil(image, magnitude, uniforms, **operation.options)
    kind = (getattr(out, "mode", None), getattr(out, "size", None))
    if kind != (image.mode, image.size):
        raise ValueError(
            f"operation {operation.name!r} gave {type(out).__name__} {kind}; expected a PIL image "
            f"of mode {image.mode} and size {image.size}"
        )
    return out
