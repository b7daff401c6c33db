"""Several seeds of one training in a run folder, and what they reach.

A run can be stopped at any time and goes on from its newest checkpoint; on CPU it then ends with
the same networks, bit for bit. Later calls add seeds to the same folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.pipeline import StopAskedError
from deepaa.policy import Policy
from deepaa.policy_json import dumps
from deepaa.provenance import provenance
from deepaa.results import RESULTS, SeedResult, document
from deepaa.run_files import RunError, read_json
from deepaa.runs import Run
from deepaa.train import EpochRecord, TrainConfig, Training, train_together
from deepaa.training_data import Material

SEEDS = "seeds.json"
KIND = "train"


class SeedEpoch(NamedTuple):
    """An epoch of one seed."""

    seed: int
    record: EpochRecord


Event = SeedEpoch | SeedResult


class TrainingRun:
    """The training of several seeds: iterate for their epochs and results."""

    def __init__(
        self,
        material: Material,
        make_model: Callable[[int], nn.Module],
        policy: Policy | None,
        config: TrainConfig,
        seeds: Sequence[int],
        *,
        device: torch.device | str = "cpu",
        parallel: int = 1,
        run: Run | None = None,
        facts: Mapping[str, Any] | None = None,
        checkpoint_seconds: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on from the run's newest checkpoint if it has one.

        Args:
            make_model: A fresh network for a seed.
            config: The training; each seed takes the place of its own.
            seeds: All that the run should have in the end; those it has are not trained again.
            parallel: Networks trained at once on the device.
            run: Where records, checkpoints and results go, in the main process; None keeps nothing.
            facts: What stands in results.json beside the seeds.
            stop: Asked often; once it says yes, the iteration saves and ends with `stopped` true.
        """
        if parallel < 1:
            raise ValueError(f"parallel should be at least 1, got {parallel}")
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"a seed is trained once, got {', '.join(map(str, seeds))}")
        self.material, self.make_model, self.policy = material, make_model, policy
        self.config, self.seeds, self.device = config, list(seeds), torch.device(device)
        self.parallel, self.checkpoint_seconds = parallel, checkpoint_seconds
        self.run = run if distributed.is_main() else None
        self.facts = dict(facts or {})
        self.stopped = False
        self._stop = stop
        self._saved_at = time.monotonic()
        self._unsaved: tuple[list[int], dict[str, Tensor]] | None = None
        self._resume()

    def _resume(self) -> None:
        saved = None if self.run is None else self.run.latest()
        history = [] if self.run is None else self.run.history()
        position: Mapping[str, Any] = {} if saved is None else saved.position
        group, state = position.get("seeds", []), {} if saved is None else saved.tensors
        self._group, self._state, history = distributed.from_main((group, state, history))
        self.results = results_of(history)
        """Of the seeds that are done, in the order in which they ended."""
        self._times: dict[int, list[tuple[float, int]]] = {}
        for record in history:
            if record["kind"] == "epoch":
                self._times.setdefault(record["seed"], []).append(
                    (record["seconds"], record["images"])
                )

    @property
    def pending(self) -> list[int]:
        """Seeds that are not done."""
        done = {result.seed for result in self.results}
        return [seed for seed in self.seeds if seed not in done]

    def __iter__(self) -> Iterator[Event]:
        """Train the seeds that are left; events as they come."""
        self.write_results()  # a kill may have come between the last state and this file
        try:
            while group := self._next_group():
                yield from self._train(group)
        except StopAskedError:
            self.save()
            self.stopped = True
        except FloatingPointError:
            self.save()
            raise

    def _next_group(self) -> list[int]:
        """Seeds to train together: those that were begun, else the next ones."""
        begun = [seed for seed in self._group if seed in self.pending]
        return begun or self.pending[: self.parallel]

    def _train(self, group: list[int]) -> Iterator[Event]:
        trainings = [self._training(seed) for seed in group]
        if self._state and group == self._group:
            for seed, training in zip(group, trainings, strict=True):
                training.load_state(_part(self._state, f"{seed}."))
        self._group, self._state = group, {}
        for records in train_together(trainings):
            events = [
                SeedEpoch(seed, record)
                for seed, record in zip(group, records, strict=True)
                if record is not None
            ]
            for event in events:
                self._log(event)
            self._keep(group, trainings)
            yield from events
            self._leave_if_asked()
        found = [self._tested(*pair, len(group)) for pair in zip(group, trainings, strict=True)]
        for result in found:
            self.results.append(result)
            if self.run is not None:
                self.run.log({"kind": "seed", **result._asdict()})
        self._keep(group, trainings)
        self.save()
        self.write_results()
        yield from found

    def _training(self, seed: int) -> Training:
        config = dataclasses.replace(self.config, seed=seed)
        model = self.make_model(seed)
        training = self.material.training(model, self.policy, config, self.device)
        training.before_step = self._leave_if_asked
        return training

    def _tested(self, seed: int, training: Training, parallel: int) -> SeedResult:
        # batch norm's statistics are those of the main process's share
        metrics = self.material.test(training.model) if distributed.is_main() else None
        metrics = distributed.from_main(metrics)
        assert metrics is not None
        times = self._times.get(seed, [])
        rate = median([images / max(seconds, 1e-9) for seconds, images in times] or [0.0])
        return SeedResult(
            seed,
            metrics.accuracy,
            metrics.loss,
            training.epoch,
            sum(seconds for seconds, _ in times),
            rate,
            parallel,
            _device_name(self.device),
            torch.__version__,
        )

    def _leave_if_asked(self) -> None:
        if distributed.any_rank(self._stop()):
            raise StopAskedError

    # Saving

    def _log(self, event: SeedEpoch) -> None:
        record = event.record
        self._times.setdefault(event.seed, []).append((record.seconds, record.images))
        if self.run is not None:
            self.run.log({"kind": "epoch", "seed": event.seed, **record._asdict()})

    def _keep(self, group: list[int], trainings: Sequence[Training]) -> None:
        """Hold the state that belongs to the newest records, and save it when it is time."""
        if self.run is None:
            return
        state = {
            f"{seed}.{name}": tensor
            for seed, training in zip(group, trainings, strict=True)
            for name, tensor in training.state().items()
        }
        self._unsaved = (group, state)
        if time.monotonic() - self._saved_at >= self.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Have the state after the newest records on disk; may be called at any time."""
        if self._unsaved is None or self.run is None:
            return
        group, state = self._unsaved
        self.run.save(state, {"seeds": group})
        self._unsaved = None
        self._saved_at = time.monotonic()

    def write_results(self) -> None:
        """Put what is known now into results.json."""
        if self.run is not None:
            made = {"made_by": provenance()}
            self.run.write_json(RESULTS, document(self.results, {**self.facts, **made}))


def results_of(history: Sequence[Mapping[str, Any]]) -> list[SeedResult]:
    """The results that a run's history holds."""
    rows = [record for record in history if record["kind"] == "seed"]
    return [SeedResult(**{k: v for k, v in row.items() if k != "kind"}) for row in rows]


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


