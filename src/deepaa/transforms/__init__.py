"""What users put into their own code: `DeepAutoAugment` and `AugmentedDataset`.

Here belongs what accepts images in the forms that people have. What is drawn for an image is the
matter of `deepaa.policy`.
"""

from deepaa.transforms.transform import (
    AugmentedDataset as AugmentedDataset,
    DeepAutoAugment as DeepAutoAugment,
)
