"""The package's front door: light, complete, and nothing that is not promised."""

from __future__ import annotations

import subprocess
import sys

import pytest

import deepaa


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_public_name_is_there() -> None:
    for name in deepaa.__all__:
        assert getattr(deepaa, name) is not None
        assert name in dir(deepaa)
    assert deepaa.DeepAutoAugment.__module__ == "deepaa.transforms.transform"
    with pytest.raises(AttributeError, match="no attribute 'RandAugment'"):
        _ = deepaa.RandAugment


def test_importing_costs_nothing_until_a_name_is_used() -> None:
    run(
        """
import sys, time
import deepaa
assert "torch" not in sys.modules
import torch
start = time.process_time()
from deepaa import CIFAR, AugmentedDataset, DeepAutoAugment, Policy, apply_batch, load_policy
assert DeepAutoAugment and load_policy and CIFAR
heavy = {"torchvision", "matplotlib", "jinja2", "typer", "rich", "PIL"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from deepaa import *
assert find_policy and Search
assert time.process_time() - start < 5  # 0.6 s where it was written; a guard against the heavy
assert heavy & set(sys.modules) <= {"PIL"}, heavy & set(sys.modules)  # a search reads images
"""
    )


def test_a_user_needs_neither_torchvision_nor_the_command_line() -> None:
    run(
        """
import sys
for name in ("torchvision", "matplotlib", "typer", "rich", "triton"):
    sys.modules[name] = None  # importing it raises
import torch, numpy as np
from PIL import Image
from deepaa import CIFAR, AugmentedDataset, DeepAutoAugment, Policy
transform = DeepAutoAugment(Policy.uniform(CIFAR, 3), seed=0)
image = Image.new("RGB", (8, 8), "red")
for sample in (image, np.array(image), torch.zeros(3, 8, 8), torch.zeros(2, 3, 8, 8)):
    out, label = transform(sample, 1)
    assert type(out) is type(sample) and label == 1
assert AugmentedDataset([(image, 0)], transform)[0][1] == 0
"""
    )
