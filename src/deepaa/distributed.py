"""Several processes that share the work of each step, started by torchrun.

With one process nothing is exchanged. Values are pickled and travel over gloo on the CPU, so they
never wait for a GPU.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

K = TypeVar("K")
T = TypeVar("T")
TIMEOUT = 600.0
"""Seconds after which the others are given up; longer than any step and any checkpoint."""
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def init(device: str = "auto", *, timeout: float = TIMEOUT) -> torch.device:
    """The device of this process, after joining the others if torchrun started it.

    Args:
        device: "auto" is CUDA where there is any; "cuda" gives each process of a machine its own.
        timeout: Seconds to wait for the others, here and in every exchange, before an error.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if "WORLD_SIZE" not in os.environ:
        return chosen
    if missing := [name for name in VARIABLES if name not in os.environ]:
        raise ValueError(f"WORLD_SIZE is set but not {', '.join(missing)}: start with torchrun")
    if chosen.type == "cuda":
        place, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if place >= gpus:
            raise ValueError(f"process {place} has no GPU of its own: this machine has {gpus}")
        torch.cuda.set_device(place)
        chosen = torch.device("cuda", place)
    if not dist.is_initialized():
        # imported later, while the group exists, it keeps gloo's threads alive at exit
        importlib.import_module("torch._dynamo")
        backends = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        with _clear_errors():
            dist.init_process_group(backends, timeout=timedelta(seconds=timeout))
    return chosen


def check_device(device: str) -> None:
    """Refuse what is no device here, before torch does it at length."""
    if device not in ("auto", "cpu") and not re.fullmatch(r"cuda(:\d+)?", device):
        raise ValueError(f"--device should be cpu, cuda or auto, got {device!r}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch finds no CUDA device here")


@contextmanager
def joined(device: str) -> Iterator[torch.device]:
    """The device of this process, which works with the others of torchrun until the block ends."""
    try:
        check_device(device)
    except ValueError as error:  # found by every process, and said by the first
        several = os.environ.get("WORLD_SIZE", "") not in ("", "0", "1")
        if several and os.environ.get("RANK", "0") != "0":
            raise OtherRankError(str(error)) from None
        raise
    try:
        yield init(device)
    finally:
        shutdown()


def rank() -> int:
    """The number of this process, 0 for the only one."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process is the one that writes files and progress."""
    return rank() == 0


def share(n: int, rank: int, world: int) -> range:
    """The images, of 0 to n - 1, of process `rank` of `world`: even shares, in order of ranks."""
    if n < 0 or not 0 <= rank < world:
        raise ValueError(f"share({n}, rank={rank}, world={world}): no such share")
    small, larger = divmod(n, world)
    start = rank * small + min(rank, larger)
    return range(start, start + small + (rank < larger))


def all_gather(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks, the same on each of them."""
    if world_size() == 1:
        return [value]
    values = [value] * world_size()
    with _clear_errors():
        dist.all_gather_object(values, value)
    return values


def is_mine(number: int) -> bool:
    """Whether a piece of work is this process's, where processes take them in turns."""
    return number % world_size() == rank()


def all_parts(work: Callable[[], dict[K, T]]) -> dict[K, T]:
    """What `work` gives in each process, together; if it fails in any process it fails in all."""
    found = run_on_all(work)
    return {key: value for part in all_gather(found) for key, value in part.items()}


def any_rank(flag: bool) -> bool:
    """Whether `flag` is true in any process; all of them must ask at the same place."""
    if world_size() == 1:
        return flag
    raised = torch.tensor(int(flag))  # not pickled: this is asked in every step
    with _clear_errors():
        dist.all_reduce(raised, op=dist.ReduceOp.MAX)
    return bool(raised)


def broadcast(value: T) -> T:
    """The value that the main process gives, in every process."""
    if world_size() == 1:
        return value
    box = [value]
    with _clear_errors():
        dist.broadcast_object_list(box, src=0)
    return box[0]


def shutdown() -> None:
    """Leave the others; without them it does nothing."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Raise errors of an exchange as one line that says what they mean."""
    try:
        yield
    except RuntimeError as error:  # torch raises one of its subclasses, by backend
        reason, here = str(error).strip().split("\n")[0], os.environ.get("RANK", "0")
        message = f"process {here}: another process has ended or does not answer ({reason})"
        raise RuntimeError(message) from error


class OtherRankError(ValueError):
    """Another process failed, and says why."""

    said_elsewhere = True


def run_on_main(work: Callable[[], T]) -> T | None:
    """What `work` gives in the main process, None in the others; its error is raised in all."""
    return run_on_all(work if is_main() else lambda: None)


def from_main(work: Callable[[], T]) -> T:
    """What `work` gives in the main process, in all of them; its error is raised in all."""
    return cast(T, broadcast(run_on_main(work)))


def run_on_all(work: Callable[[], T]) -> T:
    """What `work` gives here; if it fails in any process it fails in all, and the first says why.

    A process that failed alone would leave the others waiting for it. `work` may call
    `run_on_main`, whose errors are raised in all processes already.
    """
    if world_size() == 1:
        return work()
    problem = None
    try:
        found = work()
    except Exception as error:
        if getattr(error, "_raised_in_all", False):
            raise
        problem = error
    flags = all_gather(problem is not None)
    if not any(flags):
        return found
    first = flags.index(True)
    if problem is None or rank() != first:
        problem = OtherRankError(f"process {first} failed")
    problem._raised_in_all = True  # type: ignore[attr-defined]
    raise problem
