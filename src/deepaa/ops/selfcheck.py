"""Every kernel of this machine compared with Pillow, which defines the operations."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.ops import kernels_c
from deepaa.ops.apply import (
    Draw,
    apply_batch,
    apply_torch,
    run_pil,
    triton_problem,
    triton_works,
)
from deepaa.ops.conversions import pil_to_tensor, tensor_to_pil
from deepaa.ops.rng import draw_words, sample_keys
from deepaa.ops.single import single_pil
from deepaa.ops.space import Space, Table

Apply = Callable[[Tensor, Draw, Table], Tensor]


class PixelDifference(NamedTuple):
    """How far batched results are from Pillow's."""

    differing: int
    values: int
    operations: tuple[str, ...]
    """Those with differing values."""
    largest: int
    """Greatest difference of two values."""


def batch_kernels() -> Iterator[tuple[str, str, Apply]]:
    """Every way a batch can be computed here: its name, its device, and the function."""
    if kernels_c.available():
        yield "CPU compiled", "cpu", apply_batch
        yield "CPU single", "cpu", _apply_one_by_one
    yield "CPU torch", "cpu", apply_torch
    if torch.cuda.is_available():
        if triton_works(torch.device("cuda")):
            yield "CUDA Triton", "cuda", apply_batch
        yield "CUDA torch", "cuda", apply_torch


def _apply_one_by_one(images: Tensor, draw: Draw, table: Table) -> Tensor:
    """Images (N, C, H, W) through `single_pil`, but for the first ones, which Pillow does."""
    layers = zip(draw.choice.tolist(), draw.uniform.tolist(), strict=True)
    steps = (list(zip(rows, numbers, strict=True)) for rows, numbers in layers)
    pairs = zip(images, steps, strict=True)
    done = [single_pil(tensor_to_pil(image), mine, table) for image, mine in pairs]
    return torch.stack([pil_to_tensor(image) for image in done])


def cpu_kernels() -> str:
    """Which kernels a batch on CPU uses, and why not the fast ones."""
    reason = kernels_c.why_not()
    return f"torch (slower; no C kernels: {reason})" if reason else f"C, for {kernels_c.level()}"


def cuda_kernels() -> str:
    """Which kernels a batch on CUDA uses, and why not the fast ones."""
    if torch.version.cuda is None:
        return f"none: this torch, {torch.__version__}, is made for CPUs"
    if not torch.cuda.is_available():
        return "none: torch finds no CUDA device"
    reason = triton_problem(torch.device("cuda"))
    return f"torch (slower; {reason})" if reason else "Triton"


def compare_with_pillow(
    space: Space, samples: Sequence[Tensor], device: str = "cpu", apply: Apply = apply_batch
) -> PixelDifference:
    """The difference of `apply` from Pillow over every transformation of the space.

    Args:
        samples: Batches uint8 (S, C, H, W), each with a shape of its own; every image meets every
            transformation once.
    """
    differing = values = largest = 0
    wrong: dict[str, None] = {}
    for sample in samples:
        choice = torch.arange(len(space)).repeat_interleave(len(sample))[:, None]
        keys = sample_keys(0, 0, torch.arange(len(choice)))
        draw = Draw(choice, draw_words(keys, 1, space.table.uniforms)[2])
        images = sample.repeat(len(space), 1, 1, 1)
        got = apply(images.to(device), draw.to(device), space.table).cpu()
        steps = zip(images, choice[:, 0].tolist(), draw.uniform[:, 0].tolist(), strict=True)
        singles = (
            run_pil(tensor_to_pil(image), [(row, u)], space.table) for image, row, u in steps
        )
        want = torch.stack([pil_to_tensor(single) for single in singles])
        unequal = (got != want).flatten(1).sum(1)
        differing += int(unequal.sum())
        largest = max(largest, int((got.int() - want.int()).abs().max()))
        values += want.numel()
        for i in unequal.nonzero()[:, 0].tolist():
            wrong[space.table.rows[int(draw.choice[i, 0])].operation.name] = None
    return PixelDifference(differing, values, tuple(wrong), largest)
