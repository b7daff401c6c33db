"""checkpoint.py: whatever is killed, damaged or full, a whole state is there and is proved."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepaa.ops.space import CIFAR
from deepaa.policy.policy import Policy
from deepaa.runs.checkpoint import (
    DAMAGED,
    DRAFT,
    NEWEST,
    NEXT,
    NOTHING,
    PREVIOUS,
    RunError,
    newest,
    save,
)
from deepaa.runs.run import Run

CONFIG = {"steps": 10}


def state(step: int, size: int = 50) -> dict[str, Tensor]:
    return {
        "weight": torch.full((size, 3), step, dtype=torch.float32),
        "moment": torch.full((size,), step, dtype=torch.float64),
        "step": torch.tensor(step),
    }


def is_state(tensors: dict[str, Tensor], step: int) -> bool:
    return set(tensors) == set(state(step)) and all(
        bool((t == step).all()) for t in tensors.values()
    )


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    shared = torch.arange(12, dtype=torch.float32)
    tensors = {
        "odd": torch.tensor([float("nan"), -0.0, 1e-45]),
        "view": shared[2:6],
        "same": shared,
        "transposed": shared.view(3, 4).T,
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "trained": torch.ones(2, requires_grad=True),
    }
    with Run(tmp_path / "run", CONFIG) as run:
        assert run.latest() is None
        run.save(tensors, {"phase": "search", "layer": 1, "cosine": 0.1})
        saved = run.latest()
    assert saved
    assert saved.position == {"phase": "search", "layer": 1, "cosine": 0.1}
    assert set(saved.tensors) == set(tensors)
    for name, tensor in tensors.items():
        got = saved.tensors[name]
        assert got.dtype == tensor.dtype
        assert got.shape == tensor.shape
        want = tensor.detach().contiguous()
        assert got.view(torch.uint8).equal(want.view(torch.uint8)) if got.dim() else got == want


def test_the_state_before_is_kept(tmp_path: Path) -> None:
    for step in range(1, 4):
        save(tmp_path, state(step), {"step": step}, NOTHING)
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
            [*NEWEST, *PREVIOUS] if step > 1 else NEWEST
        )
        found = newest(tmp_path)
        assert found
        assert found.is_newest
        assert is_state(found.tensors, step)
    for name in NEWEST:
        (tmp_path / name).unlink()
    found = newest(tmp_path)
    assert found
    assert found.position == {"step": 2}


@pytest.mark.parametrize(
    ("position", "error"),
    [({"loss": float("nan")}, ValueError), ({"at": object()}, TypeError), ({1: 2}, TypeError)],
)
def test_a_position_that_json_cannot_say_leaves_the_state(
    tmp_path: Path, position: dict[Any, Any], error: type[Exception]
) -> None:
    save(tmp_path, state(1), {"step": 1}, NOTHING)
    with pytest.raises(error, match="manifest, position"):
        save(tmp_path, state(2), position, NOTHING)
    found = newest(tmp_path)
    assert found
    assert is_state(found.tensors, 1)


# Damage


def run_with_states(folder: Path, steps: int) -> None:
    with Run(folder, CONFIG) as run:
        for step in range(1, steps + 1):
            run.log({"step": step})
            run.save(state(step), {"step": step})


@pytest.mark.parametrize("name", NEWEST)
def test_every_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    for step in (1, 2):
        save(tmp_path, state(step, size=2), {"step": step}, NOTHING)
    path = tmp_path / name
    good = path.read_bytes()
    chance = random.Random(0)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        found = newest(tmp_path)
        assert found
        # space around JSON may change: then what it says is still true
        assert found.position == {"step": 1 + found.is_newest}, (at, bad[at])
        assert is_state(found.tensors, 1 + found.is_newest)
        if found.is_newest:
            assert name == NEWEST.manifest
            assert json.loads(bad) == json.loads(good)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("payload-ran"),))


def put_a_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Payload()))


@pytest.mark.parametrize("name", NEWEST)
@pytest.mark.parametrize("damage", [cut_in_half, empty, lengthen, Path.unlink, put_a_pickle])
def test_a_damaged_state_falls_back(
    tmp_path: Path,
    name: str,
    damage: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    run_with_states(folder, 3)
    damage(folder / name)
    for _ in range(2):  # the second time the damaged pair is out of the way
        with Run(folder, CONFIG, resume=True) as run:
            saved = run.latest()
            assert saved
            assert saved.position == {"step": 2}
            assert is_state(saved.tensors, 2)
            assert run.history() == [{"step": 1}, {"step": 2}]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert str(folder / name) in caplog.text
    assert not (tmp_path / "payload-ran").exists()
    with Run(folder, CONFIG, resume=True) as run:
        run.log({"step": 3})
        run.save(state(3), {"step": 3})
    for pair, step in ((NEWEST, 3), (PREVIOUS, 2)):
        assert json.loads((folder / pair.manifest).read_text())["position"] == {"step": step}
    (folder / NEWEST.state).unlink()  # the good state was not pushed out by the damaged one
    found = newest(folder)
    assert found
    assert is_state(found.tensors, 2)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_manifest_with_a_number_that_is_none_falls_back(tmp_path: Path, number: str) -> None:
    for step in (1, 2):
        save(tmp_path, state(step), {"step": step}, NOTHING)
    path = tmp_path / NEWEST.manifest
    path.write_text(path.read_text().replace('"step": 2', f'"step": {number}'))
    found = newest(tmp_path)
    assert found
    assert found.position == {"step": 1}


def test_damage_after_opening_is_found_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_with_states(tmp_path / "run", 3)
    with Run(tmp_path / "run", CONFIG, resume=True) as run:
        cut_in_half(run.folder / NEWEST.state)
        saved = run.latest()
        assert saved
        assert saved.position == {"step": 2}
        assert run.history() == [{"step": 1}, {"step": 2}]
        assert (run.folder / DAMAGED.state).exists()
    assert "the state saved before it is used" in caplog.text


def test_without_a_whole_state_the_run_is_refused(tmp_path: Path) -> None:
    run_with_states(tmp_path / "run", 2)
    cut_in_half(tmp_path / "run" / NEWEST.state)
    cut_in_half(tmp_path / "run" / PREVIOUS.manifest)
    with pytest.raises(RunError, match=r"state.safetensors: damaged.*no whole state is left"):
        Run(tmp_path / "run", CONFIG, resume=True)
    run_with_states(tmp_path / "one", 1)
    cut_in_half(tmp_path / "one" / NEWEST.state)
    with pytest.raises(RunError, match="no whole state is left"):
        Run(tmp_path / "one", CONFIG, resume=True)


def test_a_proved_pickle_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("safetensors.torch.save", lambda tensors: pickle.dumps(Payload()))
    save(tmp_path, {}, {}, NOTHING)
    with pytest.raises(RunError, match="not a safetensors file"):
        newest(tmp_path)
    assert not (tmp_path / "payload-ran").exists()


def test_a_run_of_another_format_is_neither_read_nor_changed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run(folder, {"a": 1}) as run:
        run.save(state(1), {"step": 1})
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"format": 2', '"format": 3'))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for resume in (False, True):
        with pytest.raises(RunError, match="run format 3; this version of deepaa reads 2 only"):
            Run(folder, {"a": 1}, resume=resume)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# Kills. A fresh process forks those that are killed, so that torch is imported once.


def in_process(call: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    code = f"import sys, tests.runs.test_checkpoint as t; t.{call}(*sys.argv[1:])"
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [*options.pop("before", ()), sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def fork(work: Any, *arguments: Any) -> tuple[int, int]:
    """A child that does `work(write end, *arguments)`, and the read end of its pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            work(write, *arguments)
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
    os.close(write)
    return child, read


