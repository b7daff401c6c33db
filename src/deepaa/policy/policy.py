"""`Policy` says as data which rows of a table an image gets; its `draw` is a pure function."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deepaa.files import plural
from deepaa.ops import (
    Draw,
    Drawn,
    Operation,
    Row,
    Space,
    Table,
    draw_layers,
    draw_words,
    fresh_keys,
    mixed_key,
    to_device,
    uniform_numbers,
)
from deepaa.policy import algebra
from deepaa.policy.stages import IDENTITY, Chain, Chains, Layers, Stage

if TYPE_CHECKING:
    from pathlib import Path

MAX_DEPTH = 1000
"""Layers and slots per policy; far beyond use, and small enough to refuse a hostile file."""


@dataclass(frozen=True, eq=False)
class Phase:
    """The stages in force from one epoch on."""

    epoch: int
    stages: tuple[Stage, ...]

    @property
    def depth(self) -> int:
        """Number of layers and chain slots."""
        return sum(stage.depth for stage in self.stages)


_HANDLES = itertools.count(1)
_POLICIES: weakref.WeakValueDictionary[int, Policy] = weakref.WeakValueDictionary()


class Policy:
    """Stages over one table of rows, with phases if they change over the epochs.

    Most policies are `Policy(table, Layers(probabilities))`. Chains express sub-policies, a
    schedule is several phases. Policies do not change: methods return new ones.
    """

    def __init__(
        self,
        table: Table | Space,
        stages: Stage | Iterable[Stage] | Tensor = (),
        *,
        schedule: Iterable[tuple[int, Iterable[Stage]]] | None = None,
        info: dict[str, str] | None = None,
    ) -> None:
        """Check that the stages fit the table.

        Args:
            stages: Layers, chains, several of them in order, or a (K, T) tensor of probabilities.
            schedule: (first epoch, stages) pairs instead of `stages`; the first starts at epoch 0.
            info: Free text that travels with the file: who found the policy, on what, how.
        """
        self.table = _table(table)
        if schedule is None:
            if isinstance(stages, Tensor):
                stages = Layers(stages)
            stages = (stages,) if isinstance(stages, Layers | Chains) else stages
            schedule = [(0, stages)]
        self.phases = tuple(Phase(epoch, tuple(parts)) for epoch, parts in schedule)
        self.info = dict(info or {})
        self._devices: dict[Any, Any] = {}
        self._check()
        self._register()

    def _register(self) -> None:
        self.handle = next(_HANDLES)  # for compiled graphs, which carry no Python objects
        _POLICIES[self.handle] = self

    def _check(self) -> None:
        for key, value in self.info.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"info holds text under text, got {key!r}: {value!r}")
        epochs = [phase.epoch for phase in self.phases]
        if not epochs:
            raise ValueError("a policy needs at least one phase")
        if epochs[0] != 0 or any(b <= a for a, b in itertools.pairwise(epochs)):
            raise ValueError(f"phases start at epoch 0 and their epochs rise, got {epochs[:10]}")
        for phase in self.phases:
            if phase.depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} layers")
            for stage in phase.stages:
                self._check_stage(stage)

    def _check_stage(self, stage: Stage) -> None:
        size = len(self.table)
        if isinstance(stage, Layers):
            if (width := stage.probabilities.shape[1]) != size:
                raise ValueError(
                    f"a layer holds {width} probabilities, but the table has {size} rows"
                )
        elif not 0 <= int(stage.rows.min()) <= int(stage.rows.max()) < size:
            raise ValueError(f"a chain names a row outside 0..{size - 1}")
        elif self.table.identity is None and bool((stage.gates < 1).any()):
            raise ValueError("chains with gates need an identity row in the table")

    def phase(self, epoch: int = 0) -> Phase:
        """The phase in force at `epoch`."""
        return [phase for phase in self.phases if phase.epoch <= max(0, epoch)][-1]

    @property
    def depth(self) -> int:
        """Layers (and chain slots) at epoch 0."""
        return self.phases[0].depth

    def __len__(self) -> int:
        """Number of layers."""
        return self.depth

    def __repr__(self) -> str:
        """`Policy(6 layers over 139 rows)`."""
        schedule = f", {len(self.phases)} phases" if len(self.phases) > 1 else ""
        layers, rows = plural(self.depth, "layer"), plural(len(self.table), "row")
        return f"Policy({layers} over {rows}{schedule})"

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy without what was computed for devices."""
        return {**self.__dict__, "_devices": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has a handle of its own."""
        self.__dict__.update(state)
        self._register()

    # Drawing

    def draw(self, keys: Tensor, epoch: int = 0) -> Draw:
        """The rows and uniform numbers of (N,) int64 keys, which are equal on every device."""
        if not isinstance(keys, Tensor) or keys.dtype != torch.int64 or keys.ndim != 1:
            what = f"{keys.dtype} {tuple(keys.shape)}" if isinstance(keys, Tensor) else f"{keys!r}"
            raise TypeError(f"keys should be an int64 tensor (N,), got {what}")
        if torch.compiler.is_compiling():
            return Draw(*_compiled_draw(keys, self.handle, epoch))
        phase = self.phase(epoch)
        if len(phase.stages) == 1 and isinstance(phase.stages[0], Layers) and phase.depth:
            (thresholds,) = self._constants(phase, keys.device)[0]
            return Drawn(*draw_layers(keys, thresholds, self.table.uniforms))
        choice, gate, uniform = draw_words(keys, phase.depth, self.table.uniforms)
        rows, first = [choice[:, :0]], 0
        for stage, constants in zip(phase.stages, self._constants(phase, keys.device), strict=True):
            mine = slice(first, first + stage.depth)
            identity = self.table.identity or 0
            rows.append(stage.choose(choice[:, mine], gate[:, mine], constants, identity))
            first += stage.depth
        return Drawn(rows[1] if len(rows) == 2 else torch.cat(rows, 1), uniform)

    def draw_one(self, key: int, epoch: int = 0) -> list[tuple[int, list[float]]]:
        """The (row, uniform numbers) of each layer for one key: `draw` without tensors, for PIL."""
        phase, mixed, table = self.phase(epoch), mixed_key(key), self.table.rows
        identity, rows, first = self.table.identity or 0, [], 0
        for stage, lists in zip(phase.stages, self._constants(phase, None), strict=True):
            rows += stage.choose_one(mixed, first, lists, identity)
            first += stage.depth
        counts = [table[row].operation.uniforms for row in rows]
        return [(row, uniform_numbers(mixed, k, counts[k])) for k, row in enumerate(rows)]

    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        *,
        epoch: int = 0,
        device: torch.device | str = "cpu",
    ) -> Draw:
        """A draw for `n` images from fresh keys."""
        return self.draw(fresh_keys(n, torch.device(device), generator), epoch)

    def _constants(self, phase: Phase, device: torch.device | None) -> list[Any]:
        """The constants of a phase's stages, on `device` or, for None, as Python lists."""
        key = (phase.epoch, device)
        if key not in self._devices:
            tensors = [stage.constants for stage in phase.stages]
            self._devices[key] = [
                tuple(t.tolist() if device is None else to_device(t, device) for t in part)
                for part in tensors
            ]
        found: list[Any] = self._devices[key]
        return found

    # Making policies from policies

    def _map(self, change: Callable[[Stage], Stage], table: Table | None = None) -> Policy:
        """The policy with each stage changed, over `table` if that is another one."""
        schedule = [(p.epoch, [change(stage) for stage in p.stages]) for p in self.phases]
        return Policy(table or self.table, schedule=schedule, info=self.info)

    def _over(self, table: Table) -> Policy:
        """The same policy over a table that contains its rows."""
        index = {row: i for i, row in enumerate(table.rows)}
        place = torch.tensor([index[row] for row in self.table.rows], device="cpu")
        return self._map(lambda stage: stage.moved(place, len(table)), table)

    def then(self, other: Policy) -> Policy:
        """This policy followed by `other`; their spaces need not match, and `info` is left out."""
        table = self.table.extended(other.table.rows)
        epochs = sorted({p.epoch for p in (*self.phases, *other.phases)})
        mine, theirs = self._over(table), other._over(table)
        schedule = [(e, (*mine.phase(e).stages, *theirs.phase(e).stages)) for e in epochs]
        return Policy(table, schedule=schedule)

    def symmetric(self) -> Policy:
        """The policy that flips the sign of each signed magnitude with probability 1/2.

        The signed grid is symmetric, so this only averages p(m) and p(-m); rows are added where the
        table lacks the mirrored magnitude.
        """
        policy = self._over(self.table.extended(row.mirrored for row in self.table.rows))
        twin = torch.tensor(policy.table.twins, device="cpu")
        return policy._map(lambda stage: stage.symmetric(twin))

    @property
    def most_layers(self) -> int:
        """Layers of the deepest phase."""
        return max(phase.depth for phase in self.phases)

    def first_layers(self, count: int) -> Policy:
        """The first `count` layers."""
        if not 0 <= count <= self.most_layers:
            layers = plural(self.most_layers, "layer")
            raise ValueError(f"first_layers({count}) of a policy of {layers}")
        schedule = []
        for phase in self.phases:
            stages, left = [], count
            for stage in phase.stages:
                if take := min(left, stage.depth):
                    stages.append(stage.first(take))
                left -= take
            schedule.append((phase.epoch, stages))
        return Policy(self.table, schedule=schedule, info=self.info)

    def stretched(self, epochs: int, over: int) -> Policy:
        """A schedule for `over` epochs, run in `epochs`; of phases on one epoch the last counts."""
        last = self.phases[-1].epoch
        if epochs < 1 or over <= last:
            raise ValueError(
                f"a schedule whose last phase begins at epoch {last} cannot be stretched from "
                f"{over} to {epochs} epochs"
            )
        schedule = {phase.epoch * epochs // over: phase.stages for phase in self.phases}
        info = algebra.schedule_info(self.info, epochs)
        return Policy(self.table, schedule=schedule.items(), info=info)

    def strength(self, s: float) -> Policy:
        """The policy at a strength from 0, which changes nothing, to 1, the policy as it is.

        A magnitude m becomes neutral + s (m - neutral), posterize's in whole bits. A row without a
        magnitude or a neutral one keeps s of its probability, and the rest goes to identity.
        """
        return algebra.strength(self, s)

    def spread(self) -> Policy:
        """The policy whose magnitudes are uniform from the neutral one to what they were."""
        return algebra.spread(self)

    def without(self, is_excluded: Callable[[Row], bool]) -> Policy:
        """The policy with identity in place of some rows; layers that do nothing then are gone."""
        return algebra.without(self, is_excluded)

    def ending(self, weak: Policy, epoch: int) -> Policy:
        """The same until `epoch`, and from then on what `weak` does in those epochs."""
        return algebra.ending(self, weak, epoch)

    # Looking at policies

    def row_probabilities(self, epoch: int = 0) -> Tensor:
        """(K, T) how often each layer applies each row."""
        rows, identity = len(self.table), self.table.identity or 0
        nothing = torch.zeros(0, rows, dtype=torch.float64)
        stages = self.phase(epoch).stages
        return torch.cat([nothing, *(stage.row_uses(rows, identity) for stage in stages)])

    def operation_probabilities(self, epoch: int = 0) -> Tensor:
        """(K, number of operations) how often each layer applies each of `table.operations`."""
        operations = {operation: i for i, operation in enumerate(self.table.operations)}
        column = torch.tensor([operations[row.operation] for row in self.table.rows])
        rows = self.row_probabilities(epoch)
        out = torch.zeros(len(rows), len(operations), dtype=torch.float64)
        return out.index_add_(1, column, rows)

    def expected_uses(self, epoch: int = 0) -> dict[str, float]:
        """How often an image meets each operation, on average over a draw (the sum over layers)."""
        uses: dict[str, float] = {}
        totals = self.operation_probabilities(epoch).sum(0).tolist()
        for operation, total in zip(self.table.operations, totals, strict=True):
            uses[operation.name] = uses.get(operation.name, 0.0) + total
        return uses

    def equals(self, other: Policy) -> bool:
        """Whether both choose the same rows with the same probabilities."""

        def numbers(stage: Stage) -> tuple[Any, ...]:
            return type(stage), [tensor.tolist() for tensor in vars(stage).values()]

        mine, theirs = (
            [(phase.epoch, list(map(numbers, phase.stages))) for phase in policy.phases]
            for policy in (self, other)
        )
        return self.table == other.table and mine == theirs

    # Ready-made

    @classmethod
    def repeated(cls, space: Space | Table, shares: Sequence[float], layers: int) -> Policy:
        """Each layer has these probabilities, one for each row."""
        if layers < 0:
            raise ValueError(f"a policy cannot have {layers} layers")
        layer = torch.tensor(shares, dtype=torch.float64)
        return cls(space, Layers(layer.expand(layers, -1)))

    @classmethod
    def uniform(cls, space: Space | Table, layers: int) -> Policy:
        """Every transformation equally likely in each layer."""
        return cls.repeated(space, [1 / len(space)] * len(space), layers)

    @classmethod
    def trivial(cls, space: Space | Table, layers: int) -> Policy:
        """DeepTA: in each layer an operation uniformly, then one of its levels uniformly."""
        operations = [row.operation for row in _table(space).rows]
        levels = Counter(operations)
        return cls.repeated(space, [1 / (len(levels) * levels[op]) for op in operations], layers)

    @classmethod
    def identity(cls, space: Space | Table | None = None, layers: int = 1) -> Policy:
        """The policy that changes nothing."""
        space = Table([IDENTITY]) if space is None else space
        place = _table(space).identity
        if place is None:
            raise ValueError("this space has no identity operation")
        return cls.repeated(space, [float(i == place) for i in range(len(space))], layers)

    @classmethod
    def always(cls, *operations: Operation) -> Policy:
        """A layer for each operation (without magnitudes), always applied: crop and flip, say."""
        table = Table((operation, None) for operation in operations)
        return cls(table, Layers(torch.eye(len(operations), dtype=torch.float64)))

    @classmethod
    def of_chains(
        cls,
        schedule: Mapping[int, Sequence[tuple[Chain, float]]],
        info: dict[str, str] | None = None,
    ) -> Policy:
        """The policy of (chain, weight) pairs that begin at an epoch.

        The table has the rows of all chains behind identity, which a closed gate applies.
        """
        rows = [row for pairs in schedule.values() for chain, _ in pairs for row, _ in chain]
        index = {row: i for i, row in enumerate(dict.fromkeys([IDENTITY, *rows]))}
        phases = []
        for epoch, pairs in schedule.items():
            placed = [([(index[row], g) for row, g in chain], weight) for chain, weight in pairs]
            phases.append((epoch, [Chains.of(placed)]))
        return cls(Table(index), schedule=phases, info=info)

    def save(self, path: str | Path) -> None:
        """Write the policy as a JSON file (docs/policy-format.md), atomically."""
        from deepaa.policy.format import save_policy

        save_policy(self, path)


@torch.library.custom_op("deepaa::draw", mutates_args=())
def _compiled_draw(keys: Tensor, policy: int, epoch: int) -> tuple[Tensor, Tensor]:
    return tuple(_POLICIES[policy].draw(keys, epoch))  # type: ignore[return-value]


@_compiled_draw.register_fake
def _(keys: Tensor, policy: int, epoch: int) -> tuple[Tensor, Tensor]:
    source = _POLICIES[policy]
    choice = keys.new_empty((len(keys), source.phase(epoch).depth))
    return choice, choice.new_empty((*choice.shape, source.table.uniforms), dtype=torch.float32)


def _table(space: Space | Table) -> Table:
    return space.table if isinstance(space, Space) else space
