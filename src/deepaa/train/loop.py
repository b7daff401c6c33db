"""The training loop of one network, of several that take turns, and the test of a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa import distributed
from deepaa.data import StreamedImages
from deepaa.models import checked_outputs, unwrap_compiled
from deepaa.ops import hash_int
from deepaa.train.batches import Batches, check_data
from deepaa.train.config import TrainConfig, learning_rate
from deepaa.train.step import LOSS, NORM, RIGHT, Randomness, make_step

CHECK_STEPS = 64
"""Steps between two checks of the losses, each of which waits for the device."""


class EpochRecord(NamedTuple):
    """What an epoch of training did."""

    epoch: int
    """Counted from 0."""
    loss: float
    """Mean over the images, as trained on: augmented, smoothed labels."""
    accuracy: float
    """Share of the augmented images classified right, before each step."""
    lr: float
    """Learning rate of the first step."""
    seconds: float
    images: int
    heldout_accuracy: float | None = None
    """Share of images that are not trained on classified right after the epoch, where a search
    looks at some."""
    decoding: float | None = None
    """Images a second that the processes which decode files can give, where some do."""
    decoding_busy: float | None = None
    """Share of the epoch in which they decoded: near 1, the network waits for them."""


class Training:
    """The training of one network: iterating does the epochs left and yields a record of each.

    The network is trained in place. All randomness is a function of the seed and the epoch, so
    `state()` needs no generator state, and on a CPU a resumed training equals an uninterrupted one
    bit for bit, for one number of threads.
    """

    before_step: Callable[[], None] = staticmethod(lambda: None)
    """Called before each step; what it raises leaves the epoch, which is then lost."""

    def __init__(self, model: nn.Module, batches: Batches, config: TrainConfig) -> None:
        """Move the model to the device of the batches and check that they fit.

        Where several processes of `deepaa.distributed` share the batches, batch norm looks at a
        process's own share; `state` is alike in all of them but for its statistics.
        """
        self.model = unwrap_compiled(model).to(batches.device)
        self.batches, self.config, self.device = batches, config, batches.device
        blank = torch.zeros(1, *batches.image_shape, dtype=torch.uint8, device=self.device)
        self.outputs = count_outputs(self.model, blank, batches.labels)
        """How many outputs the network has."""
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self._step = make_step(self.model, config, self.device, shared=batches.shared)
        self._randomness = Randomness(self.device)
        self.epoch = 0
        """Epochs done."""
        self._whole = True
        self._named: dict[str, Tensor] | None = None

    def __iter__(self) -> Iterator[EpochRecord]:
        """Train the epochs that are left, yielding between them."""
        while self.epoch < self.config.epochs:
            yield self.train_epoch()

    # One epoch

    def train_epoch(self) -> EpochRecord:
        """Train one epoch."""
        *_, record = self.steps()
        assert record is not None
        return record

    def steps(self) -> Generator[EpochRecord | None, None, None]:
        """One epoch that pauses after each step it has started, for trainings that take turns.

        Yields None for each step, and the record of the epoch at the end.
        """
        self._require_whole()
        self._whole = False  # until the epoch ends; an exception leaves weights of no epoch
        begin = time.perf_counter()
        self.model.train()
        seed = hash_int(self.config.seed, self.epoch)
        self._randomness.seed(hash_int(seed, distributed.rank() if self.batches.shared else 0))
        sizes, copies = self.batches.sizes, self.config.copies
        middles = [self.epoch + (step + 0.5) / len(sizes) for step in range(len(sizes))]
        rates = [learning_rate(self.config, middle) for middle in middles]
        stats = torch.zeros(3, len(sizes), device=self.device)  # loss, norm and hits of each step
        for step, (images, labels) in enumerate(self.batches.epoch(self.epoch)):
            self.before_step()
            with self._randomness.active():
                stats[:, step] = self._step(images, labels, rates[step], sizes[step] * copies)
            if (step + 1) % CHECK_STEPS == 0:
                self._check_finite(stats)
            yield None
        stats, rows = self._check_finite(stats), sum(sizes) * copies
        shares = torch.tensor(sizes, device=self.device).double() / sum(sizes)
        loss, right = float(stats[LOSS].double() @ shares), float(stats[RIGHT].double().sum())
        seconds = time.perf_counter() - begin
        record = EpochRecord(self.epoch, loss, right / rows, rates[0], seconds, rows)
        if decoding := self.batches.decoding_rate():
            record = record._replace(decoding=decoding.per_second, decoding_busy=decoding.busy)
        self.epoch += 1
        self._whole = True
        yield record

    def _check_finite(self, stats: Tensor) -> Tensor:
        """The statistics of all processes; raises where a loss or a gradient is not finite.

        Waits for the device. The error counts epochs and steps from 1, as progress does.
        """
        if self.batches.shared:
            norms = stats[NORM].clone()
            stats = stats.clone()
            dist.all_reduce(stats)
            stats[NORM] = norms  # every process knows the whole gradient
        bad = ~stats.isfinite().all(0)
        if bool(bad.any()):
            step = int(bad.int().argmax())
            raise FloatingPointError(
                f"seed {self.config.seed}, epoch {self.epoch + 1}, step {step + 1}: loss "
                f"{float(stats[LOSS, step])}, gradient norm {float(stats[NORM, step])}; lower lr "
                f"({self.config.lr}) or look at the images"
            )
        return stats

    # Checkpoints

    def state(self, over: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """All that a resumed training needs, as copies on the device: weights, momentum, epoch.

        Args:
            over: An earlier state of this training, which is not needed any more: its tensors are
                written over, which is faster.
        """
        self._require_whole()
        tensors = self._tensors()
        if over is None or not all(
            name in over and over[name].device == tensor.device for name, tensor in tensors.items()
        ):
            over = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        copies = {name: over[name] for name in tensors}
        with torch.no_grad():
            torch._foreach_copy_([*copies.values()], [*tensors.values()])
        return {**copies, "epoch": torch.tensor(self.epoch)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`; nothing changes if it does not fit."""
        epoch = int(state["epoch"]) if "epoch" in state else -1
        if not 0 <= epoch <= self.config.epochs:
            raise ValueError(f"state of epoch {epoch}; this training has {self.config.epochs}")
        tensors = self._tensors()
        found, expected = _kinds(state), _kinds({**tensors, "epoch": state["epoch"]})
        if wrong := sorted(n for n in {**found, **expected} if found.get(n) != expected.get(n)):
            kinds = found.get(wrong[0], "not there"), expected.get(wrong[0], "none")
            raise ValueError(f"the state's {wrong[0]} is {kinds[0]}, expected {kinds[1]}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(state[name])
        self.epoch, self._whole = epoch, True

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors that training changes, by name; the same ones from the first step on."""
        if self._named is not None:
            return self._named
        weights = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        memory = self._step.optimizer.momentum
        momentum = {
            f"momentum.{name}": memory[parameter]
            for name, parameter in self.model.named_parameters()
            if parameter in memory
        }
        found = {**weights, **momentum}
        self._named = found if self.epoch else None
        return found

    def _require_whole(self) -> None:
        if not self._whole:
            raise RuntimeError(
                f"epoch {self.epoch + 1} was interrupted: its weights belong to no epoch; load a "
                "state"
            )


Outcome = EpochRecord | FloatingPointError | None
"""What one more epoch did, why it failed, or None where none was left."""


def train_together(trainings: Sequence[Training]) -> Iterator[list[Outcome]]:
    """Train several networks in turns, step by step; yields when each has done one more epoch.

    On CUDA each has a stream of its own, so that small networks fill the device together. Each ends
    as if it were alone: one whose loss is not a number ends there, and the others go on.
    """
    streams = [
        torch.cuda.Stream(each.device) if each.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        for each in trainings
    ]
    failed: set[int] = set()
    while running := {
        place: training.steps()
        for place, training in enumerate(trainings)
        if place not in failed and training.epoch < training.config.epochs
    }:
        outcomes: list[Outcome] = [None] * len(trainings)
        for stream in filter(None, streams):  # weights may have been written since
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        fresh = set(running)
        while running:
            for place, steps in list(running.items()):
                own = streams[place]
                try:
                    with torch.cuda.stream(own):
                        outcomes[place] = next(steps)  # the last has waited for the device
                except FloatingPointError as error:
                    outcomes[place] = error
                    failed.add(place)
                if outcomes[place] is not None:
                    running.pop(place).close()  # or its last batch would be kept while others save
                if own is not None and place in fresh:
                    own.synchronize()  # the others use the policy's tables that it has sent
                    fresh.discard(place)
        yield outcomes


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{t.dtype} {tuple(t.shape)}" for name, t in tensors.items()}


# The test of a network


@dataclass(frozen=True)
class Metrics:
    """How a network does on a set of images."""

    loss: float
    """Mean cross entropy."""
    accuracy: float
    """Share of the images classified right."""
    count: int
    class_accuracy: tuple[float | None, ...]
    """The accuracy on each class of the outputs; None for a class without images."""


def evaluate(model: nn.Module, images: Tensor, labels: Tensor, *, batch: int = 512) -> Metrics:
    """Loss and accuracy on uint8 `images` in eval mode, on the model's device.

    The model's modules get their modes back.
    """
    check_data(images, labels)
    if batch < 1:
        raise ValueError(f"batch should be at least 1, got {batch}")
    starts = range(0, len(images), batch)
    parts = ((images[i : i + batch], labels[i : i + batch]) for i in starts)
    return evaluate_batches(model, parts, labels)


def evaluate_batches(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], labels: Tensor
) -> Metrics:
    """`evaluate` on batches of any source; the device is waited for once, at the end.

    Args:
        batches: Images and their labels.
        labels: (N,) of all of them, to see first whether the model has outputs for each.
    """
    device = next((tensor.device for tensor in model.state_dict().values()), labels.device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    right = loss_sum.new_zeros(0)
    with _eval_mode(model), torch.no_grad():
        for number, (some, truth) in enumerate(batches):
            images, truth = some.to(device), truth.to(device)
            if number == 0:
                right = loss_sum.new_zeros(count_outputs(model, images[:1], labels))
            logits = model(images).float()
            loss_sum += F.cross_entropy(logits, truth, reduction="sum").double()
            right.index_add_(0, truth, (logits.argmax(1) == truth).double())
    hits, counts = right.tolist(), labels.bincount(minlength=len(right)).tolist()
    by_class = tuple(n / of if of else None for n, of in zip(hits, counts, strict=True))
    n = len(labels)
    return Metrics(float(loss_sum) / n, sum(hits) / n, n, by_class)


def image_outcomes(
    model: nn.Module, images: Tensor, labels: Tensor, *, batch: int = 512
) -> tuple[Tensor, Tensor]:
    """The loss (N,) of each image in eval mode, and whether it is classified right, on the CPU."""
    check_data(images, labels)
    device = next((tensor.device for tensor in model.state_dict().values()), labels.device)
    losses, right = [], []
    with _eval_mode(model), torch.no_grad():
        for some, truth in zip(
            *(torch.split(part, batch) for part in (images, labels)), strict=True
        ):
            logits, answers = model(some.to(device)).float(), truth.to(device)
            losses.append(F.cross_entropy(logits, answers, reduction="none"))
            right.append(logits.argmax(1) == answers)
    return torch.cat(losses).cpu(), torch.cat(right).cpu()


def evaluate_streamed(model: nn.Module, images: StreamedImages, *, batch: int = 256) -> Metrics:
    """Loss and accuracy on all images, in eval mode; `images` go to the model's device."""
    parts = ((part.images, part.labels) for part in images.batches(0, batch))
    return evaluate_batches(model, parts, images.labels)


def count_outputs(model: nn.Module, image: Tensor, labels: Tensor) -> int:
    """The number of outputs of a model that can take the images and has enough for the labels.

    Args:
        image: One, uint8 (1, C, H, W), on the model's device.
    """
    with _eval_mode(model), torch.no_grad():
        logits = checked_outputs(model, image)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model should return logits (N, classes), got {got}")
    outside = sorted(set(labels[(labels < 0) | (labels >= logits.shape[1])].tolist()))
    if outside:
        raise ValueError(
            f"labels should be in 0..{logits.shape[1] - 1}, the model's outputs; got "
            f"{', '.join(map(str, outside[:5]))}{', ...' if len(outside) > 5 else ''}"
        )
    return int(logits.shape[1])


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
