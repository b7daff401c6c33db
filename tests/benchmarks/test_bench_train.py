from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from bench_train import _Amount, _config, main, measure_train, set_up, train_time

from deepaa.data.load import load_dataset
from deepaa.policy.load import compared_policy
from deepaa.train.config import TrainConfig
from deepaa.train.loop import train_together
from deepaa.train.step import RecordedStep

TINY = {"models": ["small"], "batches": [8], "policy": "crop-flip", "steps": 2, "epochs": 2}


def test_networks_are_timed_and_written(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    report = measure_train(**TINY, parallel=[1, 3], device="cpu", out=path)
    names = ("network", "batch", "way", "parallel", "images")
    found = [tuple(t[name] for name in names) for t in report["times"]]
    assert found == [("small", 8, "plain", 1, 16), ("small", 8, "plain", 3, 48)]
    for t in report["times"]:
        assert 0 < t["fastest"] <= t["seconds"] <= t["slowest"]
        assert t["first"] > 0
        assert t["rate"] == pytest.approx(t["images"] / t["seconds"])
        assert t["share"] > 0
    written = json.loads(path.read_text())
    assert written["format"] == "deepaa-bench-train"
    assert written == report


def test_what_was_measured_stays_when_the_next_fails(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    said = []
    with pytest.raises(ValueError, match="no model 'smal'"):
        measure_train(
            **{**TINY, "models": ["small", "smal"]}, device="cpu", out=path, progress=said.append
        )
    assert [t["network"] for t in json.loads(path.read_text())["times"]] == ["small"]
    assert [t.network for t in said] == ["small"]


def test_the_default_on_a_cpu_is_small() -> None:
    report = measure_train(batches=[8], policy="crop-flip", epochs=1, device="cpu")
    assert [(t["network"], t["images"]) for t in report["times"]] == [("small", 160)]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="no way 'fast' of running a step; there are plain"):
        measure_train(**TINY, ways=["fast"], device="cpu")
    with pytest.raises(ValueError, match="recorded needs CUDA, the device is cpu"):
        measure_train(**TINY, ways=["recorded"], device="cpu")
    for change in ({"steps": 0}, {"epochs": 0}, {"parallel": [0]}, {"batches": [0]}):
        with pytest.raises(ValueError, match="at least 1"):
            measure_train(**{**TINY, **change}, device="cpu")
    with pytest.raises(ValueError, match="no model 'smal'"):
        measure_train(**{**TINY, "models": ["smal"]}, device="cpu")


def test_the_script_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["small"], [8], "crop-flip", steps=2, epochs=1, device="cpu")
    out = capsys.readouterr().out
    assert "images/s" in out
    assert "crop-flip (2 layers)" in out


def test_the_device_is_checked() -> None:
    for device in ("tpuu", "cuda:x"):
        with pytest.raises(SystemExit) as error:
            main(["small"], device=device)
        expected = f"error: --device should be cpu, cuda or auto, got {device!r}"
        assert error.value.code == expected


def test_networks_that_fail_are_no_measurement() -> None:
    broken = TrainConfig(batch=8, lr=1e30, clip=0.0)
    amount = _Amount("plain", 2, 4, 1)
    policy = compared_policy("none")
    with pytest.raises(FloatingPointError, match="epoch 1"):
        train_time("small", load_dataset(), policy, broken, torch.device("cpu"), amount)


def test_networks_share_their_images() -> None:
    config, cpu = TrainConfig(batch=8), torch.device("cpu")
    trainings = set_up(
        "small", load_dataset(), compared_policy("none"), config, cpu, _Amount("plain", 3, 4, 1)
    )
    assert len({training.batches.images.data_ptr() for training in trainings}) == 1
    assert [len(training.batches.images) for training in trainings] == [32] * 3
    first = [next(training.model.parameters()).detach() for training in trainings]
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize(
    ("way", "graph", "compiled", "tuned"),
    [
        ("plain", False, False, False),
        ("recorded", True, False, False),
        ("compiled", True, True, False),
        ("tuned", True, True, True),
    ],
)
def test_ways_are_settings(way: str, graph: bool, compiled: bool, tuned: bool) -> None:
    config = _config(16, way, "bfloat16", torch.device("cuda"))
    assert (config.graph, config.compile, config.tune) == (graph, compiled, tuned)
    assert (config.batch, config.precision, config.channels_last) == (16, "bfloat16", True)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["plain", "recorded", "compiled", "tuned", "fused"])
def test_every_way_runs_on_cuda(way: str) -> None:
    """A way that is asked for is the one that is timed: recorded steps replay a graph."""
    cuda = torch.device("cuda")
    config = _config(8, way, "bfloat16", cuda)
    amount = _Amount(way, 2, 4, 1)
    trainings = set_up("small", load_dataset(), compared_policy("none"), config, cuda, amount)
    next(train_together(trainings))
    for training in trainings:
        step = training._step
        assert isinstance(step, RecordedStep) == (way != "plain")
        if isinstance(step, RecordedStep):
            assert step._graph is not None
            assert step._fastest is not None
            compiled = way in ("compiled", "tuned", "fused")  # the small network is not fused
            assert (step._fastest.network is not training.model) == compiled
    report = measure_train(**TINY, ways=[way], parallel=[1, 2], device="cuda")
    found = [(t["way"], t["parallel"], t["images"]) for t in report["times"]]
    assert found == [(way, 1, 16), (way, 2, 32)]
    assert all(t["memory"] > 0 for t in report["times"])
