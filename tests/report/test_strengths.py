"""Pictures of several strengths and draws, by their pixels."""

from __future__ import annotations

import json

import pytest
import torch
from shown_pictures import decoded

from deepaa import load_policy
from deepaa.data import load_images
from deepaa.ops import apply_batch
from deepaa.ops.rng import sample_keys
from deepaa.ops.space import CIFAR, Operation, Table
from deepaa.policy import weaker_draw
from deepaa.policy.policy import Layers, Policy
from deepaa.report import strengths as module
from deepaa.report.pictures import augmented
from deepaa.report.strengths import (
    AS_IT_IS,
    STRENGTHS,
    Shot,
    StrengthExamples,
    strength_examples,
)


def test_every_picture_is_the_weakened_draw() -> None:
    images, policy = load_images(None, 3), load_policy("cifar10")
    found = strength_examples(images, policy, seed=4, draws=3)
    assert found.exact
    assert len(found.draws) == 3
    for d, draw in enumerate(found.draws):
        keys = sample_keys(4, d, torch.arange(3))
        assert len(draw) == len(STRENGTHS)
        for s, shots in zip(STRENGTHS, draw, strict=True):
            want = apply_batch(images, *weaker_draw(policy, keys, s))
            for image, shot in zip(want, shots, strict=True):
                assert torch.equal(decoded(found.pictures[shot.picture]), image)
        assert [shot.caption for shot in draw[0]] == [AS_IT_IS] * 3
        for i, image in enumerate(augmented(images, policy, d + 1, seed=4)):
            assert torch.equal(decoded(found.pictures[draw[-1][i].picture]), image)
    assert found.first == tuple((found.pictures[x.picture], x.caption) for x in found.draws[0][-1])


def test_captions_say_what_was_done() -> None:
    rotate, invert = Operation("rotate", -30.0, 30.0, neutral=0.0), Operation("invert")
    policy = Policy(Table([(rotate, 20.0), (invert, None)]), Layers(torch.eye(2)))
    (draw,) = strength_examples(load_images(None, 1), policy, draws=1).draws
    captions = [shots[0].caption for shots in draw]
    assert captions[0] == AS_IT_IS
    assert captions[-1] == "rotate 20, invert"
    assert captions[2] in ("rotate 10", "rotate 10, invert")
    done = [caption.endswith("invert") for caption in captions]
    assert done == sorted(done)  # once it is there, it stays


def test_lines_are_kept_free_for_the_longest_caption() -> None:
    shots = (Shot(0, "rotate 20, flip"), Shot(0, "invert"))
    assert StrengthExamples(("data:,",), ((shots,),), exact=True).lines == 1
    assert StrengthExamples(("data:,",), (((Shot(0, "flip, " * 99),),),), exact=True).lines == 8


def test_equal_pictures_are_there_once() -> None:
    images = load_images(None, 4)
    found = strength_examples(images, Policy.identity(CIFAR, 2))
    assert len(found.pictures) == 4
    assert [len(set(shots)) for draw in found.draws for shots in draw] == [4] * 40


def test_large_pictures_come_in_fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.randint(0, 256, (16, 3, 300, 200), dtype=torch.uint8)
    policy = Policy.trivial(CIFAR, 2)
    found = strength_examples(noise, policy)
    assert not found.exact
    assert 1 <= len(found.draws) < 8
    assert sum(map(len, found.pictures)) < 1_500_000
    assert decoded(found.pictures[0]).shape == (3, 128, 85)
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    assert len(strength_examples(noise[:1], policy).draws) == 1


def test_the_data_can_stand_in_a_page() -> None:
    shots = (Shot(0, "</script><b>"),)
    found = StrengthExamples(("data:,",), ((shots,),), exact=True)
    assert "<" not in found.data
    assert json.loads(found.data)["draws"] == [[[[0, "</script><b>"]]]]
