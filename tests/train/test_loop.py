"""Real short trainings of the small network on the embedded images."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from deepaa.data.embedded import load_embedded
from deepaa.models import build_model, channel_statistics
from deepaa.ops.apply import apply_batch
from deepaa.ops.rng import sample_keys
from deepaa.policy.load import load_policy
from deepaa.policy.policy import Policy
from deepaa.train import batches as train_batches, loop as training
from deepaa.train.batches import ImageBatches, check_data
from deepaa.train.config import TrainConfig
from deepaa.train.loop import Training, evaluate, evaluate_batches

DATA = load_embedded()
SHORT = TrainConfig(epochs=3, batch=64)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(
    config: TrainConfig = SHORT,
    n: int = 200,
    policy: Policy | str | None = "crop-flip-cutout",
    model: nn.Module | None = None,
    device: str = "cpu",
) -> Training:
    images, labels = DATA.train_images[:n], DATA.train_labels[:n]
    if model is None:
        mean, std = channel_statistics(images)
        model = build_model("small", 10, mean=mean, std=std)
    policy = load_policy(policy) if isinstance(policy, str) else policy
    return Training(model, ImageBatches(images, labels, policy, config, device), config)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# Learning


@pytest.mark.slow
def test_ten_epochs_learn_the_embedded_images():
    run = start(TrainConfig(epochs=10), n=2000)
    before = evaluate(run.model, DATA.test_images, DATA.test_labels)
    records = list(run)
    after = evaluate(run.model, DATA.test_images, DATA.test_labels)
    assert before.accuracy < 0.2
    assert after.accuracy > 0.3
    assert after.loss < 1.9 < before.loss
    assert [record.epoch for record in records] == list(range(10))
    assert records[-1].loss < records[0].loss
    assert records[-1].accuracy > records[0].accuracy + 0.1
    assert all(record.images == 2000 and record.seconds > 0 for record in records)
    assert records[0].lr > 0.099 > 0.01 > records[-1].lr


def test_without_augmentation_a_few_images_are_learnt_by_heart():
    run = start(TrainConfig(epochs=30, batch=25), n=100, policy=None)
    records = list(run)
    assert records[-1].accuracy > 0.9
    augmented = list(start(TrainConfig(epochs=30, batch=25), n=100))
    assert augmented[-1].accuracy < records[-1].accuracy - 0.1


def test_first_loss_is_that_of_the_augmented_images():
    """The whole path once more, by hand: order, keys, policy and mean over the images."""
    config = TrainConfig(epochs=1, batch=100, lr=0.0, seed=3, weight_decay=0, label_smoothing=0.1)
    run = start(config, n=100)
    policy, indices = load_policy("crop-flip-cutout"), torch.arange(100)
    augmented = apply_batch(
        DATA.train_images[:100], policy.draw(sample_keys(3, 0, indices)), policy.table
    )
    run.model.train()
    with torch.no_grad():
        logits = run.model(augmented)
    expected = nn.functional.cross_entropy(logits, DATA.train_labels[:100], label_smoothing=0.1)
    (record,) = run
    assert record.loss == pytest.approx(float(expected), abs=1e-5)
    right = int((logits.argmax(1) == DATA.train_labels[:100]).sum())
    assert record.accuracy == pytest.approx(right / 100)


def test_every_epoch_sees_every_image_once_in_another_order():
    run = start(replace(SHORT, batch=50), policy=None)
    seen: list[torch.Tensor] = []

    def remember(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if module.training:
            seen.append(inputs[0].flatten(1).sum(1))

    run.model.register_forward_pre_hook(remember)
    list(run)
    orders = torch.cat(seen).view(3, 200)
    expected = DATA.train_images[:200].flatten(1).sum(1)
    assert torch.equal(orders.sort(1).values, expected.sort().values.expand(3, -1))
    same_place = [(orders[i] == orders[j]).float().mean() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert max(same_place) < 0.1
    assert (orders[0] == expected).float().mean() < 0.1


def test_a_schedule_of_policies_changes_with_the_epoch():
    """A policy with phases draws from the phase of the running epoch."""
    plain, crop = load_policy("identity"), load_policy("crop-flip")
    table = plain.then(crop).table
    stages = [(0, plain.then(Policy(crop.table)).phases[0].stages)]
    both = plain.then(crop)
    late = Policy(table, schedule=[*stages, (1, both.phases[0].stages)])
    config = replace(SHORT, epochs=2)
    runs = {name: start(config, policy=p) for name, p in (("late", late), ("none", None))}
    first = {name: run.train_epoch() for name, run in runs.items()}
    second = {name: run.train_epoch() for name, run in runs.items()}
    assert first["late"].loss == first["none"].loss
    assert second["late"].loss != second["none"].loss


def test_augmenting_in_pieces_changes_nothing(monkeypatch):
    whole = start()
    list(whole)
    monkeypatch.setattr(train_batches, "AHEAD_BYTES", 1)
    pieces = start()
    list(pieces)
    assert same(whole.state(), pieces.state())


# Schedule and steps


def test_one_image_left_over_does_not_reach_batch_norm():
    run = start(replace(SHORT, epochs=1), n=65)
    (record,) = run
    assert record.images == 64


def test_weight_decay_spares_norms_and_biases_unless_asked():
    for decay_norm in (False, True):
        config = TrainConfig(epochs=1, lr=0.0, decay_norm=decay_norm, weight_decay=0.25)
        run = start(config)
        groups = run._step.optimizer._groups
        decay = {id(p): its for weights, its in groups for p in weights}
        for name, parameter in run.model.named_parameters():
            one = parameter.ndim == 1
            assert decay[id(parameter)] == (0.0 if one and not decay_norm else 0.25), name


def test_step_is_nesterov_sgd_with_clipping():
    """One step against the formulas: first momentum is the gradient, the step is g + m g."""
    config = TrainConfig(epochs=1, batch=100, lr=0.5, clip=0.01, weight_decay=0.1)
    run = start(config, n=100, policy=None)
    model = build_model("small", 10, mean=run.model.normalize.mean, std=run.model.normalize.std)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    nn.functional.cross_entropy(
        model.train()(DATA.train_images[:100]), DATA.train_labels[:100]
    ).backward()
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    assert norm > 0.01
    rate = 0.25  # the middle of the only epoch of a cosine from .5
    list(run)
    for name, parameter in run.model.named_parameters():
        gradient = model.get_parameter(name).grad * 0.01 / norm
        if parameter.ndim > 1:
            gradient = gradient + 0.1 * before[name]
        expected = before[name] - rate * 1.9 * gradient
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-4, atol=1e-6)


def test_frozen_weights_stay():
    model = build_model("small", 10)
    fixed = next(model.network.parameters())
    fixed.requires_grad_(False)
    before = fixed.clone()
    run = start(replace(SHORT, epochs=1), model=model)
    list(run)
    assert torch.equal(fixed, before)
    assert not any("network.0.weight" in key for key in run.state() if key.startswith("momentum"))


# Seeds and resuming


def test_same_seed_same_weights_other_seed_others():
    runs = [start(replace(SHORT, seed=seed)) for seed in (1, 1, 2)]
    for i, run in enumerate(runs):
        torch.manual_seed(i)  # global generators do not matter
        list(run)
    assert same(runs[0].state(), runs[1].state())
    assert not same(runs[0].state(), runs[2].state())


class _Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = build_model("small", 10), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.inner(x))


def test_dropout_draws_from_the_seed_and_leaves_global_generators_alone():
    before = torch.get_rng_state()
    first, second = start(model=_Dropping()), start(model=_Dropping())
    list(first)
    torch.rand(7)
    for _ in second:
        torch.rand(3)
    assert same(first.state(), second.state())
    torch.set_rng_state(before)
    list(start(replace(SHORT, epochs=1), model=_Dropping()))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("stop", "threads"), [(0, 1), (1, 1), (2, 1), (3, 1), (1, 2)])
def test_resumed_training_equals_an_uninterrupted_one_bit_for_bit(stop, threads):
    torch.set_num_threads(threads)
    whole = start(model=_Dropping())
    records = list(whole)
    part = start(model=_Dropping())
    for _ in range(stop):
        part.train_epoch()
    saved = part.state()
    list(part)  # what happens after saving does not reach the copy
    torch.manual_seed(99)
    other = _Dropping()
    other.inner = build_model("small", 10, seed=77)  # every weight comes from the state
    resumed = start(model=other)
    resumed.load_state(saved)
    rest = list(resumed)
    assert same(resumed.state(), whole.state())
    assert [r._replace(seconds=0) for r in rest] == [r._replace(seconds=0) for r in records[stop:]]


def test_state_is_flat_and_complete():
    run = start()
    keys = set(run.state())
    run.train_epoch()
    state = run.state()
    assert keys == set(state)  # also before the first step
    assert int(state["epoch"]) == 1
    assert {key.partition(".")[0] for key in state} == {"model", "momentum", "epoch"}
    assert all(t.is_contiguous() and not t.requires_grad for t in state.values())
    pointers = [t.data_ptr() for t in state.values()]
    assert len(set(pointers)) == len(pointers)  # a file of tensors allows no sharing
    momentum = {key.removeprefix("momentum.") for key in state if key.startswith("momentum")}
    assert momentum == {name for name, _ in run.model.named_parameters()}
    assert all(state[f"momentum.{name}"].abs().max() > 0 for name in momentum)


def test_states_that_do_not_fit_are_refused_and_change_nothing():
    run = start()
    run.train_epoch()
    good = run.state()
    weight = "model.network.0.weight"
    broken = {
        "network.0.weight is not there, expected torch.float32": {
            key: value for key, value in good.items() if key != weight
        },
        "more is torch.float32 .1,., expected none": {**good, "model.more": torch.zeros(1)},
        "network.0.weight": {**good, weight: torch.zeros(2)},
        "float64": {**good, weight: good[weight].double()},
        "epoch 9": {**good, "epoch": torch.tensor(9)},
        "epoch -1": {key: value for key, value in good.items() if key != "epoch"},
    }
    for message, state in broken.items():
        with pytest.raises(ValueError, match=message):
            run.load_state(state)
        assert same(run.state(), good)


# Evaluation


def test_evaluate_counts_and_restores_the_modes():
    model = build_model("small", 10)
    model.train()
    model.network[1].eval()  # one layer differs
    modes = [module.training for module in model.modules()]
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    images, labels = DATA.test_images[:70], DATA.test_labels[:70]
    found = [evaluate(model, images, labels, batch=batch) for batch in (1, 32, 512)]
    assert [module.training for module in model.modules()] == modes
    assert same(model.state_dict(), weights)
    model.eval()
    with torch.no_grad():
        logits = model(images)
    right = (logits.argmax(1) == labels).double()
    loss = float(nn.functional.cross_entropy(logits, labels))
    by_class = [right[labels == c].mean().item() for c in range(10)]
    for metrics in found:
        assert metrics.count == 70
        assert metrics.accuracy == pytest.approx(right.mean().item())
        assert metrics.loss == pytest.approx(loss, rel=1e-5)
        assert metrics.class_accuracy == pytest.approx(by_class)


# Refusals


@pytest.mark.parametrize("where", [(0, 0), (1, 2)])
def test_loss_that_is_no_number_stops_with_epoch_and_step(where):
    epoch, step = where
    calls = []

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build_model("small", 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.inner(x)
            if self.training:
                calls.append(1)
                if len(calls) == epoch * 3 + step + 1:
                    out = out * math.inf
            return out

    run = start(model=Broken(), n=192)
    with pytest.raises(FloatingPointError, match=f"epoch {epoch + 1}, step {step + 1}: loss nan"):
        list(run)
    assert run.epoch == epoch
    with pytest.raises(RuntimeError, match="interrupted"):  # nobody saves those weights
        run.state()
    with pytest.raises(RuntimeError, match="interrupted"):
        run.train_epoch()


def test_gradient_that_is_no_number_in_the_last_step_stops_too():
    model = build_model("small", 10)
    model.network[-1].weight.register_hook(lambda gradient: gradient * math.nan)
    run = start(replace(SHORT, epochs=1, clip=0.0), n=64, model=model)
    with pytest.raises(FloatingPointError, match=r"epoch 1, step 1:.*gradient norm nan"):
        list(run)


def test_long_epochs_stop_before_their_end(monkeypatch):
    monkeypatch.setattr(training, "CHECK_STEPS", 2)
    model = build_model("small", 10)
    steps = []
    model.register_forward_hook(lambda module, _, __: steps.append(module.training))
    model.network[-1].weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(FloatingPointError, match="step 1:"):
        list(start(replace(SHORT, batch=10), model=model))
    assert sum(steps) == 2


def test_an_interrupted_epoch_is_made_good_by_a_state():
    run, whole = start(), start()
    run.train_epoch()
    saved = run.state()

    def interrupt(module: nn.Module, *_: object) -> None:
        if module.training:
            raise KeyboardInterrupt

    hook = run.model.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.train_epoch()
    hook.remove()
    run.load_state(saved)
    list(run)
    list(whole)
    assert same(run.state(), whole.state())


def images(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("pixels", "labels", "error", "message"),
    [
        (torch.zeros(4, 3, 8, 8), torch.zeros(4).long(), ValueError, "uint8.*float32"),
        (images(4, 8, 8), torch.zeros(4).long(), ValueError, "N, C, H, W"),
        (images(0, 3, 8, 8), torch.zeros(0).long(), ValueError, "not empty"),
        (images(4, 3, 8, 8), torch.zeros(3).long(), ValueError, "int64 .4,., got .* .3,"),
        (images(4, 3, 8, 8), torch.zeros(4), ValueError, "int64.*float32"),
        (images(4, 3, 8, 8), torch.tensor([0, 10, -1, 3]), ValueError, "0..9.*got -1, 10"),
        (images(4, 1, 8, 8), torch.zeros(4).long(), ValueError, "3 channels"),
    ],
)
def test_data_that_do_not_fit_are_refused(pixels, labels, error, message):
    model = build_model("small", 10)
    with pytest.raises(error, match=message):
        Training(model, ImageBatches(pixels, labels, None, SHORT), SHORT)
    with pytest.raises(error, match=message):
        evaluate(model, pixels, labels)


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"cannot take images of shape \(3, 32, 32\)"):
        start(model=build_model("vit_b_16", 10))
    with pytest.raises(ValueError, match=r"logits .N, classes., got"):
        start(model=build_model("small", 10).network[:3].insert(0, build_model("small", 3)[0]))
    with pytest.raises(ValueError, match="no weights that can be trained"):
        start(model=build_model("small", 10).requires_grad_(False))


# Layout, precision, compilation


@pytest.mark.parametrize("change", [{"channels_last": True}, {"precision": "bfloat16"}])
def test_layout_and_precision_train_alike(change):
    plain, other = start(), start(replace(SHORT, **change))
    expected, found = list(plain), list(other)
    assert found[0].loss == pytest.approx(expected[0].loss, rel=0.05)
    assert found[-1].loss < found[0].loss
    assert all(t.dtype == torch.float32 for t in other.model.parameters())


@pytest.mark.gpu
def test_cuda_trains_alike_and_resumes():
    expected = list(start())
    run = start(device="cuda")
    found = list(run)
    assert [r.loss for r in found] == pytest.approx([r.loss for r in expected], rel=0.05)
    state = run.state()
    assert all(t.is_cuda for name, t in state.items() if name != "epoch")
    again = start(device="cuda")
    again.load_state(state)
    assert again.epoch == 3
    assert evaluate(again.model, DATA.test_images, DATA.test_labels) == evaluate(
        run.model, DATA.test_images, DATA.test_labels
    )


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_cuda_in_bfloat16_learns(compiled):
    config = TrainConfig(epochs=10, precision="bfloat16", channels_last=True, compile=compiled)
    run = start(config, n=2000, device="cuda")
    before = torch.cuda.get_rng_state()
    list(run)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert evaluate(run.model, DATA.test_images, DATA.test_labels).accuracy > 0.3


# Batches of any source

FEW = torch.randint(
    0, 256, (23, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
FEW_LABELS = torch.arange(23) % 4


def batches(size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    yield from zip(FEW.split(size), FEW_LABELS.split(size), strict=True)


@pytest.mark.parametrize("size", [1, 7, 23, 100])
def test_batches_of_any_size_are_one_evaluation(size: int) -> None:
    model = build_model("small", 4).train()
    with torch.no_grad():
        logits = model.eval()(FEW)
    model.train()
    expected = nn.functional.cross_entropy(logits, FEW_LABELS).item()
    right = (logits.argmax(1) == FEW_LABELS).double().mean().item()
    for found in (
        evaluate_batches(model, batches(size), FEW_LABELS),
        evaluate(model, FEW, FEW_LABELS, batch=size),
    ):
        assert found.count == 23
        assert found.loss == pytest.approx(expected, rel=1e-5)
        assert found.accuracy == pytest.approx(right)
        hits = [
            (logits.argmax(1) == FEW_LABELS)[k == FEW_LABELS].double().mean().item()
            for k in range(4)
        ]
        assert found.class_accuracy == pytest.approx(hits)
    assert model.training


def test_a_class_without_images_has_no_accuracy() -> None:
    found = evaluate(build_model("small", 6), FEW, FEW_LABELS)
    assert found.class_accuracy[4:] == (None, None)
    assert None not in found.class_accuracy[:4]


def test_labels_are_looked_at_before_the_first_batch() -> None:
    """Also those of later batches: a test of hours should not end in an error."""
    model = build_model("small", 4).train()
    labels = FEW_LABELS.clone()
    labels[-1] = 9
    seen = []

    def counted() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in batches(5):
            seen.append(len(batch[0]))
            yield batch

    with pytest.raises(ValueError, match=r"labels should be in 0\.\.3.*got 9"):
        evaluate_batches(model, counted(), labels)
    assert seen == [5]
    assert model.training


def test_what_are_no_images_is_refused() -> None:
    with pytest.raises(ValueError, match="images should be uint8"):
        check_data(FEW.float(), FEW_LABELS)
    with pytest.raises(ValueError, match="and not empty, got"):
        check_data(FEW[:0], FEW_LABELS[:0])
    with pytest.raises(ValueError, match="labels should be int64"):
        check_data(FEW, FEW_LABELS[:5])
