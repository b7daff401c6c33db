"""Several seeds in a run folder: accumulating, stopping, resuming, being killed."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import Net, blobs
from safetensors.torch import load_file
from torch import nn

import deepaa
from deepaa.policy import Policy
from deepaa.policy_file import load_policy
from deepaa.results import read_results
from deepaa.run_files import RunError
from deepaa.runs import Run, read_history
from deepaa.sources import LabelledImages, fingerprint
from deepaa.test_sets import TrainTest
from deepaa.train import TrainConfig, Training, evaluate
from deepaa.training_data import InMemory, new_model
from deepaa.training_run import (
    SeedEpoch,
    TrainingRun,
    agreed_seeds,
    identity,
    open_folder,
    policy_hash,
)

CONFIG = TrainConfig(epochs=3, batch=32, lr=0.05)
POLICY = load_policy("crop-flip")


def labelled(n: int, seed: int) -> LabelledImages:
    images, labels = blobs(n, seed)
    names = tuple("abcd")
    return LabelledImages(images, labels, names, "blobs", fingerprint(images, labels))


MATERIAL = InMemory(TrainTest(labelled(128, 1), labelled(60, 2), "other blobs"))


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def task(
    run: Run | None, seeds: list[int], config: TrainConfig = CONFIG, **options: Any
) -> TrainingRun:
    options = {"checkpoint_seconds": 0.0, **options}
    return TrainingRun(MATERIAL, network, POLICY, config, seeds, run=run, **options)


def opened(folder: Path, config: TrainConfig = CONFIG) -> Run:
    run = open_folder(folder, identity(POLICY, "net", config, MATERIAL, {}), resume=False)
    assert run is not None
    return run


def lasting(folder: Path) -> list[dict[str, Any]]:
    """The history without what depends on the clock."""
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in r.items() if k not in timed} for r in read_history(folder)]


# Results


def test_every_seed_is_trained_and_tested_as_if_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        work = task(run, [0, 4])
        events = list(work)
    kinds = [event.seed if isinstance(event, SeedEpoch) else "done" for event in events]
    assert kinds == [0, 0, 0, "done", 4, 4, 4, "done"]
    found, content = read_results(tmp_path / "run")
    assert [result.seed for result in found] == [0, 4]
    images, labels = MATERIAL.data.train.images, MATERIAL.data.train.labels
    test = MATERIAL.data.test
    for result in found:
        alone = Training(network(result.seed), images, labels, POLICY, CONFIG)
        alone.config = alone.batches.config = replace(CONFIG, seed=result.seed)  # type: ignore
        list(alone)
        expected = evaluate(alone.model, test.images, test.labels)
        assert (result.accuracy, result.loss) == (expected.accuracy, expected.loss)
        assert (result.epochs, result.device, result.parallel) == (3, "cpu", 1)
        assert result.seconds > 0
        assert result.images_per_second > 0
    mean = sum(result.accuracy for result in found) / 2
    assert content["accuracy"]["mean"] == pytest.approx(mean)
    assert content["accuracy"]["seeds"] == 2
    assert "versions" in content["made_by"]
    epochs = [record for record in read_history(tmp_path / "run") if record["kind"] == "epoch"]
    assert [(r["seed"], r["epoch"]) for r in epochs] == [(s, e) for s in (0, 4) for e in range(3)]
    assert {"loss", "accuracy", "lr", "images"} <= epochs[0].keys()


def test_at_once_or_one_by_one_is_the_same(tmp_path: Path) -> None:
    results = []
    for parallel in (1, 2, 5):
        work = task(None, [0, 1, 2], parallel=parallel)
        list(work)
        results.append([(r.seed, r.accuracy, r.loss) for r in sorted(work.results)])
        assert {r.parallel for r in work.results} <= {1, parallel, 3}
    assert results[0] == results[1] == results[2]


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    work = task(None, [3])
    assert len(list(work)) == 4
    assert work.pending == []
    assert not list(tmp_path.iterdir())


def test_bad_amounts() -> None:
    with pytest.raises(ValueError, match="parallel should be at least 1, got 0"):
        task(None, [0], parallel=0)
    with pytest.raises(ValueError, match="a seed is trained once, got 1, 2, 1"):
        task(None, [1, 2, 1])


# Seeds


def test_seeds_accumulate_and_never_repeat(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for count, given, expected in (
        (2, [], [0, 1]),
        (1, [], [0, 1, 2]),
        (None, [9, 5], [0, 1, 2, 9, 5]),
        (2, [20], [0, 1, 2, 9, 5, 20, 21, 22]),
    ):
        with opened(folder) as run:
            seeds = agreed_seeds(run, count=count, given=given, resume=False)
            assert seeds == expected
            before = {result.seed for result in task(run, seeds).results}
            list(task(run, seeds, replace(CONFIG, epochs=1)))
            assert before < {result.seed for result in task(run, seeds).results}
    found, _ = read_results(folder)
    assert [result.seed for result in found] == [0, 1, 2, 5, 9, 20, 21, 22]
    with opened(folder) as run:
        for given in ([5], [30, 30]):
            with pytest.raises(RunError, match=r"seed \d+ would be trained twice; the run has 0"):
                agreed_seeds(run, count=None, given=given, resume=False)


def test_unfinished_seeds_come_first(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        assert agreed_seeds(run, count=2, given=[], resume=False) == [0, 1]
    with opened(tmp_path) as run:
        with pytest.raises(RunError, match=r"seeds 0, 1 not finished; go on with: .*--resume"):
            agreed_seeds(run, count=1, given=[], resume=False)
        assert agreed_seeds(run, count=None, given=[], resume=True) == [0, 1]
        assert agreed_seeds(run, count=1, given=[], resume=True) == [0, 1, 2]
        list(task(run, [0]))
        with pytest.raises(RunError, match="seeds 1, 2 not finished"):
            agreed_seeds(run, count=1, given=[], resume=False)


def test_another_configuration_is_refused_naming_the_difference(tmp_path: Path) -> None:
    opened(tmp_path / "run").close()
    with pytest.raises(RunError, match=r"train.lr: 0.05 there, 0.1 now"):
        opened(tmp_path / "run", replace(CONFIG, lr=0.1))
    other = identity(load_policy("crop-flip-cutout"), "net", CONFIG, MATERIAL, {})
    with pytest.raises(RunError, match="policy_sha256"):
        open_folder(tmp_path / "run", other, resume=False)
    images = InMemory(TrainTest(labelled(128, 7), labelled(60, 2), "other blobs"))
    config = identity(POLICY, "net", CONFIG, images, {})
    with pytest.raises(RunError, match=r"images\.fingerprint"):
        open_folder(tmp_path / "run", config, resume=False)
    # the seed of the settings says nothing
    opened(tmp_path / "run", replace(CONFIG, seed=5)).close()


def test_the_hash_of_a_policy_is_that_of_its_content() -> None:
    stages = [(phase.epoch, phase.stages) for phase in POLICY.phases]
    renamed = Policy(POLICY.table, schedule=stages, info={"description": "another name"})
    assert policy_hash(renamed) == policy_hash(POLICY)
    assert policy_hash(load_policy("crop-flip-cutout")) != policy_hash(POLICY)
    assert policy_hash(None) is None


# Networks


class _Wide(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 16 * 16, classes + 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.float().flatten(1) / 255)


def test_a_network_has_as_many_outputs_as_there_are_classes(monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match="has 7 outputs, but blobs has 4 classes"):
        new_model("test_training_run:_Wide", MATERIAL, 0)
    with pytest.raises(ValueError, match=r"cannot take images of shape \(3, 16, 16\)"):
        new_model("vit_b_16", MATERIAL, 0)
    model = new_model("small", MATERIAL, 3, ((0.5,) * 3, (0.25,) * 3))
    again = new_model("small", MATERIAL, 3)
    assert torch.equal(model.network[0].weight, again.network[0].weight)
    assert not torch.equal(model.normalize.mean, again.normalize.mean)


# Stopping


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("calls", [1, 4, 9, 14, 20])
def test_asked_to_stop_it_saves_and_goes_on_bit_for_bit(
    tmp_path: Path, calls: int, parallel: int
) -> None:
    """Asked at every step and after every epoch; a stop in an epoch loses that epoch."""
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    with opened(straight) as run:
        list(task(run, [0, 1], parallel=parallel))
    left = calls

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    with opened(parts) as run:
        work = task(run, [0, 1], parallel=parallel, checkpoint_seconds=1000.0, stop=stop)
        events = list(work)
        assert work.stopped
    whole = [r for r in read_history(parts) if r["kind"] == "epoch"]
    assert len(whole) == sum(isinstance(event, SeedEpoch) for event in events)
    with opened(parts) as run:
        assert len(run.history()) == len(whole) + sum(
            not isinstance(event, SeedEpoch) for event in events
        ), "what was shown before the stop is kept"
        work = task(run, [0, 1], parallel=parallel)
        list(work)
        assert not work.stopped
    assert lasting(parts) == lasting(straight)
    a, b = (load_file(folder / "state.safetensors") for folder in (parts, straight))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_loss_that_is_no_number_keeps_the_last_good_state(tmp_path: Path) -> None:
    class Breaking(Net):
        steps = 0

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.steps += self.training
            out = super().forward(images)
            return out * math.nan if self.steps > 6 else out  # four steps an epoch

    def broken(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Breaking()

    with opened(tmp_path) as run:
        work = TrainingRun(
            MATERIAL, broken, POLICY, CONFIG, [5], run=run, checkpoint_seconds=1000.0
        )
        with pytest.raises(FloatingPointError, match="seed 5, epoch 1, step 2: loss nan"):
            list(work)
        saved = run.latest()
        assert saved is not None
        assert int(saved.tensors["5.epoch"]) == 1
        assert all(bool(t.isfinite().all()) for t in saved.tensors.values())
        assert [r["kind"] for r in run.history()] == ["epoch"]


def test_results_that_a_kill_kept_from_the_file_are_written_next_time(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        list(task(run, [0]))
    (tmp_path / "results.json").unlink()
    with opened(tmp_path) as run:
        assert list(task(run, [0])) == []
    assert len(read_results(tmp_path)[0]) == 1


# Kills

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        [str(Path(deepaa.__file__).parents[1]), str(Path(__file__).parent)]
    ),
    "OMP_NUM_THREADS": "1",
}


def kill_again_and_again(out: Path, arguments: list[str], seed: int = 0) -> None:
    """Start, kill at a random instant or before a file operation, resume, until it ends."""
    from killing import attempt, finish, lines

    import deepaa.cli_train_progress
    import deepaa.training_plan  # noqa: F401 - so that forks need not

    torch.set_num_threads(1)
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    by_hand = 0
    for number in range(300):
        # a run that was killed before it knew its seeds begins again
        resumes = (out / "seeds.json").exists()
        rest = ["--checkpoint-seconds", "0"]
        now = ["train", "--resume", str(out), *rest] if resumes else [*arguments, *rest]
        records = [json.loads(line) for line in lines(out)]
        phase = f"{sum(r['kind'] == 'seed' for r in records)} done" if records else "start"
        if number % 2:
            pid = attempt(now, die_at=chance.randint(1, 30))
        else:
            pid = attempt(now)
            wanted = len(lines(out)) + chance.randint(1, 2)
            deadline = time.monotonic() + chance.uniform(0.05, 1.5)
            while len(lines(out)) < wanted and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
        if finish(pid):
            killed[phase] += 1
            by_hand += number % 2
        else:
            break
    sys.stdout.write(json.dumps({"killed": killed, "in_file_operations": by_hand}))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
def test_killed_at_any_instant_it_ends_with_the_same_networks(
    tmp_path: Path, parallel: int
) -> None:
    images, labels = blobs(200, 1)
    np.savez(tmp_path / "blobs.npz", x=images.numpy(), y=labels.numpy())
    arguments = ["train", "--data", str(tmp_path / "blobs.npz"), "--policy", "crop-flip"]
    arguments += ["--model", "small", "--epochs", "4", "--batch", "32", "--seeds", "3"]
    arguments += ["--device", "cpu", "--parallel", str(parallel), "--out"]
    straight, out = tmp_path / "straight", tmp_path / "killed"
    command = [sys.executable, "-m", "deepaa", *arguments, str(straight)]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, timeout=120)
    code = (
        "import sys, pathlib, test_training_run as t\n"
        "t.kill_again_and_again(pathlib.Path(sys.argv[1]), sys.argv[2:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, out, *arguments, out],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sum(report["killed"].values()) >= 10, report
    assert report["in_file_operations"] >= 4, report
    for name in ("policy.json", "config.json", "seeds.json"):
        assert (out / name).read_bytes() == (straight / name).read_bytes(), name
    if parallel == 1:  # resumed without --parallel, seeds come one by one
        assert lasting(out) == lasting(straight)
    results = [
        [(r.seed, r.accuracy, r.loss) for r in read_results(folder)[0]]
        for folder in (out, straight)
    ]
    assert len(results[0]) == 3
    assert results[0] == results[1]
    assert not list(out.glob(".*.tmp"))
