"""Protection of classes: what turns one into another is found, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import letters, strokes
from PIL import Image
from torch import Tensor, nn

from deepaa import CIFAR, Operation, Policy, SearchConfig, Space, find_policy, load_policy
from deepaa.data.load import as_images
from deepaa.models import build_model
from deepaa.ops import Row
from deepaa.runs import read_history
from deepaa.search import PRESETS
from deepaa.search.plain_network import ProtectionRecord, plain_parts, retraining_config
from deepaa.search.policy_search import PolicySearch
from deepaa.search.protection import (
    Changed,
    Protection,
    Shares,
    confused,
    find_changed,
    first_rows,
    more_rows,
    practice,
    suspicious,
    transformed,
)
from deepaa.search.proved import ProvedSearch
from deepaa.search.run import SearchProgress
from deepaa.search.settings import ProxyConfig
from deepaa.train.config import TrainConfig

SHARED = Path(__file__).parents[3] / "shared/data"
FLIP = Changed("flip", None, "left", "right", 0.91, 0.01, 60)
WIDE = load_policy("trivialaugment-wide").table.rows


def turned(name: str, magnitude: float, neutral: float) -> Changed:
    return Changed(name, magnitude, "a", "b", 0.8, 0.0, 64, neutral)


def rows_of(name: str, rows: Any = CIFAR.table.rows) -> list[Row]:
    return [row for row in rows if row.operation.name == name]


# What is left out


def test_a_sentence_says_what_becomes_what() -> None:
    assert FLIP.text == "flip: 'left' becomes 'right' (91% of 60 images, 1% without it)"
    assert turned("rotate", 45.0, 0.0).text.startswith("rotate from 45 on: 'a' becomes 'b' (80%")


def test_a_mirror_image_that_is_lost_to_several_classes_becomes_none_of_them() -> None:
    lost = FLIP._replace(share=0.38)
    assert lost.text == (
        "flip: 'left' is taken for others, most often for 'right' (38% of 60 images, 1% without it)"
    )


def test_one_sentence_for_each_side_of_an_operation() -> None:
    found = Protection(
        (
            FLIP,
            FLIP._replace(from_class="right", to_class="left", share=0.95),
            turned("rotate", 45.0, 0.0),
            turned("rotate", 60.0, 0.0)._replace(share=1.0),  # stronger, so it needs no word
            turned("rotate", 60.0, 0.0)._replace(to_class="c"),
            turned("rotate", -90.0, 0.0),
        )
    )
    assert found.texts() == [
        "flip: 'right' becomes 'left' (95% of 60 images, 1% without it); and 1 other pair of "
        "classes",
        "rotate from 45 on: 'a' becomes 'b' (80% of 64 images, 0% without it); and 1 other pair of "
        "classes",
        "rotate from -90 on: 'a' becomes 'b' (80% of 64 images, 0% without it)",
    ]


def test_what_took_no_part_is_not_left_out() -> None:
    found = Protection((FLIP, turned("rotate", 45.0, 0.0)))
    (only,) = found.texts(CIFAR.table.rows)  # which turn by 30 degrees at most
    assert only.startswith("flip")
    record = ProtectionRecord(found.to_json(), [], classes=2, seconds=1.0, passes=1)
    assert len(record.lines) == 2
    assert record.lines_about(rows_of("rotate")) == [
        "no operation that takes part was seen to turn one class into another"
    ]


def test_the_reason_why_classes_are_not_testable_is_the_true_one() -> None:
    names = ["a", "b", "c"]
    (few,) = ProtectionRecord([], names, classes=3, seconds=0.0, passes=0).lines
    assert few == (
        "3 of 3 classes are not testable for operations that turn them into another (it takes 40 "
        "held-out images of two classes or more): a, b, c; so no operation was tested"
    )
    (one,) = ProtectionRecord([], names, classes=4, seconds=1.0, passes=9).lines
    assert "the network knows too little): a, b, c; so no operation was tested" in one
    (two,) = ProtectionRecord([], names, classes=5, seconds=1.0, passes=9).lines
    assert two.endswith("the network knows too little): a, b, c")


def test_it_excludes_what_is_as_strong_or_stronger_on_the_same_side() -> None:
    protection = Protection((FLIP, turned("rotate", 20.0, 0.0), turned("solarize", 128.0, 256.0)))
    flips = [*rows_of("flip"), *rows_of("flip", load_policy("crop-flip").table.rows)]
    assert all(map(protection.excludes, flips))
    out = {row.magnitude for row in (*rows_of("rotate"), *rows_of("rotate", WIDE))}
    left = {m for m in out if not protection.excludes(Row(Operation("rotate", -180, 180, 0), m))}
    assert left == {m for m in out if m < 20}
    dark = [row.magnitude for row in rows_of("solarize") if protection.excludes(row)]
    assert dark == [m for m in CIFAR.only("solarize").operations[0].magnitudes(13) if m <= 128]
    others = CIFAR.without("flip", "rotate", "solarize").table.rows
    assert not any(map(protection.excludes, others))


def test_a_range_ends_before_what_is_unsafe() -> None:
    """Signed ones stay symmetric, the others keep their safe side."""
    found = Protection(
        (
            FLIP,
            turned("rotate", -20.0, 0.0),  # of -30..30 in steps of 5
            turned("contrast", 0.25, 1.0),  # of 0.1..1.9 in steps of 0.15
            turned("shear_x", 0.05, 0.0),  # the weakest there is
        )
    )
    space = found.space(CIFAR)
    have = {op.name: op for op in space.operations}
    assert set(have) == {op.name for op in CIFAR.operations} - {"flip", "shear_x"}
    assert (have["rotate"].low, have["rotate"].high) == (-15.0, 15.0)
    assert have["rotate"].is_signed
    assert (have["contrast"].low, have["contrast"].high) == (0.4, 1.9)
    assert not any(map(found.excludes, space.table.rows))
    assert have["shear_y"] == next(op for op in CIFAR.operations if op.name == "shear_y")
    assert found.space(space) == space
    assert Protection().space(CIFAR) == CIFAR


def test_magnitudes_without_a_neutral_one_go_together() -> None:
    own = Operation("turn", 0.0, 3.0, batched=lambda images, *rest: images.flip(3))
    changed = Changed("turn", 3.0, "a", "b", 1.0, 0.0, 64)
    assert Protection((changed,)).space(CIFAR.plus(own)) == CIFAR


def test_json_and_back() -> None:
    found = Protection((FLIP, turned("rotate", 45.0, 0.0)), ("cat", "dog"))
    listed = json.loads(json.dumps(found.to_json()))
    first = {"operation": "flip", "from": "left", "to": "right", "share": 0.91, "before": 0.01}
    assert listed[0] == {**first, "images": 60, "magnitude": None, "neutral": None}
    assert Protection.from_json(listed, ["cat", "dog"]) == found
    record = ProtectionRecord(listed, ["cat", "dog"], 10, 1.5)
    again = ProtectionRecord.from_tensor(record.to_tensor())
    assert (again, again.protection) == (record, found)


# What is tested


def test_each_side_is_tested_at_three_strengths_first() -> None:
    first = first_rows(CIFAR.table.rows)
    assert {row.operation.name for row in first} == {op.name for op in CIFAR.operations} - {
        "identity"
    }
    assert sorted(row.magnitude for row in rows_of("rotate", first)) == [-30, -20, -10, 10, 20, 30]
    assert [row.magnitude for row in rows_of("flip", first)] == [None]
    both = first_rows((*CIFAR.table.rows, *WIDE))
    strengths = sorted(row.magnitude for row in rows_of("rotate", both) if row.magnitude > 0)
    assert strengths == [10, 20, 30, 45, 90, 135]
    assert len(both) < 100


def test_a_suspected_side_is_tested_from_half_of_that_strength_on() -> None:
    suspect = next(row for row in rows_of("rotate") if row.magnitude == 20)
    more = more_rows(CIFAR.table.rows, [suspect])
    assert [row.magnitude for row in more] == [10, 15, 20, 25, 30]
    assert more_rows(CIFAR.table.rows, []) == []


def test_a_flip_is_certain_when_it_is_tested() -> None:
    images = strokes(128, 0)[0]
    (flip,) = rows_of("flip")
    out, changed = transformed(images, flip, seed=0)
    assert changed.float().mean() > 0.8
    assert torch.equal(out[changed], images[changed].flip(3))
    assert torch.equal(out[~changed], images[~changed])
    (identity,) = rows_of("identity")
    assert not transformed(images, identity, seed=0)[1].any()


# The statistic


def shares(*tables: list[list[float]], images: int = 64, mirror: bool = False) -> Shares:
    of = torch.tensor(tables, dtype=torch.float64)
    mirrors = torch.full((len(of),), mirror)
    return Shares(of, torch.full(of.shape[:2], images), mirrors)


def test_suspicion_by_an_obvious_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    of = torch.rand(40, 5, 5, generator=generator, dtype=torch.float64) ** 3
    of[:, 0, 1] += 3
    of /= of.sum(2, keepdim=True)
    before = torch.eye(5, dtype=torch.float64) * 0.8 + 0.04
    images = torch.randint(30, 65, (40, 5), generator=generator)
    pairs = ~torch.eye(5, dtype=torch.bool)
    pairs[3] = False
    found = suspicious(Shares(of, images, torch.zeros(40, dtype=torch.bool)), before, pairs)
    bound = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(1 - 0.01 / (40 * 16))).item()
    for r, i, j in np.ndindex(40, 5, 5):
        others = [float(of[r, k, j]) for k in range(5) if k not in (i, j)]
        base = max(sum(others) / max(1, len(others)), float(before[i, j]))
        p = (float(of[r, i, j]) + base) / 2
        error = (2 * p * (1 - p) / int(images[r, i])) ** 0.5
        expected = (
            bool(pairs[i, j])
            and int(images[r, i]) >= 40
            and float(of[r, i, j]) >= 0.5
            and float(of[r, i, j]) - base > bound * error
        )
        assert bool(found[r, i, j]) == expected, (r, i, j)
    assert 0 < int(found.sum()) < found.numel() / 20


def test_what_makes_everything_one_class_turns_no_class_into_it() -> None:
    clean = torch.eye(3, dtype=torch.float64)
    pairs = ~torch.eye(3, dtype=torch.bool)
    everything = [[0.0, 0.0, 1.0]] * 3
    one = [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    found = suspicious(shares(everything, one), clean, pairs)
    assert found.nonzero().tolist() == [[1, 0, 2]]


def test_a_mirror_image_that_is_no_picture_of_its_class_is_suspect() -> None:
    """As a mirrored 3, which a network calls 5, 2 and 8, but never 3."""
    before = torch.eye(4, dtype=torch.float64)
    pairs = ~torch.eye(4, dtype=torch.bool)
    lost = [[0.05, 0.45, 0.3, 0.2], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0, 0, 1.0]]
    found = suspicious(shares(lost, mirror=True), before, pairs)
    assert found.nonzero().tolist() == [[0, 0, 1]]
    assert not suspicious(shares(lost), before, pairs).any()
    lost[0] = [0.55, 0.45, 0.0, 0.0]
    assert not suspicious(shares(lost, mirror=True), before, pairs).any()


def test_classes_that_are_one_are_confused_whatever_share_the_network_gives_each() -> None:
    """A under the operation and B are alike: a share q of both is called A, the rest B."""
    before = torch.eye(3, dtype=torch.float64)
    for q in (0.0, 0.3, 0.5, 0.8, 1.0):
        told = shares([[q, 1 - q, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        clean = torch.tensor([[1, 0, 0], [q, 1 - q, 0], [0, 0, 1]], dtype=torch.float64)
        assert confused(told, clean, before)[0, 0, 1]
    learnt = shares([[0.8, 0.2, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert not confused(learnt, before, before)[0, 0, 1]


def test_practice_leaves_half_of_the_images_alone() -> None:
    policy = practice([*rows_of("rotate")[:3], *rows_of("invert")])
    uses = policy.expected_uses()
    assert uses == pytest.approx({"identity": 0.5, "rotate": 0.25, "invert": 0.25})


# Networks whose answers are known


class Slope(nn.Module):
    """Calls strokes by their direction: up, down, or flat; the dark ones flat."""

    def __init__(self, *, knows_dark: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.knows_dark = knows_dark

    def forward(self, images: Tensor) -> Tensor:
        x = images.float().mean(1)
        x = x - x.amin((1, 2), keepdim=True)
        slope = (x[:, 1:, :-1] * x[:, :-1, 1:]).mean((1, 2))
        other = (x[:, 1:, 1:] * x[:, :-1, :-1]).mean((1, 2))
        flat = (x[:, :, 1:] * x[:, :, :-1]).mean((1, 2)) * 0.8
        if not self.knows_dark:
            flat = flat + 1e6 * (x.amax((1, 2)) < 60)
        return torch.stack((slope, other, flat), 1) * self.scale


NAMES = ("up", "down", "flat")


def never(policy: Policy) -> nn.Module:
    raise AssertionError("nothing but a flip should be in doubt")


def test_a_known_network_and_a_flip() -> None:
    images, labels = strokes(240, 0)
    found = find_changed(Slope(), images, labels, NAMES, rows_of("flip"), never)
    pairs = {(each.from_class, each.to_class) for each in found.changed}
    assert pairs == {("up", "down"), ("down", "up")}
    assert all(each.share > 0.95 and each.before < 0.05 for each in found.changed)
    assert found.untestable == ()


def test_what_is_only_strange_is_learnt_and_stays() -> None:
    """Dark strokes of one class are called flat until somebody says that they are not."""
    images, labels = strokes(240, 0)
    dim = Operation("dim", 0.0, 0.9, neutral=0.0, batched=_dim)
    rows = Space((Operation("identity"), dim)).table.rows
    asked: list[Policy] = []

    def retrain(policy: Policy) -> nn.Module:
        asked.append(policy)
        return Slope(knows_dark=True)

    assert find_changed(Slope(), images, labels, NAMES, rows, retrain) == Protection()
    (policy,) = asked
    assert set(policy.expected_uses()) == {"identity", "dim"}
    found = find_changed(Slope(), images, labels, NAMES, rows, lambda policy: Slope())
    assert {each.operation for each in found.changed} == {"dim"}
    assert {(each.from_class, each.to_class) for each in found.changed} == {("up", "flat")}
    weakest = found.changed[0].magnitude
    assert weakest is not None
    assert 0.45 <= weakest < 0.9


def _dim(images: Tensor, magnitudes: Tensor, uniforms: Tensor) -> Tensor:
    """Darkens those that rise from left to right, and no others."""
    x = images.float().mean(1)
    up = (x[:, 1:, :-1] * x[:, :-1, 1:]).mean((1, 2)) > (x[:, 1:, 1:] * x[:, :-1, :-1]).mean((1, 2))
    factor = torch.where(up, 1 - magnitudes, 1.0).float()[:, None, None, None]
    return (images * factor).to(torch.uint8)


def test_what_cannot_be_tested_is_named() -> None:
    images, labels = strokes(240, 0)
    few = torch.cat(((labels == 0).nonzero()[:39, 0], (labels > 0).nonzero()[:, 0]))
    found = find_changed(Slope(), images[few], labels[few], NAMES, rows_of("flip"), never)
    assert found == Protection(untestable=("up",))
    wrong = labels.roll(1)
    found = find_changed(Slope(), images, wrong, NAMES, rows_of("flip"), never)
    assert found == Protection(untestable=NAMES)


# In a search

TINY = SearchConfig(
    layers=1,
    steps=2,
    learning_rate=1.0,
    images=2,
    validation=8,
    prefixes=1,
    chains=16,
    heldout=8,
)
PROXY = ProxyConfig(model="small", train=TrainConfig(epochs=25, batch=16))
SIZES = (90, 150, 60)
SPACE = CIFAR.only("identity", "posterize", "flip")


def small_search(**options: Any) -> Policy:
    given = {"space": SPACE, "config": TINY, "proxy": PROXY, "sizes": SIZES, "contest": False}
    return find_policy(strokes(300, 0), device="cpu", **(given | options))


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_a_search_without_the_flip_ends_alike_however_often_it_is_left(
    tmp_path: Path, one_thread: None
) -> None:
    whole = small_search(out=tmp_path / "whole")
    assert "flip" not in whole.expected_uses()
    assert "flip: '0' becomes '1'" in whole.info["left out"]
    records = read_history(tmp_path / "whole")
    assert [r["kind"] for r in records] == ["epoch"] * 25 + ["protection", "step", "step", "layer"]
    assert {r["operation"] for r in records[25]["changed"]} >= {"flip"}

    class Enough(KeyboardInterrupt):
        pass

    def leave(record: object) -> None:
        if not hasattr(record, "lr"):
            raise Enough

    out = tmp_path / "parts"
    for n in range(26, len(records) + 1):
        with pytest.raises(Enough):
            small_search(out=out, progress=leave)
        assert len(read_history(out)) == n
    assert small_search(out=out).equals(whole)
    assert (out / "policy.json").read_bytes() == (tmp_path / "whole/policy.json").read_bytes()


@pytest.mark.slow
def test_networks_that_know_flips_leave_the_word_to_a_plain_one() -> None:
    """One that is given, and one that is pre-trained with flips; off is off."""
    given = build_model("small", 3)
    proxy = ProxyConfig(model="small", augment=True, train=PROXY.train)
    for options in ({"model": given, "sizes": (0, 240, 60)}, {"proxy": proxy}):
        records: list[Any] = []
        policy = small_search(progress=records.append, **options)
        assert "flip" not in policy.expected_uses(), options
        (found,) = (r for r in records if isinstance(r, ProtectionRecord))
        assert {each.operation for each in found.protection.changed} >= {"flip"}
    policy = small_search(protect=False)
    assert "flip" in policy.expected_uses()
    assert "left out" not in policy.info


def test_without_images_enough_no_network_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = strokes(120, 0)
    task = PolicySearch(as_images((images, labels)), space=SPACE, search=TINY, proxy=PROXY)
    progress, records = SearchProgress(ProvedSearch(task, None)), []
    for record in task:
        progress(record)
        records.append(record)
    (found,) = (r for r in records if isinstance(r, ProtectionRecord))
    assert found.untestable == ["0", "1", "2"]
    assert found.seconds < 0.5
    assert task.space == SPACE
    assert "3 of 3 classes are not testable" in capsys.readouterr().err


def test_a_plain_network_is_asked_about_images_that_it_has_not_seen() -> None:
    images, labels = strokes(300, 0)
    for sizes in (SIZES, (0, 240, 60)):
        task = PolicySearch(
            as_images((images, labels)),
            space=SPACE,
            search=TINY,
            proxy=PROXY,
            model=None if sizes[0] else Slope(),
            sizes=sizes,
        )
        train, heldout = plain_parts(task.splits, 3)
        both = torch.cat((train, heldout))
        assert len(both.unique()) == len(both) == 300
        assert len(train) == (90 if sizes[0] else 120)


def test_further_training_grows_with_what_is_suspected() -> None:
    config = TrainConfig(epochs=40, lr=0.1, schedule="step", milestones=(20,))
    assert retraining_config(config, 4000, 1).epochs == 10  # a quarter
    assert retraining_config(config, 500, 1).epochs == 20  # 10,000 images
    assert retraining_config(config, 10, 17).epochs == 600, "few images are learnt by heart"
    more = retraining_config(config, 500, 6)
    assert (more.epochs, more.lr, more.schedule) == (48, 0.05, "cosine")


def test_which_presets_protect() -> None:
    on = {name: (p.search.protect, p.proxy.augment) for name, p in PRESETS.items()}
    assert on == {
        "fast": (True, False),
        "official": (False, True),
        "paper": (False, False),
        "imagenet": (True, False),
        "demo": (True, False),
    }


# Planted classes, real networks


def search_letters(seed: int, *, with_pair: bool) -> tuple[Policy, Protection]:
    images, labels = letters(1200, seed, with_pair=with_pair)
    records: list[Any] = []
    policy = find_policy(
        (images, labels),
        preset="demo",
        ops="flip,invert,posterize",
        layers=1,
        epochs=20,
        seed=seed,
        sizes=(360, 420, 420),
        contest=False,
        device="cpu",
        progress=records.append,
    )
    (record,) = (r for r in records if isinstance(r, ProtectionRecord))
    return policy, record.protection


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_mirror_images_among_classes_that_gain_from_a_flip_forbid_it(seed: int) -> None:
    policy, protection = search_letters(seed, with_pair=True)
    flips = [each for each in protection.changed if each.operation == "flip"]
    assert {(each.from_class, each.to_class) for each in flips} == {("0", "1"), ("1", "0")}
    assert "flip" not in policy.expected_uses()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_without_that_pair_the_flip_is_found(seed: int) -> None:
    policy, protection = search_letters(seed, with_pair=False)
    assert protection == Protection()
    uses = policy.expected_uses()
    assert uses["flip"] > 0.2 > uses["invert"]  # each of the 15 rows begins with 1/15


# Real images


def sheet(path: Path, side: int) -> Tensor:
    pixels = np.asarray(Image.open(path)).reshape(100, side, 100, side).transpose(0, 2, 1, 3)
    return torch.from_numpy(pixels.reshape(-1, 1, side, side).copy())


def protected(data: Any, seed: int) -> Protection:
    """What a search with the demo's settings leaves out."""
    task = PolicySearch(
        as_images(data),
        space=CIFAR,
        search=SearchConfig(seed=seed),
        proxy=PRESETS["demo"].proxy,
    )
    found = next(record for record in task if isinstance(record, ProtectionRecord))
    return found.protection


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "mnist").exists(), reason="needs ../shared/data/mnist")
@pytest.mark.parametrize("seed", range(3))
def test_digits_are_not_flipped(seed: int) -> None:
    images = sheet(SHARED / "mnist/train_0.png", 28)[:4000]
    labels = torch.from_numpy(
        np.load(SHARED / "mnist/labels.npz")["y_train"][:4000].astype("int64")
    )
    found = protected((images, labels), seed)
    assert "flip" in {each.operation for each in found.changed}
    space = {op.name: op for op in found.space(CIFAR).operations}
    assert set(space) == {op.name for op in CIFAR.operations} - {"flip"}
    for name in ("shear_x", "rotate", "contrast", "sharpness", "translate_x"):
        assert space[name] in CIFAR.operations, f"{name} was narrowed"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_photos_keep_every_operation(seed: int) -> None:
    assert protected(None, seed).space(CIFAR) == CIFAR
