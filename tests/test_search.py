"""The search: planted answers, settings that matter, and going on after a stop."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import cache

import pytest
import torch
from blobs import blobs, row_of, trained, under
from torch import Tensor

from deepaa import CIFAR, Operation, Policy, Space
from deepaa.ascent import Ascent
from deepaa.forecast import all_passes
from deepaa.gradients import mean_gradient
from deepaa.keys import hash_int
from deepaa.layer_end import shares_of
from deepaa.ops import Draw, apply_batch
from deepaa.pairs import Pairs, Pools
from deepaa.policy import Layers
from deepaa.rewards import (
    Rewards,
    Sampling,
    all_transformations,
    layer_scene,
    policy_scene,
    rewards_of,
    sampled_chains,
    variance,
)
from deepaa.scorer import Scorer
from deepaa.search import LayerRecord, Search, SearchConfig, SearchData, StepRecord

QUICK = SearchConfig(
    layers=1, steps=40, learning_rate=0.25, images=8, validation=32, heldout=16, tie_signs=False
)
SMALL = SearchConfig(
    layers=2, steps=3, learning_rate=0.3, images=3, validation=8, prefixes=2, chains=20, heldout=6
)


DECIDED = dataclasses.replace(
    QUICK,
    layers=2,
    penalty=0.0,
    steps=40,
    learning_rate=0.5,
    converged=0.6,
    prefixes=2,
    chains=40,
)


def planted(row: int, *, shuffled: bool = False) -> SearchData:
    """Validation images are like the others, but under one transformation."""
    images, labels = blobs(300, 2)
    validation, answers = blobs(300, 3)
    if shuffled:
        answers = answers[torch.randperm(300, generator=torch.Generator().manual_seed(5))]
    return SearchData(images, labels, under(validation, row), answers)


def run(data: SearchData, config: SearchConfig) -> tuple[Search, list[object]]:
    search = Search(trained(), data, CIFAR, config)
    return search, list(search)


# Truth


@pytest.mark.parametrize(
    ("name", "magnitude"),
    [("rotate", 30.0), ("shear_y", -0.3), ("translate_y", -0.45), ("color", 0.1)],
)
def test_the_planted_transformation_is_found(name: str, magnitude: float | None) -> None:
    row = row_of(name, magnitude)
    search, records = run(planted(row), QUICK)
    found = search.found[0]
    assert int(found.argmax()) == row
    assert found[row] > 0.4
    assert isinstance(records[-1], LayerRecord)
    assert records[-1].gain > 0


def test_a_planted_square_is_found() -> None:
    """About the middle, for a square that may lie anywhere is a mixture that others match too."""
    square = Operation("cutout", options={"size": 8, "central": 2})
    space = Space([square if op.name == "cutout" else op for op in CIFAR.operations])
    row = row_of("cutout")
    images, labels = blobs(300, 2)
    validation, answers = blobs(300, 3)
    draw = Draw(
        torch.full((300, 1), row), torch.rand(300, 1, 2, generator=torch.Generator().manual_seed(4))
    )
    hidden = apply_batch(validation, draw, space.table)
    search = Search(trained(), SearchData(images, labels, hidden, answers), space, QUICK)
    assert len(space) == 139
    *_, last = search
    assert search.found[0, row] > 0.9
    assert isinstance(last, LayerRecord)
    assert last.gain > 0


def test_a_transformation_that_destroys_the_class_is_avoided() -> None:
    # the place of a blob tells its class, so that turning left and right around is harmful
    search, _ = run(planted(row_of("rotate", 30.0)), QUICK)
    shares = dict(
        zip(
            [op.name for op in CIFAR.operations],
            search.prefix.operation_probabilities()[0].tolist(),
            strict=True,
        )
    )
    assert shares["flip"] < 0.01
    assert shares["invert"] < 0.01


def test_with_shuffled_labels_the_answer_is_not_found() -> None:
    row = row_of("color", 0.1)  # colour tells the class, so that only right labels point to grey
    search, _ = run(planted(row, shuffled=True), QUICK)
    assert search.found[0, row] < 0.05


def test_the_second_layer_finds_what_the_first_lacks() -> None:
    images, labels = blobs(300, 2)
    validation, answers = blobs(300, 3)
    both = under(under(validation, row_of("rotate", 30.0)), row_of("color", 0.1))
    config = dataclasses.replace(QUICK, layers=2, penalty=0.0)
    search, records = run(SearchData(images, labels, both, answers), config)
    layers = [r for r in records if isinstance(r, LayerRecord)]
    assert layers[1].improvement_mean > layers[0].improvement_mean > 0
    uses = search.prefix.expected_uses()
    assert uses["rotate"] > 0.5
    assert uses["rotate"] + uses["color"] > 1.0


# The reward of one image


HOW = Sampling(
    prefixes=2,
    chains=0,
    stratified=False,
    halves=False,
    normalise_target=True,
    chunk=64,
    dtype=None,
)


@pytest.mark.parametrize("depth", [0, 2])
def test_rewards_are_the_derivative_of_the_cosine(depth: int) -> None:
    """Against central differences of the cosine in each probability (shared images, so exact)."""
    model = trained().double()
    try:
        space = CIFAR.only("identity", "rotate", "invert")
        prefix = Policy(space, Layers(Policy.uniform(space, depth).row_probabilities()))
        images, labels = blobs(9, 4)
        image, label = images[:1], labels[:1]
        pairs = Pairs(image, label, images[None, 1:], labels[None, 1:])
        target = mean_gradient(model, images[1:], labels[1:], torch.full((8,), 1 / 8))
        p = torch.rand(len(space), dtype=torch.float64).softmax(0)
        found_cosine, slopes = Scorer(model, HOW)(layer_scene(pairs, prefix, p, HOW, [3]))
        rewards = rewards_of(slopes, p).mean[0]

        draws = 1 if depth == 0 else HOW.prefixes
        batch = all_transformations(image, prefix, [3], draws, torch.arange(len(space)))[0]

        def cosine(q: Tensor) -> float:
            parts = mean_gradient(model, batch, label.expand(len(batch)), (q / draws).repeat(draws))
            g = torch.cat([t.flatten() for t in parts.values()])
            v = torch.cat([t.flatten() for t in target.values()])
            return float(torch.nn.functional.cosine_similarity(g, v, dim=0))

        assert abs(float(found_cosine) - cosine(p)) < 1e-6
        for n in range(len(space)):
            step = torch.zeros_like(p)
            step[n] = 1e-5
            slope = (cosine(p + step) - cosine(p - step)) / 2e-5
            assert abs(slope - float(rewards[n])) < 1e-5 + 1e-3 * abs(slope)
    finally:
        model.float()


def test_stratified_chains_follow_the_layer_closely() -> None:
    table = CIFAR.table
    p = torch.rand(139, dtype=torch.float64).softmax(0)
    image = blobs(1, 7)[0]
    prefix = Policy(table, Layers(torch.zeros(0, 139)))
    black = Space((Operation("identity"), Operation("brightness", 0.0, 1.0)), levels=2)
    share = torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64)
    nothing = Policy(black, Layers(torch.zeros(0, 3)))
    out = sampled_chains(image, nothing, share, [1], 100, strata=100)[0]
    assert abs(int((out.flatten(1).sum(1) == 0).sum()) - 70) <= 1
    halves = sampled_chains(image, nothing, share, [1], 100, strata=50)[0].split(50)
    assert all(abs(int((half.flatten(1).sum(1) == 0).sum()) - 35) <= 1 for half in halves)
    out = sampled_chains(image, prefix, p, [1], 10, strata=0)
    assert out.shape == (1, 10, 3, 16, 16)


@pytest.mark.parametrize(("stratified", "halves"), [(False, False), (True, False), (True, True)])
def test_a_group_of_images_sees_what_each_sees_alone(stratified: bool, halves: bool) -> None:
    images, labels = blobs(3, 7)
    prefix, p = Policy.uniform(CIFAR, 2), torch.rand(139, dtype=torch.float64).softmax(0)
    how = dataclasses.replace(HOW, chains=20, stratified=stratified, halves=halves)
    pairs = Pairs(images, labels, images[None].repeat(3, 1, 1, 1, 1), labels[None].repeat(3, 1))
    seeds = [11, 5, 2**63 + 7]
    together = layer_scene(pairs, prefix, p, how, seeds)
    for i, seed in enumerate(seeds):
        alone = layer_scene(Pairs(*(part[i : i + 1] for part in pairs)), prefix, p, how, [seed])
        for name in ("originals", "chains", "images", "labels"):
            assert torch.equal(getattr(together, name)[i], getattr(alone, name)[0]), name
        own = Pairs(*(part[i : i + 1] for part in pairs))
        seen = policy_scene(own, prefix, 10, [seed], halves=halves)
        whole = policy_scene(pairs, prefix, 10, seeds, halves=halves)
        assert torch.equal(whole.chains[i], seen.chains[0])
        assert whole.chains.shape[:3] == ((3, 2, 5) if halves else (3, 1, 10))
        assert together.passes == 3 + 20 + 2 * 139


def test_rewards_without_the_noise_that_all_share() -> None:
    """From known numbers: image effects, noise common to all rows, noise of each row."""
    generator = torch.Generator().manual_seed(1)
    images, draws, rows = 400, 4, 6

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    p = torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)
    scale = torch.tensor([0, 0.1, 0.2, 0, 0.1, 0.2])
    noise = torch.tensor([0, 0.1, 0.1, 0.3, 0.3, 0.3])
    means = torch.tensor([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    shared = 0.5 * normal(images, draws, 1)
    slopes = means + scale * normal(images, 1, rows) + noise * normal(images, draws, rows) + shared
    found = rewards_of(slopes.flatten(1), p)
    assert torch.allclose(found.mean, slopes.mean(1))
    assert torch.allclose(found.relative, (slopes - slopes[..., :1]).mean(1))
    for wanted in (4, 16, 1000):
        expected = (scale**2 + (0.25 + noise**2) / wanted).sqrt()
        found_now = variance(found, wanted).clamp(min=0).sqrt()
        assert (found_now - expected).abs().max() < 0.05, wanted
    plain = variance(found, None)
    assert torch.allclose(plain, found.mean.var(0, correction=0))
    one = rewards_of(slopes[:, 0], p)
    assert torch.equal(variance(one, 16), one.mean.var(0, correction=0))
    # right on average for few images too, although the image part may come out below nothing
    few = [Rewards(*(part[i : i + 16] for part in found)) for i in range(0, images, 16)]
    between = torch.stack([f.relative.var(0) - f.noise.mean(0) for f in few])
    assert (between.mean(0) - scale**2).abs().max() < 0.01
    assert (between < 0).any()


def test_the_deviation_is_a_mean_over_steps() -> None:
    config = dataclasses.replace(SMALL, deviation_memory=0.8, deviation_draws=None)
    ascent, generator = Ascent(CIFAR.table, config, 2), torch.Generator().manual_seed(1)
    seen = []
    for step in range(6):
        means = torch.randn(5, 139, generator=generator, dtype=torch.float64)
        seen.append(means.var(0, correction=0))
        ages = [0.8 ** (step - k) for k in range(step + 1)]
        expected = sum(a * v for a, v in zip(ages, seen, strict=True)) / sum(ages)
        found = ascent._deviation(Rewards(means, means, means, means), step)
        assert (found - expected.sqrt()).abs().max() < 1e-12


@pytest.mark.parametrize(("gain", "wins"), [(0.0001, False), (0.001, True)])
def test_gains_that_are_sure_but_tiny_are_left(gain: float, wins: bool) -> None:
    """The bound that `epsilon` states: 2e-6 e^8 / (312 * 0.1 - 8) is 0.00026."""
    config = SearchConfig(halvings=0, tie_signs=False)
    ascent, means = Ascent(CIFAR.table, config, 2), torch.zeros(2, 139, dtype=torch.float64)
    means[:, 7] = gain
    for step in range(config.steps):
        ascent.climb(Rewards(means, means, means, means), step)
    assert (float(ascent.probabilities[7]) > 0.5) is wins
    assert (float(ascent.probabilities[0]) > 0.5) is not wins


# Settings


FIRST_REWARD = {
    "images": 5,
    "validation": 12,
    "same_class": False,
    "normalise_target": False,
    "identity_logit": 2.0,
    "seed": 1,
    "learning_rate": 0.1,
    "penalty_first_layer": 1.0,
    "tie_signs": False,
    "epsilon": 1e-2,
}
LATER_REWARD = {
    "prefixes": 3,
    "chains": 0,
    "halves": False,
    "stratified": False,
    "penalty": 0.0,
    "deviation_draws": None,
    "deviation_memory": 0.0,
    "halvings": 0,
}


def logits_after(config: SearchConfig, layer: int) -> Tensor:
    search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, config)
    for record in search:
        if isinstance(record, StepRecord) and (record.layer, record.step) == (layer, 3):
            return search.ascent.logits
    raise AssertionError("the search ended early")


@pytest.mark.parametrize(("name", "value"), [*FIRST_REWARD.items(), *LATER_REWARD.items()])
def test_every_setting_changes_the_result(name: str, value: object) -> None:
    layer = 2 if name in LATER_REWARD else 1
    changed = dataclasses.replace(SMALL, **{name: value})
    assert not torch.equal(logits_after(SMALL, layer), logits_after(changed, layer))


def test_precision_changes_little() -> None:
    exact, rough = SMALL, dataclasses.replace(SMALL, precision="bfloat16")
    difference = (logits_after(exact, 1) - logits_after(rough, 1)).abs()
    assert 0 < difference.max() <= 2 * 3 * SMALL.learning_rate


def test_chunks_change_nothing() -> None:
    whole, parts = logits_after(SMALL, 2), logits_after(dataclasses.replace(SMALL, chunk=7), 2)
    assert (whole - parts).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps should be at least 1, got 0"),
        ({"layers": 0}, "layers should be at least 1"),
        ({"precision": "half"}, "precision should be"),
        ({"chains": 2000}, r"chains should be in 0\.\.1000"),
        ({"chains": 11}, "chains should be even, or halves=false; got 11"),
        ({"average": 1.1}, r"average should be in 0\.\.1, got 1.1"),
        ({"simplify": -1.0}, r"simplify should be in 0\.\.1, got -1"),
        ({"simplify": 1.5}, r"simplify should be in 0\.\.1, got 1\.5"),
        ({"deviation_memory": 1.0}, "deviation_memory should be at least 0 and below 1, got 1"),
        ({"learning_rate": 0.0}, "learning_rate should be positive"),
    ],
)
def test_settings_that_cannot_work(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **change)


# Depth


def test_automatic_depth_ends_with_a_layer_that_brings_nothing() -> None:
    images, labels = blobs(300, 2)
    data = SearchData(images, labels, *blobs(300, 3))  # nothing is planted
    config = dataclasses.replace(QUICK, layers=None, max_layers=3, steps=15, heldout=24)
    search, records = run(data, config)
    layers = [r for r in records if isinstance(r, LayerRecord)]
    assert len(search.found) == sum(r.kept for r in layers)
    assert all(r.kept for r in layers[:-1])
    if len(layers) < 3:
        last = layers[-1]
        assert not last.kept
        assert last.gain < last.gain_error or "identity" in last.reason


def test_a_layer_of_identity_is_dropped() -> None:
    config = dataclasses.replace(QUICK, layers=None, steps=2, learning_rate=0.01)
    search, records = run(planted(row_of("rotate", 30.0)), config)
    assert search.done
    assert len(search.found) == 0
    assert "identity has 0.9" in records[-1].reason
    assert search.policy.depth == 0
    assert search.dropped_identity is not None
    assert search.dropped_identity > 0.9
    kept, _ = run(planted(row_of("rotate", 30.0)), SMALL)
    assert kept.dropped_identity is None


# Going on


def test_a_stopped_search_goes_on_bit_for_bit() -> None:
    data = planted(row_of("rotate", 30.0))
    straight = Search(trained(), data, CIFAR, SMALL)
    expected = [r._replace(seconds=0.0) for r in straight]
    for stop in range(1, len(expected)):
        first = Search(trained(), data, CIFAR, SMALL)
        records = [r for _, r in zip(range(stop), first, strict=False)]
        state = {k: v.clone() for k, v in first.state().items()}
        second = Search(trained(), data, CIFAR, SMALL)
        second.load_state(state)
        records += list(second)
        assert [r._replace(seconds=0.0) for r in records] == expected
        assert torch.equal(second.found, straight.found)


def test_a_state_of_another_space_is_refused() -> None:
    data = planted(row_of("rotate", 30.0))
    state = Search(trained(), data, CIFAR.without("invert"), SMALL).state()
    with pytest.raises(ValueError, match="138 transformations, the space 139"):
        Search(trained(), data, CIFAR, SMALL).load_state(state)


def test_the_global_generator_has_no_say() -> None:
    data = planted(row_of("rotate", 30.0))
    torch.manual_seed(1)
    one = logits_after(SMALL, 1)
    torch.manual_seed(2)
    assert torch.equal(one, logits_after(SMALL, 1))
    assert data.images.dtype == torch.uint8


def test_memory_that_runs_out_halves_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepaa.rewards as module

    real = module.mean_gradient
    limit = 10

    def small_memory(model, images, *rest, chunk, passes):  # type: ignore[no-untyped-def]
        if min(chunk, len(images)) > limit:
            raise torch.OutOfMemoryError("pretend")
        return real(model, images, *rest, chunk=chunk, passes=passes)

    expected = logits_after(SMALL, 1)
    monkeypatch.setattr(module, "mean_gradient", small_memory)
    search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, SMALL)
    for _ in zip(range(3), search, strict=False):
        pass
    assert search.chunk == 8
    assert (search.ascent.logits - expected).abs().max() < 1e-5


def test_a_reward_that_is_not_finite_is_skipped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, SMALL)
    real = search._scorer

    def sometimes(scene, hook):  # type: ignore[no-untyped-def]
        cosine, slopes = real(scene, hook)
        slopes[1] *= math.nan
        return cosine, slopes

    monkeypatch.setattr(search, "_scorer", sometimes)
    record = next(iter(search))
    assert record.skipped == 1
    assert torch.isfinite(search.ascent.logits).all()
    monkeypatch.setattr(
        search, "_scorer", lambda scene, hook: (real(scene)[0], real(scene)[1] * math.nan)
    )
    with pytest.raises(FloatingPointError, match="layer 1, step 1: no reward is finite"):
        next(iter(search))


# Pairs


def test_no_class_is_set_aside_whole() -> None:
    labels = torch.arange(120) % 30  # four of each
    images = torch.zeros(120, 3, 4, 4, dtype=torch.uint8)
    data = SearchData(images, labels, images, labels)
    pools = Pools(data, validation=2, heldout=60, same_class=True, seed=0)
    assert len(pools.classes) == 30
    assert len(pools.heldout) == 60
    rest = torch.cat(list(pools.members.values()))
    assert sorted([*rest.tolist(), *pools.heldout.tolist()]) == list(range(120))
    few = Pools(data, validation=2, heldout=110, same_class=True, seed=0)
    assert len(few.classes) == 30
    assert len(few.heldout) == 90


def test_pairs_share_a_class_and_leave_held_out_images_alone() -> None:
    data = planted(row_of("rotate", 30.0))
    pools = Pools(data, validation=9, heldout=50, same_class=True, seed=3)
    held = {tuple(image.flatten().tolist()) for image in data.images[pools.heldout]}
    assert len(held) == 50
    for seed in range(20):
        pairs = pools.fetch(pools.choose(hash_int(1, seed), 8), torch.device("cpu"))
        assert pairs.originals.shape == (8, 9, 3, 16, 16)
        assert (pairs.original_labels == pairs.labels[:, None]).all()
        for image in pairs.images:
            assert tuple(image.flatten().tolist()) not in held
    again = Pools(data, validation=9, heldout=50, same_class=True, seed=3)
    assert torch.equal(again.heldout, pools.heldout)
    mixed = Pools(data, validation=200, heldout=50, same_class=False, seed=3)
    labels = mixed.fetch(mixed.choose(1, 1), torch.device("cpu")).original_labels
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
    data = planted(row_of("rotate", 30.0))
    heldout = change.pop("heldout", 10)
    with pytest.raises(ValueError, match=message):
        Pools(data._replace(**change), validation=9, heldout=heldout, same_class=True, seed=0)


def test_a_space_without_identity_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the identity operation"):
        Search(trained(), planted(0), CIFAR.only("rotate"), SMALL)


def test_passes_are_counted_as_foretold() -> None:
    for halvings in (0, 2):
        config = dataclasses.replace(SMALL, halvings=halvings, steps=6)
        search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, config)
        steps = [r for r in search if isinstance(r, StepRecord)]
        assert steps[0].passes == config.passes_per_step(139, layer=1)
        for before, after in itertools.pairwise(steps):
            if before.layer == after.layer:
                expected = config.passes_per_step(139, layer=after.layer, step=before.step)
                assert after.passes - before.passes == expected
        assert search.passes <= all_passes(config, 139)
    assert all_passes(SearchConfig(), 139) <= 15_000_000


def test_rows_are_put_aside_and_the_others_get_their_draws() -> None:
    config = dataclasses.replace(SMALL, layers=2, steps=8, halvings=2, prefixes=2, converged=1.0)
    search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, config)
    seen = []
    for record in search:
        if isinstance(record, StepRecord) and record.layer == 2:
            before = search.ascent.logits.clone()
            seen.append((len(search.ascent.active), before))
    assert [n for n, _ in seen] == [139, 139, 69, 69, 34, 34, 34, 34]
    pairs = {CIFAR.table.rows[i].mirrored for i in search.ascent.active.tolist()}
    assert pairs == {CIFAR.table.rows[i] for i in search.ascent.active.tolist()}
    (_, early), (_, late) = seen[4], seen[7]
    aside = torch.ones(139, dtype=torch.bool)
    aside[search.ascent.active] = False
    assert 0 in search.ascent.active
    assert torch.equal(early[aside], late[aside])
    assert (early[search.ascent.active] != late[search.ascent.active]).all()
    least = early[search.ascent.active[search.ascent.active != 0]].min()
    assert least >= seen[3][1][aside].max() - 4 * config.learning_rate


def test_a_layer_that_is_decided_ends_early() -> None:
    search, records = run(planted(row_of("rotate", 30.0)), DECIDED)
    steps = [r for r in records if isinstance(r, StepRecord)]
    assert max(r.step for r in steps if r.layer == 1) == 40
    last = max(r.step for r in steps if r.layer == 2)
    assert 10 <= last < 40
    assert 0.6 < float(shares_of(CIFAR.table, search.probabilities).max()) < 1
    patient = dataclasses.replace(DECIDED, converged=1.0)
    whole, records = run(planted(row_of("rotate", 30.0)), patient)
    assert whole.step == 40
    # then the forecast is exact, but that images as they are take one pass each on CPU
    assert isinstance(records[-1], LayerRecord)
    assert "alone" in records[-1].reason  # the second layer has a leader, measured by itself
    assert whole.passes == all_passes(patient, 139) - patient.heldout * (patient.chains - 1)
    once = patient.heldout * (patient.validation + patient.chains)
    found = dataclasses.replace(patient, simplify=0.0)
    assert all_passes(patient, 139) - all_passes(found, 139) == once


@cache
def decided() -> dict[str, Tensor]:
    """The state when the second of two layers has taken all its steps."""
    search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, DECIDED)
    for _ in search:
        if search.layer == 2 and search.converged:
            return {k: v.clone() for k, v in search.state().items()}
    raise AssertionError("the layer is not held")


@pytest.mark.parametrize(("simplify", "alone"), [(1e-3, True), (1.0, False), (0.0, False)])
def test_a_layer_is_its_leading_operation_if_that_brings_enough(
    simplify: float, alone: bool
) -> None:
    config = dataclasses.replace(DECIDED, simplify=simplify)
    search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, config)
    search.load_state(decided())  # where the setting begins to matter
    started = search.passes
    [last] = list(search)
    assert isinstance(last, LayerRecord)
    measured = 3 if simplify else 2  # the layer, DeepTA, and the leading operation alone: forecast
    once = config.heldout * (config.validation + config.chains)
    assert search.passes - started == measured * once
    assert (search.found[0] > 0).all()  # the first layer is always kept as it was found
    assert search.converged  # so that the last step counts
    found, kept = search.probabilities / search.probabilities.sum(), search.found[1]
    shares = shares_of(CIFAR.table, found)
    leader = search.table.operations[int(shares.argmax())]
    assert 0.5 < float(shares.max()) < 1
    alone_p = found * torch.tensor([row.operation == leader for row in search.table.rows])
    alone_p = alone_p / alone_p.sum()
    # the rule, written out: what both forms of the layer bring on held-out images
    both = [
        search._heldout_cosines(Policy(CIFAR.table, Layers(torch.stack((search.found[0], layer)))))
        for layer in (found, alone_p)
    ]
    more = both[0] - both[1]
    assert more.mean() > 0
    error = float((more.var() / len(more)).sqrt())
    before = search._heldout_cosines(Policy(CIFAR.table, Layers(search.found[:1])))
    enough = (both[1] - before).mean() >= simplify * (both[0] - before).mean()
    assert (bool(enough) and simplify > 0) == alone
    assert torch.equal(kept, alone_p if alone else found)
    by = f"{float(more.mean()):.4f}, standard error {error:.4f}"
    expected = f"; better than {leader.name} alone by {by}" if simplify else ""
    if alone:
        expected = f"; {leader.name} alone, the rest brings {by}"
    assert last.reason.endswith(expected)
    assert ("alone" in last.reason) == (simplify > 0)
    improvement = (both[1] if alone else both[0]) - search._baseline
    assert last.improvement_mean == pytest.approx(improvement.mean().item(), abs=1e-6)
    # the record tells of the layer as it was found
    assert last.identity == pytest.approx(float(found[0]))
    assert last.top is not None
    assert last.top[0] == (leader.name, pytest.approx(float(shares.max())))
    entropy = -(found * found.clamp(min=1e-300).log()).sum().item()
    assert last.perplexity == pytest.approx(math.exp(entropy))


def test_images_whose_gradient_was_not_finite_at_first_are_left_out_of_every_layer() -> None:
    search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, DECIDED)
    search.load_state(decided())
    assert search._baseline is not None
    search._baseline[0] = math.nan
    [last] = list(search)
    assert isinstance(last, LayerRecord)
    assert math.isfinite(last.improvement_mean)
    assert math.isfinite(last.deepta_mean)
    assert search.skipped == 1


def mean_of_last(seen: list[Tensor], steps: int, average: float) -> Tensor:
    """The rule of `average`, written out."""
    late = seen[math.ceil(steps * (1 - average)) :]
    led = [int(p.argmax()) == 0 for p in late]
    late = late[len(led) - led[::-1].index(True) :] if any(led) else late
    return torch.stack(late).mean(0) if late else seen[-1]


@pytest.mark.parametrize("average", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize(("start", "rate"), [(0.1, 0.3), (4.0, 0.6), (8.0, 0.3)])
def test_a_layer_is_the_mean_of_its_last_steps(average: float, start: float, rate: float) -> None:
    """Where identity never leads, leads first, and leads to the end."""
    config = dataclasses.replace(
        SMALL, layers=1, steps=10, average=average, identity_logit=start, learning_rate=rate
    )
    search = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, config)
    seen = []
    for record in search:
        if isinstance(record, StepRecord):
            seen.append(search.probabilities)
            if record.step == 8:  # a search that goes on from here has the same mean
                state = {k: v.clone() for k, v in search.state().items()}
    leads = [int(p.argmax()) == 0 for p in seen]
    assert (any(leads), leads[-1]) == {0.1: (False, False), 4.0: (True, False), 8.0: (True, True)}[
        start
    ]
    assert (search.found[0] - mean_of_last(seen, 10, average)).abs().max() < 1e-15
    again = Search(trained(), planted(row_of("rotate", 30.0)), CIFAR, config)
    again.load_state(state)
    list(again)
    assert torch.equal(again.found, search.found)


def test_an_operation_that_holds_a_layer_late_is_not_averaged_away() -> None:
    search = Search(trained(), planted(0), CIFAR, SearchConfig())
    search.layer, search.step = 2, 240
    rewards = torch.zeros(2, 139, dtype=torch.float64)
    for step, share in ((238, 0.6), (239, 0.96)):
        p = torch.full((139,), (1 - share) / 138, dtype=torch.float64)
        p[row_of("crop")] = share
        search.ascent.logits = p.log()
        search.ascent.climb(Rewards(rewards, rewards, rewards, rewards), step)  # nothing moves
    assert float(search._ended()[row_of("crop")]) == pytest.approx(0.78)  # their mean
    p = torch.full((139,), 0.02 / 138, dtype=torch.float64)
    p[row_of("crop")] = 0.98
    search.ascent.logits = p.log()
    search.ascent.climb(Rewards(rewards, rewards, rewards, rewards), 240)
    assert float(search._ended()[row_of("crop")]) == pytest.approx(0.98)


@pytest.mark.parametrize(
    ("share", "step", "ends"), [(0.98, 77, False), (0.98, 78, True), (0.96, 300, False)]
)
def test_an_operation_holds_a_layer_from_a_quarter_of_its_steps(
    share: float, step: int, ends: bool
) -> None:
    search = Search(trained(), planted(0), CIFAR, SearchConfig())
    search.layer, search.step = 2, step
    p = torch.full((139,), (1 - share) / 138, dtype=torch.float64)
    p[row_of("crop")] = share
    search.ascent.logits = p.log()
    assert search.converged == ends
    search.layer = 1
    assert not search.converged


@pytest.mark.parametrize(("identity", "ends"), [(0.98, False), (0.995, True)])
def test_what_rises_beside_identity_is_given_time(identity: float, ends: bool) -> None:
    search = Search(trained(), planted(0), CIFAR, SearchConfig(validation=8, heldout=4))
    search.layer = 2
    p = torch.full((139,), 1e-6, dtype=torch.float64)
    p[0], p[row_of("crop")] = identity, 1 - identity
    search.ascent.logits = p.log()
    for step in (191, 192, 311):
        search.step = step
        assert search.converged == (ends and step >= 192)
    search.step = 312
    assert isinstance(next(iter(search)), LayerRecord)  # no layer has more steps


def test_identity_has_to_hold_a_layer_for_longer() -> None:
    idle = dataclasses.replace(
        QUICK, layers=2, steps=16, learning_rate=2.9, identity_logit=12.0, prefixes=1, chains=8
    )
    idle = dataclasses.replace(idle, epsilon=1e6)  # nothing moves
    search, records = run(planted(row_of("rotate", 30.0)), idle)
    steps = [r for r in records if isinstance(r, StepRecord)]
    assert [sum(r.layer == layer for r in steps) for layer in (1, 2)] == [16, 10]  # 2.4 x 12 / 2.9
    assert search.found[1, 0] > 0.99
    assert (search.found > 0).all()  # identity is never made the whole layer: it would be dropped
