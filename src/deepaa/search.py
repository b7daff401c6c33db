"""The search: a layer on top of the layers before it, until one changes nothing.

Every step scores all transformations on a few images (`rewards.py`) and moves the layer's logits
with Adam along the mean minus a multiple of the standard deviation over images (`ascent.py`).
Random numbers come from (seed, layer, step), never from a generator's state, so a search that was
stopped goes on as if nothing had happened.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.ascent import Ascent
from deepaa.keys import hash_int
from deepaa.layer_end import Measured, described, leader_of, measured, only, simplest
from deepaa.model_checks import check_forward_mode, check_model, dual_steps, problem_in
from deepaa.ops.plan import to_device
from deepaa.pairs import Chosen, Pools, SearchData
from deepaa.policy import Layers, Policy
from deepaa.prepared import prepared
from deepaa.rewards import Rewards, Sampling, layer_scene, policy_scene, rewards_of
from deepaa.scorer import Scorer
from deepaa.search_config import SearchConfig, precision_on
from deepaa.search_records import LayerRecord, StepRecord
from deepaa.space import Operation, Space

log = logging.getLogger(__name__)

GROUP_BYTES, MAX_GROUP = 256 << 20, 16
"""Images of a step that are augmented and looked at together: bytes of all their versions, and
their number."""
TRAVEL = 2.4
"""Identity ends a layer when Adam could have moved a logit this many times `identity_logit`,"""
IDENTITY_HOLDS = 0.99
"""and with more than this: what has risen to a hundredth from far below is on its way up."""

__all__ = ["LayerRecord", "Search", "SearchConfig", "SearchData", "StepRecord"]


class Search:
    """A resumable search: iterate to run it; each step and each finished layer gives a record."""

    before_image: Callable[[], None] = staticmethod(lambda: None)
    """Called before each image, or before some at once on CUDA; what it raises leaves the step,
    which is then lost."""

    def __init__(
        self, model: nn.Module, data: SearchData, space: Space, config: SearchConfig
    ) -> None:
        """Check the model and the data; `model` is a frozen copy in eval mode on its device."""
        self.data, self.config, self.space = data, config, space
        self.table = space.table
        if self.table.identity is None:
            raise ValueError("the space needs the identity operation, from which layers start")
        self.device = next(model.parameters()).device
        self.precision = precision_on(self.device, config.precision)
        self.compiled = self.device.type == "cuda" if config.compile is None else config.compile
        self.chunk = config.chunk
        self.group = min(MAX_GROUP, max(1, GROUP_BYTES // self._bytes_per_image()))
        self._pools = Pools(
            data,
            validation=config.validation,
            heldout=config.heldout,
            same_class=config.same_class,
            seed=config.seed,
        )
        few = slice(0, min(16, len(data.images)))
        images, labels = data.images[few].to(self.device), data.labels[few].to(self.device)
        check_model(model, images, labels, largest=int(data.labels.max()))
        self.model = model = prepared(model, images, labels)
        if self.precision == "bfloat16" and (problem := problem_in(model, images, labels)):
            if config.precision != "auto":
                raise ValueError(f"the model does not run in bfloat16: {problem}")
            log.warning("the model does not run in bfloat16, float32 serves: %s", problem)
            self.precision = "float32"
        how = self._sampling()
        steps = dual_steps(model, images, labels) if how.dual else None
        if steps is None:
            check_forward_mode(model, images, labels)
        self._scorer = Scorer(model, how, steps)
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
        return self.ascent.probabilities

    @property
    def prefix(self) -> Policy:
        """The layers kept so far."""
        return Policy(self.table, Layers(self.found))

    @property
    def policy(self) -> Policy:
        """The kept layers, symmetric if the settings ask for it."""
        policy = self.prefix
        return policy.symmetric() if self.config.symmetric else policy

    @property
    def dropped_identity(self) -> float | None:
        """Identity's share of the layer that ended the search, if one was dropped."""
        dropped = self.done and self.layer > len(self.found)
        return self._ended()[self.table.identity or 0].item() if dropped else None

    # Running

    def __iter__(self) -> Iterator[StepRecord | LayerRecord]:
        """Records until the search is done; stop and go on at any time."""
        while not self.done:
            if self.step < self.config.steps and not self.converged:
                yield self._run_step()
            else:
                yield self._finish_layer()

    def _start_layer(self) -> None:
        self.ascent = Ascent(self.table, self.config, self.layer)
        self._prefix = self.prefix

    def _sampling(self) -> Sampling:
        c = self.config
        return Sampling(
            prefixes=c.prefixes,
            chains=c.chains,
            stratified=c.stratified,
            halves=c.halves,
            normalise_target=c.normalise_target,
            chunk=self.chunk,
            dtype=torch.bfloat16 if self.precision == "bfloat16" else None,
            compiled=self.compiled,
            dual=self.compiled or self.device.type == "cpu",
        )

    def _bytes_per_image(self) -> int:
        """What one image of a step takes before the network."""
        c = self.config
        seen = c.validation + c.prefixes * len(self.table) + (c.chains or 0)
        return seen * self.data.images[0].numel()

    def _run_step(self) -> StepRecord:
        began = time.perf_counter()
        seed = hash_int(hash_int(self.config.seed, self.layer), self.step)
        chosen = self._pools.choose(seed, self.config.images)
        self.ascent.put_aside(self.step)
        rows = len(self.ascent.active)
        width = 2 + len(Rewards._fields) * rows
        gathered = self._over_groups(partial(self._rewards, seed), chosen, width)
        usable = torch.isfinite(gathered).all(1)
        self.skipped += int((~usable).sum())
        self.passes += int(gathered[:, 1].nan_to_num().sum())
        gathered = gathered[usable]
        if len(gathered) == 0:
            raise FloatingPointError(f"layer {self.layer}, step {self.step}: no reward is finite")
        self.ascent.climb(Rewards(*torch.split(gathered[:, 2:], rows, 1)), self.step)
        self.step += 1
        return self._record(gathered[:, 0].mean().item(), time.perf_counter() - began)

    def _rewards(self, seed: int, chosen: Chosen, numbers: list[int]) -> Tensor:
        """(G, 2 + 4 T): cosine, image passes and rewards of some images of a step."""
        pairs = self._pools.fetch(chosen.part(numbers), self.device)
        seeds = [hash_int(seed, 1 + number) for number in numbers]
        how, rows = self._sampling(), self.ascent.active
        scene = layer_scene(pairs, self._prefix, self.probabilities, how, seeds, rows)
        cosines, slopes = self._scorer(scene, self.before_image)
        head = torch.stack((cosines, torch.full_like(cosines, scene.passes)), 1)
        p = to_device(self.probabilities[rows], self.device)
        return torch.cat((head, *rewards_of(slopes, p)), 1)

    def _over_groups(
        self, work: Callable[[Chosen, list[int]], Tensor], chosen: Chosen, width: int
    ) -> Tensor:
        """(n, width) rows that `work` gives, of all processes; groups as large as memory allows."""
        n = len(chosen.images)
        mine = list(distributed.share(n, distributed.rank(), distributed.world_size()))
        rows, at = [torch.zeros(0, width, dtype=torch.float64, device=self.device)], 0
        while at < len(mine):
            size = _even_part(len(mine), self.group)
            found = self._with_memory(partial(work, chosen, mine[at : at + size]))
            if found is not None:
                rows.append(found)
                at += size
        # the device is waited for here, once a step
        return distributed.all_gather_rows(torch.cat(rows).cpu(), n)

    @property
    def converged(self) -> bool:
        """Whether one operation has held the layer for long enough."""
        holder = self._holder()
        if holder is None:
            return False
        c = self.config
        if holder.name == "identity":  # what starts below it needs time to rise
            moved = self.step * c.learning_rate >= TRAVEL * c.identity_logit
            return moved and float(self.probabilities[self.table.identity or 0]) > IDENTITY_HOLDS
        return self.step >= c.steps / 4

    def _holder(self) -> Operation | None:
        """The operation that has all of the layer but what fades; none ever holds the first."""
        if self.layer == 1 or self.config.converged >= 1:
            return None
        return leader_of(self.table, self.probabilities, self.config.converged)

    def _record(self, similarity: float, seconds: float) -> StepRecord:
        identity, perplexity, top = described(self.table, self.probabilities)
        return StepRecord(
            self.layer,
            self.step,
            similarity,
            identity,
            perplexity,
            top,
            self.passes,
            self.skipped,
            seconds,
        )

    def _with_memory(self, work: Callable[[], Tensor]) -> Tensor | None:
        """`work()`; None after a change that may help: smaller groups and chunks, not compiled."""
        try:
            return work()
        except torch.OutOfMemoryError:
            if self.chunk == 1:
                raise
            largest = max(self.config.validation, self.config.chains, len(self.table))
            self.chunk = max(1, min(self.chunk, self.config.prefixes * largest) // 2)
            self.group = max(1, self.group // 2)
        except torch._dynamo.exc.TorchDynamoException as error:
            if not self.compiled or self.config.compile:
                raise
            first = str(error).strip().splitlines()[0]
            log.warning("the model cannot be compiled, it runs as it is: %s", first)
            self.compiled = False
        # outside the except clause, so that the failed tensors are free
        self._scorer = Scorer(self.model, self._sampling(), self._scorer.steps)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    # Layers

    def _finish_layer(self) -> LayerRecord:
        """Measure the layer on held-out images, keep or drop it, and start the next."""
        began = time.perf_counter()
        if self._baseline is None or self._previous is None:
            self._baseline = self._previous = self._heldout_cosines(Policy.identity(self.space, 0))
        deepta = self._heldout_cosines(Policy.trivial(self.space, self.layer))
        finite = torch.isfinite(deepta + self._baseline)
        found = self._measured(self._ended(), finite)
        if not bool(found.usable.any()):
            raise FloatingPointError(f"layer {self.layer}: no held-out image has a finite gradient")
        layer, simpler = self._simplest(found)
        self.skipped += int((~layer.usable).sum())
        if layer.kept:
            self.found = torch.cat((self.found, layer.p[None]))
            self._previous = layer.cosines
        improvement = (layer.cosines - self._baseline)[layer.usable]
        theirs = (deepta - self._baseline)[layer.usable]
        record = LayerRecord(
            self.layer,
            layer.kept,
            layer.reason + simpler,
            layer.gain,
            layer.error,
            improvement.mean().item(),
            improvement.std().item() if len(improvement) > 1 else 0.0,
            theirs.mean().item(),
            theirs.std().item() if len(theirs) > 1 else 0.0,
            self.passes,
            time.perf_counter() - began,
            torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else None,
            *described(self.table, found.p),
        )
        last = self.config.layers or self.config.max_layers
        self.done = not layer.kept or self.layer >= last
        if not self.done:
            self.layer, self.step = self.layer + 1, 0
            self._start_layer()
        return record

    def _ended(self) -> Tensor:
        """(T,) the layer in work, as it would be measured now.

        The mean over its last steps; if one operation holds it, what that one has reached.
        """
        p = self.probabilities if self.converged else self.ascent.settled
        return p / p.sum()

    def _measured(self, p: Tensor, usable: Tensor) -> Measured:
        """The layer (T,) on top of those kept so far, on the images (heldout,) that are usable."""
        assert self._previous is not None
        layers = Layers(torch.cat((self.found, p[None])))
        return measured(
            p,
            self._heldout_cosines(Policy(self.table, layers)),
            self._previous,
            usable,
            identity=p[self.table.identity or 0].item(),
            asked=self.config.layers is not None,
        )

    def _simplest(self, found: Measured) -> tuple[Measured, str]:
        """A later layer with its leading operation alone, if that brings enough; and why.

        A layer that is dropped gets no second chance so: the better of two looks good by chance.
        """
        wanted = found.kept and self.layer > 1 and self.config.simplify > 0
        leader = leader_of(self.table, found.p) if wanted else None
        if leader is None or leader.name == "identity":
            return found, ""
        alone = self._measured(only(self.table, found.p, leader), found.usable)
        return simplest(found, alone, leader.name, self.config.simplify)

    def _heldout_cosines(self, policy: Policy) -> Tensor:
        """(heldout,) cosines under a policy; the same images, batches and keys every time."""
        chosen = self._pools.heldout_pairs()
        n = self.config.chains or len(self.table)
        if not policy.depth and not self._scorer.how.compiled:
            n = 1  # compiled code prefers the shape it knows to fewer images
        cosines = self._over_groups(partial(self._cosines, policy, n), chosen, 1)[:, 0]
        self.passes += len(cosines) * (self.config.validation + n)
        return cosines

    def _cosines(self, policy: Policy, n: int, chosen: Chosen, numbers: list[int]) -> Tensor:
        pairs = self._pools.fetch(chosen.part(numbers), self.device)
        start = hash_int(self.config.seed, 0)
        seeds = [hash_int(start, number) for number in numbers]
        halves = self.config.halves and self.config.chains > 0 and n > 1
        scene = policy_scene(pairs, policy, n, seeds, halves=halves)
        return self._scorer(scene, self.before_image)[0][:, None]

    # Saving

    def state(self) -> dict[str, Tensor]:
        """Everything that a search needs to go on, as tensors."""
        none = torch.zeros(0, dtype=torch.float64)
        counters = [self.layer, self.step, self.passes, self.skipped, int(self.done)]
        return {
            "found": self.found,
            **self.ascent.state(),
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
        self.found = state["found"].clone()
        self.layer, self.step, self.passes, self.skipped, done = state["counters"].tolist()
        self.done = bool(done)
        self._start_layer()
        self.ascent.load_state(state)
        self._baseline = state["baseline"].clone() if len(state["baseline"]) else None
        self._previous = state["previous"].clone() if len(state["previous"]) else None


def _even_part(n: int, most: int) -> int:
    """The size of parts of at most `most` that are as equal as can be."""
    return math.ceil(n / math.ceil(n / most))
