"""The judge, the splits of a search, folds and halves: disjoint, by class, whole groups, seeded."""

import logging
import random

import pytest
import torch

from deepaa.data import parts
from deepaa.data.embedded import load_embedded
from deepaa.data.load import as_images, load_dataset
from deepaa.data.parts import (
    KEPT,
    LEAST_JUDGED,
    MOST_JUDGED,
    SearchSubset,
    folds,
    halves,
    held_out,
    judge_part,
    search_splits,
)
from deepaa.data.splits import LabelledImages, default_sizes


def of_labels(labels, groups=None, names=None):
    """Images of one pixel each, all different."""
    labels = torch.as_tensor(labels)
    numbers = torch.arange(len(labels))
    pixels = torch.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], 1)
    images = pixels.to(torch.uint8)[:, :, None, None].contiguous()
    names = names or tuple(str(c) for c in range(int(labels.max()) + 1))
    return LabelledImages(images, labels, names, "dots", "", groups=groups)


def shares(labels, part, classes):
    return labels[part].bincount(minlength=classes) / max(1, len(labels[part]))


def whole(groups, parts):
    """The slow way: whether every group that a part has an image of is all in it."""
    sets = [set(part.tolist()) for part in parts]
    found = {}
    for i, group in enumerate(groups.tolist()):
        where = [k for k, part in enumerate(sets) if i in part] or [-1]
        found.setdefault(group, set()).update(where)
    return all(len(where) == 1 for where in found.values())


# The judge


def test_a_fifth_of_the_images_judges_and_at_most_ten_thousand():
    for n, expected in ((2000, 400), (2003, 401), (4000, 800), (49_999, 10_000), (60_000, 10_000)):
        labels = torch.arange(n) % 10
        judge = judge_part(labels)
        assert len(judge) == expected
        assert judge.equal(judge.unique())
        assert judge.dtype == torch.int64
        counts = labels[judge].bincount(minlength=10)
        assert int(counts.max()) - int(counts.min()) <= 1


def test_below_two_thousand_images_nobody_judges():
    assert len(judge_part(torch.arange(LEAST_JUDGED - 1) % 2)) == 0
    assert len(judge_part(torch.arange(LEAST_JUDGED) % 2)) == 400
    assert len(judge_part(torch.empty(0, dtype=torch.int64))) == 0


def test_the_judge_has_the_shares_of_all_and_leaves_a_few_of_every_class():
    rng = random.Random(0)
    for _ in range(40):
        counts = [rng.choice([1, 2, 3, 4, 5, 30, 400, 3000]) for _ in range(rng.randint(2, 9))]
        counts.append(2500)
        labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        judge = judge_part(labels)
        assert len(judge) == min(round(0.2 * len(labels)), MOST_JUDGED)
        taken = labels[judge].bincount(minlength=len(counts)).tolist()
        for n, k in zip(counts, taken, strict=True):
            assert k == 0 if n <= KEPT else 1 <= k <= n - KEPT
            if n >= 30:
                assert k == pytest.approx(n * len(judge) / len(labels), abs=1.5)


def test_classes_that_can_spare_nothing_have_no_judge():
    labels = torch.arange(3000) % 1000  # three of each
    assert len(judge_part(labels)) == 0
    labels = torch.arange(4000) % 1000  # one of each can go, and is more than a fifth
    assert sorted(labels[judge_part(labels)].tolist()) == list(range(1000))


def test_the_judge_is_a_matter_of_the_seed_and_of_nothing_else():
    labels = torch.arange(5000) % 7
    first = judge_part(labels)
    torch.manual_seed(3)
    assert judge_part(labels).equal(first)
    assert not judge_part(labels, seed=1).equal(first)
    # by hash: a new value is a broken promise, for images of the judge would have been seen
    assert first[:8].tolist() == [0, 1, 8, 9, 10, 13, 20, 21]


