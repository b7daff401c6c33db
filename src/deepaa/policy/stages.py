"""The two kinds of stages that a policy is made of: layers and chains over a table of rows."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepaa.ops import BITS, Operation, Row, choice_word, gate_word

Chain = Sequence[tuple[Row, float]]
"""The rows of a chain's slots, and their gates."""
Slots = Sequence[tuple[int, float]]
"""The same with rows by their place in a table."""
Numbers = Sequence[Any]
"""A stage's `constants`, as tensors on a device or as lists."""
IDENTITY = Row(Operation("identity"), None)
SUM_TOLERANCE = 1e-6
MAX_SIGNS = 4096
"""Combinations of signs that `symmetric` spells out for one chain."""
MAX_SIGNED = 500_000
"""Slots of all of them together."""


def _float64(values: Any) -> Tensor:
    """A copy of `values` of its own."""
    found = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    return found.clone(memory_format=torch.contiguous_format)


def _check_probabilities(values: Tensor, what: str) -> None:
    if not bool(values.isfinite().all()):
        raise ValueError(f"{what} holds a value that is not finite")
    if bool((values < 0).any()):
        raise ValueError(f"{what} holds a negative probability, {float(values.min()):g}")


def check_sum(numbers: Sequence[float], what: str) -> None:
    """Raise unless the probabilities sum to 1; the error begins with `what`."""
    if abs((total := math.fsum(numbers)) - 1) > SUM_TOLERANCE:
        raise ValueError(f"{what} to {total:.6f}, expected 1")


def thresholds(probabilities: Tensor) -> Tensor:
    """The cumulative probabilities as 53-bit integers: row i is chosen if t_(i-1) <= word < t_i.

    The sum runs left to right in float64, so that another language can reproduce it.
    """
    sums = np.cumsum(probabilities.numpy(), axis=-1)
    sums = sums / sums[..., -1:]
    steps = np.floor(sums * 2.0**BITS).astype(np.int64)
    # everything from the last possible row on is certain, so that no word falls beyond it
    steps[sums >= 1.0] = 1 << BITS
    return torch.from_numpy(steps)


def perplexity(layer: Tensor) -> float:
    """How many equally likely transformations would be as uncertain as the layer (T,)."""
    return math.exp(-(layer * layer.clamp(min=1e-300).log()).sum().item())


