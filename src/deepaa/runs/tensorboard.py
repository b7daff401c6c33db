"""Records of searches and trainings for TensorBoard, as they come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""Inside a run folder."""


class HasFields(Protocol):
    """A record: a NamedTuple."""

    def _asdict(self) -> dict[str, Any]: ...


class TensorBoardLog:
    """Writes records as event files; close it at the end.

    Records may be those of a search or a training, or lines of a run's history.
    """

    def __init__(self, folder: str | Path) -> None:
        """Begin a file in `folder`, which is made if need be.

        Raises:
            ValueError: The package tensorboard is missing.
        """
        self._writer = _writer(Path(folder))

    def add(self, record: HasFields | Mapping[str, Any]) -> None:
        """Write the numbers of one record."""
        for name, value, step in scalars(record):
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Have everything on disk."""
        self._writer.close()


def _writer(folder: Path) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "--tensorboard needs the package tensorboard: pip install 'deepaa[tensorboard]'"
        ) from None
    return SummaryWriter(str(folder))


def scalars(record: HasFields | Mapping[str, Any]) -> list[tuple[str, float, int]]:
    """(name, value, step) of the numbers of a record; nothing of a kind that is not known."""
    fields: Mapping[str, Any] = record if isinstance(record, Mapping) else record._asdict()
    if "record" in fields and "seed" in fields:  # an epoch of one seed
        inner = fields["record"]
        fields = {"seed": fields["seed"], **inner._asdict()}
    for is_kind, make in _KINDS:
        if is_kind <= set(fields):
            return make(fields)
    return []


def _epoch(fields: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    place = f"train/seed {fields['seed']}" if "seed" in fields else "pre-training"
    names = ("loss", "accuracy", "lr")
    rate = fields["images"] / max(fields["seconds"], 1e-9)
    step = fields["epoch"] + 1
    found = [(f"{place}/{name}", float(fields[name]), step) for name in names]
    return [*found, (f"{place}/images per second", rate, step)]


def _step(fields: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    names = ("similarity", "identity", "perplexity", "passes")
    place = f"layer {fields['layer']}"
    return [(f"{place}/{name}", float(fields[name]), fields["step"]) for name in names]


def _layer(fields: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    names = ("gain", "improvement_mean", "improvement_std", "deepta_mean", "deepta_std")
    return [(f"by depth/{name}", float(fields[name]), fields["layer"]) for name in names]


def _seed(fields: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    return [(f"test/{name}", float(fields[name]), fields["seed"]) for name in ("accuracy", "loss")]


_KINDS = (
    ({"layer", "step", "similarity"}, _step),
    ({"layer", "gain", "deepta_mean"}, _layer),
    ({"seed", "images_per_second", "parallel"}, _seed),
    ({"epoch", "loss", "lr"}, _epoch),
)
