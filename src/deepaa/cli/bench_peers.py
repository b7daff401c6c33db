"""Who takes part in `deepaa bench ops`: our own paths, and the libraries they are compared with.

Each runs as its documentation shows, at its fastest ordinary setting: nearest interpolation where
there is a choice, inputs already in the form it takes, nothing skipped at random.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from deepaa.ops import Apply, apply_batch, apply_torch, run_pil, sample_key, tensor_to_pil
from deepaa.policy import Policy

PER_IMAGE = {"cpu": 512, "cuda": 64}
"""Images in a call for those that take one at a time, whose rate does not depend on the batch."""
FORMS: dict[str, Callable[[Tensor], Any]] = {
    "PIL": lambda images: [tensor_to_pil(image) for image in images],
    "uint8 tensor": lambda images: list(images.contiguous().unbind()),
    "uint8 array": lambda images: list(images.permute(0, 2, 3, 1).contiguous().numpy()),
    "uint8 batch": lambda images: images.contiguous(),
    "float batch": lambda images: images.float() / 255,
}
ON_CPU = ("PIL", "uint8 array")
"""The forms that no other device holds."""


class Contestant(NamedTuple):
    """Something that augments images, and what it takes to run it."""

    name: str
    library: str
    """The package to import; also the name that chooses the peer."""
    takes: str
    """A key of `FORMS`."""
    draws: str
    """"image" or "batch": what gets a draw of its own."""
    make: Callable[[Policy], Callable[[Any], Any]]
    """What augments an image, or a batch; the policy is for our own."""
    operations: int | None = None
    """How many it draws for an image; None is one in each layer of the policy."""

    @property
    def one_at_a_time(self) -> bool:
        """Whether it is called once per image rather than once per batch."""
        return not self.takes.endswith("batch")

    def prepare(self, images: Tensor) -> Any:
        """uint8 (N, C, H, W) in the form that it takes, on the same device; never timed."""
        return FORMS[self.takes](images)

    def augment(self, made: Callable[[Any], Any], inputs: Any) -> Any:
        """The augmented inputs: a batch for a batch, else a list."""
        return [made(image) for image in inputs] if self.one_at_a_time else made(inputs)


def _deepaa(apply: Apply, policy: Policy) -> Any:
    return lambda images: apply(
        images, policy.sample(len(images), device=images.device), policy.table
    )


def _deepaa_single(policy: Policy) -> Any:
    from deepaa.transforms import DeepAutoAugment

    return DeepAutoAugment(policy)


def _deepaa_pillow(policy: Policy) -> Any:
    samples = itertools.count()
    return lambda image: run_pil(
        image, policy.draw_one(sample_key(0, 0, next(samples))), policy.table
    )


def _torchvision(name: str, _: Policy, **options: int) -> Any:
    from torchvision.transforms import v2

    return getattr(v2, name)(**options)


def _kornia(_: Policy) -> Any:
    from kornia.augmentation.auto import RandAugment

    return RandAugment(n=2, m=9)


def _timm(_: Policy) -> Any:
    from PIL.Image import Resampling
    from timm.data.auto_augment import rand_augment_transform

    # Left alone it mixes bilinear and bicubic; nearest is the cheaper work that we do.
    options = {"img_mean": (128, 128, 128), "interpolation": Resampling.NEAREST}
    return rand_augment_transform("rand-m9-n2-p1", options)


def _albumentations(_: Policy) -> Any:
    # importing it would otherwise ask the network for a newer version
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    import albumentations as al
    import cv2

    affine: dict[str, Any] = {"scale": 1, "interpolation": cv2.INTER_NEAREST, "p": 1}
    still = (0, 0)
    degrees = (-16.7, 16.7)  # a shear of 0.3
    part = (-0.45, 0.45)
    operations = [
        al.Affine(shear={"x": degrees, "y": still}, **affine),
        al.Affine(shear={"x": still, "y": degrees}, **affine),
        al.Affine(translate_percent={"x": part, "y": still}, **affine),
        al.Affine(translate_percent={"x": still, "y": part}, **affine),
        al.Rotate((-30, 30), interpolation=cv2.INTER_NEAREST, p=1),
        al.AutoContrast(p=1),
        al.InvertImg(p=1),
        al.Equalize(p=1),
        al.Solarize(threshold_range=(0, 1), p=1),
        al.Posterize(num_bits=(4, 7), p=1),
        al.RandomBrightnessContrast(brightness_limit=(-0.9, 0.9), contrast_limit=still, p=1),
        al.RandomBrightnessContrast(brightness_limit=still, contrast_limit=(-0.9, 0.9), p=1),
        al.ColorJitter(brightness=(1, 1), contrast=(1, 1), saturation=(0.1, 1.9), hue=still, p=1),
        al.Sharpen(alpha=(0.1, 0.9), p=1),
    ]
    # Called without the usual Compose around it, which would only cost it time.
    transform = al.SomeOf(operations, n=2, replace=True, p=1)
    return lambda image: transform(image=image)["image"]


_BATCH, _TORCH = partial(_deepaa, apply_batch), partial(_deepaa, apply_torch)
OURS: tuple[Contestant, ...] = (
    Contestant("deepaa batch", "deepaa", "uint8 batch", "image", _BATCH),
    Contestant("deepaa torch kernels", "deepaa", "uint8 batch", "image", _TORCH),
    Contestant("deepaa single", "deepaa", "PIL", "image", _deepaa_single),
    Contestant("deepaa single", "deepaa", "uint8 array", "image", _deepaa_single),
    Contestant("deepaa single", "deepaa", "uint8 tensor", "image", _deepaa_single),
    Contestant("deepaa Pillow", "deepaa", "PIL", "image", _deepaa_pillow),
)
_RAND, _TRIVIAL = "torchvision RandAugment", "torchvision TrivialAugmentWide"
_MAKE_RAND = partial(_torchvision, "RandAugment", num_ops=2, magnitude=9)
_MAKE_TRIVIAL = partial(_torchvision, "TrivialAugmentWide")
PEERS: tuple[Contestant, ...] = (
    Contestant(_RAND, "torchvision", "PIL", "image", _MAKE_RAND, 2),
    Contestant(_RAND, "torchvision", "uint8 tensor", "image", _MAKE_RAND, 2),
    Contestant(_RAND, "torchvision", "uint8 batch", "batch", _MAKE_RAND, 2),
    Contestant(_TRIVIAL, "torchvision", "PIL", "image", _MAKE_TRIVIAL, 1),
    Contestant(_TRIVIAL, "torchvision", "uint8 tensor", "image", _MAKE_TRIVIAL, 1),
    Contestant("kornia RandAugment", "kornia", "float batch", "batch", _kornia, 2),
    Contestant("timm rand-m9-n2-p1", "timm", "PIL", "image", _timm, 2),
    Contestant(
        "albumentations SomeOf(2)", "albumentations", "uint8 array", "image", _albumentations, 2
    ),
)
LIBRARIES: tuple[str, ...] = tuple(dict.fromkeys(peer.library for peer in PEERS))


def chosen_libraries(text: str) -> list[str]:
    """The libraries of a text like `timm,kornia`, or all or none."""
    given = [name.strip() for name in text.split(",")]
    names = {"all": list(LIBRARIES), "none": []}.get(text, given)
    if unknown := [name for name in names if name not in LIBRARIES]:
        raise ValueError(f"no peer {unknown[0]!r}; choose from {', '.join(LIBRARIES)}")
    return names


def contestants(peers: Sequence[str], device: str) -> list[Contestant]:
    """Ours and the peers of the named libraries that run on `device`."""
    chosen = (*OURS, *(peer for peer in PEERS if peer.library in peers))
    return [each for each in chosen if device == "cpu" or each.takes not in ON_CPU]
