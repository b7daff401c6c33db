"""One step of SGD: forward, loss, backward, clip, update; on CUDA recorded once and replayed.

A small network's step is a thousand short kernels. Started one by one they keep the device waiting;
as one CUDA graph they start together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.sgd import sgd

from deepaa.train.config import TrainConfig

if TYPE_CHECKING:
    from deepaa.train.fused import FusedNetwork

WARM_UP = 3
LOSS, NORM, RIGHT = range(3)
"""Indices into what a step returns."""
TUNED = {"coordinate_descent_tuning": True, "combo_kernels": True}
"""Options with which the compiler tunes its kernels for longer."""
_LOGGER = logging.getLogger(__name__)


class Sgd:
    """SGD by torch's kernels on all weights that can be trained, its momentum starting from zero.

    `torch.optim.SGD` does the same, but loads torch's compiler when it is made: two seconds of
    every start.
    """

    rate: float | Tensor
    """The learning rate; on CUDA a tensor, which a graph can read."""

    def __init__(self, model: nn.Module, config: TrainConfig, device: torch.device) -> None:
        """Nothing is changed before the first step."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("the model has no weights that can be trained")
        # weights of normalisation and biases are those with one dimension
        free = [p for p in trained if p.ndim <= 1 and not config.decay_norm]
        decayed = [p for p in trained if p.ndim > 1 or config.decay_norm]
        groups = [(decayed, config.weight_decay), (free, 0.0)]
        self._groups = [group for group in groups if group[0]]
        self.weights = decayed + free
        self._config = config
        self._one_launch = device.type == "cuda"  # for all weights
        lr = float(config.lr)
        self.rate = torch.tensor(lr, device=device) if self._one_launch else lr
        # zero is what momentum would start from; so every state has the same names
        self.momentum: dict[Tensor, Tensor] = {
            p: torch.zeros_like(p) for p in self.weights if config.momentum
        }

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps, without waiting for the device."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    def zero_grad(self) -> None:
        """Forget the gradients; `Module.zero_grad` walks all modules, twenty times slower."""
        for p in self.weights:
            p.grad = None

    def step(self) -> None:
        """Update all weights that have a gradient."""
        for weights, decay in self._groups:
            moved = [p for p in weights if p.grad is not None]
            gradients = [p.grad for p in moved if p.grad is not None]
            with torch.no_grad():
                sgd(
                    list[Tensor](moved),
                    gradients,
                    [self.momentum[p] for p in moved if p in self.momentum],
                    fused=self._one_launch,
                    weight_decay=decay,
                    momentum=self._config.momentum,
                    lr=self.rate,
                    dampening=0.0,
                    nesterov=self._config.nesterov,
                    maximize=False,
                )


class _Fastest(NamedTuple):
    """A network as it runs fastest, and which images it takes."""

    network: Callable[[Tensor], Any]
    takes: Callable[[Tensor], bool]
    context: Callable[[], AbstractContextManager[None]]
    """What it runs in."""


