"""A whole search: the same policy however often it is stopped, and by how many it is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import Net, blobs, trained
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import deepaa
from deepaa import CIFAR, Operation, Policy, SearchConfig, load_policy
from deepaa.data.load import as_images
from deepaa.models import default_model
from deepaa.runs import Run, read_config, read_history
from deepaa.search.gradient_matching.search import LayerRecord, StepRecord
from deepaa.search.policy_search import PolicySearch
from deepaa.search.progress import SearchProgress, little_learnt
from deepaa.search.proved import ProvedSearch
from deepaa.search.settings import PRESETS, ProxyConfig
from deepaa.search.world import default_augmentation
from deepaa.train.config import TrainConfig
from deepaa.train.loop import EpochRecord, evaluate

find_policy = partial(deepaa.find_policy, contest=False)
"""A search alone."""
SPACE = CIFAR.only("identity", "rotate", "flip", "translate_x")
TINY = SearchConfig(
    layers=2,
    steps=3,
    converged=1.0,  # all of its steps
    learning_rate=1.0,
    images=2,
    validation=8,
    prefixes=1,
    chains=16,
    heldout=8,
)
PROXY = ProxyConfig(model="small", train=TrainConfig(epochs=2, batch=32))
TINY_OPTIONS = (
    *("--preset", "demo", "--epochs", "3", "--steps", "3", "--layers", "3"),
    *("--ops", "rotate,flip,translate_x", "--set", "heldout=8", "--set", "images=2"),
    *("--set", "validation=8", "--set", "chains=16", "--set", "learning_rate=1"),
    *("--device", "cpu", "--contest", "off"),
)
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(deepaa.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def images() -> tuple[torch.Tensor, torch.Tensor]:
    return blobs(200, 1)


@pytest.fixture
def npz(tmp_path: Path, images: tuple[torch.Tensor, torch.Tensor]) -> Path:
    path = tmp_path / "blobs.npz"
    np.savez(path, x=images[0].numpy(), y=images[1].numpy())
    return path


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def search(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deepaa", "search", *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def history(folder: Path) -> list[dict[str, Any]]:
    """The records without what a clock said."""
    return [{k: v for k, v in r.items() if k != "seconds"} for r in read_history(folder)]


def tiny(data: Any, **options: Any) -> Policy:
    return find_policy(data, space=SPACE, config=TINY, proxy=PROXY, device="cpu", **options)


# Stopping and going on


@pytest.mark.slow
def test_killed_at_any_instant_it_ends_with_the_same_bytes(tmp_path: Path, npz: Path) -> None:
    arguments = ["--data", npz, *TINY_OPTIONS, "--checkpoint-seconds", "0"]
    assert search(*arguments, "--out", tmp_path / "straight").returncode == 0
    out = tmp_path / "killed"
    driver = Path(__file__).parents[1] / "helpers" / "killing.py"
    done = subprocess.run(
        [sys.executable, driver, out, "search", *map(str, arguments), "--out", str(out)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sum(report["killed"].values()) >= 20, report
    assert report["in_file_operations"] >= 8, report
    for phase in ("start", "pretrain", "layer 1", "layer 2", "layer 3", "export"):
        assert report["killed"].get(phase), report
    for name in ("policy.json", "config.json", "splits.json"):
        assert (out / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name
    assert history(out) == history(tmp_path / "straight")
    assert not list(out.glob(".*.tmp"))


def test_left_between_any_two_records_it_ends_with_the_same_policy(
    tmp_path: Path, images: Any, one_thread: None
) -> None:
    whole = tiny(images, out=tmp_path / "whole")
    records = len(history(tmp_path / "whole"))
    assert records == 2 + 1 + 2 * (3 + 1)
    out = tmp_path / "parts"

    class Enough(KeyboardInterrupt):
        pass

    def leave(record: object) -> None:
        raise Enough

    for n in range(1, records + 1):  # one record each time
        with pytest.raises(Enough):
            tiny(images, out=out, progress=leave)
        assert len(history(out)) == n
    assert tiny(images, out=out).equals(whole)
    assert history(out) == history(tmp_path / "whole")
    assert (out / "policy.json").read_bytes() == (tmp_path / "whole/policy.json").read_bytes()


@pytest.mark.parametrize("calls", [1, 7, 12, 17, 30])
def test_asked_to_stop_in_the_middle_it_saves_the_newest_record(
    tmp_path: Path, images: Any, calls: int, one_thread: None
) -> None:
    """In an epoch, between epochs, in a step, in the measurement of a layer."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= calls

    settings: dict[str, Any] = {"space": SPACE, "search": TINY, "proxy": PROXY}
    data = as_images(images)
    with Run(tmp_path / "run", {"a": 1}) as run:
        task = PolicySearch(data, run=run, stop=stop, checkpoint_seconds=1e9, **settings)
        seen = list(task)
        assert task.stopped
        assert asked == calls, "it went on although it was asked to stop"
        assert len(run.history()) == len(seen)
        saved = run.latest()
        assert (saved is None) == (not seen)
    with Run(tmp_path / "run", {"a": 1}) as run:
        assert len(run.history()) == len(seen), "a record was lost"
        task = PolicySearch(data, run=run, **settings)
        rest = list(task)
        assert not task.stopped
    assert len(seen) + len(rest) == 2 + 1 + 2 * (3 + 1)
    straight = PolicySearch(data, **settings)
    list(straight)
    assert task.policy.equals(straight.policy)


