"""Parts of a data set: disjoint, stratified, seeded, and refused where a class would be missing."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from deepaa.data.embedded import load_embedded
from deepaa.data.splits import (
    Splits,
    check_labels,
    class_order,
    default_sizes,
    stratified_splits,
)


def counts(part, labels, classes):
    return labels[part].bincount(minlength=classes)


def test_embedded_data_have_balanced_parts():
    labels = load_embedded().train_labels
    parts = stratified_splits(labels, (2000, 1000, 1000), 0)[:3]
    for part, n in zip(parts, (200, 100, 100), strict=True):
        assert part.dtype == torch.int64
        assert counts(part, labels, 10).tolist() == [n] * 10
    assert torch.cat(parts).sort().values.equal(torch.arange(4000))
    assert all(a.equal(b) for a, b in zip(parts, stratified_splits(labels)[:3], strict=True))


def test_these_numbers_never_change():
    # written by hash, not by a library's generator: a new value is a broken promise to old runs
    parts = stratified_splits([0, 1, 2, 3] * 5, (8, 4, 8), 7)[:3]
    assert [part.tolist() for part in parts] == [
        [16, 5, 2, 3, 0, 17, 10, 11],
        [8, 13, 14, 19],
        [4, 9, 6, 7, 12, 1, 18, 15],
    ]


def test_the_seed_decides_and_global_state_does_not():
    labels = torch.arange(400) % 4
    first = stratified_splits(labels, (100, 100, 100), 3)
    torch.manual_seed(99)
    again = stratified_splits(labels.tolist(), (100, 100, 100), 3)
    other = stratified_splits(labels, (100, 100, 100), 4)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert not first.search.equal(other.search)
    assert (
        stratified_splits(labels, (400, 0, 0), -1).pretrain.sort().values.equal(torch.arange(400))
    )


def test_every_prefix_is_stratified():
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 100)
    part = stratified_splits(labels, (500, 250, 250), 0).pretrain
    running = torch.nn.functional.one_hot(labels[part], 3).cumsum(0)
    expected = torch.arange(1, 501)[:, None] * torch.tensor([0.6, 0.3, 0.1])
    assert float((running - expected).abs().max()) <= 1.5


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(3, 40), min_size=1, max_size=8),
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
    st.integers(0, 2**64),
)
def test_any_counts_and_sizes(class_counts, shares, seed):
    labels = torch.repeat_interleave(torch.arange(len(class_counts)), torch.tensor(class_counts))
    n, classes = len(labels), len(class_counts)
    free = n - 3 * classes
    cuts = sorted(int(share * free) for share in shares)
    sizes = (classes + cuts[0], classes + cuts[1] - cuts[0], classes + cuts[2] - cuts[1])
    parts = stratified_splits(labels, sizes, seed)[:3]
    together = torch.cat(parts)
    assert tuple(len(part) for part in parts) == sizes
    assert len(together.unique()) == len(together)
    for part in parts:
        assert int(counts(part, labels, classes).min()) >= 1


def test_the_first_of_a_class_order_have_the_shares_of_all_classes():
    labels = torch.tensor([0] * 500 + [1] * 300 + [3] * 200)
    order = class_order(labels)
    assert torch.equal(order.sort().values, torch.arange(1000))
    for count in (10, 50, 333, 1000):
        found = labels[order[:count]].bincount(minlength=4)
        expected = count * torch.tensor([0.5, 0.3, 0.0, 0.2])
        assert (found - expected).abs().max() <= 1
    assert not torch.equal(order[labels[order] == 0], torch.arange(500))  # by chance


def test_shares_are_exact_up_to_rounding():
    class_counts = torch.tensor([503, 251, 97, 149])
    labels = torch.repeat_interleave(torch.arange(4), class_counts)
    for part in stratified_splits(labels, (500, 250, 250), 1)[:3]:
        wanted = class_counts * len(part) / 1000
        assert float((counts(part, labels, 4) - wanted).abs().max()) <= 1


def test_a_class_of_three_reaches_every_part():
    labels = torch.tensor([0] * 97 + [1] * 3)
    for part in stratified_splits(labels, (50, 25, 25), 0)[:3]:
        assert counts(part, labels, 2)[1] == 1


def test_too_small_classes_are_named():
    labels = [0] * 50 + [1] * 2 + [2] * 50 + [4] * 50
    with pytest.raises(ValueError, match=r"at least 3 images .*: 1 \(2\), 3 \(0\)"):
        stratified_splits(labels, (50, 25, 25), 0)
    with pytest.raises(ValueError, match=r"too few in: cat \(2\)$"):
        stratified_splits([0] * 9 + [1] * 2, (5, 2, 2), 0, class_names=("dog", "cat"))
    assert len(stratified_splits([0] * 9 + [1] * 2, (0, 5, 4), 0).pretrain) == 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((10, 10, 11), r"31 images; the data set has 30"),
        ((0, 0, 0), "0 images"),
        ((10, -1, 5), r"sizes should be .* got \(10, -1, 5\)"),
        ((10, 5, 0.5), r"sizes should be .* got \(10, 5, 0\.5\)"),
        ((True, 5, 5), r"sizes should be .* got \(True, 5, 5\)"),
        ((10, 2, 5), "search of 2 images cannot hold 3 classes"),
        ((10, 5), "sizes should be"),
    ],
)
def test_sizes_that_do_not_work(sizes, message):
    with pytest.raises(ValueError, match=message):
        stratified_splits(torch.arange(30) % 3, sizes, 0)


def test_labels_out_of_range_are_shown():
    with pytest.raises(ValueError, match=r"0\.\.2, but \[1\] = -1, \[3\] = -7"):
        stratified_splits([0, -1, 2, -7], (2, 1, 1), 0)
    with pytest.raises(ValueError, match=r"0\.\.1, but \[2\] = 2$"):
        stratified_splits([0, 1, 2], (1, 1, 1), 0, class_names=("a", "b"))
    with pytest.raises(ValueError, match=r"\[0\] = 5, .* and 2 more"):
        check_labels(torch.full((12,), 5), 5)
    for wrong in (torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="expected integers of shape"):
            check_labels(wrong)
    with pytest.raises(ValueError, match="no labels"):
        check_labels(torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("n", "sizes"),
    [
        (3, (1, 1, 1)),
        (10, (5, 3, 2)),
        (600, (300, 150, 150)),
        (4000, (2000, 1000, 1000)),
        (20_000, (4000, 11_000, 5000)),
        (50_000, (4000, 35_000, 10_000)),
        (1_281_167, (4000, 35_000, 10_000)),
    ],
)
def test_default_sizes(n, sizes):
    assert default_sizes(n) == sizes


@pytest.mark.parametrize(
    ("n", "classes", "sizes"),
    [
        (50_000, 10, (4000, 35_000, 10_000)),
        (50_000, 20, (4000, 35_000, 10_000)),
        (50_000, 50, (10_000, 30_000, 10_000)),
        (50_000, 100, (20_000, 20_000, 10_000)),
        (8_000, 102, (4000, 2000, 2000)),
        (1_281_167, 1000, (200_000, 35_000, 10_000)),
        (5_000_000, 10_000, (200_000, 35_000, 10_000)),
    ],
)
def test_many_classes_have_more_images_to_learn_from(n, classes, sizes):
    assert default_sizes(n, classes) == sizes


def test_a_trained_network_needs_no_images_to_learn_from():
    assert default_sizes(2, pretrains=False) == (0, 1, 1)
    assert default_sizes(40, 3, pretrains=False) == (0, 30, 10)
    assert default_sizes(50_000, 100, pretrains=False) == (0, 35_000, 10_000)
    with pytest.raises(ValueError, match="2 parts need at least 2 images, got 1"):
        default_sizes(1, pretrains=False)


def test_three_images_of_each_of_many_classes_are_enough():
    labels = torch.arange(30) % 10
    for part in stratified_splits(labels)[:3]:
        assert sorted(labels[part].tolist()) == list(range(10))
    assert sum(default_sizes(10_000, 3_000)) <= 10_000
    assert min(default_sizes(10_000, 3_000)) >= 3_000


def test_default_sizes_need_three_images():
    with pytest.raises(ValueError, match="3 parts need at least 3 images, got 2"):
        default_sizes(2)
    assert Splits._fields == ("pretrain", "search", "validation", "judge")
