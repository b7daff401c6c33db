"""The search: planted answers, settings that matter, and going on after a stop."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import cache

import pytest
import torch
from blobs import blobs, planted, row_of, trained, under
from torch import Tensor

from deepaa import CIFAR, Operation, Policy, Space
from deepaa.ops.apply import Draw, apply_batch
from deepaa.policy.policy import Layers
from deepaa.search import LayerRecord, Search, SearchConfig, SearchData, StepRecord
from deepaa.search.gradient_matching.gradients import Derivatives
from deepaa.search.gradient_matching.layer import operation_shares

QUICK = SearchConfig(
    layers=1,
    steps=28,
    learning_rate=0.35,
    images=6,
    validation=24,
    heldout=16,
    prefixes=2,
    chains=40,
    tie_signs=False,
)
SMALL = SearchConfig(
    layers=2, steps=3, learning_rate=0.3, images=3, validation=8, prefixes=2, chains=20, heldout=6
)
DECIDED = dataclasses.replace(
    QUICK,
    layers=2,
    penalty=0.0,
    steps=40,
    images=8,
    validation=32,
    learning_rate=0.5,
    converged=0.6,
)

State = dict[str, Tensor]


def search_for(config: SearchConfig, data: SearchData | None = None) -> Search:
    return Search(trained(), data or planted(), CIFAR, config)


def run(config: SearchConfig, data: SearchData | None = None) -> tuple[Search, list[object]]:
    search = search_for(config, data)
    return search, list(search)


def state_of(search: Search) -> State:
    return {k: v.clone() for k, v in search.state().items()}


def going_on(config: SearchConfig, state: State) -> Search:
    search = search_for(config)
    search.load_state(state)
    return search


# Truth


@cache
def found_for(name: str, magnitude: float) -> tuple[Search, list[object]]:
    return run(QUICK, planted(name, magnitude))


@pytest.mark.parametrize(
    ("name", "magnitude"),
    [("rotate", 30.0), ("shear_y", -0.3), ("translate_y", -0.45), ("color", 0.1)],
)
def test_the_planted_transformation_is_found(name: str, magnitude: float) -> None:
    row = row_of(name, magnitude)
    search, records = found_for(name, magnitude)
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
    search, _ = found_for("rotate", 30.0)
    names = [op.name for op in CIFAR.operations]
    shares = dict(zip(names, search.prefix.operation_probabilities()[0].tolist(), strict=True))
    assert shares["flip"] < 0.01
    assert shares["invert"] < 0.01


def test_with_shuffled_labels_the_answer_is_not_found() -> None:
    data = planted("color", 0.1)  # colour tells the class, so that only right labels point to grey
    order = torch.randperm(300, generator=torch.Generator().manual_seed(5))
    data = data._replace(validation_labels=data.validation_labels[order])
    search, _ = run(QUICK, data)
    assert search.found[0, row_of("color", 0.1)] < 0.05


def test_the_second_layer_finds_what_the_first_lacks() -> None:
    both = under(planted().validation_images, row_of("color", 0.1))
    data = planted()._replace(validation_images=both)
    search, records = run(dataclasses.replace(QUICK, layers=2, penalty=0.0), data)
    layers = [r for r in records if isinstance(r, LayerRecord)]
    assert layers[1].improvement_mean > layers[0].improvement_mean > 0
    uses = search.prefix.expected_uses()
    assert uses["rotate"] > 0.5
    assert uses["rotate"] + uses["color"] > 1.0


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


@cache
def second_layer() -> State:
    """The state of SMALL where its second layer begins."""
    search = search_for(SMALL)
    for record in search:
        if isinstance(record, LayerRecord):
            return state_of(search)
    raise AssertionError("the search ended early")


@cache
def logits_after(config: SearchConfig, layer: int) -> Tensor:
    """The logits of a layer after its three steps; the second stands on SMALL's first."""
    search = search_for(config) if layer == 1 else going_on(config, second_layer())
    for record in search:
        if isinstance(record, StepRecord) and record.step == 3:
            return search.optimizer.logits
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
    data = planted()._replace(validation_images=blobs(300, 3)[0])  # nothing is planted
    config = dataclasses.replace(QUICK, layers=None, max_layers=3, steps=12, heldout=24)
    search, records = run(config, data)
    layers = [r for r in records if isinstance(r, LayerRecord)]
    assert len(search.found) == sum(r.kept for r in layers)
    assert all(r.kept for r in layers[:-1])
    if len(layers) < 3:
        last = layers[-1]
        assert not last.kept
        assert last.gain < last.gain_error or "identity" in last.reason