def confirmed(read: int) -> int:
    """The last step the child reported."""
    text = b""
    while part := os.read(read, 65536):
        text += part
    os.close(read)
    return int(text.split()[-1]) if text.split() else 0


def save_for_ever(write: int, folder: str) -> None:
    with Run(folder, CONFIG) as run:
        saved = run.latest()
        step = saved.position["step"] if saved else 0
        os.write(write, f"{step}\n".encode())
        while True:
            step += 1
            run.log({"step": step})
            run.save(state(step, size=random.Random(step).randrange(60_000)), {"step": step})
            os.write(write, f"{step}\n".encode())


def check_folder(folder: str, at_least: int) -> int:
    with Run(folder, CONFIG, resume=True) as run:
        saved = run.latest()
        step = saved.position["step"] if saved else 0
        assert step >= at_least, f"step {step} after {at_least} was confirmed"
        assert saved is None or is_state(saved.tensors, step)
        assert run.history() == [{"step": i} for i in range(1, step + 1)]
        names = [p.name for p in run.folder.iterdir()]
        assert not any(DRAFT.fullmatch(name) for name in names), names
        assert not any(name in (*NEXT, *DAMAGED) for name in names), names
    return step


def kill_at_random(folder: str, times: str) -> None:
    chance = random.Random(1)
    step = 0
    for number in range(10 * int(times)):
        if number >= int(times) and step >= 10:  # a busy machine needs more kills
            break
        child, read = fork(save_for_ever, folder)
        first = os.read(read, 1)  # it has opened the run
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, first
        step = check_folder(folder, max(step, confirmed(read)))
    sys.stdout.write(str(step))


