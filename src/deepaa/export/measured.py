"""How far the pixels of each export are from Pillow's.

tests/helpers/export_pixels.py measured it, and a test measures again where the versions are the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Difference(NamedTuple):
    """An operation of an export beside Pillow's, over all its magnitudes in the search space."""

    share: float
    """Of the values that differ."""
    mean: float
    """Mean difference of all values, in levels of 255."""
    why: str = ""


VERSIONS: Mapping[str, Mapping[str, str]] = {
    "albumentations": {"albumentations": "2.0.8", "opencv": "5.0.0"},
    "kornia": {"kornia": "0.9.0", "torch": "2.15.0"},
    "torchvision": {"torchvision": "0.29.2", "torch": "2.15.0"},
}
"""With which the numbers were measured, beside Pillow 13.0.0."""
SAMPLE = "32 images of CIFAR-10"
WITHOUT_SIZE = "albumentations, size not given"

_CENTRE = "sheared about the centre and moved by whole pixels"
_INSIDE = (
    "lies anywhere inside the image; Pillow's loses what crosses the right and lower border, and "
    "that of the ImageNet space keeps to the centre"
)
_ROUNDED = "no value is off by more than 1: floats are not rounded"
_ALBUMENTATIONS: Mapping[str, Difference] = {
    "rotate": Difference(0.00014, 0.0015),
    "auto_contrast": Difference(0.5648, 0.7133, "rounds elsewhere"),
    "equalize": Difference(0.90656, 3.2968, "another sum of the histogram"),
    "contrast": Difference(0.12164, 0.1216),
    "color": Difference(0.40711, 0.4071, "rounds, where Pillow cuts"),
    "sharpness": Difference(0.51226, 0.9153, "below 1 a Gaussian blur; borders are filtered too"),
    "cutout": Difference(0.0, 0.0, _INSIDE),
}
MEASURED: Mapping[str, Mapping[str, Difference]] = {
    "albumentations": {
        **_ALBUMENTATIONS,
        "shear_x": Difference(0.19897, 3.7998, _CENTRE),
        "shear_y": Difference(0.20518, 4.318, _CENTRE),
        "resized_crop": Difference(0.6009, 1.0785, "OpenCV's cubic kernel"),
    },
    WITHOUT_SIZE: {
        **_ALBUMENTATIONS,
        "shear_x": Difference(0.38116, 7.4317, _CENTRE),
        "shear_y": Difference(0.3901, 8.3407, _CENTRE),
        "translate_x": Difference(0.24415, 4.9381, "cut to whole pixels"),
        "translate_y": Difference(0.25005, 5.585, "cut to whole pixels"),
    },
    "kornia": {
        "shear_x": Difference(0.01472, 0.2819),
        "shear_y": Difference(0.01511, 0.319),
        "rotate": Difference(0.00014, 0.0015),
        "auto_contrast": Difference(0.47795, 0.4779, _ROUNDED),
        "contrast": Difference(0.39606, 0.3961, _ROUNDED),
        "color": Difference(0.40977, 0.4098, _ROUNDED),
        "brightness": Difference(0.39478, 0.3948, _ROUNDED),
        "sharpness": Difference(0.35421, 0.3542, _ROUNDED),
        "resized_crop": Difference(0.62693, 1.3424, "another cubic kernel, not smoothed"),
    },
    "torchvision": {
        "shear_x": Difference(0.01324, 0.2559),
        "shear_y": Difference(0.01355, 0.2875),
        "rotate": Difference(0.00014, 0.0015),
        "auto_contrast": Difference(0.01258, 0.0126),
        "contrast": Difference(0.22619, 0.2262),
        "color": Difference(0.26831, 0.2683),
        "sharpness": Difference(0.00014, 0.0001),
        "resized_crop": Difference(0.00098, 0.001),
    },
}
"""By way of exporting; operations that are not listed give Pillow's values."""
NOTES: Mapping[str, tuple[str, ...]] = {
    "albumentations": ("images are RGB; shear takes them for square",),
    "kornia": ("layers pass floats on, where Pillow rounds after each",),
    "torchvision": (
        "these are the numbers of tensors: PIL images get Pillow's values in every operation",
        "a batch given as one tensor gets one draw for all its images",
    ),
}
