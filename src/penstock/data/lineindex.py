"""Where the rows of a text file begin, found once, so that any of them can be read on its own.

Blank lines are no rows. In CSV a line break inside quotes is no end of a row; a quote counts as
such only at the beginning of a field, as in Python's `csv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from penstock.data.chunk import Array
from penstock.data.files import blocks
from penstock.data.source import runs_of
from penstock.errors import InputError

LONGEST_ROW = 256 << 20
_SAMPLE_BYTES = 64 << 20
_MARK = b"\xef\xbb\xbf"  # of the byte order, which some write before UTF-8


def line_starts(path: str, record: re.Pattern[bytes] | None = None) -> Array:
    """The offset of every row, and at last that of the file's end.

    `record` matches one row with its line break where lines alone do not tell (`csv_record`).
    """
    found: list[Array] = []
    base, rest, quoted = 0, b"", False
    for number, block in enumerate(blocks(path)):
        if not number and block.startswith(_MARK):
            base, block = len(_MARK), block[len(_MARK) :]
        quoted = quoted or (record is not None and b'"' in block)
        data = rest + block
        ends = _ends(data, record if quoted else None)
        cut = int(ends[-1]) if len(ends) else 0
        found.append(_begins(data, ends) + base)
        base, rest = base + cut, data[cut:]
        if len(rest) > LONGEST_ROW:
            raise InputError(
                f"{path}: the row at byte {base} is longer than {LONGEST_ROW >> 20} MiB; "
                "is a quote not closed?"
            )
    if rest not in (b"", b"\r"):
        found.append(np.array([base], np.int64))
    end = base + len(rest)
    return np.concatenate([*found, np.array([end], np.int64)])


def sampled(starts: Array, rows: int) -> int:
    """How many rows to look at first: so many, or fewer where they are large."""
    return next(runs_of(np.diff(starts[: rows + 1]), _SAMPLE_BYTES))[1]


def csv_record(delimiter: str) -> re.Pattern[bytes]:
    """One row of CSV with its line break. Possessive throughout: it never goes back."""
    d = re.escape(delimiter.encode())
    # Other characters may begin with the same byte as a delimiter of several.
    other = rb"[^" + d + rb"\n]" if delimiter.isascii() else rb"(?:(?!" + d + rb")[^\n])"
    field = rb'(?:"(?:[^"]++|"")*+"' + other + rb'*+|(?!")' + other + rb"++|)"
    return re.compile(rb"(?:" + field + d + rb")*+" + field + rb"\n")


def _ends(data: bytes, record: re.Pattern[bytes] | None) -> Array:
    if record is None:
        return np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1
    return np.fromiter(_matches(data, record), np.int64)


def _matches(data: bytes, record: re.Pattern[bytes]) -> Iterator[int]:
    at = 0
    while match := record.match(data, at):
        at = match.end()
        yield at


def _begins(data: bytes, ends: Array) -> Array:
    """Where the rows before these ends begin, without blank lines."""
    if not len(ends):
        return np.empty(0, np.int64)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    short = np.flatnonzero(ends - begins <= 2)
    blank = [at for at in short.tolist() if data[begins[at] : ends[at]] in (b"\n", b"\r\n")]
    return np.delete(begins, blank)
