from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepaa.cli import bench_measure as bench, bench_peers
from deepaa.cli.bench import RATES, ops_tables, print_tables
from deepaa.cli.bench_measure import Result, Setting, ratios_to_peers
from deepaa.cli.bench_peers import LIBRARIES, OURS, PEERS, Contestant
from deepaa.ops import kernels_c
from deepaa.ops.space import CIFAR
from deepaa.policy.policy import Policy
from deepaa.runs import write_json
from deepaa.transforms import transform

LAYERS = 3
ALL = (*OURS, *PEERS)
TINY = Setting("cpu", 8, 2, 2)
NAMES = [f"{c.name} ({c.takes})" for c in ALL]


def is_installed(contestant: Contestant) -> bool:
    try:
        contestant.make(Policy.uniform(CIFAR, 1))
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] != contestant.library:
            raise
        return False
    return True


def made(contestant: Contestant) -> Callable[[Any], Any]:
    if not is_installed(contestant):
        pytest.skip(f"{contestant.library} is not installed")
    return contestant.make(Policy.uniform(CIFAR, LAYERS))


def to_batch(contestant: Contestant, outputs: Any) -> Tensor:
    """Outputs (or inputs) of any form as (N, 3, H, W) in 0..255."""
    if isinstance(outputs, Tensor):
        return outputs * 255 if outputs.is_floating_point() else outputs
    if isinstance(outputs[0], Tensor):
        return torch.stack(outputs)
    arrays = np.stack([np.asarray(image) for image in outputs])
    return torch.from_numpy(arrays).permute(0, 3, 1, 2)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return bench.bench_images(32, 32)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    path = tmp_path_factory.mktemp("bench") / "ops.json"
    settings = bench.settings_for("cpu", (32, 24), batch=8)
    report = bench.measure_ops(settings, LIBRARIES, seconds=0.01, breakdown=True)
    write_json(path, report)
    return report, path


# The whole run


def test_tiny_run_has_a_row_for_everyone_in_every_setting(
    tiny: tuple[dict[str, Any], Path],
) -> None:
    report, _ = tiny
    rows = [(r["size"], r["name"], r["takes"]) for r in report["results"]]
    assert rows == [(size, c.name, c.takes) for size in (32, 24) for c in ALL]
    for contestant, result in zip(2 * ALL, report["results"], strict=True):
        if is_installed(contestant):
            assert result["note"] == ""
            assert 0 < result["slowest"] <= result["rate"] <= result["fastest"]
            assert result["repeats"] >= bench.REPEATS
            assert result["images"] % 8 == 0
        else:
            assert result["note"] == bench.NOT_INSTALLED


def test_operation_rate_is_rate_times_operations(tiny: tuple[dict[str, Any], Path]) -> None:
    ran = [r for r in tiny[0]["results"] if r["rate"] is not None]
    assert ran
    for r in ran:
        assert r["operations"] == (1 if "Trivial" in r["name"] else 2)
        assert r["operation_rate"] == pytest.approx(r["rate"] * r["operations"])


def test_breakdown_times_every_operation(tiny: tuple[dict[str, Any], Path]) -> None:
    names = [op.name for op in CIFAR.operations]
    assert [(t["size"], t["operation"]) for t in tiny[0]["breakdown"]] == [
        (size, name) for size in (32, 24) for name in names
    ]
    assert all(t["batch_us"] > 0 and t["pil_us"] > 0 for t in tiny[0]["breakdown"])


def test_json_file_holds_the_report(tiny: tuple[dict[str, Any], Path]) -> None:
    report, path = tiny
    content = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert content["format"] == "deepaa-bench-ops"
    assert content["version"] == 1
    assert content == report
    assert content["created"]
    assert content["versions"]["torch"]
    assert content["hardware"]["cpu"]
    assert content["hardware"]["threads"] == 1
    assert content["hardware"]["cpu_kernels"] == ("C" if kernels_c.available() else "torch")
    assert content["options"]["space"] == "cifar"
    first = content["results"][0]
    assert first["device"] == "cpu"
    assert first["batch"] == 8
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no draft is left


