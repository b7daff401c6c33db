"""Where images come from: folders, arrays, torchvision, the embedded sample; splits and streaming.

Here belongs what reads, checks and divides images. What changes their pixels is the matter of
`deepaa.ops`.
"""

from deepaa.data.decode_worker import Crop
from deepaa.data.embedded import embedded_is_intact, load_embedded
from deepaa.data.epoch_order import (
    INDEX,
    batch_rows,
    batch_sizes,
    check_shares,
    epoch_order,
    place_among,
)
from deepaa.data.load import EMBEDDED, LabelledImages, as_images, load_dataset
from deepaa.data.sample_images import load_images
from deepaa.data.spec import DataSpec, absolute_root, absolute_source
from deepaa.data.splits import SearchSubset, Splits, default_sizes, stratified_splits
from deepaa.data.streaming import StreamedImages
from deepaa.data.test_split import TrainTest, absent_classes, checked

__all__ = [
    "EMBEDDED",
    "INDEX",
    "Crop",
    "DataSpec",
    "LabelledImages",
    "SearchSubset",
    "Splits",
    "StreamedImages",
    "TrainTest",
    "absent_classes",
    "absolute_root",
    "absolute_source",
    "as_images",
    "batch_rows",
    "batch_sizes",
    "check_shares",
    "checked",
    "default_sizes",
    "embedded_is_intact",
    "epoch_order",
    "load_dataset",
    "load_embedded",
    "load_images",
    "place_among",
    "stratified_splits",
]
