"""Batches: copies, workers, and the shares of several processes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blobs import Net, blobs
from forks import TORCH, Program, as_ranks, in_forks
from safetensors.torch import load_file, save_file
from torch import nn

from deepaa import distributed
from deepaa.data.embedded import load_embedded
from deepaa.data.splits import batch_rows, batch_sizes
from deepaa.models import build_model
from deepaa.ops.apply import apply_batch
from deepaa.ops.rng import hash_int, sample_key
from deepaa.policy.load import load_policy
from deepaa.policy.policy import Policy
from deepaa.train.batches import ImageBatches
from deepaa.train.config import TrainConfig
from deepaa.train.loop import Training

DATA = load_embedded()
SHORT = TrainConfig(epochs=3, batch=64)
CROPS = load_policy("crop-flip-cutout")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(config: TrainConfig, n: int = 200, policy: Policy | None = CROPS) -> Training:
    images, labels = DATA.train_images[:n], DATA.train_labels[:n]
    return Training(build_model("small", 10), ImageBatches(images, labels, policy, config), config)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    ("count", "batch", "sizes"),
    [
        (256, 128, [128, 128]),
        (200, 128, [128, 72]),
        (192, 128, [128, 64]),
        (191, 128, [128]),
        (129, 128, [128]),  # one image would be no batch for batch norm
        (5, 128, [5]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_a_last_batch_has_at_least_half_the_images(count, batch, sizes):
    assert batch_sizes(count, batch) == sizes


def test_rows_are_shared_by_neighbours():
    images = torch.tensor([7, 3, 5])
    whole = batch_rows(images, 2)
    assert whole.tolist() == [7, 3, 5, 7 + 2**40, 3 + 2**40, 5 + 2**40]
    for world in (1, 2, 4):
        parts = [batch_rows(images, 2, rank, world) for rank in range(world)]
        assert torch.equal(torch.cat(parts), whole)
    assert batch_rows(images, 2, 1, 2).tolist() == whole[3:].tolist()


# Batch augmentation


def test_copies_are_other_draws_of_the_same_images():
    """Every batch holds each of its images `copies` times; the first copy is that of one copy."""
    config = replace(SHORT, batch=50, copies=3)
    run, single = start(config), start(replace(config, copies=1))
    assert run.batches.sizes == [50] * 4
    for epoch in (0, 1):
        pairs = zip(run.batches.epoch(epoch), single.batches.epoch(epoch), strict=True)
        for (rows, labels), (alone, its_labels) in pairs:
            assert len(rows) == len(labels) == 150
            assert torch.equal(rows[:50], alone)
            assert all(torch.equal(part, its_labels) for part in labels.split(50))
            first, second, third = rows.split(50)
            for a, b in ((first, second), (first, third), (second, third)):
                differ = (a != b).flatten(1).any(1).float().mean()
                assert differ > 0.9  # crop, flip and cutout at the same place are rare
    plain = start(config, policy=None)
    rows, _ = next(plain.batches.epoch(0))
    assert all(torch.equal(part, rows[:50]) for part in rows.split(50))


def test_keys_of_copies_are_a_function_of_seed_epoch_index_and_copy():
    """The rows of a batch against draws made one by one, in data sets of two sizes."""
    policy = load_policy("crop-flip-cutout")
    for n in (100, 200):
        run = start(replace(SHORT, batch=25, copies=2, seed=9), n=n)
        rows, _ = next(run.batches.epoch(4))
        generator = torch.Generator().manual_seed(hash_int(9, 4))
        order = torch.randperm(n, generator=generator)[:25]
        for copy in (0, 1):
            for place in (0, 7, 24):
                index = int(order[place])
                keys = torch.tensor([sample_key(9, 4, index + copy * 2**40)])
                expected = apply_batch(
                    DATA.train_images[index : index + 1], policy.draw(keys, 4), policy.table
                )
                assert torch.equal(rows[copy * 25 + place], expected[0])


def test_records_count_copies():
    (record,) = start(replace(SHORT, epochs=1, copies=2), n=128)
    assert record.images == 256
    assert 0 <= record.accuracy <= 1


# Workers


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 2])
def test_workers_give_the_batches_of_the_device(copies):
    config = replace(SHORT, epochs=2, copies=copies)
    images, labels = DATA.train_images[:200], DATA.train_labels[:200]
    policy = load_policy("crop-flip-cutout")
    states, before = [], torch.get_rng_state()
    for workers in (0, 2):
        batches = ImageBatches(images, labels, policy, config, workers=workers)
        run = Training(build_model("small", 10), batches, config)
        list(run)
        states.append(run.state())
    assert same(*states)
    assert torch.equal(torch.get_rng_state(), before)


# Several processes


NAMES = ("plain", "copies", "norm")


def train_shares(folder: str) -> None:
    """One of two processes: trains its share of each training and keeps what came out."""
    torch.set_num_threads(1)
    distributed.init("cpu", timeout=60)
    rank = distributed.rank()
    for name in NAMES:
        run = shared_training(name, shared=True)
        records = [record._asdict() for record in run]
        Path(folder, f"{name}-{rank}.json").write_text(json.dumps(records))
        save_file(run.state(), Path(folder, f"{name}-{rank}.safetensors"))
    images, labels = blobs(1, 1)
    with pytest.raises(ValueError, match="1 image in a batch: too few for 2 processes"):
        ImageBatches(images, labels, None, SHORT, shared=True)
    distributed.shutdown()


def shared_training(name: str, *, shared: bool) -> Training:
    images, labels = blobs(150, 1)
    # shares of 17 and 16 rows, and an odd last batch of 18
    config = TrainConfig(epochs=2, batch=33, lr=0.01, clip=0.5)
    if name == "norm":
        model: nn.Module = build_model("small", 4)
    else:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Net()
        config = replace(config, copies=2 if name == "copies" else 1)
    policy = load_policy("crop-flip")
    return Training(model, ImageBatches(images, labels, policy, config, shared=shared), config)


@pytest.fixture(scope="module")
def shares(tmp_path_factory):
    """States and records of both processes, by the name of the training."""
    folder = tmp_path_factory.mktemp("shares")
    code = "import sys, tests.train.test_batches as t; t.train_shares(*sys.argv[1:])"
    program = Program(code=code, arguments=(str(folder),))
    for done in in_forks(as_ranks(program), together=True, modules=TORCH):
        assert done.returncode == 0, done.stderr
    return {
        name: (
            [load_file(folder / f"{name}-{rank}.safetensors") for rank in (0, 1)],
            [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1)],
        )
        for name in NAMES
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "copies"])
def test_two_processes_train_as_one(name, shares):
    states, both = shares[name]
    alone = shared_training(name, shared=False)
    expected = list(alone)
    assert same(*states)
    for key, value in alone.state().items():
        torch.testing.assert_close(states[0][key], value, rtol=1e-4, atol=1e-5)
    for records in both:
        assert [r["loss"] for r in records] == pytest.approx([r.loss for r in expected], rel=1e-4)
        right = [r["accuracy"] for r in records]
        assert right == pytest.approx([r.accuracy for r in expected], abs=2.1 / 150)
        assert [r["images"] for r in records] == [r.images for r in expected]


@pytest.mark.slow
def test_two_processes_with_batch_norm_have_the_same_weights(shares):
    (first, second), records = shares["norm"]
    assert first.keys() == second.keys()
    statistics = {key for key in first if "running_" in key}
    assert statistics
    for key in first:
        assert torch.equal(first[key], second[key]) == (key not in statistics), key
    assert [r["loss"] for r in records[0]] == [r["loss"] for r in records[1]]
    assert records[0][-1]["loss"] < records[0][0]["loss"]
