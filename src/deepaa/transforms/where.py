"""Says in an error which sample of a list, and which part of it, the error is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from deepaa.transforms import inputs

At = Callable[[int], str]
"""Says where a place of a flat sample is: ['boxes'], or sample 3, ['boxes']."""
SAMPLE = "sample "


@contextmanager
def naming(where: Callable[[], str]) -> Iterator[None]:
    """Errors about what a user gave begin with where it was."""
    try:
        yield
    except (TypeError, ValueError) as error:
        # others of these kinds, such as those of decoding, are not made of one text
        told = where() if type(error) in (TypeError, ValueError) else ""
        if not told:
            raise
        raise type(error)(f"in {told}: {error}") from error


def in_sample(sample: Any, place: int) -> str:
    """Where a place of a sample is; nothing if it is all of it."""
    return keystr(_path(sample, place))


def in_item(at: At, lists: Sequence[int], number: int, item: tuple[Any, ...], place: int) -> str:
    """Where a place of an item is, which is made of what lies at this number of some lists."""
    column, *rest = _path(item, place)
    return item_of(at, lists[column.idx], number, keystr(tuple(rest)))


def item_of(at: At, place: int, number: int, rest: str = "") -> str:
    """Where the rest leads in the item with this number of the list at a place."""
    way = at(place)
    if way.startswith(SAMPLE):
        return f"{way}[{number}]{rest}"
    way = f"{way}[{number}]{rest}" if way else rest
    return f"{SAMPLE}{number}, {way}" if way else f"{SAMPLE}{number}"


def further(at: At, place: int, rest: str) -> str:
    """Where the rest leads from a place."""
    return at(place) + rest


def mapped(move: Callable[[Any], Any], node: Any, way: Callable[[str], str]) -> Any:
    """All leaves of a node, moved; `way` says where what is at a path of the node lies."""
    leaves, structure = tree_flatten(node)

    def place() -> str:
        return way(keystr(_path(node, i, lists=False)))

    for i, leaf in enumerate(leaves):  # `place` reads i
        with naming(place):
            leaves[i] = move(leaf)
    return tree_unflatten(leaves, structure)


def _path(node: Any, place: int, *, lists: bool = True) -> tuple[Any, ...]:
    found, _ = tree_flatten_with_path(node, is_leaf=inputs.is_batch if lists else None)
    return found[place][0]