def test_tables_show_every_result(
    tiny: tuple[dict[str, Any], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, path = tiny
    tables = ops_tables(report)
    assert len(tables) == 4  # two sizes, results and breakdown
    assert tables[0].title.startswith("CPU, 32 x 32, batch 8, 2 layers")
    assert [row["name"] for row in tables[0].rows] == [c.name for c in ALL]
    shown = {}
    for width in ("200", "80"):
        monkeypatch.setenv("COLUMNS", width)
        print_tables(tables, path)
        shown[width] = capsys.readouterr().out
        assert max(map(len, shown[width].splitlines()[:-1])) <= int(width)
    assert all(name in shown["200"] for name in RATES if name != "extra memory")
    assert "extra memory" not in shown["200"]  # of which a CPU has none to show
    assert "operations/s" in shown["80"]
    assert "cores" not in shown["80"]


# Who takes part


@pytest.mark.parametrize("contestant", ALL, ids=NAMES)
def test_contestant_changes_images_and_leaves_its_input(
    contestant: Contestant, images: Tensor
) -> None:
    ready = made(contestant)
    inputs = contestant.prepare(images.clone())
    outputs = [contestant.augment(ready, inputs) for _ in range(8)]
    assert to_batch(contestant, inputs).round().to(torch.uint8).equal(images)
    pixels = torch.stack([to_batch(contestant, out).float() for out in outputs])
    assert pixels.shape == (8, *images.shape)
    changed = (pixels - images).abs().amax((2, 3, 4)) > 0.5
    assert changed.float().mean() > 0.5
    assert type(outputs[0]) is type(inputs)


@pytest.mark.parametrize("contestant", ALL, ids=NAMES)
def test_contestant_draws_as_it_says(contestant: Contestant, images: Tensor) -> None:
    ready = made(contestant)
    if contestant.library == "kornia":
        pytest.skip("one draw of operations, but a sign per image: see the count below")
    same = images[:1].expand(32, -1, -1, -1)
    inputs = contestant.prepare(same)
    kinds = set()
    for _ in range(4):
        out = to_batch(contestant, contestant.augment(ready, inputs))
        kinds.add(len(out.flatten(1).unique(dim=0)))
    if contestant.draws == "batch":
        assert kinds == {1}
    else:
        assert min(kinds) > 8


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """The argument lists of every call of `owner.name`, which still does its work."""
    real, calls = getattr(owner, name), []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


def applied(
    contestant: Contestant, ready: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], int]:
    """A function that says how many operations have been applied so far, over all images."""
    if contestant.library == "torchvision":
        base = sys.modules[type(ready).__module__]._AutoAugmentBase  # type: ignore[attr-defined]
        calls = count_calls(monkeypatch, base, "_apply_image_or_video_transform")
        return lambda: len(calls)
    if contestant.library == "timm":
        lists = [count_calls(monkeypatch, op, "aug_fn") for op in ready.ops]
        return lambda: sum(map(len, lists))
    if contestant.library == "albumentations":
        from albumentations.core.transforms_interface import BasicTransform

        calls = count_calls(monkeypatch, BasicTransform, "apply_with_params")
        return lambda: len(calls)
    if contestant.library == "kornia":
        return lambda: len(ready._params)
    if contestant.name == "deepaa Pillow":
        calls = count_calls(monkeypatch, bench_peers, "run_pil")
    else:
        kind = {"PIL": "pil", "uint8 array": "array", "uint8 tensor": "tensor"}[contestant.takes]
        calls = count_calls(monkeypatch, transform, f"single_{kind}")
    return lambda: sum(len(steps) for _, steps, _ in calls)


def count_kernel(
    contestant: Contestant, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[Any], Any], Callable[[], int]]:
    """One of our batch paths, and a function as `applied` gives one."""
    assert isinstance(contestant.make, partial)
    kernel = SimpleNamespace(apply=contestant.make.args[0])
    calls = count_calls(monkeypatch, kernel, "apply")
    ready = contestant.make.func(kernel.apply, Policy.uniform(CIFAR, LAYERS))
    return ready, lambda: sum(draw.choice.numel() for _, draw, _ in calls)


