"""The search: one layer on top of those before it, until a layer changes nothing.

Every step rewards all transformations on a few images (`rewards.py`) and moves the layer's logits
with Adam (`layer.py`). Random numbers come from (seed, layer, step), never from a generator's
state, so that a search which was stopped goes on as if nothing had happened.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.ops import Space, hash_int, to_device
from deepaa.policy import Layers, Policy
from deepaa.search.gradient_matching import gradients, layer, rewards
from deepaa.search.gradient_matching.gradients import Derivatives
from deepaa.search.gradient_matching.layer import Gain, LayerOptimizer, Rewards
from deepaa.search.gradient_matching.rewards import GradientMatcher, Indices, Minibatch, SearchData
from deepaa.search.gradient_matching.state import check_state
from deepaa.search.settings import SearchConfig
from deepaa.train import precision_on

log = logging.getLogger(__name__)

GROUP_BYTES, MAX_GROUP = 256 << 20, 16
"""Limits of a group, the images of a step that are augmented and sent through the network together:
the bytes of all their versions, and their number."""
Work = Callable[[Minibatch, list[int]], Tensor]
"""Gives a row for each image of a group; the numbers are those of the images in the step."""


class StepRecord(NamedTuple):
    """The state of a layer after one step."""

    layer: int
    step: int
    similarity: float
    """The mean cosine of v and g over the step's images."""
    identity: float
    """The probability of identity."""
    perplexity: float
    top: list[tuple[str, float]]
    """The leading operations and their shares."""
    passes: int
    """Images through the network since the search began."""
    skipped: int
    """Images that were left out since then because a reward or a cosine was not finite."""
    seconds: float


class LayerRecord(NamedTuple):
    """A finished layer, measured on the pairs of its decision."""

    layer: int
    kept: bool
    reason: str
    gain: float
    gain_error: float
    improvement_mean: float
    improvement_std: float
    deepta_mean: float
    deepta_std: float
    passes: int
    seconds: float
    memory: float | None = None
    """The most GB of GPU memory that were in use so far."""
    identity: float | None = None
    """Of the layer as it was found, before what it repeats for nothing was taken out."""
    perplexity: float | None = None
    top: list[tuple[str, float]] | None = None


