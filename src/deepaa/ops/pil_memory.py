"""Where the pixels of a PIL image lie, so that C loops read and write them without a copy."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

_LENGTH, _OFFSET, _BUFFERS, _CHILDREN = 0, 2, 5, 6
"""Places in an `ArrowArray`, whose first ten fields all have eight bytes."""
_Fields = ctypes.c_int64 * 7


class Pixels:
    """The memory of an RGB image: `address` is good while this object lives."""

    __slots__ = ("_capsule", "address")

    def __init__(self, capsule: Any, address: int) -> None:
        """Keep the capsule, which holds the memory, together with the address."""
        self._capsule, self.address = capsule, address


def rgb_pixels(image: Image) -> Pixels | None:
    """Four bytes a pixel, row after row, or None where Pillow does not say where they are.

    Pillow exports its memory through the Arrow C data interface since 11.2, for images that lie in
    one piece. Writing there is for images that nobody else has seen.
    """
    if _pointer is None:
        return None
    try:
        _, capsule = image.__arrow_c_array__()
    except (AttributeError, ValueError):  # an older Pillow; an image in several pieces
        return None
    array = _Fields.from_address(_pointer(capsule, b"arrow_array"))
    count = image.width * image.height
    if array[_LENGTH] != count or array[_OFFSET] or not array[_CHILDREN]:
        return None
    child = _Fields.from_address(_first(array[_CHILDREN], 0))
    if child[_LENGTH] != 4 * count or child[_OFFSET]:
        return None
    return Pixels(capsule, _first(child[_BUFFERS], 1))


def _first(pointers: int, place: int) -> int:
    """One of the pointers that lie at an address."""
    return ctypes.c_int64.from_address(pointers + 8 * place).value


def _find_pointer() -> Any:
    """`PyCapsule_GetPointer`; None in a Python without it, or with other pointers."""
    python = getattr(ctypes, "pythonapi", None)
    if python is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return prototype(("PyCapsule_GetPointer", python))


_pointer = _find_pointer()
