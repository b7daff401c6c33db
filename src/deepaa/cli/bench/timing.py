"""How `deepaa bench ops` measures: one thread, turns, repeats, peak memory."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepaa.cli.bench.peers import PER_IMAGE, Contestant, Made, prepare, run_once
from deepaa.policy import Policy

REPEATS = 5
"""Fewest repeats of a contestant."""
SHORTEST = 0.02
"""Least seconds of a repeat, so that the clock and the last wait for the device hardly count."""
DRAWS = 8
"""Calls in a repeat of those that draw once per batch: one call would time one draw."""
NOT_INSTALLED = "not installed (pip install deepaa[bench])"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Setting(NamedTuple):
    """What is augmented where: `batch` square images of `size` pixels under `layers` of ours."""

    device: str
    size: int
    layers: int
    batch: int


class Result(NamedTuple):
    """One contestant in one setting; rates are images a second, None if it did not run."""

    setting: Setting
    name: str
    takes: str
    draws: str
    operations: int | None = None
    rate: float | None = None
    """Median of the repeats."""
    slowest: float | None = None
    fastest: float | None = None
    operation_rate: float | None = None
    """Applied operations a second: `rate` times `operations`."""
    images: int = 0
    """Images per repeat."""
    repeats: int = 0
    memory: float | None = None
    """Peak memory beyond the input, in inputs; CUDA only."""
    cores: float | None = None
    """CPU seconds per second of wall time: about 1 if one thread worked."""
    note: str = ""


@contextmanager
def single_thread() -> Iterator[None]:
    """torch, OpenCV, and libraries loaded meanwhile, on one thread; restored afterwards."""
    variables = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    threads = torch.get_num_threads()
    cv2 = _opencv()
    cv2_threads = cv2.getNumThreads() if cv2 else 0
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    torch.set_num_threads(1)
    if cv2:
        cv2.setNumThreads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if cv2:
            cv2.setNumThreads(cv2_threads)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _opencv() -> Any:
    try:
        import cv2
    except ImportError:
        return None
    return cv2


def stopwatch(work: Callable[[], object], device: torch.device) -> float:
    """Seconds `work` takes, until the device has finished it."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def calls_for(seconds_per_call: float, seconds: float) -> int:
    """Calls that make a repeat last `SHORTEST`, or its share of a shorter budget."""
    shortest = min(SHORTEST, seconds / REPEATS)
    return max(1, math.ceil(shortest / max(seconds_per_call, 1e-9)))


def median_seconds(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Median seconds of one call of `work`, over at least five repeats and `seconds`."""
    work()
    calls = calls_for(stopwatch(work, device), seconds)
    times: list[float] = []
    while len(times) < REPEATS or sum(times) < seconds:
        times.append(stopwatch(lambda: [work() for _ in range(calls)], device))
    return median(times) / calls


@dataclass
class _Runner:
    """A contestant in the middle of being measured."""

    contestant: Contestant
    made: Made
    inputs: Any
    images: int
    device: torch.device
    calls: int = 1
    memory: float | None = None
    times: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0

    def call(self) -> None:
        """All calls of one repeat; results are dropped one by one, as a training loop would."""
        for _ in range(self.calls):
            run_once(self.contestant, self.made, self.inputs)

    def warm_up(self, seconds: float) -> None:
        """Compile, fill caches, and choose the number of calls in a repeat."""
        if self.contestant.draws == "batch":
            self.calls = DRAWS
        self.call()
        self.calls *= calls_for(stopwatch(self.call, self.device), seconds)

    def repeat(self) -> None:
        cpu = time.process_time()
        self.times.append(stopwatch(self.call, self.device))
        self.cpu_seconds += time.process_time() - cpu

    def result(self, setting: Setting) -> Result:
        images = self.images * self.calls
        rates = [images / max(t, 1e-9) for t in self.times]
        return _empty(setting, self.contestant)._replace(
            operations=self.made.operations,
            rate=median(rates),
            slowest=min(rates),
            fastest=max(rates),
            operation_rate=median(rates) * self.made.operations,
            images=images,
            repeats=len(rates),
            memory=self.memory,
            cores=self.cpu_seconds / max(sum(self.times), 1e-9),
        )


def measure(
    contestants: Sequence[Contestant],
    images: Tensor,
    policy: Policy,
    seconds: float,
    setting: Setting,
) -> list[Result]:
    """A result of each contestant on `images`, in order; what fails says why and stops nobody else.

    Contestants take turns, a repeat each, so that a machine that slows down slows all of them.
    """
    done: dict[int, Result] = {}
    runners: dict[int, _Runner] = {}
    with torch.no_grad():
        for i, contestant in enumerate(contestants):
            try:
                runners[i] = _ready(contestant, images, policy, seconds)
            except Exception as error:  # a peer's fault must not cost the other results
                done[i] = _failed(setting, contestant, error)
        while runners:
            for i, runner in list(runners.items()):
                try:
                    runner.repeat()
                except Exception as error:
                    done[i] = _failed(setting, runner.contestant, error)
                else:
                    if len(runner.times) < REPEATS or sum(runner.times) < seconds:
                        continue
                    done[i] = runner.result(setting)
                del runners[i]
    return [done[i] for i in range(len(contestants))]


def _ready(contestant: Contestant, images: Tensor, policy: Policy, seconds: float) -> _Runner:
    """The contestant, warmed up; on CUDA with the peak memory of its first calls."""
    made = contestant.make(policy)
    device = images.device
    if contestant.one_at_a_time:
        images = images[: PER_IMAGE[device.type]]
    inputs = prepare(contestant, images)
    runner = _Runner(contestant, made, inputs, len(images), device)
    if device.type == "cpu":
        runner.warm_up(seconds)
        return runner
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    runner.warm_up(seconds)
    extra = torch.cuda.max_memory_allocated(device) - before
    if not contestant.one_at_a_time:
        runner.memory = extra / (inputs.numel() * inputs.element_size())
    return runner


def _empty(setting: Setting, contestant: Contestant) -> Result:
    return Result(setting, contestant.name, contestant.takes, contestant.draws)


def _failed(setting: Setting, contestant: Contestant, error: Exception) -> Result:
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if missing.split(".")[0] == contestant.library:
        note = NOT_INSTALLED
    else:
        reason = str(error).strip().splitlines() or [""]
        note = f"failed: {type(error).__name__}: {reason[0]}"
    return _empty(setting, contestant)._replace(note=note)
