"""Records of searches and trainings for TensorBoard, as they come."""

from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
"""Inside a run folder."""


_KINDS = (  # fields that tell the kind of a record; where it is shown; what is shown; the step
    (
        {"layer", "step", "similarity"},
        "layer {layer}",
        ("similarity", "identity", "perplexity", "passes"),
        "step",
    ),
    (
        {"layer", "gain", "deepta_mean"},
        "by depth",
        ("gain", "improvement_mean", "improvement_std", "deepta_mean", "deepta_std"),
        "layer",
    ),
    ({"unit", "index", "of", "score"}, "search", ("score", "best", "passes"), "index"),
    ({"seed", "images_per_second", "parallel"}, "test", ("accuracy", "loss"), "seed"),
    ({"epoch", "loss", "lr"}, "{place}", ("loss", "accuracy", "lr", "images per second"), "step"),
)


class TensorBoardLog:
    """Writes the records of a search or a training as event files; close it at the end."""

    def __init__(self, folder: str | Path) -> None:
        """Begin a file in `folder`, which is made if need be.

        Raises:
            ValueError: The package tensorboard is missing.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "--tensorboard needs the package tensorboard: pip install 'deepaa[tensorboard]'"
            ) from None
        self._writer = SummaryWriter(str(folder))

    def add(self, record: Any) -> None:
        """Write the numbers of one record."""
        for name, value, step in scalars(record):
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Have everything on disk."""
        self._writer.close()


def scalars(record: Any) -> list[tuple[str, float, int]]:
    """(name, value, step) of the numbers of a record, a NamedTuple; nothing of an unknown kind."""
    fields: dict[str, Any] = record._asdict()
    if "record" in fields and "seed" in fields:  # an epoch of one seed
        fields = {"seed": fields["seed"], **fields["record"]._asdict()}
    if "lr" in fields:  # an epoch
        fields["place"] = f"train/seed {fields['seed']}" if "seed" in fields else "pre-training"
        fields["images per second"] = fields["images"] / max(fields["seconds"], 1e-9)
        fields["step"] = fields["epoch"] + 1
    for known, place, names, step in _KINDS:
        if known <= fields.keys():
            where = place.format(**fields)
            told = [name for name in names if fields[name] is not None]
            return [(f"{where}/{n}", float(fields[n]), fields[step]) for n in told]
    return []
