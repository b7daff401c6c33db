"""One step of SGD, plain and recorded, and networks that take turns."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

from deepaa.data.embedded import load_embedded
from deepaa.models import build_model, channel_statistics
from deepaa.policy.load import load_policy
from deepaa.train.batches import ImageBatches
from deepaa.train.config import TrainConfig
from deepaa.train.loop import Training, train_together
from deepaa.train.step import Randomness, RecordedStep, Sgd, Step, make_step

DATA = load_embedded()
SHORT = TrainConfig(epochs=2, batch=64)
CPU = torch.device("cpu")


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = build_model("small", 10), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.inner(x))


class Asking(nn.Module):
    """Looks at a number of the device, which a graph cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = build_model("small", 10), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.drop(self.inner(x))
        return out * 1.0 if float(out.detach().mean()) < 1e9 else out


def start(
    config: TrainConfig = SHORT,
    model: nn.Module | None = None,
    device: str = "cpu",
    n: int = 232,  # three batches of 64 and an odd one of 40
) -> Training:
    images, labels = DATA.train_images[:n], DATA.train_labels[:n]
    if model is None:
        mean, std = channel_statistics(images)
        model = build_model("small", 10, mean=mean, std=std)
    policy = load_policy("crop-flip-cutout")
    return Training(model, ImageBatches(images, labels, policy, config, device), config)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], limit: float) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        gap = (value.double() - b[name].double()).norm()
        assert float(gap) <= limit * max(1e-3, float(value.double().norm())), name


# The plain step


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"nesterov": False},
        {"momentum": 0.0, "nesterov": False},
        {"clip": 0.0},
        {"clip": 0.05},
        {"decay_norm": True, "weight_decay": 0.1},
        {"label_smoothing": 0.2},
    ],
)
def test_steps_equal_a_loop_over_torch_optim(change):
    """Bit for bit, with rates that change; torch's optimiser starts without momentum."""
    config = replace(SHORT, **change)
    ours, theirs = build_model("small", 10).train(), build_model("small", 10).train()
    step = Step(ours, config, CPU)
    plain = [p for p in theirs.parameters() if p.ndim == 1]
    rest = [p for p in theirs.parameters() if p.ndim > 1]
    decay = config.weight_decay
    groups = [(rest, decay), (plain, decay if config.decay_norm else 0.0)]
    optimizer = torch.optim.SGD(
        [{"params": params, "weight_decay": decay} for params, decay in groups],
        lr=1.0,
        momentum=config.momentum,
        nesterov=config.nesterov,
    )
    for i, rate in enumerate((0.05, 0.1, 0.02)):
        images, labels = DATA.train_images[i * 20 :][:20], DATA.train_labels[i * 20 :][:20]
        loss, norm, right = step(images, labels, rate, 20).tolist()
        optimizer.zero_grad()
        logits = theirs(images)
        expected = nn.functional.cross_entropy(
            logits, labels, label_smoothing=config.label_smoothing
        )
        expected.backward()
        gradients = torch.cat([p.grad.flatten() for p in theirs.parameters()])
        assert norm == pytest.approx(float(gradients.norm()), rel=1e-4)
        if config.clip:
            nn.utils.clip_grad_norm_([*rest, *plain], config.clip)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        assert loss == pytest.approx(float(expected.detach()), rel=1e-6)
        assert right == int((logits.argmax(1) == labels).sum())
    assert same(ours.state_dict(), theirs.state_dict())


def test_a_share_of_a_batch_counts_as_a_share():
    """The losses of two halves add up to the mean of the whole, and so do their gradients."""
    config = replace(SHORT, clip=0.0, momentum=0.0, nesterov=False, weight_decay=0.0)
    images, labels = DATA.train_images[:20], DATA.train_labels[:20]
    found = []
    for part in (slice(0, 12), slice(12, 20), slice(0, 20)):
        model = build_model("small", 10).eval()  # batch norm would see the halves
        before = model.network[-1].weight.detach().clone()
        outcome = Step(model, config, CPU)(images[part], labels[part], 1.0, 20)
        found.append((float(outcome[0]), model.network[-1].weight.detach() - before))
    (a, move_a), (b, move_b), (whole, move) = found
    assert a + b == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(move_a + move_b, move, rtol=1e-4, atol=1e-6)


def test_a_graph_is_refused_where_there_is_none():
    model = build_model("small", 10)
    with pytest.raises(ValueError, match=r"graph: .*the device is cpu"):
        make_step(model, replace(SHORT, graph=True), CPU)
    with pytest.raises(ValueError, match=r"graph: .*several processes"):
        make_step(model, replace(SHORT, graph=True), CPU, shared=True)
    assert type(make_step(model, SHORT, CPU)) is Step


# Randomness


def test_generators_that_take_turns_do_not_disturb_each_other():
    alone = torch.rand(6, generator=torch.Generator().manual_seed(5))
    first, second = Randomness(CPU), Randomness(CPU)
    first.seed(5)
    second.seed(5)
    before = torch.get_rng_state()
    drawn: list[list[torch.Tensor]] = [[], []]
    for _ in range(6):
        for place, source in enumerate((first, second)):
            with source.active():
                drawn[place].append(torch.rand(()))
    assert torch.equal(torch.get_rng_state(), before)
    for numbers in drawn:
        assert torch.equal(torch.stack(numbers), alone)


