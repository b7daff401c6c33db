"""Methods under torchrun: two real processes train a part of the networks each, with one result."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs

from deepaa import distributed
from deepaa.data import as_images
from deepaa.runs import Run, read_history
from deepaa.search import SearchRequest, open_method, open_search
from deepaa.search.methods import METHODS, World
from deepaa.search.methods.registry import find_searcher
from deepaa.search.methods.trainings import Job, Trainings
from deepaa.search.settings import ProxyConfig, SettingsRequest
from deepaa.train import TrainConfig
from tests.test_distributed import environment

CHANGES: dict[str, list[str]] = {
    "random": ["epochs=2", "trials=3", "parallel=2", "chains=2"],  # the last one is alone
    "randaugment": ["epochs=2", "numbers=[1,2]", "magnitudes=[3]", "repeats=2", "parallel=3"],
    "fast-aa": ["epochs=2", "folds=3", "rounds=2", "trials=3", "keep=1", "startup=2"],
    "pba": ["epochs=5", "population=5", "interval=1", "validation=0"],
}
"""Settings by method, with numbers of networks that two processes cannot halve."""
STOP = 3
"""Records after which a search is left."""


def small_request(name: str) -> SearchRequest:
    proxy = ProxyConfig(model="small", train=TrainConfig(epochs=2, batch=32))
    return SearchRequest(
        SettingsRequest("demo", proxy=proxy, fields={"protect": False}),
        as_images(blobs(160, 0)),
        splits=(60, 20, 40),
        method=open_method(name, "demo", CHANGES.get(name, ()))[0],
        contest=None,
    )


def searched(folder: Path, name: str, stop_after: int | None = None) -> bool:
    """Run a search in its folder, where it goes on; whether it was stopped, by the last process."""
    done = 0
    last = distributed.rank() == distributed.world_size() - 1
    with open_search(
        small_request(name),
        folder / name,
        device=torch.device("cpu"),
        checkpoint_seconds=1e6,
        stop=lambda: last and stop_after is not None and done >= stop_after,
    ) as opened:
        for _ in opened:
            done += 1
    return opened.stopped


def whole_and_parts(folder: str) -> None:
    """In each process: whole searches, some that are left and go on, and one that is refused."""
    torch.set_num_threads(1)
    distributed.init("cpu", timeout=120)
    here = Path(folder)
    for name in CHANGES:
        assert not searched(here / "whole", name)
        assert searched(here / "left", name, STOP)
        assert not searched(here / "begun", name)  # by one process
    with pytest.raises(ValueError, match="--method dada runs in one process, not under torchrun"):
        searched(here / "refused", "dada")
    distributed.shutdown()


def in_two_processes(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    code = "import sys, tests.search.methods.test_processes as t; t.whole_and_parts(sys.argv[1])"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            env={**environment(), "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", **address},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()


def told(folder: Path) -> list[dict[str, Any]]:
    """The records of a run, but for what the clock says."""
    times = ("seconds", "time")
    return [{k: v for k, v in each.items() if k not in times} for each in read_history(folder)]


def state_of(folder: Path, name: str) -> dict[str, torch.Tensor]:
    config = small_request(name)
    images = config.data
    with Run(folder, config.to_config(images, config.settings.resolve(), None)) as run:  # type: ignore[arg-type]
        saved = run.latest()
    assert saved is not None
    return saved.tensors


@pytest.mark.slow  # several processes
def test_two_processes_find_what_one_finds_and_go_on_from_each_other(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in CHANGES:
            assert not searched(tmp_path / "one", name)
            assert searched(tmp_path / "begun", name, STOP)
        in_two_processes(tmp_path)
        for name in CHANGES:
            assert not searched(tmp_path / "left", name)
    finally:
        torch.set_num_threads(threads)
    for name in CHANGES:
        expected = (tmp_path / "one" / name / "policy.json").read_bytes()
        records, state = told(tmp_path / "one" / name), state_of(tmp_path / "one" / name, name)
        assert len(records) > STOP
        for kind in ("whole", "left", "begun"):
            folder = tmp_path / kind / name
            assert (folder / "policy.json").read_bytes() == expected, (kind, name)
            assert told(folder) == records, (kind, name)
            found = state_of(folder, name)
            assert found.keys() == state.keys(), (kind, name)
            for key, value in state.items():
                torch.testing.assert_close(found[key], value, rtol=0, atol=0, equal_nan=True)


def test_methods_that_share_their_networks_say_so() -> None:
    shares = {name for name in METHODS if find_searcher(name).shares_work}
    assert shares == set(CHANGES)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_network_is_of_one_process(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from worlds import PooledNet, make_world

    world: World = make_world(blobs(20, 0), blobs(20, 1), model=PooledNet)
    jobs = [Job(world.pretrain, None, 1, seed) for seed in range(5)]
    owners = []
    for rank in range(world_size):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(distributed, "world_size", lambda: world_size)
        owners += Trainings(world, jobs).each
    assert sorted(owners) == [0, 1, 2, 3, 4]
