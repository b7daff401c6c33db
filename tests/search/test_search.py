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
    "trivial_pull": 0.1,
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
        ({"keep_errors": -1.0}, "keep_errors should be 0 or more, got -1"),
        ({"repeat_errors": math.inf}, "repeat_errors should be 0 or more, got inf"),
        ({"trivial_pull": -0.1}, "trivial_pull should be 0 or more, got -0.1"),
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
        assert last.gain <= 2 * last.gain_error or "identity" in last.reason


def test_a_layer_of_identity_is_dropped() -> None:
    search, records = run(dataclasses.replace(QUICK, layers=None, steps=2, learning_rate=0.01))
    assert search.done
    assert len(search.found) == 0
    assert "identity has 0.9" in records[-1].reason
    assert search.policy.depth == 0


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
    assert SearchConfig().passes_left(139) <= 16_000_000


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


@pytest.mark.slow
def test_a_layer_that_is_decided_ends_early() -> None:
    begun, held = decided()
    assert DECIDED.steps / 4 <= int(held["step"]) < DECIDED.steps
    p = held["logits"].softmax(0)
    assert 0.6 < float(operation_shares(CIFAR.table, p).max()) < 1
    patient = dataclasses.replace(DECIDED, converged=1.0)
    whole = going_on(patient, begun)
    *_, last = whole
    assert whole.optimizer.step == patient.steps
    assert isinstance(last, LayerRecord)


def at_its_end(config: SearchConfig, **shares: float) -> Search:
    """The second layer of SMALL after all its steps, with a mixture on top of one of rotate."""
    search = going_on(config, second_layer())
    search.found = mixture(rotate=0.5, identity=0.5)[None]
    search._start_layer()
    search.optimizer.step = config.steps
    search.optimizer.logits = mixture(**shares).clamp(min=1e-9).log()
    return search


def mixture(**shares: float) -> Tensor:
    """All magnitudes of an operation alike."""
    p = torch.zeros(139, dtype=torch.float64)
    for name, share in shares.items():
        rows = [i for i, row in enumerate(CIFAR.table.rows) if row.operation.name == name]
        p[rows] = share / len(rows)
    return p


def mean_and_error(values: Tensor) -> tuple[float, float]:
    n = len(values)
    mean = sum(values.tolist()) / n
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values.tolist()) / (n - 1) / n)


OPEN = dataclasses.replace(SMALL, layers=None, max_layers=3, heldout=20)


def under_layers(search: Search, decision: int, *layers: Tensor) -> Tensor:
    """The cosines of a decision's pairs under some layers."""
    found = torch.stack(layers) if layers else torch.zeros(0, 139, dtype=torch.float64)
    return search._heldout_cosines(Policy(CIFAR.table, Layers(found)), decision, "these")


def test_a_layer_is_measured_on_pairs_of_its_own() -> None:
    """Beside the layers before it, no augmentation and DeepTA, all on the same pairs."""
    search = at_its_end(OPEN, crop=0.6, flip=0.4)
    [first], p, started = search.found.clone(), search.optimizer.probabilities, search.passes
    record = next(iter(search))
    assert isinstance(record, LayerRecord)
    # the forecast, but that images as they are take one pass each on CPU; nothing is repeated
    once = OPEN.heldout * (OPEN.validation + OPEN.chains)
    assert search.passes - started == 4 * once - OPEN.heldout * (OPEN.chains - 1)
    for decision, same in ((1, True), (0, False), (2, False)):
        before, with_layer = (
            under_layers(search, decision, *layers) for layers in ((first,), (first, p))
        )
        none, deepta = (
            under_layers(search, decision),
            search._heldout_cosines(Policy.trivial(CIFAR, 2), decision, "DeepTA"),
        )
        gain, error = mean_and_error(with_layer - before)
        assert len(before) == OPEN.heldout
        assert (record.gain == pytest.approx(gain, abs=1e-9)) is same
        assert (record.gain_error == pytest.approx(error, abs=1e-9)) is same
        if same:
            assert record.kept == (gain > 2 * error)
            mean, error = mean_and_error(with_layer - none)
            assert record.improvement_mean == pytest.approx(mean, abs=1e-9)
            assert record.improvement_std == pytest.approx(error * math.sqrt(OPEN.heldout))
            mean, error = mean_and_error(deepta - none)
            assert record.deepta_mean == pytest.approx(mean, abs=1e-9)
            assert record.deepta_std == pytest.approx(error * math.sqrt(OPEN.heldout))


