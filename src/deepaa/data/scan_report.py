"""What a scan of image files found, in words and as JSON, and when it stops a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from deepaa.data.folder import ImageTree, listed
from deepaa.data.image_file import BadFile, Reason, shown

OnBadImage = Literal["stop", "skip"]
LIMIT_BAD = 0.01
"""More bad files than this share stop the reading even where they may be left out."""


def check_on_bad_image(choice: str) -> None:
    """Refuse what is no `OnBadImage`."""
    if choice not in get_args(OnBadImage):
        raise ValueError(f"on_bad_image should be 'stop' or 'skip', got {choice!r}")


class ScanReport(NamedTuple):
    """What a folder's files turned out to be."""

    place: str
    files: int
    """Files that should be images."""
    bad: tuple[BadFile, ...]
    """Those that are none, with their paths below the folder."""
    damaged_exif: int
    """Images whose EXIF data could not be read; they were taken as they are stored."""
    ignored: Mapping[str, int]
    """Entries that were passed over, by why."""

    def counts(self) -> dict[str, int]:
        """Bad files by reason, the most frequent first."""
        return dict(Counter(str(file.reason) for file in self.bad).most_common())

    def bad_summary(self) -> str:
        """The bad files in one line: how many of each reason, and the first ten by name."""
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.counts().items())
        names = listed([f"{shown(file.path)} ({file.detail})" for file in self.bad], "; ")
        bad = "is bad" if len(self.bad) == 1 else "are bad"
        return f"{len(self.bad)} of {self.files} files {bad} ({reasons}): {names}"

    def lines(self) -> list[str]:
        """What a person should know, one line for each thing; nothing where all is well."""
        found = [self.bad_summary()] if self.bad else []
        if self.damaged_exif:
            found.append(f"{self.damaged_exif} images were not turned: their EXIF data are damaged")
        passed = [f"{n} {why}" for why, n in sorted(self.ignored.items())]
        return [*found, f"passed over: {', '.join(passed)}"] if passed else found

    def check(
        self, tree: ImageTree, labels: Iterable[int], on_bad_image: OnBadImage, limit: float
    ) -> None:
        """Raises BadImagesError where bad files may not be skipped, or are too many to skip.

        Args:
            tree: The files that were looked at.
            labels: The classes of the good ones.
            limit: The largest share of bad files that may be skipped.
        """
        if not self.bad:
            return
        message = f"{self.place}: {self.bad_summary()}"
        if on_bad_image == "stop":
            raise BadImagesError(
                f"{message}. Repair or remove them, or leave them out with --on-bad-image skip "
                "(on_bad_image='skip' in Python)",
                self,
            )
        if len(self.bad) > limit * self.files:
            raise BadImagesError(
                f"{message}. More than {limit:.4g} of all is too many to skip", self
            )
        if lost := sorted(set(tree.labels) - set(labels)):
            names = ", ".join(shown(tree.class_names[label]) for label in lost)
            raise BadImagesError(f"{message}. Without them no images are left of {names}", self)

    def to_json(self) -> dict[str, Any]:
        """The report without its place; `json` also brings back names that are no text."""
        bad = [[str(file.path), str(file.reason), file.detail] for file in self.bad]
        found = {"files": self.files, "bad": bad, "damaged_exif": self.damaged_exif}
        return {**found, "ignored": dict(self.ignored)}

    @staticmethod
    def from_json(document: Mapping[str, Any], place: str) -> ScanReport:
        """The report that `to_json` wrote; ValueError, KeyError or TypeError where it is none."""
        bad = tuple(
            BadFile(Path(name), Reason(reason), str(detail))
            for name, reason, detail in document["bad"]
        )
        files, exif = int(document["files"]), int(document["damaged_exif"])
        return ScanReport(place, files, bad, exif, dict(document["ignored"]))


class BadImagesError(ValueError):
    """Files that should be images are not; `report` names them all."""

    def __init__(self, message: str, report: ScanReport) -> None:
        """`message` is what a person reads."""
        super().__init__(message)
        self.report = report
