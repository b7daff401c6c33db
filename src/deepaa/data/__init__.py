"""Where images come from: folders, tables, shards, arrays and others; splits and streaming.

Here belongs what reads, checks and divides images. What changes their pixels is the matter of
`deepaa.ops`.
"""

from deepaa.data.decoding import Crop as Crop
from deepaa.data.embedded import (
    EMBEDDED as EMBEDDED,
    embedded_is_intact as embedded_is_intact,
    load_embedded as load_embedded,
)
from deepaa.data.equal_images import (
    KEEP_TOGETHER as KEEP_TOGETHER,
    warn_of_equal_images as warn_of_equal_images,
)
from deepaa.data.image_file import Reading as Reading
from deepaa.data.load import (
    DataSpec as DataSpec,
    as_images as as_images,
    load_dataset as load_dataset,
    load_images as load_images,
)
from deepaa.data.parts import (
    FEW_IMAGES as FEW_IMAGES,
    JUDGE_SHARE as JUDGE_SHARE,
    LEAST_JUDGED as LEAST_JUDGED,
    MOST_JUDGED as MOST_JUDGED,
    SearchSubset as SearchSubset,
    check_enough as check_enough,
    folds as folds,
    halves as halves,
    judge_part as judge_part,
    read_splits as read_splits,
    search_splits as search_splits,
    weaknesses as weaknesses,
)
from deepaa.data.some_classes import (
    ClassImages as ClassImages,
    UnknownClassError as UnknownClassError,
    load_class_images as load_class_images,
    load_training_images as load_training_images,
)
from deepaa.data.sources import (
    absolute_root as absolute_root,
    absolute_source as absolute_source,
    fetch as fetch,
    has_columns as has_columns,
    lists_files as lists_files,
    source_name as source_name,
)
from deepaa.data.splits import (
    HOLDOUT as HOLDOUT,
    INDEX as INDEX,
    LabelledImages as LabelledImages,
    NoTestPartError as NoTestPartError,
    Splits as Splits,
    TrainTest as TrainTest,
    absent_classes as absent_classes,
    batch_rows as batch_rows,
    batch_sizes as batch_sizes,
    checked as checked,
    class_order as class_order,
    default_sizes as default_sizes,
    epoch_order as epoch_order,
    stratified_splits as stratified_splits,
)
from deepaa.data.streaming import (
    DecodingRate as DecodingRate,
    StreamedImages as StreamedImages,
    decoder_for as decoder_for,
)
