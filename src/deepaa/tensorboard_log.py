"""Records of searches and trainings for TensorBoard, as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""Inside a run folder."""


class HasFields(Protocol):
    """A record: a NamedTuple."""

    def _asdict(self) -> dict[str, Any]: ...


R = TypeVar("R")


class TensorBoardLog:
    """Writes records as event files; close it, or use it in a `with` statement.

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

    def follow(self, records: Iterable[R]) -> Iterator[R]:
        """The same records, each written as it passes; closes at the end."""
        with self:
            for record in records:
                self.add(record)  # type: ignore[arg-type]
                yield record

    def close(self) -> None:
        """Have everything on disk."""
        self._writer.close()

    def __enter__(self) -> Self:
        """The log itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the log."""
        self.close()


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
