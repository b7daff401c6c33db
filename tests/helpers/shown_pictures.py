"""Pictures that pages hold as text, as pixels again."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def decoded(url: str) -> Tensor:
    """uint8 (3, H, W) of a picture that a page holds as WebP."""
    kind, text = url.split(",", 1)
    assert kind == "data:image/webp;base64"
    with Image.open(io.BytesIO(base64.b64decode(text))) as picture:
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)
