"""Where images come from: folders, arrays, torchvision, the embedded sample; splits and streaming.

Here belongs what reads, checks and divides images. What changes their pixels is the matter of
`deepaa.ops`.
"""

from deepaa.data.image_file import Reading
from deepaa.data.load import (
    EMBEDDED,
    DataSpec,
    absolute_root,
    absolute_source,
    as_images,
    embedded_is_intact,
    load_dataset,
    load_embedded,
    load_images,
)
from deepaa.data.splits import (
    INDEX,
    LabelledImages,
    SearchSubset,
    Splits,
    TrainTest,
    absent_classes,
    batch_rows,
    batch_sizes,
    checked,
    default_sizes,
    epoch_order,
    stratified_splits,
)
from deepaa.data.streaming import Crop, StreamedImages

__all__ = [
    "EMBEDDED",
    "INDEX",
    "Crop",
    "DataSpec",
    "LabelledImages",
    "Reading",
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
    "checked",
    "default_sizes",
    "embedded_is_intact",
    "epoch_order",
    "load_dataset",
    "load_embedded",
    "load_images",
    "stratified_splits",
]