@pytest.mark.slow
def test_kills_at_random_instants_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    done = in_process("kill_at_random", tmp_path / "run", 30)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10  # saves did happen between the kills


EVENTS = {"open", "os.rename", "os.remove", "os.truncate"}


def work_and_die(write: int, folder: str, number: int) -> None:
    """Three saves and an export, killed before touching the folder for the `number`th time."""
    left = number

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in EVENTS and folder in str(arguments[0]):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    with Run(folder, CONFIG) as run:
        saved = run.latest()
        step = saved.position["step"] if saved else 0
        for _ in range(3):
            step += 1
            run.log({"step": step})
            run.save(state(step), {"step": step})
            os.write(write, f"{step}\n".encode())
        Policy.trivial(CIFAR, 1).save(run.folder / "policy.json")
        run.write_json("splits.json", {"a": [1, 2]})


def kill_everywhere(folder: str) -> None:
    Run(folder, CONFIG).close()  # asks git once, for all that are forked
    kills = 0
    for number in range(1000):
        shutil.rmtree(folder, ignore_errors=True)
        child, read = fork(work_and_die, folder, number)
        ended = os.waitpid(child, 0)[1]
        at_least = confirmed(read)
        if (Path(folder) / "config.json").exists():
            check_folder(folder, at_least)
        else:
            assert at_least == 0
        Run(folder, CONFIG).close()  # it can always begin
        if ended == 0:
            break
        assert ended == signal.SIGKILL, ended
        kills += 1
    sys.stdout.write(str(kills))


@pytest.mark.slow
def test_a_kill_before_any_file_operation_loses_nothing(tmp_path: Path) -> None:
    done = in_process("kill_everywhere", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


# Full disks


def fill(folder: str, limit: str) -> None:
    """Save ever larger states until the disk is full; the last whole one is still there."""
    if limit == "file":
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    with Run(folder, CONFIG) as run:
        step = 0
        try:
            while step < 100:
                step += 1
                run.log({"step": step})
                run.save(state(step, size=step * 2_000), {"step": step})
        except OSError as error:
            sys.stdout.write(str(error))
        saved = run.latest()
        assert saved
        assert saved.position == {"step": step - 1}
        run.save(state(1), {"step": 1})  # a smaller one still fits
        files = sorted(path.name for path in run.folder.iterdir())
        assert not any(DRAFT.fullmatch(name) for name in files), files
        run.save(state(step - 1), {"step": step - 1})
    with Run(folder, CONFIG, resume=True) as run:
        assert run.history() == [{"step": i} for i in range(1, step + 1)]
        if limit == "file":
            long = {"text": "x" * 400_000}
            with pytest.raises(OSError, match="could not write"):
                run.log(long)
            run.log({"step": "after"})  # no half line is left
            assert run.history()[-1] == {"step": "after"}


def test_a_file_that_cannot_grow_keeps_the_state(tmp_path: Path) -> None:
    done = in_process("fill", tmp_path / "run", "file")
    assert done.returncode == 0, done.stderr
    assert "could not write, the old file is kept: File too large" in done.stdout
    assert "state.next.safetensors" in done.stdout


def test_a_full_disk_keeps_the_state(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m none '{disk}'"
    before = ["unshare", "-m", "sh", "-c", f'{mount} || exit 77; exec "$@"', "sh"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*before, "true"], capture_output=True).returncode
    ):
        pytest.skip("may not mount a small disk here")
    done = in_process("fill", disk / "run", "disk", before=before)
    assert done.returncode == 0, done.stderr
    assert "could not write, the old file is kept: No space left on device" in done.stdout
