"""What the columns of outputs look like, which is the same in all of a job.

How many batches are put together before they are written depends on loaders, cores and rates. If
numbers of two dtypes met there, one would become the other: a result would depend on its company.
So the first batch says what all are, and another that is otherwise is an error. That holds within
what is put together (`labour`), and between parts and runs (`job`, by the manifest) and shards
(`merge`). Texts are texts, however they are stored and however long they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.data.chunk import Array
from penstock.errors import InputError

_TEXTS = "OSUT"

Forms = list[str]  # a column each, in words, as they stand in the manifest


def forms_of(columns: Mapping[str, Array]) -> Forms:
    """Name, dtype and shape of a row, of each."""
    return [
        f"{name or 'output'!r}: {_dtype(column)} {column.shape[1:]}"
        for name, column in columns.items()
    ]


def check_forms(first: Forms, found: Forms, where: str = "between rows") -> None:
    """Raise `InputError` unless they are the same."""
    if first != found:
        one, other = ("; ".join(forms) or "none" for forms in (first, found))
        raise InputError(
            f"outputs differ {where}: {one} and then {other}; give every batch the same names, "
            "dtypes and shapes"
        )


def concatenated(pieces: Sequence[Array]) -> Array:
    """Rows, one after the other: of one form, or of numbers that one function gave for one batch.

    Texts that are stored in several ways become objects; beside numbers they are refused.
    """
    for piece in pieces:
        if _is_text(piece) != _is_text(pieces[0]) or piece.shape[1:] != pieces[0].shape[1:]:
            check_forms(forms_of({"": pieces[0]}), forms_of({"": piece}))
    if len({piece.dtype.kind for piece in pieces}) > 1 and _is_text(pieces[0]):
        pieces = [piece.astype(object) for piece in pieces]
    return np.concatenate(pieces)


def _dtype(column: Array) -> str:
    return "texts" if _is_text(column) else column.dtype.name


def _is_text(column: Array) -> bool:
    return column.dtype.kind in _TEXTS
