"""What an operation is and does: spaces, draws, plans, and kernels on Pillow, torch, C and Triton.

Here belongs what turns pixels into other pixels. Which operation an image gets is the matter of
`deepaa.policy`.
"""

from deepaa.ops.apply import (
    Draw as Draw,
    Drawn as Drawn,
    apply_batch as apply_batch,
    apply_pil as apply_pil,
    apply_torch as apply_torch,
    check_images as check_images,
    draw_layers as draw_layers,
    import_object as import_object,
    import_operations as import_operations,
    run_pil as run_pil,
    triton_problem as triton_problem,
)
from deepaa.ops.conversions import (
    SCALE_16_BITS as SCALE_16_BITS,
    integer_error as integer_error,
    pil_to_tensor as pil_to_tensor,
    pillow_rounds_blends as pillow_rounds_blends,
    tensor_to_pil as tensor_to_pil,
)
from deepaa.ops.geometry import (
    Layer as Layer,
    move_boxes as move_boxes,
    move_points as move_points,
    moving_layers as moving_layers,
    source_index as source_index,
    track as track,
)
from deepaa.ops.own_operations import check_own_operations as check_own_operations
from deepaa.ops.plan import BLENDS as BLENDS, ForkSafeLock as ForkSafeLock, to_device as to_device
from deepaa.ops.rectangles import (
    are_outside as are_outside,
    fit_rectangles as fit_rectangles,
    move_rectangles as move_rectangles,
    rectangle_corners as rectangle_corners,
)
from deepaa.ops.resize import (
    Box as Box,
    BoxTaps as BoxTaps,
    box_taps as box_taps,
    resize_boxes as resize_boxes,
)
from deepaa.ops.resized_crop import (
    CANDIDATES as CANDIDATES,
    RESAMPLE_BITS as RESAMPLE_BITS,
    bicubic_taps as bicubic_taps,
    resized_crop_box as resized_crop_box,
)
from deepaa.ops.rng import (
    BITS as BITS,
    SLOTS as SLOTS,
    choice_word as choice_word,
    draw_words as draw_words,
    fresh_keys as fresh_keys,
    gate_word as gate_word,
    hash_int as hash_int,
    hash_keys as hash_keys,
    mixed_key as mixed_key,
    sample_key as sample_key,
    sample_keys as sample_keys,
    uniform_numbers as uniform_numbers,
)
from deepaa.ops.selfcheck import (
    Apply as Apply,
    batch_kernels as batch_kernels,
    compare_with_pillow as compare_with_pillow,
    cpu_kernels as cpu_kernels,
    cuda_kernels as cuda_kernels,
)
from deepaa.ops.single import (
    single_array as single_array,
    single_pil as single_pil,
    single_tensor as single_tensor,
)
from deepaa.ops.space import (
    BUILTIN as BUILTIN,
    CIFAR as CIFAR,
    CIFAR_MEAN as CIFAR_MEAN,
    IMAGENET as IMAGENET,
    PIXEL as PIXEL,
    TABLES as TABLES,
    Operation as Operation,
    Option as Option,
    Row as Row,
    Space as Space,
    Table as Table,
    Transformation as Transformation,
)