def test_the_time_left_is_not_told_by_a_first_step(images: Any) -> None:
    """It may compile; on a GPU that would be hours."""
    task = PolicySearch(as_images(images), space=SPACE, search=TINY, proxy=PROXY)
    progress = SearchProgress(ProvedSearch(task, None))
    texts = [progress.step_text(record) for record in task if isinstance(record, StepRecord)]
    assert ["left" in text for text in texts] == [False] + [True] * 5


def test_ctrl_c_in_python_saves(tmp_path: Path, images: Any) -> None:
    def interrupt(record: object) -> None:
        if isinstance(record, StepRecord):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tiny(images, out=tmp_path / "run", progress=interrupt)
    kinds = [record["kind"] for record in history(tmp_path / "run")]
    assert kinds == ["epoch", "epoch", "protection", "step"]
    seen: list[object] = []
    tiny(images, out=tmp_path / "run", progress=seen.append)
    assert len(seen) == 7, "the step before Ctrl-C was saved"


def test_damaged_state_falls_back_to_the_one_before(
    tmp_path: Path, images: Any, one_thread: None, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tiny(images, out=tmp_path / "run", checkpoint_seconds=0)
    expected = history(tmp_path / "run")
    state = tmp_path / "run/state.safetensors"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    seen: list[object] = []
    again = tiny(images, out=tmp_path / "run", progress=seen.append)
    assert again.equals(whole)
    assert len(seen) == 1
    assert "checksum" in caplog.text
    assert history(tmp_path / "run") == expected


# The Python interface


def test_a_model_of_the_users_own(tmp_path: Path, images: Any) -> None:
    net = trained()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    seen: list[object] = []
    options: dict[str, Any] = {"model": net, "space": SPACE, "config": TINY, "device": "cpu"}
    policy = find_policy(images, out=tmp_path / "run", progress=seen.append, **options)
    assert policy.depth == 2
    assert not any(isinstance(record, EpochRecord) for record in seen)
    assert sum(isinstance(record, LayerRecord) for record in seen) == 2
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert not net.training
    assert policy.equals(load_policy(tmp_path / "run/policy.json"))
    assert {"description", "data", "seed", "settings"} == set(policy.info)
    assert "layers=2" in policy.info["settings"]
    assert "tie_signs" not in policy.info["settings"]
    seen.clear()
    again = find_policy(images, out=tmp_path / "run", progress=seen.append, **options)
    assert again.equals(policy)
    assert not seen, "a finished run is not repeated"
    other = Net()
    with pytest.raises(ValueError, match=r"(?s)other settings.*network"):
        find_policy(images, out=tmp_path / "run", **{**options, "model": other})


def test_a_model_that_is_trained_first(images: Any) -> None:
    net = Net()
    before = net.head.weight.clone()
    seen: list[object] = []
    tiny(images, model=net, pretrain=True, progress=seen.append)
    assert sum(isinstance(record, EpochRecord) for record in seen) == 2
    assert torch.equal(net.head.weight, before), "the user's model is copied"


def test_grey_images(images: Any) -> None:
    assert tiny((images[0][:, :1].contiguous(), images[1])).depth == 2


def test_a_network_that_cannot_be_searched_with_is_not_trained_first(images: Any) -> None:
    class Step(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.detach().numpy())

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    class Odd(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Step.apply(super().forward(x))

    records: list[Any] = []
    with pytest.raises(ValueError, match="no forward-mode derivative"):
        tiny(images, model=Odd(), pretrain=True, progress=records.append)
    assert not records
    with pytest.raises(ValueError, match=r"deepaa\.models\.Normalize"):
        tiny(images, model=torch.nn.Conv2d(3, 4, 3), pretrain=True, progress=records.append)
    assert not records


def test_an_operation_of_the_users_own(images: Any) -> None:
    def darker(batch: torch.Tensor, magnitudes: torch.Tensor, uniforms: torch.Tensor):
        return (batch.float() * (1 - magnitudes.view(-1, 1, 1, 1))).to(torch.uint8)

    own = Operation("darker", 0.0, 0.5, neutral=0.0, batched=darker)
    space = SPACE.plus(own)
    found = find_policy(images, model=trained(), space=space, config=TINY, device="cpu")
    assert "darker" in {op.name for op in found.table.operations}


def test_settings_are_fields_of_the_search(images: Any) -> None:
    assert tiny(images, layers=1).depth == 1
    assert not tiny(images, seed=1).equals(tiny(images))
    with pytest.raises(TypeError, match="stepps"):
        tiny(images, stepps=3)
    with pytest.raises(ValueError, match=r"no preset 'best'; there are fast, official"):
        find_policy(images, preset="best")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "got int"),
        ((torch.zeros(4, 3, 8, 8), torch.zeros(4)), "uint8"),
        ((torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.zeros(4)), "N, C, H, W"),
        ((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(3).long()), "4 images"),
        ((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4)), "integers"),
        ((torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, -1])), r"\[1\] = -1"),
    ],
)
def test_data_that_is_none(data: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        as_images(data)


class Pictures(Dataset[Any]):
    """Labelled images one by one, as a training script has them."""

    def __init__(self, images: Any, kind: str) -> None:
        self.images, self.kind = images, kind

    def __len__(self) -> int:
        return len(self.images[0])

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        image, label = self.images[0][i], self.images[1][i]
        if self.kind == "PIL":
            return Image.fromarray(image.permute(1, 2, 0).numpy()), int(label)
        return (image if self.kind == "uint8" else image / 255), label


@pytest.mark.parametrize("kind", ["PIL", "uint8"])
def test_a_data_set_of_torch(images: Any, kind: str) -> None:
    found = as_images(Pictures(images, kind))
    assert torch.equal(found.images, images[0])
    assert torch.equal(found.labels, images[1])
    assert found.name == "Pictures"
    assert tiny(Subset(Pictures(images, kind), range(100))).equals(
        tiny((images[0][:100], images[1][:100]))
    )


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


def test_data_sets_of_torch_that_do_not_fit(images: Any) -> None:
    with pytest.raises(ValueError, match=r"Pictures\[0\] .*; leave out the transform"):
        find_policy(Pictures(images, "float"))
    with pytest.raises(TypeError, match="Stream has no length"):
        find_policy(Stream())


def test_what_is_given_in_place_of_a_loader(images: Any) -> None:
    pictures = Pictures(images, "uint8")
    with pytest.raises(
        TypeError, match=r"got DataLoader; give its data set, loader\.dataset, with"
    ):
        find_policy(DataLoader(pictures))
    assert torch.equal(as_images(DataLoader(pictures).dataset).images, images[0])


def test_what_is_given_in_place_of_a_data_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for i in range(6):
        Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(tmp_path / f"{i}.png")
    paths = [str(tmp_path / f"{i}.png") for i in range(6)]
    frame = pandas.DataFrame({"path": paths, "label": list("ababab")})
    with pytest.raises(TypeError, match=r"got DataFrame; write it, table\.to_csv") as error:
        find_policy(frame)
    line = str(error.value).split("write it, ")[1].split(", and give")[0]
    place = tmp_path / "table.csv"
    exec(line.replace("'table.csv'", f"r'{place}'"), {"table": frame})
    assert as_images(place).labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_what_is_given_in_place_of_a_stream_of_shards(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    (tmp_path / "a.tar").touch()
    with pytest.raises(TypeError, match=r"WebDataset has no length; .*; give its shards, as 'tr"):
        find_policy(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False))


def test_more_classes_than_the_model_has(images: Any) -> None:
    labels = torch.arange(200) % 6
    with pytest.raises(ValueError, match="labels run from 0 to 5, but the model has 4 outputs"):
        find_policy((images[0], labels), model=trained(), space=SPACE, config=TINY, device="cpu")


def test_few_images_train_a_network_for_more_epochs(images: Any) -> None:
    for proxy, n, epochs in (
        (PRESETS["fast"].proxy, 4000, 45),
        (PRESETS["fast"].proxy, 300, 600),
        (PRESETS["fast"].proxy, 20_000, 45),
        (PRESETS["imagenet"].proxy, 200_000, 30),
        (PRESETS["imagenet"].proxy, 300, 600),
        (PRESETS["demo"].proxy, 2000, 10),
        (PRESETS["demo"].proxy, 300, 67),
        (PRESETS["demo"].proxy, 0, 10),
        (PRESETS["demo"].proxy, 6, 600),  # thousands teach nothing
        (PRESETS["fast"].proxy, 15, 600),
        (replace(PROXY, train=TrainConfig(epochs=5000)), 6, 5000),
        (PROXY, 10, 2),  # whoever gives epochs means them
        (replace(PROXY, least_passes=99, train=TrainConfig(schedule="step", epochs=2)), 10, 2),
    ):
        assert proxy.trained_on(n).train.epochs == epochs
        assert proxy.trained_on(n).trained_on(n) == proxy.trained_on(n)
    proxy = replace(PROXY, least_passes=300)
    task = PolicySearch(as_images(images), space=SPACE, search=TINY, proxy=proxy)
    epochs = [record for record in task if isinstance(record, EpochRecord)]
    assert len(epochs) == 3  # of 100 images


def test_embedded_splits_and_networks() -> None:
    demo = PRESETS["demo"]
    task = PolicySearch(as_images(None), space=CIFAR, search=demo.search, proxy=demo.proxy)
    assert [len(part) for part in task.splits] == [1600, 800, 800, 800]
    assert task.policy.depth == 0
    small, large = torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 224, 224)
    names = [default_model(x, torch.device(d)) for x in (small, large) for d in ("cpu", "cuda")]
    assert names == ["small", "wrn-40-2", "resnet18", "resnet18"]