def test_generators_come_back_after_an_error():
    source, before = Randomness(CPU), torch.get_rng_state()
    source.seed(1)
    with pytest.raises(RuntimeError, match="size"), source.active():
        torch.rand(3) @ torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)


# Together


def test_networks_trained_together_equal_networks_trained_alone():
    """Dropout, different seeds, and one that has fewer epochs and fewer steps."""
    configs = [SHORT, replace(SHORT, seed=7), replace(SHORT, epochs=1, seed=3)]
    sizes = [232, 232, 100]
    alone = [start(config, Dropping(), n=n) for config, n in zip(configs, sizes, strict=True)]
    expected = [list(training) for training in alone]
    together = [start(config, Dropping(), n=n) for config, n in zip(configs, sizes, strict=True)]
    rounds = list(train_together(together))
    assert [[r is None for r in records] for records in rounds] == [
        [False] * 3,
        [False, False, True],
    ]
    for place, training in enumerate(together):
        assert same(training.state(), alone[place].state())
        records = [records[place] for records in rounds if records[place] is not None]
        assert [r[:4] for r in records] == [r[:4] for r in expected[place]]


def test_states_can_be_taken_and_loaded_between_the_rounds_of_several():
    whole = [start(replace(SHORT, seed=seed)) for seed in (0, 1)]
    list(train_together(whole))
    first = [start(replace(SHORT, seed=seed)) for seed in (0, 1)]
    next(train_together(first))
    second = [start(replace(SHORT, seed=seed)) for seed in (0, 1)]
    for source, target in zip(first, second, strict=True):
        target.load_state(source.state())
    list(train_together(second))
    assert all(same(a.state(), b.state()) for a, b in zip(whole, second, strict=True))


class Exploding(nn.Module):
    """Its loss is no number from the third step of training on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.steps = build_model("small", 10), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return self.inner(x) * (float("nan") if self.steps > 6 else 1.0)


def test_one_that_fails_leaves_the_others_alone():
    alone = start()
    list(alone)
    together = [start(replace(SHORT, seed=1, epochs=4), Exploding()), start()]
    rounds = list(train_together(together))
    assert len(rounds) == 2, "the one that failed is not asked again"
    assert rounds[0][0].epoch == 0
    assert isinstance(rounds[1][0], FloatingPointError)
    assert "seed 1, epoch 2, step 3: loss nan" in str(rounds[1][0])
    assert rounds[1][1].epoch == 1
    assert same(together[1].state(), alone.state())


def test_nothing_to_train_together_is_no_round():
    assert list(train_together([])) == []
    assert list(train_together([start(replace(SHORT, epochs=0))])) == []


# CUDA


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize(
    "change", [{}, {"channels_last": True}, {"clip": 0.0}, {"clip": 0.05, "momentum": 0.5}]
)
def test_recorded_steps_give_the_numbers_of_plain_steps(change):
    """An epoch with changing rates and the odd batch; lr is low, so that rounding stays small."""
    config = replace(SHORT, epochs=1, lr=0.02, **change)
    plain = start(replace(config, graph=False), device="cuda")
    recorded = start(replace(config, graph=True), device="cuda")
    assert type(plain._step) is Step
    assert type(recorded._step) is RecordedStep
    (expected,), (found,) = list(plain), list(recorded)
    assert found.loss == pytest.approx(expected.loss, rel=1e-3)
    assert found.accuracy == pytest.approx(expected.accuracy, abs=2 / 232)
    a, b = plain.state(), recorded.state()
    close(a, b, 0.02)
    counts = [key for key in a if key.endswith("num_batches_tracked")]
    assert counts
    assert all(int(b[key]) == int(a[key]) == 4 for key in counts)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_recording_leaves_no_trace(compiled):
    config = replace(SHORT, compile=compiled, precision="bfloat16", channels_last=True)
    run = start(config, Dropping(), device="cuda")
    before = run.state()
    run.model.train()
    with run._randomness.active():
        generator = torch.cuda.get_rng_state()
        run._step._record(run.batches.images[:64], run.batches.labels[:64])
        assert torch.equal(torch.cuda.get_rng_state(), generator)
    torch.cuda.synchronize()
    assert same(run.state(), before)
    list(run)
    assert not same(run.state(), before)


class Late(nn.Module):
    """Fails in its second step, when the first is still at work on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.steps = build_model("small", 10), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        if self.steps == 2:
            raise RuntimeError("on purpose")
        if self.training:
            torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second
        return self.inner(x)


@pytest.mark.gpu
def test_a_warm_up_that_fails_leaves_no_trace():
    run = start(SHORT, Late(), device="cuda")
    before = run.state()
    run.model.train()
    with pytest.raises(RuntimeError, match="on purpose"):
        run._step._record(run.batches.images[:64], run.batches.labels[:64])
    torch.cuda.synchronize()
    assert same(run.state(), before)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_convolutions")
