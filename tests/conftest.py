from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from missing import (
    pytest_make_collect_report as pytest_make_collect_report,
    pytest_runtest_makereport as pytest_runtest_makereport,
)
from processes import MARK, left_behind

# some virtual machines announce AMX and then die of its first instruction, in bfloat16
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# a shell that starts `make test &` has Ctrl-C ignored, which the programs under test would inherit
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Fail at the end if a program that a test started still runs."""
    session = os.environ[MARK] = uuid.uuid4().hex  # each worker of xdist has its own
    yield
    assert not left_behind(session)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def exact_convolutions() -> Iterator[None]:
    """Convolutions in float32: TF32 rounds so that small differences grow."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def shared() -> Path:
    """Data that is not part of the repository: published policies, whole datasets."""
    folder = Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("no shared data beside the repository")
    return folder
