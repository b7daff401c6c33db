"""Errors that several processes have together: all leave, one says why.

A process that fails alone would leave the others waiting for it, and one that fails like all others
would say the same as they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from deepaa import distributed

T = TypeVar("T")


class ElsewhereError(ValueError):
    """Another process failed, and says why."""


def by_main(work: Callable[[], T]) -> T | None:
    """What `work` gives in the main process, None in the others; its error is raised in all."""
    found, problem = None, None
    if distributed.is_main():
        try:
            found = work()
        except Exception as error:
            problem = error
    _agree(problem)
    return found


def by_all(work: Callable[[], T]) -> T:
    """What `work` gives here; if it fails in any process it fails in all, and the first says why.

    Inside, errors of `by_main` are known to all already.
    """
    problem = None
    try:
        found = work()
    except Exception as error:
        problem = error
    if problem is not None and getattr(problem, "_agreed", False):
        raise problem
    _agree(problem)
    return found


def _agree(problem: Exception | None) -> None:
    """Raise in every process if there is a problem in any."""
    if distributed.world_size() == 1:
        if problem is not None:
            raise problem
        return
    flags = distributed.all_gather_rows(
        torch.tensor([int(problem is not None)]), distributed.world_size()
    ).tolist()
    if not any(flags):
        return
    first = flags.index(1)
    said = problem if distributed.rank() == first else None
    if said is None:
        said = ElsewhereError(f"process {first} failed")
    said._agreed = True  # type: ignore[attr-defined]
    raise said
