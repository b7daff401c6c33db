"""Loss and accuracy over images in memory and over batches of any source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from deepaa.models import build_model
from deepaa.train.evaluation import check_data, evaluate, evaluate_batches

IMAGES = torch.randint(
    0, 256, (23, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
LABELS = torch.arange(23) % 4


def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(IMAGES.split(size), LABELS.split(size), strict=True)


@pytest.mark.parametrize("size", [1, 7, 23, 100])
def test_batches_of_any_size_are_one_evaluation(size: int) -> None:
    model = build_model("small", 4).train()
    with torch.no_grad():
        logits = model.eval()(IMAGES)
    model.train()
    expected = F.cross_entropy(logits, LABELS).item()
    right = (logits.argmax(1) == LABELS).double().mean().item()
    for found in (
        evaluate_batches(model, batches(size), LABELS),
        evaluate(model, IMAGES, LABELS, batch=size),
    ):
        assert found.count == 23
        assert found.loss == pytest.approx(expected, rel=1e-5)
        assert found.accuracy == pytest.approx(right)
        hits = [(logits.argmax(1) == LABELS)[k == LABELS].double().mean().item() for k in range(4)]
        assert found.class_accuracy == pytest.approx(hits)
    assert model.training


def test_a_class_without_images_has_no_accuracy() -> None:
    found = evaluate(build_model("small", 6), IMAGES, LABELS)
    assert found.class_accuracy[4:] == (None, None)
    assert None not in found.class_accuracy[:4]


def test_labels_are_looked_at_before_the_first_batch() -> None:
    """Also those of later batches: a test of hours should not end in an error."""
    model = build_model("small", 4).train()
    labels = LABELS.clone()
    labels[-1] = 9
    seen = []

    def counted() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches(5):
            seen.append(len(batch[0]))
            yield batch

    with pytest.raises(ValueError, match=r"labels should be in 0\.\.3.*got 9"):
        evaluate_batches(model, counted(), labels)
    assert seen == [5]
    assert model.training


def test_what_are_no_images_is_refused() -> None:
    with pytest.raises(ValueError, match="images should be uint8"):
        check_data(IMAGES.float(), LABELS)
    with pytest.raises(ValueError, match="and not empty, got"):
        check_data(IMAGES[:0], LABELS[:0])
    with pytest.raises(ValueError, match="labels should be int64"):
        check_data(IMAGES, LABELS[:5])
