"""The choice of kernels: Pillow for one image; C, Triton or plain torch for batches."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepaa.ops import kernels_c, kernels_torch
from deepaa.ops.plan import Kind, Plan, plan_for, resolve, to_device
from deepaa.ops.rng import draw_words
from deepaa.ops.space import Operation, Row, Table

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

MAX_FUSED_CHANNELS = 4
"""Triton's program unrolls channels, so one for many would be long; torch's kernels take those."""
CPU_CHUNK = 1 << 19
"""Bytes of images that torch's kernels take at a time on CPU: intermediates stay in the cache."""
CUDA_CHUNK = 1 << 24
"""The same on CUDA, where intermediates take up to 60 times as much."""


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
        operation, magnitude = row = table.rows[index]
        if operation.is_custom:
            image = _run_custom_on_pil(image, row, uniforms[: operation.uniforms])
        else:
            kernel = KERNELS[operation.name]
            image = kernel(image, magnitude, uniforms, **operation.options)
    return image


def _run_custom_on_pil(image: Image, row: Row, uniforms: Sequence[float]) -> Image:
    """A PIL image through one of the user's operations, which may have only a batched kernel."""
    from deepaa.ops.convert import pil_to_tensor, tensor_to_pil

    operation, magnitude = row
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


def identity_rows(table: Table, images: Tensor) -> Tensor:
    """(T,) which rows change nothing, on the device of `images`."""
    _, channels, height, width = images.shape
    return plan_for(table, channels, height, width, images.device).identity


def run_batch(images: Tensor, choice: Tensor, uniform: Tensor, table: Table) -> Tensor:
    """uint8 (N, C, H, W) under the rows (N, K) and uniform numbers (N, K, U)."""
    n, channels, height, width = images.shape
    plan = plan_for(table, channels, height, width, images.device)
    if n == 0 or choice.shape[1] == 0:
        return images.clone(memory_format=torch.contiguous_format)
    if Kind.CUSTOM in plan.kinds:
        return _run_with_custom(images, choice, uniform, plan)
    return _run_builtin(images, _resolve(plan, choice, uniform), plan)


def _resolve(plan: Plan, choice: Tensor, uniform: Tensor) -> Tensor:
    if choice.device.type == "cuda" and plan.crops is None and triton_works(choice.device):
        from deepaa.ops import draw_triton

        return draw_triton.resolve(plan, choice, uniform)
    return resolve(plan, choice, uniform)


def _run_builtin(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    images = images.contiguous()
    device = images.device
    if device.type == "cpu" and kernels_c.available():
        return kernels_c.run(images, lines, plan)
    if device.type == "cuda" and plan.channels <= MAX_FUSED_CHANNELS and triton_works(device):
        from deepaa.ops import kernels_triton

        return kernels_triton.run(images, lines, plan)
    return run_torch(images, lines, plan)


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


def run_torch(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """The lines of every layer through torch's kernels, a part of the batch at a time."""
    on_cpu = images.device.type == "cpu"
    # on CUDA a twelfth of the batch at most, so that intermediates do not outgrow six batches
    limit = CPU_CHUNK if on_cpu else min(CUDA_CHUNK, max(CUDA_CHUNK // 16, images.numel() // 12))
    size = max(1, limit // images[0].numel())
    layer_of = _run_grouped if on_cpu else kernels_torch.apply_selected
    out = torch.empty_like(images)
    for start in range(0, len(images), size):
        part = images[start : start + size]
        for k in range(lines.shape[1]):
            part = layer_of(part, lines[start : start + size, k], plan)
        out[start : start + size] = part
    return out


def _run_grouped(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """One layer: the images of each kind picked out, changed and put back."""
    out = images.clone()
    for kind, kernel in kernels_torch.KERNELS.items():
        if kind in plan.kinds:
            mine = (lines[:, 0] == kind).nonzero()[:, 0]
            if len(mine):
                out[mine] = kernel(images[mine], lines[mine], plan)
    return out


def _run_with_custom(images: Tensor, choice: Tensor, uniform: Tensor, plan: Plan) -> Tensor:
    """Layer by layer: the built-in operations first, then each of the user's on its images."""
    values = [row.magnitude or 0.0 for row in plan.table.rows]
    magnitudes = to_device(torch.tensor(values, dtype=torch.float64, device="cpu"), images.device)
    lines = resolve(plan, choice, uniform)
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
        out = _run_pil_on_batch(images, operation, magnitudes, uniform)
    if out.shape != images.shape or out.dtype != torch.uint8 or out.device != images.device:
        raise ValueError(
            f"operation {operation.name!r} gave {out.dtype} {tuple(out.shape)} on {out.device}; "
            f"expected uint8 {tuple(images.shape)} on {images.device}"
        )
    return out


def _run_pil_on_batch(
    images: Tensor, operation: Operation, magnitudes: Tensor, uniform: Tensor
) -> Tensor:
    from deepaa.ops.convert import pil_to_tensor, tensor_to_pil

    done = []
    has_range = operation.low is not None
    for image, m, u in zip(images.cpu(), magnitudes.tolist(), uniform.tolist(), strict=True):
        result = _checked_pil(operation, tensor_to_pil(image), m if has_range else None, u)
        done.append(pil_to_tensor(result))
    return torch.stack(done).to(images.device)
