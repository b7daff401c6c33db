"""A plain training loop: uint8 images on the device, augmented many batches ahead."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepaa.keys import hash_int, sample_keys
from deepaa.models import unwrapped
from deepaa.ops import apply_batch
from deepaa.policy import Policy

__all__ = ["EpochRecord", "Metrics", "TrainConfig", "Training", "evaluate", "learning_rate"]

PRECISIONS = ("float32", "bfloat16")
AHEAD_BYTES = 256 << 20
"""So many bytes of images are augmented in one call, in whole batches, and then sliced."""
CHECK_STEPS = 64
"""Steps between two looks at the losses: each look waits for the device."""


@dataclass(frozen=True)
class TrainConfig:
    """How a network is trained; the defaults are those of the search's pre-training."""

    epochs: int = 45
    """Passes over the images."""
    batch: int = 128
    """Images per step; a last batch of less than half of it is left out of the epoch."""
    lr: float = 0.1
    """Highest learning rate; a cosine takes it to 0."""
    warmup_epochs: float = 0.0
    """Epochs in which the learning rate rises from 0 in a line."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Nesterov's form of momentum."""
    weight_decay: float = 5e-4
    """Weight decay, added to the gradient."""
    decay_norm: bool = False
    """Whether normalisation weights and biases decay too."""
    clip: float = 5.0
    """Longest gradient, over all weights; 0 for no limit."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    seed: int = 0
    """Decides order, augmentation and dropout."""
    precision: str = "float32"
    """float32, or bfloat16 for the forward pass (autocast); weights stay as they are."""
    channels_last: bool = False
    """Whether images and weights keep channels innermost, which convolutions on CUDA prefer."""
    compile: bool = False
    """Whether the network is compiled, which takes a while and pays in long trainings."""

    def __post_init__(self) -> None:
        """Refuse values without meaning."""
        limits = {"batch": (1, math.inf), "warmup_epochs": (0, self.epochs)}
        limits |= dict.fromkeys(("momentum", "label_smoothing"), (0, 1))
        limits |= dict.fromkeys(("epochs", "lr", "weight_decay", "clip"), (0, math.inf))
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not (low <= value <= high and math.isfinite(value)):
                raise ValueError(f"{name} should be in {low}..{high}, got {value}")
        if self.warmup_epochs and self.warmup_epochs == self.epochs:
            raise ValueError(f"warmup_epochs leaves nothing of the {self.epochs} epochs")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        if self.precision not in PRECISIONS:
            choices = " or ".join(PRECISIONS)
            raise ValueError(f"precision should be {choices}, got {self.precision!r}")


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


@dataclass(frozen=True)
class Metrics:
    """How a network does on a set of images."""

    loss: float
    """Mean cross entropy."""
    accuracy: float
    """Share of the images classified right."""
    count: int


def learning_rate(config: TrainConfig, progress: float) -> float:
    """The learning rate after `progress` epochs: up in a line, then down a half cosine."""
    if progress < config.warmup_epochs:
        return config.lr * progress / config.warmup_epochs
    share = (progress - config.warmup_epochs) / (config.epochs - config.warmup_epochs)
    return config.lr * 0.5 * (1 + math.cos(math.pi * share))


def evaluate(model: nn.Module, images: Tensor, labels: Tensor, *, batch: int = 512) -> Metrics:
    """Loss and accuracy on uint8 `images` in eval mode, on the model's device.

    The model's modules get their modes back.
    """
    _check_data(images, labels)
    if batch < 1:
        raise ValueError(f"batch should be at least 1, got {batch}")
    device = next((tensor.device for tensor in model.state_dict().values()), images.device)
    with _eval_mode(model), torch.no_grad():
        _check_outputs(model, images[:1].to(device), labels)
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        for first in range(0, len(images), batch):
            part = slice(first, first + batch)
            logits, truth = model(images[part].to(device)).float(), labels[part].to(device)
            loss = F.cross_entropy(logits, truth, reduction="sum")
            sums += torch.stack([loss.double(), (logits.argmax(1) == truth).sum()])
    loss_sum, right = sums.tolist()
    return Metrics(loss_sum / len(images), right / len(images), len(images))


class Training:
    """The training of one network: iterating does the epochs left and yields a record of each.

    The network is trained in place. All randomness is a function of the seed and the epoch, so
    `state()` needs no generator state, and on a CPU a resumed training equals an uninterrupted one
    bit for bit, for one number of threads.
    """

    before_step: Callable[[], None] = staticmethod(lambda: None)
    """Called before each step; what it raises leaves the epoch, which is then lost."""

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        policy: Policy | None,
        config: TrainConfig,
        device: torch.device | str = "cpu",
    ) -> None:
        """Move the model and the images to `device` and check that they fit.

        Args:
            images: uint8 (N, C, H, W), kept on the device.
            labels: int64 (N,).
            policy: Draws an augmentation for each image and epoch; None for none.
        """
        _check_data(images, labels)
        self.config, self.policy, self.device = config, policy, torch.device(device)
        self.model = unwrapped(model).to(self.device)
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self.images, self.labels = images.to(self.device), labels.to(self.device)
        with _eval_mode(self.model), torch.no_grad():
            _check_outputs(self.model, self.images[:1], labels)
        self._network = torch.compile(self.model, dynamic=False) if config.compile else self.model
        self._optimizer = _sgd(self.model, config)
        self.epoch = 0
        """Epochs done."""
        self._whole = True

    def __iter__(self) -> Iterator[EpochRecord]:
        """Train the epochs that are left, yielding between them."""
        while self.epoch < self.config.epochs:
            yield self.train_epoch()

    # One epoch

    def train_epoch(self) -> EpochRecord:
        """Train one epoch."""
        self._require_whole()
        self._whole = False  # until the epoch ends; an exception leaves weights of no epoch
        begin = time.perf_counter()
        self.model.train()
        seed = hash_int(self.config.seed, self.epoch)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.images), generator=generator)
        sizes = batch_sizes(len(order), self.config.batch)
        losses = torch.zeros(len(sizes), device=self.device)
        norms = torch.zeros(len(sizes), device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        with _own_randomness(self.device, hash_int(seed, 0)):
            for step, (images, labels) in enumerate(self._batches(order, sizes)):
                rate = learning_rate(self.config, self.epoch + (step + 0.5) / len(sizes))
                losses[step], norms[step], hits = self._step(images, labels, rate)
                right += hits
                if (step + 1) % CHECK_STEPS == 0:
                    self._check_finite(losses, norms)
        self._check_finite(losses, norms)
        count = sum(sizes)
        loss = float(losses.double() @ torch.tensor(sizes, device=self.device).double()) / count
        lr = learning_rate(self.config, self.epoch + 0.5 / len(sizes))
        accuracy, seconds = int(right) / count, time.perf_counter() - begin
        record = EpochRecord(self.epoch, loss, accuracy, lr, seconds, count)
        self.epoch += 1
        self._whole = True
        return record

    def _batches(self, order: Tensor, sizes: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, augmented several at a time."""
        size = self.config.batch
        ahead = size * max(1, AHEAD_BYTES // (size * self.images[0].numel()))  # images in one call
        order = order[: sum(sizes)].to(self.device)
        for first in range(0, len(order), ahead):
            part = order[first : first + ahead]
            images, labels = self.images[part], self.labels[part]
            if self.policy is not None:
                draw = self.policy.draw(sample_keys(self.config.seed, self.epoch, part), self.epoch)
                images = apply_batch(images, draw, self.policy.table)
            for at in range(0, len(part), size):
                yield images[at : at + size], labels[at : at + size]

    def _step(self, images: Tensor, labels: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, gradient norm and number of right answers of one step of SGD."""
        self.before_step()
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        half = self.config.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            logits = self._network(images)
        smoothing = self.config.label_smoothing
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters(), self.config.clip or math.inf)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return loss.detach(), norm, (logits.detach().argmax(1) == labels).sum()

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _check_finite(self, losses: Tensor, norms: Tensor) -> None:
        """Stop at the first step whose loss or gradient is not a number; waits for the device."""
        bad = ~(losses.isfinite() & norms.isfinite())
        if bool(bad.any()):
            step = int(bad.int().argmax())
            raise FloatingPointError(
                f"epoch {self.epoch}, step {step}: loss {float(losses[step])}, gradient norm "
                f"{float(norms[step])}; lower lr ({self.config.lr}) or look at the images"
            )

    # Checkpoints

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed training needs, as copies on the CPU: weights, momentum, epoch."""
        self._require_whole()
        copies = {
            name: t.detach().cpu().contiguous().clone() for name, t in self._tensors().items()
        }
        return {**copies, "epoch": torch.tensor(self.epoch)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`; nothing changes if it does not fit."""
        epoch = int(state["epoch"]) if "epoch" in state else -1
        if not 0 <= epoch <= self.config.epochs:
            raise ValueError(f"state of epoch {epoch}; this training has {self.config.epochs}")
        tensors = self._tensors()
        _check_state(state, tensors)
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(state[name])
        self.epoch, self._whole = epoch, True

    def _tensors(self) -> dict[str, Tensor]:
        """What training changes, by name."""
        weights = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        memory = self._optimizer.state
        momentum = {
            f"momentum.{name}": memory[parameter]["momentum_buffer"]
            for name, parameter in self.model.named_parameters()
            if parameter in memory
        }
        return {**weights, **momentum}

    def _require_whole(self) -> None:
        if not self._whole:
            raise RuntimeError(
                f"epoch {self.epoch} was interrupted: its weights belong to no epoch; load a state"
            )


def batch_sizes(count: int, batch: int) -> list[int]:
    """The sizes of an epoch's batches: whole ones, and a last one of at least half a batch.

    Batch norm over a few images would only add noise; fewer images than a batch are one batch.
    """
    whole, rest = divmod(count, batch)
    return [batch] * whole + [rest] * (rest >= batch / 2 or whole == 0)


def _sgd(model: nn.Module, config: TrainConfig) -> torch.optim.SGD:
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("the model has no weights that can be trained")
    # weights of normalisation and biases are those with one dimension
    free = [p for p in trained if p.ndim <= 1 and not config.decay_norm]
    decayed = [p for p in trained if p.ndim > 1 or config.decay_norm]
    groups = [(decayed, config.weight_decay), (free, 0.0)]
    optimizer = torch.optim.SGD(
        [{"params": part, "weight_decay": decay} for part, decay in groups if part],
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        fused=trained[0].is_cuda,  # one launch for all weights
    )
    if config.momentum:  # zero is what SGD would start from; so every state has the same names
        for parameter in trained:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Dropout and the like draw from `seed`; the global generators come back as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _check_data(images: Tensor, labels: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise TypeError(
            f"images should be uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}"
        )
    if images.numel() == 0:
        raise ValueError(f"there are no images: shape {tuple(images.shape)}")
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels should be int64 ({len(images)},), got {labels.dtype} {tuple(labels.shape)}"
        )


def _check_outputs(model: nn.Module, image: Tensor, labels: Tensor) -> None:
    """Refuse a model that cannot take the images or has too few outputs for the labels."""
    try:
        logits = model(image)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:
        shape = tuple(image.shape[1:])
        raise ValueError(f"the model cannot take images of shape {shape}: {error}") from error
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model should return logits (N, classes), got {got}")
    outside = sorted(set(labels[(labels < 0) | (labels >= logits.shape[1])].tolist()))
    if outside:
        raise ValueError(
            f"labels should be in 0..{logits.shape[1] - 1}, the model's outputs; got "
            f"{', '.join(map(str, outside[:5]))}{', ...' if len(outside) > 5 else ''}"
        )


def _check_state(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    missing = sorted(expected.keys() - state.keys())
    surplus = sorted(state.keys() - expected.keys() - {"epoch"})
    if missing or surplus:
        raise ValueError(f"the state lacks {missing[:3] or 'nothing'}, has {surplus[:3]} too much")
    for name, target in expected.items():
        if state[name].shape != target.shape or state[name].dtype != target.dtype:
            raise ValueError(
                f"the state's {name} is {state[name].dtype} {tuple(state[name].shape)}, expected "
                f"{target.dtype} {tuple(target.shape)}"
            )