def test_a_layer_of_identity_is_dropped() -> None:
    search, records = run(dataclasses.replace(QUICK, layers=None, steps=2, learning_rate=0.01))
    assert search.done
    assert len(search.found) == 0
    assert "identity has 0.9" in records[-1].reason
    assert search.policy.depth == 0
    assert search.dropped_identity is not None
    assert search.dropped_identity > 0.9
    kept, _ = run(SMALL)
    assert kept.dropped_identity is None


# Going on


def test_a_stopped_search_goes_on_bit_for_bit() -> None:
    straight, states = search_for(SMALL), []
    records = []
    for record in straight:
        records.append(record._replace(seconds=0.0))
        states.append(state_of(straight))
    for stop, state in enumerate(states[:-1], 1):
        again = going_on(SMALL, state)
        assert [r._replace(seconds=0.0) for r in again] == records[stop:]
        assert torch.equal(again.found, straight.found)


def test_a_state_of_another_space_is_refused() -> None:
    state = Search(trained(), planted(), CIFAR.without("invert"), SMALL).state()
    with pytest.raises(ValueError, match="138 transformations, the space 139"):
        search_for(SMALL).load_state(state)


def test_the_global_generator_has_no_say() -> None:
    torch.manual_seed(1)
    one = logits_after(SMALL, 1)
    torch.manual_seed(2)
    again = logits_after.__wrapped__(SMALL, 1)
    assert torch.equal(one, again)


def test_memory_that_runs_out_halves_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    real, limit = Derivatives.mean_gradient, 10

    def small_memory(derivatives, images, *rest):  # type: ignore[no-untyped-def]
        if min(derivatives.chunk, len(images)) > limit:
            raise torch.OutOfMemoryError("pretend")
        return real(derivatives, images, *rest)

    expected = logits_after(SMALL, 1)
    search = search_for(SMALL)
    monkeypatch.setattr(Derivatives, "mean_gradient", small_memory)
    for _ in zip(range(3), search, strict=False):
        pass
    assert search.chunk == 8
    assert (search.optimizer.logits - expected).abs().max() < 1e-5


def test_a_reward_that_is_not_finite_is_skipped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_for(SMALL)
    real = search._matcher

    def sometimes(inputs, hook):  # type: ignore[no-untyped-def]
        cosines, products = real(inputs, hook)
        products[1] *= math.nan
        return cosines, products

    monkeypatch.setattr(search, "_matcher", sometimes)
    record = next(iter(search))
    assert record.skipped == 1
    assert torch.isfinite(search.optimizer.logits).all()
    monkeypatch.setattr(
        search, "_matcher", lambda inputs, hook: (real(inputs)[0], real(inputs)[1] * math.nan)
    )
    with pytest.raises(FloatingPointError, match="layer 1, step 1: no reward is finite"):
        next(iter(search))


def test_a_space_without_identity_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the identity operation"):
        Search(trained(), planted(), CIFAR.only("rotate"), SMALL)


def test_passes_are_counted_as_forecast() -> None:
    for halvings in (0, 2):
        config = dataclasses.replace(SMALL, halvings=halvings, steps=6)
        search = search_for(config)
        steps = [r for r in search if isinstance(r, StepRecord)]
        assert steps[0].passes == config.passes_per_step(139, layer=1)
        for before, after in itertools.pairwise(steps):
            if before.layer == after.layer:
                expected = config.passes_per_step(139, layer=after.layer, step=before.step)
                assert after.passes - before.passes == expected
        assert search.passes <= config.passes_left(139)
    assert SearchConfig().passes_left(139) <= 15_000_000


def test_rows_are_dropped_and_the_others_get_their_draws() -> None:
    config = dataclasses.replace(SMALL, steps=8, halvings=2, converged=1.0)
    search = going_on(config, second_layer())
    seen = []
    for record in search:
        if isinstance(record, StepRecord):
            before = search.optimizer.logits.clone()
            seen.append((len(search.optimizer.active), before))
    assert [n for n, _ in seen] == [139, 139, 69, 69, 34, 34, 34, 34]
    pairs = {CIFAR.table.rows[i].mirrored for i in search.optimizer.active.tolist()}
    assert pairs == {CIFAR.table.rows[i] for i in search.optimizer.active.tolist()}
    (_, early), (_, late) = seen[4], seen[7]
    aside = torch.ones(139, dtype=torch.bool)
    aside[search.optimizer.active] = False
    assert 0 in search.optimizer.active
    assert torch.equal(early[aside], late[aside])
    assert (early[search.optimizer.active] != late[search.optimizer.active]).all()
    least = early[search.optimizer.active[search.optimizer.active != 0]].min()
    assert least >= seen[3][1][aside].max() - 4 * config.learning_rate


