"""The two kinds of stages that a policy is made of: layers and chains over a table of rows."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepaa.ops import BITS, Operation, Row, Table, choice_word, gate_word

IDENTITY = Row(Operation("identity"), None)
SUM_TOLERANCE = 1e-6
MAX_SIGNS = 4096
"""Combinations of signs that `symmetric` spells out for one chain."""


def _as_float64(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64).detach().cpu()


def _probabilities(values: Any, what: str) -> Tensor:
    table = _as_float64(values).clone()
    if not bool(torch.isfinite(table).all()):
        raise ValueError(f"{what} holds a value that is not finite")
    if bool((table < 0).any()):
        raise ValueError(f"{what} holds a negative probability, {float(table.min()):g}")
    return table


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


@dataclass(frozen=True, eq=False)
class Layers:
    """K layers, each a distribution over the rows of the table: one row per layer and image."""

    probabilities: Tensor
    """(K, T) float64; rows sum to 1."""

    def __post_init__(self) -> None:
        """Check the distributions."""
        table = _as_float64(self.probabilities)
        if table.ndim != 2:
            raise ValueError(f"layers should be (K, rows), got shape {tuple(table.shape)}")
        layers = [_probabilities(row, f"layer {k + 1}") for k, row in enumerate(table)]
        for k, layer in enumerate(layers):
            if abs(total := math.fsum(layer.tolist())) and abs(total - 1) <= SUM_TOLERANCE:
                continue
            raise ValueError(f"layer {k + 1} sums to {total:.6f}, expected 1")
        stacked = torch.stack(layers) if layers else table
        object.__setattr__(self, "probabilities", stacked)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.probabilities)

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The tensors that `choose` needs on a device."""
        return (thresholds(self.probabilities),) if self.depth else ()

    def choose(
        self, choice: Tensor, gate: Tensor, constants: Sequence[Tensor], identity: int
    ) -> Tensor:
        """The (N, K) rows that the (N, K) random words of its layers choose."""
        if not self.depth:
            return choice
        found = torch.searchsorted(constants[0], choice.T.contiguous(), right=True)
        return found.T.contiguous()

    def choose_one(self, key: int, first: int, lists: Sequence[Any], identity: int) -> list[int]:
        """The rows of one key: `choose` in plain Python, without tensors."""
        return [
            bisect_right(steps, choice_word(key, first + k))
            for k, steps in enumerate(lists[0] if lists else ())
        ]

    def row_uses(self, rows: int, identity: int) -> Tensor:
        """(K, T) how often each layer applies each row."""
        return self.probabilities


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
        weights = _probabilities(self.weights, "chain weights")
        gates = _probabilities(self.gates, "chain gates")
        rows = torch.as_tensor(self.rows, dtype=torch.int64).cpu().clone()
        if weights.ndim != 1 or not len(weights) or rows.ndim != 2 or rows.shape != gates.shape:
            raise ValueError(
                f"chains need (M,) weights and (M, S) rows and gates, got {tuple(weights.shape)}, "
                f"{tuple(rows.shape)} and {tuple(gates.shape)}"
            )
        if not rows.shape[1]:
            raise ValueError("chains need at least one slot")
        if len(rows) != len(weights):
            raise ValueError(f"{len(weights)} weights for {len(rows)} chains")
        if (
            abs(total := math.fsum(weights.tolist())) > 1 + SUM_TOLERANCE
            or total < 1 - SUM_TOLERANCE
        ):
            raise ValueError(f"chain weights sum to {total:.6f}, expected 1")
        if bool((gates > 1).any()):
            raise ValueError(f"chain gates should be at most 1, got {float(gates.max()):g}")
        for name, value in (("weights", weights), ("rows", rows), ("gates", gates)):
            object.__setattr__(self, name, value)

    @property
    def depth(self) -> int:
        """Number of slots."""
        return self.rows.shape[1]

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The tensors that `choose` needs on a device."""
        gates = (self.gates * 2.0**BITS).to(torch.int64)
        return thresholds(self.weights), self.rows, gates

    def choose(
        self, choice: Tensor, gate: Tensor, constants: Sequence[Tensor], identity: int
    ) -> Tensor:
        """The (N, S) rows of the slots; the first of the (N, S) random words picks the chain."""
        weights, rows, gates = constants
        chain = torch.searchsorted(weights, choice[:, 0].contiguous(), right=True)
        return torch.where(gate < gates[chain], rows[chain], identity)

    def choose_one(self, key: int, first: int, lists: Sequence[Any], identity: int) -> list[int]:
        """The rows of one key: `choose` in plain Python, without tensors."""
        weights, rows, gates = lists
        chain = bisect_right(weights, choice_word(key, first))
        return [
            row if gate_word(key, first + s) < gate else identity
            for s, (row, gate) in enumerate(zip(rows[chain], gates[chain], strict=True))
        ]

    def row_uses(self, rows: int, identity: int) -> Tensor:
        """(S, T) how often each slot applies each row; a closed gate counts as identity."""
        uses = torch.zeros(self.depth, rows, dtype=torch.float64)
        weight = self.weights[:, None] * self.gates
        uses.scatter_add_(1, self.rows.T.contiguous(), weight.T.contiguous())
        uses[:, identity] += 1 - weight.sum(0)
        return uses.clamp_(min=0)


Stage = Layers | Chains
Chain = Sequence[tuple[Row, float]]
"""The rows of a chain's slots, and their gates."""


def chains_table(chains: Iterable[Chain]) -> Table:
    """The rows of the chains behind identity, which a closed gate applies."""
    rows = [row for chain in chains for row, _ in chain]
    return Table(dict.fromkeys([IDENTITY, *rows]))


def chains_over(table: Table, chains: Sequence[Chain], weights: Sequence[float]) -> Chains:
    """The chains as a stage over a table that has all of their rows."""
    index = {row: i for i, row in enumerate(table.rows)}
    return Chains(
        _as_float64(weights),
        torch.tensor([[index[row] for row, _ in chain] for chain in chains]),
        _as_float64([[gate for _, gate in chain] for chain in chains]),
    )


def symmetric_stage(stage: Stage, twin: Tensor) -> Stage:
    """The stage that exchanges each row with its `twin` (T,) with probability 1/2."""
    if isinstance(stage, Layers):
        return Layers((stage.probabilities + stage.probabilities[:, twin]) / 2)
    weights, rows, gates = [], [], []
    for weight, chain, gate in zip(stage.weights.tolist(), stage.rows, stage.gates, strict=True):
        ways = [sorted({int(row), int(twin[row])}) for row in chain]
        if (count := math.prod(map(len, ways))) > MAX_SIGNS:
            raise ValueError(
                f"a chain has {count} combinations of signs; symmetric() takes {MAX_SIGNS}"
            )
        signs = list(product(*ways))
        weights += [weight / len(signs)] * len(signs)
        rows += signs
        gates += [gate.tolist()] * len(signs)
    return Chains(_as_float64(weights), torch.tensor(rows), _as_float64(gates))


def same_stage(a: Stage, b: Stage) -> bool:
    """Whether two stages are of one shape and hold equal numbers."""
    if isinstance(a, Layers) and isinstance(b, Layers):
        return torch.equal(a.probabilities, b.probabilities)
    if isinstance(a, Chains) and isinstance(b, Chains):
        pairs = ((a.weights, b.weights), (a.rows, b.rows), (a.gates, b.gates))
        return all(torch.equal(x, y) for x, y in pairs)
    return False
