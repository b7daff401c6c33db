"""Which images a step draws: classes, held-out images, and data that is refused."""

from __future__ import annotations

import pytest
import torch
from blobs import planted

from deepaa.ops.rng import hash_int
from deepaa.search.gradient_matching.minibatch import MinibatchSampler, SearchData


def test_no_class_is_set_aside_whole() -> None:
    labels = torch.arange(120) % 30  # four of each
    images = torch.zeros(120, 3, 4, 4, dtype=torch.uint8)
    data = SearchData(images, labels, images, labels)
    sampler = MinibatchSampler(data, validation=2, heldout=60, same_class=True, seed=0)
    assert len(sampler.classes) == 30
    assert len(sampler.heldout) == 60
    rest = torch.cat(list(sampler.members.values()))
    assert sorted([*rest.tolist(), *sampler.heldout.tolist()]) == list(range(120))
    few = MinibatchSampler(data, validation=2, heldout=110, same_class=True, seed=0)
    assert len(few.classes) == 30
    assert len(few.heldout) == 90


def test_originals_share_the_class_and_leave_held_out_images_alone() -> None:
    data = planted()
    sampler = MinibatchSampler(data, validation=9, heldout=50, same_class=True, seed=3)
    held = {tuple(image.flatten().tolist()) for image in data.images[sampler.heldout]}
    assert len(held) == 50
    for seed in range(20):
        minibatch = sampler.fetch(sampler.draw(hash_int(1, seed), 8), torch.device("cpu"))
        assert minibatch.originals.shape == (8, 9, 3, 16, 16)
        assert (minibatch.original_labels == minibatch.labels[:, None]).all()
        for image in minibatch.images:
            assert tuple(image.flatten().tolist()) not in held
    again = MinibatchSampler(data, validation=9, heldout=50, same_class=True, seed=3)
    assert torch.equal(again.heldout, sampler.heldout)
    mixed = MinibatchSampler(data, validation=200, heldout=50, same_class=False, seed=3)
    labels = mixed.fetch(mixed.draw(1, 1), torch.device("cpu")).original_labels
    assert len(set(labels.flatten().tolist())) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heldout": 300}, "300 held-out images leave none of 300"),
        (
            {"validation_labels": torch.zeros(300, dtype=torch.int64)},
            "no validation image of",
        ),
        ({"labels": torch.zeros(3)}, "300 search images, but labels"),
        ({"images": torch.zeros(300, 3, 16, 16)}, "search images should be uint8"),
        ({"validation_images": torch.zeros(300, 3, 8, 8, dtype=torch.uint8)}, "validation images"),
    ],
)
def test_bad_data(change: dict[str, object], message: str) -> None:
    data = planted()
    heldout = change.pop("heldout", 10)
    with pytest.raises(ValueError, match=message):
        MinibatchSampler(
            data._replace(**change), validation=9, heldout=heldout, same_class=True, seed=0
        )
