"""What users put into their own code: `DeepAutoAugment` and `AugmentedDataset`.

Here belongs what accepts images in the forms that people have. What is drawn for an image is the
matter of `deepaa.policy`.
"""

from deepaa.transforms.dataset import AugmentedDataset as AugmentedDataset
from deepaa.transforms.transform import DeepAutoAugment as DeepAutoAugment
