"""Export to torchvision's transforms v2: a Python file around `RandomChoice`."""

from __future__ import annotations

from pathlib import Path

from deepaa.export.shared import Kept, filled_template, header

LIBRARY = "torchvision"
TEMPLATE = Path(__file__).with_name("torchvision_pipeline.py")
USE = """\
    from {module} import augment

    image = augment(image)  # a PIL image (RGB or L) or a uint8 tensor (C, H, W)

`augment` is a v2.Compose and may stand inside another one, before conversion and normalisation."""


def source(kept: Kept, module: str) -> str:
    """The pipeline as a Python file that needs nothing but torch and torchvision."""
    return filled_template(TEMPLATE, kept, header(kept, LIBRARY, USE.format(module=module)))
