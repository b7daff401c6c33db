"""How a network does on labelled images, and whether it can take them at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa.data import StreamedImages
from deepaa.models import checked_outputs
from deepaa.ops import check_images


@dataclass(frozen=True)
class Metrics:
    """How a network does on a set of images."""

    loss: float
    """Mean cross entropy."""
    accuracy: float
    """Share of the images classified right."""
    count: int
    class_accuracy: tuple[float | None, ...]
    """The same for each output of the network; None for a class without images."""


def evaluate(model: nn.Module, images: Tensor, labels: Tensor, *, batch: int = 512) -> Metrics:
    """Loss and accuracy on uint8 `images` in eval mode, on the model's device.

    The model's modules get their modes back.
    """
    check_data(images, labels)
    if batch < 1:
        raise ValueError(f"batch should be at least 1, got {batch}")
    starts = range(0, len(images), batch)
    parts = ((images[i : i + batch], labels[i : i + batch]) for i in starts)
    return evaluate_batches(model, parts, labels)


def evaluate_batches(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], labels: Tensor
) -> Metrics:
    """`evaluate` on batches of any source; the device is waited for once, at the end.

    Args:
        batches: Images and their labels.
        labels: (N,) of all of them, to see first whether the model has outputs for each.
    """
    device = next((tensor.device for tensor in model.state_dict().values()), labels.device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    right = loss_sum.new_zeros(0)
    with _eval_mode(model), torch.no_grad():
        for number, (some, truth) in enumerate(batches):
            images, truth = some.to(device), truth.to(device)
            if number == 0:
                right = loss_sum.new_zeros(check_model(model, images[:1], labels))
            logits = model(images).float()
            loss_sum += F.cross_entropy(logits, truth, reduction="sum").double()
            right.index_add_(0, truth, (logits.argmax(1) == truth).double())
    hits, counts = right.tolist(), labels.bincount(minlength=len(right)).tolist()
    by_class = tuple(n / of if of else None for n, of in zip(hits, counts, strict=True))
    n = len(labels)
    return Metrics(float(loss_sum) / n, sum(hits) / n, n, by_class)


def evaluate_streamed(model: nn.Module, images: StreamedImages, *, batch: int = 256) -> Metrics:
    """Loss and accuracy on all images, in eval mode; `images` go to the model's device."""
    parts = ((part.images, part.labels) for part in images.batches(0, batch))
    return evaluate_batches(model, parts, images.labels)


def check_model(model: nn.Module, image: Tensor, labels: Tensor) -> int:
    """The number of outputs of a model that can take the images and has enough for the labels.

    Args:
        image: One, uint8 (1, C, H, W), on the model's device.
    """
    with _eval_mode(model), torch.no_grad():
        logits = checked_outputs(model, image)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model should return logits (N, classes), got {got}")
    outside = sorted(set(labels[(labels < 0) | (labels >= logits.shape[1])].tolist()))
    if outside:
        raise ValueError(
            f"labels should be in 0..{logits.shape[1] - 1}, the model's outputs; got "
            f"{', '.join(map(str, outside[:5]))}{', ...' if len(outside) > 5 else ''}"
        )
    return int(logits.shape[1])


def trains_on_one(model: nn.Module, image: Tensor) -> bool:
    """Whether a network can be trained on one image: batch norm over a single value cannot.

    Changes the statistics of batch norm.

    Args:
        image: uint8 (1, C, H, W), on the model's device.
    """
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            model.train()(image)
    except ValueError:  # torch's own check of what batch norm gets
        return False
    return True


def check_data(images: Tensor, labels: Tensor) -> None:
    """Refuse what are no images with labels."""
    check_images(images)
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels should be int64 ({len(images)},), got {labels.dtype} {tuple(labels.shape)}"
        )


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
