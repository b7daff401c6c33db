"""Policies as pipelines of other libraries: albumentations, kornia and torchvision.

Here belongs what writes files that run without this package. `kornia.py` and `torchvision.py` are
templates of such files; they are read, and never imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from deepaa.export import albumentations
from deepaa.export.shared import LEAST, Kept, difference_lines, filled_template, kept_rows
from deepaa.policy import Policy
from deepaa.runs import write_file

__all__ = ["LEAST", "TARGETS", "Exported", "export_policy", "pipeline_source"]

ENDINGS = {
    "albumentations": (".py", ".json", ".yaml", ".yml"),  # the others are its own files
    "kornia": (".py",),
    "torchvision": (".py",),
}
TARGETS = tuple(ENDINGS)


class Exported(NamedTuple):
    """What was written."""

    layers: int
    rows: int
    """Transformations over all layers."""
    left_out: int
    """Transformations of at most `LEAST` that are missing."""
    lost: float
    """The largest probability that a layer lost by that."""
    differences: tuple[str, ...]
    """Where pixels differ, for a file without comments; a Python file says it itself."""


def export_policy(
    policy: Policy, path: str | Path, target: str, *, name: str = "policy", size: int | None = None
) -> Exported:
    """Write `policy` as a pipeline of another library; the file does not import this package.

    Args:
        path: A `.py` file; for albumentations also its own `.json` or `.yaml`.
        target: One of `TARGETS`.
        name: What the file calls the policy.
        size: Side of the images in pixels. albumentations needs it for resized_crop, and with it
            moves images by the right whole pixels.
    """
    path, ending = Path(path), Path(path).suffix.lower()
    _check_target(target)
    if ending not in ENDINGS[target]:
        raise ValueError(f"{path}: {target} pipelines are written as {', '.join(ENDINGS[target])}")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise ValueError(f"{path}: a folder, expected the path of a file")
    kept = kept_rows(policy, name)
    write_file(path.resolve(), _text(kept, target, ending, path.stem, size).encode())
    differences = () if ending == ".py" else tuple(difference_lines(kept, target, size))
    return Exported(len(kept.layers), kept.rows, kept.left_out, kept.lost, differences)


def pipeline_source(
    policy: Policy, target: str, *, name: str = "policy", size: int | None = None
) -> str:
    """The Python text of the pipeline."""
    _check_target(target)
    return _text(kept_rows(policy, name), target, ".py", "pipeline", size)


def _check_target(target: str) -> None:
    if target not in TARGETS:
        raise ValueError(f"no export to {target!r}; choose from {', '.join(TARGETS)}")


def _text(kept: Kept, target: str, ending: str, module: str, size: int | None) -> str:
    """The file with this ending; `module` is the name by which a Python file is imported."""
    if ending != ".py":
        return albumentations.own_file(kept, size, kind="json" if ending == ".json" else "yaml")
    module = module if module.isidentifier() else "pipeline"
    if target == "albumentations":
        return albumentations.source(kept, module, size)
    return filled_template(kept, target, module)