@dataclass(frozen=True, eq=False)
class Layers:
    """K layers, each a distribution over the rows of the table: one row per layer and image."""

    probabilities: Tensor
    """(K, T) float64; rows sum to 1."""

    def __post_init__(self) -> None:
        """Check the distributions."""
        table = _float64(self.probabilities)
        if table.ndim != 2:
            raise ValueError(f"layers should be (K, rows), got shape {tuple(table.shape)}")
        for k, layer in enumerate(table, start=1):
            _check_probabilities(layer, f"layer {k}")
            check_sum(layer.tolist(), f"layer {k} sums")
        object.__setattr__(self, "probabilities", table)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.probabilities)

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The tensors that `choose` needs on a device."""
        return (thresholds(self.probabilities),)

    def choose(self, choice: Tensor, gate: Tensor, constants: Numbers, identity: int) -> Tensor:
        """The (N, K) rows that the (N, K) random words of its layers choose."""
        found = torch.searchsorted(constants[0], choice.T.contiguous(), right=True)
        return found.T.contiguous()

    def choose_one(self, mixed: int, first: int, lists: Numbers, identity: int) -> list[int]:
        """The rows of one `mixed_key`: `choose` in plain Python, without tensors."""
        return [
            bisect_right(steps, choice_word(mixed, first + k)) for k, steps in enumerate(lists[0])
        ]

    def row_uses(self, rows: int, identity: int) -> Tensor:
        """(K, T) how often each layer applies each row."""
        return self.probabilities

    def first(self, count: int) -> Layers:
        """The first `count` layers."""
        return Layers(self.probabilities[:count])

    def moved(self, place: Tensor, rows: int) -> Layers:
        """The layers over a table of more rows, where row i is at `place[i]`."""
        wide = torch.zeros(self.depth, rows, dtype=torch.float64)
        return Layers(wide.index_add_(1, place, self.probabilities))

    def symmetric(self, twin: Tensor) -> Layers:
        """The layers that exchange each row with its `twin` (T,) with probability 1/2."""
        return Layers((self.probabilities + self.probabilities[:, twin]) / 2)


@dataclass(frozen=True, eq=False)
class Chains:
    """M chains of S slots: an image draws one chain, and each slot applies its row or nothing."""

    weights: Tensor
    """(M,) float64, summing to 1."""
    rows: Tensor
    """(M, S) int64 rows of the table."""
    gates: Tensor
    """(M, S) float64 probabilities that a slot applies its row."""

    def __post_init__(self) -> None:
        """Check shapes and probabilities."""
        weights, gates = _float64(self.weights), _float64(self.gates)
        _check_probabilities(weights, "chain weights")
        _check_probabilities(gates, "chain gates")
        rows = torch.as_tensor(self.rows, dtype=torch.int64).cpu().clone()
        same = weights.shape == rows.shape[:1] and rows.shape == gates.shape
        if not same or rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(
                "chains need (M,) weights and (M, S) rows and gates, at least one chain and at "
                f"least one slot, got {tuple(weights.shape)}, {tuple(rows.shape)} and "
                f"{tuple(gates.shape)}"
            )
        check_sum(weights.tolist(), "chain weights sum")
        if bool((gates > 1).any()):
            raise ValueError(f"chain gates should be at most 1, got {float(gates.max()):g}")
        for name, value in (("weights", weights), ("rows", rows), ("gates", gates)):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, pairs: Sequence[tuple[Slots, float]]) -> Chains:
        """The chains of (slots, weight) pairs."""
        gates = [[gate for _, gate in chain] for chain, _ in pairs]
        rows = [[row for row, _ in chain] for chain, _ in pairs]
        return cls(_float64([weight for _, weight in pairs]), torch.tensor(rows), _float64(gates))

    def pairs(self) -> Iterator[tuple[Slots, float]]:
        """The (slots, weight) pairs of the chains, as `of` takes them."""
        numbers = zip(self.weights.tolist(), self.rows.tolist(), self.gates.tolist(), strict=True)
        return ((list(zip(rows, gates, strict=True)), weight) for weight, rows, gates in numbers)

    @property
    def depth(self) -> int:
        """Number of slots."""
        return self.rows.shape[1]

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The tensors that `choose` needs on a device."""
        gates = (self.gates * 2.0**BITS).to(torch.int64)
        return thresholds(self.weights), self.rows, gates

    def choose(self, choice: Tensor, gate: Tensor, constants: Numbers, identity: int) -> Tensor:
        """The (N, S) rows of the slots; the first of the (N, S) random words picks the chain."""
        weights, rows, gates = constants
        chain = torch.searchsorted(weights, choice[:, 0].contiguous(), right=True)
        return torch.where(gate < gates[chain], rows[chain], identity)

    def choose_one(self, mixed: int, first: int, lists: Numbers, identity: int) -> list[int]:
        """The rows of one `mixed_key`: `choose` in plain Python, without tensors."""
        weights, rows, gates = lists
        chain = bisect_right(weights, choice_word(mixed, first))
        return [
            row if gate_word(mixed, first + s) < gate else identity
            for s, (row, gate) in enumerate(zip(rows[chain], gates[chain], strict=True))
        ]

    def row_uses(self, rows: int, identity: int) -> Tensor:
        """(S, T) how often each slot applies each row; a closed gate counts as identity."""
        uses = torch.zeros(self.depth, rows, dtype=torch.float64)
        weight = self.weights[:, None] * self.gates
        uses.scatter_add_(1, self.rows.T.contiguous(), weight.T.contiguous())
        uses[:, identity] += 1 - weight.sum(0)
        return uses.clamp_(min=0)

    def first(self, count: int) -> Chains:
        """The first `count` slots of each chain."""
        return Chains(self.weights, self.rows[:, :count], self.gates[:, :count])

    def moved(self, place: Tensor, rows: int) -> Chains:
        """The chains over a table of more rows, where row i is at `place[i]`."""
        return Chains(self.weights, place[self.rows], self.gates)

    def symmetric(self, twin: Tensor) -> Chains:
        """The chains that exchange each row with its `twin` (T,) with probability 1/2."""
        pairs: list[tuple[Slots, float]] = []
        for slots, weight in self.pairs():
            ways = [[(way, gate) for way in sorted({row, int(twin[row])})] for row, gate in slots]
            if (count := math.prod(map(len, ways))) > MAX_SIGNS:
                raise ValueError(
                    f"a chain has {count} combinations of signs; symmetric() takes {MAX_SIGNS}"
                )
            if (len(pairs) + count) * self.depth > MAX_SIGNED:
                raise ValueError(f"the chains have more than {MAX_SIGNED:,} slots with both signs")
            pairs += [(way, weight / count) for way in product(*ways)]
        return Chains.of(pairs)


Stage = Layers | Chains