def test_whole_groups_judge():
    rng = random.Random(1)
    for _ in range(15):
        n, classes = rng.randint(2000, 6000), rng.randint(2, 6)
        sizes = [rng.choice([1, 2, 5, 9, 30]) for _ in range(n)]
        groups = torch.repeat_interleave(torch.arange(n), torch.tensor(sizes))[:n]
        spans = rng.random() < 0.5
        labels = torch.randint(classes, (n,)) if spans else groups * 7919 % classes
        labels[:classes] = torch.arange(classes)
        judge = judge_part(labels, groups)
        assert whole(groups, [judge])
        assert len(judge) == pytest.approx(0.2 * n, abs=31)
        gap = shares(labels, judge, classes) - labels.bincount(minlength=classes) / n
        assert float(gap.abs().max()) < 0.02


# Splits of a search


def test_the_embedded_images_have_a_judge_and_three_parts():
    data = load_dataset()
    splits = search_splits(data)
    assert [len(part) for part in splits] == [1600, 800, 800, 800]
    for part in splits:
        counts = data.labels[part].bincount(minlength=10)
        assert counts.tolist() == [len(part) // 10] * 10
    assert torch.cat(splits).sort().values.equal(torch.arange(4000))
    assert splits.judge.equal(judge_part(data.labels))


def test_sizes_are_exact_and_parts_disjoint_whatever_the_judge_takes():
    rng = random.Random(2)
    for _ in range(40):
        classes = rng.randint(2, 8)
        counts = [rng.randint(8, 900) for _ in range(classes)]
        labels = torch.repeat_interleave(torch.arange(classes), torch.tensor(counts))
        data = of_labels(labels)
        left = len(labels) - len(judge_part(labels))
        cuts = sorted(rng.randint(0, left - 3 * classes) for _ in range(3))
        sizes = (classes + cuts[0], classes + cuts[1] - cuts[0], classes + cuts[2] - cuts[1])
        splits = search_splits(data, sizes, rng.randrange(9))
        assert tuple(len(part) for part in splits[:3]) == sizes
        assert torch.cat(splits).unique().shape == torch.cat(splits).shape
        for part in splits[:3]:
            assert set(labels[part].tolist()) == set(range(classes))
            expected = torch.tensor(counts) / len(labels)
            assert float((shares(labels, part, classes) - expected).abs().max()) <= (
                classes / len(part) + 0.02
            )


def test_every_prefix_of_a_part_has_the_shares_of_all():
    labels = torch.tensor([0] * 3000 + [1] * 1500 + [2] * 500)
    for groups in (None, torch.arange(5000) // 4):
        for part in search_splits(of_labels(labels, groups))[:3]:
            running = torch.nn.functional.one_hot(labels[part], 3).cumsum(0)
            total = shares(labels, part, 3)
            expected = torch.arange(1, len(part) + 1)[:, None] * total
            assert float((running - expected).abs().max()) <= 1.5


def test_the_judge_is_the_same_for_every_seed_and_the_rest_is_not():
    data = load_dataset()
    first, second = search_splits(data, seed=0), search_splits(data, seed=1)
    assert first.judge.equal(second.judge)
    assert not first.search.equal(second.search)
    assert all(a.equal(b) for a, b in zip(first, search_splits(data, seed=0), strict=True))


def test_few_images_have_no_judge_and_the_parts_that_they_had():
    data = as_images((load_embedded().train_images[:600], load_embedded().train_labels[:600]))
    assert [len(part) for part in search_splits(data)] == [300, 150, 150, 0]
    assert search_splits(data).judge.dtype == torch.int64
    assert [len(part) for part in search_splits(data, pretrains=False)] == [0, 450, 150, 0]


def test_sizes_that_the_judge_does_not_leave_are_refused_with_its_number():
    with pytest.raises(
        ValueError, match=r"4,000 images, but the judge.* has 800 of the 4,000; 3,2"
    ):
        search_splits(load_dataset(), (2000, 1000, 1000))
    with pytest.raises(ValueError, match=r"5,000 images; the data set has 3,200"):
        search_splits(load_dataset(), (3000, 1000, 1000))
    with pytest.raises(ValueError, match=r"search of 3 images cannot hold 10 classes"):
        search_splits(load_dataset(), (20, 3, 20))


def test_a_class_with_few_images_is_searched_and_the_judge_says_that_it_has_none(caplog):
    labels = torch.tensor([0] * 2000 + [1] * 3)
    with caplog.at_level(logging.WARNING):
        splits = search_splits(of_labels(labels, names=("dog", "cat")))
    assert [int((labels[part] == 1).sum()) for part in splits] == [1, 1, 1, 0]
    assert "dots: the judge has no images of 1 of 2 classes: cat; it says nothing" in caplog.text
    with pytest.raises(
        ValueError, match=r"at least 3 images of every class; too few in: cat \(2\)"
    ):
        search_splits(of_labels(labels[:-1], names=("dog", "cat")))


def test_groups_are_whole_in_all_four_parts():
    rng = random.Random(3)
    for _ in range(15):
        n, classes = rng.randint(1500, 4000), rng.randint(2, 5)
        sizes = [rng.choice([1, 3, 8, 20]) for _ in range(n)]
        groups = torch.repeat_interleave(torch.arange(n), torch.tensor(sizes))[:n]
        labels = torch.randint(classes, (n,)) if rng.random() < 0.5 else groups * 7919 % classes
        labels[:classes] = torch.arange(classes)
        data = of_labels(labels, groups)
        splits = search_splits(data, seed=rng.randrange(5))
        assert whole(groups, splits)
        assert torch.cat(splits).sort().values.equal(torch.arange(n))
        judged = 0 if n < 2000 else round(0.2 * n)
        wanted = (*default_sizes(n - judged, classes), judged)
        for part, size in zip(splits, wanted, strict=True):
            assert len(part) == pytest.approx(size, abs=41)
            if size:
                gap = shares(labels, part, classes) - labels.bincount(minlength=classes) / n
                assert float(gap.abs().max()) < 0.05


def test_sizes_of_the_user_hold_about_with_groups():
    labels, groups = torch.arange(4000) % 10, torch.arange(4000) // 40
    splits = search_splits(of_labels(labels, groups), (400, 200, 200))
    assert whole(groups, splits)
    assert [len(part) for part in splits] == [400, 200, 200, 800]


def test_a_giant_group_leaves_a_small_judge_and_that_is_said(caplog):
    labels = torch.arange(4000) % 2
    groups = torch.where(torch.arange(4000) < 3800, 0, torch.arange(4000))
    with caplog.at_level(logging.WARNING):
        splits = search_splits(of_labels(labels, groups))
    assert whole(groups, splits)
    assert 0 < len(splits.judge) < 200
    number = len(splits.judge)
    assert f"dots: large groups make a judge of {number} images, not 800" in caplog.text


def test_classes_with_too_few_groups_are_named():
    labels = torch.tensor([0] * 300 + [1] * 300)
    groups = torch.arange(600) // 30
    data = of_labels(labels, groups, ("dog", "cat"))
    assert min(len(part) for part in search_splits(data)[:3]) > 0
    groups = torch.where(labels == 1, 100 + torch.arange(600) % 2, groups)
    with pytest.raises(ValueError, match=r"at least 3 groups .*; too few in: cat \(2\)"):
        search_splits(data._replace(groups=groups))
    groups = torch.tensor([0] * 1500 + [1] * 1500)
    with pytest.raises(ValueError, match=r"at least 3 groups .*: 0 \(2\), 1 \(2\)"):
        search_splits(of_labels(torch.arange(3000) % 2, groups))


def test_groups_of_several_classes_that_cannot_be_divided_say_so():
    # every class has three groups, but the fourth of these shares a class with each of the first
    held = ["ab", "ac", "ad", "bcd", "b", "c", "d"]
    labels = torch.tensor(["abcd".index(c) for classes in held for c in classes] * 5)
    groups = torch.tensor([g for g, classes in enumerate(held) for _ in classes] * 5)
    with pytest.raises(ValueError, match=r"groups: validation gets no images of .*several classes"):
        search_splits(of_labels(labels, groups))
    held[3:4] = ["bc", "d"]  # now there is a way
    labels = torch.tensor(["abcd".index(c) for classes in held for c in classes] * 5)
    groups = torch.tensor([g for g, classes in enumerate(held) for _ in classes] * 5)
    splits = search_splits(of_labels(labels, groups))
    assert whole(groups, splits)
    assert all(set(labels[part].tolist()) == {0, 1, 2, 3} for part in splits[:3])


def test_equal_images_in_judge_and_training_are_said(caplog):
    labels = torch.arange(2000) % 2
    data = of_labels(labels)
    judge = judge_part(labels)
    outside = next(i for i in range(2000) if i not in set(judge.tolist()) and i % 2 == 0)
    twin = next(i for i in judge.tolist() if i % 2 == 0)
    images = data.images.clone()
    images[twin] = images[outside]
    with caplog.at_level(logging.WARNING):
        search_splits(data)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        search_splits(data._replace(images=images))
    assert [record.getMessage() for record in caplog.records] == [
        "dots: 1 of 400 images of the judge have the same pixels as images outside of it, as image "
        f"{twin} and image {outside}; such a measurement is too good: --groups keeps such images "
        "in one part"
    ]
    caplog.clear()
    groups = torch.arange(2000)
    groups[twin] = groups[outside]
    with caplog.at_level(logging.WARNING):
        search_splits(data._replace(images=images, groups=groups))
    assert not caplog.records


# Large folders


def test_of_many_images_those_are_chosen_that_are_needed():
    labels = [0] * 700 + [1] * 280 + [2] * 20  # the last class would have 2 of 100
    chosen = SearchSubset((40, 40, 20)).choose(labels)
    assert chosen is not None
    assert chosen.places == sorted(set(chosen.places))
    assert chosen.sizes == (40, 40, 20)
    assert chosen.judge == []
    kept = torch.tensor(labels)[chosen.places]
    found = kept.bincount().tolist()
    assert found == pytest.approx([70 + 3, 28 + 2, 3 + 2], abs=2)  # with some to spare
    assert sum(found) == pytest.approx(100 + 6, abs=3)
    assert min(found) >= 5
    assert [len(part) for part in search_splits(of_labels(kept), (40, 40, 20))] == [40, 40, 20, 0]
    assert SearchSubset((40, 40, 20)).choose(labels) == chosen
    assert SearchSubset((40, 40, 20), seed=1).choose(labels) != chosen
    assert SearchSubset((500, 400, 100)).choose(labels) is None
    assert SearchSubset().choose(labels) is None
    with pytest.raises(ValueError, match=r"too few in: rare \(2\)"):
        SearchSubset((40, 40, 20)).choose(labels[:982], ("a", "b", "rare"))


def test_a_class_that_is_chosen_whole_has_none_to_spare():
    labels = [0] * 500 + [1] * 4
    chosen = SearchSubset((40, 40, 20)).choose(labels)
    assert chosen is not None
    assert chosen.places[-4:] == [500, 501, 502, 503]
    assert SearchSubset((300, 150, 53)).choose(labels) is None  # with those to spare it is all


@pytest.mark.parametrize("grouped", [False, True])
def test_a_large_folder_is_read_with_its_judge_which_no_seed_changes(grouped):
    labels = [i // 7 % 100 for i in range(90_000)]
    groups = torch.arange(90_000) // 7 if grouped else None
    judge = judge_part(torch.tensor(labels), groups)
    for subset, sizes in (
        (SearchSubset(), (20_000, 35_000, 10_000)),
        (SearchSubset(seed=4, pretrains=False), (0, 35_000, 10_000)),
        (SearchSubset((500, 600, 700), seed=2), (500, 600, 700)),
    ):
        chosen = subset.choose(labels, groups=groups)
        assert chosen is not None
        assert chosen.judge == judge.tolist()
        assert chosen.sizes == sizes
        enough = sum(sizes) + len(judge)
        assert enough <= len(chosen.places) <= 1.02 * enough + 400
        places = torch.tensor(chosen.places)
        read = of_labels(torch.tensor(labels)[places], None if groups is None else groups[places])
        read = read._replace(judge=torch.isin(places, judge).nonzero()[:, 0])
        splits = search_splits(read, sizes, subset.seed)
        assert places[splits.judge].equal(judge)
        if grouped:
            assert whole(groups, [places])
            assert whole(read.groups, splits)
            assert [len(part) for part in splits[:3]] == pytest.approx(sizes, abs=350)
        else:
            assert tuple(len(part) for part in splits[:3]) == sizes


def test_runs_of_the_first_versions_read_what_they_read_then():
    labels = [i % 4 for i in range(5000)]
    old = SearchSubset((40, 40, 20), seed=3, judged=False).choose(labels)
    assert old is not None
    assert old.judge == []
    assert len(old.places) == 108
    assert old.places[:9] == [3, 18, 50, 125, 226, 339, 377, 438, 472]


# Folds and halves


def test_folds_differ_by_one_image_and_so_do_their_classes():
    rng = random.Random(4)
    for _ in range(60):
        n, classes, count = rng.randint(10, 300), rng.randint(1, 7), rng.randint(2, 10)
        labels = torch.tensor([rng.randrange(classes) for _ in range(n)])
        fold = folds(labels, count=count, seed=rng.randrange(9))
        assert set(fold.tolist()) == set(range(count))
        for subset in (fold, *(fold[labels == c] for c in labels.unique())):
            found = subset.bincount(minlength=count)
            assert int(found.max() - found.min()) <= 1


def test_folds_keep_groups_whole_and_classes_in_every_fold():
    labels, groups = torch.arange(900) % 3, torch.arange(900) // 9
    fold = folds(labels, groups)
    assert whole(groups, [(fold == k).nonzero()[:, 0] for k in range(5)])
    assert fold.bincount().tolist() == [180] * 5
    own = torch.arange(900) // 90  # ten groups, each of one class
    fold = folds(own % 2, own)
    for k in range(5):
        assert set((own % 2)[fold == k].tolist()) == {0, 1}


def test_a_class_with_fewer_images_than_folds_is_in_as_many_as_it_has():
    labels = torch.tensor([0] * 50 + [1] * 3)
    fold = folds(labels)
    assert len(fold[50:].unique()) == 3


def test_classes_of_one_group_are_named_by_folds(caplog):
    labels, groups = torch.arange(60) % 2, torch.arange(60) // 6
    with caplog.at_level(logging.WARNING):
        folds(labels, groups)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        folds(labels, torch.where(labels == 1, 99, groups), class_names=("dog", "cat"))
    assert [record.getMessage() for record in caplog.records] == [
        "cat: all images are in one fold, so that no network learns them for it"
    ]


def test_folds_that_are_impossible():
    with pytest.raises(ValueError, match="5 folds: expected 2 to 4, the number of images"):
        folds(torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"5 folds: expected 2 to 3, the number of groups \(9 im"):
        folds(torch.arange(9) % 2, torch.arange(9) // 3)
    with pytest.raises(ValueError, match="1 folds"):
        folds(torch.tensor([0, 1, 0, 1]), count=1)


@pytest.mark.parametrize("seed", range(8))
def test_no_fold_and_no_half_of_a_few_groups_is_empty(seed):
    """Patients with one diagnosis each, or one that gave most images: each still has a fold."""
    rng = random.Random(seed)
    count = rng.randrange(5, 9)
    sizes = [rng.choice([1, 2, 3, 60]) for _ in range(count)]
    groups = torch.tensor([g for g, n in enumerate(sizes) for _ in range(n)])
    for labels in (groups % 2, groups, torch.zeros_like(groups)):
        fold = folds(labels, groups)
        assert whole(groups, [(fold == k).nonzero()[:, 0] for k in range(5)])
        assert torch.equal(torch.unique(fold), torch.arange(5))
        half = halves(labels, groups)
        for chooses in (True, False):
            assert len(torch.unique(groups[half == chooses])) >= 2


def test_groups_that_cannot_be_halved_are_refused_in_one_line():
    labels = torch.arange(90) % 2
    with pytest.raises(ValueError, match="the 90 images that judge policies are in 3 groups, and"):
        halves(labels, torch.arange(90) % 3)


def test_groups_too_few_to_be_halved_are_not_set_aside():
    labels = torch.arange(2400) % 2
    large = torch.arange(2400) // 300  # of which one or two would judge
    assert not len(judge_part(labels, large))
    assert len(judge_part(labels, torch.arange(2400) // 60))


def test_halves_are_halves_of_every_class_and_of_whole_groups():
    for n in (0, 1, 2, 7, 400):
        labels = torch.arange(n) % 3
        half = halves(labels)
        assert half.dtype == torch.bool
        assert int(half.sum()) == (n + 1) // 2
        for c in range(3):
            assert abs(2 * int(half[labels == c].sum()) - int((labels == c).sum())) <= 1
    labels, groups = torch.arange(800) % 4, torch.arange(800) // 10
    half = halves(labels, groups)
    assert whole(groups, [half.nonzero()[:, 0], (~half).nonzero()[:, 0]])
    assert int(half.sum()) == 400
    assert not halves(labels, seed=1).equal(halves(labels))


# Held-out images


def test_whole_groups_are_held_out_the_same_every_time():
    labels, groups = torch.arange(1000) % 5, torch.arange(1000) // 8
    both = held_out(of_labels(labels, groups), 0.1)
    again = held_out(of_labels(labels, groups), 0.1)
    assert both.test.fingerprint == again.test.fingerprint
    assert both.how == "0.1 of the training images, held out in whole groups"
    assert len(both.test.labels) == pytest.approx(100, abs=8)
    assert len(both.train.labels) + len(both.test.labels) == 1000
    assert not set(both.train.groups.tolist()) & set(both.test.groups.tolist())
    assert int(both.test.labels.bincount(minlength=5).min()) >= 15


def test_a_class_of_one_group_trains_and_the_test_says_that_it_has_none(caplog):
    labels = torch.tensor([0] * 100 + [1] * 10)
    groups = torch.cat([torch.arange(100) // 5, torch.full((10,), 99)])
    with caplog.at_level(logging.WARNING):
        both = held_out(of_labels(labels, groups, ("dog", "cat")), 0.2)
    assert set(both.train.labels.tolist()) == {0, 1}
    assert set(both.test.labels.tolist()) == {0}
    assert "no test images of 1 of 2 classes: cat" in caplog.text
    with pytest.raises(ValueError, match="dots: no class has a group to spare"):
        held_out(of_labels(labels, labels), 0.2)


# How many images there are


def test_a_class_with_too_few_images_is_named():
    labels = torch.tensor([0] * 40 + [1] * 2 + [2] * 40 + [3])
    with pytest.raises(ValueError, match=r"pets: 2 of 4 classes have too few images: b \(2\), d"):
        parts.check_enough(labels, "abcd", "pets")
    with pytest.raises(ValueError, match="pets: 29 images in all, at least 30 are needed"):
        parts.check_enough(torch.arange(29) % 2, "ab", "pets")
    parts.check_enough(torch.arange(30) % 2, "ab", "pets")


def test_what_makes_results_weak_is_said():
    assert parts.weaknesses(torch.arange(300) % 2, "ab") == []
    few, classes = parts.weaknesses(torch.tensor([0] * 31 + [1] * 19), "ab")
    assert few.startswith("50 images tell only large differences between policies, of about 20")
    assert classes.endswith("fewer than 20 images, which a network hardly learns: b (19)")


def test_a_handful_of_held_out_images_is_said(caplog):
    images = torch.arange(12 * 48, dtype=torch.uint8).reshape(12, 3, 4, 4)
    data = as_images((images, torch.arange(12) % 2))
    with caplog.at_level(logging.WARNING):
        parts.held_out(data, 0.1)
    assert "2 images are held out; an accuracy on so few says little" in caplog.text
