"""Export to kornia: a Python file with a module for float batches, one draw per image."""

from __future__ import annotations

from pathlib import Path

from deepaa.export.shared import Kept, filled_template, header

LIBRARY = "kornia"
TEMPLATE = Path(__file__).with_name("kornia_pipeline.py")
USE = """\
    from {module} import augment

    augment.to(images.device)
    images = augment(images)  # float (N, C, H, W) in [0, 1]: one draw per image"""


def source(kept: Kept, module: str) -> str:
    """The pipeline as a Python file that needs nothing but torch and kornia."""
    return filled_template(TEMPLATE, kept, header(kept, LIBRARY, USE.format(module=module)))
