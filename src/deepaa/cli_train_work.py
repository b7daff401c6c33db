"""One call of `deepaa train`: its folders, their trainings, and how it ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from deepaa import cli_train_progress, distributed
from deepaa.agreement import by_all, by_main
from deepaa.runs import Run, check_folder, open_in_main
from deepaa.signals import StopRequest
from deepaa.training_folder import (
    PLACES,
    SCANS,
    agreed_seeds,
    check_seeds,
    foreseen_seeds,
    remember_inner,
    scans_of,
)
from deepaa.training_plan import Asked, Plan, is_policy_name
from deepaa.training_run import TrainingRun


@dataclass(frozen=True)
class Order:
    """What is trained, in which folder."""

    asked: Asked
    folder: Path


def folder_names(policies: Sequence[str]) -> list[str]:
    """A folder for each policy: its name, or that of its file, or of the run it was found in."""
    names = []
    for policy in policies:
        path = Path(policy)
        if is_policy_name(policy) or not path.is_file():
            name = re.sub(r"[^\w.=,+-]+", "-", policy)
        else:
            name = path.resolve().parent.name if path.name == "policy.json" else path.stem
        if name in names:
            raise ValueError(
                f"--policy {policy}: two policies would be trained in a folder {name}; train them "
                "with an --out each"
            )
        names.append(name)
    return names


@dataclass
class Work:
    """All that one call trains, side by side."""

    orders: Sequence[Order]
    out: Path
    """The folder of the only run, or the one that holds those of several policies."""
    count: int | None
    """New seeds of each run."""
    seeds: tuple[int, ...]
    """Those by number."""
    parallel: int
    workers: int | None
    checkpoint_seconds: float
    resume: bool
    download: bool
    tensorboard: bool = False
    scan: bool = True
    """Whether files that are read in every epoch are all decoded first."""

    def run(self, device: torch.device, *, dry_run: bool) -> None:
        """Train, show progress, and print the results."""
        plans = by_all(lambda: self._plans(device, dry_run=dry_run))
        if dry_run:
            foreseen = by_main(lambda: self._foreseen(plans))
            if foreseen is not None:  # the main process
                for plan, seeds in zip(plans, foreseen, strict=True):
                    cli_train_progress.foretell(plan, seeds)
            return
        with StopRequest() as stop, ExitStack() as opened:
            runs = [
                self._opened(order, plan, opened)
                for order, plan in zip(self.orders, plans, strict=True)
            ]
            self._train(plans, runs, stop)

    def _plans(self, device: torch.device, *, dry_run: bool) -> list[Plan]:
        """What is wrong with any of them is said before a folder is made."""
        check_seeds(self.seeds)
        plans: list[Plan] = []
        for order in self.orders:
            like = plans[0] if plans else None
            skips = order.asked.source["on_bad_image"] == "skip"  # numbers depend on the scan then
            plan = Plan.of(
                order.asked,
                device,
                download=self.download,
                workers=self.workers,
                like=like,
                scan=self.scan and (skips or not dry_run),
                scans=scans_of(order.folder),
            )
            if self.parallel > 1 and (plan.streams or distributed.world_size() > 1):
                reason = "--stream" if plan.streams else "several processes"
                raise ValueError(f"--parallel {self.parallel} does not go with {reason}")
            plan.rehearse()
            plans.append(plan)
        return plans

    def _new_count(self) -> int | None:
        nothing_said = self.count is None and not self.seeds and not self.resume
        return 1 if nothing_said else self.count

    def _foreseen(self, plans: Sequence[Plan]) -> list[list[int]]:
        """The seeds each would train; what the folders would refuse is refused here too."""
        folders = [order.folder for order in self.orders]
        for folder, plan in zip(folders, plans, strict=True):
            check_folder(folder, plan.identity(folder))
        asked: dict[str, Any] = {"count": self._new_count(), "given": self.seeds}
        return [foreseen_seeds(folder, **asked, resume=self.resume) for folder in folders]

    def _opened(self, order: Order, plan: Plan, opened: ExitStack) -> Run | None:
        config = by_main(lambda: plan.identity(order.folder))
        run = open_in_main(order.folder, config or {}, resume=self.resume)
        if run is not None:
            opened.callback(run.close)
        return run

    def _train(self, plans: Sequence[Plan], runs: Sequence[Run | None], stop: StopRequest) -> None:
        if len(runs) > 1:  # none gets new seeds unless all can
            for run in runs:
                self._seeds(run, remember=False)
            by_main(lambda: remember_inner(self.out, [order.folder for order in self.orders]))
        tasks = {
            _name(order, self.out): self._task(plan, run, stop)
            for order, plan, run in zip(self.orders, plans, runs, strict=True)
        }
        cli_train_progress.follow(tasks, self.parallel, tensorboard=self.tensorboard)
        if any(task.stopped for task in tasks.values()):
            cli_train_progress.say(self._farewell(tasks.values()))
            raise typer.Exit(stop.exit_code or 143)
        cli_train_progress.conclude(tasks, self.out)
        failed = [
            f"{name}: {each.reason}" if name else each.reason
            for name, task in tasks.items()
            for each in sorted(task.failures)
        ]
        if failed:
            raise _told_once(failed)

    def _seeds(self, run: Run | None, *, remember: bool = True) -> list[int]:
        return agreed_seeds(
            run,
            count=self._new_count(),
            given=self.seeds,
            resume=self.resume,
            remember=remember,
        )

    def _task(self, plan: Plan, run: Run | None, stop: StopRequest) -> TrainingRun:
        seeds = self._seeds(run)
        if run is not None:
            run.write_policy(plan.policy)
            run.write_json(PLACES, plan.places())
            if any((scans := plan.scans()).values()):
                run.write_json(SCANS, scans)
        return TrainingRun(
            plan.material,
            plan.model,
            plan.policy,
            plan.config,
            seeds,
            device=plan.device,
            parallel=self.parallel,
            run=run,
            facts=plan.facts(),
            checkpoint_seconds=self.checkpoint_seconds,
            stop=lambda: stop.requested,
        )

    def _farewell(self, tasks: Iterable[TrainingRun]) -> str:
        again = f"deepaa train --resume {self.out}"
        if self.parallel > 1:
            again += f" --parallel {self.parallel}"
        if any(task.has_state for task in tasks):
            return f"stopped; whole epochs are saved, one in work is lost; go on with: {again}"
        return f"stopped before an epoch ended: only the settings are saved; begin with: {again}"


def _name(order: Order, out: Path) -> str:
    """What tells a run from the others of the call; nothing where it is alone."""
    return "" if order.folder == out else order.folder.name


def _told_once(failed: Sequence[str]) -> Exception:
    """The error of the call: the first seed's, in one process."""
    if not distributed.is_main():
        return typer.Exit(2)
    several = f"{len(failed)} seeds failed, the first: " if len(failed) > 1 else ""
    return FloatingPointError(f"{several}{failed[0]}")