def test_dropout_in_a_graph_is_a_function_of_seed_and_epoch():
    config = replace(SHORT, lr=0.02, graph=True)
    runs = [start(config, Dropping(), device="cuda") for _ in range(3)]
    first, second = list(runs[0]), []
    for record in runs[1]:
        torch.rand(5, device="cuda")  # the global generator does not matter
        second.append(record)
    assert [r.loss for r in second] == pytest.approx([r.loss for r in first], rel=1e-3)
    plain = list(start(replace(config, graph=False), Dropping(), device="cuda"))
    assert [r.loss for r in first] == pytest.approx([r.loss for r in plain], rel=2e-3)
    other = list(start(replace(config, seed=1), Dropping(), device="cuda"))
    assert other[0].loss != pytest.approx(first[0].loss, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_convolutions")
def test_dropout_draws_anew_in_every_replay():
    run = start(replace(SHORT, lr=0.0, momentum=0.0, nesterov=False), Dropping(), device="cuda")
    images, labels = run.batches.images[:64], run.batches.labels[:64]
    run.model.train()
    losses = []
    with run._randomness.active():
        for _ in range(4):
            losses.append(float(run._step(images, labels, 0.0, 64)[0]))
    assert len(set(losses)) == 4


@pytest.mark.gpu
def test_a_network_that_cannot_be_recorded_takes_plain_steps(caplog):
    with caplog.at_level(logging.WARNING, "deepaa.train.step"):
        run = start(replace(SHORT, epochs=1), Asking(), device="cuda")
        (record,) = list(run)
    assert "cannot be recorded" in caplog.text
    plain = list(start(replace(SHORT, epochs=1, graph=False), Asking(), device="cuda"))
    assert record.loss == pytest.approx(plain[0].loss, rel=0.02)
    with pytest.raises(RuntimeError):
        list(start(replace(SHORT, graph=True), Asking(), device="cuda"))


@pytest.mark.gpu
@pytest.mark.usefixtures("exact_convolutions")
def test_networks_on_one_gpu_together_equal_networks_alone():
    configs = [replace(SHORT, lr=0.02, seed=seed) for seed in range(4)]
    alone = [start(config, Dropping(), device="cuda") for config in configs]
    expected = [list(training) for training in alone]
    together = [start(config, Dropping(), device="cuda") for config in configs]
    rounds = list(train_together(together))
    for place in range(4):
        losses = [r.loss for r in expected[place]]
        assert [r[place].loss for r in rounds] == pytest.approx(losses, rel=2e-3)


@pytest.mark.gpu
def test_a_loaded_state_is_what_the_graph_goes_on_from():
    run = start(replace(SHORT, lr=0.02), device="cuda")
    state = run.state()
    first = run.train_epoch()
    run.load_state(state)
    assert run.train_epoch().loss == pytest.approx(first.loss, rel=1e-2)


@pytest.mark.gpu
def test_fused_sgd_reads_its_rate_from_the_device():
    model = build_model("small", 10).cuda()
    optimizer = Sgd(model, SHORT, torch.device("cuda"))
    assert isinstance(optimizer.rate, torch.Tensor)
    assert optimizer.rate.is_cuda
    step = Step(model.train(), SHORT, torch.device("cuda"))
    before = [p.detach().clone() for p in model.parameters()]
    step(DATA.train_images[:20].cuda(), DATA.train_labels[:20].cuda(), 0.0, 20)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def first_gradient(config: TrainConfig, name: str) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of one batch, and the gradient that momentum starts with."""
    images, labels = DATA.train_images[:128].cuda(), DATA.train_labels[:128].cuda()
    mean, std = channel_statistics(DATA.train_images)
    model = build_model(name, 10, mean=mean, std=std, seed=0).cuda().train()
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)
    step = make_step(model, config, torch.device("cuda"))
    loss = step(images, labels, 0.1, len(images)).tolist()[0]
    names = {parameter: name for name, parameter in model.named_parameters()}
    return loss, {names[p]: kept.double().clone() for p, kept in step.optimizer.momentum.items()}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize("tune", [False, True])
def test_the_fast_way_goes_where_the_plain_one_does(tune):
    """Compiled, recorded, in bfloat16, channels last: the gradient of plain float32."""
    plain = TrainConfig(compile=False, graph=False, weight_decay=0.0, clip=0.0)
    fast = replace(plain, compile=True, graph=True, precision="bfloat16", channels_last=True)
    fast = replace(fast, tune=tune, fused=False)
    expected, wanted = first_gradient(plain, "wrn-40-2")
    found, gradient = first_gradient(fast, "wrn-40-2")
    assert found == pytest.approx(expected, rel=0.02)
    for key, value in wanted.items():
        if value.ndim > 1:  # rounding alone takes the lowest cosine to .69 on an H200
            length = float(gradient[key].norm())
            assert float((value * gradient[key]).sum()) > 0.5 * float(value.norm()) * length, key
            assert length == pytest.approx(float(value.norm()), rel=0.3), key