class Step:
    """A step of SGD on one network, every operation launched by itself."""

    def __init__(
        self, model: nn.Module, config: TrainConfig, device: torch.device, *, shared: bool = False
    ) -> None:
        """Make the optimiser, and the fused kernels where they serve the network.

        Args:
            model: On the device, in the layout of the settings.
            shared: Other processes do the rest of each batch; gradients are added up over all.
        """
        self.model, self.config, self.device, self._shared = model, config, device, shared
        self.optimizer = Sgd(model, config, device)
        self._fused = _fused_network(model, config, device)
        self._fastest: _Fastest | None = None  # the first images decide

    def __call__(self, images: Tensor, labels: Tensor, rate: float, total: int) -> Tensor:
        """(3,) loss, gradient norm and right answers; valid until the next step.

        Args:
            rate: The learning rate.
            total: Images of the batch over all processes; the losses of the processes add up to
                the mean over them.
        """
        self.optimizer.set_rate(rate)
        if self.config.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return self.run(images, labels, total)

    def run(self, images: Tensor, labels: Tensor, total: int) -> Tensor:
        """Do a step at the learning rate that is set; returns as `__call__` does."""
        if self._fastest is None:
            self._fastest = self._choose(images)
        network = self._fastest.network if self._fastest.takes(images) else self.model
        half = self.config.precision == "bfloat16"
        # a cache of casts made outside a graph would be read inside it
        autocast = torch.autocast(
            self.device.type, torch.bfloat16, enabled=half, cache_enabled=False
        )
        with autocast, self._fastest.context():
            logits: Tensor = network(images)
        smoothing = self.config.label_smoothing
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        if len(images) != total:
            loss = loss * (len(images) / total)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self._clip_gradient()
        self.optimizer.step()
        right = (logits.detach().argmax(1) == labels).sum()
        return torch.stack([loss.detach(), norm, right.to(loss.dtype)])

    def _choose(self, images: Tensor) -> _Fastest:
        """The network as it runs fastest on such images: fused, compiled, or as it is."""
        if self._fused is not None and self._fused.takes(images):
            return _Fastest(self._fused, self._fused.takes, nullcontext)
        if self.config.fused:
            shape = tuple(images.shape)
            raise ValueError(
                f"fused: a batch of {shape} is not an even number of images of 32 x 32 pixels; "
                "leave fused unset"
            )
        if not self.config.compile:
            return _Fastest(self.model, lambda _: True, nullcontext)
        # the graph is ours: Inductor's own graphs would copy what we keep in place
        options: Any = {"triton.cudagraphs": False, **(TUNED if self.config.tune else {})}
        network, shape = torch.compile(self.model, dynamic=False, options=options), images.shape
        # compiling again for the odd last batch takes longer than it can save
        convolutions = _hopper_convolutions(self.model, self.config, self.device)
        return _Fastest(network, lambda others: others.shape == shape, convolutions)

    def _clip_gradient(self) -> Tensor:
        """Clip the gradient of all processes; returns its norm before that."""
        parameters = self.optimizer.weights
        if self._shared:
            _all_reduce([p.grad for p in parameters if p.grad is not None])
        if self.config.clip:
            return nn.utils.clip_grad_norm_(parameters, self.config.clip)
        return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


class RecordedStep(Step):
    """A step on CUDA that is recorded at the first batch and replayed for all of its shape.

    The recording leaves no trace: weights, statistics, momentum and generators are put back.
    Hooks in Python run during the recording alone. Batches of another shape take the plain step,
    and so does a network that cannot be recorded, unless the settings ask for a graph.
    """

    _graph: torch.cuda.CUDAGraph | None = None
    _failed = False

    def __call__(self, images: Tensor, labels: Tensor, rate: float, total: int) -> Tensor:
        """See `Step.__call__`."""
        with torch.cuda.device(self.device):
            if self._graph is None and not self._failed:
                self.optimizer.set_rate(rate)
                self._try_to_record(images, labels)
            if self._graph is None or images.shape != self._images.shape:
                return super().__call__(images, labels, rate, total)
            self._images.copy_(images)
            self._labels.copy_(labels)
            self.optimizer.set_rate(rate)
            self._graph.replay()
            return self._outcome

    def _try_to_record(self, images: Tensor, labels: Tensor) -> None:
        try:
            self._record(images, labels)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if self.config.graph:
                raise
            self._failed = True
            _renew_generator(self.device)
            reason = str(error).strip().split("\n")[0]
            _LOGGER.warning("the step cannot be recorded as a CUDA graph (%s): slower", reason)

    def _record(self, images: Tensor, labels: Tensor) -> None:
        last = self.config.channels_last
        layout = torch.channels_last if last else torch.contiguous_format
        self._images = torch.empty_like(images, memory_format=layout).copy_(images)
        self._labels = labels.clone()
        graph = torch.cuda.CUDAGraph()
        # a stream of its own: libraries keep one workspace per stream, and graphs may run together
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        arguments = self._images, self._labels, len(images)
        with _restored(self):
            stream.wait_stream(torch.cuda.current_stream())  # for the copies that are put back too
            try:
                with torch.cuda.stream(stream):  # compiles, and has libraries choose algorithms
                    for _ in range(WARM_UP):
                        self.run(*arguments)
            finally:  # steps before an error may still be writing what is put back
                torch.cuda.current_stream().wait_stream(stream)
            self.optimizer.zero_grad()  # the graph owns its gradients
            current = torch.cuda.current_stream()
            try:
                with torch.cuda.graph(graph, stream=stream):
                    self._outcome = self.run(*arguments)
            finally:
                torch.cuda.set_stream(current)  # torch 2.11 stays on the other one after an error
        self._graph = graph


