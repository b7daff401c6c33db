"""Deep AutoAugment: image augmentation policies, applied exactly and fast.

`DeepAutoAugment(policy)` augments PIL images, arrays, tensors and batches. `load_policy` and
`Policy` give it something to apply, `find_policy` finds it for your images, `hold_contest` compares
policies in your own training loop; `CIFAR` and `IMAGENET` are the search spaces of the paper.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepaa.ops import (
        CIFAR,
        IMAGENET,
        Draw,
        Operation,
        Space,
        Transformation,
        apply_batch,
        apply_pil,
    )
    from deepaa.policy import Chains, Layers, Policy, PolicyFileError, load_policy
    from deepaa.search import Search, SearchConfig, find_policy, hold_contest
    from deepaa.transforms import AugmentedDataset, DeepAutoAugment

__all__ = [
    "CIFAR",
    "IMAGENET",
    "AugmentedDataset",
    "Chains",
    "DeepAutoAugment",
    "Draw",
    "Layers",
    "Operation",
    "Policy",
    "PolicyFileError",
    "Search",
    "SearchConfig",
    "Space",
    "Transformation",
    "__version__",
    "apply_batch",
    "apply_pil",
    "find_policy",
    "hold_contest",
    "load_policy",
]

__version__ = "0.2.0"  # the only place: pyproject.toml reads it from here

# Names are imported when they are first used: torch takes seconds, and `deepaa --help` needs none.
_HOMES = ("deepaa.ops", "deepaa.policy", "deepaa.transforms", "deepaa.search")


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        if hasattr(package := import_module(home), name):
            value = globals()[name] = getattr(package, name)
            return value
    raise AttributeError(f"module 'deepaa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
