"""Operations of the user's own: run on one PIL image or on a batch, and tried before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepaa.ops.conversions import pil_to_tensor, tensor_to_pil
from deepaa.ops.space import Operation, Table

if TYPE_CHECKING:
    from PIL.Image import Image


class WrongResultError(ValueError):
    """What an own operation gave is no image like the one it got."""


def check_own_operations(table: Table, images: Tensor) -> None:
    """Run each own operation of the table once, so that a fault shows now and not hours later.

    Args:
        images: uint8 (N, C, H, W) of the size and on the device at which it will run; two of them
            are enough. Torch's generators are left as they were.
    """
    own = [operation for operation in table.operations if operation.is_custom]
    images = images[:2]
    devices = [images.device] if images.is_cuda else []
    with torch.random.fork_rng(devices), torch.no_grad():
        for operation in own:
            for magnitude in dict.fromkeys((operation.low or 0.0, operation.high or 0.0)):
                magnitudes = torch.full((len(images),), magnitude, dtype=torch.float64)
                uniform = torch.full((len(images), operation.uniforms), 0.5)
                given = (magnitudes.to(images.device), uniform.to(images.device))
                try:
                    run_own(images.clone(), operation, *given)
                except WrongResultError:
                    raise
                except Exception as error:  # whatever the user's kernel does
                    reason = f"{type(error).__name__}: {error}"
                    raise ValueError(f"operation {operation.name!r} fails: {reason}") from error


def run_own(images: Tensor, operation: Operation, magnitudes: Tensor, uniform: Tensor) -> Tensor:
    """uint8 (N, C, H, W) through one of the user's operations, whose result is checked."""
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
    if not isinstance(out, Tensor):
        raise WrongResultError(
            f"operation {operation.name!r} gave {type(out).__name__}, not a tensor"
        )
    if out.shape != images.shape or out.dtype != torch.uint8 or out.device != images.device:
        raise WrongResultError(
            f"operation {operation.name!r} gave {out.dtype} {tuple(out.shape)} on {out.device}; "
            f"expected uint8 {tuple(images.shape)} on {images.device}"
        )
    return out


def run_own_on_pil(
    image: Image, operation: Operation, magnitude: float | None, uniforms: Sequence[float]
) -> Image:
    """A PIL image through one of the user's operations, which may have only a batched kernel."""
    if operation.pil is not None:
        return _checked_pil(operation, image.copy(), magnitude, uniforms)
    numbers = torch.tensor([uniforms], dtype=torch.float32, device="cpu")
    magnitudes = torch.tensor([magnitude or 0.0], dtype=torch.float64, device="cpu")
    images = pil_to_tensor(image)[None]
    return tensor_to_pil(run_own(images, operation, magnitudes, numbers)[0])


def _checked_pil(
    operation: Operation, image: Image, magnitude: float | None, uniforms: Sequence[float]
) -> Image:
    """What a user's PIL kernel makes of an image it may write to."""
    assert operation.pil is not None
    out = operation.pil(image, magnitude, uniforms, **operation.options)
    kind = (getattr(out, "mode", None), getattr(out, "size", None))
    if kind != (image.mode, image.size):
        raise WrongResultError(
            f"operation {operation.name!r} gave {type(out).__name__} {kind}; expected a PIL image "
            f"of mode {image.mode} and size {image.size}"
        )
    return out
