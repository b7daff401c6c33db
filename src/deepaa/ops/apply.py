"""Pure functions that run a draw on one PIL image or on a batch, with equal results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from deepaa.ops.dispatch import identity_rows, run_batch, run_pil, run_torch
from deepaa.ops.plan import plan_for, resolve
from deepaa.ops.space import Table

if TYPE_CHECKING:
    from PIL.Image import Image


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


def as_table(table: Table | HasTable) -> Table:
    """The rows of a space or a policy, or the table itself."""
    return table if isinstance(table, Table) else table.table


def apply_batch(images: Tensor, draw: Draw, table: Table | HasTable) -> Tensor:
    """`images` (N, C, H, W), uint8 or float in [0, 1], each under its own drawn rows.

    The input is never written to. Float images are rounded to 8 bits first; one whose rows are all
    identity comes back untouched. No gradient flows through.
    """
    table = as_table(table)
    _check(images, draw, table)
    images = images.detach()
    if torch.compiler.is_compiling():
        # One opaque call: a compiler that saw inside could fuse floating point and change pixels.
        out: Tensor = _compiled_apply(images, draw.choice, draw.uniform, table.handle)
        return out
    return _apply(images, draw, table)


def _apply(images: Tensor, draw: Draw, table: Table) -> Tensor:
    if images.dtype == torch.uint8:
        return run_batch(images, draw.choice, draw.uniform, table)
    scaled = images * 255.0
    if images.device.type == "cpu" and images.numel():  # CUDA would have to be waited for
        low, high = scaled.aminmax()
        if not (low >= -0.5 and high <= 255.5):
            raise ValueError(
                f"float images should lie in [0, 1], but these span [{float(low) / 255:.4g}, "
                f"{float(high) / 255:.4g}]; augment before you normalise"
            )
    rounded = scaled.round().clamp(0, 255).to(torch.uint8)
    done = run_batch(rounded, draw.choice, draw.uniform, table).to(images.dtype)
    # by a tensor: CUDA divides by a number through its reciprocal, which rounds differently
    done /= torch.full((), 255.0, dtype=images.dtype, device=images.device)
    untouched = identity_rows(table, images)[draw.choice].all(1)
    return torch.where(untouched[:, None, None, None], images, done)


def apply_torch(images: Tensor, draw: Draw, table: Table) -> Tensor:
    """`apply_batch` for uint8 images as it runs where there is neither a C compiler nor Triton."""
    _, channels, height, width = images.shape
    plan = plan_for(table, channels, height, width, images.device)
    return run_torch(images, resolve(plan, draw.choice, draw.uniform), plan)


def check_images(images: Tensor, what: str = "images") -> None:
    """Refuse everything but a uint8 tensor (N, C, H, W) with at least one pixel."""
    if images.dtype != torch.uint8 or images.ndim != 4 or not images.numel():
        raise ValueError(
            f"{what} should be uint8 (N, C, H, W) and not empty, got {images.dtype} "
            f"{tuple(images.shape)}"
        )


def apply_pil(image: Image, draw: Draw, table: Table | HasTable) -> Image:
    """One PIL image (RGB or L) under a draw of one."""
    if len(draw.choice) != 1:
        raise ValueError(f"apply_pil takes a draw of one image, got {len(draw.choice)}")
    rows, uniforms = draw.choice[0].tolist(), draw.uniform[0].tolist()
    return run_pil(image, list(zip(rows, uniforms, strict=True)), as_table(table))


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
    return _apply(images, Draw(choice, uniform), Table.of_handle(table)).contiguous()


@_compiled_apply.register_fake
def _(images: Tensor, choice: Tensor, uniform: Tensor, table: int) -> Tensor:
    return torch.empty_like(images, memory_format=torch.contiguous_format)
