"""What an operation is and does: spaces, draws, plans, and kernels on Pillow, torch, C and Triton.

Here belongs what turns pixels into other pixels. Which operation an image gets is the matter of
`deepaa.policy`.
"""

from deepaa.ops.apply import (
    Draw,
    apply_batch,
    apply_pil,
    apply_torch,
    check_images,
    draw_layers,
    import_object,
    import_operations,
    pil_to_tensor,
    run_pil,
    tensor_to_pil,
)
from deepaa.ops.kernels_c import available as c_kernels_available
from deepaa.ops.plan import BLENDS, ForkSafeLock, to_device
from deepaa.ops.resized_crop import CANDIDATES, RESAMPLE_BITS, bicubic_taps, resized_crop_box
from deepaa.ops.rng import (
    BITS,
    choice_word,
    draw_words,
    fresh_keys,
    gate_word,
    hash_int,
    hash_keys,
    sample_key,
    sample_keys,
    uniform_numbers,
)
from deepaa.ops.selfcheck import (
    Apply,
    batch_kernels,
    compare_with_pillow,
    pillow_rounds_blends,
)
from deepaa.ops.space import (
    BUILTIN,
    CIFAR,
    CIFAR_MEAN,
    IMAGENET,
    PIXEL,
    Operation,
    Option,
    Row,
    Space,
    Table,
    Transformation,
)

__all__ = [
    "BITS",
    "BLENDS",
    "BUILTIN",
    "CANDIDATES",
    "CIFAR",
    "CIFAR_MEAN",
    "IMAGENET",
    "PIXEL",
    "RESAMPLE_BITS",
    "Apply",
    "Draw",
    "ForkSafeLock",
    "Operation",
    "Option",
    "Row",
    "Space",
    "Table",
    "Transformation",
    "apply_batch",
    "apply_pil",
    "apply_torch",
    "batch_kernels",
    "bicubic_taps",
    "c_kernels_available",
    "check_images",
    "choice_word",
    "compare_with_pillow",
    "draw_layers",
    "draw_words",
    "fresh_keys",
    "gate_word",
    "hash_int",
    "hash_keys",
    "import_object",
    "import_operations",
    "pil_to_tensor",
    "pillow_rounds_blends",
    "resized_crop_box",
    "run_pil",
    "sample_key",
    "sample_keys",
    "tensor_to_pil",
    "to_device",
    "uniform_numbers",
]