# The end of a layer


@cache
def decided() -> tuple[State, State]:
    """The states where the second of two layers begins, and where one operation holds it."""
    search, begun = search_for(DECIDED), None
    for record in search:
        if search.layer == 2 and begun is None:
            assert isinstance(record, LayerRecord)  # the first takes all its steps
            begun = state_of(search)
        if search.layer == 2 and search.optimizer.converged:
            assert begun is not None
            return begun, state_of(search)
    raise AssertionError("the layer is not held")


def test_a_layer_that_is_decided_ends_early() -> None:
    begun, held = decided()
    assert DECIDED.steps / 4 <= int(held["step"]) < DECIDED.steps
    p = held["logits"].softmax(0)
    assert 0.6 < float(operation_shares(CIFAR.table, p).max()) < 1
    patient = dataclasses.replace(DECIDED, converged=1.0)
    whole = going_on(patient, begun)
    *_, last = whole
    assert whole.optimizer.step == patient.steps
    # then the forecast is exact, but that images as they are take one pass each on CPU
    assert isinstance(last, LayerRecord)
    assert "alone" in last.reason  # the second layer has a leader, measured by itself
    assert whole.passes == patient.passes_left(139) - patient.heldout * (patient.chains - 1)
    once = patient.heldout * (patient.validation + patient.chains)
    found = dataclasses.replace(patient, simplify=0.0)
    assert patient.passes_left(139) - found.passes_left(139) == once


@pytest.mark.parametrize(("simplify", "alone"), [(1e-3, True), (1.0, False), (0.0, False)])
def test_a_layer_is_its_leading_operation_if_that_brings_enough(
    simplify: float, alone: bool
) -> None:
    config = dataclasses.replace(DECIDED, simplify=simplify)
    search = going_on(config, decided()[1])  # where the setting begins to matter
    started = search.passes
    [last] = list(search)
    assert isinstance(last, LayerRecord)
    measured = 3 if simplify else 2  # the layer, DeepTA, and the leading operation alone: forecast
    once = config.heldout * (config.validation + config.chains)
    assert search.passes - started == measured * once
    assert (search.found[0] > 0).all()  # the first layer is always kept as it was found
    assert search.optimizer.converged  # so that the last step counts
    p, kept = search.optimizer.probabilities, search.found[1]
    found = p / p.sum()
    shares = operation_shares(CIFAR.table, found)
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
    improvement = (both[1] if alone else both[0]) - search.baseline
    assert last.improvement_mean == pytest.approx(improvement.mean().item(), abs=1e-6)
    # the record tells of the layer as it was found
    assert last.identity == pytest.approx(float(found[0]))
    assert last.top is not None
    assert last.top[0] == (leader.name, pytest.approx(float(shares.max())))
    entropy = -(found * found.clamp(min=1e-300).log()).sum().item()
    assert last.perplexity == pytest.approx(math.exp(entropy))


def test_images_whose_gradient_was_not_finite_at_first_are_left_out_of_every_layer() -> None:
    search = going_on(DECIDED, decided()[1])
    assert len(search.baseline)
    search.baseline[0] = math.nan
    [last] = list(search)
    assert isinstance(last, LayerRecord)
    assert math.isfinite(last.improvement_mean)
    assert math.isfinite(last.deepta_mean)
    assert search.skipped == 1


def test_identity_has_to_hold_a_layer_for_longer() -> None:
    idle = dataclasses.replace(
        SMALL, steps=16, learning_rate=2.9, identity_logit=12.0, prefixes=1, chains=8
    )
    search, records = run(dataclasses.replace(idle, epsilon=1e6))  # nothing moves
    steps = [r for r in records if isinstance(r, StepRecord)]
    assert [sum(r.layer == layer for r in steps) for layer in (1, 2)] == [16, 10]  # 2.4 x 12 / 2.9
    assert search.found[1, 0] > 0.99
    assert (search.found > 0).all()  # identity is never made the whole layer: it would be dropped
