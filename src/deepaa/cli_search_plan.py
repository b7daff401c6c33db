"""One search as the command asked for it: data, run folder, progress, result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepaa import cli_progress

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deepaa.pipeline import PolicySearch
    from deepaa.run_settings import Settings
    from deepaa.sources import LabelledImages
    from deepaa.splits import Needed
    from deepaa.tensorboard_log import TensorBoardLog


class Plan:
    """One search as it was asked for."""

    def __init__(
        self,
        settings: Settings,
        source: dict[str, Any],
        out: Path,
        device: torch.device,
        checkpoint_seconds: float,
        is_resumed: bool,
    ) -> None:
        """Nothing happens before `run`."""
        self.settings, self.source, self.out, self.device = settings, source, out, device
        self.checkpoint_seconds, self.is_resumed = checkpoint_seconds, is_resumed
        self.for_large: Callable[[], Settings] | None = None
        """The settings for large images, where the user left the preset open."""
        self.verify = False
        self.verify_epochs: int | None = None
        self.tensorboard = False
        self.moved: str | None = None
        """Where the images of a resumed run are now; their checksum says whether they are."""

    def run(self, *, download: bool, dry_run: bool) -> None:
        """Search, or only say what would be done."""
        from deepaa.own_model import load_model, state_hash
        from deepaa.pipeline import PolicySearch, StopAskedError, open_run
        from deepaa.signals import StopRequest

        images = self._images(download)
        self._settle(images)
        work: dict[str, Any] = {**self.settings._asdict(), "device": self.device}
        source = dict(self.source)
        work["sizes"] = images.reads or self._sizes()
        if images.reads is not None:  # a run without the entry has read all images
            source["reads"] = list(images.reads)
        if source["weights"] is not None:
            seed = self.settings.search.seed
            work["model"] = load_model(source["model"], images, seed, source["weights"])
            source["weights_sha256"] = state_hash(work["model"])
        if dry_run:
            work["sizes"] = self._kept_sizes() or work["sizes"]
            cli_progress.foretell(PolicySearch(images, **work))
            return
        with StopRequest() as stop:

            def is_asked() -> bool:
                return stop.requested

            run = open_run(self.out, self.settings, images, source, resume=self.is_resumed)
            try:
                work |= {"run": run, "stop": is_asked}
                task = PolicySearch(images, checkpoint_seconds=self.checkpoint_seconds, **work)
                cli_progress.follow(task, self._tensorboard())
                if task.stopped:
                    cli_progress.say(
                        f"stopped and saved; go on with: deepaa search --resume {self.out}"
                    )
                    raise typer.Exit(stop.exit_code or 143)
                cli_progress.conclude(task, self.out)
                if self.verify:
                    self._verify(task, is_asked)
            except StopAskedError:
                again = f"deepaa search --resume {self.out} --verify"
                cli_progress.say(f"stopped; the policy is there, compare it with: {again}")
                raise typer.Exit(stop.exit_code) from None
            finally:
                if run is not None:
                    run.close()

    def _tensorboard(self) -> TensorBoardLog | None:
        from deepaa import distributed
        from deepaa.tensorboard_log import FOLDER, TensorBoardLog

        wanted = self.tensorboard and distributed.is_main()
        return TensorBoardLog(self.out / FOLDER) if wanted else None

    def _settle(self, images: LabelledImages) -> None:
        """The preset for images of this size; other choices are allowed, but seldom meant."""
        from deepaa.pipeline import is_large

        if not is_large(images.images):
            return
        height, width = images.images.shape[-2:]
        if self.for_large is not None:
            self.settings = self.for_large()
            cli_progress.say(f"images of {width} x {height}: --preset imagenet")
        small = any(op.name == "crop" for op in self.settings.space.operations)
        if small:
            cli_progress.say(
                f"hint: images of {width} x {height} with the CIFAR space (cutout of 16 pixels, "
                "crop by 4); --preset imagenet is made for large images"
            )

    def _reading(self) -> dict[str, Any]:
        from deepaa.sources import file_choices

        return {name: self.source[name] for name in ("size", "root")} | file_choices(self.source)

    def _sizes(self) -> tuple[int, int, int] | None:
        splits = self.source.get("splits")
        return None if splits is None else (splits[0], splits[1], splits[2])

    def _kept_sizes(self) -> tuple[int, int, int] | None:
        """Of the parts that a run has, to foretell the rest of it without opening it."""
        from deepaa.pipeline import SPLITS
        from deepaa.run_files import read_json

        path = self.out / SPLITS
        if not self.is_resumed or not path.exists():
            return None
        first, second, third = (len(part) for part in read_json(path).values())
        return first, second, third

    def _needed(self) -> Needed | None:
        from deepaa.sources import needed_again
        from deepaa.splits import Needed

        seed = self.settings.search.seed
        if self.is_resumed:
            return needed_again(self.source, seed)
        return Needed(self._sizes(), seed, pretrains=self.source["weights"] is None)

    def _images(self, download: bool) -> LabelledImages:
        from deepaa import distributed
        from deepaa.sources import load_dataset

        if download and not distributed.is_main():
            distributed.barrier()  # one process fetches, the others find it
        if not distributed.is_main():  # which says the same about the images
            logging.getLogger("deepaa.sources").setLevel(logging.ERROR)
        where = self.moved or self.source["data"]
        reading = self._reading()
        try:
            found = load_dataset(where, download=download, needed=self._needed(), **reading)
        except MemoryError as error:
            if self.is_resumed or where is None or not Path(where).is_dir():
                raise  # fewer images cannot be asked for, or all are in one file
            raise MemoryError(f"{error}, as three numbers for --splits") from error
        if download and distributed.is_main():
            distributed.barrier()
        return found

    def _verify(self, task: PolicySearch, stop: Callable[[], bool]) -> None:
        from deepaa import distributed
        from deepaa.test_sets import official_test
        from deepaa.verify import compare, fresh_model, trial_of, usual_epochs

        if not distributed.is_main():
            return
        test = official_test(self.moved or self.source["data"], self._reading())

        def make() -> nn.Module:
            return fresh_model(task, self.source["model"])

        trial = trial_of(task, test)
        epochs = self.verify_epochs or usual_epochs(len(trial.labels))
        results = compare(task, trial, make, epochs, stop)
        cli_progress.show_comparison(results, trial, epochs, self.out)
