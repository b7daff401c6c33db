from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# some virtual machines announce AMX and then die of its first instruction, in bfloat16
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


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
