"""What decoding processes take over of a policy, and how the rest ends at the network's size."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as vision

from deepaa.data import decoding
from deepaa.ops.apply import apply_batch
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Table
from deepaa.policy.load import GENERATED, compared_policy, policy_names
from deepaa.policy.policy import Policy
from deepaa.policy.stages import Chains, Layers
from deepaa.train.stream_policy import crop_for, crop_rows, device_part, fitted, shrunk

INCEPTION = {
    *("crop-flip", "autoaugment", "autoaugment-cifar10", "autoaugment-imagenet"),
    *("autoaugment-svhn", "randaugment", "uniformaugment", "trivialaugment"),
    *("trivialaugment-wide", "timm-randaugment"),
}
"""Names that run on ImageNet with the default crop and flip."""
OWN_CROPS = {"deepta", "deepta-imagenet"}


@pytest.mark.parametrize("name", policy_names())
def test_the_crop_of_every_name_on_imagenet(name: str) -> None:
    policy = compared_policy(name, space="imagenet")
    crop = "random" if name in INCEPTION else "larger" if name in OWN_CROPS else "centre"
    if name not in GENERATED:  # shipped ones were found on CIFAR, or have crops of their own
        crop = "larger" if policy.expected_uses().get("resized_crop") else "centre"
    assert crop_for(policy) == crop
    off = compared_policy(name, space="imagenet", defaults=False)
    default = name == "crop-flip"  # is the default itself
    assert crop_for(off) == (crop if default or name in OWN_CROPS else "centre")
    on = compared_policy(name, space="imagenet", defaults=True)
    assert crop_for(on) == ("larger" if crop == "larger" or default else "random")


def test_nothing_crops_where_there_is_no_policy() -> None:
    assert crop_for(None) == "centre"
    assert crop_for(Policy.always(Operation("flip"))) == "centre"
    assert crop_for(Policy.trivial(CIFAR, 2)) == "centre"
    assert device_part(None, "random") is None


def test_published_policies(shared: Path) -> None:
    folder = shared / "policies"
    crops = {
        "deepaa_imagenet_1.npz": "larger",
        "deepaa_cifar_2.npz": "centre",
        "fast_autoaugment_imagenet.json": "random",
        "dada_imagenet.json": "random",
        "pba_cifar10.txt": "random",
    }
    for name, crop in crops.items():
        assert crop_for(compared_policy(folder / name, space="imagenet")) == crop, name
    simple = f"deepaa-simple:{folder / 'deepaa_imagenet_1.npz'}"
    assert crop_for(compared_policy(simple, space="imagenet")) == "larger"
    assert crop_for(compared_policy(simple, space="imagenet", first_layers=0)) == "random"


@pytest.mark.parametrize("name", sorted(INCEPTION))
def test_the_device_is_left_the_policy_and_a_flip(name: str) -> None:
    whole = compared_policy(name, space="imagenet")
    part = device_part(whole, "random")
    assert part is not None
    assert part.depth == whole.depth - 1
    assert "resized_crop" not in part.expected_uses()
    last = part.operation_probabilities()[-1]
    assert part.table.operations[int(last.argmax())].name == "flip"
    assert float(last.max()) == 1
    # the rows before the crop are drawn as they were
    keys, before = torch.arange(300), whole.depth - 2
    drawn = [
        [policy.table.rows[i] for i in policy.draw(keys).choice[:, :before].flatten()]
        for policy in (whole, part)
    ]
    assert drawn[0] == drawn[1]
    # and images that were cut otherwise get all of it
    assert device_part(whole, "centre") is whole


def test_schedules_lose_the_crop_of_every_phase() -> None:
    table = Table([(Operation("identity"), None), (Operation("invert"), None)])
    chains = [
        Chains(torch.ones(1), torch.tensor([[row]]), torch.full((1, 1), 0.5)) for row in (0, 1)
    ]
    changing = Policy(table, schedule=[(0, [chains[0]]), (3, [chains[1]])])
    always = Policy.always(Operation("resized_crop"), Operation("flip"))
    part = device_part(changing.then(always), "random")
    assert part is not None
    assert [phase.epoch for phase in part.phases] == [0, 3]
    assert [part.expected_uses(e)["invert"] for e in (0, 3)] == [0, 0.5]
    assert all(part.expected_uses(e)["flip"] == 1 for e in (0, 3))
    assert crop_for(changing) == "centre"
    first = Policy(always.table, schedule=[(0, always.phases[0].stages), (3, [])])
    assert crop_for(first) == "larger"  # not every epoch has it


def test_only_the_crop_that_workers_draw_is_left_to_them() -> None:
    assert Operation("resized_crop").options == {"scale": decoding.SCALE, "ratio": decoding.RATIO}
    other = Operation("resized_crop", options={"scale": (0.5, 1.0)})
    assert crop_for(Policy.always(other, Operation("flip"))) == "larger"
    alone = device_part(Policy.always(Operation("resized_crop")), "random")
    assert alone is not None
    assert alone.equals(Policy.identity())
    twice = Policy.always(Operation("resized_crop")).then(Policy.always(Operation("resized_crop")))
    assert crop_for(twice) == "larger"
    often = Table([(Operation("identity"), None), (Operation("resized_crop"), None)])
    assert crop_for(Policy(often, Layers(torch.tensor([[0.1, 0.9]])))) == "larger"
    never = Policy(often, Layers(torch.tensor([[1.0, 0.0]])))
    assert crop_for(never) == "centre"
    sure = Chains(torch.ones(1), torch.tensor([[1]]), torch.ones(1, 1))
    assert crop_for(Policy(often, sure)) == "larger"


# The size at the end


@pytest.mark.parametrize(("side", "size"), [(256, 224), (27, 24), (37, 32), (64, 20), (24, 24)])
def test_shrinking_is_pillows(side: int, size: int) -> None:
    rng = np.random.default_rng(side)
    noise = rng.integers(0, 256, (3, side, side, 3), np.uint8)
    noise[1] = rng.integers(0, 2, (side, side, 3), np.uint8) * 255  # overshoots on either side
    got = shrunk(torch.from_numpy(noise).permute(0, 3, 1, 2), size)
    for ours, pixels in zip(got, noise, strict=True):
        want = Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC)
        assert torch.equal(ours, vision.pil_to_tensor(want))


def test_boxes_are_resized_and_other_images_cut() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 3, 27, 27), np.uint8))
    policy = Policy.trivial(IMAGENET, 3)
    draw = policy.draw(torch.arange(40))
    names = [[policy.table.rows[i].operation.name for i in line] for line in draw.choice.tolist()]
    cropped = crop_rows(policy.table, torch.device("cpu"))[draw.choice].any(1)
    assert cropped.tolist() == ["resized_crop" in line for line in names]
    assert 0 < int(cropped.sum()) < 40
    changed = apply_batch(images, draw, policy.table)
    for got, whole, box in zip(fitted(changed, 24, cropped), changed, cropped, strict=True):
        picture = vision.to_pil_image(whole)
        want = picture.resize((24, 24), Image.Resampling.BICUBIC)
        if not box:
            want = vision.center_crop(picture, [24, 24])
        assert torch.equal(got, vision.pil_to_tensor(want))
    assert torch.equal(fitted(changed, 24), vision.center_crop(changed, [24, 24]))
    assert fitted(changed, 27) is changed


@pytest.mark.gpu
def test_sizes_on_cuda_are_those_of_the_cpu() -> None:
    images = torch.randint(0, 256, (8, 3, 256, 256), dtype=torch.uint8)
    for some, size in itertools.product((images, images[:0]), (224, 100)):
        assert torch.equal(shrunk(some.cuda(), size).cpu(), shrunk(some, size))
    boxes = torch.arange(8) % 2 == 0
    here, there = fitted(images, 224, boxes), fitted(images.cuda(), 224, boxes.cuda())
    assert torch.equal(there.cpu(), here)
