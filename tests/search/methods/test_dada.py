"""DADA's search: its hyper-gradient, its records and states, and what it finds in planted data."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from blobs import CENTRES, SIDE
from networks import lived_in
from torch import Tensor
from torch.func import functional_call
from worlds import Labelled, NormNet, make_world as any_world, seeded

from deepaa import CIFAR, load_policy
from deepaa.ops import Space
from deepaa.policy import default_policy
from deepaa.search.gradient_matching.gradients import Derivatives, trainable
from deepaa.search.methods import Part, World
from deepaa.search.methods.dada import DifferentiableAugment
from deepaa.search.methods.dada_config import DadaConfig
from deepaa.search.methods.dada_estimators import Draws, Noise, Parameters, draw, reinforce
from deepaa.search.methods.dada_network import LivingNetwork
from deepaa.search.methods.dada_pairs import Pairs, Place

PRESETS = DifferentiableAugment.presets
TWO_LEVELS = tuple(o for o in CIFAR.operations if o.name in ("rotate", "brightness", "invert"))


def norm_world(pretrain: Labelled, validation: Labelled, **settings: Any) -> World:
    """A world whose networks have batch norm."""
    given: dict[str, Any] = {"model": NormNet, "batch": 32, "lr": 0.1}
    return any_world(pretrain, validation, **(given | settings))


def faint(n: int, seed: int, *, bright: float = 1.0, permuted: bool = False) -> Any:
    """Faint blobs, whose place is the class; the second half of the images is brighter."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    labels = torch.arange(n) % 4
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    centre = (CENTRES[labels] + 0.7 * normal(n, 2))[:, :, None, None]
    blob = torch.exp(-((y - centre[:, 0]) ** 2 + (x - centre[:, 1]) ** 2) / 6)[:, None]
    images = 50 + 30 * blob + 20 * normal(n, 3, SIDE, SIDE)
    images[n // 2 :] *= bright
    if permuted:
        labels = labels[torch.randperm(n, generator=generator)]
    return images.clamp(0, 255).to(torch.uint8), labels


def world(n: int = 120, **changes: Any) -> World:
    options: dict[str, Any] = {"batch": 16, "lr": 0.03, **changes}
    return norm_world(faint(n, 1), faint(40, 2), **options)


def short(name: str, **changes: Any) -> DadaConfig:
    return replace(PRESETS[name], epochs=3, **changes)


class SecondHalf(DifferentiableAugment):
    """Validates on the second half of the images, which differs from the first."""

    @classmethod
    def division(cls, world: World) -> Tensor:
        return torch.arange(world.pretrain.count) >= world.pretrain.count // 2


# The hyper-gradient


def every_draw(pairs: int) -> Draws:
    """Each pair with each state of its gates: 4 P draws."""
    pair = torch.arange(pairs).repeat_interleave(4)
    states = torch.tensor([[False, False], [False, True], [True, False], [True, True]])
    is_open = states.repeat(pairs, 1)[:, None].expand(-1, pairs, -1)
    nothing = Noise(torch.zeros(len(pair), pairs), torch.zeros(len(pair), pairs, 2))
    return Draws(pair, is_open, nothing)


def some_parameters(pairs: int) -> Parameters:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(pairs, generator=generator, dtype=torch.float64)
    gates = torch.rand(pairs, 2, generator=generator, dtype=torch.float64) * 0.6 + 0.2
    return Parameters(logits, gates, torch.full((pairs, 2), 0.8, dtype=torch.float64))


def likelihoods(logits: Tensor, gates: Tensor, draws: Draws) -> Tensor:
    """(N,) the probability of each draw."""
    own, is_open = gates[draws.pair], draws.chosen
    return logits.softmax(0)[draws.pair] * torch.where(is_open, own, 1 - own).prod(1)


def test_the_gradient_is_that_of_the_unrolled_step_over_all_draws() -> None:
    here = world(space=Space(TWO_LEVELS))
    pairs, rate = Pairs(here), 0.1
    parameters, draws = some_parameters(3), every_draw(3)
    torch.manual_seed(0)
    net = lived_in(seeded(NormNet, 0)).double().eval()
    image, label = here.pretrain.images[:1], here.pretrain.labels[:1]
    rows = pairs.rows(draws.pair, draws.chosen, parameters.levels[draws.pair])
    place = Place(7, 0, torch.zeros(12, dtype=torch.int64))
    images, labels = pairs.augmented(image.expand(12, -1, -1, -1), rows, place), label.expand(12)
    others = here.pretrain.images[40:60], here.pretrain.labels[40:60]
    weights = {name: p.detach().requires_grad_() for name, p in net.named_parameters()}

    # autograd through a step on the expected loss
    logits, gates = (part.clone().requires_grad_() for part in parameters[:2])
    outputs = functional_call(net, weights, (images,))
    losses = F.cross_entropy(outputs, labels, reduction="none")
    expected = (likelihoods(logits, gates, draws) * losses).sum()
    slopes = torch.autograd.grad(expected, list(weights.values()), create_graph=True)
    after = {k: w - rate * g for (k, w), g in zip(weights.items(), slopes, strict=True)}
    loss = F.cross_entropy(functional_call(net, after, (others[0],)), others[1])
    wanted = torch.autograd.grad(loss, (logits, gates))

    # ours: the slope of each draw along the gradient after the step, times its score
    stepped = deepcopy(net)
    with torch.no_grad():
        for name, parameter in stepped.named_parameters():
            parameter.copy_(after[name])
    direction = Derivatives(stepped).mean_gradient(*others)
    rewards = Derivatives(net).loss_jvp(images, labels, direction)
    found = reinforce(parameters, draws, rewards)
    share = likelihoods(parameters.pairs, parameters.gates, draws)
    for part, reference in zip(found, wanted, strict=True):
        mean = torch.einsum("n,n...->...", share, part)
        # float32 weights of the validation mean are the only rounding
        torch.testing.assert_close(-rate * mean, reference, rtol=1e-5, atol=1e-12)
        assert reference.abs().min() > 0


def test_a_slope_is_the_central_difference_of_the_public_code() -> None:
    torch.manual_seed(0)
    net = lived_in(seeded(NormNet, 0)).double().eval()
    images, labels = faint(40, 1)
    derivatives = Derivatives(net)
    direction = derivatives.mean_gradient(*faint(40, 2))
    slopes = derivatives.loss_jvp(images, labels, direction)
    step = 0.01 / torch.cat([d.flatten() for d in direction.values()]).norm()
    ahead, behind = (
        derivatives.losses(
            images, labels, {k: p + way * direction[k] for k, p in trainable(net).items()}
        )
        for way in (step, -step)
    )
    difference = (ahead - behind) / (2 * step)
    assert (difference - slopes).norm() < 1e-3 * slopes.norm()


def test_the_unrolled_step_is_the_real_one() -> None:
    here = world()
    config = DifferentiableAugment.training_config(short("fast"), here)
    parts = Part(*faint(40, 1)), Part(*faint(30, 2))
    given = parts[0].images.flip(3)
    network = LivingNetwork(
        seeded(NormNet, 1), *parts, config, here.device, lambda epoch, step, rows: given[rows]
    )
    steps = network.steps()
    before = deepcopy(network.training.model).eval()
    for _ in range(2):
        next(steps)
        after = deepcopy(network.training.model).eval()
        rows = torch.arange(10)
        direction = network.validation_gradient(rows)
        expected = Derivatives(after).mean_gradient(*(part[rows] for part in parts[1][:2]))
        assert all(torch.equal(direction[name], expected[name]) for name in expected)
        images, labels = given[:8], parts[0].labels[:8]
        slopes = network.slopes(images, labels, direction)
        torch.testing.assert_close(
            slopes, Derivatives(before).loss_jvp(images, labels, direction).double()
        )
        assert not torch.equal(before.head.weight, after.head.weight)
        assert network.training.model.training
        before = after


# Draws and images


def test_the_search_draws_as_its_policy_does() -> None:
    here = world(space=Space(TWO_LEVELS))
    pairs, n = Pairs(here), 40_000
    parameters = some_parameters(3)
    draws = draw(parameters, Noise.of(n, 3, torch.Generator().manual_seed(1)))
    rows = pairs.rows(draws.pair, draws.chosen, parameters.levels[draws.pair])
    rows = pairs.signed(rows, Place(3, 0, torch.arange(n)))
    policy = pairs.policy(parameters, chains=0).then(here.defaults)
    assert policy.table.rows[: len(pairs.defaults.table)] == pairs.defaults.table.rows
    for slot, shares in enumerate(policy.row_probabilities()[:2]):
        seen = rows[:, slot].bincount(minlength=len(shares)).double()
        used = shares > 0
        assert seen[~used].sum() == 0
        square = ((seen - n * shares)[used] ** 2 / (n * shares[used])).sum()
        assert square < 30  # at most 4 rows


def test_one_open_slot_moves_and_counts_for_all() -> None:
    pairs, n = Pairs(world()), 4000
    place = Place(1, 2, torch.arange(n))
    both = pairs.moved_slot(torch.ones(n, 2, dtype=torch.bool), place)
    assert ((both > 0).sum(1) == 1).all()
    assert (both.sum(1) == 2).all()
    assert (both.double().mean(0) - 1).abs().max() < 4 / n**0.5
    for state in ([True, False], [False, True], [False, False]):
        one = pairs.moved_slot(torch.tensor([state]).expand(n, 2), place)
        assert (one == torch.tensor(state).long()).all()


def test_equal_places_get_equal_images() -> None:
    here = world()
    pairs, images = Pairs(here), here.pretrain.images[:20]
    rows = torch.randint(1, 1500, (20, 2), generator=torch.Generator().manual_seed(0))
    place = Place(1, 2, torch.arange(20))
    whole = pairs.augmented(images, rows, place)
    part = pairs.augmented(images[5:9], rows[5:9], Place(1, 2, torch.arange(5, 9)))
    assert torch.equal(whole[5:9], part)
    assert torch.equal(pairs.augmented(images, torch.zeros_like(rows), place), images)


def test_pairs_are_those_of_the_allowed_operations() -> None:
    assert len(Pairs(world())) == 105
    names = {"rotate", "invert"}
    fewer = Pairs(world(excludes=lambda row: row.operation.name in names))
    assert len(fewer) == 78
    uses = fewer.policy(some_parameters(78), 0).expected_uses()
    assert not names & set(uses)
    with pytest.raises(ValueError, match="a pair takes two operations"):
        Pairs(world(space=Space(TWO_LEVELS[:1])))


@pytest.mark.parametrize(("draws", "distinct"), [("batch", 1), ("image", 16)])
def test_draws_are_for_a_batch_or_for_each_image(draws: str, distinct: int) -> None:
    config = replace(short("fast"), draws=draws, estimator="plain")
    search = DifferentiableAugment(world(), config)
    search.network  # noqa: B018 # its making asks for nothing
    search._augment(0, 0, torch.arange(16))
    assert search._step is not None
    assert len(search._step.draws.pair) == distinct
    assert len(search._step.drawn[0]) == 16


def test_images_without_their_pair_earn_nothing() -> None:
    """What is subtracted from a reward is that of the same image, under the same defaults."""
    seen = []

    class Watched(DifferentiableAugment):
        def _move(self, done: Any, rewards: Tensor, *rest: Any) -> None:
            seen.append((rewards, done.drawn[1].any(1)))
            super()._move(done, rewards, *rest)

    list(Watched(world(defaults=default_policy("cifar")), short("fast")))
    rewards, is_open = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert (rewards[~is_open].abs() < 1e-5 * rewards.abs().max()).all()
    assert 0 < (~is_open).sum() < len(is_open)
    assert (rewards[is_open] != 0).float().mean() > 0.9


@pytest.mark.parametrize("kind", ["difference", "straight-through"])
def test_levels_are_looked_at_from_both_sides(kind: str) -> None:
    search = DifferentiableAugment(world(), short("fast", level_gradient=kind))
    search.network  # noqa: B018 # its making asks for nothing
    augmented = search._augment(1, 0, torch.arange(16))
    done = search._step
    assert done is not None
    (ahead, behind), weight = search._moved(done)
    pair, is_open = done.drawn
    assert (weight[~is_open] == 0).all()
    if kind == "straight-through":
        assert torch.equal(ahead, augmented.int().add(1).clamp(max=255).to(torch.uint8))
        assert torch.equal(behind, augmented.int().sub(1).clamp(min=0).to(torch.uint8))
        assert (weight[is_open] == 0.5).all()
        return
    for way, images in ((0.1, ahead), (-0.1, behind)):
        levels = search.parameters.levels[pair] + way * (weight > 0)
        rows = search.pairs.rows(pair, is_open, levels)
        assert torch.equal(images, search.pairs.augmented(done.images, rows, done.place))
    expected = is_open.sum(1) / 0.2
    torch.testing.assert_close(weight.sum(1), expected.double())


def test_validation_images_change_unless_they_are_fixed() -> None:
    free, fixed = (
        DifferentiableAugment(world(), short("fast", fixed_validation=way)) for way in (False, True)
    )
    rows = [free._validation_rows(epoch, step).tolist() for epoch in (0, 1) for step in range(4)]
    assert sorted(row for part in rows[:4] for row in part) == list(range(60))
    assert rows[0] != rows[4]
    assert {tuple(fixed._validation_rows(0, step).tolist()) for step in range(4)} == {
        tuple(range(16))
    }


def test_halves_have_the_classes_and_keep_groups_whole() -> None:
    here = world()
    held_out = DifferentiableAugment.division(here)
    counts = here.pretrain.labels[held_out].bincount()
    assert counts.tolist() == [15] * 4
    groups = torch.arange(120) // 6
    grouped = here._replace(pretrain=here.pretrain._replace(groups=groups))
    held_out = DifferentiableAugment.division(grouped).view(20, 6)
    assert (held_out.all(1) | ~held_out.any(1)).all()
    assert held_out.sum() == 60


# Records and states


@pytest.mark.parametrize(
    "config",
    [
        *(short(name) for name in PRESETS),
        short("fast", level_gradient="none", warmup=0),
        short("fast", paired=False, estimator="relax", chains=0),
    ],
    ids=[*PRESETS, "no levels", "relax of images"],
)
def test_a_search_goes_on_from_every_record(config: DadaConfig, tmp_path: Path) -> None:
    here = world()
    straight, states = DifferentiableAugment(here, config), []
    records = []
    for record in straight:
        records.append(record)
        states.append(straight.state())
        straight.policy.save(tmp_path / "policy.json")
        assert load_policy(tmp_path / "policy.json").equals(straight.policy)
    forecast = DifferentiableAugment.forecast(config, here)
    assert straight.passes == forecast.passes
    assert straight.done
    assert [(r.index, r.of) for r in records] == [(1, 3), (2, 3), (3, 3)]
    assert len(records) == forecast.units
    for state in [DifferentiableAugment(here, config).state(), *states]:
        other = DifferentiableAugment(here, config)
        other.load_state(state)
        left = list(other)
        assert [r[:-1] for r in left] == [r[:-1] for r in records[len(records) - len(left) :]]
        end = other.state()
        assert end.keys() == states[-1].keys()
        assert all(torch.equal(end[name], value) for name, value in states[-1].items())


def test_an_epoch_that_was_left_is_done_again() -> None:
    straight = DifferentiableAugment(world(), short("fast"))
    states = [straight.state() for _ in straight]
    calls = iter(range(1000))

    def pause() -> None:
        if next(calls) == 6:  # in the second epoch
            raise KeyboardInterrupt

    left = DifferentiableAugment(world(pause=pause), short("fast"))
    records = iter(left)
    assert next(records).index == 1
    with pytest.raises(KeyboardInterrupt):
        next(records)
    left.load_state(states[0])
    list(left)
    end = left.state()
    assert all(torch.equal(end[name], value) for name, value in straight.state().items())


def test_another_seed_is_another_search() -> None:
    ends = [DifferentiableAugment(world(seed=seed), short("fast")) for seed in (0, 1)]
    for search in ends:
        list(search)
    assert not torch.equal(ends[0].parameters.pairs, ends[1].parameters.pairs)


def test_the_policy_starts_with_all_pairs_and_ends_with_the_leading_ones() -> None:
    search = DifferentiableAugment(world(), short("fast", level_gradient="none"))
    uses = search.policy.expected_uses()
    names = [operation.name for operation in search.pairs.space.operations]
    assert [round(uses[name], 6) for name in names] == [round(0.5 * 2 / 15, 6)] * 15
    records = iter(search)
    next(records)  # the warm-up
    assert search.parameters.pairs.unique().numel() == 1
    next(records)
    leading = search.parameters.pairs.argsort(descending=True)[:25]
    uses, expected = search.policy.expected_uses(), dict.fromkeys(names, 0.0)
    for pair in leading.tolist():
        for slot, operation in enumerate(search.pairs.operations[pair].tolist()):
            expected[names[operation]] += search.parameters.gates[pair, slot].item() / 25
    assert {name: uses.get(name, 0.0) for name in names} == pytest.approx(expected)


def test_states_of_another_search_are_refused() -> None:
    search = DifferentiableAugment(world(), short("paper"))
    next(iter(search))
    state = search.state()
    fresh = DifferentiableAugment(world(), short("paper"))
    changes: dict[str, Tensor] = {
        "pairs": torch.zeros(3, dtype=torch.float64),
        "gates": torch.full((105, 2), torch.nan, dtype=torch.float64),
        "numbers": torch.tensor([-1, 0, 0, 0]),
        "network.epoch": torch.tensor(9),
        "network.model.head.bias": torch.zeros(3),
    }
    for name, value in changes.items():
        with pytest.raises(ValueError, match=r"state|counts"):
            fresh.load_state({**state, name: value})
    for name in ("pairs", "control.first", "adam.means.gates", "best"):
        with pytest.raises(LookupError):
            fresh.load_state({k: v for k, v in state.items() if k != name})
    assert fresh.network.epoch == 0
    fresh.load_state(state)
    assert fresh.network.epoch == 1


def test_a_budget_takes_epochs_away() -> None:
    here, config = world(), PRESETS["fast"]
    whole = DifferentiableAugment.forecast(config, here).passes.cost
    assert DifferentiableAugment.scaled(config, here, whole) == config
    smaller = DifferentiableAugment.scaled(config, here, whole // 2)
    assert smaller.epochs < config.epochs
    cost = DifferentiableAugment.forecast(smaller, here).passes.cost
    more = replace(smaller, epochs=smaller.epochs + 1)
    assert cost <= whole // 2 < DifferentiableAugment.forecast(more, here).passes.cost
    floor = DifferentiableAugment.forecast(replace(config, epochs=5), here).passes.cost
    assert DifferentiableAugment.scaled(config, here, floor).epochs == 5
    with pytest.raises(ValueError, match=f"dada takes {floor:,} passes at least"):
        DifferentiableAugment.scaled(config, here, floor - 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs should be in"),
        ({"warmup": 20}, "warmup should be in 0..19"),
        ({"draws": "all"}, "draws should be image, batch"),
        ({"draws": "batch"}, "leave-one-out takes several draws"),
        ({"estimator": "relax", "all_gates": True}, "all_gates belongs"),
        ({"level_step": 0.0}, "level_step should be above 0"),
        ({"rate": float("nan")}, "rate should be above 0"),
        ({"level_start": 1.5}, "level_start should be in 0..1"),
        ({"chains": -1}, "chains should be in"),
    ],
)
def test_settings_without_meaning_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DadaConfig(**changes)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(ValueError, match="each half takes two at least"):
        DifferentiableAugment(world(3), short("fast"))


# What is no number


class Spoilt(DifferentiableAugment):
    """Some rewards of each step are no numbers."""

    share = 0.25

    def _move(self, done: Any, rewards: Tensor, *rest: Any) -> None:
        bad = torch.arange(len(rewards)) < self.share * len(rewards)
        super()._move(done, torch.where(bad, torch.nan, rewards), *rest)


def test_rewards_that_are_no_numbers_are_left_out_and_counted() -> None:
    search = Spoilt(world(128), short("fast"))
    *_, last = search
    steps = 2 * 4  # epochs after the warm-up
    assert search.left_out == steps * 4
    assert last.summary.endswith("32 rewards left out")
    assert all(bool(part.isfinite().all()) for part in search.parameters)


def test_a_step_without_a_reward_ends_the_search() -> None:
    search = Spoilt(world(), short("fast"))
    search.share = 1.0
    with pytest.raises(FloatingPointError, match="dada, epoch 2, step 1: no reward is a number"):
        list(search)


def test_a_network_that_diverges_ends_the_search() -> None:
    search = DifferentiableAugment(world(lr=1e30, clip=0.0), short("fast"))
    with pytest.raises(FloatingPointError):
        list(search)


# What it finds


def operation_uses(search: DifferentiableAugment, parameters: Parameters) -> Tensor:
    """(operations,) how often an image meets each, in the policy of some parameters."""
    uses = torch.zeros(len(search.pairs.space.operations), dtype=torch.float64)
    leading = parameters.pairs.argsort(descending=True, stable=True)[:25]
    operations, gates = search.pairs.operations[leading], parameters.gates[leading]
    return uses.index_add_(0, operations.flatten(), gates.flatten() / 25)


def null_uses(search: DifferentiableAugment, count: int = 1000) -> Tensor:
    """(count, operations) the same where pairs have no meaning: their parameters change places."""
    generator = torch.Generator().manual_seed(0)

    def mixed() -> Iterator[Tensor]:
        for _ in range(count):
            order = torch.randperm(len(search.pairs), generator=generator)
            yield operation_uses(search, Parameters(*(part[order] for part in search.parameters)))

    return torch.stack(list(mixed()))


@pytest.mark.slow
def test_brighter_validation_images_ask_for_brightness_and_never_for_invert() -> None:
    here = norm_world(faint(600, 1, bright=1.8), faint(40, 2), batch=32, lr=0.03)
    search = SecondHalf(here, PRESETS["fast"])
    list(search)
    names = [operation.name for operation in search.pairs.space.operations]
    brightness, invert = names.index("brightness"), names.index("invert")
    uses, null = operation_uses(search, search.parameters), null_uses(search)
    assert uses[brightness] > null[:, brightness].quantile(0.95)
    assert uses[invert] < null[:, invert].quantile(0.05)
    levels = search.parameters.levels[search.pairs.operations == brightness]
    assert levels.mean() > 0.8  # from .75, towards brighter


def greys(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise, whose mean is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    mean = 50 + 30 * labels + 8 * torch.randn(n, generator=generator)
    pixels = 25 * torch.randn(n, 3, SIDE, SIDE, generator=generator)
    return (mean[:, None, None, None] + pixels).clamp(0, 255).to(torch.uint8), labels


@pytest.mark.slow
def test_what_changes_the_class_is_given_up() -> None:
    search = DifferentiableAugment(
        norm_world(greys(600, 1), greys(40, 2), batch=32, lr=0.03), PRESETS["fast"]
    )
    list(search)
    names = [operation.name for operation in search.pairs.space.operations]
    uses, null = operation_uses(search, search.parameters), null_uses(search)
    for name in ("brightness", "invert", "equalize", "auto_contrast"):
        place = names.index(name)
        assert uses[place] < null[:, place].quantile(0.05)


class Blind(DifferentiableAugment):
    """Rewards are noise."""

    def _move(self, done: Any, rewards: Tensor, slopes: Tensor, place: tuple[int, int]) -> None:
        generator = torch.Generator().manual_seed(1000 * place[0] + place[1])
        noise = torch.randn(len(rewards), generator=generator, dtype=torch.float64)
        super()._move(done, noise, slopes, place)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("kind", "lr"), [(Blind, 0.03), (DifferentiableAugment, 0.003)], ids=["rewards", "labels"]
)
def test_noise_gives_no_structure(kind: type[DifferentiableAugment], lr: float, seed: int) -> None:
    """A network that is fast enough to learn labels by heart rewards what hinders it in that."""
    here = norm_world(faint(600, seed, permuted=True), faint(40, 2), batch=32, lr=lr, seed=seed)
    search = kind(here, PRESETS["fast"])
    list(search)
    spread, null = operation_uses(search, search.parameters).std(), null_uses(search).std(1)
    assert null.quantile(0.01) < spread < null.quantile(0.99)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Blind, DifferentiableAugment], ids=["rewards", "labels"])
def test_gates_of_the_public_code_walk_at_random(kind: type[DifferentiableAugment]) -> None:
    """320 steps of Adam on noise: the deviation of the published gates is .09."""
    here = norm_world(faint(512, 1, permuted=True), faint(40, 2), batch=16, lr=0.003)
    search = kind(here, PRESETS["official"])
    list(search)
    assert search.adam.steps == 320
    assert 0.07 < search.parameters.gates.std() < 0.13
