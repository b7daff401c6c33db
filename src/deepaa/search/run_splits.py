"""The file in a run folder that says which images were in which part."""

from __future__ import annotations

from pathlib import Path

import torch

from deepaa.data import Splits
from deepaa.runs import RunError, read_json

SPLITS = "splits.json"


def stored_splits(folder: Path, images: int) -> Splits | None:
    """The splits of the run in a folder with so many images; None before it has any.

    Runs of the first versions have no judge.
    """
    if not (path := folder / SPLITS).exists():
        return None
    try:
        parts = {k: torch.tensor(v, dtype=torch.int64) for k, v in read_json(path).items()}
        kept = Splits(**parts)
        used = torch.cat(kept).bincount(minlength=images)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"{path}: damaged; without it the splits are drawn again") from error
    if len(used) > images or int(used.max()) > 1:
        raise RunError(f"{path}: damaged: it names images that are not there, or one twice")
    return kept
