"""Which images a run reads and how, as one value that config.json can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deepaa.data.image_file import DEFAULT_READING, Reading, check_size
from deepaa.data.load import EMBEDDED, SHORT_NAMES, LabelledImages, load_dataset
from deepaa.data.splits import SearchSubset
from deepaa.data.test_split import TrainTest, official_test, train_and_test
from deepaa.runs import from_plain, to_plain


@dataclass(frozen=True)
class DataSpec:
    """The images of a run: where they lie and how their files are read.

    Two equal specs mean the same images as long as the files stay the same. `from_options` makes
    one of what a user says, `load` reads the images, `to_json` and `from_json` are for config.json.
    Use `dataclasses.replace` to say that a folder has moved.
    """

    data: str | None = None
    """A source of `load_dataset`: None for the embedded images, a name, or an absolute path."""
    size: int | None = None
    """Side of the square images in pixels; None as in `load_dataset`."""
    root: str | None = None
    """Where data sets with a name lie."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """What a damaged file does."""
    outside_links: bool = False
    """Whether links that lead out of an image folder are followed."""
    reading: Reading = DEFAULT_READING
    """How image files become pixels."""
    subset_sizes: tuple[int, int, int] | None = None
    """Where a search read only a part of a large folder: for splits of these sizes."""

    def __post_init__(self) -> None:
        """Check the values that a user can get wrong."""
        check_size(self.size)
        if self.on_bad_image not in ("stop", "skip"):
            raise ValueError(f"--on-bad-image should be stop or skip, got {self.on_bad_image!r}")

    @classmethod
    def from_options(
        cls,
        data: str | Path | None = None,
        *,
        size: int | None = None,
        root: str | Path | None = None,
        on_bad_image: str = "stop",
        outside_links: bool = False,
        read: Sequence[str] = (),
    ) -> DataSpec:
        """What the options of a command mean, with paths that hold from every working folder.

        Args:
            data: As `load_dataset` takes it.
            read: What `--read` says, NAME=VALUE each.
        """
        return cls(
            data=absolute_source(data),
            size=size,
            root=absolute_root(root, data),
            on_bad_image=on_bad_image,  # type: ignore[arg-type]  # checked above
            outside_links=outside_links,
            reading=Reading.parse(read),
        )

    def load(
        self, *, split: str = "train", download: bool = False, subset: SearchSubset | None = None
    ) -> LabelledImages:
        """The images of one part of the data set, see `load_dataset`."""
        return load_dataset(
            self.data, split=split, download=download, subset=subset, **self._arguments()
        )

    def load_test(self) -> LabelledImages | None:
        """The data set's own test images; None where it has none."""
        return official_test(self.data, self._arguments())

    def load_train_and_test(
        self,
        *,
        test: str | Path | None = None,
        holdout: float | None = None,
        download: bool = False,
    ) -> TrainTest:
        """The training images and the images to test on, see `train_and_test`."""
        return train_and_test(
            self.data, test=test, holdout=holdout, download=download, **self._arguments()
        )

    def subset(self, seed: int) -> SearchSubset | None:
        """What the run with this seed has read of its folder; None for all of it."""
        return None if self.subset_sizes is None else SearchSubset(self.subset_sizes, seed)

    def _arguments(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "root": self.root,
            "on_bad_image": self.on_bad_image,
            "outside_links": self.outside_links,
            **dataclasses.asdict(self.reading),
        }

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; `from_json` gives the spec back."""
        return to_plain(self)

    @classmethod
    def from_json(cls, entry: object, place: str = "config.json") -> DataSpec:
        """The spec that `to_json` wrote; a field that is missing has its default.

        Raises:
            ValueError: Names `place` and the first field with a wrong value.
        """
        if not isinstance(entry, dict):
            raise ValueError(f"{place}: expected an object, got {entry!r}")
        try:
            return from_plain(cls, entry, defaults=True)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error


def absolute_source(source: str | Path | None) -> str | None:
    """A source that means the same from every working folder: paths absolute, names as they are."""
    if source is None:
        return None
    return str(source) if _is_name(source) else str(Path(source).resolve())


def absolute_root(root: str | Path | None, *sources: str | Path | None) -> str | None:
    """Where data sets with a name lie, as an absolute path; None where no source is one."""
    named = any(s is not None and s != EMBEDDED and _is_name(s) for s in sources)
    return str(Path(root or "data").resolve()) if named else None


def _is_name(source: str | Path) -> bool:
    return str(source) in (EMBEDDED, *SHORT_NAMES) or not Path(source).exists()
