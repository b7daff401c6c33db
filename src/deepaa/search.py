"""The search: a layer on top of the layers before it, until one changes nothing.

Every step scores all transformations on a few images (`rewards.py`), takes the mean minus a
multiple of the standard deviation over the images (Eq. 10), and moves the layer's logits with Adam.
Random numbers come from (seed, layer, step), never from a generator's state, so a search that was
stopped goes on as if nothing had happened.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.gradients import check_model
from deepaa.keys import hash_int
from deepaa.pairs import Pair, Pools, SearchData
from deepaa.policy import Layers, Policy
from deepaa.rewards import Sampling, layer_scene, policy_scene, rewards_of
from deepaa.scorer import Scorer
from deepaa.search_config import PRECISIONS, SearchConfig
from deepaa.space import Space

__all__ = ["LayerRecord", "Search", "SearchConfig", "SearchData", "StepRecord"]


class StepRecord(NamedTuple):
    """One step."""

    layer: int
    step: int
    similarity: float
    identity: float
    perplexity: float
    top: list[tuple[str, float]]
    passes: int
    skipped: int
    seconds: float


class LayerRecord(NamedTuple):
    """A finished layer, measured on held-out images."""

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


class Search:
    """A resumable search: iterate to run it; each step and each finished layer gives a record."""

    before_image: Callable[[], None] = staticmethod(lambda: None)
    """Called before each image; what it raises leaves the step, which is then lost."""

    def __init__(
        self, model: nn.Module, data: SearchData, space: Space, config: SearchConfig
    ) -> None:
        """Check the model and the data; `model` is a frozen copy in eval mode on its device."""
        self.model, self.data, self.config, self.space = model, data, config, space
        self.table = space.table
        if self.table.identity is None:
            raise ValueError("the space needs the identity operation, from which layers start")
        self.device = next(model.parameters()).device
        if self.device.type == "cuda":
            model.to(memory_format=torch.channels_last)
        self.chunk = config.chunk
        self._scorer = Scorer(model, self._sampling())
        self._pools = Pools(
            data,
            validation=config.validation,
            heldout=config.heldout,
            same_class=config.same_class,
            seed=config.seed,
        )
        few = slice(0, min(16, len(data.images)))
        check_model(model, data.images[few].to(self.device), data.labels[few].to(self.device))
        self._twin = _twins(space) if config.tie_signs else torch.arange(len(space))
        self.found = torch.zeros(0, len(space), dtype=torch.float64)
        self.layer, self.step, self.passes, self.skipped = 1, 0, 0, 0
        self.done = False
        self._baseline: Tensor | None = None  # (heldout,) cosines of the original images
        self._previous: Tensor | None = None  # (heldout,) cosines of the layers kept so far
        self._start_layer()

    # What is found

    @property
    def probabilities(self) -> Tensor:
        """(T,) the layer in work."""
        return self.logits.softmax(0)

    @property
    def prefix(self) -> Policy:
        """The layers kept so far."""
        return Policy(self.table, Layers(self.found))

    @property
    def policy(self) -> Policy:
        """The kept layers, symmetric if the settings ask for it."""
        policy = self.prefix
        return policy.symmetric() if self.config.symmetric else policy

    # Running

    def __iter__(self) -> Iterator[StepRecord | LayerRecord]:
        """Records until the search is done; stop and go on at any time."""
        while not self.done:
            if self.step < self.config.steps:
                yield self._run_step()
            else:
                yield self._finish_layer()

    def _start_layer(self) -> None:
        logits = torch.zeros(len(self.table), dtype=torch.float64)
        logits[self.table.identity or 0] = self.config.identity_logit
        self.logits = logits - logits.mean()
        self._momentum = torch.zeros_like(self.logits)
        self._square = torch.zeros_like(self.logits)
        self._prefix = self.prefix

    def _sampling(self) -> Sampling:
        c = self.config
        return Sampling(
            prefixes=c.prefixes,
            chains=c.chains,
            stratified=c.stratified,
            normalise_target=c.normalise_target,
            chunk=self.chunk,
            dtype=PRECISIONS[c.precision],
            compiled=c.compile if c.compile is not None else self.device.type == "cuda",
        )

    def _run_step(self) -> StepRecord:
        began = time.perf_counter()
        seed = hash_int(hash_int(self.config.seed, self.layer), self.step)
        pairs = self._pools.pairs(seed, self.config.images)
        mine = distributed.share(len(pairs), distributed.rank(), distributed.world_size())
        rows = [self._with_memory(partial(self._image_rewards, pairs[i], seed, i)) for i in mine]
        width = len(self.table) + 2
        # the device is waited for here, once a step
        local = torch.stack(rows).cpu() if rows else torch.zeros(0, width, dtype=torch.float64)
        gathered = distributed.all_gather_rows(local, len(pairs))
        usable = torch.isfinite(gathered).all(1)
        self.skipped += int((~usable).sum())
        self.passes += int(gathered[:, 1].nan_to_num().sum())
        gathered = gathered[usable]
        if len(gathered) == 0:
            raise FloatingPointError(f"layer {self.layer}, step {self.step}: no reward is finite")
        self._update(gathered[:, 2:])
        self.step += 1
        return self._record(gathered[:, 0].mean().item(), time.perf_counter() - began)

    def _image_rewards(self, pair: Pair, seed: int, number: int) -> Tensor:
        """(2 + T,): cosine, image passes and rewards of one image."""
        pair = Pair(*(part.to(self.device) for part in pair))
        mine = hash_int(seed, 1 + number)
        scene = layer_scene(pair, self._prefix, self.probabilities, self._sampling(), mine)
        cosine, slopes = self._scorer(scene)
        passes = len(scene.originals) + len(scene.chains) + len(scene.images)
        head = torch.stack((cosine, torch.full_like(cosine, passes)))
        return torch.cat((head, rewards_of(slopes, len(self.table))))

    def _update(self, rewards: Tensor) -> None:
        """Eq. 10, and one step of Adam on the logits."""
        c = self.config
        penalty = c.penalty_first_layer if self.layer == 1 else c.penalty
        rewards = (rewards + rewards[:, self._twin]) / 2
        reward = rewards.mean(0) - penalty * rewards.std(0, correction=0)  # Eq. 10
        p = self.probabilities
        gradient = p * (reward - p @ reward)  # of sum p_n r_n in the logits
        t = self.step + 1
        self._momentum = 0.9 * self._momentum + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * gradient**2
        mean, square = self._momentum / (1 - 0.9**t), self._square / (1 - 0.999**t)
        self.logits = self.logits + c.learning_rate * mean / (square.sqrt() + c.epsilon)

    def _record(self, similarity: float, seconds: float) -> StepRecord:
        p = self.probabilities
        layer = Policy(self.table, Layers(p[None] / p.sum()))
        names = [op.name for op in self.table.operations]
        shares = layer.operation_probabilities()[0].tolist()
        top = sorted(zip(names, shares, strict=True), key=lambda pair: -pair[1])[:3]
        entropy = -(p * p.clamp(min=1e-300).log()).sum().item()
        identity = p[self.table.identity or 0].item()
        return StepRecord(
            self.layer,
            self.step,
            similarity,
            identity,
            math.exp(entropy),
            top,
            self.passes,
            self.skipped,
            seconds,
        )

    def _with_memory(self, work: Callable[[], Tensor]) -> Tensor:
        """`work()`, with smaller chunks where the device runs out of memory."""
        self.before_image()
        while True:
            try:
                return work()
            except torch.OutOfMemoryError:
                if self.chunk == 1:
                    raise
            # outside the except clause, so that the failed tensors are free
            self.chunk = max(1, self.chunk // 2)
            self._scorer = Scorer(self.model, self._sampling())
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    # Layers

    def _finish_layer(self) -> LayerRecord:
        """Measure the layer on held-out images, keep or drop it, and start the next."""
        began = time.perf_counter()
        p = self.probabilities
        grown = torch.cat((self.found, (p / p.sum())[None]))
        if self._baseline is None or self._previous is None:
            self._baseline = self._previous = self._heldout_cosines(Policy.identity(self.space, 0))
        cosines = self._heldout_cosines(Policy(self.table, Layers(grown)))
        deepta = self._heldout_cosines(Policy.trivial(self.space, self.layer)) - self._baseline
        gains, improvement = cosines - self._previous, cosines - self._baseline
        error = gains.std().item() / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        kept, reason = self._verdict(gains.mean().item(), error, p[self.table.identity or 0].item())
        if kept:
            self.found, self._previous = grown, cosines
        record = LayerRecord(
            self.layer,
            kept,
            reason,
            gains.mean().item(),
            error,
            improvement.mean().item(),
            improvement.std().item() if len(gains) > 1 else 0.0,
            deepta.mean().item(),
            deepta.std().item() if len(gains) > 1 else 0.0,
            self.passes,
            time.perf_counter() - began,
        )
        last = self.config.layers or self.config.max_layers
        self.done = not kept or self.layer >= last
        if not self.done:
            self.layer, self.step = self.layer + 1, 0
            self._start_layer()
        return record

    def _verdict(self, gain: float, error: float, identity: float) -> tuple[bool, str]:
        if self.config.layers is not None:
            return True, "asked for"
        if identity > 0.9:
            return False, f"identity has {identity:.2f} of the layer"
        if gain < error:
            return False, f"a gain of {gain:.4f} is below its standard error of {error:.4f}"
        return True, f"a gain of {gain:.4f}, standard error {error:.4f}"

    def _heldout_cosines(self, policy: Policy) -> Tensor:
        """(heldout,) cosines under a policy; the same images, batches and keys every time."""
        pairs = self._pools.heldout_pairs()
        mine = distributed.share(len(pairs), distributed.rank(), distributed.world_size())
        n = self.config.chains or len(self.table)
        values = [
            self._with_memory(partial(self._heldout_cosine, pairs[i], policy, n, i)) for i in mine
        ]
        self.passes += len(pairs) * (self.config.validation + (n if policy.depth else 1))
        local = torch.stack(values).cpu() if values else torch.zeros(0, 1, dtype=torch.float64)
        cosines: Tensor = distributed.all_gather_rows(local, len(pairs))[:, 0]
        return cosines

    def _heldout_cosine(self, pair: Pair, policy: Policy, n: int, number: int) -> Tensor:
        pair = Pair(*(part.to(self.device) for part in pair))
        seed = hash_int(hash_int(self.config.seed, 0), number)
        return self._scorer(policy_scene(pair, policy, n, seed))[0][None]

    # Saving

    def state(self) -> dict[str, Tensor]:
        """Everything that a search needs to go on, as tensors."""
        none = torch.zeros(0, dtype=torch.float64)
        counters = [self.layer, self.step, self.passes, self.skipped, int(self.done)]
        return {
            "found": self.found,
            "logits": self.logits,
            "momentum": self._momentum,
            "square": self._square,
            "counters": torch.tensor(counters),
            "baseline": none if self._baseline is None else self._baseline,
            "previous": none if self._previous is None else self._previous,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from a state."""
        rows = len(self.table)
        if state["logits"].shape != (rows,) or state["found"].shape[1:] != (rows,):
            raise ValueError(
                f"the state has {len(state['logits'])} transformations, the space {rows}"
            )
        self.found, self.logits = state["found"].clone(), state["logits"].clone()
        self._momentum, self._square = state["momentum"].clone(), state["square"].clone()
        self.layer, self.step, self.passes, self.skipped, done = state["counters"].tolist()
        self.done = bool(done)
        self._prefix = self.prefix
        self._baseline = state["baseline"].clone() if len(state["baseline"]) else None
        self._previous = state["previous"].clone() if len(state["previous"]) else None


def _twins(space: Space) -> Tensor:
    """(T,) the row with the opposite sign, or the row itself."""
    index = {row: i for i, row in enumerate(space.table.rows)}
    twins = [index.get(row.mirrored, i) for i, row in enumerate(space.table.rows)]
    return torch.tensor(twins)