# The folder


def identity(
    policy: Policy | None,
    model: str,
    config: TrainConfig,
    material: Material,
    source: Mapping[str, Any],
) -> dict[str, Any]:
    """What makes two runs the same but for their seeds.

    Args:
        source: Where policy, model and images came from, for `deepaa train --resume`.
    """
    train = dataclasses.asdict(config)
    del train["seed"]
    return {
        "kind": KIND,
        "policy_sha256": policy_hash(policy),
        "model": model,
        "train": train,
        "images": material.facts(),
        "source": dict(source),
    }


def policy_hash(policy: Policy | None) -> str | None:
    """The sha256 of a policy's content, whoever described it how."""
    if policy is None:
        return None
    bare = Policy(policy.table, schedule=[(p.epoch, p.stages) for p in policy.phases])
    return hashlib.sha256(dumps(bare).encode()).hexdigest()


def open_folder(out: str | Path, config: Mapping[str, Any], *, resume: bool) -> Run | None:
    """The run folder, in the main process alone; what is wrong with it is raised in all."""
    run, problem = None, None
    if distributed.is_main():
        try:
            run = Run.open_or_create(out, config, resume=resume)
        except (ValueError, OSError) as error:
            problem = error
    problem = distributed.from_main(problem)
    if problem is not None:
        raise problem
    return run


def agreed_seeds(
    run: Run | None, *, count: int | None, given: Sequence[int], resume: bool
) -> list[int]:
    """All seeds of a run after new ones were asked for; the folder remembers them.

    Args:
        count: So many seeds that the run does not have.
        given: Seeds by number.
        resume: Whether seeds that were asked for before may still be unfinished.
    """
    seeds, problem = [], None
    if run is not None:
        try:
            seeds = _with_new(run, count, given, resume)
        except ValueError as error:
            problem = error
    problem, seeds = distributed.from_main((problem, seeds))
    if problem is not None:
        raise problem
    return seeds


def _with_new(run: Run, count: int | None, given: Sequence[int], resume: bool) -> list[int]:
    path = run.folder / SEEDS
    known: list[int] = read_json(path)["asked"] if path.exists() else []
    if repeated := sorted({seed for seed in given if seed in known or given.count(seed) > 1}):
        raise RunError(
            f"{run.folder}: seed {repeated[0]} would be trained twice; the run has "
            f"{', '.join(map(str, known)) or 'none'}: give others, or --seeds for new ones"
        )
    run.latest()  # drops records that no state stands for
    done = {result.seed for result in results_of(run.history())}
    left = [seed for seed in known if seed not in done]
    if left and not resume:
        raise RunError(
            f"{run.folder}: {'seed' if len(left) == 1 else 'seeds'} {', '.join(map(str, left))} "
            f"not finished; go on with: deepaa train --resume {run.folder}"
        )
    after = max([-1, *known, *given]) + 1
    new = [*given, *range(after, after + (count or 0))]
    if new:
        run.write_json(SEEDS, {"asked": [*known, *new]})
    return [*known, *new]