@pytest.mark.parametrize("contestant", ALL, ids=NAMES)
def test_contestant_applies_the_operations_it_is_credited_with(
    contestant: Contestant, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = made(contestant)
    inputs = contestant.prepare(images)
    if contestant.library == "deepaa" and contestant.takes == "uint8 batch":
        ready, count = count_kernel(contestant, monkeypatch)
    else:
        count = applied(contestant, ready, monkeypatch)
    contestant.augment(ready, inputs)
    draws = 1 if contestant.draws == "batch" else len(images)
    operations = contestant.operations or LAYERS
    assert count() == operations * draws
    expected = {"deepaa": LAYERS, "torchvision TrivialAugmentWide": 1}
    assert operations == expected.get(contestant.library, expected.get(contestant.name, 2))


def test_peers_are_chosen_by_library() -> None:
    chosen = [c.library for c in bench_peers.contestants(("timm",), "cpu")]
    assert chosen == ["deepaa"] * len(OURS) + ["timm"]
    on_cuda = {c.takes for c in bench_peers.contestants(LIBRARIES, "cuda")}
    assert on_cuda == {"uint8 tensor", "uint8 batch", "float batch"}
    assert bench_peers.chosen_libraries("all") == list(LIBRARIES)
    assert bench_peers.chosen_libraries("none") == []
    assert bench_peers.chosen_libraries("timm, kornia") == ["timm", "kornia"]
    with pytest.raises(ValueError, match="no peer 'imgaug'; choose from torchvision, kornia"):
        bench_peers.chosen_libraries("timm,imgaug")


# Faults


def contestant_of(make: Callable[[Policy], Callable[[Any], Any]]) -> Contestant:
    return Contestant("x", "somebody", "uint8 batch", "image", make, 1)


def test_a_peer_that_fails_is_reported_and_stops_nobody(images: Tensor) -> None:
    calls = 0

    def late(batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("tired\nof it")
        return batch

    def broken(_: Policy) -> Callable[[Any], Any]:
        raise OSError("no library")

    def needs_other(_: Policy) -> Callable[[Any], Any]:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    who = [
        contestant_of(broken),
        contestant_of(lambda _: late),
        contestant_of(needs_other),
        contestant_of(lambda _: lambda batch: batch.clone()),
    ]
    timings = bench.measure(who, images, Policy.uniform(CIFAR, 1), 1e-6)
    assert [t.note for t in timings] == [
        "failed: OSError: no library",
        "failed: RuntimeError: tired",
        "failed: ModuleNotFoundError: No module named 'other'",
        "",
    ]
    assert [t.rate is None for t in timings] == [True, True, True, False]


def test_a_missing_peer_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "timm", None)
    report = bench.measure_ops([TINY], ["timm"], seconds=0.001)
    timm = report["results"][-1]
    assert timm["name"] == "timm rand-m9-n2-p1"
    assert timm["rate"] is None
    assert timm["note"] == "not installed (pip install 'deepaa[bench]')"
    assert report["comparisons"] == []
    print_tables(ops_tables(report), None)
    assert capsys.readouterr().out.endswith(f"{timm['name']}: {timm['note']}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "tpu"], "--device should be cpu, cuda or auto, got 'tpu'"),
        (["--peers", "imgaug"], "no peer 'imgaug'"),
        (["--out", "no/such/ops.json"], "--out no/such/ops.json: the folder no/such does not"),
        (["--out", "."], "--out .: a folder; give a name like ops.json"),
    ],
)
def test_bad_options_are_refused(run_cli: Any, options: list[str], message: str) -> None:
    code, out, err = run_cli("bench", "ops", "--device", "cpu", "--seconds", "0.001", *options)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_without_a_device(run_cli: Any) -> None:
    code, _, err = run_cli("bench", "ops", "--device", "cuda")
    assert (code, "torch finds no CUDA device" in err) == (2, True)


def test_a_failed_write_keeps_what_was_there(
    tiny: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    path = tmp_path / "ops.json"
    path.write_text("before")
    with pytest.raises(ValueError, match="options, seconds: nan has no form in JSON"):
        write_json(path, {**tiny[0], "options": {"seconds": float("nan")}})
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="folder"):
        write_json(folder, tiny[0])
    assert path.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "ops.json"]


