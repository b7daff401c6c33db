"""Deep AutoAugment: image augmentation policies, applied exactly and fast.

`DeepAutoAugment(policy)` augments PIL images, arrays, tensors and batches. `load_policy` and
`Policy` give it something to apply, `find_policy` finds it for your images; `CIFAR` and `IMAGENET`
are the search spaces of the paper.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepaa.ops import Draw, apply_batch, apply_pil
    from deepaa.pipeline import find_policy
    from deepaa.policy import Chains, Layers, Policy
    from deepaa.policy_file import PolicyFileError, load_policy
    from deepaa.search import Search
    from deepaa.search_config import SearchConfig
    from deepaa.space import CIFAR, IMAGENET, Operation, Space, Transformation
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
    "load_policy",
]

try:
    __version__ = version("deepaa")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

# Names are imported when they are first used: torch takes seconds, and `deepaa --help` needs none.
_HOMES = {
    "deepaa.ops": ("Draw", "apply_batch", "apply_pil"),
    "deepaa.pipeline": ("find_policy",),
    "deepaa.policy": ("Chains", "Layers", "Policy"),
    "deepaa.policy_file": ("PolicyFileError", "load_policy"),
    "deepaa.search": ("Search",),
    "deepaa.search_config": ("SearchConfig",),
    "deepaa.space": ("CIFAR", "IMAGENET", "Operation", "Space", "Transformation"),
    "deepaa.transforms": ("AugmentedDataset", "DeepAutoAugment"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module 'deepaa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
