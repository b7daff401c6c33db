"""The reward of one image against finite differences, the images it comes from, its variance."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from blobs import blobs, planted, trained
from torch import Tensor

from deepaa import CIFAR, Operation, Policy, Space
from deepaa.ops.rng import hash_int
from deepaa.policy.policy import Layers
from deepaa.search.gradient_matching.gradients import Derivatives
from deepaa.search.gradient_matching.layer import Rewards
from deepaa.search.gradient_matching.rewards import (
    GradientMatcher,
    Minibatch,
    MinibatchSampler,
    SearchData,
    all_transformations,
    layer_inputs,
    policy_inputs,
    sampled_chains,
)
from deepaa.search.settings import SearchConfig

EXACT = SearchConfig(prefixes=2, chains=0, stratified=False, halves=False)
"""The mean over the last layer is exact."""


@pytest.mark.parametrize("depth", [0, 2])
def test_rewards_are_the_derivative_of_the_cosine(depth: int) -> None:
    """Against central differences of the cosine in each probability (shared images, so exact)."""
    model = trained().double()
    try:
        space = CIFAR.only("identity", "rotate", "invert")
        prefix = Policy(space, Layers(Policy.uniform(space, depth).row_probabilities()))
        images, labels = blobs(9, 4)
        image, label = images[:1], labels[:1]
        minibatch = Minibatch(image, label, images[None, 1:], labels[None, 1:])
        target = Derivatives(model).mean_gradient(images[1:], labels[1:], torch.full((8,), 1 / 8))
        p = torch.rand(len(space), dtype=torch.float64).softmax(0)
        rows = torch.arange(len(space))
        matcher = GradientMatcher(Derivatives(model, chunk=64), normalise=True)
        found_cosine, products = matcher(layer_inputs(minibatch, prefix, p, EXACT, [3], rows))
        rewards = Rewards.of(products, p).mean[0]

        draws = 1 if depth == 0 else EXACT.prefixes
        batch = all_transformations(image, prefix, [3], draws, rows)[0]

        def cosine(q: Tensor) -> float:
            parts = Derivatives(model).mean_gradient(
                batch, label.expand(len(batch)), (q / draws).repeat(draws)
            )
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
    out = sampled_chains(image, prefix, p, [1], 10, strata=1)
    assert out.shape == (1, 10, 3, 16, 16)


@pytest.mark.parametrize(("stratified", "halves"), [(False, False), (True, False), (True, True)])
def test_a_group_of_images_sees_what_each_sees_alone(stratified: bool, halves: bool) -> None:
    images, labels = blobs(3, 7)
    prefix, p = Policy.uniform(CIFAR, 2), torch.rand(139, dtype=torch.float64).softmax(0)
    config = dataclasses.replace(EXACT, chains=20, stratified=stratified, halves=halves)
    minibatch = Minibatch(
        images, labels, images[None].repeat(3, 1, 1, 1, 1), labels[None].repeat(3, 1)
    )
    seeds = [11, 5, 2**63 + 7]
    together = layer_inputs(minibatch, prefix, p, config, seeds, torch.arange(139))
    for i, seed in enumerate(seeds):
        own = Minibatch(*(part[i : i + 1] for part in minibatch))
        alone = layer_inputs(own, prefix, p, config, [seed], torch.arange(139))
        for name in ("originals", "chains", "candidates", "labels"):
            assert torch.equal(getattr(together, name)[i], getattr(alone, name)[0]), name
        seen = policy_inputs(own, prefix, 10, [seed], halves=halves)
        whole = policy_inputs(minibatch, prefix, 10, seeds, halves=halves)
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
    products = (
        means + scale * normal(images, 1, rows) + noise * normal(images, draws, rows) + shared
    )
    found = Rewards.of(products.flatten(1), p)
    assert torch.allclose(found.mean, products.mean(1))
    assert torch.allclose(found.relative, (products - products[..., :1]).mean(1))
    for wanted in (4, 16, 1000):
        expected = (scale**2 + (0.25 + noise**2) / wanted).sqrt()
        found_now = found.variance(wanted).clamp(min=0).sqrt()
        assert (found_now - expected).abs().max() < 0.05, wanted
    plain = found.variance(None)
    assert torch.allclose(plain, found.mean.var(0, correction=0))
    one = Rewards.of(products[:, 0], p)
    assert torch.equal(one.variance(16), one.mean.var(0, correction=0))
    # right on average for few images too, although the image part may come out below nothing
    few = [Rewards(*(part[i : i + 16] for part in found)) for i in range(0, images, 16)]
    between = torch.stack([f.relative.var(0) - f.noise.mean(0) for f in few])
    assert (between.mean(0) - scale**2).abs().max() < 0.01
    assert (between < 0).any()


# The images of a step


def fetched(sampler: MinibatchSampler, seed: int, n: int) -> Minibatch:
    return sampler.fetch(sampler.draw(seed, n), list(range(n)), torch.device("cpu"))


def test_no_class_is_set_aside_whole() -> None:
    labels = torch.arange(120) % 30  # four of each
    images = torch.zeros(120, 3, 4, 4, dtype=torch.uint8)
    data = SearchData(images, labels, images, labels)
    config = SearchConfig(layers=2, validation=2, heldout=20)  # for each of three decisions
    sampler = MinibatchSampler(data, config)
    assert len(sampler.members) == 30
    assert len(sampler.heldout) == 60
    rest = torch.cat(sampler.members)
    assert sorted([*rest.tolist(), *sampler.heldout.tolist()]) == list(range(120))
    few = MinibatchSampler(data, dataclasses.replace(config, layers=1, heldout=110))
    assert len(few.members) == 30
    assert len(few.heldout) == 90
    fewer = MinibatchSampler(data, dataclasses.replace(config, heldout=39))
    assert [len(fewer.draw_heldout(k)[0]) for k in range(3)] == [30, 30, 30]


@pytest.mark.parametrize(("layers", "errors", "decisions"), [(1, 2.0, 1), (3, 2.0, 5), (3, 0.0, 3)])
def test_every_decision_has_pairs_of_its_own(layers: int, errors: float, decisions: int) -> None:
    config = SearchConfig(layers=layers, repeat_errors=errors, validation=9, heldout=20, seed=3)
    sampler, data = MinibatchSampler(planted(), config), planted()
    pairs = [sampler.draw_heldout(k) for k in range(config.decisions)]
    assert len(pairs) == decisions
    used = [i for images, _ in pairs for i in images.tolist()]
    assert len(used) == len(set(used)) == 20 * decisions
    for images, originals in pairs:
        assert originals.shape == (20, 9)
        assert (data.validation_labels[originals] == data.labels[images][:, None]).all()
    batches = {tuple(batch.tolist()) for _, originals in pairs for batch in originals}
    assert len(batches) == 20 * decisions
    stepped = {i for seed in range(50) for i in sampler.draw(hash_int(1, seed), 16)[0].tolist()}
    assert len(stepped) > 150
    assert not stepped & set(used)
    again = MinibatchSampler(data, config).draw_heldout(decisions - 1)
    assert all(torch.equal(a, b) for a, b in zip(again, pairs[-1], strict=True))


def test_where_images_are_fewer_than_decisions_one_serves_several() -> None:
    """That can only be where the number of layers is given, and nothing is decided."""
    labels = torch.tensor([0, 0, 0, 1, 1])
    images = torch.zeros(5, 3, 4, 4, dtype=torch.uint8)
    config = SearchConfig(layers=2, validation=2, heldout=1)
    sampler = MinibatchSampler(SearchData(images, labels, images, labels), config)
    assert [len(sampler.draw_heldout(k)[0]) for k in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(("size", "heldout", "expected"), [(1, 60, 60), (8, 60, 56), (50, 20, 20)])
def test_held_out_images_are_of_other_groups(size: int, heldout: int, expected: int) -> None:
    labels, groups = torch.arange(400) % 4, torch.arange(400) // size * 7
    images = torch.zeros(400, 3, 4, 4, dtype=torch.uint8)
    data = SearchData(images, labels, images, labels, groups)
    for seed in range(5):
        sampler = MinibatchSampler(
            data, SearchConfig(layers=1, validation=2, heldout=heldout, seed=seed)
        )
        assert len(sampler.heldout) == expected
        held, rest = (groups[part] for part in (sampler.heldout, torch.cat(sampler.members)))
        assert not set(held.tolist()) & set(rest.tolist())
        missing = 400 - len(held) - len(rest)
        assert missing == (30 if size == 50 else 0)  # of a group that is larger than what is asked
        assert len(sampler.members) == 4


def test_groups_that_leave_nothing_else_are_cut() -> None:
    images, labels = torch.zeros(40, 3, 4, 4, dtype=torch.uint8), torch.arange(40) % 4
    one = SearchData(images, labels, images, labels, torch.zeros(40, dtype=torch.int64))
    sampler = MinibatchSampler(one, SearchConfig(layers=1, validation=2, heldout=10))
    assert len(sampler.heldout) == 10
    assert len(torch.cat(sampler.members)) == 30
    own = SearchData(images, labels, images, labels, labels)  # a class with one group keeps one
    sampler = MinibatchSampler(own, SearchConfig(layers=1, validation=2, heldout=10))
    assert len(sampler.heldout) == 9
    assert [len(found) for found in sampler.members].count(1) == 1
    assert len(sampler.members) == 4


def test_originals_share_the_class_and_leave_held_out_images_alone() -> None:
    data, config = planted(), SearchConfig(layers=1, validation=9, heldout=50, seed=3)
    sampler = MinibatchSampler(data, config)
    held = {tuple(image.flatten().tolist()) for image in data.images[sampler.heldout]}
    assert len(held) == 50
    for seed in range(20):
        minibatch = fetched(sampler, hash_int(1, seed), 8)
        assert minibatch.originals.shape == (8, 9, 3, 16, 16)
        assert (minibatch.original_labels == minibatch.labels[:, None]).all()
        for image in minibatch.images:
            assert tuple(image.flatten().tolist()) not in held
    again = MinibatchSampler(data, config)
    assert torch.equal(again.heldout, sampler.heldout)
    mixed = MinibatchSampler(data, dataclasses.replace(config, validation=200, same_class=False))
    labels = fetched(mixed, 1, 1).original_labels
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
    config = SearchConfig(layers=1, validation=9, heldout=change.pop("heldout", 10))
    with pytest.raises(ValueError, match=message):
        MinibatchSampler(data._replace(**change), config)