# Threads, settings, ratios


def fail_while_single_threaded() -> None:
    with bench.single_thread():
        variables = os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]
        raise KeyError(" ".join(["found", str(torch.get_num_threads()), *variables]))


def test_one_thread_while_it_runs_and_the_old_number_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError, match="found 1 1 1"):
            fail_while_single_threaded()
        assert torch.get_num_threads() == 2
        assert os.environ["OMP_NUM_THREADS"] == "7"
        assert "MKL_NUM_THREADS" not in os.environ
        bench.measure_ops([TINY], [], seconds=0.001)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_opencv_is_set_to_one_thread_and_back() -> None:
    cv2 = pytest.importorskip("cv2")
    before = cv2.getNumThreads()
    cv2.setNumThreads(2)
    try:
        with bench.single_thread():
            assert cv2.getNumThreads() == 1
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(before)


def test_published_settings() -> None:
    assert bench.settings_for("cpu", (32, 224)) == [
        Setting("cpu", 32, 2, 4096),
        Setting("cpu", 224, 2, 64),
    ]
    assert bench.settings_for("cuda", (32, 224)) == [
        Setting("cuda", 32, 6, 65536),
        Setting("cuda", 32, 6, 2048),
        Setting("cuda", 224, 6, 512),
    ]
    assert bench.settings_for("cuda", (32,), batch=16, layers=1) == [Setting("cuda", 32, 1, 16)]
    assert bench.settings_for("cpu", (5000,)) == [Setting("cpu", 5000, 2, 1)]


def test_images_are_embedded_ones_at_any_size() -> None:
    small, large = bench.bench_images(6, 32), bench.bench_images(6, 64)
    assert small.shape == (6, 3, 32, 32)
    assert large.shape == (6, 3, 64, 64)
    assert large.dtype == torch.uint8
    shrunk = torch.nn.functional.avg_pool2d(large.float(), 2)
    assert (shrunk - small).abs().mean() < 8  # the same pictures
    assert len(bench.bench_images(4100, 32)) == 4100  # more than there are


def result(name: str, draws: str, rate: float | None, operations: int) -> Result:
    found = Result(name, "uint8 batch", draws, note="failed")
    if rate is None:
        return found
    return found._replace(rate=rate, operation_rate=rate * operations, note="")


def test_ratio_is_to_the_fastest_peer_that_draws_per_image() -> None:
    results = [
        result("deepaa batch", "image", 300.0, 2),
        result("deepaa single", "image", 30.0, 2),
        result("slow", "image", 100.0, 1),
        result("fast", "image", 75.0, 2),
        result("one draw", "batch", 9999.0, 2),
        result("broken", "image", None, 2),
    ]
    ours = {"takes": "uint8 batch", "peer": "fast (uint8 batch)"}
    assert ratios_to_peers(results) == [
        {"name": "deepaa batch", **ours, "ratio": 4.0},
        {"name": "deepaa single", **ours, "ratio": 0.4},
    ]
    assert ratios_to_peers(results[2:]) == []
    assert ratios_to_peers(results[:2]) == []


def test_a_repeat_makes_enough_calls() -> None:
    assert bench.calls_for(0.001, 2.0) == 20
    assert bench.calls_for(0.5, 2.0) == 1
    assert bench.calls_for(0.001, 0.01) == 2  # a short budget is kept


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tiny_run_on_cuda() -> None:
    settings = bench.settings_for("cuda", (32,), batch=64)
    report = bench.measure_ops(settings, LIBRARIES, seconds=0.01, breakdown=True)
    who = bench_peers.contestants(LIBRARIES, "cuda")
    assert [r["name"] for r in report["results"]] == [c.name for c in who]
    assert all(r["note"] in ("", bench.NOT_INSTALLED) for r in report["results"])
    assert 1 <= report["results"][0]["memory"] < 1000  # the output at least
    assert report["hardware"]["gpu"]["name"]
    assert len(report["breakdown"]) == len(CIFAR.operations)