def test_default_augmentation_leaves_out_what_the_space_leaves_out() -> None:
    wanted = [Operation(name) for name in ("crop", "flip", "cutout")]
    assert default_augmentation(CIFAR).equals(Policy.always(*wanted))
    without = default_augmentation(CIFAR.without("flip"))
    assert "flip" not in without.expected_uses()
    assert default_augmentation(SPACE.only("identity", "rotate")).expected_uses() == {
        op.name: float(op.name == "identity") for op in SPACE.only("identity", "rotate").operations
    }


# Several processes


def torchrun(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--standalone", "-m", "deepaa", "search", *map(str, arguments)),
        ],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def workers(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in found]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_two_processes_find_what_one_finds(tmp_path: Path, npz: Path) -> None:
    arguments = ["--data", npz, *TINY_OPTIONS, "--set", "images=3"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert search(*arguments, "--out", one).returncode == 0
    # one of the two is told to stop after the first steps; both leave, and the run is whole
    slow = [*arguments, "--steps", "400", "--out", tmp_path / "stopped"]
    process = torchrun(*slow)
    deadline = time.monotonic() + 60
    while len(read_history(tmp_path / "stopped")) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = workers(process.pid)
    assert len(pids) == 2
    began = time.monotonic()
    os.kill(pids[1], signal.SIGTERM)  # not the one that writes
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 50
    assert process.returncode != 0
    assert errors.count("stopped and saved; go on with") == 1, errors
    before = len(read_history(tmp_path / "stopped"))
    with Run(tmp_path / "stopped", read_config(tmp_path / "stopped")) as run:
        assert len(run.history()) == before, "the newest record was saved"
    # killed by its end, then resumed: the policy of one process, up to rounding
    process = torchrun(*arguments, "--out", two, "--checkpoint-seconds", "0")
    while len(read_history(two)) < 6 and time.monotonic() < deadline:
        time.sleep(0.005)
    for pid in (process.pid, *workers(process.pid)):  # workers do not end with torchrun
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (two / "policy.json").exists()
    process = torchrun("--resume", two)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert out.count("Use it:") == 1
    first, second = (load_policy(folder / "policy.json") for folder in (one, two))
    difference = first.row_probabilities() - second.row_probabilities()
    assert difference.abs().max() < 1e-4
    kinds = [[r["kind"] for r in read_history(folder)] for folder in (one, two)]
    assert kinds[0] == kinds[1]


# The demo


@pytest.mark.slow
def test_the_demo_finds_something(tmp_path: Path) -> None:
    """All of `make demo` but its third layer, which takes as long as the second."""
    policy = find_policy(preset="demo", layers=2, device="cpu", out=tmp_path / "demo")
    table = policy.table
    assert policy.depth == 2
    assert policy.row_probabilities()[0, table.identity] < 0.5
    first, second = [r for r in read_history(tmp_path / "demo") if r["kind"] == "layer"]
    assert first["improvement_mean"] > 0
    assert second["improvement_mean"] > 0


# Few images


def test_no_preset_for_users_keeps_layers_that_do_not_help() -> None:
    assert [name for name, preset in PRESETS.items() if preset.search.layers] == ["official"]


def test_pretraining_says_how_the_network_does_on_held_out_images(
    images: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    """On validation images, which the network has not seen, and which are not the judge's."""
    data = as_images(images)
    with Run(tmp_path / "run", {"kind": "search"}) as run:
        task = PolicySearch(data, space=SPACE, search=TINY, proxy=PROXY, run=run)
        found = []
        for record in task:
            if not isinstance(record, EpochRecord):
                break
            part = task.splits.validation
            found.append(record.heldout_accuracy)
            assert found[-1] == evaluate(task.model, images[0][part], images[1][part]).accuracy
    assert len(found) == 2
    kept = [each["heldout_accuracy"] for each in read_history(tmp_path / "run") if "lr" in each]
    assert kept == found


def test_a_network_that_knows_its_own_images_by_heart_is_told_of() -> None:
    record = EpochRecord(9, 0.1, 1.0, 0.1, 1.0, 100)
    assert little_learnt(record, 10) is None
    assert little_learnt(record._replace(heldout_accuracy=0.5), 10) is None
    text = little_learnt(record._replace(heldout_accuracy=0.11), 10)
    assert text is not None
    assert "accuracy 0.11 on held-out images" in text


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((90, 90, 2), r"tensors: 1 of 3 classes have too few images: 2 \(2\); every class needs"),
        ((6, 6), "tensors: 12 images in all, at least 30 are needed"),
        ((90, 0, 90), "1 of 3 classes have no image: 1; labels should count from 0 without gaps"),
        ((90,), "only one class"),
    ],
)
def test_too_few_images_from_python_are_refused(counts: tuple[int, ...], message: str) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    pixels = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        find_policy((pixels, labels), preset="demo", device="cpu")


def test_weak_results_are_told_of(images: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = as_images(images)
    proved = ProvedSearch(PolicySearch(data, space=SPACE, search=TINY, proxy=PROXY), None)
    assert proved.weaknesses == [
        "200 images tell only large differences between policies, of about 10 points of "
        "accuracy; 300 or more tell smaller ones",
        "each decision on a layer has 5 held-out images, and takes 16: what a layer gains is "
        "chance",
    ]
    auto = PolicySearch(data, space=SPACE, search=replace(TINY, layers=None), proxy=PROXY)
    assert "no layer can be kept; --layers N" in ProvedSearch(auto, None).weaknesses[1]
    many = as_images(blobs(1200, 1))
    enough = PolicySearch(many, space=SPACE, search=replace(TINY, heldout=16), proxy=PROXY)
    assert ProvedSearch(enough, None).weaknesses == []
