"""Columns of Parquet files, read by pyarrow within bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepaa.data.extras import not_imported
from deepaa.data.image_stack import check_memory
from deepaa.files import listed, open_regular

MOST_ROWS = 50_000_000
"""A few bytes can claim many."""
LONGEST_TEXT = 1 << 14
"""Bytes of one value, at most."""


class Parquet:
    """An open file; whatever is wrong with it is a ValueError of one line, without its name."""

    def __init__(self, path: Path) -> None:
        """Read what the file says of its columns, and no value."""
        try:
            import pyarrow
            from pyarrow import compute, parquet
        except ImportError as error:
            raise ValueError(
                not_imported(error, "pyarrow", "Parquet files", "deepaa[parquet]")
            ) from None
        self._arrow, self._parquet, self._compute = pyarrow, parquet, compute
        self._path = path
        with self._opened([]) as file, _one_line(pyarrow):
            self.rows: int = file.metadata.num_rows
            self._schema = file.schema_arrow
            self.names: list[str] = list(self._schema.names)
        if self.rows > MOST_ROWS:
            raise ValueError(f"{self.rows:,} rows; at most {MOST_ROWS:,} are read")

    def column(self, name: str) -> list[Any]:
        """All values of a column of texts or numbers; None for those that are missing."""
        kind = self._schema.field(name).type
        types = self._arrow.types
        if types.is_struct(kind):
            raise ValueError(_images(name))
        if not (types.is_primitive(kind) or types.is_dictionary(kind) or _is_text(types, kind)):
            raise ValueError(f"column {name} holds {str(kind)[:60]}, expected texts or numbers")
        check_memory(16 * self.rows, f"a column of {self.rows:,} rows")
        found: list[Any] = []
        # as a dictionary, equal values take no memory of their own, however many there are
        with self._opened([name]) as file, _one_line(self._arrow):
            for batch in file.iter_batches(columns=[name]):
                values = batch.column(0)
                found += (
                    self._texts(values, name)
                    if types.is_dictionary(values.type)
                    else (values.to_pylist())
                )
        return found

    def _texts(self, values: Any, name: str) -> list[Any]:
        """The values of a dictionary array, each in memory once."""
        words = values.dictionary
        if len(words) and isinstance(first := words[0].as_py(), bytes) and b"\0" in first:
            raise ValueError(_images(name, f".cast_column({name!r}, datasets.Image())"))
        if _is_text(self._arrow.types, words.type) and len(words):
            longest = self._compute.max(self._compute.binary_length(words)).as_py()
            if (longest or 0) > LONGEST_TEXT:
                raise ValueError(f"a value of {longest:,} bytes; at most {LONGEST_TEXT:,} are read")
        known: Sequence[Any] = [*words.to_pylist(), None]
        return [known[-1 if i is None else i] for i in values.indices.to_pylist()]

    @contextmanager
    def _opened(self, columns: list[str]) -> Iterator[Any]:
        with os.fdopen(open_regular(self._path, links=True), "rb") as raw:
            with _one_line(self._arrow):
                file = self._parquet.ParquetFile(raw, read_dictionary=columns)
            yield file


def _images(name: str, cast: str = "") -> str:
    return (
        f"column {name} holds images and not their paths; datasets reads such files: "
        f"find_policy(datasets.Dataset.from_parquet(path){cast}), or its save_to_disk"
    )


def _is_text(types: Any, kind: Any) -> bool:
    names = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    checks = (getattr(types, f"is_{name}", None) for name in names)  # older ones have no views
    return any(check is not None and check(kind) for check in checks)


@contextmanager
def _one_line(arrow: Any) -> Iterator[None]:
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        reason = listed([" ".join(str(error).split())])
        raise ValueError(f"not a Parquet file, or a damaged one ({reason})") from error
