"""Rows that share their constants in a plan, and tables that would take too much memory."""

from __future__ import annotations

import time

import pytest
import torch

from deepaa.ops import CIFAR, Draw, Operation, Table, apply_batch, apply_pil, tensor_to_pil
from deepaa.ops.plan import MAX_TABLE_BYTES, make_plan

CPU = torch.device("cpu")


def test_crops_of_several_pads_give_their_own_pixels() -> None:
    pads = [(3, 10), (0, 0), (7, 255), (1, 30), (7, 90), (40, 5)]
    table = Table((Operation("crop", options={"pad": p, "fill": fill}), None) for p, fill in pads)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, 3, 9, 13), generator=generator).to(torch.uint8)
    choice = torch.arange(60)[:, None] % len(pads)
    uniform = torch.rand(60, 1, 2, generator=generator)
    found = apply_batch(images, Draw(choice, uniform), table)
    for i in range(60):
        one = Draw(choice[i : i + 1], uniform[i : i + 1])
        pil = apply_pil(tensor_to_pil(images[i]), one, table)
        assert tensor_to_pil(found[i]).tobytes() == pil.tobytes(), pads[i % len(pads)]
    plan = make_plan(table, 3, 9, 13, CPU)
    assert len(plan.maps_x) == len(plan.maps_y) == 2 * 40 + 1


def test_equal_resized_crops_share_their_tables_and_others_do_not() -> None:
    scales = [(0.2, 0.5), (0.5, 1.0), (0.2, 0.5), (0.2, 0.5)]
    table = Table((Operation("resized_crop", options={"scale": each}), None) for each in scales)
    plan = make_plan(table, 3, 16, 16, CPU)
    assert plan.crops is not None
    assert len(plan.crops[0]) == 2
    assert plan.lines[:, 1].tolist() == [0, 1, 0, 0]
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 16, 16), generator=generator).to(torch.uint8)
    choice, uniform = torch.arange(40)[:, None] % 4, torch.rand(40, 1, 12, generator=generator)
    found = apply_batch(images, Draw(choice, uniform), table)
    for i in range(40):
        one = Draw(choice[i : i + 1], uniform[i : i + 1])
        pil = apply_pil(tensor_to_pil(images[i]), one, table)
        assert tensor_to_pil(found[i]).tobytes() == pil.tobytes()


def test_a_table_that_would_fill_the_memory_is_refused_with_its_size() -> None:
    rotate = Operation("rotate", -30, 30)
    table = Table((rotate, i * 0.001) for i in range(20_000))
    make_plan(table, 3, 32, 32, CPU)
    with pytest.raises(ValueError, match=r"20,000 rows would take 328 MB for images of 1024 x 102"):
        make_plan(table, 3, 1024, 1024, CPU)
    wide = Table([(Operation("crop", options={"pad": 4096}), None)])
    with pytest.raises(ValueError, match=r"would take .* smaller crops"):
        make_plan(wide, 3, 1024, 1024, CPU)
    make_plan(wide, 3, 512, 512, CPU)


def test_usual_tables_take_little_at_any_size() -> None:
    plan = make_plan(CIFAR.table, 3, 4096, 4096, CPU)
    assert plan.bytes < MAX_TABLE_BYTES / 10


def test_operations_that_differ_in_options_have_other_hashes() -> None:
    began = time.process_time()
    many = [Operation("cutout", options={"size": i}) for i in range(5000)]
    assert len({hash(operation) for operation in many}) > 4990
    table = Table((operation, None) for operation in many)
    assert len(table.operations) == 5000
    assert time.process_time() - began < 5  # it took a minute while they were all equal
    first, second = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    pair = [Operation("own", options=each, pil=print) for each in (first, second)]
    assert pair[0] == pair[1]
    assert hash(pair[0]) == hash(pair[1])
