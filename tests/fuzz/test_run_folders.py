"""2,000 mutants of run folders: each is resumed and shown, or refused in one line."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from folder_mutants import mutate_folder
from fuzzing import is_found, run_round
from run_folders import (
    begun_search,
    contest_request,
    contested,
    finished_search,
    trained,
    with_code,
    write_data,
)

from deepaa.cli.report import _runs
from deepaa.report import make_page, read_subject
from deepaa.runs import Run
from deepaa.search import SearchRequest, open_contest, open_search
from deepaa.train import (
    SeedRequest,
    TrainingRun,
    build_experiment,
    read_results,
    runs_in,
    stored_request,
)

ROUNDS, EACH = 4, 500
VICTIM = "a file outside of the folder\n"
CPU = torch.device("cpu")


class Folders:
    """Real run folders, and what a person does with a changed copy of one."""

    def __init__(self, root: Path) -> None:
        data = write_data(root)
        self.root, self.data, self.sources = root, data, dict[str, Path]()
        searches = {"begun": None, "pretrained": 1, "searched": 3, "found": 99}
        for name, records in searches.items():
            folder = root / name
            if records is None:
                self.sources[name] = begun_search(folder, data)
            else:
                self.sources[name] = finished_search(folder, data, records)
        self.sources["proving"] = finished_search(root / "proving", data, 8, contest=True)
        self.sources["contest"] = contested(root / "contest", data)
        self.sources["trained"] = trained(root / "trained", data)
        self.sources["training"] = trained(root / "training", data, stop_after=1)
        self.changed = ""
        """The file that differs."""
        self.passed = 0
        """Mutants that were more than a damaged file to their reader."""
        (root / "victim.txt").write_text(VICTIM)
        with_code(root, root / "ran")

    def __call__(self, seed: int) -> str:
        name = list(self.sources)[seed % len(self.sources)]
        folder = self.root / "mutant"
        self.changed = mutate_folder(self.sources[name], folder, seed)
        try:
            how = {"trained": self.training, "training": self.training, "contest": self.contest}
            how.get(name, self.search)(folder, seed // len(self.sources))
        except ValueError as error:
            self.passed += not any(words in str(error) for words in DAMAGE)
            raise
        finally:
            assert (self.root / "victim.txt").read_text() == VICTIM
            assert not (self.root / "ran").exists()
        self.passed += 1
        return "read"

    def search(self, folder: Path, seed: int) -> None:
        """Show the run, then resume it and, for a few, take a step."""
        subject = read_subject(str(folder))
        if seed % 3 == 0 or self.changed == "history.jsonl":
            make_page(subject, originals=None if seed % 2 else EXAMPLES)
        request = SearchRequest.from_run(folder)
        with open_search(request, folder, device=CPU, resume=True) as search:
            if seed % 8 == 0 or (folder / "contest.json").exists():
                next(iter(search), None)

    def contest(self, folder: Path, seed: int) -> None:
        """Show the contest, then go on with it for a record."""
        make_page(read_subject(str(folder)), originals=None if seed % 2 else EXAMPLES)
        with open_contest(contest_request(self.data), folder, device=CPU) as contest:
            next(iter(contest), None)

    def training(self, folder: Path, seed: int) -> None:
        """Show the results, then resume the training and, for a few, begin an epoch."""
        found = [read_results(path) for path in _runs(folder) if (path / "results.json").exists()]
        if found and found[0][0] and seed % 3 == 0:
            make_page(read_subject("none"), found, originals=EXAMPLES)
        for path in runs_in(folder):
            experiment = build_experiment(stored_request(path), CPU)
            with Run(path, experiment.identity(), resume=True) as run:
                seeds = SeedRequest(resume=True)
                seeds.preview(path)
                training = TrainingRun(experiment, seeds.add_to(run), run=run)
                if seed % 4 == 0:
                    for each in training.begun:
                        training.begin(each)


def _examples() -> Any:
    from deepaa.report import Originals

    return Originals(torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "Black.")


EXAMPLES = _examples()
DAMAGE = ("not JSON", "its checksum is wrong", "cannot be read", "not a safetensors file")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    path = tmp_path_factory.mktemp("fuzz")
    sys.path.append(str(path))  # where the code of a stranger could be found
    logging.disable(logging.WARNING)  # a damaged line is left out with a warning
    yield Folders(path)
    logging.disable(logging.NOTSET)
    sys.path.remove(str(path))


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """A reader that waits for a pipe fails."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(1500)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
def test_every_mutant_is_a_run_or_one_line(number: int, folders: Folders) -> None:
    folders.passed = 0
    counts, failures = run_round(range(number * EACH, (number + 1) * EACH), folders, 20.0)
    assert failures == []
    assert sum(counts.values()) == EACH
    assert folders.passed > 0.5 * EACH
    assert counts["read"] > 0.2 * EACH, counts


def test_a_few_mutants(folders: Folders) -> None:
    """The same quickly, for `make test`."""
    counts, failures = run_round(range(10**6, 10**6 + 24), folders, 20.0)
    assert failures == []
    assert counts["read"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "planted"),
    [
        ("deepaa.runs.settings.checked_value", lambda hint, value, name: value),
        ("deepaa.report.subject.checked_records", lambda records, place: tuple(records)),
    ],
)
def test_a_planted_bug_is_found(
    place: str, planted: Any, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a check of types, what a folder holds reaches code that expects something else."""
    monkeypatch.setattr(place, planted)
    assert is_found(range(1_500), folders, 20.0)
