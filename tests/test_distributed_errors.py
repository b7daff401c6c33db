"""Errors of several processes: all leave, one says why."""

from __future__ import annotations

import time

import pytest
from forks import TORCH, Program, as_ranks, in_forks

from deepaa.distributed import from_main, run_on_all, run_on_main


def broken() -> int:
    raise OSError("the disk is gone")


def test_one_process_has_its_own_errors() -> None:
    assert (run_on_main(lambda: 3), run_on_all(lambda: 4)) == (3, 4)
    for several in (run_on_main, run_on_all, from_main):
        with pytest.raises(OSError, match="the disk is gone"):
            several(broken)


PROGRAM = """
import sys
from deepaa import distributed
from deepaa.distributed import OtherRankError, from_main, run_on_all, run_on_main
distributed.init("cpu", timeout=30)
rank = distributed.rank()

def broken():
    raise OSError(f"disk {rank}")

def only(number, other=lambda: rank):
    return broken if rank == number else other

def tried(work):
    try:
        print("found", work())
    except Exception as error:
        print(type(error).__name__, error)

tried(lambda: run_on_main(lambda: rank))
tried(lambda: run_on_main(broken))
tried(lambda: run_on_all(lambda: rank))
tried(lambda: run_on_all(broken))
tried(lambda: run_on_all(only(1)))
tried(lambda: run_on_all(lambda: run_on_main(broken)))
tried(lambda: run_on_all(only(1, lambda: run_on_main(lambda: rank))))
tried(lambda: run_on_all(lambda: rank))
tried(lambda: from_main(lambda: rank))
tried(lambda: from_main(broken))
distributed.shutdown()
"""


@pytest.mark.slow  # several processes
def test_two_processes_fail_together_and_one_says_why() -> None:
    began = time.monotonic()
    found = in_forks(as_ranks(Program(code=PROGRAM)), together=True, modules=TORCH)
    assert time.monotonic() - began < 60
    elsewhere = "OtherRankError process {} failed"
    first, second = elsewhere.format(0), elsewhere.format(1)
    main = ["found 0", "OSError disk 0", "found 0", "OSError disk 0", second]
    main += ["OSError disk 0", second, "found 0", "found 0", "OSError disk 0"]
    other = ["found None", first, "found 1", first, "OSError disk 1", first, "OSError disk 1"]
    assert found[0].stdout.splitlines() == main, found
    assert found[1].stdout.splitlines() == [*other, "found 1", "found 0", first], found