@pytest.mark.parametrize("errors", [0.0, 1e-6, 1e6])
def test_an_operation_is_repeated_where_that_is_worth_it(errors: float) -> None:
    """Decided first, on pairs of its own; then the form that is left is kept or not on others."""
    config = dataclasses.replace(OPEN, layers=2, repeat_errors=errors)
    search = at_its_end(config, rotate=0.6, color=0.3, identity=0.1)
    [first], p = search.found.clone(), search.optimizer.probabilities
    rest = p * torch.tensor([row.operation.name != "rotate" for row in CIFAR.table.rows])
    rest[0] += 1 - rest.sum()
    record = next(iter(search))
    assert isinstance(record, LayerRecord)
    is_worth = True
    if errors:
        more = under_layers(search, 2, first, p) - under_layers(search, 2, first, rest)
        gain, error = mean_and_error(more)
        is_worth = gain > errors * error
        said = f"; rotate again: a gain of {gain:.4f}, standard error {error:.4f}"
        assert record.reason.endswith(said if is_worth else f"{said}, is not enough")
    assert is_worth == (errors < 1)
    assert ("again" in record.reason) == (errors > 0)
    assert torch.allclose(search.found[1], p if is_worth else rest, atol=1e-12)
    before, kept = under_layers(search, 1, first), under_layers(search, 1, first, search.found[1])
    assert record.gain == pytest.approx(mean_and_error(kept - before)[0], abs=1e-9)
    # the record tells of the layer as it was found
    assert record.top is not None
    assert record.top[0] == ("rotate", pytest.approx(0.6))
    assert record.identity == pytest.approx(0.1)


def test_the_forecast_counts_every_measurement() -> None:
    config = dataclasses.replace(OPEN, layers=2, converged=1.0)
    search = at_its_end(config, rotate=0.6, color=0.3, identity=0.1)
    started = search.passes
    assert "again" in next(iter(search)).reason
    forecast = config.passes_left(139, layer=2, step=config.steps)
    assert search.passes - started == forecast - config.heldout * (config.chains - 1)
    assert search.done
    whole, records = run(config)
    repeated = sum("again" in r.reason for r in records if isinstance(r, LayerRecord))
    once = config.heldout * (config.validation + config.chains)
    saved = 2 * once * (1 - repeated) + 2 * config.heldout * (config.chains - 1)
    assert whole.passes == config.passes_left(139) - saved


def test_where_all_of_a_layer_is_repeated_it_is_kept_or_not() -> None:
    search = at_its_end(OPEN, rotate=0.95, color=0.05)
    record = next(iter(search))
    assert isinstance(record, LayerRecord)
    assert "again" not in record.reason
    assert record.kept == (record.gain > 2 * record.gain_error)


def test_images_without_a_finite_gradient_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search, real, calls = at_its_end(OPEN, crop=1.0), Search._heldout_cosines, []

    def sometimes(self: Search, policy: Policy, decision: int, what: str) -> Tensor:
        cosines = real(self, policy, decision, what)
        cosines[len(calls)] = math.nan  # another one under each policy
        calls.append(policy)
        return cosines

    monkeypatch.setattr(Search, "_heldout_cosines", sometimes)
    record = next(iter(search))
    assert isinstance(record, LayerRecord)
    assert len(calls) == 4
    assert search.skipped == 4
    assert "16 pairs" not in record.reason
    values = (record.gain, record.gain_error, record.improvement_mean, record.deepta_mean)
    assert all(map(math.isfinite, values))


def test_identity_has_to_hold_a_layer_for_longer() -> None:
    idle = dataclasses.replace(
        SMALL, steps=16, learning_rate=2.9, identity_logit=12.0, prefixes=1, chains=8
    )
    search, records = run(dataclasses.replace(idle, epsilon=1e6))  # nothing moves
    steps = [r for r in records if isinstance(r, StepRecord)]
    assert [sum(r.layer == layer for r in steps) for layer in (1, 2)] == [16, 10]  # 2.4 x 12 / 2.9
    assert search.found[1, 0] > 0.99
    assert (search.found > 0).all()  # identity is never made the whole layer: it would be dropped