class Search:
    """A resumable search: iterate to run it; each step and each finished layer gives a record."""

    before_image: Callable[[], None] = staticmethod(lambda: None)
    """Called before each image, or before each group on CUDA; what it raises leaves the step, which
    is then lost."""
    show: Callable[[str], None] = staticmethod(lambda text: None)
    """Is told what is measured after the steps of a layer, in words for a person."""
    _STATE = ("found", "layer", "passes", "skipped", "done")

    def __init__(
        self, model: nn.Module, data: SearchData, space: Space, config: SearchConfig
    ) -> None:
        """Check the model and the data; `model` is a frozen copy in eval mode on its device."""
        self.data, self.config, self.space, self.table = data, config, space, space.table
        if self.table.identity is None:
            raise ValueError("the space needs the identity operation, from which layers start")
        self.device = next(model.parameters()).device
        versions = config.validation + config.prefixes * len(self.table) + config.chains
        most = GROUP_BYTES // (versions * data.images[0].numel())
        self.chunk, self.group = config.chunk, min(MAX_GROUP, max(1, most))
        self._sampler = rewards.MinibatchSampler(data, config)
        self._prepare_model(model)
        self.found = torch.zeros(0, len(space), dtype=torch.float64)
        self.layer, self.passes, self.skipped, self.done = 1, 0, 0, False
        self._start_layer()

    def _prepare_model(self, model: nn.Module) -> None:
        """Check the model, lay it out for its device, and choose how it is differentiated."""
        c = self.config
        images, labels = (part[:16].to(self.device) for part in self.data[:2])
        gradients.check_model(model, images, labels, largest=int(self.data.labels.max()))
        self.model = gradients.optimized_copy(model, images, labels)
        self.precision = precision_on(self.device, c.precision)
        if self.precision == "bfloat16":
            try:
                Derivatives(self.model, dtype=torch.bfloat16).losses(images, labels)
            except (RuntimeError, TypeError) as error:
                problem = f"the model does not run in bfloat16: {gradients.first_line(error)}"
                if c.precision != "auto":
                    raise ValueError(problem) from error
                log.warning("%s; float32 serves", problem)
                self.precision = "float32"
        self.compiled = self.device.type == "cuda" if c.compile is None else c.compile
        self._nodes = None
        if self.compiled or self.device.type == "cpu":
            self._nodes = gradients.checked_trace(self.model, images, labels)
        if self._nodes is None:
            gradients.check_forward_mode(self.model, images, labels)
        self._matcher = self._new_matcher()

    def _new_matcher(self) -> GradientMatcher:
        derivatives = Derivatives(
            self.model,
            dtype=torch.bfloat16 if self.precision == "bfloat16" else None,
            compiled=self.compiled,
            nodes=self._nodes,
            chunk=self.chunk,
        )
        return GradientMatcher(derivatives, normalise=self.config.normalise_target)

    # What is found

    @property
    def prefix(self) -> Policy:
        """The layers kept so far."""
        return Policy(self.table, Layers(self.found))

    @property
    def policy(self) -> Policy:
        """The kept layers, symmetric if the settings ask for it."""
        return self.prefix.symmetric() if self.config.symmetric else self.prefix

    # Steps

    def __iter__(self) -> Iterator[StepRecord | LayerRecord]:
        """Records until the search is done; stop and go on at any time."""
        while not self.done:
            if self.optimizer.step < self.config.steps and not self.optimizer.converged:
                yield self._run_step()
            else:
                yield self._finish_layer()

    def _start_layer(self) -> None:
        self.optimizer = LayerOptimizer(self.table, self.config, self.layer)
        self._prefix = self.prefix

    def _run_step(self) -> StepRecord:
        began, c, optimizer = time.perf_counter(), self.config, self.optimizer
        optimizer.drop_unlikely_rows()
        p, rows = optimizer.probabilities, optimizer.active
        seed = hash_int(hash_int(c.seed, self.layer), optimizer.step)

        def work(minibatch: Minibatch, numbers: list[int]) -> Tensor:
            """(G, 2 + 4 R): cosine, image passes and rewards of some images of the step."""
            seeds = [hash_int(seed, 1 + number) for number in numbers]
            inputs = rewards.layer_inputs(minibatch, self._prefix, p, c, seeds, rows)
            cosines, products = self._matcher(inputs, self.before_image)
            head = torch.stack((cosines, torch.full_like(cosines, inputs.passes)), 1)
            return torch.cat((head, *Rewards.of(products, to_device(p[rows], self.device))), 1)

        width = 2 + len(Rewards._fields) * len(rows)
        gathered = self._over_groups(work, self._sampler.draw(seed, c.images), width)
        usable = torch.isfinite(gathered).all(1)
        self.skipped += int((~usable).sum())
        self.passes += int(gathered[:, 1].nan_to_num().sum())
        gathered = gathered[usable]
        if len(gathered) == 0:
            place = f"layer {self.layer}, step {optimizer.step}"
            raise FloatingPointError(f"{place}: no reward is finite")
        optimizer.update(Rewards(*torch.split(gathered[:, 2:], len(rows), 1)))
        return StepRecord(
            layer=self.layer,
            step=optimizer.step,
            similarity=gathered[:, 0].mean().item(),
            **layer.summarize(self.table, optimizer.probabilities),
            passes=self.passes,
            skipped=self.skipped,
            seconds=time.perf_counter() - began,
        )

    def _over_groups(self, work: Work, indices: Indices, width: int) -> Tensor:
        """(n, width) rows that `work` gives, of all processes; groups as large as memory allows."""
        n = len(indices[0])
        mine = list(distributed.share(n, distributed.rank(), distributed.world_size()))
        rows, at = [torch.zeros(0, width, dtype=torch.float64, device=self.device)], 0
        while at < len(mine):
            groups = math.ceil(len(mine) / self.group)
            size = math.ceil(len(mine) / groups)  # as equal as can be
            found = self._attempt(work, indices, mine[at : at + size])
            if found is not None:
                rows.append(found)
                at += size
        # the device is waited for here, once a step
        return torch.cat(distributed.all_gather(torch.cat(rows).cpu()))

    def _attempt(self, work: Work, indices: Indices, numbers: list[int]) -> Tensor | None:
        """What `work` gives; None after a change that may help: smaller groups, not compiled."""
        try:
            return work(self._sampler.fetch(indices, numbers, self.device), numbers)
        except torch.OutOfMemoryError:
            if self.chunk == 1:
                raise
            largest = max(self.config.validation, self.config.chains, len(self.table))
            self.chunk = max(1, min(self.chunk, self.config.prefixes * largest) // 2)
            self.group = max(1, self.group // 2)
        except torch._dynamo.exc.TorchDynamoException as error:
            if not self.compiled or self.config.compile:
                raise
            log.warning("the model runs uncompiled: %s", gradients.first_line(error))
            self.compiled = False
        # outside the except clause, so that the failed tensors are free
        self._matcher = self._new_matcher()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    # Layers

    def _finish_layer(self) -> LayerRecord:
        """Decide on pairs that decided nothing before whether the layer is kept; start the next."""
        began, c, found = time.perf_counter(), self.config, self.optimizer.probabilities
        p, repeats = self._without_repeats(found)
        decision, whole = self.layer - 1, torch.cat((self.found, p[None]))
        measure = self._heldout_cosines
        cosines = measure(Policy(self.table, Layers(whole)), decision, "the layers")
        deepta = measure(Policy.trivial(self.space, self.layer), decision, "DeepTA")
        none = before = measure(Policy.identity(self.space, 0), decision, "no augmentation")
        if len(self.found):
            before = measure(self.prefix, decision, "the layers before")
        usable = torch.isfinite(cosines + deepta + none + before)
        if not bool(usable.any()):
            raise FloatingPointError(f"layer {self.layer}: no held-out image has a finite gradient")
        self.skipped += int((~usable).sum())
        gain = Gain.of((cosines - before)[usable])
        is_kept, reason = layer.is_kept(
            gain,
            identity=p[self.table.identity or 0].item(),
            errors=c.keep_errors,
            fixed=c.layers is not None,
        )
        improvement, improvement_std = _mean_and_std((cosines - none)[usable])
        deepta_mean, deepta_std = _mean_and_std((deepta - none)[usable])
        record = LayerRecord(
            layer=self.layer,
            kept=is_kept,
            reason=reason + repeats,
            gain=gain.mean,
            gain_error=gain.error,
            improvement_mean=improvement,
            improvement_std=improvement_std,
            deepta_mean=deepta_mean,
            deepta_std=deepta_std,
            passes=self.passes,
            seconds=time.perf_counter() - began,
            memory=torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else None,
            **layer.summarize(self.table, found),
        )
        self.found = whole if is_kept else self.found
        self.done = not is_kept or self.layer >= (c.layers or c.max_layers)
        if not self.done:
            self.layer += 1
            self._start_layer()
        return record

    def _without_repeats(self, p: Tensor) -> tuple[Tensor, str]:
        """The layer (T,) without operations that it repeats for nothing; and why.

        Decided before it is known whether either form is kept, so that none gets a second chance.
        Where nothing else is in the layer, that it is kept says the same.
        """
        c, identity = self.config, self.table.identity or 0
        repeated = layer.repeated_operations(self.table, p, self.found) if c.repeat_errors else []
        rest = layer.without(self.table, p, repeated)
        if not repeated or float(rest[identity]) > layer.IDENTITY_LIMIT:
            return p, ""
        decision = (c.layers or c.max_layers) + self.layer - 2
        forms = (Layers(torch.cat((self.found, q[None]))) for q in (p, rest))
        again, once = (
            self._heldout_cosines(Policy(self.table, form), decision, "what it repeats")
            for form in forms
        )
        gain = Gain.of((again - once)[torch.isfinite(again + once)])
        reason = f"; {' and '.join(op.name for op in repeated)} again: a gain of {gain}"
        is_worth = gain.is_above(c.repeat_errors)
        return (p, reason) if is_worth else (rest, f"{reason}, is not enough")

    def _heldout_cosines(self, policy: Policy, decision: int, what: str) -> Tensor:
        """(pairs,) cosines under a policy; the same images, batches and keys for one decision.

        `what` names the policy to a person who waits.
        """
        c, start = self.config, hash_int(hash_int(self.config.seed, 0), decision)
        # compiled code prefers the shape it knows to fewer images
        n = (c.chains or len(self.table)) if policy.depth or self.compiled else 1

        def work(minibatch: Minibatch, numbers: list[int]) -> Tensor:
            done = f"{numbers[0]} of {len(indices[0])} images"
            self.show(f"layer {self.layer}: measuring held-out similarity  {what}: {done}")
            seeds = [hash_int(start, number) for number in numbers]
            halves = c.halves and c.chains > 0 and n > 1
            inputs = rewards.policy_inputs(minibatch, policy, n, seeds, halves=halves)
            return self._matcher(inputs, self.before_image)[0][:, None]

        indices = self._sampler.draw_heldout(decision)
        cosines = self._over_groups(work, indices, 1)[:, 0]
        self.passes += len(cosines) * (c.validation + n)
        return cosines

    # Saving

    def state(self) -> dict[str, Tensor]:
        """Everything that a search needs to go on, as tensors."""
        own = {name: torch.as_tensor(getattr(self, name)) for name in self._STATE}
        return {**own, **self.optimizer.state()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from a state."""
        check_state(state, self.state(), len(self.table))
        for name in self._STATE:
            setattr(self, name, state[name].clone() if state[name].ndim else state[name].item())
        self._start_layer()
        self.optimizer.load_state(state)


def _mean_and_std(values: Tensor) -> tuple[float, float]:
    return values.mean().item(), values.std().item() if len(values) > 1 else 0.0