def _fused_network(
    model: nn.Module, config: TrainConfig, device: torch.device
) -> FusedNetwork | None:
    """The fused steps of a network, where the settings and the device allow them."""
    possible = config.precision == "bfloat16" and config.channels_last and device.type == "cuda"
    found = None
    if possible and config.fused is not False:
        from deepaa.train.fused import fused_network  # what only CUDA needs

        found = fused_network(model, device)
    if config.fused and found is None:
        raise ValueError(
            "fused: only wide residual networks of width 2 without changes, in bfloat16 and "
            "channels last, on a Hopper GPU or a newer one; leave fused unset"
        )
    return found


def _hopper_convolutions(
    model: nn.Module, config: TrainConfig, device: torch.device
) -> Callable[[], AbstractContextManager[None]]:
    """A context in which convolutions of few channels use the kernels of `hopper_conv`.

    Only where that was measured: in compiled networks with channels innermost.
    """
    asked = config.compile and config.channels_last and config.precision == "bfloat16"
    if asked and device.type == "cuda":
        try:
            from deepaa.train import hopper_conv  # needs Triton, which torch brings for CUDA
        except ImportError as error:
            _LOGGER.warning("cuDNN serves convolutions of few channels: %s", error)
        else:
            if hopper_conv.works(device):
                return partial(hopper_conv.narrowed, hopper_conv.convolutions(model))
    return nullcontext


def make_step(
    model: nn.Module, config: TrainConfig, device: torch.device, *, shared: bool = False
) -> Step:
    """The step that the settings ask for on this device."""
    possible = device.type == "cuda" and not shared
    if config.graph and not possible:
        reason = "several processes share a batch" if shared else f"the device is {device.type}"
        raise ValueError(f"graph: a step cannot be recorded where {reason}; leave graph unset")
    wanted = possible if config.graph is None else config.graph
    return (RecordedStep if wanted else Step)(model, config, device, shared=shared)


def _all_reduce(gradients: list[Tensor]) -> None:
    """Replace each gradient by its sum over all processes, in one exchange."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])  # type: ignore[no-untyped-call]
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view(gradient.shape))


# What a recording must not change


@contextmanager
def _restored(step: Step) -> Iterator[None]:
    """Restore weights, statistics, momentum and generators when the context ends.

    Meanwhile cuDNN times its algorithms for a compiled network, which pays in long trainings.
    """
    model, momentum = step.model, step.optimizer.momentum.values()
    places = [t.detach() for t in (*model.parameters(), *model.buffers(), *momentum)]
    kept = [place.clone() for place in places]
    generator = torch.cuda.get_rng_state(step.device)
    cpu, benchmark = torch.get_rng_state(), torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = step.config.compile or benchmark
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        for place, value in zip(places, kept, strict=True):
            place.copy_(value)
        torch.cuda.set_rng_state(generator, step.device)
        torch.set_rng_state(cpu)


# Randomness


def _renew_generator(device: torch.device) -> None:
    """Replace the state of the generator, which a failed capture leaves marked as capturing."""
    index = torch.cuda.current_device() if device.index is None else device.index
    current = torch.cuda.default_generators[index]
    fresh = torch.Generator(device)
    fresh.set_state(current.get_state())
    current.graphsafe_set_state(fresh)


class Randomness:
    """The random generators of one training, which dropout and the like use in place of the global.

    A graph of CUDA keeps the generator state it was recorded with, so trainings that take turns
    need one each.
    """

    def __init__(self, device: torch.device) -> None:
        """Make generators that are not seeded yet."""
        self._cpu = torch.Generator()
        self._global: torch.Generator | None = None
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            index = torch.cuda.current_device() if device.index is None else device.index
            self._global = torch.cuda.default_generators[index]
            self._cuda = self._global.clone_state()

    def seed(self, seed: int) -> None:
        """Seed the generators."""
        self._cpu.manual_seed(seed)
        if self._global is not None:
            self._cuda.manual_seed(seed)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw from these generators in the context; the global ones come back as they were."""
        cpu = torch.get_rng_state()
        torch.set_rng_state(self._cpu.get_state())
        cuda = None
        if self._global is not None:
            cuda = self._global.graphsafe_get_state()
            self._global.graphsafe_set_state(self._cuda)
        try:
            yield
        finally:
            self._cpu.set_state(torch.get_rng_state())
            torch.set_rng_state(cpu)
            if self._global is not None and cuda is not None:
                self._cuda = self._global.graphsafe_get_state()  # it may have been renewed
                self._global.graphsafe_set_state(cuda)
