"""Which part of a policy the decoding processes take over, and how its images end at their size.

The default augmentation of ImageNet begins with a box of the whole picture, which only the process
that decodes it has. All else of a policy runs on the device.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from deepaa.data import Crop
from deepaa.ops import RESAMPLE_BITS, Operation, Table, bicubic_taps
from deepaa.policy import Chains, Layers, Phase, Policy, Stage

RESIZED_CROP = Operation("resized_crop")
"""The default crop of ImageNet; its boxes are those of `deepaa.data.decoding`."""


def crop_for(policy: Policy | None) -> Crop:
    """How the decoding workers crop training images for a policy.

    "random" where every image gets the default crop, which then comes first; "larger" where the
    policy has resized crops of its own, so that they find more pixels than they have to fill;
    "centre" where nothing crops.
    """
    uses = [] if policy is None else [policy.expected_uses(p.epoch) for p in policy.phases]
    if not any(found.get(RESIZED_CROP.name, 0.0) > 0 for found in uses):
        return "centre"
    return "random" if _default_crops(policy) else "larger"


def device_part(policy: Policy | None, crop: Crop) -> Policy | None:
    """The part of a policy that is left for the device, for images that were cut with `crop`."""
    places = _default_crops(policy) if crop == "random" else None
    return policy if policy is None or not places else _without_crop(policy, places)


def _default_crops(policy: Policy | None) -> list[int] | None:
    """The layer of each phase that is always the default crop; None if there are other crops."""
    if policy is None:
        return None
    operations = [row.operation for row in policy.table.rows]
    crops = [i for i, operation in enumerate(operations) if operation.name == RESIZED_CROP.name]
    default = [i for i in crops if operations[i] == RESIZED_CROP]
    places = []
    for phase in policy.phases:
        rows = policy.row_probabilities(phase.epoch)
        layers = rows[:, crops].sum(1).nonzero().flatten().tolist()
        if len(layers) != 1 or rows[layers[0], default].sum() < 1 - 1e-9:
            return None
        if not isinstance(_stage_of(phase, layers[0])[0], Layers):
            return None
        places.append(layers[0])
    return places


def _stage_of(phase: Phase, layer: int) -> tuple[Stage, int]:
    """The stage that a layer belongs to, and its number there."""
    for stage in phase.stages:
        if layer < stage.depth:
            return stage, layer
        layer -= stage.depth
    raise IndexError(f"no layer {layer}")


def _without_crop(policy: Policy, places: list[int]) -> Policy:
    """The policy without those layers, and without the rows of a crop that nothing draws then."""
    rows = policy.table.rows
    kept = [i for i, row in enumerate(rows) if row.operation.name != RESIZED_CROP.name]
    if not kept:
        return Policy.identity()
    place = torch.zeros(len(rows), dtype=torch.int64)
    place[kept] = torch.arange(len(kept))

    def moved(stage: Stage, dropped: int | None) -> Stage:
        if isinstance(stage, Chains):  # a chain that never draws the crop may still name it
            gates = torch.where(torch.isin(stage.rows, torch.tensor(kept)), stage.gates, 0.0)
            return Chains(stage.weights, place[stage.rows], gates)
        layers = [k for k in range(stage.depth) if k != dropped]
        return Layers(stage.probabilities[layers][:, kept])

    schedule = []
    for phase, layer in zip(policy.phases, places, strict=True):
        where, number = _stage_of(phase, layer)
        stages = [moved(stage, number if stage is where else None) for stage in phase.stages]
        schedule.append((phase.epoch, [stage for stage in stages if stage.depth]))
    return Policy(Table(rows[i] for i in kept), schedule=schedule, info=policy.info)


# The size at the end


def crop_rows(table: Table, device: torch.device) -> Tensor:
    """(T,) which rows of a table are resized crops."""
    names = [row.operation.name for row in table.rows]
    return torch.tensor([name == RESIZED_CROP.name for name in names], device=device)


def fitted(images: Tensor, size: int, cropped: Tensor | None = None) -> Tensor:
    """Square images of side `size`, from larger ones that a policy has changed.

    An image that got a resized crop is a box of the picture, all of which is kept: it is resized.
    Of the others the middle is cut out, as for a test.

    Args:
        cropped: (N,) which images got one; None for none.
    """
    side = images.shape[-1]
    if side == size:
        return images
    first = round((side - size) / 2)
    middle = images[..., first : first + size, first : first + size]
    if cropped is None:
        return middle.contiguous()
    return torch.where(cropped[:, None, None, None], shrunk(images, size), middle)


def shrunk(images: Tensor, size: int) -> Tensor:
    """uint8 images (N, C, H, W) resized to (size, size): Pillow's bicubic filter, bit for bit."""
    wide = _along_x(images, size)
    return _along_x(wide.transpose(2, 3), size).transpose(2, 3).contiguous()


def _along_x(images: Tensor, size: int) -> Tensor:
    places, weights = _taps(images.shape[-1], size, images.device)
    total = torch.full(
        (*images.shape[:-1], size),
        1 << (RESAMPLE_BITS - 1),
        dtype=torch.int32,
        device=images.device,
    )
    for place, weight in zip(places, weights, strict=True):
        total += images.index_select(-1, place) * weight
    return (total >> RESAMPLE_BITS).clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=8)
def _taps(source: int, target: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels (taps, target) to add up for each target pixel, and their fixed-point weights."""
    table = torch.from_numpy(bicubic_taps(target, [source])[0]).to(device)
    start, weights = table[:, 0], table[:, 1:].T
    places = start + torch.arange(len(weights), device=device)[:, None]
    return places.clamp(max=source - 1), weights  # a weight of 0 lies beyond the last pixel
